"""Questions about what is done with the data, and how the loader is set.

The addresses are those of the maintainer's answer, or of the change that helped.
"""

from __future__ import annotations

import copy
import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Poses(Dataset):
    """Pictures of a person, whose joints become heat maps pixel by pixel."""

    def __init__(self) -> None:
        self.joints = np.random.default_rng(0).uniform(5, 40, (500, 17, 2))
        self.image = torch.zeros(3, 184, 184)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        heatmap = np.zeros((17, 46, 46), np.float32)
        for number, joint in enumerate(self.joints[index % 500]):
            self.put_heatmap(heatmap[number], joint)
        return self.image, heatmap

    @staticmethod
    def put_heatmap(plane, joint, sigma=2.0):
        """Draw one joint."""
        reach = sigma * math.sqrt(2 * 4.6)
        x0, y0 = (int(max(0, one - reach)) for one in joint)
        x1, y1 = (int(min(46, one + reach)) for one in joint)
        for y in range(y0, y1):
            for x in range(x0, x1):
                exponent = ((x - joint[0]) ** 2 + (y - joint[1]) ** 2) / 2 / sigma / sigma
                if exponent <= 4.6:
                    plane[y][x] = max(plane[y][x], math.exp(-exponent))


def heat_maps(_folder: Path) -> DataLoader:
    """Draw pixel by pixel, in Python."""
    return DataLoader(_Poses(), batch_size=16, num_workers=2)


class _Features(Dataset):
    def __init__(self) -> None:
        self.labels = [number % 400 for number in range(40_000)]
        self.values = torch.randn(1000, 64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return self.values[index % 1000], self.labels[index]


class BalancedSampler:
    """Draws eight classes for a batch, and eight samples of each."""

    def __init__(self, labels: list[int]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels) // 64

    def __iter__(self):
        for _ in range(len(self)):
            batch = []
            for one in np.random.choice(400, 8, replace=False):
                where = np.nonzero(np.array(self.labels) == one)[0]
                batch.extend(np.random.choice(where, 8))
            yield batch


def balanced(_folder: Path) -> DataLoader:
    """Make an array of all labels for each class of each batch, in the main process."""
    features = _Features()
    return DataLoader(features, batch_sampler=BalancedSampler(features.labels), num_workers=2)


def row_by_row(_folder: Path) -> DataLoader:
    """Take thousands of rows of a tensor one by one, and stack them."""
    values, labels = torch.randn(200_000, 40), torch.randint(0, 2, (200_000,))
    return DataLoader(TensorDataset(values, labels), batch_size=4096, shuffle=True)


def tiny_rows(_folder: Path) -> DataLoader:
    """Let four workers take a few numbers out of memory."""
    columns = torch.randn(60_000, 20), torch.randint(0, 9, (60_000, 4)), torch.rand(60_000)
    return DataLoader(TensorDataset(*columns), batch_size=16, shuffle=True, num_workers=4)


class _Digits(Dataset):
    """Small images in memory, as MNIST's are."""

    def __init__(self) -> None:
        self.images = torch.randint(0, 256, (60_000, 28, 28), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].unsqueeze(0) / 255, index % 10


def small_images(_folder: Path) -> DataLoader:
    """Let two workers make batches that take as long to be sent as to be made."""
    return DataLoader(_Digits(), batch_size=8, shuffle=True, num_workers=2)


class _Floats(Dataset):
    """Images of uint8 that become floats in each `__getitem__`."""

    def __init__(self) -> None:
        self.images = torch.randint(0, 256, (32, 3, 192, 192), dtype=torch.uint8)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.images[index % 32].float().div_(255), index % 10


def float_images(_folder: Path) -> DataLoader:
    """Collate and send four times the bytes that there are."""
    return DataLoader(_Floats(), batch_size=128, num_workers=2)


class _Pictures(Dataset):
    """Pictures in memory, converted and normalised one by one."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3), dtype=np.uint8)
        self.images = [Image.fromarray(one) for one in noise]
        scale = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        self.transform = transforms.Compose(
            [transforms.RandomHorizontalFlip(), transforms.ToTensor(), scale]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.transform(self.images[index % 8]), index % 10


def normalised_images(_folder: Path) -> DataLoader:
    """Normalise on the workers' cores what the device would in no time."""
    return DataLoader(_Pictures(), batch_size=32, num_workers=2)


class _Subjects(Dataset):
    """Patches of volumes; all of the subject is copied for each patch."""

    def __init__(self) -> None:
        volume = torch.zeros(1, 96, 96, 96)
        self.subjects = [{"t1": volume + n, "label": volume.clone()} for n in range(4)]

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.crop(self.subjects[index % 4], index % 64)

    @staticmethod
    def crop(subject, at):
        """Cut a patch out."""
        whole = copy.deepcopy(subject)
        return {name: one[:, at : at + 24, :24, :24].clone() for name, one in whole.items()}


def deep_copies(_folder: Path) -> DataLoader:
    """Copy what a patch is cut out of."""
    return DataLoader(_Subjects(), batch_size=8, num_workers=2)


class _Portraits(Dataset):
    """Photographs whose colours are changed at full size, before they are cropped."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (600, 800, 3), dtype=np.uint8)
        self.image = Image.fromarray(noise)
        colours = [transforms.ColorJitter(**{name: 0.2}) for name in ("brightness", "contrast")]
        self.transform = transforms.Compose(
            [
                *colours,
                transforms.ColorJitter(saturation=0.2),
                transforms.RandomHorizontalFlip(),
                transforms.RandomCrop(128),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        return self.transform(self.image.copy())


def cropped_last(_folder: Path) -> DataLoader:
    """Change the colours of pixels that are cropped away."""
    return DataLoader(_Portraits(), batch_size=8, num_workers=2)


class _Few(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, _index):
        return torch.zeros(3, 32, 32)


def opens_its_files(_worker: int) -> None:
    """Get ready for some time, as imports and indices do."""
    time.sleep(0.6)


def short_epochs(_folder: Path) -> DataLoader:
    """Start workers for epochs of twenty batches."""
    return DataLoader(_Few(), batch_size=8, num_workers=2, worker_init_fn=opens_its_files)


MAKING = (
    Question(
        "heat-maps",
        "tf-pose-estimation #272: heat maps take the time, ten times as fast without loops",
        heat_maps,
        0.006,
        ("one-transform",),
        r"put_heatmap",
        r"whole arrays",
        "one-transform: right",
    ),
    Question(
        "sampler",
        "Proxy-Anchor-CVPR2020 #26: way too slow with many classes",
        balanced,
        0.003,
        ("main-process",),
        r"BalancedSampler\.__iter__",
        r"with arrays",
        "main-process: names no sampler",
    ),
    Question(
        "row-by-row",
        "DeepCTR-Torch #70, pytorch #4959: slicing is four times as fast",
        row_by_row,
        0.005,
        ("main-process",),
        r"getitem|collate",
        r"by one index",
        "main-process: wrong lever",
    ),
    Question(
        "tiny-rows",
        "lightning #17410, pytorch #154318: workers make training slow, the data is in memory",
        tiny_rows,
        0.0005,
        ("sending",),
        r"more time than they save",
        r"num_workers=0",
        "healthy, or start-up: wrong",
    ),
    Question(
        "small-images",
        "style-based-gan-pytorch #108: with several workers low resolutions are slower",
        small_images,
        0.0005,
        ("sending",),
        r"more time than they save",
        r"num_workers=0",
        "sending: wrong lever, smaller types",
    ),
    Question(
        "float-images",
        "modern-yolonas #42, sleap-nn #434: float32 leaves the workers where uint8 would do",
        float_images,
        0.01,
        ("collate", "sending"),
        r"uint8 would hold",
        r"uint8.*on the device",
        "collate: wrong lever, no Python loop over samples",
    ),
    Question(
        "normalised-images",
        "sleap-nn #406: normalising on the device is 14 times as fast, with the transfer",
        normalised_images,
        0.01,
        ("one-transform", "collate", "sending"),
        r"uint8 would hold",
        r"uint8.*on the device",
        "one-transform: wrong lever, ToTensor on less data",
    ),
    Question(
        "deep-copies",
        "torchio #1305: patches are slow since they are deep copies",
        deep_copies,
        0.0015,
        ("one-transform",),
        r"crop .*copied",
        r"shallow copy",
        "one-transform: wrong lever",
    ),
    Question(
        "cropped-last",
        "Portrait-Segmentation #33: cropping first takes a fifth of the time",
        cropped_last,
        0.006,
        ("transforms",),
        r"ColorJitter",
        r"crop or resize first",
        "inconclusive, on a busy machine",
    ),
    Question(
        "short-epochs",
        "mmpretrain #196: each epoch is slow at its start",
        short_epochs,
        0.02,
        ("start-up",),
        r"every epoch",
        r"persistent_workers",
        "start-up: right",
    ),
)
