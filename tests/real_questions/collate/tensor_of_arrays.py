from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Series(Dataset):
    """Series of floats, one array a sample."""

    def __init__(self, shape: tuple[int, ...] = (24 * 14, 4)) -> None:
        self.values = np.random.default_rng(0).normal(size=(64, *shape)).astype(np.float32)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return {"past": self.values[index % 64], "scale": self.values[index % 64, 0, 0]}


def stack_as_tensor(samples):
    """Make a batch as gluonts did: one tensor out of a list of arrays."""
    return {name: torch.tensor([sample[name] for sample in samples]) for name in samples[0]}


def tensor_of_arrays(_folder: Path) -> DataLoader:
    """Convert number by number."""
    return DataLoader(_Series(), batch_size=64, num_workers=2, collate_fn=stack_as_tensor)


QUESTION = Question(
    name="tensor-of-arrays",
    source="gluonts #1732",
    report="making batches is extremely slow",
    make=tensor_of_arrays,
    step_s=0.008,
    causes=("collate",),
    place=r"stack_as_tensor",
    lever=r"np\.stack|from_numpy",
)
