from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Cells(Dataset):
    """Expression of genes by cell in HDF5, of which a tenth is used."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.path, self.file = folder / "cells.h5", None
        draw = np.random.default_rng(0)
        with h5py.File(self.path, "w") as file:
            file["X"] = draw.random((400, 20_000), dtype=np.float32)
        self.genes = np.sort(draw.choice(20_000, 2000, replace=False)).tolist()

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["X"][index % 400, self.genes])


def genes_of_cells(folder: Path) -> DataLoader:
    """Let HDF5 pick two thousand places one by one."""
    return DataLoader(_Cells(folder), batch_size=32, shuffle=True, num_workers=2)


QUESTION = Question(
    name="genes",
    source="h5py #368, #413, pyscm #15",
    report="a list of indices, 15.5 s to 0.02 s by a slice",
    make=genes_of_cells,
    step_s=0.01,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"slice|then select|in NumPy|contiguous",
)
