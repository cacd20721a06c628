"""Questions about where samples come from, and how they are kept: files, archives, tables, videos.

The addresses are those of the maintainer's answer, or of the change that helped.
"""

from __future__ import annotations

import gzip
import io
import random
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


def _noise(*shape: int) -> np.ndarray:
    """Eight times as large as what is drawn in both last directions, so that it compresses."""
    *whole, height, width = shape
    drawn = (*whole, height // 8, width // 8)
    small = np.random.default_rng(0).integers(0, 255, drawn, dtype=np.uint8)
    return small.repeat(8, -2).repeat(8, -1)


class _Trajectories(Dataset):
    """Frames of robots, stored and compressed by trajectory, read frame by frame."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.path, self.file = folder / "trajectories.h5", None
        with h5py.File(self.path, "w") as file:
            chunks = (24, 3, 128, 128)
            frames = _noise(240, 3, 128, 128)
            file.create_dataset("rgb", data=frames, chunks=chunks, compression="gzip")

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["rgb"][index % 240])


def frames_of_trajectories(folder: Path) -> DataLoader:
    """Unpack the frames of a whole trajectory for each one."""
    return DataLoader(_Trajectories(folder), batch_size=16, shuffle=True, num_workers=2)


class _Slices(Dataset):
    """Slices of a compressed volume, which is unpacked from its begin on for each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "volume.gz"
        with gzip.open(self.path, "wb") as file:
            file.write(_noise(80, 256, 256).tobytes())

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        size = 256 * 256
        with gzip.open(self.path, "rb") as file:
            file.seek(index % 80 * size)
            values = np.frombuffer(file.read(size), np.uint8)
        return torch.from_numpy(values.reshape(256, 256).astype(np.float32))


def slices_of_volumes(folder: Path) -> DataLoader:
    """Seek in a file that cannot be sought in."""
    return DataLoader(_Slices(folder), batch_size=4, shuffle=True, num_workers=2)


class _Frames(Dataset):
    """Single frames of a long video, at random."""

    def __init__(self, folder: Path) -> None:
        import cv2

        self.path = str(folder / "long.mp4")
        video = cv2.VideoWriter(self.path, cv2.VideoWriter.fourcc(*"mp4v"), 30, (320, 240))
        for frame in _noise(200, 3, 240, 320):
            video.write(np.ascontiguousarray(frame.transpose(1, 2, 0)))
        video.release()

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import cv2

        video = cv2.VideoCapture(self.path)
        video.set(cv2.CAP_PROP_POS_FRAMES, index % 200)
        _, frame = video.read()
        video.release()
        return torch.from_numpy(frame)


def frames_of_videos(folder: Path) -> DataLoader:
    """Decode from the last key frame on for each frame."""
    return DataLoader(_Frames(folder), batch_size=8, shuffle=True, num_workers=2)


class _Zipped(Dataset):
    """Small images in an archive of thousands, which is opened for each."""

    def __init__(self, folder: Path) -> None:
        self.path, photograph = folder / "images.zip", io.BytesIO()
        Image.fromarray(_noise(96, 96)).save(photograph, "JPEG")
        self.names = [f"images/{number:06d}.jpg" for number in range(5000)]
        with zipfile.ZipFile(self.path, "w") as archive:
            for name in self.names:
                archive.writestr(name, photograph.getvalue())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index):
        with zipfile.ZipFile(self.path) as archive:
            image = Image.open(io.BytesIO(archive.read(self.names[index]))).convert("RGB")
        return torch.from_numpy(np.array(image))


def archive_of_images(folder: Path) -> DataLoader:
    """Read the archive's table of contents for each image."""
    return DataLoader(_Zipped(folder), batch_size=8, shuffle=True, num_workers=2)


class _Cases(Dataset):
    """Patches of compressed cases: all of a case is read and unpacked for one patch."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number}.npz" for number in range(4)]
        for path in self.paths:
            np.savez_compressed(path, data=_noise(2, 48, 128, 128).astype(np.float32))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        data = np.load(self.paths[index % 4])["data"]
        z, y, x = (random.randrange(size - 32) for size in data.shape[1:])
        return torch.from_numpy(data[:, z : z + 32, y : y + 32, x : x + 32].copy())


def patches_of_cases(folder: Path) -> DataLoader:
    """Use a fiftieth of what is read."""
    return DataLoader(_Cases(folder), batch_size=2, shuffle=True, num_workers=2)


class _Tiles(Dataset):
    """Paths and labels in a table that is read for each sample."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tiles.csv"
        np.save(folder / "tile.npy", np.ones((3, 64, 64), np.float32))
        rows = (f"{folder / 'tile.npy'};{number % 4}\n" for number in range(5000))
        self.path.write_text("".join(rows))

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index):
        import pandas as pd

        tiles = pd.read_csv(self.path, sep=";", header=None)
        path, label = tiles.loc[index, 0], tiles.loc[index, 1]
        return torch.from_numpy(np.load(path)), int(label)


def table_of_tiles(folder: Path) -> DataLoader:
    """Parse five thousand rows for one."""
    return DataLoader(_Tiles(folder), batch_size=8, shuffle=True, num_workers=2)


_OWN = ("one-transform",)
READING = (
    Question(
        "chunks",
        "ManiSkill #1040: chunks of a trajectory, single frames are read",
        frames_of_trajectories,
        0.005,
        _OWN,
        r"__getitem__",
        r"(chunks|pieces) of one sample",
        "one-transform",
    ),
    Question(
        "gz",
        "eva #705: the deeper a slice of .nii.gz, the slower",
        slices_of_volumes,
        0.005,
        (*_OWN, "decode"),
        r"__getitem__",
        r"store it unpacked",
        "one-transform",
    ),
    Question(
        "key-frames",
        "lerobot #92: a key frame every two frames is the best for training",
        frames_of_videos,
        0.005,
        (*_OWN, "decode"),
        r"__getitem__|[Dd]ecod",
        r"key frame",
        "one-transform, by 'element by element': wrong lever",
    ),
    Question(
        "zip",
        "vision #950: opening a ZipFile reads all of its contents' names, 2 s for CelebA",
        archive_of_images,
        0.005,
        _OWN,
        r"__getitem__",
        r"open it once",
        "one-transform, by 'store it unpacked': wrong lever",
    ),
    Question(
        "cases",
        "nnUNet #1332, #2380, #566: compressed cases are a lot slower",
        patches_of_cases,
        0.005,
        _OWN,
        r"__getitem__",
        r"of \.npy, not \.npz",
        "one-transform, by mmap_mode, which .npz has not",
    ),
    Question(
        "csv",
        "geo-deep-learning #418: the table is read whenever a sample is asked for",
        table_of_tiles,
        0.005,
        _OWN,
        r"__getitem__",
        r"load it once",
        "one-transform, by to_numpy: wrong lever",
    ),
)
"""By what was found to be slow there."""
