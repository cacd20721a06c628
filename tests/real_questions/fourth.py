"""Fourteen more questions that the rules were not made from, committed before one was asked.

What each has to be answered was written down with it. Each was put to a public project, and what
was the matter was confirmed there: by a maintainer, or by the change that made it faster.
Of `edge-copies` the loader is quick enough: it is the step that takes the time. Of `spectrograms`
and `table` nothing is wrong with the loader, as was found out there.
"""

from __future__ import annotations

import copy
import gzip
import http.client
import http.server
import json
import pickle
import random
import re
import threading
import time
import wave
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torchvision import transforms

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class ToTensorVideo:
    """Makes a video of values between zero and one."""

    def __call__(self, clip):
        """Scale, channels first."""
        return clip.float().permute(3, 0, 1, 2) / 255


class ResizePreprocess:
    """Resizes the frames of a video."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, video):
        """Resize."""
        return torch.nn.functional.interpolate(video, size=self.size, mode="bilinear")


class VideoDataset(Dataset):
    """Short pieces of videos, with what is said of them."""

    def __init__(self, folder: Path, num_frames: int = 9) -> None:
        import cv2

        self.num_frames = num_frames
        self.video_paths = [folder / f"video{number}.mp4" for number in range(4)]
        frame = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
        frame = frame.repeat(20, 0).repeat(20, 1)
        for path in self.video_paths:
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (400, 240))
            for number in range(60):
                writer.write(np.roll(frame, number, axis=1))
            writer.release()
        self.t5_embeddings = torch.randn(4, 64, 256)
        self.preprocess = transforms.Compose([ToTensorVideo(), ResizePreprocess((176, 320))])

    def __len__(self) -> int:
        return 20_000

    def _load_video(self, path: Path, start: int):
        import cv2

        capture = cv2.VideoCapture(str(path))
        capture.set(cv2.CAP_PROP_POS_FRAMES, start)
        frames = [capture.read()[1] for _ in range(self.num_frames)]
        return torch.from_numpy(np.stack(frames))

    def __getitem__(self, index):
        number = index % len(self.video_paths)
        frames = self._load_video(self.video_paths[number], index % 12 * 4)
        return {
            "video": (self.preprocess(frames) * 255).to(torch.uint8),
            "t5_text_embeddings": self.t5_embeddings[number],
            "fps": 30,
        }


def videos_without_workers(folder: Path) -> DataLoader:
    """Leave `num_workers` as it is by default."""
    return DataLoader(VideoDataset(folder), batch_size=1, shuffle=True)


class StreamingLeRobotDataset(IterableDataset):
    """Frames of a robot's episodes out of many files, some of which are read by turns."""

    def __init__(self, folder: Path, files: int = 8) -> None:
        import cv2
        import pyarrow as pa
        import pyarrow.parquet as pq

        draw = np.random.default_rng(0)
        image = cv2.resize(draw.integers(0, 255, (15, 20, 3), dtype=np.uint8), (640, 480))
        pictures = [cv2.imencode(".jpg", np.roll(image, n, 1))[1].tobytes() for n in range(150)]
        states = draw.normal(size=(150, 7)).astype(np.float32).tolist()
        table = pa.table({"observation.image": pictures, "observation.state": states})
        self.files = [folder / f"file-{number:03d}.parquet" for number in range(files)]
        for path in self.files:
            pq.write_table(table, path)
        self.num_shards = files

    def _iter_shard(self, files: list[Path]):
        import pyarrow.parquet as pq

        info = get_worker_info()
        mine = files if info is None else files[info.id :: info.num_workers]
        for path in mine:
            table = pq.read_table(path)
            yield from chain.from_iterable(table.to_pylist() for _ in range(20))

    def make_frame(self, row):
        """Decode the image of a frame."""
        import cv2

        encoded = np.frombuffer(row["observation.image"], np.uint8)
        image = cv2.resize(cv2.imdecode(encoded, cv2.IMREAD_COLOR), (224, 224))
        return {
            "observation.image": torch.from_numpy(image).permute(2, 0, 1),
            "observation.state": torch.tensor(row["observation.state"]),
        }

    def __iter__(self):
        shards = [self.files[number :: self.num_shards] for number in range(self.num_shards)]
        streams = [self._iter_shard(shard) for shard in shards]
        while streams:
            stream = random.choice(streams)
            row = next(stream, None)
            if row is None:
                streams.remove(stream)
            else:
                yield self.make_frame(row)


def frames_of_streams(folder: Path) -> DataLoader:
    """Divide each stream of one file among two workers."""
    return DataLoader(StreamingLeRobotDataset(folder), batch_size=16, num_workers=2)


class _Bucket(http.server.SimpleHTTPRequestHandler):
    """A store of objects that is some way off."""

    def do_GET(self) -> None:
        time.sleep(0.02)
        super().do_GET()

    def log_message(self, *_args) -> None:
        pass


class File:
    """A file of a bucket."""

    def __init__(self, port: int, name: str) -> None:
        self.port, self.name = port, name

    def read(self) -> bytes:
        """Download it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{self.name}")
        contents = connection.getresponse().read()
        connection.close()
        return contents


class PytorchDataset(IterableDataset):
    """The rows of a chain, whose files are read as they come."""

    def __init__(self, port: int, names: list[str]) -> None:
        self.port, self.names = port, names
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Resize((64, 64))])

    def _rows_iter(self, total_rank: int, total_workers: int):
        for number in range(total_rank, 20_000, total_workers):
            name = self.names[number % len(self.names)]
            yield File(self.port, name), number % 2

    def __iter__(self):
        import cv2

        info = get_worker_info()
        for file, label in self._rows_iter(info.id, info.num_workers):
            encoded = np.frombuffer(file.read(), np.uint8)
            yield self.transform(cv2.imdecode(encoded, cv2.IMREAD_COLOR)), label


def files_of_bucket(folder: Path) -> DataLoader:
    """Download a file when its turn has come."""
    import cv2

    draw = np.random.default_rng(0)
    names = [f"cat.{number}.jpg" for number in range(100)]
    for name in names:
        image = draw.integers(0, 255, (10, 10, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / name), cv2.resize(image, (100, 100)))
    handler = partial(_Bucket, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dataset = PytorchDataset(server.server_port, names)
    return DataLoader(dataset, batch_size=8, num_workers=2)


def densify(x):
    """Make a dense matrix of a sparse one."""
    return x.toarray()


class IterableDistributedAnnDataCollectionDataset(IterableDataset):
    """Counts of the genes of cells, by batches."""

    def __init__(self, cells: int = 4000, genes: int = 20_000, batch_size: int = 256) -> None:
        import scipy.sparse

        draw = np.random.default_rng(0)
        self.x = scipy.sparse.random(cells, genes, 0.02, "csr", np.float32, draw)
        self.batch_size = batch_size

    def __iter__(self):
        info = get_worker_info()
        starts = range(0, self.x.shape[0] - self.batch_size, self.batch_size)
        for number in range(info.id, 20_000, info.num_workers):
            start = starts[number % len(starts)]
            yield {"x_ng": densify(self.x[start : start + self.batch_size])}


def genes_of_cells(_folder: Path) -> DataLoader:
    """Send matrices that are nearly all zeros from the workers."""
    dataset = IterableDistributedAnnDataCollectionDataset()
    return DataLoader(dataset, batch_size=None, num_workers=2)


class Tokenizer:
    """Makes numbers of the pieces of a text."""

    def __init__(self) -> None:
        self.pattern = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\w+| ?[^\s\w]+|\s+")
        self.merges: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Encode a text."""
        ids = []
        for piece in self.pattern.findall(text):
            for start in range(0, len(piece), 3):
                part = piece[start : start + 3]
                ids.append(self.merges.setdefault(part, len(self.merges)))
        return ids


class JsonlDataset(Dataset):
    """Documents, a line each."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.path, self.tokenizer = path, tokenizer
        self.offsets = [0]
        with path.open("rb") as lines:
            for line in lines:
                self.offsets.append(self.offsets[-1] + len(line))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index):
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[index])
            text = json.loads(lines.readline())["text"]
        return torch.tensor(self.tokenizer.encode(text))


class StreamingTokenBlockDataset(IterableDataset):
    """Blocks of tokens out of documents, one after the other."""

    def __init__(self, dataset: JsonlDataset, block_size: int) -> None:
        self.dataset, self.block_size = dataset, block_size

    def __iter__(self):
        tokens = torch.empty(0, dtype=torch.int64)
        order = random.Random(1)
        for _ in range(20_000):
            tokens = torch.cat([tokens, self.dataset[order.randrange(len(self.dataset))]])
            while len(tokens) >= self.block_size:
                yield tokens[: self.block_size]
                tokens = tokens[self.block_size :]


class PartitionedStreamingDataset(IterableDataset):
    """What one of several readers of a stream keeps of it."""

    def __init__(self, dataset: StreamingTokenBlockDataset) -> None:
        self.dataset = dataset

    def __iter__(self):
        info = get_worker_info()
        for number, block in enumerate(self.dataset):
            if number % info.num_workers == info.id:
                yield block


def blocks_of_documents(folder: Path) -> DataLoader:
    """Tokenize all documents in each worker, and divide the blocks then."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    path = folder / "shard.jsonl"
    with path.open("w") as lines:
        for _ in range(1000):
            lines.write(json.dumps({"text": " ".join(draw.choices(words, k=600))}) + "\n")
    blocks = StreamingTokenBlockDataset(JsonlDataset(path, Tokenizer()), 512)
    return DataLoader(PartitionedStreamingDataset(blocks), batch_size=32, num_workers=2)


class DiskDataset:
    """Molecules in files of some thousand each."""

    def __init__(self, folder: Path, shards: int = 4, shard_size: int = 2560) -> None:
        draw = np.random.default_rng(0)
        self.folder, self.shards = folder, shards
        for number in range(shards):
            x = draw.poisson(3, (shard_size, 2048)).astype(np.float32)
            y = draw.normal(size=(shard_size, 12)).astype(np.float32)
            with gzip.open(folder / f"shard-{number}.pkl.gz", "wb", 1) as file:
                pickle.dump((x, y), file)

    def get_shard(self, number: int):
        """Read one of the files."""
        with gzip.open(self.folder / f"shard-{number}.pkl.gz") as file:
            return pickle.load(file)  # noqa: S301 - written above

    def iterbatches(self, shards, batch_size: int):
        """Read a file, hand its batches out, read the next one."""
        for number in shards:
            x, y = self.get_shard(number)
            order = np.random.permutation(len(x))
            for start in range(0, len(x), batch_size):
                indices = order[start : start + batch_size]
                yield x[indices], y[indices]


class _TorchDiskDataset(IterableDataset):
    def __init__(self, disk_dataset: DiskDataset, batch_size: int) -> None:
        self.disk_dataset, self.batch_size = disk_dataset, batch_size

    def __iter__(self):
        info = get_worker_info()
        shards = range(info.id, self.disk_dataset.shards, info.num_workers)
        endless = (number for _ in range(200) for number in shards)
        return self.disk_dataset.iterbatches(endless, self.batch_size)


def shards_of_molecules(folder: Path) -> DataLoader:
    """Read the next file only when all of the last one is used."""
    dataset = _TorchDiskDataset(DiskDataset(folder), 128)
    return DataLoader(dataset, batch_size=None, num_workers=2)


@dataclass
class DGBatch:
    """Edges of a graph that changes, with what a model needs to know of them."""

    src: torch.Tensor
    dst: torch.Tensor
    time: torch.Tensor
    edge_feats: torch.Tensor
    nbr_nids: torch.Tensor
    nbr_feats: torch.Tensor
    neg_batch_list: list[torch.Tensor]


class _Edges(Dataset):
    """Batches of edges, in the order of their times."""

    def __init__(self, size: int = 16) -> None:
        self.size = size
        self.feats = torch.randn(5000, 172)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        some = torch.randint(0, 5000, (3 * self.size, 20))
        return DGBatch(
            some[: self.size, 0],
            some[: self.size, 1],
            torch.arange(self.size) + index * self.size,
            self.feats[some[: self.size, 0]],
            some,
            self.feats[some.view(-1), :64].view(3 * self.size, 20, 64),
            [torch.randint(0, 5000, (20,)) for _ in range(self.size)],
        )


class Evaluation:
    """Ranks each edge among edges that are none."""

    def score(self, batch: DGBatch) -> torch.Tensor:
        """Prepare what the model is asked."""
        return torch.cat([batch.dst, batch.src])

    def evaluate(self, batch: DGBatch) -> None:
        """Rank the edges of a batch, each with its own ones that are none."""
        for number, neg_batch in enumerate(batch.neg_batch_list):
            copy_batch = copy.deepcopy(batch)
            copy_batch.src = batch.src[number].repeat(len(neg_batch) + 1)
            copy_batch.dst = torch.cat([batch.dst[number].unsqueeze(0), neg_batch])
            self.score(copy_batch)
        time.sleep(0.01)  # the model, on a device


def evaluate(batch) -> None:
    """Evaluate a batch."""
    Evaluation().evaluate(batch)


def edges_of_graph(_folder: Path) -> DataLoader:
    """Gather edges and their neighbours, which takes little time."""
    return DataLoader(_Edges(), batch_size=None, num_workers=2)


class LeastSampledClassSampler(Sampler):
    """Draws of the class that was drawn least."""

    def __init__(self, labels: torch.Tensor, indices: list[int]) -> None:
        self.labels, self.indices = labels, indices
        self.num_classes = labels.shape[1]
        self.class_indices = [
            torch.nonzero(labels[:, class_])[:, 0].tolist() for class_ in range(self.num_classes)
        ]
        self.counts = torch.zeros(self.num_classes, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.indices)

    def sample(self) -> int:
        """Draw one."""
        classes = torch.nonzero(self.counts == self.counts.min(), as_tuple=True)[0]
        chosen = random.choice(self.class_indices[random.choice(classes.tolist())])
        for class_, indicator in enumerate(self.labels[self.indices[chosen]]):
            if indicator == 1:
                self.counts[class_] += 1
        return chosen

    def __iter__(self):
        for _ in range(len(self)):
            yield self.sample()


class _Labelled(Dataset):
    """Small pictures in memory, of which each belongs to several classes."""

    def __init__(self) -> None:
        self.pictures = torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8)
        self.labels = (torch.rand(20_000, 80) < 0.05).long()

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.pictures[index % 2000], self.labels[index]


def samples_of_classes(_folder: Path) -> DataLoader:
    """Choose each sample with a loop over its labels."""
    dataset = _Labelled()
    sampler = LeastSampledClassSampler(dataset.labels, list(range(len(dataset))))
    return DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2)


class PVNetDataset(Dataset):
    """The weather around some moments, from a store that each worker opens."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.satellite: np.ndarray | None = None

    def __len__(self) -> int:
        return self.size

    def open_satellite(self) -> np.ndarray:
        """Read the store."""
        with np.load(self.path) as store:
            return store["satellite"]

    def __getitem__(self, index):
        if self.satellite is None:
            self.satellite = self.open_satellite()
        start = index % (len(self.satellite) - 12)
        return torch.from_numpy(self.satellite[start : start + 12].astype(np.float32))


class StreamedDataModule:
    """Makes the loaders."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "satellite.npz"
        moving = np.random.default_rng(0).integers(0, 1024, (240, 11, 48, 48), dtype=np.int16)
        np.savez_compressed(self.path, satellite=moving)
        self._common = {"batch_size": 8, "num_workers": 2, "persistent_workers": False}

    def train_dataloader(self) -> DataLoader:
        """Make the one for training."""
        return DataLoader(PVNetDataset(self.path, 160), shuffle=True, **self._common)

    def val_dataloader(self) -> DataLoader:
        """Make the one for validation."""
        return DataLoader(PVNetDataset(self.path, 80), **self._common)


class Trainer:
    """The batches of the epochs, each with its validation."""

    def __init__(self, datamodule: StreamedDataModule, max_epochs: int) -> None:
        self.max_epochs = max_epochs
        self.train_dataloader = datamodule.train_dataloader()
        self.val_dataloader = datamodule.val_dataloader()

    def __len__(self) -> int:
        return self.max_epochs * (len(self.train_dataloader) + len(self.val_dataloader))

    def __iter__(self):
        for _ in range(self.max_epochs):
            yield from self.train_dataloader
            yield from self.val_dataloader


def epochs_of_weather(folder: Path) -> Trainer:
    """Start the workers anew for each epoch, and for each validation."""
    return Trainer(StreamedDataModule(folder), 500)


class AudioProcessor:
    """Makes spectrograms of recordings."""

    def __init__(self, num_freq: int = 1025, num_mels: int = 80) -> None:
        self.n_fft = (num_freq - 1) * 2
        self.window = torch.hann_window(1100)
        self.mel_basis = torch.rand(num_mels, num_freq)

    def _stft(self, wav):
        padded = torch.from_numpy(wav)
        return torch.stft(padded, self.n_fft, 275, 1100, self.window, return_complex=True).abs()

    def spectrogram(self, wav):
        """Make one on a linear scale."""
        return 20 * torch.log10(self._stft(wav).clamp(min=1e-5))

    def melspectrogram(self, wav):
        """Make one on the mel scale."""
        return 20 * torch.log10((self.mel_basis @ self._stft(wav)).clamp(min=1e-5))


class TTSDataset(Dataset):
    """Recordings of sentences, from files."""

    def __init__(self, folder: Path, ap: AudioProcessor) -> None:
        self.ap = ap
        draw = np.random.default_rng(0)
        self.items = [folder / f"LJ001-{number:04d}.wav" for number in range(60)]
        for path in self.items:
            with wave.open(str(path), "wb") as recording:
                recording.setparams((1, 2, 22_050, 0, "NONE", ""))
                values = draw.normal(0, 3000, draw.integers(30_000, 50_000)).astype(np.int16)
                recording.writeframes(values.tobytes())

    def __len__(self) -> int:
        return 20_000

    def load_wav(self, path: Path):
        """Read one."""
        with wave.open(str(path), "rb") as recording:
            values = np.frombuffer(recording.readframes(recording.getnframes()), np.int16)
        return values.astype(np.float32) / 32_768

    def __getitem__(self, index):
        text = torch.randint(0, 60, (80,))
        return {"text": text, "wav": self.load_wav(self.items[index % len(self.items)])}

    def collate_fn(self, batch):
        """Make the spectrograms of a batch, and pad them."""
        mel = [self.ap.melspectrogram(item["wav"]).T for item in batch]
        linear = [self.ap.spectrogram(item["wav"]).T for item in batch]
        text = torch.stack([item["text"] for item in batch])
        pad = torch.nn.utils.rnn.pad_sequence
        return text, pad(linear, batch_first=True), pad(mel, batch_first=True)


def spectrograms_of_speech(folder: Path) -> DataLoader:
    """Make spectrograms while training, which is quick enough."""
    dataset = TTSDataset(folder, AudioProcessor())
    return DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=2, collate_fn=dataset.collate_fn
    )


class TorchDataset(Dataset):
    """The rows of a table, in memory."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def rows_of_table(_folder: Path) -> DataLoader:
    """Take rows one by one, for a model that takes far longer."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200_000, 54)).astype(np.float32)
    return DataLoader(TorchDataset(x, draw.integers(0, 7, 200_000)), batch_size=256, shuffle=True)


@dataclass
class Interval:
    """A place on a chromosome."""

    chrom: str
    start: int
    stop: int
    label: int


class BedTool:
    """Intervals in a file, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self):
        with self.path.open() as lines:
            yield from lines

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index) -> Interval:
        for number, line in enumerate(self):
            if number == index:
                chrom, start, stop, label = line.split("\t")
                return Interval(chrom, int(start), int(stop), int(label))
        raise IndexError(index)


class FastaExtractor:
    """Pieces of the genome, a column for each base."""

    def __init__(self, genome: np.ndarray) -> None:
        self.genome = genome

    def __call__(self, interval: Interval):
        """Cut a piece out."""
        return np.eye(4, dtype=np.float32)[self.genome[interval.start : interval.stop]]


class SeqDataset(Dataset):
    """Pieces of the genome around some places."""

    def __init__(self, intervals_file: Path, genome: np.ndarray) -> None:
        self.bt = BedTool(intervals_file)
        self.fasta_extractor = FastaExtractor(genome)
        self.length = len(self.bt)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):
        interval = self.bt[index]
        return {"inputs": self.fasta_extractor(interval), "targets": interval.label}


def intervals_of_genome(folder: Path) -> DataLoader:
    """Go through the file of intervals for each of them."""
    draw = np.random.default_rng(0)
    path = folder / "intervals.bed"
    with path.open("w") as lines:
        for start in draw.integers(0, 900_000, 40_000):
            lines.write(f"chr1\t{start}\t{start + 1000}\t{start % 2}\n")
    dataset = SeqDataset(path, draw.integers(0, 4, 1_000_000, dtype=np.uint8))
    return DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)


class PDDataset(Dataset):
    """Short videos of streets, with the masks of what moves there."""

    def __init__(self, length: int = 3) -> None:
        draw = np.random.default_rng(0)
        self.length = length
        self.images = draw.integers(0, 255, (20, 125, 250, 3), dtype=np.uint8)
        self.masks = draw.integers(0, 30, (20, 10, 20)).repeat(12, 1).repeat(12, 2)
        self.img_transform = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import cv2

        ims, masks = [], []
        mapping: dict[int, int] = {}
        for number in range(self.length):
            place = (index + number) % 20
            image = cv2.resize(self.images[place], (72, 48))
            mask = cv2.resize(self.masks[place].astype(np.uint8), (72, 48), interpolation=0)
            count_ = 0
            for i in range(mask.shape[0]):
                for j in range(mask.shape[1]):
                    if mask[i, j] not in mapping:
                        if mask[mask == mask[i, j]].sum() > 50:
                            mapping[mask[i, j]] = count_
                            count_ += 1
                        else:
                            mapping[mask[i, j]] = 0
                    mask[i, j] = mapping[mask[i, j]]
            masks.append(torch.from_numpy(mask.astype(np.int64)))
            ims.append(self.img_transform(torch.from_numpy(image).float().permute(2, 0, 1) / 255))
        return {"image": torch.stack(ims), "mask": torch.stack(masks)}


def masks_of_streets(_folder: Path) -> DataLoader:
    """Number the objects of a mask pixel by pixel."""
    return DataLoader(PDDataset(), batch_size=4, shuffle=True, num_workers=2)


class WorldCerealDataset(Dataset):
    """What satellites saw of fields, month by month, a row for each field."""

    NUM_TIMESTEPS = 12
    NODATAVALUE = 65_535
    BANDS = (
        *(f"OPTICAL-B{band}-ts{{}}-10m" for band in ("02", "03", "04", "08", "11", "12")),
        *(f"SAR-{band}-ts{{}}-20m" for band in ("VH", "VV")),
        *(f"METEO-{what}-ts{{}}-100m" for what in ("precipitation_flux", "temperature_mean")),
    )

    def __init__(self, count: int = 5000) -> None:
        import pandas as pd

        draw = np.random.default_rng(0)
        months = range(self.NUM_TIMESTEPS)
        columns = [band.format(month) for band in self.BANDS for month in months]
        values = draw.integers(1, 10_000, (count, len(columns)))
        self.df = pd.DataFrame(values, columns=columns).assign(
            start_date="2020-09-01",
            lat=draw.normal(size=count),
            lon=draw.normal(size=count),
            LANDCOVER_LABEL=draw.integers(10, 13, count),
        )

    def __len__(self) -> int:
        return 20_000

    def row_to_arrays(self, row):
        """Make arrays of a row."""
        month = date.fromisoformat(row["start_date"]).month - 1
        eo_data = np.zeros((self.NUM_TIMESTEPS, len(self.BANDS)), np.float32)
        mask = np.zeros((self.NUM_TIMESTEPS, len(self.BANDS)), bool)
        for number, band in enumerate(self.BANDS):
            values = np.array([float(row[band.format(t)]) for t in range(self.NUM_TIMESTEPS)])
            valid = values != self.NODATAVALUE
            if band.startswith("SAR"):
                values[valid] = 20 * np.log10(values[valid]) - 83
            eo_data[:, number] = values
            mask[:, number] = ~valid
        latlon = np.array([row["lat"], row["lon"]], np.float32)
        return eo_data, mask, latlon, month, row["LANDCOVER_LABEL"] == 11

    def __getitem__(self, index):
        row = self.df.iloc[index % len(self.df), :]
        eo_data, mask, latlon, month, target = self.row_to_arrays(row)
        return eo_data / 10_000, mask, latlon, month, int(target)


def rows_of_fields(_folder: Path) -> DataLoader:
    """Look each value up in a row of pandas."""
    return DataLoader(WorldCerealDataset(), batch_size=64, shuffle=True, num_workers=2)


_OWN = ("one-transform",)
FOURTH = (
    Question(
        "no-workers",
        "cosmos-predict1 #31: 3.2 s between iterations to get data; 50 ms with num_workers=8",
        videos_without_workers,
        0.02,
        ("too-few-workers", "main-process"),
        r"worker|main process|the loop itself",
        r"num_workers",
        "right",
    ),
    Question(
        "one-file-streams",
        "lerobot #3781: worker 0 reads all, the others are idle; divide the files among them",
        frames_of_streams,
        0.014,
        ("idle-workers",),
        r"worker",
        r"shard|split|divid|among|\bfiles?\b|get_worker_info",
        "right",
    ),
    Question(
        "downloads",
        "datachain #631, #664: files are downloaded in sequence; prefetched: 300 s to 35 s",
        files_of_bucket,
        0.02,
        ("storage-latency", "too-few-workers"),
        r"\bread|[Dd]ownload|getresponse|PytorchDataset|storage|[Nn]etwork|[Ss]ocket|workers?\b",
        r"prefetch|thread|async|concurrent|more workers|num_workers|\bcache|local",
        "right",
    ),
    Question(
        "dense-genes",
        "cellarium-ml #387: workers pass dense matrices; kept sparse, an epoch of 30 min takes 12",
        genes_of_cells,
        0.006,
        ("sending",),
        r"[Ss]end|densify|toarray|\bMB\b|bytes",
        r"sparse|smaller|fewer|compact|on the device|float16|uint8",
        "right",
    ),
    Question(
        "partition",
        "metaseq #746: each tokenizes every sample, and keeps its part; partitioned before",
        blocks_of_documents,
        0.006,
        ("repeated-work",),
        r"worker|PartitionedStreamingDataset",
        r"shard|split|divid|partition|get_worker_info|own part|before",
        "right",
    ),
    Question(
        "next-shard",
        "deepchem #848: the GPU waits for the next shard; it is loaded ahead, in a thread",
        shards_of_molecules,
        0.006,
        ("slow-samples", "too-little-prefetch"),
        r"shard|iterbatches|load|prefetch|[Ss]ome|now and then",
        r"prefetch|thread|ahead|smaller|background",
        "slow-samples, without the shard: half right",
    ),
    Question(
        "edge-copies",
        "tgm #235: a deep copy for each edge of a batch; one for each batch, 2 to 3 h to 1 h",
        edges_of_graph,
        0.01,
        ("main-process",),
        r"deepcopy|evaluate",
        r"\bonce\b|out of the loop|outside|shallow|less often|fewer|\bcop(y|ies)\b",
        "sending: wrong",
        lambda: evaluate,
    ),
    Question(
        "least-sampled",
        "pytorch-multilabel-balanced-sampler #8, #9: the sampler's loop; over a minute to 9 s",
        samples_of_classes,
        0.01,
        ("main-process",),
        r"[Ss]ampler|\bsample\b",
        r"vector|NumPy|tensor|\bloop|\bonce\b|beforehand|in advance",
        "right",
    ),
    Question(
        "validation",
        "pvnet #436: workers start for each training and validation loop; keep them",
        epochs_of_weather,
        0.006,
        ("start-up",),
        r"epoch|start|iterator",
        r"persistent_workers",
        "main-process: wrong",
    ),
    Question(
        "spectrograms",
        "mozilla/TTS #214: spectrograms are made while training; they are not the bottleneck",
        spectrograms_of_speech,
        0.1,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait",
        r"model|step|device|GPU|train|nothing|compute",
        "right",
    ),
    Question(
        "table",
        "tabnet #258: would load rows faster; 'we never saw any speed up'",
        rows_of_table,
        0.1,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait",
        r"model|step|device|GPU|train|nothing|compute",
        "right",
    ),
    Question(
        "intervals",
        "kipoi #220, kipoi/models #67: a file is scanned for each row; linecache",
        intervals_of_genome,
        0.02,
        _OWN,
        r"BedTool|__getitem__|__iter__",
        r"linecache|\bonce\b|memory|__init__|[Kk]eep|\bcache|index|beforehand",
        "right",
    ),
    Question(
        "mask-loop",
        "Discovery_Obj_Move #4: masks pixel by pixel; with np.unique 0.3 s to 0.01 s",
        masks_of_streets,
        0.006,
        _OWN,
        r"__getitem__",
        r"vector|NumPy|np\.|unique|\bonce\b|beforehand|[Kk]eep|\bcache",
        "right",
    ),
    Question(
        "rows-of-pandas",
        "presto-worldcereal #2, #9: values are looked up in a row of pandas; 70 times with more",
        rows_of_fields,
        0.01,
        _OWN,
        r"row_to_arrays|__getitem__|\bpandas|Series|iloc",
        r"NumPy|\bdict|to_dict|arrays?\b|\bonce\b|beforehand|__init__|whole",
        "right",
    ),
)
"""In the order in which they were found."""
