"""What a loop is made of: so much waiting and computing for each sample, batch and step.

A planted loader is made from two recipes that differ in nothing but the cause. Times of computing
are CPU seconds and those of waiting are waited, so a recipe costs the same on every machine; how
much of it makes a loop starve depends on the cores, and is worked out where a cause is planted.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Sending = Literal["tensor", "list", "arrays"]


@dataclass(frozen=True)
class Op:
    """A transform that computes."""

    name: str
    """Of its class, see `ops.OPS`."""
    cpu_s: float
    """CPU time for each sample, seconds."""


@dataclass(frozen=True)
class SlowSamples:
    """Some samples take longer than the others."""

    every: int
    """One of so many on average, in no rhythm."""
    extra_s: float
    """How much longer, seconds."""
    computes: bool
    """Whether they compute so long; else they wait."""


@dataclass(frozen=True)
class Recipe:
    """A training loop and its loader; all times in seconds."""

    step_s: float
    """The step: a timer, for each batch."""
    batch: int
    """Samples in a batch."""
    workers: int
    """Worker processes; 0: the main process loads."""
    seed: int = 0
    """Of what varies between samples."""

    # --- how the loader is set
    prefetch: int = 2
    """Batches that each worker makes ahead."""
    epoch: int = 2_000
    """Batches in an epoch."""
    persistent: bool = False
    """Whether workers live on after an epoch."""
    start_method: str | None = None
    """How workers are started; None: forked on Linux."""

    # --- a sample
    read_s: float = 0.0
    """Waiting for storage."""
    parse_s: float = 0.0
    """CPU time in reading."""
    reads_files: bool = False
    """Whether a photograph of the sample data is read, really."""
    bytes_per_s: float | None = None
    """What the storage gives to all workers together; None: as much as it does."""
    decodes: bool = False
    """Whether that photograph is decoded; otherwise it was decoded beforehand."""
    decode_s: float = 0.0
    """CPU time that decoding it takes here, as measured."""
    ops: tuple[Op, ...] = ()
    """Its transforms, in order."""
    lock_s: float = 0.0
    """Time in a transform that only one worker at a time may be in, behind a lock."""
    lock_computes: bool = True
    """Whether it computes there; else it waits."""
    is_locked: bool = True
    """Whether there is that lock."""
    slow: SlowSamples | None = None
    """Single slow samples."""
    spread: float = 0.0
    """How different the batches are in their waiting for storage, whose mean stays: the inverse of
    the shape of a Weibull distribution. 0: not at all; 1: as exponential times are."""
    values: int = 192
    """float32 numbers in a sample."""
    regions: int = 0
    """Parallel regions of torch for each sample, in a library's own threads."""

    # --- a batch, a worker, the loop
    collate_s: float = 0.0
    """CPU time of making a batch out of samples."""
    sending: Sending = "tensor"
    """What a batch is: one tensor, a list of tensors, or numpy arrays that are pickled."""
    threads: int = 1
    """Threads of torch in each worker."""
    slow_worker_s: float = 0.0
    """Waiting of the first worker, for each sample, on top."""
    init_s: float = 0.0
    """Waiting when a worker starts."""
    sampler_s: float = 0.0
    """CPU time of the main process for each batch, in drawing its indices."""
    logging_s: float = 0.0
    """CPU time of the main process for each batch, in a part of the step named "logging"."""
    busy_step: bool = False
    """Whether the step computes for `step_s`, on a CPU; else it is simulated by a timer."""

    def batch_wait_s(self, batch: int, worker: int) -> float:
        """How long a worker waits for a batch's samples; locks and shared storage apart."""
        each_s = self.read_s * self.factor(batch)
        each_s += self.slow_worker_s if worker == 0 and self.workers else 0.0
        return self.batch * each_s + self._slow_s(batch, computes=False)

    def batch_cpu_s(self, batch: int) -> float:
        """CPU time of making a batch; what a lock covers, and what is measured only, apart."""
        each_s = self.parse_s + sum(op.cpu_s for op in self.ops)
        each_s += self.decode_s if self.decodes else 0.0
        return self.batch * each_s + self.collate_s + self._slow_s(batch, computes=True)

    def batch_alone_s(self, mean_bytes: float) -> float:
        """Time of a batch in which only one worker at a time can be, seconds.

        Args:
            mean_bytes: of a file that is read.
        """
        locked_s = self.lock_s if self.is_locked else 0.0
        shared_s = mean_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return self.batch * (locked_s + shared_s)

    def factor(self, batch: int) -> float:
        """How much longer than usual a batch waits for storage; the mean of all is 1."""
        if not self.spread:
            return 1.0
        drawn = random.Random(f"{self.seed} {batch}").random()  # noqa: S311 - no secret
        return math.pow(-math.log(1 - drawn), self.spread) / math.gamma(1 + self.spread)

    def is_slow(self, index: int) -> bool:
        """Whether a sample is one of the slow ones."""
        return self.slow is not None and index in _slow_of(
            self.seed, index // _STRETCH, self.slow.every
        )

    def _slow_s(self, batch: int, *, computes: bool) -> float:
        if self.slow is None or self.slow.computes != computes:
            return 0.0
        indices = range(batch * self.batch, (batch + 1) * self.batch)
        return self.slow.extra_s * sum(map(self.is_slow, indices))


_STRETCH = 1_000


@lru_cache(maxsize=64)
def _slow_of(seed: int, stretch: int, every: int) -> frozenset[int]:
    """The slow samples of a stretch: as many as promised, in places that nobody can foresee."""
    draw = random.Random(f"{seed} slow {stretch}")  # noqa: S311 - no secret
    places = range(stretch * _STRETCH, (stretch + 1) * _STRETCH)
    # One in each so many: two that follow each other at once would be one slow batch
    starts = range(places.start, places.stop - every + 1, every)
    return frozenset(start + draw.randrange(every) for start in starts)
