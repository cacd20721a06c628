"""The recipe of a loop, and the duration of that loop, by arithmetic instead of measurement.

A planted loader is made from two recipes that differ in nothing but the cause. Times of computing
are CPU seconds and those of waiting are waited, so a recipe costs the same on every machine; how
much of it makes a loop starve depends on the cores, and is worked out where a cause is planted.

That takes a loader in virtual time: each worker makes every so manyth batch, so many are asked for
ahead, and the loop takes them in order. Tests use it, too, to see that a loop is healthy again
without its cause, whatever the machine does meanwhile. What is only known by measuring (sending,
decoding, threads) is no part of it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


Sending = Literal["tensor", "list", "arrays"]


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
    start_method: str | None = None
    """Start method of the workers; None: forked on Linux."""

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
    decode_s: float = 0.0
    """CPU time that decoding it takes here, as measured."""
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

    def batch_wait_s(self, batch: int, worker: int) -> float:
        """Return a worker's waiting for a batch's samples, without locks and shared storage."""
        each_s = self.read_s * self.factor(batch)
        each_s += self.slow_worker_s if worker == 0 and self.workers else 0.0
        return self.batch * each_s + self._slow_s(batch, computes=False)

    def batch_cpu_s(self, batch: int) -> float:
        """Return the CPU time of making a batch, without locks and without measured parts."""
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
        """Return a batch's waiting for storage, relative to the mean."""
        if not self.spread:
            return 1.0
        drawn = random.Random(f"{self.seed} {batch}").random()
        return math.pow(-math.log(1 - drawn), self.spread) / math.gamma(1 + self.spread)

    def is_slow(self, index: int) -> bool:
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
    """Return the slow samples of a stretch: as many as promised, in random places."""
    draw = random.Random(f"{seed} slow {stretch}")
    places = range(stretch * _STRETCH, (stretch + 1) * _STRETCH)
    # One in each so many: two that follow each other at once would be one slow batch
    starts = range(places.start, places.stop - every + 1, every)
    return frozenset(start + draw.randrange(every) for start in starts)


# --- how long it takes, in virtual time -----------------------------------------------------------


STEPS: Final = 400
"""Batches that are computed; enough for the variation between batches."""
MEAN_BYTES: Final = 110_000.0
"""Mean bytes of a photograph of the sample data."""


def slowdown(recipe: Recipe, cores: int, steps: int = STEPS) -> float:
    """Return the duration of a loop, relative to that of its step alone.

    Args:
        recipe: the loop.
        cores: that its processes may use.
        steps: so many are worked out.
    """
    return loop_s(recipe, cores, steps) / recipe.step_s


def loop_s(recipe: Recipe, cores: int, steps: int = STEPS) -> float:
    """Seconds that a step of the loop takes on average, waiting included; args as `slowdown`."""
    clock, first = _Clock(recipe), 2 * recipe.workers  # until there is a steady state
    while len(clock.ends) < first + steps:
        clock.epoch(min(recipe.epoch, first + steps - len(clock.ends)))
    began = clock.ends[first - 1] if first else 0.0
    confined_s = _workers_cpu_s(recipe, steps) / (recipe.worker_cores or cores)
    return max((clock.now - began) / steps, confined_s, _cpu_s(recipe, steps) / cores)


def amount(recipe_of: Callable[[float], Recipe], strength: float, cores: int, most: float) -> float:
    """The smallest amount of a cause, up to `most`, that slows its loop down so much.

    Args:
        recipe_of: the recipe with so much of the cause.
        strength: the wanted `slowdown`.
        cores: that its processes may use.
        most: where the search ends.
    """
    low, high = 0.0, most
    for _ in range(16):
        middle = (low + high) / 2
        enough = slowdown(recipe_of(middle), cores) >= strength
        low, high = (low, middle) if enough else (middle, high)
    return high


def _cpu_s(recipe: Recipe, steps: int) -> float:
    """CPU time of all processes for one step."""
    step_s = recipe.step_s if recipe.busy_step else 0.0
    return _workers_cpu_s(recipe, steps) + recipe.logging_s + recipe.sampler_s + step_s


def _workers_cpu_s(recipe: Recipe, steps: int) -> float:
    made_s = sum(map(recipe.batch_cpu_s, range(steps))) / steps
    return made_s + (recipe.batch * recipe.lock_s if recipe.lock_computes else 0.0)


@dataclass
class _Clock:
    """The clocks of the loop, of its workers, and of what they share."""

    recipe: Recipe
    now: float = 0.0
    asked: int = 0
    """Batches of all epochs."""
    alone_until: float = 0.0
    """Time at which the shared resources are free."""
    lanes: dict[int, float] = field(default_factory=dict)
    """Time at which each worker has nothing more to do."""
    ends: list[float] = field(default_factory=list)
    """Time at which each step ends."""

    def epoch(self, batches: int) -> None:
        recipe = self.recipe
        if self.ends and not recipe.persistent:
            self.now += recipe.init_s
        lanes = max(min(recipe.workers, recipe.shards or recipe.workers), 1)
        self.lanes = dict.fromkeys(range(lanes), self.now)
        ready_s: list[float] = []
        for number in range(batches):
            # asked for when the batch that many places before it was taken
            while len(ready_s) < min(batches, number + max(recipe.prefetch * recipe.workers, 1)):
                ready_s.append(self._make(len(ready_s) % lanes))
            self.now = max(self.now + recipe.sampler_s, ready_s[number])
            self.now += recipe.step_s + recipe.logging_s
            self.ends.append(self.now)

    def _make(self, lane: int) -> float:
        recipe, batch = self.recipe, self.asked
        self.asked += 1
        begin = max(self.now, self.lanes[lane])
        shared_s = recipe.batch_alone_s(MEAN_BYTES)
        if shared_s:
            begin = max(begin, self.alone_until) + shared_s
            self.alone_until = begin
        own_s = recipe.batch_wait_s(batch, lane) + recipe.batch_cpu_s(batch)
        unlocked_s = 0.0 if recipe.is_locked else recipe.batch * recipe.lock_s
        self.lanes[lane] = begin + own_s + unlocked_s
        return self.lanes[lane]
