"""How planted loaders make batches, how their workers start, and how the loop uses batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler, default_collate

from stallscope.demo import busy, waiting
from stallscope.measure.simulated import SimulatedStep
from stallscope.probe.named import stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Collate:
    """Makes a batch: one tensor, a list of tensors, or numpy arrays (which are pickled)."""

    cpu_s: float
    """CPU time that it takes besides, seconds."""
    sending: str
    """See `recipe.Sending`."""

    def __call__(self, samples: list[Any]) -> Any:
        """The batch."""
        busy(self.cpu_s)
        if self.sending == "tensor":
            return default_collate(samples)
        return samples if self.sending == "list" else [sample.numpy() for sample in samples]


@dataclass(frozen=True)
class Start:
    """What a worker does first."""

    wait_s: float
    """Waits, as for an import from slow storage, seconds."""
    threads: int
    """Takes so many threads for torch; what a library does that does not know of the others."""

    def __call__(self, worker: int) -> None:  # noqa: ARG002 - what torch calls it with
        """Start."""
        waiting(self.wait_s)
        if self.threads > 1:
            torch.set_num_threads(self.threads)


class SlowSampler(SequentialSampler):
    """Indices in their order; drawing a batch of them takes the main process so much CPU time."""

    def __init__(self, dataset: Any, batch: int, cpu_s: float) -> None:
        super().__init__(dataset)
        self.batch = batch
        self.cpu_s = cpu_s

    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(super().__iter__()):
            if place % self.batch == 0:
                busy(self.cpu_s)
            yield index


@dataclass(frozen=True)
class LoggingStep(SimulatedStep):
    """A simulated step, and logging in the main process after it."""

    logging_s: float = 0.0
    """CPU time of logging, seconds."""

    def __call__(self, batch: Any) -> None:
        """Use a batch: wait, then log."""
        super().__call__(batch)
        with stage("logging"):
            busy(self.logging_s)
