"""Variants measured for real: each in the loader's own workers, started in turn with the others.

Sweeps go forth and back, so that a machine that grows slower meanwhile does so for all. All loaders
make the same few batches again and again, without an end, and nobody uses them: what is timed is
the loader alone. Measured are as many as can be started twice in the time that is left.
"""

from __future__ import annotations

import time
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.loops import cached_loaders
from stallscope.loops.timed_loop import Span, TimedLoop, TimedPass, run_timed_pass
from stallscope.machine import CpuUse
from stallscope.orders.loader_parts import key_of
from stallscope.orders.result import LAPS
from stallscope.stalls.thresholds import OTHERS
from stallscope.targets.target import Target
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAP_S: Final = 0.4
"""The steady state of one lap."""
_BATCHES: Final = 8
"""That are made again and again."""
_MOST_SWEEPS: Final = 10
_SETTLED: Final = 4
"""Starts with which Student's interval is hardly wider than with more."""
_START_S: Final = 0.15
"""About what starting and ending a loader's workers takes."""


def same_batches(loader: Any) -> tuple[Any, list[Any]]:
    """Make the loader repeat its next few batches; also returns their samples, each once."""
    batches = cached_loaders.next_indices(loader, _BATCHES)
    samples = batches if loader.batch_sampler is None else chain.from_iterable(batches)
    once = {key_of(index): index for index in samples}
    return cached_loaders.warm(loader, batches), list(once.values())


def expected_lap_s(loader: Any, sample_s: float) -> float:
    """Estimate what a lap takes: start-up, warm-up and the steady state.

    Args:
        loader: whose batches are timed.
        sample_s: what a sample costs in one process, seconds.
    """
    workers = max(loader.num_workers, 1)
    batch_s = sample_s * (loader.batch_size or 1) / workers
    return float(_START_S + max(LAP_S, batch_s * workers) + (workers + 1) * batch_s)


class Benchmark:
    """Loaders that are timed in turn.

    Args:
        lap_s: about what the first lap takes.
        first_lap_s: a loader's first lap may take so long, whatever the deadline.
        steady_s: of the steady state of a lap.
        loop_of: makes the loop over a loader; by default nobody uses its batches.

    Attributes:
        failed: numbers of the variants whose loader raised, and what.
        starts_s: of each start, from asking for the batches to the first of them.
    """

    def __init__(
        self,
        lap_s: float = 0.0,
        first_lap_s: float = 0.0,
        *,
        steady_s: float = LAP_S,
        loop_of: Callable[[Any], TimedLoop] = lambda loader: TimedLoop.of(Target(loader)),
    ) -> None:
        self._lap_s, self._first_lap_s, self._steady_s = lap_s, first_lap_s, steady_s
        self._loop_of = loop_of
        self.starts_s: list[float] = []
        self._rows: list[tuple[Any, ...]] = []
        self._took_s: dict[int, float] = {}
        self._others: list[float] = []
        self.failed: dict[int, str] = {}

    def run(
        self,
        loaders: Mapping[int, Any],
        deadline_ns: int,
        on_progress: Callable[[float], object] = lambda _: None,
        sweeps: int = _MOST_SWEEPS,
    ) -> None:
        """Time loaders, sweep after sweep, until the time is over.

        Args:
            loaders: by the number of their trial; each without an end.
            deadline_ns: no lap begins that would end after this (`perf_counter_ns`).
            on_progress: is told the share of the time that is used.
            sweeps: over all of them, at most.
        """
        began_ns = time.perf_counter_ns()
        whole_ns = max(deadline_ns - began_ns, 1)
        loops = {trial: self._loop_of(loader) for trial, loader in loaders.items()}
        for sweep in range(sweeps):
            insists = sweep == 0 and self._first_lap_s > 0
            for trial in reversed(loops) if sweep % 2 else loops:
                now_ns = time.perf_counter_ns()
                left_s = (deadline_ns - now_ns) / 1e9
                if not insists and left_s <= self._took_s.get(trial, self._lap_s):
                    return
                first_ns = now_ns + int(self._first_lap_s * 1e9) if insists else 0
                if trial not in self.failed:
                    self._lap(trial, loops[trial], max(deadline_ns, first_ns))
                on_progress(min((time.perf_counter_ns() - began_ns) / whole_ns, 1.0))

    def _lap(self, trial: int, loop: TimedLoop, deadline_ns: int) -> None:
        """Time one start: a row for each group of batches that workers make at the same time."""
        began_ns, lap, before = time.perf_counter_ns(), TimedPass(), CpuUse.now()
        try:
            run_timed_pass(loop, lap, Span(self._steady_s, deadline_ns))
        except Exception as error:
            if trial == 0:
                raise  # the user's own loader, with the user's own error
            # torch brings a worker's error as text: its last line is what was raised
            raised = str(error).strip().splitlines()[-1:] if "Traceback" in str(error) else []
            said = raised[0] if raised else f"{type(error).__name__}: {said_by(error)}"
            self.failed[trial] = f"in its loader: {said:.160}"
            return
        self._took_s[trial] = (time.perf_counter_ns() - began_ns) / 1e9
        self._others.append(CpuUse.now().others_share(before))
        self.starts_s.append(lap.start_s)
        workers = loop.block
        for first in range(0, len(lap.seconds) // workers * workers, workers):
            seconds = sum(lap.seconds[first : first + workers])
            samples = sum(lap.samples[first : first + workers])
            if samples:  # a batch may be empty
                each_s, place = (
                    seconds * workers / samples,
                    "workers" if loop.workers else "process",
                )
                self._rows.append((trial, len(self._others), each_s, samples, place))

    def laps(self) -> pl.DataFrame:
        """Columns of `result.LAPS`; of a trial that has calm starts, those alone."""
        calm = {trial for trial, start, *_ in self._rows if self._is_calm(start)}
        rows = [row for row in self._rows if row[0] not in calm or self._is_calm(row[1])]
        return pl.DataFrame(rows, LAPS, orient="row")

    def _is_calm(self, start: int) -> bool:
        """Whether others hardly used the cores in a start, which are counted from 1."""
        return self._others[start - 1] < OTHERS

    @property
    def disturbed(self) -> int:
        """Starts beside which others used the cores."""
        return sum(share >= OTHERS for share in self._others)

    def others_share(self) -> float:
        """Share (0 to 1) of the cores that other processes had in the starts of `laps`."""
        starts = self.laps()["block"].unique().to_list()
        return fmean(self._others[start - 1] for start in starts) if starts else 0.0

    def is_settled(self) -> bool:
        """Whether what was measured can be claimed: often enough where others use the machine."""
        return not self.disturbed or self._fewest_starts() >= _SETTLED

    def is_thin(self) -> bool:
        """Whether a loader was started only once, or not at all."""
        return self._fewest_starts() < 2  # noqa: PLR2004

    def _fewest_starts(self) -> int:
        starts = self.laps().group_by("trial").agg(pl.col("block").n_unique())["block"]
        return int(starts.to_numpy().min(initial=_MOST_SWEEPS)) if starts.len() else 0
