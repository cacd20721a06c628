import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class LoomDataset(Samples):
    """Expression of all genes in a cell, which is a column of the file's matrix."""

    def __init__(self, path, genes=4096, cells=4096):
        self.path, self.cells = path, cells
        counts = np.random.default_rng(0).poisson(0.2, (genes, cells)).astype(np.float32)
        with h5py.File(path, "w") as file:
            file.create_dataset(
                "matrix", data=counts, chunks=(64, 64), compression="gzip", compression_opts=2
            )
        self.file = None

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        expression = self.file["matrix"][:, index % self.cells]
        return torch.from_numpy(np.log1p(expression))


@question(
    source="loompy #144",
    report="random columns for training are far too slow: chunks are 64 cells wide, 'loading "
    "100 columns really means loading 6400'; a dense raw matrix as memory map was advised",
    step_s=0.02,
    causes=("one-transform", "decode"),
    place=r"LoomDataset|__getitem__|[Cc]hunk|HDF5|h5py|\.loom",
    lever=r"[Cc]hunk|contiguous|\braw\b|memmap|mmap|memory|uncompress|decompress|transpos|permut"
    r"|adjacent|\.npy|np\.save|\bcache|\bonce\b|beforehand|[Kk]eep",
)
def columns_of_chunks(folder):
    """Read one column out of square chunks."""
    dataset = LoomDataset(folder / "cells.loom")
    return DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
