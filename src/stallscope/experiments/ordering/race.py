"""Pipelines measured for real: each in the loader's own workers, started in turn with the others.

Sweeps go forth and back, so that a machine that grows slower meanwhile does so for all. All loaders
make the same few batches again and again, without an end, and nobody uses them: what is timed is
the loader alone.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.orders.table import rates_of
from stallscope.measure.cache import loaders as caching
from stallscope.measure.devices.cpu import Cpu
from stallscope.measure.inner import batch_size_of, made_here
from stallscope.measure.laps import Lap, Loop, Span, run_lap
from stallscope.measure.pipelines.heads import key_of
from stallscope.orderings import LAPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAP_S: Final = 0.4
"""The steady state of one lap."""
_BATCHES: Final = 8
"""That are made again and again."""
_MOST_SWEEPS: Final = 10


def same_batches(loader: Any) -> tuple[Any, list[Any]]:
    """The loader over its next few batches, again and again, and the samples in them, each once."""
    batches = caching.next_indices(loader, _BATCHES)
    single = loader.batch_sampler is None
    samples = batches if single else chain.from_iterable(batches)
    return caching.warm(loader, batches), list({key_of(one): one for one in samples}.values())


class Race:
    """Loaders that are timed in turn.

    Args:
        lap_s: about what the first one takes.
    """

    def __init__(self, lap_s: float = 0.0) -> None:
        self._loops: dict[int, Loop] = {}
        self._lap_s = lap_s
        self._deadline_ns = 0
        self._rows: list[tuple[Any, ...]] = []
        self._took_s: dict[int, float] = {}
        self._blocks = 0
        self.failed: dict[int, str] = {}
        """Trials whose loader raised, and what."""
        self.sweeps = 0
        """That were begun with the loaders of the last `run`."""
        self.first_lap_s = 0.0
        """A loader's first lap may take so long, whatever the deadline."""

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
        self._loops = {trial: _loop(loader) for trial, loader in loaders.items()}
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
        """Columns of `orderings.LAPS`."""
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
        insists = self.sweeps == 1 and self.first_lap_s > 0
        return insists or left_s > self._took_s[trial]

    def _lap(self, trial: int) -> None:
        began_ns, lap, loop = time.perf_counter_ns(), Lap(), self._loops[trial]
        first_ns = began_ns + int(self.first_lap_s * 1e9) if self.sweeps == 1 else 0
        try:
            run_lap(loop, lap, Span(LAP_S, max(self._deadline_ns, first_ns)))
        except Exception as error:
            if trial == 0:
                raise  # the user's own loader, with the user's own error
            self.failed[trial] = f"in its loader: {type(error).__name__}: {error!s:.160}"
            return
        self._took_s[trial] = (time.perf_counter_ns() - began_ns) / 1e9
        self._keep(trial, lap, loop)

    def _keep(self, trial: int, lap: Lap, loop: Loop) -> None:
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


def _loop(loader: Any) -> Loop:
    return Loop(
        loader,
        Cpu(),
        batch_size=batch_size_of(loader),
        workers=loader.num_workers,
        in_one_thread=made_here(loader),
    )
