from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


class _Graph:
    """A sample with many small tensors."""

    def __init__(self) -> None:
        self.tensors = [torch.ones(8) for _ in range(12)]


class _Graphs(Dataset):
    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return _Graph()


def as_objects(samples):
    """Make a batch that is a list of objects."""
    return samples


def small_tensors(_folder: Path) -> DataLoader:
    """Send hundreds of tensors, each in shared memory of its own."""
    return DataLoader(_Graphs(), batch_size=48, num_workers=2, collate_fn=as_objects)


QUESTION = Question(
    name="small-tensors",
    source="pytorch #123439",
    report="slow when collate returns objects",
    make=small_tensors,
    step_s=0.005,
    causes=("sending",),
    place=r"[Ss]ending",
    lever=r"tensor|objects",
)
