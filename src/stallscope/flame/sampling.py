"""Sampling the stacks of a loader's workers in its steady state, and counting their stacks.

A loader that ends before the time is over starts again.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import TargetError
from stallscope.flame.pyspy import InProcess, Process, Spy
from stallscope.flame.result import IN_PROCESS, PY_SPY, SAMPLES, WINDOW_S, Flame
from stallscope.hooks.patches import under
from stallscope.loops.timed_loop import started
from stallscope.run.stacks import collapsed
from stallscope.stages import STEP
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stallscope.bench.measurement import Measurement
    from stallscope.flame.pyspy import ProcessStacks, StackSampler
    from stallscope.flame.result import FlameConditions
    from stallscope.hooks.probe import Probe
    from stallscope.loops.timed_loop import TimedLoop


_ENOUGH: Final = 0.98
"""Share of the requested time that counts as all of it."""
_PATIENCE_S: Final = 10.0
"""Seconds beyond twice the requested time for a loader that ends repeatedly."""


class StackCounts:
    """Hits of each stack, by process and window; `of_loop`: of the main process alone."""

    def __init__(self, rate_hz: float, *, of_loop: bool = False) -> None:
        self.of_loop = of_loop
        self._readable = partial(collapsed, of_loop=of_loop)
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
        for stacks in sampler.stacks:
            sampler.read(stacks)
            if stacks.why_not:
                who = "the process" if stacks.worker is None else f"worker {stacks.worker}"
                notes.append(f"{who} (pid {stacks.pid}) was not sampled: {stacks.why_not}")
            else:
                self.processes.add(stacks.pid)
                self._add(stacks)
        return [*sampler.notes, *notes]

    def _add(self, stacks: ProcessStacks) -> None:
        readable = cache(self._readable)
        first = last = self._windows.get(stacks.pid, 0)
        for thread in stacks.threads:
            texts = filter(None, (readable(tuple(stack)) for stack in thread))
            for place, stack in enumerate(texts):
                window = first + place // self._in_window
                self._hits[(stacks.worker, stacks.pid, window, *stack)] += 1
                last = max(last, window + 1)
        self._windows[stacks.pid] = last

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
    ) -> None:
        def use(batch: Any) -> None:  # its frame marks the step
            loop.use(batch)

        self._loop, self._measurement, self._hits = loop, measurement, hits
        self._wanted_s = conditions.seconds
        self._conditions = replace(conditions, seconds=0.0)
        self._use = under(STEP, use)
        self._refused = False
        self._batches = 0

    @property
    def _left_s(self) -> float:
        return self._wanted_s - self._conditions.seconds

    def run(self, probe: Probe, folder: Path) -> None:
        """Sample for the requested time; a loader that ends earlier is restarted.

        Raises:
            TargetError: the loader yields no batch.
        """
        began, starts, warmup = time.monotonic(), 0, self._loop.warmup
        while self._left_s > self._wanted_s * (1 - _ENOUGH):
            starts += 1
            before = self._batches
            with started(self._loop) as batches:
                if self._warm_up(batches, warmup):
                    self._sample(batches, probe, folder)
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
            self._measurement.note(
                f"sampled {seconds(sampled_s)} of {seconds(self._wanted_s)}: the loader yielded "
                f"{count(self._batches, 'batch')}"
            )
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

    def _sample(self, batches: Iterator[Any], probe: Probe, folder: Path) -> None:
        """Sample for the remaining time, or until the batches end."""
        workers: list[Process] = [] if self._hits.of_loop else [*probe.workers()]
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
            num_workers=sum(stacks.worker is not None for stacks in sampler.stacks),
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
