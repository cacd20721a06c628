"""Questions about work that is done for each sample, and need not be, or not so much of it.

The addresses are those of the maintainer's answer, or of the change that helped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class _HighResolution(Dataset):
    """Small patches of large PNG, which are read whole."""

    def __init__(self, folder: Path) -> None:
        import cv2

        noise = np.random.default_rng(0).integers(0, 255, (180, 256, 3), dtype=np.uint8)
        self.paths = [str(folder / f"{number}.png") for number in range(4)]
        for path in self.paths:
            cv2.imwrite(path, cv2.resize(noise, (2048, 1440)))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import cv2

        image = cv2.imread(self.paths[index % 4])
        top, left = np.random.randint(1440 - 96), np.random.randint(2048 - 96)
        patch = image[top : top + 96, left : left + 96]
        return torch.from_numpy(patch.transpose(2, 0, 1).copy())


def patches_of_png(folder: Path) -> DataLoader:
    """Decode two thousand pixels a side for a hundred."""
    return DataLoader(_HighResolution(folder), batch_size=4, shuffle=True, num_workers=2)


class _Volumes(Dataset):
    """Patches around the foreground of volumes, whose voxels are looked at for each."""

    def __init__(self) -> None:
        from monai.transforms import Compose, RandCropByPosNegLabeld, RandFlipd

        image = torch.randn(1, 112, 112, 112)
        self.subject = {"image": image, "label": (image > 2).float()}
        crop = RandCropByPosNegLabeld(
            ["image", "label"], label_key="label", spatial_size=(32, 32, 32), num_samples=1
        )
        self.transform = Compose([crop, RandFlipd(["image", "label"], prob=0.5)])

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        patch = self.transform(dict(self.subject))[0]
        return patch["image"].as_tensor(), patch["label"].as_tensor()


def crops_of_foreground(_folder: Path) -> DataLoader:
    """Look for the foreground of a volume for each crop."""
    return DataLoader(_Volumes(), batch_size=2, num_workers=2)


class _Songs(Dataset):
    """Excerpts of music at another rate than that of the model."""

    def __init__(self) -> None:
        import scipy.signal  # noqa: F401 - where its author imports it, workers have it already

        self.audio = np.random.default_rng(0).normal(size=(4, 2, 149_993)).astype(np.float32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return torch.from_numpy(self.resampled(self.audio[index % 4]))

    @staticmethod
    def resampled(audio):
        """Change the rate."""
        from scipy import signal

        return signal.resample(audio, 27_893, axis=1).astype(np.float32)


def resampled_songs(_folder: Path) -> DataLoader:
    """Resample each excerpt while loading."""
    return DataLoader(_Songs(), batch_size=4, shuffle=True, num_workers=2)


class _Scenes(Dataset):
    """Masks whose colours become classes."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.palette = draw.integers(0, 255, (24, 3), dtype=np.uint8)
        self.masks = self.palette[draw.integers(0, 24, (4, 160, 160))]

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return torch.from_numpy(self.one_hot_it(self.masks[index % 4]))

    def one_hot_it(self, mask):
        """Compare each pixel with each colour."""
        planes = [np.all(np.equal(mask, colour), axis=-1) for colour in self.palette]
        return np.argmax(np.stack(planes, axis=-1), axis=-1)


def classes_of_colours(_folder: Path) -> DataLoader:
    """Convert colours to classes while loading."""
    return DataLoader(_Scenes(), batch_size=4, shuffle=True, num_workers=2)


class _Matrices(Dataset):
    """Matrices of an HDF5 file, each made into a tensor as it is."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.path, self.file = folder / "matrices.h5", None
        with h5py.File(self.path, "w") as file:
            for number in range(40):
                file[str(number)] = np.ones((500, 100), np.float32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.tensor(self.file[str(index % 40)])


def tensors_of_hdf5(folder: Path) -> DataLoader:
    """Let torch take a dataset of HDF5 apart, number by number."""
    return DataLoader(_Matrices(folder), batch_size=8, shuffle=True, num_workers=2)


class _Warped(Dataset):
    """Slices that are deformed by splines of the third order."""

    def __init__(self) -> None:
        self.image = np.random.default_rng(0).normal(size=(160, 160)).astype(np.float32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        from scipy import ndimage

        shifts = [
            ndimage.gaussian_filter(np.random.uniform(-1, 1, self.image.shape), 8) * 200
            for _ in range(2)
        ]
        where = np.indices(self.image.shape) + np.stack(shifts)
        return torch.from_numpy(ndimage.map_coordinates(self.image, where, order=3))


def deformed(_folder: Path) -> DataLoader:
    """Deform each slice, whatever it takes."""
    return DataLoader(_Warped(), batch_size=4, num_workers=2)


_OWN = ("one-transform",)
COMPUTING = (
    Question(
        "png",
        "BasicSR #219, #214: store smaller sub-images",
        patches_of_png,
        0.01,
        ("decode", *_OWN),
        r"[Dd]ecod|__getitem__",
        r"crop|smaller|pieces",
        "decode: right",
    ),
    Question(
        "foreground",
        "MONAI #892, #6284: the foreground's voxels need not be looked for each time",
        crops_of_foreground,
        0.005,
        (*_OWN, "transforms"),
        r"RandCropByPosNegLabel",
        r"once|beforehand",
        "one-transform: wrong lever",
    ),
    Question(
        "resample",
        "Wave-U-Net #25, TTS #405: almost all of the time; resample before training",
        resampled_songs,
        0.005,
        _OWN,
        r"resampled",
        r"once|beforehand",
        "one-transform: right; inconclusive where workers import scipy",
    ),
    Question(
        "colours",
        "Semantic-Segmentation-Suite #24: done offline it is six times as fast",
        classes_of_colours,
        0.005,
        _OWN,
        r"one_hot_it",
        r"once|beforehand",
        "one-transform: right",
    ),
    Question(
        "hdf5-tensor",
        "pytorch #28761: np.array first, 421 ms to 3 ms",
        tensors_of_hdf5,
        0.005,
        _OWN,
        r"__getitem__",
        r"np\.(array|stack)|NumPy|array first",
        "one-transform: right",
    ),
    Question(
        "deformed",
        "batchgenerators #74: order 1 in place of 3, 253 s to 49 s; smaller, rarer",
        deformed,
        0.005,
        (*_OWN, "transforms"),
        r"__getitem__|gaussian_filter|map_coordinates",
        r"works on less|less data|fewer",
        "transforms; storage-bandwidth on a busy machine",
    ),
)
"""By what was found to be slow there."""
