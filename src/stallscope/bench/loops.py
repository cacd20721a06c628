"""Loops measured in turns: one loop runs while the workers of the others are stopped.

Each variant keeps its own workers. A block is a slice of a variant's steady state. Between its
blocks, SIGSTOP stops the workers, and SIGCONT resumes them in the middle of a sample: nothing is
drained, warmed up or started again, and the running variant has the machine for itself. Blocks of a
sweep over all variants are neighbours in time, so their ratios are pairs; sweeps alternate in
direction. After some sweeps all variants start again, because two starts of a loader differ.

Only workers that were started here are stopped. They die with this process, and are resumed before
they end. Loaders that cannot be stopped (a class of the user's, another system) or that cannot
exist twice start again for each block, one after the other.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import psutil

from stallscope.bench.comparison import AS_IT_IS, BLOCKS, LoopBlock
from stallscope.errors import NoBatchError
from stallscope.hooks.loader_access import ask_to_end
from stallscope.loops.batch_timeout import status_of, waits_at_most
from stallscope.loops.cached_loaders import is_plain
from stallscope.loops.cached_values import samples_in
from stallscope.loops.training_loop import TimedPass, device_busy, started
from stallscope.machine import CpuUse, memory_available_bytes, shared_memory_free
from stallscope.targets.loaders import copied
from stallscope.units import count as count_of
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from stallscope.bench.measurement import Measurement
    from stallscope.loops.training_loop import TimedLoop


ROUNDS: Final = 2
"""Rounds of the workers in a block. With a single round, the point in a batch at which the workers
stopped changes a block by a third."""
BLOCK_S: Final = 0.2
"""Least seconds of a block: shorter blocks show the scheduler."""
FEWEST_SWEEPS: Final = 2
"""Least sweeps of one start."""
_SWEEPS: Final = 3
"""Sweeps of one start. Set by hand, for blocks that differ by twice as much as starts do, and for
workers that take as long to start as three blocks."""
_FINER: Final = 2.0
"""Limit for narrowing intervals after the answer, as a multiple of its seconds."""
_ROOM_SHARE: Final = 0.5
"""Largest share of the free memory for another start of workers."""
_USUAL_START_S: Final = 5.0
_TIMES_START: Final = 4
"""Longest wait for a variant's first batch after `_USUAL_START_S`, in starts of the baseline. After
that, its workers seem to wait for a lock of stopped workers."""
_WORKER_DIED: Final = "DataLoader worker"
"""Start of torch's error for a killed worker."""
_PR_SET_PDEATHSIG: Final = 1


class InTurns:
    """Loops measured in turns.

    `replaced` is called when a loop fails, with the variant, the exception and whether the loader
    raised it. It returns new loops, or reasons for their absence, by variant; by default,
    exceptions of the loop as it is pass. With `watches_device`, the busy share of the device is
    measured once per variant.
    """

    def __init__(
        self,
        measurement: Measurement,
        names: Mapping[int, str] | None = None,
        replaced: Callable[[int, Exception, bool], Mapping[int, TimedLoop | str]] | None = None,
        *,
        watches_device: bool = False,
    ) -> None:
        self._measurement, self._names = measurement, names or {}
        self._replaced = replaced or _reason
        self._watches_device = watches_device
        self._loops: dict[int, TimedLoop] = {}
        self._together = True
        self._took_s: dict[int, float] = {}
        self._start = 0
        self._answered_s = 0.0
        self._end_s = 0.0
        self.blocks: list[LoopBlock] = []
        self.failed: dict[int, str] = {}
        """Reason for each variant that is excluded from now on."""
        self.starts_s: dict[int, list[float]] = {}
        """Seconds until the first batch, of each start of a variant."""
        self.busy: dict[int, float] = {}
        """Busy share of the device, by variant."""
        self.reported: dict[int, float] = {}
        """The same by the device's driver."""

    def add(self, variant: int, loop: TimedLoop) -> None:
        """Add or replace the loop of a variant."""
        self._loops[variant] = loop
        self._together = self._together and _can_stop(loop)

    def has_time_for(self, variants: Iterable[int]) -> bool:
        """Return whether one start of these variants with enough sweeps fits into the budget."""
        start_s = self._start_s(AS_IT_IS)
        needs_s = sum(
            self._start_s(variant) + FEWEST_SWEEPS * self._took_s.get(variant, start_s)
            for variant in variants
            if self._loops[variant].workers
        )
        return needs_s < self._measurement.left_s

    def _start_s(self, variant: int) -> float:
        return max(self.starts_s.get(variant) or self.starts_s.get(AS_IT_IS) or [0.0])

    def try_out(self, variant: int) -> None:
        """Start a variant once and use its first batches: a test that also times the start."""
        self._measurement.now(self._names.get(variant, ""))
        running = _Running(self._loops[variant])
        try:
            running.start(self._measurement)
        finally:
            running.end()
        self.starts_s.setdefault(variant, []).append(running.lap.start_s)

    def run(
        self,
        wanted: Callable[[], Sequence[int]],
        finer: Callable[[], Sequence[int]] = lambda: (),
    ) -> None:
        """Measure until no variant is wanted, or the budget is used.

        `wanted`, called after each sweep, returns the variants to measure further for the answer,
        the decisive first. `finer` returns those with wide intervals; it is called after the
        answer, until `_FINER` times its seconds. The loop as it is takes part in every sweep.
        """

        def asked() -> list[int]:
            open_ = self._open(wanted())
            used_s = self._measurement.used_s
            if open_:
                self._answered_s = used_s
            elif used_s < _FINER * self._answered_s:
                open_ = self._open(finer())
            return open_

        while (variants := asked()) and self._measurement.left_s > 0:
            before = len(self.blocks)
            running: dict[int, _Running] = {}
            try:
                self._sweep_over(variants, asked, running)
            finally:
                began_s, ended = time.perf_counter(), len(running)
                _end_all(running)
                self._end_s = (time.perf_counter() - began_s) / max(ended, 1)
            self._start += 1
            if len(self.blocks) == before:
                return

    def _open(self, wanted: Sequence[int]) -> list[int]:
        open_ = [each for each in wanted if each not in self.failed and each in self._loops]
        if not open_ or AS_IT_IS in self.failed:
            return []
        return list(dict.fromkeys([AS_IT_IS, *open_]))

    def _sweep_over(
        self,
        variants: list[int],
        asked: Callable[[], list[int]],
        running: dict[int, _Running],
    ) -> None:
        """Sweep over the variants of one start, and collect them in `running`."""
        for sweep in count():
            for variant in reversed(variants) if sweep % 2 else variants:
                if variant in self.failed:
                    continue
                if not self._fits(variant, running):
                    return
                self._measure(variant, sweep, running)
            variants = asked()
            if not self._together or not variants or sweep + 1 >= _SWEEPS:
                return

    def _fits(self, variant: int, running: Mapping[int, _Running]) -> bool:
        loop = self._loops[variant]
        needs_s = self._took_s.get(variant, 0.0)
        ends = sum(bool(start.workers) for start in running.values())
        if variant not in running and loop.workers:
            needs_s += self._start_s(variant)
            ends += 1
        return needs_s + ends * self._end_s < self._measurement.left_s or not self.blocks

    def _measure(self, variant: int, sweep: int, running: dict[int, _Running]) -> None:
        """Measure a block of a variant, and start the variant if needed."""
        self._measurement.now(self._names.get(variant, ""))
        try:
            start = running.get(variant) or self._started(variant, running)
            began_s = time.perf_counter()
            with self._limited_waits(variant, running):
                block = start.block(self._measurement, (variant, self._start, sweep))
        except NoBatchError as error:
            if self._together and running.keys() - {variant}:
                self._one_by_one("workers wait for stopped ones", running)
                self._measure(variant, sweep, running)
            else:
                self._fail(variant, error, running)
            return
        except Exception as error:  # noqa: BLE001 - `_fail` lets the user's own pass
            self._fail(variant, error, running)
            return
        if block is None:
            self._ended(variant, running.pop(variant))
            return
        if self._watches_device and variant not in self.busy:
            busy = start.busy()
            self.busy |= {} if busy is None else {variant: busy}
        self._took_s[variant] = time.perf_counter() - began_s
        if block.samples:  # a batch may be empty
            self.blocks.append(block)
        if start.reported_share is not None:
            self.reported[variant] = start.reported_share
        if self._together:
            start.stop()
        else:
            running.pop(variant).end()

    def _started(self, variant: int, running: dict[int, _Running]) -> _Running:
        """Start a variant; first end the others where their workers cannot run side by side."""
        others = [each for each in running.values() if each.workers]
        loop = self._loops[variant]
        if others and self._together and loop.workers and self._lacks_room(others):
            self._one_by_one("memory is too small for all workers at once", running)
        start = _Running(loop)
        try:
            with self._limited_waits(variant, running):
                start.start(self._measurement)
        except BaseException as error:
            start.end()
            if not (self._together and others and isinstance(error, Exception)):
                raise
            self._one_by_one("its workers cannot exist twice at the same time", running)
            start = _Running(loop)
            start.start(self._measurement)
        running[variant] = start
        self.starts_s.setdefault(variant, []).append(start.lap.start_s)
        return start

    def _limited_waits(
        self, variant: int, running: Mapping[int, _Running]
    ) -> AbstractContextManager[None]:
        """Limit waits for a batch that stopped workers may hold up.

        They may hold a lock, or have asked this process for a tensor of their indices: its thread
        then answers nobody else.
        """
        most_s = _USUAL_START_S + _TIMES_START * self._start_s(AS_IT_IS)
        may_wait = any(each != variant for each in running) and self._loops[variant].workers
        return waits_at_most(most_s if may_wait else math.inf)

    def _lacks_room(self, others: list[_Running]) -> bool:
        needs = np.max([start.needs for start in others], axis=0)
        return bool((needs > _ROOM_SHARE * _room()).any())

    def _one_by_one(self, why: str, running: dict[int, _Running]) -> None:
        """Start each block separately from now on."""
        self._together = False
        self._measurement.note(f"loaders were started one after the other: {why}")
        _end_all(running)

    def _fail(self, variant: int, error: Exception, running: dict[int, _Running]) -> None:
        """Replace a loop that raised, or store the reason; the user's own exception passes."""
        dead = [number for number, start in running.items() if start.has_died()]
        variant = dead[0] if dead else variant  # torch reports a death to whichever loop waits
        start = running.get(variant)
        changed = self._replaced(variant, error, start is None or start.lap.in_loader)
        error.__traceback__ = None  # frees the batches that it refers to
        for number, loop in changed.items():
            if number in running:
                running.pop(number).end()
            if isinstance(loop, str):
                self.failed[number] = loop
                self._loops.pop(number, None)
            else:
                self.add(number, loop)

    def _ended(self, variant: int, start: _Running) -> None:
        start.end()
        if start.blocks:
            return
        batches = count_of(start.lap.used, "batch")
        if self._measurement.left_s <= 0:
            self.failed[variant] = f"only {batches} in its time limit, too few for a steady state"
        else:
            self.failed[variant] = f"the loader ended after {batches}, before its steady state"

    def table(self) -> pl.DataFrame:
        """Return the blocks, columns of `BLOCKS`."""
        return pl.DataFrame(self.blocks, BLOCKS, orient="row")


def _end_all(running: dict[int, _Running]) -> None:
    """End the workers of all variants, even if ending one of them raises."""
    with ExitStack() as ends:
        for start in running.values():
            ends.callback(start.end)
        for start in running.values():  # a stopped worker may hold the lock of its queue
            start.go_on()
        for start in running.values():  # else later ones go on making batches meanwhile
            ask_to_end(start.lap.source)
        running.clear()


class _Running:
    """Start of a loop with workers that can be stopped."""

    def __init__(self, loop: TimedLoop) -> None:
        if loop.workers and _can_stop(loop):
            usual: Any = loop.batches
            dies = DiesWithParent(usual.worker_init_fn)
            loop = replace(loop, batches=copied(usual, worker_init_fn=dies))
        self._loop = loop
        self._ends = ExitStack()
        self._processes: list[Any] = []
        self._is_stopped = False
        self._stale = 0
        self.lap: TimedPass
        """Its batches, once it has started."""
        self.reported_share: float | None = None
        """Utilisation that the device's driver reports."""
        self.workers = loop.workers
        self.blocks = 0
        self.needs = np.zeros(2)
        """Bytes of memory and of shared memory that the start took."""

    def start(self, measurement: Measurement) -> None:
        """Start workers, and use the batches before the steady state."""
        loop, room = self._loop, _room()
        before = set(multiprocessing.active_children())
        self.lap = self._ends.enter_context(started(loop))
        self._processes = [
            child
            for child in multiprocessing.active_children()
            if child not in before and child.daemon
        ]
        until_ns = measurement.until_ns()
        for number, batch in enumerate(self.lap, 1):
            loop.use(batch)
            if number >= loop.warmup or time.perf_counter_ns() > until_ns:
                break
        self.needs = room - _room()

    def block(self, measurement: Measurement, place: tuple[int, int, int]) -> LoopBlock | None:
        """Time some batches of a variant, start and sweep; None: it ends within the first round."""
        self.go_on()
        loop = self._loop
        for batch in islice(self.lap, self._stale):
            loop.use(batch)
        until_ns = measurement.until_ns()
        clock, samples, round_ = loop.device.clock(), 0, loop.block
        use, cpu_s = CpuUse.now(), self._cpu_s()
        began_ns, took_ns, steps = time.perf_counter_ns(), 0, 0
        clock.begin()
        for steps, batch in enumerate(self.lap, 1):
            samples += samples_in(batch, loop.batch_size)
            batch = loop.device.move(batch)  # noqa: PLW2901 - the same batch
            clock.step_begins()
            if loop.step is not None:
                loop.step(batch)
            clock.step_ends()
            took_ns = time.perf_counter_ns() - began_ns
            whole = steps % round_ == 0
            long_enough = took_ns >= BLOCK_S * 1e9 and steps >= ROUNDS * round_
            if (whole and long_enough) or began_ns + took_ns > until_ns:
                break
        self.reported_share = loop.device.reported_share()
        times = clock.read()
        if steps < round_:
            return None
        self.blocks += 1
        workers_s = self._cpu_s() - cpu_s
        here_s, others = use.since(workers_s)
        step_s = sum(step for _, step in times) if loop.step is not None else None
        length_s = sum(whole for whole, _ in times)
        return LoopBlock(*place, length_s, step_s, samples, here_s + workers_s, others)

    def _cpu_s(self) -> float:
        used_s = 0.0
        for process in self._processes:
            with suppress(psutil.Error, OSError):
                mine = psutil.Process(process.pid).cpu_times()
                used_s += mine.user + mine.system
        return used_s

    def busy(self) -> float | None:
        """Return the busy share of the device over a few steps; None where unknown."""
        return device_busy(self._loop, self.lap)

    def stop(self) -> None:
        """Stop the workers where they are.

        A wait for a timer, a disk or a network goes on meanwhile, and is over at once when the
        worker resumes. The first batches after such a wait are not timed.
        """
        asleep = {*map(status_of, self._processes)} - {psutil.STATUS_RUNNING, "gone"}
        self._stale = self._loop.workers if asleep else 0
        self._is_stopped = True
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the workers."""
        if self._is_stopped:
            self._signal(signal.SIGCONT)
            self._is_stopped = False

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError, ValueError, AssertionError):
                if process.is_alive():  # else another process may have its number
                    os.kill(process.pid, number)

    def has_died(self) -> bool:
        """Return whether a worker has ended."""
        return any(not process.is_alive() for process in self._processes)

    def end(self) -> None:
        """End the workers; a second call has no effect."""
        self.go_on()
        try:
            self._ends.close()
        except RuntimeError as error:  # torch reports any worker that was killed
            if _WORKER_DIED not in str(error):
                raise


def _room() -> Any:
    return np.array([memory_available_bytes(), shared_memory_free()])


class DiesWithParent:
    """`worker_init_fn` that lets the worker die with this process, and calls the user's function.

    A stopped worker would not notice the end of this process.
    """

    def __init__(self, usual: Callable[[int], object] | None) -> None:
        self._usual = usual

    def __call__(self, worker: int) -> None:
        """Set the signal in the worker, see prctl(2)."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if self._usual is not None:
            self._usual(worker)


def _can_stop(loop: TimedLoop) -> bool:
    """Return whether the workers of a loop are ours to stop, and end with this process."""
    return not loop.workers or (is_plain(loop.batches) and sys.platform == "linux")


def _reason(variant: int, error: Exception, _: bool) -> dict[int, TimedLoop | str]:  # noqa: FBT001 - a callback
    if variant == AS_IT_IS:
        raise error  # the user's own loader, with the user's own error
    return {variant: why_raised(error)}


def why_raised(error: Exception) -> str:
    """Return the text of a loader's exception; torch puts a worker's at the end of a traceback."""
    lines = str(error).strip().splitlines()[-1:] if "Traceback" in str(error) else []
    message = lines[0] if lines else f"{type(error).__name__}: {said_by(error)}"
    return f"in its loader: {message:.160}"
