"""Datasets, ops and a collate function with a cost that is known beforehand."""

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.data import Dataset, default_collate

_WORK: Final = bytes(8192)
"""`hashlib` lets go of Python's lock for anything larger than 2 kB."""


def busy(seconds: float) -> None:
    """Burn so much CPU time of this thread, however long that takes on a loaded machine.

    Outside of Python's lock, as decoders and torch compute: other threads can send a batch.
    """
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(_WORK)


def waiting(seconds: float) -> None:
    """Wait without using the CPU, as a slow disk or network makes one wait."""
    if seconds > 0:  # sleep(0) takes longer than nothing
        time.sleep(seconds)


class BusyOp:
    """A transform or a training step that burns CPU time and returns its input unchanged."""

    def __init__(self, seconds: float, name: str = "BusyOp") -> None:
        self.seconds = seconds
        self.name = name

    def __call__(self, value: Any) -> Any:
        busy(self.seconds)
        return value

    def __repr__(self) -> str:
        return f"{self.name}({self.seconds} s)"


class BusyCollate:
    """The default collate function of torch, after burning CPU time for each batch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, samples: list[Any]) -> Any:
        busy(self.seconds)
        return default_collate(samples)


class SlowFetchDataset(Dataset[Any]):
    """Samples that wait for storage: float32 of shape (3, 8, 8), filled with their index."""

    def __init__(
        self, entries: int, fetch_s: float = 0.0, transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.entries = entries
        self.fetch_s = fetch_s
        self.transform = transform

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        sample = self.load(index)
        return sample if self.transform is None else self.transform(sample)

    def load(self, index: int) -> torch.Tensor:
        """One sample, after `fetch_s` seconds of waiting."""
        waiting(self.fetch_s)
        return torch.full((3, 8, 8), float(index))
