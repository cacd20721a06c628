"""Parts that several questions use."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import (
    Dataset,
    get_worker_info,
)


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(500))


class PlainSamples(Dataset):
    """Samples that wait a little and compute a little."""

    def __init__(self, wait_s: float, compute_s: float) -> None:
        self.wait_s, self.compute_s = wait_s, compute_s

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        compute(self.compute_s)
        return torch.zeros(3, 32, 32)


def noise(*shape: int) -> np.ndarray:
    """Eight times as large as what is drawn in both last directions, so that it compresses."""
    *whole, height, width = shape
    drawn = (*whole, height // 8, width // 8)
    small = np.random.default_rng(0).integers(0, 255, drawn, dtype=np.uint8)
    return small.repeat(8, -2).repeat(8, -1)


def blocks(*shape: int) -> np.ndarray:
    """Draw an image of large pixels, which compresses as photographs do."""
    height, width, *channels = shape
    small = np.random.default_rng(0).integers(
        0, 255, (height // 8, width // 8, *channels), dtype=np.uint8
    )
    return small.repeat(8, 0).repeat(8, 1)


def own_part(items: list) -> list:
    """Take what falls to this worker."""
    worker = get_worker_info()
    return items[worker.id :: worker.num_workers] if worker else items
