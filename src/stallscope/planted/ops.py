"""The transforms of planted loaders; started workers can import them."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch

from stallscope.demo import BusyOp, busy, waiting


class Blur(BusyOp):
    """A transform that computes."""


class Warp(BusyOp):
    """A transform that computes."""


class Recolour(BusyOp):
    """A transform that computes."""


class AddNoise(BusyOp):
    """A transform that computes."""


class Sharpen(BusyOp):
    """A transform that computes."""


OPS: Final[dict[str, type[BusyOp]]] = {
    op.__name__: op for op in (Blur, Warp, Recolour, AddNoise, Sharpen)
}


class Corner:
    """A corner of an image, as a tensor; whoever touches its pixels first decodes it."""

    def __call__(self, image: Any) -> torch.Tensor:
        """An image as float32 of shape (3, 8, 8)."""
        corner = np.asarray(image.convert("RGB").crop((0, 0, 8, 8)), dtype=np.float32)
        return torch.from_numpy(corner).permute(2, 0, 1).contiguous()


class Lookup:
    """A transform that only one worker at a time may be in: a shared file, a shared index.

    Args:
        seconds: how long it takes.
        computes: whether it computes so long; else it waits.
        lock: of all workers; None: each may be in it whenever it likes.
    """

    def __init__(self, seconds: float, lock: Any, *, computes: bool) -> None:
        self.seconds = seconds
        self.computes = computes
        self.lock = lock

    def __call__(self, sample: Any) -> Any:
        """The same sample."""
        alone: AbstractContextManager[Any] = self.lock or nullcontext()
        with alone:
            (busy if self.computes else waiting)(self.seconds)
        return sample


class Smooth:
    """A library's transform that computes in parallel, with torch's threads.

    In a thread of its own: OpenMP's threads do not survive a fork, and whoever was forked from a
    process that had some hangs with more than one (github.com/pytorch/pytorch/issues/17199).

    Args:
        regions: parallel regions for each sample.
    """

    VALUES: Final = 66_000
    """Numbers that it works on: enough for torch to ask for its threads at all (2 * 32,768,
    `at::internal::GRAIN_SIZE`), and so few that they mostly wait for each other."""

    def __init__(self, regions: int) -> None:
        self.regions = regions

    def __call__(self, sample: Any) -> Any:
        """The same sample."""
        thread = threading.Thread(target=self.compute)
        thread.start()
        thread.join()
        return sample

    def compute(self) -> None:
        """Do the work, in this thread and those of OpenMP."""
        work = torch.ones(self.VALUES)
        for _ in range(self.regions):
            work = torch.sin(work)
