"""Twelve more questions that the rules were not made from, written before one was asked.

What each has to be answered was written down with it, by someone who had not seen how verdicts
come about. Each was put to a public project, and what was the matter was confirmed there: by a
maintainer, or by the change that made it faster. Of `memoized` it is the memory that was asked
about. Of `sampled-genes` nothing is wrong with the loader, as was found out there.
"""

from __future__ import annotations

import http.client
import http.server
import io
import random
import sqlite3
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class Data:
    """A graph: what is known of its nodes and of its edges."""

    def __init__(self, **mapping) -> None:
        self.mapping = mapping
        self.num_nodes = len(mapping["x"])

    @property
    def keys(self) -> list[str]:
        """Names of all that is known."""
        return sorted(key for key, value in self.mapping.items() if value is not None)

    def __getitem__(self, key: str):
        return self.mapping[key]

    def __cat_dim__(self, key: str) -> int:
        return -1 if "index" in key else 0

    def __inc__(self, key: str) -> int:
        return self.num_nodes if "index" in key else 0


class Batch:
    """Graphs that are made one large graph."""

    @staticmethod
    def from_data_list(data_list: list[Data]):
        """Put graphs together."""
        keys = data_list[0].keys
        batch = {key: [] for key in keys}
        cumsum = dict.fromkeys(keys, 0)
        slices = {key: [0] for key in keys}
        numbers = []
        for i, data in enumerate(data_list):
            for key in data.keys:
                item = data[key]
                if torch.is_tensor(item) and item.dtype != torch.bool:
                    item = item + cumsum[key]
                size = item.size(data.__cat_dim__(key)) if torch.is_tensor(item) else 1
                slices[key].append(size + slices[key][-1])
                cumsum[key] = cumsum[key] + data.__inc__(key)
                batch[key].append(item)
            numbers.append(torch.full((data.num_nodes,), i, dtype=torch.long))
        whole = {key: torch.cat(batch[key], data_list[0].__cat_dim__(key)) for key in keys}
        return {**whole, "batch": torch.cat(numbers)}


class MoleculeDataset(Dataset):
    """Small molecules, in memory."""

    def __init__(self, count: int = 4000) -> None:
        self.data_list = []
        for _ in range(count):
            nodes = random.randint(8, 20)
            self.data_list.append(
                Data(
                    x=torch.rand(nodes, 9),
                    pos=torch.rand(nodes, 3),
                    edge_index=torch.randint(0, nodes, (2, 3 * nodes)),
                    edge_attr=torch.rand(3 * nodes, 4),
                    y=torch.rand(1),
                )
            )

    def __len__(self) -> int:
        return 2_000_000

    def __getitem__(self, index) -> Data:
        return self.data_list[index % len(self.data_list)]


def molecules_of_batch(_folder: Path) -> DataLoader:
    """Make large batches of small graphs, going through all they are made of."""
    return DataLoader(
        MoleculeDataset(), batch_size=512, num_workers=2, collate_fn=Batch.from_data_list
    )


class WordInferenceDataset(Dataset):
    """Documents, with what may depend on what."""

    def __init__(self, documents: int = 500, max_seq_length: int = 96, relations: int = 3) -> None:
        self.max_seq_length, self.relations = max_seq_length, relations
        draw = random.Random(0)
        self.documents = [
            [draw.randint(5, 16) for _ in range(draw.randint(3, 6))] for _ in range(documents)
        ]

    def __len__(self) -> int:
        return 200_000

    def encode(self, sentences: list[int]):
        """Say of each pair of words whether one may depend on the other."""
        length = self.max_seq_length
        no_row = [False] * length
        dependency_mask = [no_row] * length
        cohesion_rows = [no_row] * length
        start = 0
        for words in sentences:
            row = [False] * start + [True] * words + [False] * (length - start - words)
            seen = [True] * (start + words) + [False] * (length - start - words)
            for number in range(start, start + words):
                dependency_mask[number] = row
                cohesion_rows[number] = seen
            start += words
        input_ids = [7] * start + [0] * (length - start)
        return {
            "input_ids": input_ids,
            "attention_mask": [True] * start + [False] * (length - start),
            "dependency_mask": dependency_mask,
            "cohesion_mask": [cohesion_rows] * self.relations,
        }

    def __getitem__(self, index):
        return self.encode(self.documents[index % len(self.documents)])


def dataclass_data_collator(features):
    """Make tensors of lists, and cut off what no document reaches."""
    batch = {}
    for field in features[0]:
        batch[field] = torch.as_tensor([feature[field] for feature in features])
    longest = int(batch["attention_mask"].sum(dim=1).max())
    for field, value in batch.items():
        value = value[..., :longest]  # noqa: PLW2901 - as it was written
        batch[field] = value[..., :longest, :] if field.endswith("y_mask") else value
    return batch


def masks_of_documents(_folder: Path) -> DataLoader:
    """Hand masks over as lists of lists of lists."""
    return DataLoader(
        WordInferenceDataset(), batch_size=8, num_workers=2, collate_fn=dataclass_data_collator
    )


class BertTokenizer:
    """Makes pieces of words."""

    def __init__(self, words: list[str]) -> None:
        pieces = {word[start:end] for word in words for start in range(6) for end in range(9)}
        self.vocab = {piece: number for number, piece in enumerate(sorted(pieces | set("abc")))}
        self.pieces = list(self.vocab)

    def tokenize(self, text: str) -> list[str]:
        """Take the longest pieces there are, word by word."""
        tokens = []
        for word in text.split():
            start = 0
            while start < len(word):
                end = min(len(word), start + 8)
                while end > start + 1 and word[start:end] not in self.vocab:
                    end -= 1
                tokens.append(word[start:end])
                start = end
        return tokens

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        """Look the numbers of tokens up."""
        return [self.vocab.get(token, 0) for token in tokens]


class LineByLineDataset(Dataset):
    """Sentences that have been tokenized, with their words."""

    def __init__(self, words: list[str], tokenizer: BertTokenizer, length: int = 128) -> None:
        draw = random.Random(1)
        self.lines, self.input_ids = [], []
        for _ in range(300):
            line = " ".join(draw.choices(words, k=80))
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))[:length]
            self.lines.append(line)
            self.input_ids.append(torch.tensor(ids + [0] * (length - len(ids))))

    def __len__(self) -> int:
        return 500_000

    def __getitem__(self, index):
        number = index % len(self.lines)
        return self.input_ids[number], self.lines[number]


class MaskedLanguageModeling:
    """Hides words, all pieces of one together."""

    def __init__(self, tokenizer: BertTokenizer, probability: float = 0.15) -> None:
        self.tokenizer, self.probability = tokenizer, probability

    def whole_word_tails_mask(self, line: str, length: int) -> torch.Tensor:
        """Say of each token whether it goes on with a word; tokenize words again for that."""
        tails = []
        for word in line.split():
            pieces = self.tokenizer.tokenize(word)
            self.tokenizer.convert_tokens_to_ids(pieces)
            tails.extend([False] + [True] * (len(pieces) - 1))
        return torch.tensor((tails + [False] * length)[:length])

    def __call__(self, examples):
        """Hide words of a batch."""
        inputs = torch.stack([ids for ids, _ in examples])
        length = inputs.shape[1]
        tails = torch.stack([self.whole_word_tails_mask(line, length) for _, line in examples])
        heads = torch.rand(inputs.shape) < self.probability
        word = (~tails).cumsum(dim=1) - (~tails[:, :1]).long()
        masked = heads.gather(1, word.clamp(min=0))
        labels = inputs.masked_fill(~masked, -100)
        return inputs.masked_fill(masked, 1), labels


def words_to_hide(_folder: Path) -> DataLoader:
    """Tokenize each word once more where batches are made."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(4, 14))) for _ in range(2000)]
    tokenizer = BertTokenizer(words[:600])
    dataset = LineByLineDataset(words, tokenizer)
    collate = MaskedLanguageModeling(tokenizer)
    return DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, collate_fn=collate)


class VideoDataset(Dataset):
    """Videos of some resolutions, made ready; what the sampler hands over is handed on."""

    def __init__(self, resolutions=((9, 64, 96), (9, 96, 64), (5, 96, 96))) -> None:
        draw = np.random.default_rng(0)
        self.resolutions = resolutions
        self.videos = draw.integers(0, 255, (12, 9, 180, 240, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 50_000

    def _preprocess_video(self, number: int, frames: int, height: int, width: int):
        import cv2

        video = self.videos[number % len(self.videos)][:frames]
        resized = [cv2.resize(f, (width, height), interpolation=cv2.INTER_LANCZOS4) for f in video]
        tensor = torch.from_numpy(np.stack(resized)).float() / 255 * 2 - 1
        return tensor.permute(0, 3, 1, 2).contiguous()

    def __getitem__(self, index):
        if isinstance(index, list):
            return index
        frames, height, width = self.resolutions[index % len(self.resolutions)]
        video = self._preprocess_video(index, frames, height, width)
        return {"prompt": f"prompt {index}", "video": video}


class BucketSampler(Sampler):
    """Groups videos of one resolution, for which it reads each of them."""

    def __init__(self, data_source: VideoDataset, batch_size: int = 4) -> None:
        self.data_source, self.batch_size = data_source, batch_size
        self.buckets = {resolution: [] for resolution in data_source.resolutions}

    def __len__(self) -> int:
        return len(self.data_source) // self.batch_size

    def __iter__(self):
        for index in range(len(self.data_source)):
            data = self.data_source[index]
            frames, _, height, width = data["video"].shape
            bucket = self.buckets[frames, height, width]
            bucket.append(data)
            if len(bucket) == self.batch_size:
                random.shuffle(bucket)
                self.buckets[frames, height, width] = []
                yield bucket


def collate_videos(batch):
    """Put the videos of a group together."""
    return [data["prompt"] for data in batch[0]], torch.stack([data["video"] for data in batch[0]])


def videos_in_buckets(_folder: Path) -> DataLoader:
    """Read videos in the sampler, which has to know how large they are."""
    dataset = VideoDataset()
    return DataLoader(
        dataset,
        batch_size=1,
        sampler=BucketSampler(dataset),
        num_workers=2,
        collate_fn=collate_videos,
    )


class NoDuplicatesBatchSampler(Sampler):
    """Makes batches in which no text occurs twice."""

    def __init__(self, dataset, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        remaining_indices = dict.fromkeys(torch.randperm(len(self.dataset)).tolist())
        while remaining_indices:
            batch_values: set[str] = set()
            batch_indices = []
            for index in remaining_indices:
                sample_values = {str(value) for value in self.dataset[index].values()}
                if sample_values & batch_values:
                    continue
                batch_indices.append(index)
                if len(batch_indices) == self.batch_size:
                    break
                batch_values.update(sample_values)
            yield batch_indices
            for index in batch_indices:
                del remaining_indices[index]


def sentence_collator(rows):
    """Make numbers of the letters of texts."""
    texts = [row[key] for row in rows for key in ("query", "positive", "negative")]
    return torch.from_numpy(np.array(texts, "S64").view(np.uint8).reshape(len(texts), 64))


def triplets_without_duplicates(_folder: Path) -> DataLoader:
    """Read rows in the batch sampler, which compares their texts."""
    import datasets

    draw = random.Random(0)
    queries = [f"what is meant by the {number}. question" for number in range(500)]
    weights = [1 / (number + 10) for number in range(len(queries))]
    passages = [f"this is the {number}. passage of some book" for number in range(3000)]
    count = 40_000
    dataset = datasets.Dataset.from_dict(
        {
            "query": draw.choices(queries, weights, k=count),
            "positive": draw.choices(passages[:1500], k=count),
            "negative": draw.choices(passages[1500:], k=count),
        }
    )
    return DataLoader(
        dataset,
        batch_sampler=NoDuplicatesBatchSampler(dataset, 128),
        num_workers=2,
        collate_fn=sentence_collator,
    )


class SQLiteDatabase:
    """Graphs in a file of SQLite."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of this process."""
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=300)
            self._connection.execute("PRAGMA synchronous = OFF")
        return self._connection

    def close(self) -> None:
        """Close it, for each worker to have one of its own."""
        self.connection.close()
        self._connection = None

    def multi_insert(self, rows: list[bytes]) -> None:
        """Write graphs."""
        with self.connection as connection:
            connection.execute(f"CREATE TABLE {self.name} (id INTEGER PRIMARY KEY, data BLOB)")
            query = f"INSERT INTO {self.name} (id, data) VALUES (?, ?)"  # noqa: S608
            connection.executemany(query, enumerate(rows))

    def multi_get(self, indices: list[int]) -> list[bytes]:
        """Read graphs, by joining a table of the numbers of those that are asked for."""
        join = f"{self.name}__join__{uuid4().hex}"
        with self.connection as connection:
            connection.execute(f"CREATE TABLE {join} (id INTEGER, row_id INTEGER)")
            rows = zip(indices, range(len(indices)), strict=True)
            query = f"INSERT INTO {join} (id, row_id) VALUES (?, ?)"  # noqa: S608
            connection.executemany(query, rows)
            data_list = connection.execute(
                f"SELECT {self.name}.data FROM {self.name} INNER JOIN {join} "  # noqa: S608
                f"ON {self.name}.id = {join}.id ORDER BY {join}.row_id"
            ).fetchall()
            connection.execute(f"DROP TABLE {join}")
        return [data for (data,) in data_list]


class OnDiskDataset(Dataset):
    """Graphs that do not fit into memory."""

    def __init__(self, folder: Path, count: int = 2000) -> None:
        self.count = count
        self.db = SQLiteDatabase(folder / "sqlite.db", "dataset")
        draw = np.random.default_rng(0)
        rows = [draw.normal(size=(64, 128)).astype(np.float32).tobytes() for _ in range(count)]
        self.db.multi_insert(rows)
        self.db.close()

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        data_list = self.db.multi_get([index % self.count for index in indices])
        return [np.frombuffer(data, np.float32).reshape(64, 128) for data in data_list]


def stack_graphs(graphs):
    """Put graphs of one size together."""
    return torch.from_numpy(np.stack(graphs))


def graphs_on_disk(folder: Path) -> DataLoader:
    """Write a table for each batch, which but one worker can do at a time."""
    return DataLoader(
        OnDiskDataset(folder),
        batch_size=128,
        shuffle=True,
        num_workers=4,
        collate_fn=stack_graphs,
    )


class memoize:  # noqa: N801 - its author's name
    """Keeps what a function returned, for when it is called with the same again."""

    def __init__(self, function) -> None:
        self.function = function
        self.cache: dict[tuple[object, ...], object] = {}

    def __get__(self, instance, _owner=None):
        return partial(self, instance)

    def __call__(self, *args):
        """Call the function, where it was not called so before."""
        key = (id(args[0]), *args[1:])
        if key not in self.cache:
            self.cache[key] = self.function(*args)
        return self.cache[key]


class SafeDataset(Dataset):
    """Leaves the samples out that cannot be read."""

    def __init__(self, dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def _safe_get_item(self, index):
        try:
            return self.dataset[index]
        except OSError:
            return None

    @memoize
    def __getitem__(self, index):
        while (sample := self._safe_get_item(index)) is None:
            index += 1
        return sample


class DummyDataset(Dataset):
    """Images."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index % 10


def samples_that_are_safe(_folder: Path) -> DataLoader:
    """Keep each sample, though none is asked for twice."""
    return DataLoader(SafeDataset(DummyDataset()), batch_size=16, num_workers=2)


CV2_SHIFT = 8


def transform_points(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Move and turn points."""
    points = points.T
    stacked = np.vstack((points[:2], np.ones(points.shape[1])))
    return matrix.dot(stacked)[:2].T


def cv2_subpixel(coords: np.ndarray) -> np.ndarray:
    """Make whole numbers of coordinates, of parts of pixels."""
    return (coords * 2**CV2_SHIFT).astype(np.int64)


class SemanticRasterizer:
    """Draws the lanes of a map, as seen from a car."""

    def __init__(self, raster_size: int = 112, lanes: int = 2000) -> None:
        draw = np.random.default_rng(0)
        self.raster_size = raster_size
        centres = draw.uniform(0, 400, (lanes, 1, 2))
        along = np.linspace(-4, 4, 15)[:, None] * draw.normal(size=(lanes, 1, 2))
        self.left = centres + along
        self.right = self.left + draw.normal(size=(lanes, 1, 2))
        self.centres = centres[:, 0]

    def get_lane_coords(self, lane: int) -> dict[str, np.ndarray]:
        """Say where the two sides of a lane are."""
        return {"xyz_left": self.left[lane], "xyz_right": self.right[lane]}

    def rasterize(self, centre: np.ndarray, yaw: float) -> np.ndarray:
        """Draw what is around a place."""
        import cv2

        near = np.flatnonzero(np.abs(self.centres - centre).max(1) < 56)
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        offset = self.raster_size / 2 - turn @ centre
        raster_from_world = np.vstack((np.column_stack((turn, offset)), [0, 0, 1]))
        img = np.full((self.raster_size, self.raster_size, 3), 255, np.uint8)
        for lane in near:
            coords = self.get_lane_coords(lane)
            left = cv2_subpixel(transform_points(coords["xyz_left"][:, :2], raster_from_world))
            right = cv2_subpixel(transform_points(coords["xyz_right"][:, :2], raster_from_world))
            area = np.vstack((left, np.flip(right, 0))).astype(np.int32)
            cv2.fillPoly(img, [area], (17, 17, 31), shift=CV2_SHIFT)
        return img


class AgentDataset(Dataset):
    """What cars see, and where they drive then."""

    def __init__(self, rasterizer: SemanticRasterizer, count: int = 3000) -> None:
        draw = np.random.default_rng(1)
        self.rasterizer = rasterizer
        self.centroids = draw.uniform(60, 340, (count, 2))
        self.yaws = draw.uniform(0, 6, count)
        self.targets = draw.normal(size=(count, 50, 2)).astype(np.float32)

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index):
        index %= len(self.yaws)
        img = self.rasterizer.rasterize(self.centroids[index], self.yaws[index])
        return {"image": img.transpose(2, 0, 1), "target_positions": self.targets[index]}


def lanes_of_map(_folder: Path) -> DataLoader:
    """Move the sides of lanes one by one."""
    dataset = AgentDataset(SemanticRasterizer())
    return DataLoader(dataset, batch_size=12, shuffle=True, num_workers=2)


class DL1DataReader(Dataset):
    """Events that several telescopes saw, in a file of HDF5."""

    def __init__(self, path: Path, events: int = 5000, telescopes: int = 4) -> None:
        import h5py

        self.path, self.telescopes = path, telescopes
        self.files: dict[Path, object] = {}
        draw = np.random.default_rng(0)
        kinds = [("LSTCam", 1855), ("FlashCam", 1764), ("NectarCam", 1855), ("CHEC", 2048)]
        table = np.array(kinds, [("camera", "S16"), ("num_pixels", "i4")])
        with h5py.File(path, "w") as file:
            file["Telescope_Type_Information"] = table
            file["Events/event_id"] = np.arange(1, events + 1)
            charge = draw.poisson(3, (500, 1764)).astype(np.float32)
            for telescope in range(telescopes):
                file[f"Images/T{telescope}"] = charge
        self.events = events

    def __len__(self) -> int:
        return 200_000

    def _open(self):
        import h5py

        if self.path not in self.files:
            self.files[self.path] = h5py.File(self.path, "r")
        return self.files[self.path]

    def _get_num_pixels(self, camera: str) -> int:
        table = self._open()["Telescope_Type_Information"]
        for row in table:
            if row["camera"].decode() == camera:
                return int(row["num_pixels"])
        raise KeyError(camera)

    def _get_image(self, event_id: int, telescope: int):
        file = self._open()
        num_pixels = self._get_num_pixels("FlashCam")
        row = int(np.flatnonzero(file["Events/event_id"][:] == event_id)[0])
        image = np.zeros(num_pixels, np.float32)
        image[:] = file[f"Images/T{telescope}"][row % 500]
        return image

    def __getitem__(self, index):
        event_id = index % self.events + 1
        images = [self._get_image(event_id, telescope) for telescope in range(self.telescopes)]
        return np.stack(images), event_id % 2


def images_of_telescopes(folder: Path) -> DataLoader:
    """Look up for each image how many pixels its camera has."""
    reader = DL1DataReader(folder / "events.h5")
    return DataLoader(reader, batch_size=16, shuffle=True, num_workers=2)


class CocoDetection(Dataset):
    """Images, with what is known of the objects on them."""

    def __init__(self, count: int = 200) -> None:
        draw = np.random.default_rng(0)
        self.images = torch.from_numpy(draw.integers(0, 255, (count, 3, 96, 96), dtype=np.uint8))
        self.boxes = [torch.rand(draw.integers(1, 12), 4) for _ in range(count)]

    def __len__(self) -> int:
        return 500_000

    def __getitem__(self, index):
        number = index % len(self.images)
        boxes = self.boxes[number]
        target = {
            "boxes": boxes.clone(),
            "labels": torch.randint(0, 80, (len(boxes),)),
            "image_id": torch.tensor([number]),
            "area": boxes[:, 2] * boxes[:, 3],
            "iscrowd": torch.zeros(len(boxes), dtype=torch.int64),
            "orig_size": torch.tensor([480, 640]),
            "size": torch.tensor([96, 96]),
        }
        return self.images[number], target


def collate_fn(batch):
    """Put the images together, and leave the rest as it is."""
    images, targets = zip(*batch, strict=True)
    return torch.stack(images), targets


def targets_of_images(_folder: Path) -> DataLoader:
    """Send seven small tensors for each image."""
    return DataLoader(
        CocoDetection(), batch_size=16, shuffle=True, num_workers=2, collate_fn=collate_fn
    )


class _Share(http.server.SimpleHTTPRequestHandler):
    """A drive that is some way off."""

    def do_GET(self) -> None:
        start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        time.sleep(0.006)
        with open(self.translate_path(self.path), "rb") as file:  # noqa: PTH123
            file.seek(start)
            contents = file.read(end - start + 1)
        self.send_response(206)
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)

    def log_message(self, *_args) -> None:
        pass


class NetworkFile(io.RawIOBase):
    """A file of such a drive."""

    def __init__(self, port: int, name: str, size: int) -> None:
        self.port, self.name, self.size, self.place = port, name, size, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that one can go to a place in it."""
        return True

    def tell(self) -> int:
        """Say where one is."""
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer) -> int:
        """Read from there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        last = self.place + len(buffer) - 1
        headers = {"Range": f"bytes={self.place}-{last}"}
        connection.request("GET", f"/{self.name}", headers=headers)
        contents = connection.getresponse().read()
        connection.close()
        buffer[: len(contents)] = contents
        self.place += len(contents)
        return len(contents)


class Hdf5Dataset(Dataset):
    """Images of shapes, each of which is read when it is asked for."""

    def __init__(self, port: int, name: str, size: int) -> None:
        self.port, self.name, self.size = port, name, size
        self.data = None

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index):
        import h5py

        if self.data is None:
            self.data = h5py.File(NetworkFile(self.port, self.name, self.size), "r")["data"]
        image = self.data[index % len(self.data)]
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def shapes_on_drive(folder: Path) -> DataLoader:
    """Read images one by one, over a network."""
    import h5py

    draw = np.random.default_rng(0)
    path = folder / "dsprites.h5"
    with h5py.File(path, "w") as file:
        file["data"] = draw.integers(0, 255, (2000, 64, 64, 3), dtype=np.uint8)
    handler = partial(_Share, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dataset = Hdf5Dataset(server.server_port, path.name, path.stat().st_size)
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)


class CellDataset(Dataset):
    """The genes that cells express, and how much of each."""

    def __init__(self, cells: int = 1000, genes: int = 3000) -> None:
        self.genes = torch.stack([torch.randperm(30_000)[:genes] for _ in range(cells)])
        self.expressions = torch.poisson(torch.full((cells, genes), 3.0))

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index):
        number = index % len(self.genes)
        return {"genes": self.genes[number], "expressions": self.expressions[number]}


class DataCollator:
    """Makes batches of some of the genes of each cell."""

    def __init__(self, max_length: int = 1200) -> None:
        self.max_length = max_length

    def _sample(self, genes, expressions):
        order = torch.randperm(len(genes))[: self.max_length - 1]
        return genes[order], expressions[order]

    def __call__(self, examples):
        """Draw genes, and put them together."""
        drawn = [self._sample(example["genes"], example["expressions"]) for example in examples]
        genes = torch.stack([genes for genes, _ in drawn])
        return {"gene": genes, "expr": torch.stack([expr for _, expr in drawn])}


def genes_of_samples(_folder: Path) -> DataLoader:
    """Draw genes where batches are made, which is quick enough."""
    return DataLoader(
        CellDataset(), batch_size=32, shuffle=True, num_workers=2, collate_fn=DataCollator()
    )


_OWN = ("one-transform",)
FIFTH = (
    Question(
        "graph-batches",
        "pytorch_geometric #572: a loop over all of each graph makes large batches slow; rewritten",
        molecules_of_batch,
        0.004,
        ("collate",),
        r"from_data_list|[Cc]ollat",
        r"vector|NumPy|at once|whole|\bonce\b|concat|torch\.cat|beforehand|in advance",
        "right",
    ),
    Question(
        "nested-masks",
        "kwja #254: making tensors of nested lists of masks dominates collation; tensors from then",
        masks_of_documents,
        0.004,
        ("collate",),
        r"dataclass_data_collator|[Cc]ollat|as_tensor",
        r"tensors?\b|NumPy|arrays?\b|at once|vector|beforehand|\bonce\b",
        "right",
    ),
    Question(
        "whole-words",
        "transformers-lightning #37, #38: words are tokenized again to hide them whole; batched",
        words_to_hide,
        0.006,
        ("collate",),
        r"MaskedLanguageModeling|[Cc]ollat|whole_word_tails_mask|tokenize",
        r"at once|whole|vector|NumPy|\bonce\b|beforehand|in advance|\bcache|[Kk]eep|fast tokenizer",
        "right",
    ),
    Question(
        "read-in-sampler",
        "finetrainers #206: with BucketSampler loading is extremely slow; it loads all it groups",
        videos_in_buckets,
        0.005,
        ("main-process",),
        r"[Ss]ampler|main process",
        r"\bind(ex|ices)|workers?\b|beforehand|in advance|\bonce\b|__getitem__|out of",
        "right",
    ),
    Question(
        "no-duplicates",
        "sentence-transformers #3611: the sampler compares texts row by row; hashed before",
        triplets_without_duplicates,
        0.005,
        ("main-process",),
        r"[Ss]ampler",
        r"beforehand|in advance|\bonce\b|precomput|hash|vector|NumPy|arrays?\b",
        "right",
    ),
    Question(
        "join-table",
        "pytorch_geometric #8661, #9140: workers lock the database; a temporary table does not",
        graphs_on_disk,
        0.003,
        ("lock",),
        r"multi_get|[Ll]ock|SQLite|sqlite|execute",
        r"\block|[Tt]emp|of its own|\bown\b|read-only|without writing|cop(y|ies)",
        "one-transform, its lines: half right",
    ),
    Question(
        "memoized",
        "nonechucks #13: memory grows forever; samples are memoized: 'remove the @memoize line'",
        samples_that_are_safe,
        0.02,
        ("memory-growth",),
        r"[Mm]emor|SafeDataset|memoize|grow",
        r"\bcache|memo\w*\b|[Kk]eep|kept|stor(e|es|ed|ing)\b|bound|maxsize|limit",
        "inconclusive: wrong",
    ),
    Question(
        "lanes",
        "l5kit #136, #216: the points of each lane are transformed; all in one call, twice as fast",
        lanes_of_map,
        0.012,
        _OWN,
        r"SemanticRasterizer|rasterize|transform_points|AgentDataset|__getitem__",
        r"at once|whole|vector|NumPy|one call|\bonce\b|beforehand|in advance|[Kk]eep|\bcache",
        "right",
    ),
    Question(
        "pixels-of-camera",
        "dl1-data-handler #88: a table is read for each image, half of the time; a dict is kept",
        images_of_telescopes,
        0.005,
        _OWN,
        r"DL1DataReader|_get_image|_get_num_pixels|__getitem__",
        r"\bonce\b|memory|[Kk]eep|\bcache|beforehand|in advance|__init__|dict",
        "right",
    ),
    Question(
        "targets",
        "rf-detr #1399: a batch is sent as 114 tensors; as nine it is 1.25 to 1.67 times as fast",
        targets_of_images,
        0.006,
        ("sending",),
        r"[Ss]end|tensors\b|collate_fn|hand",
        r"one tensor|few(er)?\b|pack|concat|\bcat\b|larger|single|together|stack",
        "right",
    ),
    Question(
        "network-drive",
        "disent #49: HDF5 is read for every sample, a network drive's latency is too high; a copy",
        shapes_on_drive,
        0.01,
        ("storage-latency",),
        r"\bread|[Nn]etwork|[Ss]torage|h5py|Hdf5|[Ss]ocket|getresponse|__getitem__",
        r"memory|local|\bcop(y|ied|ies)|\bcache|prefetch|thread|more workers|num_workers|fewer",
        "right",
    ),
    Question(
        "sampled-genes",
        "scGPT #118: genes are drawn in the collator; 'not that slow', it is done ahead",
        genes_of_samples,
        0.08,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait",
        r"model|step|device|GPU|train|nothing|compute",
        "right",
    ),
)
"""Of collate functions first, then of samplers, then of all else."""
