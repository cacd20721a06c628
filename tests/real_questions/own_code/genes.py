import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Cells(Samples):
    """Expression of genes by cell in HDF5, of which a tenth is used."""

    def __init__(self, folder):
        import h5py

        self.path, self.file = folder / "cells.h5", None
        draw = np.random.default_rng(0)
        with h5py.File(self.path, "w") as file:
            file["X"] = draw.random((400, 20_000), dtype=np.float32)
        self.genes = np.sort(draw.choice(20_000, 2000, replace=False)).tolist()

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["X"][index % 400, self.genes])


@question(
    source="h5py #368, #413, pyscm #15",
    report="a list of indices, 15.5 s to 0.02 s by a slice",
    step_s=0.01,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"slice|then select|in NumPy|contiguous",
)
def genes_of_cells(folder):
    """Let HDF5 pick two thousand places one by one."""
    return DataLoader(_Cells(folder), batch_size=32, shuffle=True, num_workers=2)
