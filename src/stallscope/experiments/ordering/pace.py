"""Which trials are measured for real: as many as can be started twice in the time that is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from stallscope.experiments.ordering.race import LAP_S
from stallscope.orderings import DIFFERENT, FAILS

if TYPE_CHECKING:
    from stallscope.experiments.ordering.trials import Trials

_MOST_RACED: Final = 7
"""Pipelines beside the original that are measured for real."""
_RACED_FIRST: Final = ("order", "alternative", "batch", "decode", "cache")
"""The kinds of which one is measured first."""
_START_S: Final = 0.15
"""About what starting and ending a loader's workers takes."""


class Pace:
    """How long a lap takes, and which trials get one.

    Args:
        loader: the user's, or a copy.
        trials: what there is.
    """

    def __init__(self, loader: Any, trials: Trials) -> None:
        self._loader, self._trials = loader, trials

    def promising(self, deadline_ns: int) -> list[int]:
        """The trials that are measured: of each kind the one that gains most, then what is left.

        Args:
            deadline_ns: when the last lap has to be over (`perf_counter_ns`).
        """
        trials = self._trials
        can = [
            number
            for number, trial in enumerate(trials.all)
            if number and trial.ops_s is not None
            if trial.comparison.equivalence not in (FAILS, DIFFERENT)
        ]
        can.sort(key=lambda n: (not trials.all[n].is_same, trials.all[n].ops_s or 0.0))
        first: dict[str, int] = {}
        for number in can:
            first.setdefault(trials.all[number].kind, number)
        firsts = [first[kind] for kind in _RACED_FIRST if kind in first]
        rest = [n for n in can if n not in firsts and trials.is_gain(trials.all[n])]
        return [*firsts, *rest][: self._places(deadline_ns)]

    @property
    def lap_s(self) -> float:
        """About what a lap takes: start-up, warm-up and the steady state."""
        workers = max(self._loader.num_workers, 1)
        batch_s = self._trials.rest.total_s + self._trials.base_s
        batch_s *= (self._loader.batch_size or 1) / workers
        return float(_START_S + max(LAP_S, batch_s * workers) + (workers + 1) * batch_s)

    def _places(self, deadline_ns: int) -> int:
        """How many loaders beside the original can be started twice in the time that is left."""
        left_s = (deadline_ns - time.perf_counter_ns()) / 1e9
        return min(max(int(left_s / (2 * self.lap_s)) - 1, 1), _MOST_RACED)
