"""The recipe of a loop: what a planted loader and its step cost.

A planted loader is made from two recipes that differ in nothing but the cause. Times of computing
are CPU seconds and those of waiting are waited, so a recipe costs the same on every machine; how
much of it makes a loop starve depends on the cores, and is worked out where a cause is planted.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Sending = Literal["tensor", "list", "arrays"]

MEAN_BYTES: Final = 110_000.0
"""Mean bytes of a photograph of the sample data."""


@dataclass(frozen=True)
class Op:
    """A transform that computes."""

    name: str
    """Name of its class in `ops.OPS`."""
    cpu_s: float
    """CPU time for each sample, seconds."""


@dataclass(frozen=True)
class SlowSamples:
    """Some samples take longer than the others."""

    every: int
    """Average distance of two slow samples, without a rhythm."""
    extra_s: float
    """Extra seconds of a slow sample."""
    computes: bool
    """True: they compute; False: they wait."""


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
    """Seed of the variation between samples."""

    # --- how the loader is set
    prefetch: int = 2
    """Batches that each worker makes ahead."""
    epoch: int = 2_000
    """Batches in an epoch."""
    persistent: bool = False
    """True: workers live on after an epoch."""

    # --- a sample
    read_s: float = 0.0
    """Waiting for storage."""
    parse_s: float = 0.0
    """CPU time in reading."""
    reads_files: bool = False
    """True: a photograph of the sample data is really read."""
    bytes_per_s: float | None = None
    """Bytes a second of the storage, for all workers together; None: its own rate."""
    decodes: bool = False
    """True: the photograph is decoded; otherwise it was decoded beforehand."""
    ops: tuple[Op, ...] = ()
    """Transforms, in order."""
    lock_s: float = 0.0
    """Time in a transform that only one worker at a time may be in, behind a lock."""
    lock_computes: bool = True
    """True: the transform computes behind the lock; else it waits."""
    is_locked: bool = True
    """True: the lock exists."""
    slow: SlowSamples | None = None
    """Single slow samples."""
    spread: float = 0.0
    """Variation of the batches' waiting for storage, at the same mean: the inverse of
    the shape of a Weibull distribution. 0: not at all; 1: as exponential times are."""
    values: int = 192
    """float32 numbers in a sample."""
    regions: int = 0
    """Parallel regions of torch for each sample, in a library's own threads."""

    # --- a batch, a worker, the loop
    collate_s: float = 0.0
    """CPU time of making a batch out of samples."""
    sending: Sending = "tensor"
    """Kind of a batch: one tensor, a list of tensors, or numpy arrays that are pickled."""
    threads: int = 1
    """Threads of torch in each worker."""
    shards: int | None = None
    """Shards of a stream: further workers have nothing to do. None: no stream."""
    worker_cores: int | None = None
    """Cores that all workers together may run on; None: all."""
    slow_worker_s: float = 0.0
    """Waiting of the first worker, for each sample, on top."""
    init_s: float = 0.0
    """Waiting when a worker starts."""
    sampler_s: float = 0.0
    """CPU time of the main process for each batch, in drawing its indices."""
    logging_s: float = 0.0
    """CPU time of the main process for each batch, in a part of the step named "logging"."""
    busy_step: bool = False
    """True: the step computes for `step_s`, on a CPU; else it is simulated by a timer."""

    def factor(self, batch: int) -> float:
        """Return a batch's waiting for storage, relative to the mean."""
        if not self.spread:
            return 1.0
        drawn = random.Random(f"{self.seed} {batch}").random()
        return math.pow(-math.log(1 - drawn), self.spread) / math.gamma(1 + self.spread)

    def is_slow(self, index: int) -> bool:
        return self.slow is not None and index in _slow_of(
            self.seed, index // _STRETCH, self.slow.every
        )


_STRETCH = 1_000


@lru_cache(maxsize=64)
def _slow_of(seed: int, stretch: int, every: int) -> frozenset[int]:
    """Return the slow samples of a stretch: as many as promised, in random places."""
    draw = random.Random(f"{seed} slow {stretch}")
    places = range(stretch * _STRETCH, (stretch + 1) * _STRETCH)
    # One in each so many: two that follow each other at once would be one slow batch
    starts = range(places.start, places.stop - every + 1, every)
    return frozenset(start + draw.randrange(every) for start in starts)
