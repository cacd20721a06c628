"""Timing a loop: so many steps in the steady state, each from the end of the one before.

A lap is one start of a loop. Its first batches are used and not timed: workers start, and what they
made beforehand is used up. Where the batches end before a lap does, the loop starts again.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import psutil

from stallscope.hooks.loader_access import end
from stallscope.interrupts import held_back
from stallscope.isolation import in_one_thread
from stallscope.loops.batch_timeout import limited, starting, status_of
from stallscope.loops.devices import device_of
from stallscope.targets.loaders import iterators_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from stallscope.loops.devices import Device
    from stallscope.targets.target import Target


_GRACE_S: Final = 5.0
"""Seconds for a worker to end after the request."""


@dataclass(frozen=True)
class TimedLoop:
    """Batches, and what is done with each."""

    batches: Iterable[Any]
    """Asked for an iterator by each start; it may end."""
    device: Device
    step: Callable[[Any], object] | None = None
    """Uses one batch; None just takes it."""
    batch_size: int | None = None
    """The loader's own; None where it has none."""
    workers: int = 0
    """Worker processes; 0: none, or the batches come from memory."""
    in_one_thread: bool = False
    """True if batches of this process are loaded with one torch thread."""

    @classmethod
    def of(cls, target: Target) -> TimedLoop:
        """Return the loop that trains on a target's batches."""
        return cls(
            target.loader,
            device_of(target),
            target.step,
            target.batch_size,
            target.num_workers,
            in_one_thread=target.loads_here,
        )

    def use(self, batch: Any) -> None:
        """Move a batch where the step wants it, and use it there."""
        moved = self.device.move(batch)
        if self.step is not None:
            self.step(moved)

    @property
    def warmup(self) -> int:
        """Return the batches before the steady state: the first of each worker, and one more."""
        return self.workers + 1

    @property
    def block(self) -> int:
        """Return how many steps are one measurement: workers that began together send together."""
        return max(self.workers, 1)


@dataclass
class TimedPass:
    """Measurements of one start of a loop; filled while it runs."""

    start_s: float = 0.0
    """From asking for the batches to the first of them."""
    used: int = 0
    """Batches, those before the steady state included."""
    reported_share: float | None = None
    """Utilisation that the device's driver reports."""
    in_loader: bool = False
    """True while the loop waits for a batch."""
    source: Any = None
    """The iterator of the loader's own."""


@contextmanager
def started(loop: TimedLoop, lap: TimedPass | None = None) -> Iterator[Iterator[Any]]:
    """Yield the batches of one start; afterwards nothing of it lives."""
    lap, before, began_s = lap or TimedPass(), _children(), time.perf_counter()
    try:
        with iterators_ended(loop.batches):  # the next start would go on with them
            with held_back(), starting(loop.batches):  # an interrupt would leave a worker behind
                source = lap.source = iter(loop.batches)
            batches = limited(source)
            batches = in_one_thread(batches) if loop.in_one_thread else batches
            watched = _each(batches, lap, began_s)
            try:
                yield watched
            finally:
                with held_back():
                    watched.close()
                    batches.close()
                    end(source)
    finally:
        with held_back():
            if _children() - before:
                gc.collect()  # whoever started workers holds them in a cycle, maybe
            mine = _children() - before  # without workers of another loop, which wait for its turn
            _wait_for_end({child for child in mine if status_of(child) != psutil.STATUS_STOPPED})


def _each(source: Iterator[Any], lap: TimedPass, began_s: float) -> Generator[Any, None, None]:
    """Yield the batches of a loop that began then; the lap knows when one is waited for."""
    while True:
        lap.in_loader = True
        try:
            batch = next(source)
        except StopIteration:
            return
        lap.in_loader = False
        lap.start_s = lap.start_s or time.perf_counter() - began_s
        yield batch


def _children() -> set[Any]:
    """Return processes that may be workers of a loader: a pool or a manager is the user's."""
    active = multiprocessing.active_children()
    return {child for child in active if child.daemon and "PoolWorker" not in child.name}


def _wait_for_end(processes: set[Any]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
        if process.is_alive():
            process.kill()
            process.join()


def device_busy(loop: TimedLoop, batches: Iterator[Any]) -> float | None:
    """Return how busy the device is in a few more steps.

    While a profiler starts, nobody takes batches, and they pile up: they are used first.
    """
    if loop.step is None:
        return None
    length = max(2 * loop.block, 4)

    def use() -> None:
        for batch in islice(batches, length):
            loop.use(batch)

    loop.device.kernels(lambda: None)  # the profiler's first start is a long one
    for batch in islice(batches, loop.warmup + loop.block):
        loop.use(batch)
    kernels = loop.device.kernels(use)
    return kernels and kernels.busy_share
