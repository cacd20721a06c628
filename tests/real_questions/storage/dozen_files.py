from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Driving(Dataset):
    """Samples in a dozen files each, on a drive that others use, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in range(12):
            np.save(folder / f"{name}.npy", np.ones((64, 64), np.float32))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        return [self.load(self.folder / f"{name}.npy") for name in range(12)]

    @staticmethod
    def load(path):
        """Load one of the files."""
        time.sleep(0.003)  # the drive
        return torch.from_numpy(np.load(path))


def dozen_files(folder: Path) -> DataLoader:
    """Open many input and label files for each sample."""
    return DataLoader(_Driving(folder), batch_size=8, shuffle=True, num_workers=2)


QUESTION = Question(
    name="dozen-files",
    source="transfuser #154",
    report="many input and label files for each sample, on slow storage",
    make=dozen_files,
    step_s=0.03,
    causes=("storage-latency", "one-transform"),
    place=r"wait|load|__getitem__",
    lever=r"shard|one file|more workers|at once",
)
