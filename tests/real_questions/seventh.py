"""Twelve more questions that the rules were not made from, written before one was asked.

What each has to be answered was written down with it, by someone who had not seen how verdicts
come about. Each was put to a public project, and what was the matter was confirmed there: by a
maintainer, or by the change that made it faster. Of `cycled` and `slides` it is the growth of
memory that was asked about. Of `indexed-cells` and `images-in-memory` nothing is wrong with the
loader, as was measured there.
"""

from __future__ import annotations

import http.client
import http.server
import itertools
import random
import threading
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision import transforms

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class DataList(IterableDataset):
    """The utterances that a worker reads, one after the other."""

    def __init__(self, count: int = 200_000) -> None:
        draw = np.random.default_rng(0)
        lengths = draw.integers(120_000, 200_000, count)
        self.lists = lengths.tolist()
        self.wave = torch.from_numpy(draw.normal(0, 0.1, 200_000).astype(np.float32))

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, len(self.lists), info.num_workers):
            yield {"key": number, "wav": self.wave[: self.lists[number]]}


class Processor(IterableDataset):
    """A stage of a pipeline: what a function makes of what comes before."""

    def __init__(self, source, f, *args) -> None:
        self.source, self.f, self.args = source, f, args

    def __iter__(self):
        return self.f(iter(self.source), *self.args)


def compute_fbank(data, num_mel_bins: int = 80):
    """Make filter banks of frames of 25 ms."""
    window = torch.hann_window(400)
    banks = torch.rand(257, num_mel_bins)
    for sample in data:
        frames = sample["wav"].unfold(0, 400, 160) * window
        power = torch.fft.rfft(frames, 512).abs().square()
        yield {"key": sample["key"], "feat": (power @ banks).clamp(min=1e-6).log()}


def shuffle(data, shuffle_size: int):
    """Fill a buffer, shuffle it, and hand all of it on."""
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= shuffle_size:
            random.shuffle(buf)
            yield from buf
            buf = []
    random.shuffle(buf)
    yield from buf


def sort(data, sort_size: int):
    """Bring those of a length together."""
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= sort_size:
            buf.sort(key=lambda sample: sample["feat"].size(0))
            yield from buf
            buf = []
    buf.sort(key=lambda sample: sample["feat"].size(0))
    yield from buf


def static_batch(data, batch_size: int):
    """Make batches of so many."""
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) >= batch_size:
            yield buf
            buf = []


def padding(data):
    """Pad the features of a batch to the longest."""
    for batch in data:
        feats = [sample["feat"] for sample in batch]
        lengths = torch.tensor([feat.size(0) for feat in feats])
        padded = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
        yield [sample["key"] for sample in batch], padded, lengths


def utterances_shuffled(_folder: Path) -> DataLoader:
    """Fill a buffer with utterances before the first of them is handed on."""
    dataset = Processor(DataList(), compute_fbank)
    dataset = Processor(dataset, shuffle, 192)
    dataset = Processor(dataset, sort, 96)
    dataset = Processor(dataset, static_batch, 16)
    return DataLoader(Processor(dataset, padding), batch_size=None, num_workers=2)


class CameraDataset(Dataset):
    """What cameras around an object see of it."""

    def __init__(self, folder: Path, cameras: int = 10_000, images: int = 40) -> None:
        from PIL import Image

        self.cam_infos = [folder / f"r_{number % images}.png" for number in range(cameras)]
        draw = np.random.default_rng(0)
        for path in self.cam_infos[:images]:
            image = draw.integers(0, 255, (8, 8, 4), dtype=np.uint8)
            Image.fromarray(image).resize((200, 200)).save(path)
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Resize((160, 160))])

    def __len__(self) -> int:
        return len(self.cam_infos)

    def __getitem__(self, idx):
        from PIL import Image

        gt_image = Image.open(self.cam_infos[idx])
        loaded_mask = self.transform(gt_image.split()[3]).repeat(3, 1, 1)
        original_image = self.transform(gt_image.convert("RGB")).clamp(0.0, 1.0) * loaded_mask
        return {"uid": idx, "original_image": original_image, "image_mask": loaded_mask}


class Iterations:
    """The batches of a training that counts iterations, not epochs."""

    def __init__(self, dataloader: DataLoader, iterations: int) -> None:
        self.dataloader, self.iterations = dataloader, iterations

    def __len__(self) -> int:
        return self.iterations

    def __iter__(self):
        return itertools.islice(itertools.cycle(self.dataloader), self.iterations)


def cameras_in_cycles(folder: Path) -> Iterations:
    """Keep each batch for the time when all have been seen."""
    dataset = CameraDataset(folder)
    sampler = RandomSampler(dataset, replacement=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, drop_last=True)
    return Iterations(loader, iterations=30_000)


class ElasticDistortion:
    """Moves points by noise that changes little from one to the next."""

    def __init__(self, distortion_params=((0.2, 0.4), (0.8, 1.6))) -> None:
        self.distortion_params = distortion_params

    @staticmethod
    def elastic_distortion(coords, granularity: float, magnitude: float):
        """Blur noise on a grid, and interpolate it at the points."""
        from scipy.interpolate import RegularGridInterpolator
        from scipy.ndimage import convolve

        low = coords.min(0)
        size = ((coords - low).max(0) // granularity).astype(int) + 3
        noise = np.random.randn(*size, 3).astype(np.float32)
        for _ in range(2):
            for axis in range(3):
                blur = np.ones([3 if axis == other else 1 for other in range(4)], np.float32) / 3
                noise = convolve(noise, blur, mode="constant", cval=0)
        axes = [
            np.linspace(b - granularity, b + granularity * (n - 2), n)
            for b, n in zip(low, size, strict=True)
        ]
        interp = RegularGridInterpolator(axes, noise, bounds_error=False, fill_value=0)
        return coords + interp(coords) * magnitude

    def __call__(self, data_dict):
        """Distort finely, then coarsely."""
        for granularity, magnitude in self.distortion_params:
            coord = self.elastic_distortion(data_dict["coord"], granularity, magnitude)
            data_dict["coord"] = coord
        return data_dict


class GridSample:
    """Leaves one point in each cell of a grid."""

    def __init__(self, grid_size: float = 0.04) -> None:
        self.grid_size = grid_size

    def __call__(self, data_dict):
        """Choose the points."""
        cell = np.floor(data_dict["coord"] / self.grid_size).astype(np.int64)
        cell -= cell.min(0)
        key = np.ravel_multi_index(cell.T, cell.max(0) + 1)
        _, first = np.unique(key, return_index=True)
        return {name: values[first] for name, values in data_dict.items()}


class SphereCrop:
    """Keeps the points that are next to one of them."""

    def __init__(self, point_max: int = 4096) -> None:
        self.point_max = point_max

    def __call__(self, data_dict):
        """Choose the points."""
        coord = data_dict["coord"]
        center = coord[np.random.randint(len(coord))]
        near = np.argsort(np.square(coord - center).sum(1))[: self.point_max]
        return {name: values[near] for name, values in data_dict.items()}


class S3DISDataset(Dataset):
    """The points of rooms, two of which are huge."""

    def __init__(self, rooms: int = 48, loop: int = 1000) -> None:
        draw = np.random.default_rng(0)
        sizes = [450_000, 400_000] + [9000] * (rooms - 2)
        self.data_list = []
        for size in sizes:
            extent = np.array([40, 25, 3]) if size > 100_000 else np.array([6, 5, 3])
            coord = (draw.random((size, 3)) * extent).astype(np.float32)
            color = draw.random((size, 3), dtype=np.float32)
            self.data_list.append({"coord": coord, "color": color})
        self.loop = loop
        self.transform = transforms.Compose([ElasticDistortion(), GridSample(), SphereCrop()])

    def __len__(self) -> int:
        return len(self.data_list) * self.loop

    def __getitem__(self, idx):
        data_dict = self.transform(dict(self.data_list[idx % len(self.data_list)]))
        return {name: torch.from_numpy(values).float() for name, values in data_dict.items()}


def point_collate_fn(batch):
    """Put the points of all after each other, with where each ends."""
    offset = torch.tensor([len(data_dict["coord"]) for data_dict in batch]).cumsum(0)
    names = ("coord", "color")
    points = {name: torch.cat([data_dict[name] for data_dict in batch]) for name in names}
    return {**points, "offset": offset}


def rooms_distorted(_folder: Path) -> DataLoader:
    """Distort all points of a room, be it huge, before some are chosen."""
    return DataLoader(
        S3DISDataset(), batch_size=2, shuffle=True, num_workers=2, collate_fn=point_collate_fn
    )


class GeneExpressionDataset(Dataset):
    """The counts of the genes of cells, in a sparse matrix."""

    def __init__(self, cells: int = 20_000, genes: int = 720) -> None:
        import scipy.sparse

        draw = np.random.default_rng(0)
        self.X = scipy.sparse.random(cells, genes, 0.1, "csr", np.float32, draw)
        self.local_means = draw.random((cells, 1), dtype=np.float32)
        self.local_vars = draw.random((cells, 1), dtype=np.float32)
        self.batch_indices = np.zeros((cells, 1), np.int64)
        self.all_labels = draw.integers(0, 7, (cells, 1))

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, idx):
        idx %= len(self.all_labels)
        return (
            self.X[idx].toarray()[0],
            self.local_means[idx],
            self.local_vars[idx],
            self.batch_indices[idx],
            self.all_labels[idx],
        )


def cells_row_by_row(_folder: Path) -> DataLoader:
    """Index a sparse matrix for each cell, which is quick enough for the model."""
    return DataLoader(GeneExpressionDataset(), batch_size=32, shuffle=True)


class NWPDataInMem:
    """A weather forecast, hour by hour, for the whole of the country."""

    def __init__(self, hours: int = 6, height: int = 350, width: int = 270) -> None:
        draw = np.random.default_rng(0)
        self.minutes = np.arange(hours) * 60
        self.nwp_in_mem = draw.random((hours, 2, height, width), dtype=np.float32)

    def get_sample(self, t0: int, x: int, y: int, square: int = 16):
        """Take forecasts for every five minutes of two hours, around a place."""
        from scipy.interpolate import interp1d

        wanted = np.arange(t0, t0 + 120, 5)
        resampled = interp1d(self.minutes, self.nwp_in_mem, axis=0)(wanted)
        return resampled[:, :, y : y + square, x : x + square].astype(np.float32)


class PVDataset(Dataset):
    """What solar panels yield, with satellite images and the weather's forecast."""

    def __init__(self, systems: int = 500) -> None:
        draw = np.random.default_rng(0)
        self.nwp = NWPDataInMem()
        self.sat = draw.random((48, 300, 250), dtype=np.float32)
        self.pv_yield = draw.random((systems, 300), dtype=np.float32)
        self.places = draw.integers(0, 210, (systems, 2))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index):
        system, t0 = index % len(self.places), index % 36
        x, y = self.places[system]
        return {
            "sat": self.sat[t0 // 5 : t0 // 5 + 24, y : y + 32, x : x + 32],
            "nwp": self.nwp.get_sample(t0 * 5, x, y),
            "pv_yield": self.pv_yield[system, t0 : t0 + 24],
        }


def yields_of_panels(_folder: Path) -> DataLoader:
    """Interpolate the forecast for all of the country, to take a small square of it."""
    return DataLoader(PVDataset(), batch_size=8, shuffle=True, num_workers=2)


class SFTDataset(Dataset):
    """Conversations in tokens, with the part that is learnt from."""

    def __init__(self, count: int = 500) -> None:
        draw = random.Random(0)
        self.examples = []
        for _ in range(count):
            tokens, answer = draw.randint(600, 1800), draw.randint(100, 500)
            input_ids = [draw.randrange(32_000) for _ in range(tokens)]
            mask = [1] * answer
            self.examples.append({"input_ids": input_ids, "num_actions": answer, "loss_mask": mask})

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index):
        return self.examples[index % len(self.examples)]


class PackedDataCollator:
    """Packs several examples into each row of a batch."""

    def __init__(self, max_tokens: int = 4096) -> None:
        self.max_tokens = max_tokens

    def _pack(self, lengths: list[int]) -> list[list[int]]:
        bins: list[list[int]] = []
        free: list[int] = []
        for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
            fits = (row for row, room in enumerate(free) if room >= lengths[number])
            row = next(fits, None)
            if row is None:
                row = len(bins)
                bins.append([])
                free.append(self.max_tokens)
            bins[row].append(number)
            free[row] -= lengths[number]
        return bins

    def __call__(self, examples):
        """Write tokens and masks into the rows."""
        lengths = [len(example["input_ids"]) for example in examples]
        bins = self._pack(lengths)
        sequences = torch.zeros(len(bins), self.max_tokens, dtype=torch.long)
        attention_mask = torch.zeros_like(sequences)
        loss_mask = torch.zeros(len(bins), self.max_tokens)
        for row_idx, numbers in enumerate(bins):
            start = 0
            for number in numbers:
                example, length = examples[number], lengths[number]
                full_mask = [0] * (length - example["num_actions"]) + example["loss_mask"]
                end = start + length
                sequences[row_idx, start:end] = torch.tensor(example["input_ids"])
                attention_mask[row_idx, start:end] = 1
                for p_local in range(length - 1):
                    row_p = start + p_local
                    loss_mask[row_idx, row_p] = float(full_mask[p_local + 1])
                start = end
        return {
            "sequences": sequences,
            "attention_mask": attention_mask,
            "loss_mask": loss_mask,
        }


def conversations_packed(_folder: Path) -> DataLoader:
    """Write masks token by token, in the process that trains."""
    return DataLoader(SFTDataset(), batch_size=16, shuffle=True, collate_fn=PackedDataCollator())


class LoadImagesAndLabels(Dataset):
    """Images with boxes, read and augmented when they are asked for."""

    def __init__(self, folder: Path, img_size: int = 640, images: int = 60) -> None:
        import cv2

        draw = np.random.default_rng(0)
        self.img_size = img_size
        self.img_files = [str(folder / f"{number}.jpg") for number in range(images)]
        for path in self.img_files:
            small = draw.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            cv2.imwrite(path, cv2.resize(small, (800, 800)))
        self.labels = [draw.random((30, 5), dtype=np.float32) for _ in self.img_files]

    def __len__(self) -> int:
        return 40_000

    def load_image(self, i: int):
        """Read an image, and make its longer side as long as is wanted."""
        import cv2

        im = cv2.imread(self.img_files[i])
        ratio = self.img_size / max(im.shape[:2])
        return cv2.resize(im, None, fx=ratio, fy=ratio, interpolation=cv2.INTER_LINEAR)

    def augment_hsv(self, im):
        """Change an image's colours."""
        import cv2

        gains = np.random.uniform(-1, 1, 3) * [0.015, 0.7, 0.4] + 1
        channels = cv2.split(cv2.cvtColor(im, cv2.COLOR_BGR2HSV))
        values = np.arange(256)
        tables = [(values * gains[0]) % 180, *(np.clip(values * g, 0, 255) for g in gains[1:])]
        changed = [
            cv2.LUT(channel, table.astype(np.uint8))
            for channel, table in zip(channels, tables, strict=True)
        ]
        return cv2.cvtColor(cv2.merge(changed), cv2.COLOR_HSV2BGR)

    def __getitem__(self, index):
        index %= len(self.img_files)
        img, labels = self.augment_hsv(self.load_image(index)), self.labels[index]
        if random.random() < 0.5:
            img = np.fliplr(img)
        labels_out = torch.zeros(len(labels), 6)
        labels_out[:, 1:] = torch.from_numpy(labels)
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)[::-1])), labels_out

    @staticmethod
    def collate_fn(batch):
        """Number the boxes by their image."""
        im, label = zip(*batch, strict=True)
        for number, boxes in enumerate(label):
            boxes[:, 0] = number
        return torch.stack(im), torch.cat(label)


def images_of_wheat(folder: Path) -> DataLoader:
    """Read images from the disk, which is quick enough for the model."""
    dataset = LoadImagesAndLabels(folder)
    return DataLoader(
        dataset, batch_size=4, shuffle=True, num_workers=2, collate_fn=dataset.collate_fn
    )


class Wsi:
    """An open slide, with what its library keeps of it."""

    def __init__(self, path: Path) -> None:
        self.level = np.load(path)

    def read_region(self, location, size: int):
        """Cut a part out of the slide."""
        x, y = location
        return self.level[y : y + size, x : x + size]


class WsiDataset(Dataset):
    """Patches of one slide."""

    def __init__(self, file_path: Path, patches: int = 64, size: int = 64) -> None:
        self._file_path, self._patches, self._size = file_path, patches, size

    def __len__(self) -> int:
        return self._patches

    @cached_property
    def _wsi(self) -> Wsi:
        return Wsi(self._file_path)

    @cached_property
    def _coords(self) -> np.ndarray:
        height, width = self._wsi.level.shape[:2]
        high = (width - self._size, height - self._size)
        return np.random.default_rng(0).integers(0, high, (self._patches, 2))

    def __getitem__(self, index):
        patch = self._wsi.read_region(self._coords[index], self._size)
        return torch.from_numpy(patch.transpose(2, 0, 1).copy())


class MultiWsiDataset(ConcatDataset):
    """Patches of many slides, one slide after the other."""

    def __init__(self, folder: Path, slides: int = 3000, files: int = 12) -> None:
        draw = np.random.default_rng(0)
        paths = [folder / f"slide_{number}.npy" for number in range(files)]
        for path in paths:
            np.save(path, draw.integers(0, 255, (900, 800, 3), dtype=np.uint8))
        super().__init__([WsiDataset(paths[number % files]) for number in range(slides)])


def patches_of_slides(folder: Path) -> DataLoader:
    """Leave each slide open that a worker has read from."""
    return DataLoader(MultiWsiDataset(folder), batch_size=8, num_workers=2)


class NuscData(Dataset):
    """What the six cameras of a car see at a time."""

    cams = (
        "CAM_FRONT_LEFT",
        "CAM_FRONT",
        "CAM_FRONT_RIGHT",
        "CAM_BACK_LEFT",
        "CAM_BACK",
        "CAM_BACK_RIGHT",
    )

    def __init__(self, folder: Path, times: int = 8) -> None:
        from PIL import Image

        draw = np.random.default_rng(0)
        self.ixes = []
        for number in range(times):
            rec = {cam: folder / f"{number}_{cam}.jpg" for cam in self.cams}
            for path in rec.values():
                small = draw.integers(0, 255, (18, 32, 3), dtype=np.uint8)
                Image.fromarray(small).resize((1600, 900)).save(path)
            self.ixes.append(rec)

    def __len__(self) -> int:
        return 40_000

    def get_image_data(self, rec):
        """Read an image of each camera, at a fraction of its size."""
        from PIL import Image

        imgs = []
        for cam in self.cams:
            img = Image.open(rec[cam]).resize((800, 448)).crop((0, 0, 800, 448))
            imgs.append(transforms.functional.to_tensor(img))
        return torch.stack(imgs), torch.eye(3).repeat(6, 1, 1), torch.zeros(6, 3)

    def __getitem__(self, index):
        imgs, rots, trans = self.get_image_data(self.ixes[index % len(self.ixes)])
        return imgs, rots, trans, torch.zeros(1, 200, 200)


def cameras_of_cars(folder: Path) -> DataLoader:
    """Let one worker read the images of all six cameras, with a second core idle."""
    return DataLoader(NuscData(folder), batch_size=1, shuffle=True, num_workers=1)


class _Objects(http.server.SimpleHTTPRequestHandler):
    """A bucket of objects that is some way off."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        time.sleep(0.015)
        super().do_GET()

    def log_message(self, *_args) -> None:
        pass


class Client:
    """Asks a bucket for its objects."""

    def __init__(self, port: int) -> None:
        self.port = port

    @cached_property
    def connection(self) -> http.client.HTTPConnection:
        """Connect, in the process that asks."""
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def download_single(self, object_name: str) -> bytes:
        """Download an object, which is waited for."""
        self.connection.request("GET", f"/{object_name}")
        return self.connection.getresponse().read()


class DataFluxMapStyleDataset(Dataset):
    """The objects of a bucket, each of which is a sample."""

    def __init__(self, port: int, objects: list[str]) -> None:
        self.storage_client, self.objects = Client(port), objects

    def data_format_fn(self, raw: bytes):
        """Make a sample of an object."""
        return np.frombuffer(raw, np.uint8)

    def __len__(self) -> int:
        return 500_000

    def __getitem__(self, idx):
        name = self.objects[idx % len(self.objects)]
        return self.data_format_fn(self.storage_client.download_single(name))

    def __getitems__(self, indices):
        """Download the objects of a batch, one after the other."""
        return [self[idx] for idx in indices]


def objects_in_sequence(folder: Path) -> DataLoader:
    """Ask for small objects, one request after the other."""
    draw = np.random.default_rng(0)
    names = [f"object-{number}.bin" for number in range(300)]
    for name in names:
        (folder / name).write_bytes(draw.bytes(10_000))
    handler = partial(_Objects, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    dataset = DataFluxMapStyleDataset(server.server_port, names)
    return DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=objects_to_batch)


def objects_to_batch(samples):
    """Put objects together."""
    return torch.from_numpy(np.stack(samples))


class UMAPDataset(Dataset):
    """The two ends of each edge of a graph of neighbours."""

    def __init__(self, data, edges: int = 300_000) -> None:
        self.data = data
        self.vertices_a = torch.randint(len(data), (edges,))
        self.vertices_b = torch.randint(len(data), (edges,))

    def __len__(self) -> int:
        return len(self.vertices_a)

    def __getitem__(self, index):
        return self.data[self.vertices_a[index]], self.data[self.vertices_b[index]]


def edges_one_by_one(_folder: Path) -> DataLoader:
    """Take the ends of thousands of edges out of one tensor, edge by edge."""
    dataset = UMAPDataset(torch.rand(20_000, 64))
    sampler = WeightedRandomSampler(torch.rand(len(dataset)), len(dataset), replacement=True)
    return DataLoader(dataset, batch_size=4000, sampler=sampler)


class InterleaveIterator(IterableDataset):
    """Tiles of slides, out of many records in turn."""

    def __init__(self, records: int = 8, tiles: int = 12, tile_px: int = 299) -> None:
        import cv2

        draw = np.random.default_rng(0)
        self.records = []
        for _ in range(records):
            images = draw.integers(0, 255, (tiles, 30, 30, 3), dtype=np.uint8)
            larger = [cv2.resize(image, (tile_px, tile_px)) for image in images]
            self.records.append([cv2.imencode(".jpg", image)[1] for image in larger])
        self.transform = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(),
                transforms.RandomVerticalFlip(),
                transforms.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)),
            ]
        )

    def parser(self, record):
        """Decode a tile, and standardize it."""
        import cv2

        image = cv2.cvtColor(cv2.imdecode(record, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        image = self.transform(torch.from_numpy(image).permute(2, 0, 1))
        return image.float() / 127.5 - 1

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 400_000, info.num_workers):
            record = self.records[number % len(self.records)]
            yield self.parser(record[number // len(self.records) % len(record)]), number % 2


def tiles_blurred(_folder: Path) -> DataLoader:
    """Blur each tile with a filter of torchvision, on the CPU."""
    return DataLoader(InterleaveIterator(), batch_size=32, num_workers=2)


_OWN = ("one-transform",)

SEVENTH = (
    Question(
        "buffered-shuffle",
        "wenet #656, #2095: after a shuffle's size one waits long for the next; prefetching helps",
        utterances_shuffled,
        0.035,
        ("too-little-prefetch", "slow-samples"),
        r"prefetch|ahead|[Bb]urst|uneven|buffer|shuffle|\bsort\b|one in|now and then|at times",
        r"[Pp]refetch|shuffle_size|sort_size|buffer",
        "inconclusive: wrong",
    ),
    Question(
        "cycled",
        "SSS-GS #6, #7: RAM grows until killed; itertools.cycle keeps all batches, iter() does not",
        cameras_in_cycles,
        0.2,
        ("memory-growth", "shm"),
        r"[Mm]emor|/dev/shm|grow|Iterations|cycle",
        r"cycle|\bcache|[Kk]eep|kept|\bh[oe]ld|\biter\(|referenc|releas|stor(e|es|ed|ing)\b",
        "healthy: wrong",
    ),
    Question(
        "huge-clouds",
        "Pointcept #308, #103: two huge clouds block loading; distort after cropping, or in chunks",
        rooms_distorted,
        0.06,
        ("slow-samples", *_OWN, "transforms"),
        r"one in|[Ss]low(er|est)? sample|ElasticDistortion|elastic_distortion|S3DISDataset",
        r"crop|GridSample|\bchunk|split|smaller|in_order=False|beforehand|in advance|"
        r"prefetch_factor|\bonce\b|GPU|device",
        "right",
    ),
    Question(
        "indexed-cells",
        "scVI-dev #63: 'Slow indexing', 2.16 s or 0.27 s a pass; yet training takes 482 s or 479 s",
        cells_row_by_row,
        0.06,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
        r"model|step|device|GPU|train|nothing|compute",
        "right",
    ),
    Question(
        "whole-field",
        "predict_pv_yield #24: the entire NWP field is resampled each time; once: 5 to 25 it/s",
        yields_of_panels,
        0.05,
        _OWN,
        r"get_sample|NWPDataInMem|PVDataset|interp1d|__getitem__",
        r"\bonce\b|crop|smaller|only (what|the part)|beforehand|in advance|precomput|"
        r"[Kk]eep|\bcache|__init__|cheaper|nearest",
        "right",
    ),
    Question(
        "packed-tokens",
        "SkyRL #1808, #1809: masks are written token by token where batches are packed; vectorized",
        conversations_packed,
        0.05,
        ("collate", "main-process"),
        r"PackedDataCollator|[Cc]ollat|main process|own process|num_workers|no workers",
        r"vector|NumPy|at once|slice|whole|loop|tensor|num_workers|workers|background|thread",
        "right",
    ),
    Question(
        "images-in-memory",
        "yolov5 #6457: a long time per epoch; with --cache, or on a RAM disk, it is 'very similar'",
        images_of_wheat,
        0.06,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
        r"model|step|device|GPU|train|nothing|compute",
        "memory-growth: wrong",
    ),
    Question(
        "slides",
        "eva #387, #388: memory builds up with each slide's cached properties; an LRU cache",
        patches_of_slides,
        0.03,
        ("memory-growth",),
        r"[Mm]emor|grow|WsiDataset|_wsi|cached",
        r"\bcache|LRU|lru|bound|limit|maxsize|[Kk]eep|kept|\bh[oe]ld|stor(e|es|ed|ing)\b|clos",
        "healthy: wrong",
    ),
    Question(
        "six-cameras",
        "simple_bev #4: the read time is inconsistent, it has 'to catch up'; more nworkers",
        cameras_of_cars,
        0.1,
        ("too-few-workers", "decode", *_OWN),
        r"worker|[Dd]ecod|JPEG|get_image_data|NuscData|PIL",
        r"num_workers|more workers|smaller|draft|another decoder|faster decoder|beforehand",
        "right",
    ),
    Question(
        "small-objects",
        "gcs-connector-for-pytorch #44: 410 s for an epoch of small objects, 31 s with 16 threads",
        objects_in_sequence,
        0.05,
        ("storage-latency",),
        r"[Ss]tor(e|age)|request|latency|network|socket|download|DataFlux|read",
        r"thread|concurren|at once|parallel|together|same time|overlap|more workers|num_workers|"
        r"shard|local|\bcop(y|ied)\b|\bcache|fewer, larger|prefetch",
        "right",
    ),
    Question(
        "edge-pairs",
        "glass-box-umap #24: edges are read one by one; a batch by one index is 22 times as fast",
        edges_one_by_one,
        0.03,
        ("main-process", "collate", *_OWN),
        r"UMAPDataset|__getitem__|[Cc]ollat|main process|own process|num_workers|no workers",
        r"__getitems__|whole batch|at once|vector|batch_sampler|index_select|num_workers|workers",
        "right",
    ),
    Question(
        "blurred-tiles",
        "slideflow #145: with torchvision's GaussianBlur 500 images/s, 7000 without; done faster",
        tiles_blurred,
        0.04,
        (*_OWN, "transforms"),
        r"GaussianBlur|gaussian_blur|[Bb]lur",
        r"GPU|device|OpenCV|cv2|PIL|smaller|kernel|cheaper|beforehand|"
        r"in advance|faster (one|library|function|implementation|blur|filter)",
        "right",
    ),
)
"""What was asked of twelve more projects."""
