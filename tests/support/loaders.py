"""Importable datasets for the tests that run real workers."""

import os
import random
import signal
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from support.planted_costs import busy

LONGER = int(os.environ.get("LONGER", "1"))
"""Length of the support table's datasets, as a multiple of the tests'."""
SLOW_OP_S = float(os.environ.get("SLOW_OP_S", "0"))
"""CPU time that the tests' op takes for a sample, seconds; known to workers of every kind."""


class Noise(Dataset):
    """Samples that depend on every generator a worker has."""

    def __init__(self, entries: int = 24, transform: Any = None) -> None:
        self.entries = entries
        self.transform = transform

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [float(index), torch.rand(1).item(), np.random.rand(), random.random()]
        sample = torch.tensor(drawn)
        return self.transform(sample) if self.transform else sample


class BulkNoise(Noise):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class NoiseStream(IterableDataset):
    """The same as a stream, split between the workers."""

    def __init__(self, entries: int = 24) -> None:
        self.inner = Noise(entries)

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.inner.entries, step):
            yield self.inner[index]


class Endless(IterableDataset):
    """A stream without an end."""

    def __iter__(self) -> Any:
        while True:
            yield torch.rand(2)


class Jitter:
    """A transform that draws from torch and changes its input."""

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        busy(SLOW_OP_S)
        return sample + torch.rand(4)


class Backwards(Sampler):
    """A sampler of the user's that counts its epochs."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.epochs = 0

    def __iter__(self) -> Any:
        self.epochs += 1
        return iter(range(len(self.dataset) - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.dataset)


class Fails(Noise):
    def __init__(self, entries: int = 64, bad: int = 17, transform: Any = None) -> None:
        super().__init__(entries, transform)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            self.give_up(index)
        return super().__getitem__(index)

    def give_up(self, index: int) -> None:
        raise KeyError(f"no sample {index}")


class Dies(Noise):
    """Kills its own worker on one sample, inside of `load_it`."""

    def __init__(self, entries: int = 64, bad: int = 33) -> None:
        super().__init__(entries)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        self.augment_it(index)
        return super().__getitem__(index)

    def augment_it(self, index: int) -> None:
        if index == self.bad:
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(Noise):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return super().__getitem__(index)
