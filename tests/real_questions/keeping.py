"""Questions about what is kept, and for how long: caches, tables, indices, shares of the work.

The addresses are those of the maintainer's answer, or of the change that helped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Cached(Dataset):
    """Frames that come from a server when they are first asked for, and are kept then."""

    def __init__(self, folder: Path) -> None:
        self.paths, self.cache = [folder / f"{number}.npy" for number in range(240)], {}
        for path in self.paths:
            np.save(path, np.ones((128, 128), np.float32))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.read(self.paths[index])
        return self.cache[index]

    @staticmethod
    def read(path):
        """Read one frame from the server."""
        time.sleep(0.02)  # the network
        return torch.from_numpy(np.load(path))


def cache_of_workers(folder: Path) -> DataLoader:
    """Keep what is read in workers that end with the epoch."""
    return DataLoader(_Cached(folder), batch_size=4, shuffle=True, num_workers=2)


class _Prepared(Dataset):
    """Annotations that each worker reads at its first sample, and keeps."""

    def __init__(self, folder: Path) -> None:
        self.path, self.boxes = folder / "boxes.txt", None
        self.path.write_text("".join(f"{n} {n % 7} {n % 5}\n" for n in range(150_000)))

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index):
        if self.boxes is None:
            self.boxes = self.read_annotations()
        return torch.zeros(3, 64, 64), torch.tensor(self.boxes[index])

    def read_annotations(self):
        """Parse all boxes."""
        lines = self.path.read_text().splitlines()
        return [[float(number) for number in line.split()] for line in lines]


def annotations_of_workers(folder: Path) -> DataLoader:
    """Read a large table in each worker, again at each epoch."""
    return DataLoader(_Prepared(folder), batch_size=8, shuffle=True, num_workers=2)


class _Stream(IterableDataset):
    """Samples that are made by every worker, and left to one of them."""

    def __iter__(self):
        worker = get_worker_info()
        for number in range(20_000):
            sample = self.preprocess(number)
            if worker is None or number % worker.num_workers == worker.id:
                yield sample

    @staticmethod
    def preprocess(number: int):
        """Compute for some milliseconds."""
        end_s = time.thread_time() + 0.002
        while time.thread_time() < end_s:
            sum(range(500))
        return torch.full((3, 32, 32), float(number))


def made_by_every_worker(_folder: Path) -> DataLoader:
    """Divide samples among workers after the work is done."""
    return DataLoader(_Stream(), batch_size=8, num_workers=2)


class _Nodes(Dataset):
    def __init__(self, count: int) -> None:
        self.features = torch.randn(1000, 32)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.features[index % 1000]


class DegreeSampler:
    """Draws nodes, those with more neighbours more often."""

    def __init__(self, degrees) -> None:
        self.degrees = degrees

    def __len__(self) -> int:
        return 2000

    def __iter__(self):
        for _ in range(len(self)):
            chances = self.degrees / self.degrees.sum()
            yield np.random.choice(len(chances), 64, p=chances).tolist()


def weights_for_each_draw(_folder: Path) -> DataLoader:
    """Compute the chances of a million nodes for each batch."""
    nodes = _Nodes(1_000_000)
    degrees = np.random.default_rng(0).integers(1, 100, len(nodes)).astype(np.float64)
    return DataLoader(nodes, batch_sampler=DegreeSampler(degrees), num_workers=2)


class _Triplets(Dataset):
    """An anchor, another patch of its class, and one of a different one."""

    def __init__(self) -> None:
        self.labels = torch.arange(1_500_000) % 3000
        self.patches = torch.zeros(500, 1, 32, 32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        same = self.positions_of(index % 3000)
        other = self.positions_of((index + 1) % 3000)
        return tuple(self.patches[one % 500] for one in (index, int(same[0]), int(other[0])))

    def positions_of(self, label: int):
        """Look for a label among all of them."""
        return torch.nonzero(self.labels == label)[:, 0]


def search_in_labels(_folder: Path) -> DataLoader:
    """Search a million labels for each sample."""
    return DataLoader(_Triplets(), batch_size=32, shuffle=True, num_workers=2)


def rows_as_lists(_folder: Path) -> DataLoader:
    """Take rows of a table as lists of numbers."""
    from datasets import Array2D, Features, Value
    from datasets import Dataset as Table

    values = np.random.default_rng(0).normal(size=(400, 200, 200)).astype(np.float32)
    features = Features({"x": Array2D((200, 200), "float32"), "y": Value("int64")})
    table = Table.from_dict({"x": values, "y": np.arange(400)}, features=features)
    twice = torch.utils.data.ConcatDataset([table] * 50)
    return DataLoader(twice, batch_size=8, num_workers=2, collate_fn=_of_lists)


def _of_lists(rows):
    values = [np.array(row["x"], np.float32) for row in rows]
    return torch.from_numpy(np.stack(values)), torch.tensor([row["y"] for row in rows])


_OWN = ("one-transform",)
KEEPING = (
    Question(
        "lost-cache",
        "mmhuman3d #233, torchdatasets #26: 7 min to 35 s an epoch",
        cache_of_workers,
        0.01,
        (*_OWN, "start-up", "storage-latency", "storage-bandwidth"),
        r"__getitem__|read|every epoch",
        r"persistent_workers",
        "storage-latency: wrong lever",
    ),
    Question(
        "annotations",
        "pytorch forum 177390: annotations are loaded again at each epoch's begin",
        annotations_of_workers,
        0.01,
        ("start-up",),
        r"every epoch",
        r"persistent_workers",
        "start-up: right",
    ),
    Question(
        "every-worker",
        "pytorch/data #454, #487: divide among the workers as early as possible",
        made_by_every_worker,
        0.006,
        ("repeated-work",),
        r"[Ee]very worker",
        r"divide|shard",
        "one-transform: wrong lever",
    ),
    Question(
        "weights",
        "dgl #3879: keep the probabilities in place of computing them for each draw",
        weights_for_each_draw,
        0.005,
        ("main-process",),
        r"DegreeSampler\.__iter__",
        r"beforehand|once",
        "main-process: right",
    ),
    Question(
        "search",
        "tfeat #17: a linear search for each sample; 4.5 to 27 batches/s",
        search_in_labels,
        0.01,
        _OWN,
        r"positions_of",
        r"once|beforehand",
        "one-transform: right",
    ),
    Question(
        "lists",
        "datasets #7210, #5841: rows as lists; 1.4 s to 0.04 s with numpy",
        rows_as_lists,
        0.005,
        (*_OWN, "collate"),
        r"datasets|__getitem__|_of_lists",
        r"with_format\('numpy'\)",
        "collate: wrong lever",
    ),
)
"""By what was found to be slow there."""
