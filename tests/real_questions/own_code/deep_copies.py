from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import Question

if TYPE_CHECKING:
    from pathlib import Path


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


QUESTION = Question(
    name="deep-copies",
    source="torchio #1305",
    report="patches are slow since they are deep copies",
    make=deep_copies,
    step_s=0.0015,
    causes=("one-transform",),
    place=r"crop .*copied",
    lever=r"shallow copy",
)
