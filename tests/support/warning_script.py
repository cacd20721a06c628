"""A script that warns: torch's own warnings, and those of a dataset's, a transform's, a library's.

Each names a line by a `stacklevel`, as `python warning_script.py` prints it.
"""

from __future__ import annotations

import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class TooLong(IterableDataset):
    """Gives more samples than it says, which torch warns about in the loop."""

    def __repr__(self) -> str:
        return "too long"

    def __len__(self) -> int:
        return 2

    def __iter__(self):
        return iter(range(6))


class Warns:
    """An op that warns its caller."""

    def __call__(self, number):
        warnings.warn("of the op", stacklevel=2)
        return torch.tensor(number)


class Data(Dataset):
    """Warns its caller for a sample, and that one's caller."""

    def __init__(self) -> None:
        self.transform = Warns()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index):
        warnings.warn("of the sample", stacklevel=2)
        warnings.warn("of the batch", stacklevel=3)
        return self.transform(index)


def collate(samples):
    """Warns the caller's caller."""
    warnings.warn("of the collate function", stacklevel=2)
    return torch.stack(samples)


def main(workers: int) -> None:
    """Iterate all of it."""
    loader = DataLoader(TooLong(), 2, num_workers=workers)
    print(len(loader))  # torch compares with that
    for _ in loader:
        pass
    for _ in DataLoader(Data(), 2, num_workers=workers, collate_fn=collate):
        pass
    for _ in DataLoader(Data(), 2, num_workers=workers, pin_memory=True):
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
