"""`ss.flame`: where in the code the workers' time goes, from stacks of all of them at once.

Samples a loader in its steady state, while a private copy of the loader goes on; or a training that
runs already and is only read. The workers of a training are found by their stacks, in which torch's
worker loop tells their number.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import psutil

from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError, TargetError, UnsupportedError
from stallscope.files import log_capacity, workspace
from stallscope.hooks.loader_access import end
from stallscope.hooks.patches import under
from stallscope.hooks.probe import Probe
from stallscope.hooks.recording_folder import LogPlace
from stallscope.isolation import isolated
from stallscope.loops import cached_loaders
from stallscope.loops.batch_timeout import limited, time_limit
from stallscope.loops.training_loop import TimedLoop, started
from stallscope.machine import machine, require_single_rank
from stallscope.run.stacks import collapsed
from stallscope.stages import STEP
from stallscope.targets import target as targets
from stallscope.targets.loaders import find_loaders
from stallscope.units import count
from stallscope.units import seconds as seconds_text
from stallscope.verbs.flame.pyspy import InProcess, Process, Spy, below
from stallscope.verbs.flame.result import (
    IN_PROCESS,
    PY_SPY,
    SAMPLES,
    WINDOW_S,
    Flame,
    FlameConditions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from stallscope.verbs.flame.pyspy import StackSampler, Thread


_LONGEST_S: Final = 3600.0
_LEAST_S: Final = 10.0
"""Least time limit, seconds, after which a wait for a batch is called a hang."""
_FASTEST_HZ: Final = 1000
_NATIVE_HZ: Final = 29
"""Highest rate with native frames, as each sample then stops the process."""

_ENOUGH: Final = 0.98
"""Share of the requested time that counts as all of it."""
_PATIENCE_S: Final = 10.0
"""Seconds beyond twice the requested time for a loader that ends repeatedly."""


def flame(  # noqa: PLR0913 - the public signature
    target: Any = None,
    step: Callable[[Any], object] | None = None,
    *,
    pid: int | None = None,
    seconds: float = 5.0,
    rate_hz: float = 50,
    native: bool = False,
    idle: bool = False,
    gil: bool = False,
) -> Flame:
    """Sample the stacks of all DataLoader workers with py-spy while the loop runs.

    With a target, iterates a shallow copy of the loader and samples its steady state. Afterwards
    restores all random generators, the samplers and everything that `step` trains, and stops the
    workers. Where py-spy may not attach, the workers sample themselves, and a note names the
    setting that would allow py-spy. An exception of the dataset or the step passes unchanged; its
    attribute `flame` holds the stacks sampled before. With `pid`, the running training is only
    read and not stopped.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`. With `num_workers=0` the
            main process is sampled.
        step: uses one batch; the target's by default.
        pid: instead of a target, the process id of a running training; samples the workers below
            this process, or the process itself if it has none.
        seconds: sampling time.
        rate_hz: samples per second of each process, 1 to 1000.
        native: sample frames of compiled code, too. Each sample then pauses its process, so the
            rate is at most 29 per second.
        idle: sample threads that wait, too.
        gil: sample only threads that hold Python's lock.

    Raises:
        ArgumentError: `seconds`, `rate_hz` or `pid` has no valid value, or neither a target nor a
            `pid` is given.
        TargetError: the target cannot be iterated, or yields no batch.
        UnsupportedError: `pid` has ended, is not Python, or may not be read; the loader keeps a
            generator in the middle of an epoch; this process is one of several ranks.
        WorkspaceError: the logs do not fit on the disk.
        NoBatchError: no batch arrived within `seconds` (at least 10) and a grace period.
    """
    longest = f"a number above 0, at most {_LONGEST_S:g}"
    _check("seconds", seconds, longest, lambda value: 0 < value <= _LONGEST_S)
    fastest = f"a number from 1 to {_FASTEST_HZ}"
    _check("rate_hz", rate_hz, fastest, lambda value: 1 <= value <= _FASTEST_HZ)
    conditions = FlameConditions(
        machine=machine(),
        rate_hz=min(float(rate_hz), _NATIVE_HZ) if native else float(rate_hz),
        seconds=float(seconds),
        native=bool(native),
        idle=bool(idle),
        gil=bool(gil),
    )
    if pid is not None:
        if target is not None or step is not None:
            raise ArgumentError("pid= cannot be combined with a target or a step")
        _check("pid", pid, "the number of a process", lambda n: isinstance(n, int) and n > 0)
        return _of_process(pid, replace(conditions, name=f"pid {pid}"))
    if target is None:
        raise ArgumentError("what to sample? Give a loader, or pid= of a running training")
    require_single_rank()
    return _of_target(targets.target(target, step=step), conditions)


def loop_flame(target: targets.Target, seconds: float) -> Flame:
    """Sample the main process, not its workers: the step and the code around it.

    Stacks begin inside the loop, without its callers. Otherwise like `flame`.
    """
    conditions = FlameConditions(machine=machine(), seconds=seconds)
    return _of_target(target, conditions, of_loop=True)


def _check(name: str, value: Any, wanted: str, fits: Callable[[Any], bool]) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not fits(value):
        raise ArgumentError(f"{name}={value!r}: give {wanted}")


def _measurement(conditions: FlameConditions) -> Measurement:
    measurement = Measurement("flame", conditions.seconds)
    if conditions.native:
        measurement.note(
            f"native frames: taking a stack paused its process ({conditions.rate_hz:g} per "
            "second), which slows the process down"
        )
    return measurement.of(conditions.name)


# ---- sampling ------------------------------------------------------------------------------------


class StackCounts:
    """Hits of each stack, by process and window; `of_loop`: of the main process alone."""

    def __init__(self, rate_hz: float, *, of_loop: bool = False) -> None:
        self.of_loop = of_loop
        self._in_window = max(round(rate_hz * WINDOW_S), 1)
        self._hits: Counter[tuple[Any, ...]] = Counter()
        self._windows: dict[int, int] = {}
        self.processes: set[int] = set()
        """Sampled processes, including those that only waited."""

    def add(self, sampler: StackSampler) -> list[str]:
        """Count a sampler's stacks; return notes on processes without stacks."""
        if sampler.refused:
            return []
        notes = []
        for worker, pid in sampler.processes:
            threads = sampler.read(pid)
            if why_not := sampler.why_not.get(pid):
                who = "the process" if worker is None else f"worker {worker}"
                notes.append(f"{who} (pid {pid}) was not sampled: {why_not}")
            else:
                self.processes.add(pid)
                self._add(worker, pid, threads)
        return [*sampler.notes, *notes]

    def _add(self, worker: int | None, pid: int, threads: list[Thread]) -> None:
        readable = cache(partial(collapsed, of_loop=self.of_loop))
        first = last = self._windows.get(pid, 0)
        for thread in threads:
            texts = filter(None, (readable(tuple(stack)) for stack in thread))
            for place, stack in enumerate(texts):
                window = first + place // self._in_window
                self._hits[(worker, pid, window, *stack)] += 1
                last = max(last, window + 1)
        self._windows[pid] = last

    def flame(self, conditions: FlameConditions, notes: Iterable[str]) -> Flame:
        """Return the stacks counted so far."""
        rows = [(*key, hits) for key, hits in self._hits.items()]
        notes = list(notes)
        if not rows:
            notes.append(
                "no stack was sampled: the workers were always waiting (idle=True shows where), or "
                "the sampling time was too short"
            )
        samples = pl.DataFrame(rows, SAMPLES, orient="row")
        return Flame(samples, conditions, tuple(dict.fromkeys(notes)))


class SamplingLoop:
    """One recording of a loader, which restarts until the requested time is sampled."""

    def __init__(
        self,
        loop: TimedLoop,
        conditions: FlameConditions,
        measurement: Measurement,
        hits: StackCounts,
        workers: Callable[[], list[Process]],
    ) -> None:
        def use(batch: Any) -> None:  # its frame marks the step
            loop.use(batch)

        self._loop, self._measurement, self._hits = loop, measurement, hits
        self._workers = workers
        self._wanted_s = conditions.seconds
        self._conditions = replace(conditions, seconds=0.0)
        self._use = under(STEP, use)
        self._refused = False
        self._batches = 0

    @property
    def _left_s(self) -> float:
        return self._wanted_s - self._conditions.seconds

    def run(self, folder: Path) -> None:
        """Sample for the requested time; a loader that ends earlier is restarted."""
        began, starts, warmup = time.monotonic(), 0, self._loop.warmup
        while self._left_s > self._wanted_s * (1 - _ENOUGH):
            starts += 1
            before = self._batches
            with started(self._loop) as batches:
                if self._warm_up(batches, warmup):
                    self._sample(batches, folder)
                elif warmup:
                    warmup = 0
                    self._measurement.note(
                        "the loader is too short for a steady state: the start-up is included"
                    )
            is_late = time.monotonic() > began + 2 * self._wanted_s + _PATIENCE_S
            if self._batches == before or is_late:
                break
        sampled_s, name = self._conditions.seconds, self._conditions.name
        if not self._batches:
            raise TargetError(f"{name} yielded no batch: there is nothing to sample")
        if sampled_s < self._wanted_s * _ENOUGH:
            sampled = f"sampled {seconds_text(sampled_s)} of {seconds_text(self._wanted_s)}"
            yielded = f"the loader yielded {count(self._batches, 'batch')}"
            self._measurement.note(f"{sampled}: {yielded}")
        if starts > 1:
            self._measurement.note(f"the loader is short: stallscope started it {starts} times")

    def _warm_up(self, batches: Iterator[Any], steps: int) -> bool:
        """Use the first batches, at most for the sampling time; False: they are too few."""
        until_s = math.inf
        for _ in range(steps):
            if not self._step(batches):
                return False
            until_s = min(until_s, time.monotonic() + self._wanted_s)
            if time.monotonic() >= until_s:
                break
        return True

    def _step(self, batches: Iterator[Any]) -> bool:
        """Run one step; False: the batches have ended."""
        for batch in batches:
            self._use(batch)
            self._batches += 1
            return True
        return False

    def _sample(self, batches: Iterator[Any], folder: Path) -> None:
        workers = [] if self._hits.of_loop else self._workers()
        processes = workers or [(None, os.getpid())]
        wanted = replace(self._conditions, seconds=self._left_s)
        if not self._refused:
            spy = Spy(processes, wanted, folder)
            self._watch(spy, batches)
            if not spy.refused:
                return
            self._fall_back(spy)
        self._watch(InProcess(processes, wanted, folder), batches)

    def _watch(self, sampler: Spy | InProcess, batches: Iterator[Any]) -> None:
        with ExitStack() as stack:
            stack.enter_context(sampler)
            stack.callback(self._keep, sampler)
            stack.callback(sampler.stop)  # also after an error, so that the stacks are not lost
            while not sampler.is_over and self._step(batches):
                self._measurement.now("sampling stacks")

    def _keep(self, sampler: StackSampler) -> None:
        for note in self._hits.add(sampler):
            self._measurement.note(note)
        self._conditions = replace(
            self._conditions,
            how=sampler.name,
            seconds=self._conditions.seconds + sampler.seconds,
            num_workers=sum(worker is not None for worker, _ in sampler.processes),
        )

    def _fall_back(self, spy: Spy) -> None:
        self._refused, note = True, self._measurement.note
        note(f"sampled by the {IN_PROCESS}, not by {PY_SPY} ({spy.refused}): {spy.remedy}")
        note(
            f"the {IN_PROCESS} sees a thread when the thread releases the GIL: compiled code that "
            "holds the GIL shows at the next line"
        )
        missing = [name for name in ("native", "gil") if getattr(self._conditions, name)]
        if missing:
            note(f"the {IN_PROCESS} has no {' and no '.join(missing)}")
        self._conditions = replace(self._conditions, native=False, gil=False)

    def result(self, notes: Iterable[str] = ()) -> Flame:
        """Return the stacks sampled so far; adds `notes` to its own."""
        notes = [*self._measurement.notes, *notes]
        no_workers = not self._hits.of_loop and not self._conditions.num_workers
        if self._hits.processes and no_workers:
            notes.append("num_workers=0: the main process was sampled, with the step")
        return self._hits.flame(self._conditions, notes)


# ---- a loader -----------------------------------------------------------------------------------


def _of_target(
    target: targets.Target, conditions: FlameConditions, *, of_loop: bool = False
) -> Flame:
    conditions = replace(conditions, name=target.name)
    measurement = _measurement(conditions)
    with (
        time_limit(max(conditions.seconds, _LEAST_S), remedy="sample for more seconds"),
        isolated(target) as target,  # noqa: PLR1704 - its private form
        workspace() as folder,
        measurement,
    ):
        loader = cached_loaders.going_on(target.loader)
        place = LogPlace(
            folder,
            log_capacity(folder, max(target.num_workers, 1)),
            stands_by=True,
            cost_share=math.inf,  # every sampled stack needs its stage
        )
        loaders, before = find_loaders(loader), set(_children())
        probe = Probe(place, loaders, scoped=True)
        loop = replace(TimedLoop.of(target), batches=_Hooked(loader, probe.begin, probe.inside))
        hits = StackCounts(conditions.rate_hz, of_loop=of_loop)

        def workers() -> list[Process]:
            if loaders:
                return [*probe.workers()]
            return list(enumerate(sorted(set(_children()) - before)))  # of another library's loader

        session = SamplingLoop(loop, conditions, measurement, hits, workers)
        measurement.result = lambda: None if probe.forked else session.result(target.notes)
        with probe:
            session.run(folder)
        return session.result(target.notes)


def _children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


class _Hooked:
    """A loader whose iterators are created by the probe, so that the probe can record them."""

    def __init__(self, loader: Any, begin: Callable[..., Any], inside: Callable[..., Any]) -> None:
        self.loader = loader
        self._begin, self._inside = begin, inside

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._begin(self.loader))

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        batches = limited(iterator)
        try:
            while batch := self._inside(list, islice(batches, 1)):
                yield batch.pop()
        finally:
            # An error that reports where a worker hangs needs the worker alive up to here
            end(iterator)


# ---- a training that runs -----------------------------------------------------------------------


def _of_process(pid: int, conditions: FlameConditions) -> Flame:
    with workspace() as folder, _measurement(conditions) as measurement:
        processes, message = below(pid, folder)
        measurement.note(message)
        workers = sum(number is not None for number, _ in processes)
        conditions = replace(conditions, num_workers=workers)
        hits = StackCounts(conditions.rate_hz)
        measurement.result = lambda: hits.flame(conditions, measurement.notes)
        with Spy(processes, conditions, folder) as spy:
            try:
                while not spy.is_over:
                    time.sleep(0.02)
                    measurement.now("sampling stacks")
            finally:
                spy.stop()
                for note in hits.add(spy):
                    measurement.note(note)
        if spy.refused:
            raise UnsupportedError(f"pid {pid} cannot be sampled: {spy.refused}; {spy.remedy}")
        if not hits.processes:
            raise UnsupportedError(
                f"pid {pid} could not be sampled, its workers have ended "
                f"({spy.why_not[processes[0][1]]}): call again while an epoch is running"
            )
        return hits.flame(conditions, measurement.notes)
