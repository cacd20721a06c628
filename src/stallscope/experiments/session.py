"""Sampling a loader's stacks, in its steady state, while it goes on.

A loader that ends before the time asked for is over begins again. Where py-spy may not attach, the
workers sample themselves.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import TargetError
from stallscope.experiments.hits import Hits, circumstances_of, passing
from stallscope.flames import IN_PROCESS, PY_SPY
from stallscope.measure.laps import started
from stallscope.measure.pyspy import Spy
from stallscope.measure.sampler import InProcess
from stallscope.probe.stageframe import under
from stallscope.stages import STEP
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.flames import Flame
    from stallscope.measure.laps import Loop
    from stallscope.measure.pyspy import How
    from stallscope.measure.workers import Process
    from stallscope.probe.install import Probe

_ENOUGH: Final = 0.98
"""Of the time asked for."""
_PATIENCE_S: Final = 10.0
"""So much longer than asked for a loader that ends again and again may take."""


class Session:
    """One recording of a loader, over as many starts of it as that takes.

    Args:
        loop: what goes on meanwhile.
        name: what the user called it.
        how: how to sample.
        notes: sentences that the result is to carry.
    """

    def __init__(self, loop: Loop, name: str, how: How, notes: list[str]) -> None:
        self._loop = loop
        self._how = how
        self._notes = notes
        self._hits = Hits(how.rate_hz)
        self._circumstances = circumstances_of(name, how, [])
        self._use = _with_stage(loop)
        self._sampled_s = 0.0
        self._refused = False
        self._used = 0

    def run(self, probe: Probe, folder: Path) -> None:
        """Sample until the time asked for is full; a loader that ends before begins again."""
        began, starts, warmup = time.monotonic(), 0, self._loop.warmup
        with closing(passing(self._circumstances.name, self._how.seconds)) as bar:
            while self._left_s > self._how.seconds * (1 - _ENOUGH):
                starts += 1
                before = self._used
                with started(self._loop) as batches:
                    if self._warm_up(batches, warmup):
                        self._sample(batches, probe, folder, bar)
                    elif warmup:
                        warmup = 0
                        self._notes.append(
                            "the loader is too short for a steady state: its start is in it"
                        )
                if self._used == before:
                    break
                if time.monotonic() > began + 2 * self._how.seconds + _PATIENCE_S:
                    break
        self._say_how_it_went(starts)

    @property
    def _left_s(self) -> float:
        return self._how.seconds - self._sampled_s

    def _warm_up(self, batches: Iterator[Any], number: int) -> bool:
        """Use batches that are not sampled; whether there may be more."""
        return all(self._step(batches) for _ in range(number))

    def _step(self, batches: Iterator[Any]) -> bool:
        """One step; false where there is no batch any more."""
        for batch in batches:
            self._use(batch)
            self._used += 1
            return True
        return False

    def _sample(self, batches: Iterator[Any], probe: Probe, folder: Path, bar: Any) -> None:
        """Sample for the time that is left, or until the batches end."""
        processes: list[Process] = [*probe.workers()] or [(None, os.getpid())]
        how = replace(self._how, seconds=self._left_s)
        if not self._refused:
            spy = Spy(processes, how, folder)
            self._watch(spy, batches, bar)
            if not spy.refused:
                return
            self._fall_back(spy)
        self._watch(InProcess(processes, how, folder), batches, bar)

    def _watch(self, by: Spy | InProcess, batches: Iterator[Any], bar: Any) -> None:
        with ExitStack() as stack:
            stack.enter_context(by)
            stack.callback(self._keep, by)
            stack.callback(by.stop)  # also after an error: what was seen is not lost
            while not by.is_over and self._step(batches):
                bar.move()

    def _keep(self, by: Spy | InProcess) -> None:
        self._notes += self._hits.add(by)
        self._sampled_s += by.seconds
        self._circumstances = replace(
            self._circumstances,
            how=by.name,
            seconds=self._sampled_s,
            num_workers=sum(seen.worker is not None for seen in by.seen),
        )

    def _fall_back(self, spy: Spy) -> None:
        self._refused = True
        self._notes.append(
            f"sampled by the {IN_PROCESS}, not by {PY_SPY} ({spy.refused}): {spy.remedy}"
        )
        self._notes.append(
            f"the {IN_PROCESS} sees a thread where it lets go of Python's lock: compiled code that "
            "keeps the lock shows at the line after it"
        )
        left_out = [name for name in ("native", "gil") if getattr(self._how, name)]
        if left_out:
            self._notes.append(f"the {IN_PROCESS} has no {' and no '.join(left_out)}")
        self._how = replace(self._how, native=False, gil=False)
        self._circumstances = replace(self._circumstances, native=False, gil=False)

    def _say_how_it_went(self, starts: int) -> None:
        if not self._used:
            raise TargetError(
                f"{self._circumstances.name} gave no batch: there is nothing to sample"
            )
        if self._sampled_s < self._how.seconds * _ENOUGH:
            self._notes.append(
                f"{seconds(self._sampled_s)} were sampled, not {seconds(self._how.seconds)}: "
                f"the loader gave {count(self._used, 'batch', 'es')}"
            )
        if starts > 1:
            self._notes.append(f"the loader is short: it was started {starts} times")

    def result(self) -> Flame:
        """What is known by now."""
        notes = list(self._notes)
        if self._hits.processes and not self._circumstances.num_workers:
            notes.append("num_workers=0: the main process was sampled, the step is in it")
        return self._hits.flame(self._circumstances, notes)


def _with_stage(loop: Loop) -> Callable[[Any], None]:
    """Uses a batch, under a frame that says that this is the step."""

    def use(batch: Any) -> None:
        if loop.step is not None:
            loop.step(loop.device.move(batch))

    return under(STEP, use)
