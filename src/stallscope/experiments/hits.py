"""Counting stacks: what several processes showed, as the rows of a flame."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.flames import PY_SPY, SAMPLES, WINDOW_S, Circumstances, Flame
from stallscope.measure.frames import Frame, collapsed
from stallscope.measure.machine import machine
from stallscope.measure.replay import Bar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stallscope.measure.pyspy import How, Seen, Spy
    from stallscope.measure.sampler import InProcess
    from stallscope.measure.workers import Process


class Hits:
    """How often each stack was seen, in which process and which window.

    Args:
        rate_hz: samples a second of each process.
    """

    def __init__(self, rate_hz: float) -> None:
        self._in_window = max(round(rate_hz * WINDOW_S), 1)
        self._count: Counter[tuple[Any, ...]] = Counter()
        self._windows: dict[int, int] = {}
        self.processes: set[int] = set()
        """Of which something was read, be it that they did nothing."""

    def add(self, by: Spy | InProcess) -> list[str]:
        """Count what was seen.

        Returns:
            Sentences on processes of which there is nothing.
        """
        if by.refused:
            return []
        said = list(by.notes)
        for seen in by.read():
            if seen.why_not:
                who = "the process" if seen.worker is None else f"worker {seen.worker}"
                said.append(f"{who} (pid {seen.pid}) was not sampled: {seen.why_not}")
            else:
                self.processes.add(seen.pid)
                self._add(seen)
        return said

    def _add(self, seen: Seen) -> None:
        known: dict[tuple[Frame, ...], tuple[str | None, str] | None] = {}
        first = last = self._windows.get(seen.pid, 0)
        for thread in seen.threads:
            for place, stack in enumerate(_readable(thread, known)):
                window = first + place // self._in_window
                self._count[(seen.worker, seen.pid, window, *stack)] += 1
                last = max(last, window + 1)
        self._windows[seen.pid] = last

    def flame(self, circumstances: Circumstances, notes: Sequence[str]) -> Flame:
        """What is known by now."""
        rows = [(*key, hits) for key, hits in self._count.items()]
        samples = pl.DataFrame(rows, SAMPLES, orient="row")
        said = list(notes)
        if not rows:
            said.append(
                "no stack was seen: the workers waited all the time (idle=True shows where), or "
                "had no time to be seen"
            )
        return Flame(samples, circumstances, tuple(dict.fromkeys(said)))


def _readable(
    thread: list[list[Frame]], known: dict[tuple[Frame, ...], tuple[str | None, str] | None]
) -> Iterator[tuple[str | None, str]]:
    """Stage and collapsed form of each stack that is of interest."""
    for stack in thread:
        key = tuple(stack)
        if key not in known:
            known[key] = collapsed(stack)
        found = known[key]
        if found is not None:
            yield found


def circumstances_of(name: str, how: How, processes: Sequence[Process]) -> Circumstances:
    """What a flame says of itself.

    Args:
        name: what the user pointed at.
        how: how to sample.
        processes: the ones that are sampled; empty where that is not known yet.
    """
    return Circumstances(
        name=name,
        how=PY_SPY,
        rate_hz=how.rate_hz,
        seconds=how.seconds if processes else 0.0,
        native=how.native,
        idle=how.idle,
        gil=how.gil,
        num_workers=sum(number is not None for number, _ in processes),
        machine=machine(),
    )


class _Passing(Bar):
    """A bar over the seconds."""

    def move(self) -> None:
        """Show how many have passed."""
        passed = min(int(self.format_dict["elapsed"]), int(self.total))
        if passed > self.n:
            self.update(passed - self.n)


def passing(name: str, seconds: float) -> _Passing:
    """A bar over so many seconds."""
    title = f"flame of {name}"
    return _Passing(total=math.ceil(seconds), desc=title, unit="s", leave=False, delay=0.5)
