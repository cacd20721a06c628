"""Samples that cost what a recipe says, and the storage that they come from.

Started workers can import all of it. What is called CPU time is burned, and what is called waiting
is slept, so that a cost is what its recipe says on any machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import Dataset, get_worker_info

from stallscope.demo import busy, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.planted.recipe import Recipe


class Storage:
    """A disk or a share that gives so many bytes a second, to all workers together.

    Args:
        bytes_per_s: that.
        context: how the workers are started (a context of multiprocessing).
    """

    def __init__(self, bytes_per_s: float, context: Any) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at = context.Value("d", 0.0)  # of the clock that all processes share

    def send(self, size: int) -> None:
        """Wait until so many bytes have come; whoever asks later is served later."""
        with self.free_at.get_lock():
            now = time.monotonic()
            until = max(self.free_at.value, now) + size / self.bytes_per_s
            self.free_at.value = until
        waiting(until - now)


class PlantedSamples(Dataset[Any]):
    """Samples that cost what a recipe says: float32 tensors, filled with their index.

    Args:
        recipe: what they cost.
        transform: made of its ops.
        paths: photographs, where it reads any.
        storage: where they come from; None: as fast as they are read.
    """

    def __init__(
        self,
        recipe: Recipe,
        transform: Callable[[Any], Any],
        paths: tuple[str, ...] = (),
        storage: Storage | None = None,
    ) -> None:
        self.recipe = recipe
        self.transform = transform
        self.paths = paths
        self.storage = storage

    def __len__(self) -> int:
        return self.recipe.epoch * self.recipe.batch

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index))

    def load(self, index: int) -> Any:
        """What is read for one sample: an undecoded image, or a tensor."""
        recipe = self.recipe
        waiting(self.wait_s(index))
        busy(recipe.parse_s)
        if recipe.slow and recipe.slow.computes and recipe.is_slow(index):
            busy(recipe.slow.extra_s)
        image = self.read(self.paths[index % len(self.paths)]) if self.paths else None
        if recipe.decodes:
            return image
        if recipe.values != _VALUES:  # nobody writes into large ones, which would take as long
            return torch.empty(recipe.values)
        return torch.full((3, 8, 8), float(index))

    def wait_s(self, index: int) -> float:
        """How long storage makes one wait for this sample."""
        recipe, worker = self.recipe, get_worker_info()
        wait_s = recipe.read_s * recipe.factor(index // recipe.batch)
        if recipe.slow and not recipe.slow.computes and recipe.is_slow(index):
            wait_s += recipe.slow.extra_s
        return wait_s + (recipe.slow_worker_s if worker and worker.id == 0 else 0.0)

    def read(self, path: str) -> Any:
        """A photograph of the sample data, not yet decoded."""
        from PIL import Image

        if self.storage:
            self.storage.send(len(Path(path).read_bytes()))
        elif not self.recipe.decodes:
            Path(path).read_bytes()
        return Image.open(path) if self.recipe.decodes else None


_VALUES: Final = 3 * 8 * 8
