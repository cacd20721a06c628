"""Driving a loader: so many batches, no longer than the budget, with a bar that shows life.

The bar reads the workers' logs while they work, so it moves also while the loop waits for the
first batch of a slow loader.
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from numbers import Integral, Real
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from tqdm.auto import tqdm

from stallscope.errors import ArgumentError
from stallscope.eventlog import Header
from stallscope.probe.install import shut_down

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from stallscope.probe.install import LogPlace

_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Limits:
    """When a loop over a loader stops.

    Raises:
        ArgumentError: a number that cannot be a limit.
    """

    batches: int
    """After so many batches."""
    budget_s: float
    """After the batch that comes after this time, seconds; `inf`: never for that."""

    def __post_init__(self) -> None:
        _check_whole("batches", self.batches, 1)
        if not (isinstance(self.budget_s, Real) and self.budget_s > 0):  # false for nan, too
            raise ArgumentError(f"budget_s={self.budget_s!r}: give a number of seconds above 0")

    @classmethod
    def of(cls, batches: int, *, warmup: int, processes: int, budget_s: float) -> Limits:
        """Room for the steady state, and before it for the warm-up and each process's first batch.

        Args:
            batches: in the steady state.
            warmup: batches before that.
            processes: how many load; 0 and 1: one.
            budget_s: as the field.
        """
        _check_whole("batches", batches, 1)
        _check_whole("warmup", warmup, 0)
        return cls(batches + max(warmup, processes, 1), budget_s)

    def deadline_ns(self, began_ns: int) -> float:
        """When the budget of a loop that began then is used up; `inf` where there is none."""
        return began_ns + float(self.budget_s) * 1e9


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name}={value!r}: give a whole number, {least} or more")


@dataclass
class Replay:
    """What the loop saw. Filled while it runs, so that an interrupt loses nothing."""

    began_ns: int = 0
    """`perf_counter_ns()` when the first iterator was asked for."""
    ended_ns: int = 0
    """`perf_counter_ns()` when the last batch had been used."""
    first_batch_ns: int | None = None
    """When the first batch came."""
    epoch_began_ns: list[int] = field(default_factory=list)
    """When each epoch's workers were started; the probe fills it."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and number in the epoch of each batch that was used."""
    epochs: int = 0
    """How many epochs were begun."""
    exhausted: bool = False
    """Whether the loader had no more to give."""
    out_of_time: bool = False
    """Whether the budget ended the loop."""


def private_copy(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A shallow copy that starts its own workers and leaves the user's living ones alone."""
    clone = copy.copy(loader)
    vars(clone)["_iterator"] = None
    return clone


def replay(
    loader: DataLoader[Any],
    step: Callable[[Any], object] | None,
    seen: Replay,
    limits: Limits,
    moving: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Use so many batches, over as many epochs as that takes; the workers are gone afterwards.

    Args:
        loader: a private copy, see `private_copy`.
        step: uses one batch; None just takes it.
        seen: filled while the loop runs.
        limits: when to stop.
        moving: entered while an epoch runs and left before the next one starts its workers.
    """
    seen.began_ns = perf_counter_ns()
    deadline_ns = limits.deadline_ns(seen.began_ns)
    iterator = None
    try:
        while len(seen.steps) < limits.batches and not seen.out_of_time and not seen.exhausted:
            before = len(seen.steps)
            iterator = iter(loader)
            with moving():
                _use(_one_thread(iterator, loader), step, seen, limits.batches, deadline_ns)
            seen.exhausted = len(seen.steps) == before
    finally:
        seen.ended_ns = perf_counter_ns()
        shut_down(iterator)


def _use(
    batches: Iterator[Any],
    step: Callable[[Any], object] | None,
    seen: Replay,
    most: int,
    deadline_ns: float,
) -> None:
    """Use the batches of one epoch, until there are enough or the time is over."""
    epoch = seen.epochs
    seen.epochs += 1
    for number, batch in enumerate(batches):
        seen.first_batch_ns = seen.first_batch_ns or perf_counter_ns()
        if step is not None:
            step(batch)
        seen.steps.append((epoch, number))
        if len(seen.steps) >= most:
            break
        seen.out_of_time = perf_counter_ns() > deadline_ns
        if seen.out_of_time:
            break


def _one_thread(iterator: Iterator[Any], loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches; made in this process, they are made with one torch thread as in a worker."""
    threads, in_process = torch.get_num_threads(), not loader.num_workers
    while True:
        if in_process:
            torch.set_num_threads(1)
        try:
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            if in_process:
                torch.set_num_threads(threads)
        yield batch


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without tqdm's monitor thread, which would live while workers are forked."""

    monitor_interval = 0


_Bar.set_lock(threading.RLock())  # tqdm's own would fix the start method of the user's processes


class Progress:
    """A bar over the batches that also tells how many samples the workers have made.

    Args:
        place: where the workers' logs are.
        seen: what the loop fills.
        batches: how many batches are wanted.
        title: what is measured.
    """

    def __init__(self, place: LogPlace, seen: Replay, *, batches: int, title: str) -> None:
        self._place = place
        self._seen = seen
        self._bar = _Bar(total=batches, desc=title, unit="batch", leave=False, delay=0.5)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Move the bar while the block runs, by a thread: no worker may be forked inside."""
        done = threading.Event()
        thread = threading.Thread(target=self._move, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def _move(self, done: threading.Event) -> None:
        while not done.wait(_LOOK_EVERY_S):
            made = _samples_made(self._place)
            self._bar.set_postfix_str(f"{made:,} samples made", refresh=False)
            self._bar.update(len(self._seen.steps) - self._bar.n)


def _samples_made(place: LogPlace) -> int:
    headers = (np.fromfile(log, dtype=np.int64, count=Header.SAMPLES + 1) for log in place.logs())
    return int(sum(header[-1] for header in headers if header.size))
