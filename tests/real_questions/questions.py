"""Twelve questions that users asked in public, each as a loader with the cause that was confirmed.

A maintainer named the cause there, or a change worked. Each dataset is written as its author wrote
it, as far as can be told, and small enough for two cores; the step is a timer.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import TYPE_CHECKING
from urllib.request import urlopen

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import transforms

from real_questions import Question
from real_questions.computing import COMPUTING
from real_questions.fifth import FIFTH
from real_questions.fourth import FOURTH
from real_questions.keeping import KEEPING
from real_questions.later import LATER
from real_questions.making import MAKING
from real_questions.reading import READING
from real_questions.seventh import SEVENTH
from real_questions.sixth import SIXTH
from real_questions.third import THIRD

if TYPE_CHECKING:
    from pathlib import Path


class _Windows(Dataset):
    """Windows of a recording in memory; their starts and labels in a table of pandas."""

    def __init__(self, count: int = 20_000) -> None:
        import pandas as pd

        self.signal = np.random.default_rng(0).normal(size=(32, count + 200)).astype(np.float32)
        columns = {"start": np.arange(count), "stop": np.arange(count) + 200}
        self.metadata = pd.DataFrame(columns | {"target": np.arange(count) % 4})

    def __len__(self) -> int:
        return len(self.metadata)

    def __getitem__(self, index):
        start = self.metadata.iloc[index]["start"]
        stop = self.metadata.iloc[index]["stop"]
        target = self.metadata.iloc[index]["target"]
        return self.signal[:, start:stop], int(target)


def windows_of_pandas(_folder: Path) -> DataLoader:
    """Look three values of each sample up by `iloc`."""
    return DataLoader(_Windows(), batch_size=256, shuffle=True, num_workers=2)


class _Series(Dataset):
    """Series of floats, one array a sample."""

    def __init__(self, shape: tuple[int, ...] = (24 * 14, 4)) -> None:
        self.values = np.random.default_rng(0).normal(size=(64, *shape)).astype(np.float32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return {"past": self.values[index % 64], "scale": self.values[index % 64, 0, 0]}


def stack_as_tensor(samples):
    """Make a batch as gluonts did: one tensor out of a list of arrays."""
    return {name: torch.tensor([sample[name] for sample in samples]) for name in samples[0]}


def tensor_of_arrays(_folder: Path) -> DataLoader:
    """Convert number by number."""
    return DataLoader(_Series(), batch_size=64, num_workers=2, collate_fn=stack_as_tensor)


class _Texts(Dataset):
    """Documents of some hundred words."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        words = ["".join(draw.choice(list("abcdefghij"), 6)) for _ in range(2000)]
        self.documents = [" ".join(draw.choice(words, 400)) for _ in range(500)]

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.documents[index % len(self.documents)]


class Tokenizer:
    """Split words into pieces by the longest match, in plain Python."""

    def __init__(self) -> None:
        self.pieces = {
            piece: number
            for number, piece in enumerate(
                map("".join, zip("abcdefghij", "jihgfedcba", strict=True))
            )
        }

    def encode(self, text: str) -> list[int]:
        """Number the pieces of a text."""
        numbers = []
        for word in re.findall(r"\w+|[^\w\s]", text.lower()):
            place = 0
            while place < len(word):
                for length in (4, 3, 2, 1):
                    piece = word[place : place + length]
                    if piece in self.pieces or length == 1:
                        numbers.append(self.pieces.get(piece, 0))
                        break
                place += length
        return numbers


class Collator:
    """Tokenise and pad a batch."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer()

    def __call__(self, texts):
        encoded = [self.tokenizer.encode(text)[:512] for text in texts]
        longest = max(map(len, encoded))
        return torch.tensor([numbers + [0] * (longest - len(numbers)) for numbers in encoded])


def tokenised_while_loading(_folder: Path) -> DataLoader:
    """Tokenise in the collator, each epoch anew."""
    return DataLoader(_Texts(), batch_size=16, num_workers=2, collate_fn=Collator())


class _Augmented(Dataset):
    """Photographs in memory, resized and blurred by OpenCV."""

    def __init__(self) -> None:
        shape = (8, 800, 1000, 3)
        self.images = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import cv2

        image = cv2.resize(self.images[index % 8], (1333, 800))
        image = cv2.cvtColor(cv2.GaussianBlur(image, (5, 5), 0), cv2.COLOR_BGR2RGB)
        return cv2.resize(image.astype(np.float32) / 255, (256, 256))


def many_threads(_worker: int) -> None:
    """Do what OpenCV does on a host of 64 cores."""
    import cv2

    cv2.setNumThreads(64)


def threads_of_opencv(_folder: Path) -> DataLoader:
    """Start 64 threads in each worker."""
    return DataLoader(_Augmented(), batch_size=8, num_workers=2, worker_init_fn=many_threads)


class _CachedFiles(Dataset):
    """Files that are copied from a server into one folder, each when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.server, self.cache = folder / "server", folder / "cache"
        self.server.mkdir(exist_ok=True), self.cache.mkdir(exist_ok=True)
        (self.server / "data").write_bytes(bytes(200_000))

    def __len__(self) -> int:
        return 5_000

    def __getitem__(self, index):
        return np.frombuffer(self._cached(f"{index}.bin").read_bytes(), np.uint8)[:1000].copy()

    def _cached(self, name: str) -> Path:
        path = self.cache / name
        with (self.cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                time.sleep(0.02)  # the network
                shutil.copyfile(self.server / "data", path)
        return path


def lock_of_a_folder(folder: Path) -> DataLoader:
    """Hold one lock for the whole folder while a file is copied."""
    return DataLoader(_CachedFiles(folder), batch_size=4, num_workers=4)


class _Annotations(Dataset):
    """Two million annotations as Python objects."""

    def __init__(self, count: int = 2_000_000) -> None:
        self.rows = [(f"images/{number:08d}.jpg", number % 100) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        path, label = self.rows[index]
        return len(path) + label


def list_of_objects(_folder: Path) -> DataLoader:
    """Read Python objects in forked workers, which copies the pages that hold them."""
    return DataLoader(_Annotations(), batch_size=512, shuffle=True, num_workers=2)


class _FewSlow(Dataset):
    """One sample in forty takes forty times as long."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        _compute(0.2 if index % 40 == 7 else 0.002)
        return torch.zeros(100)


def _compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(500))


def few_slow_samples(_folder: Path) -> DataLoader:
    """Return batches in order, whatever one of them takes."""
    return DataLoader(_FewSlow(), batch_size=2, num_workers=2)


class _Plain(Dataset):
    """Samples that wait a little and compute a little."""

    def __init__(self, wait_s: float, compute_s: float) -> None:
        self.wait_s, self.compute_s = wait_s, compute_s

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        _compute(self.compute_s)
        return torch.zeros(3, 32, 32)


def one_worker(_folder: Path) -> DataLoader:
    """Let one worker do what several could."""
    return DataLoader(_Plain(0.001, 0.0015), batch_size=8, num_workers=1)


def bound_by_the_model(_folder: Path) -> DataLoader:
    """Load faster than the model can use it."""
    return DataLoader(_Plain(0.0005, 0.0005), batch_size=8, num_workers=2)


class _Graph:
    """A sample with many small tensors."""

    def __init__(self) -> None:
        self.tensors = [torch.ones(8) for _ in range(12)]


class _Graphs(Dataset):
    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return _Graph()


def as_objects(samples):
    """Make a batch that is a list of objects."""
    return samples


def small_tensors(_folder: Path) -> DataLoader:
    """Send hundreds of tensors, each in shared memory of its own."""
    return DataLoader(_Graphs(), batch_size=48, num_workers=2, collate_fn=as_objects)


class _Slow(BaseHTTPRequestHandler):
    """Answer each request after 30 ms, as object storage does."""

    def do_GET(self) -> None:
        """Answer."""
        time.sleep(0.03)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(20_000))

    def log_message(self, *_given) -> None:
        """Say nothing."""


def _serve(port) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    port.send(server.server_port)
    server.serve_forever()


class _Objects(Dataset):
    """One small object a sample, each a request of its own."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        with urlopen(f"{self.address}/{index}") as answer:  # noqa: S310 - our own server
            return np.frombuffer(answer.read(), np.uint8).copy()


def object_storage(_folder: Path) -> DataLoader:
    """Ask for one small file after the other."""
    here, there = get_context("fork").Pipe()
    get_context("fork").Process(target=_serve, args=(there,), daemon=True).start()
    return DataLoader(_Objects(here.recv()), batch_size=8, num_workers=2)


class _Archive(Dataset):
    """Open the archive of the whole dataset for each sample."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "all.npz"
        np.savez(self.path, x=np.ones((400, 64, 64), np.float32), y=np.arange(400))

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index):
        archive = np.load(self.path)
        return archive["x"][index], archive["y"][index]


def archive_of_all(folder: Path) -> DataLoader:
    """Load everything for one sample."""
    return DataLoader(_Archive(folder), batch_size=8, num_workers=2)


class _Photographs(Dataset):
    """Photographs of twelve megapixels, used at 224 pixels."""

    def __init__(self, folder: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
        self.path = folder / "large.jpg"
        Image.fromarray(noise).resize((4000, 3000)).save(self.path)
        self.transform = transforms.Compose(
            [transforms.Resize((224, 224)), transforms.ToTensor(), transforms.Normalize(0.5, 0.2)]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.transform(Image.open(self.path).convert("RGB"))


def large_images(folder: Path) -> DataLoader:
    """Decode and resize photographs that are stored far larger than they are used."""
    return DataLoader(_Photographs(folder), batch_size=4, num_workers=2)


class _Shards(IterableDataset):
    """Two shards, whatever the number of workers."""

    def __iter__(self):
        if get_worker_info().id < 2:
            for _ in range(20_000):
                _compute(0.002)
                yield torch.zeros(100)


def few_shards(_folder: Path) -> DataLoader:
    """Start more workers than there are shards."""
    return DataLoader(_Shards(), batch_size=8, num_workers=4)


def _confine(_worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def one_core(_folder: Path) -> DataLoader:
    """Let all workers run on one core."""
    plain = _Plain(0.0, 0.002)
    return DataLoader(plain, batch_size=8, num_workers=2, worker_init_fn=_confine)


_OWN = ("one-transform",)
QUESTIONS = (
    Question(
        "pandas",
        "braindecode #89: slow though all is in memory",
        windows_of_pandas,
        0.004,
        _OWN,
        r"__getitem__",
        r"NumPy|to_numpy",
        "cpu-saturated: wrong",
    ),
    Question(
        "tensor-of-arrays",
        "gluonts #1732: making batches is extremely slow",
        tensor_of_arrays,
        0.008,
        ("collate",),
        r"stack_as_tensor",
        r"np\.stack|from_numpy",
        "cpu-saturated: wrong",
    ),
    Question(
        "tokenizer",
        "ModernBERT #236: a third of the reported speed",
        tokenised_while_loading,
        0.01,
        ("collate",),
        r"encode|Collator|__call__",
        r"beforehand|once",
        "sending: wrong",
    ),
    Question(
        "opencv-threads",
        "mmdetection #6867: half of the CPU in the kernel",
        threads_of_opencv,
        0.05,
        ("oversubscription",),
        r"thread",
        r"setNumThreads",
        "healthy: wrong",
    ),
    Question(
        "folder-lock",
        "returnn #1548: all wait while files are copied",
        lock_of_a_folder,
        0.05,
        ("lock",),
        r"wait for each other",
        r"lock",
        "storage-bandwidth: wrong",
    ),
    Question(
        "memory",
        "pytorch #13246: memory grows until the process is killed",
        list_of_objects,
        0.02,
        ("memory-growth",),
        r"copy what they share",
        r"NumPy|array",
        "healthy: wrong",
    ),
    Question(
        "in-order",
        "pytorch #141833: waits for one worker, others are ready",
        few_slow_samples,
        0.01,
        ("slow-samples",),
        r"one in",
        r"in_order=False",
        "too-little-prefetch: half right",
    ),
    Question(
        "few-workers",
        "geti #5958: the GPU is idle 70 to 92% of the time",
        one_worker,
        0.012,
        ("too-few-workers",),
        r"worker",
        r"num_workers",
        "too-few-workers: right",
    ),
    Question(
        "model-bound",
        "DALI #892: loading is 10 times as fast, training is not",
        bound_by_the_model,
        0.05,
        ("healthy",),
        r"hardly",
        r"model",
        "healthy: right",
    ),
    Question(
        "small-tensors",
        "pytorch #123439: slow when collate returns objects",
        small_tensors,
        0.005,
        ("sending",),
        r"[Ss]ending",
        r"tensor|objects",
        "sending: right",
    ),
    Question(
        "object-storage",
        "rf-detr #1396: CPU hardly used",
        object_storage,
        0.05,
        ("storage-latency",),
        r"wait",
        r"shard|more workers|at once",
        "storage-latency: right",
    ),
    Question(
        "npz",
        "torchgeo #1754: loading from .npz is slow",
        archive_of_all,
        0.01,
        (*_OWN, "storage-bandwidth"),
        r"__getitem__",
        r"once",
        "one-transform: right",
    ),
)


KINDS = (
    Question(
        "large-images",
        "several: resizing and decoding share the cost",
        large_images,
        0.05,
        ("decode",),
        r"larger than",
        r"store|smaller",
        "transforms: wrong lever",
    ),
    Question(
        "few-shards",
        "several: fewer shards than workers",
        few_shards,
        0.006,
        ("idle-workers",),
        r"nothing to do",
        r"shards",
        "sending: wrong",
    ),
    Question(
        "one-core",
        "several: workers confined to one core",
        one_core,
        0.012,
        ("few-cores",),
        r"confined",
        r"affinity",
        "inconclusive",
    ),
    *READING,
    *MAKING,
    *KEEPING,
    *COMPUTING,
    *LATER,
    *THIRD,
    *FOURTH,
    *FIFTH,
    *SIXTH,
    *SEVENTH,
)
"""Further kinds of questions: `several` are ours, without a set-up that is known."""
