"""Variants measured for real: each in the loader's own workers, started in turn with the others.

Sweeps go forth and back, so that a machine that grows slower meanwhile does so for all. All loaders
make the same few batches again and again, without an end, and nobody uses them: what is timed is
the loader alone. Measured are as many as can be started twice in the time that is left.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.loops import cached_loaders
from stallscope.loops.timed_loop import Span, TimedLoop, TimedPass, run_timed_pass
from stallscope.orders.loader_parts import key_of
from stallscope.orders.result import DIFFERENT, FAILS, LAPS, rates_of
from stallscope.targets.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stallscope.orders.variants import Variants


LAP_S: Final = 0.4
"""The steady state of one lap."""
_BATCHES: Final = 8
"""That are made again and again."""
_MOST_SWEEPS: Final = 10
_MOST_FINALISTS: Final = 7
"""Pipelines beside the original that are measured for real."""
_FIRST_KINDS: Final = ("order", "alternative", "batch", "decode", "cache")
"""The kinds of which one is measured first."""
_START_S: Final = 0.15
"""About what starting and ending a loader's workers takes."""


def same_batches(loader: Any) -> tuple[Any, list[Any]]:
    """Make the loader repeat its next few batches; also returns their samples, each once."""
    batches = cached_loaders.next_indices(loader, _BATCHES)
    samples = batches if loader.batch_sampler is None else chain.from_iterable(batches)
    once = {key_of(index): index for index in samples}
    return cached_loaders.warm(loader, batches), list(once.values())


def expected_lap_s(loader: Any, variants: Variants) -> float:
    """Estimate what a lap takes: start-up, warm-up and the steady state."""
    workers = max(loader.num_workers, 1)
    batch_s = (variants.fixed.total_s + variants.base_s) * (loader.batch_size or 1) / workers
    return float(_START_S + max(LAP_S, batch_s * workers) + (workers + 1) * batch_s)


def choose_finalists(variants: Variants, lap_s: float, deadline_ns: int) -> list[int]:
    """Choose what is measured: of each kind the one that gains most, then what is left.

    Args:
        variants: what there is.
        lap_s: about what a lap takes.
        deadline_ns: when the last lap has to be over (`perf_counter_ns`).

    Returns:
        As many numbers as can be started twice, beside the original, in the time that is left.
    """
    can = [
        number
        for number, variant in enumerate(variants.all)
        if number and variant.ops_s is not None
        if variant.comparison.equivalence not in (FAILS, DIFFERENT)
    ]
    can.sort(key=lambda n: (not variants.all[n].is_same, variants.all[n].ops_s or 0.0))
    first: dict[str, int] = {}
    for number in can:
        first.setdefault(variants.all[number].kind, number)
    firsts = [first[kind] for kind in _FIRST_KINDS if kind in first]
    rest = [n for n in can if n not in firsts and variants.is_gain(variants.all[n])]
    left_s = (deadline_ns - time.perf_counter_ns()) / 1e9
    places = max(int(left_s / (2 * lap_s)) - 1, 1)
    return [*firsts, *rest][: min(places, _MOST_FINALISTS)]


class Benchmark:
    """Loaders that are timed in turn.

    Args:
        lap_s: about what the first lap takes.
        first_lap_s: a loader's first lap may take so long, whatever the deadline.

    Attributes:
        failed: numbers of the variants whose loader raised, and what.
        sweeps: that were begun with the loaders of the last `run`.
    """

    def __init__(self, lap_s: float = 0.0, first_lap_s: float = 0.0) -> None:
        self._loops: dict[int, TimedLoop] = {}
        self._lap_s = lap_s
        self._deadline_ns = 0
        self._rows: list[tuple[Any, ...]] = []
        self._took_s: dict[int, float] = {}
        self._blocks = 0
        self._first_lap_s = first_lap_s
        self.failed: dict[int, str] = {}
        self.sweeps = 0

    def run(
        self,
        loaders: Mapping[int, Any],
        deadline_ns: int,
        on_progress: Callable[[float], object] | None = None,
    ) -> None:
        """Time loaders, sweep after sweep, until the time is over.

        Args:
            loaders: by the number of their trial; each without an end.
            deadline_ns: no lap begins that would end after this (`perf_counter_ns`).
            on_progress: is told the share of the time that is used.
        """
        began_ns = time.perf_counter_ns()
        self._deadline_ns, self.sweeps = deadline_ns, 0
        self._loops = {trial: TimedLoop.of(Target(loader)) for trial, loader in loaders.items()}
        self._took_s = dict.fromkeys(loaders, self._lap_s) | self._took_s
        trials = list(self._loops)
        while self.sweeps < _MOST_SWEEPS:
            self.sweeps += 1
            for trial in trials if self.sweeps % 2 else reversed(trials):
                if not self._may_begin(trial):
                    return
                if trial not in self.failed:
                    self._lap(trial)
                if on_progress is not None:
                    whole_ns = max(self._deadline_ns - began_ns, 1)
                    on_progress(min((time.perf_counter_ns() - began_ns) / whole_ns, 1.0))

    def laps(self) -> pl.DataFrame:
        """Columns of `result.LAPS`."""
        return pl.DataFrame(self._rows, LAPS, orient="row")

    def speedups(self) -> dict[int, float]:
        """How many times as fast as the original each trial was; those that were measured."""
        rates = rates_of(self.laps())
        return {n: one.rate / rates[0].rate for n, one in rates.items() if n and 0 in rates}

    def is_thin(self) -> bool:
        """Whether a loader was started only once, or not at all."""
        starts = self.laps().group_by("trial").agg(pl.col("block").n_unique())["block"]
        return self.sweeps == 0 or starts.len() == 0 or bool((starts < 2).any())  # noqa: PLR2004

    def _may_begin(self, trial: int) -> bool:
        """Whether there is time for another lap, as far as the one before tells."""
        left_s = (self._deadline_ns - time.perf_counter_ns()) / 1e9
        insists = self.sweeps == 1 and self._first_lap_s > 0
        return insists or left_s > self._took_s[trial]

    def _lap(self, trial: int) -> None:
        began_ns, lap, loop = time.perf_counter_ns(), TimedPass(), self._loops[trial]
        first_ns = began_ns + int(self._first_lap_s * 1e9) if self.sweeps == 1 else 0
        try:
            run_timed_pass(loop, lap, Span(LAP_S, max(self._deadline_ns, first_ns)))
        except Exception as error:
            if trial == 0:
                raise  # the user's own loader, with the user's own error
            self.failed[trial] = f"in its loader: {type(error).__name__}: {error!s:.160}"
            return
        self._took_s[trial] = (time.perf_counter_ns() - began_ns) / 1e9
        self._keep(trial, lap, loop)

    def _keep(self, trial: int, lap: TimedPass, loop: TimedLoop) -> None:
        """A row for each group of batches that the workers make at the same time."""
        workers = max(loop.workers, 1)
        place = "workers" if loop.workers else "process"
        self._blocks += 1
        for first in range(0, len(lap.seconds) // workers * workers, workers):
            seconds = sum(lap.seconds[first : first + workers])
            samples = sum(lap.samples[first : first + workers])
            if samples:  # a batch may be empty
                row = (trial, self._blocks, seconds * workers / samples, samples, place)
                self._rows.append(row)
