"""An importable pipeline with planted lines, and the odd forms in which people write code."""

import functools
import time
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

SLEEP_S = 0.02


class Sleeper:
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        first = value + 1
        time.sleep(SLEEP_S)  # the planted line
        return self.after(first)

    def after(self, value: torch.Tensor) -> torch.Tensor:
        doubled = value * 2
        return doubled - 1


class Slow:
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return value


class Items(Dataset):
    """Samples with a transform, and a counter that a measurement must not move."""

    def __init__(self, transform: Any = None, entries: int = 64) -> None:
        self.transform = transform
        self.entries = entries
        self.file: Any = None

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = object()  # as a file that is opened by whoever needs it first
        sample = torch.full((4,), float(index)) + torch.rand(4)
        return self.transform(sample) if self.transform else sample


class Bulk(Items):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __init__(self, entries: int = 1000, sleep_s: float = 0.005) -> None:
        self.entries = entries
        self.sleep_s = sleep_s

    def __iter__(self) -> Any:
        for index in range(self.entries):
            time.sleep(self.sleep_s)
            yield torch.tensor(float(index))


class Recursive:
    def __call__(self, value: torch.Tensor, depth: int = 3) -> torch.Tensor:
        if depth:
            return self(value, depth - 1)
        time.sleep(0.005)
        return value


def noted(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Decorated:
    @noted
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.003)
        return value


def plain(value: torch.Tensor) -> torch.Tensor:
    time.sleep(0.003)
    return value


def closing_over(sleep_s: float) -> Any:
    def waits(value: torch.Tensor) -> torch.Tensor:
        time.sleep(sleep_s)
        return value

    return waits


def slow_collate(samples: list[Any]) -> Any:
    time.sleep(SLEEP_S)
    return default_collate(samples)
