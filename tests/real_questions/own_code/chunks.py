from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import noise
from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Trajectories(Dataset):
    """Frames of robots, stored and compressed by trajectory, read frame by frame."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.path, self.file = folder / "trajectories.h5", None
        with h5py.File(self.path, "w") as file:
            chunks = (24, 3, 128, 128)
            frames = noise(240, 3, 128, 128)
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


QUESTION = Question(
    name="chunks",
    source="ManiSkill #1040",
    report="chunks of a trajectory, single frames are read",
    make=frames_of_trajectories,
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"(chunks|pieces) of one sample",
)
