"""One search for a faster pipeline: look at it in this process, then race what is promising."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.orders.search import search
from stallscope.benches import Comparison
from stallscope.experiments.candidates.protocol import Situation
from stallscope.experiments.ordering.live import LiveBench
from stallscope.experiments.ordering.pace import Pace
from stallscope.experiments.ordering.race import Race, same_batches
from stallscope.experiments.ordering.recipe import loader_by
from stallscope.experiments.ordering.report import costs_frame, ops_frame, ops_said, times_said
from stallscope.experiments.ordering.rest import rest_of
from stallscope.experiments.ordering.survey import survey
from stallscope.experiments.ordering.trials import Trials
from stallscope.experiments.ordering.untouched import guarded
from stallscope.experiments.ordering.workbench import Workbench
from stallscope.measure.cache.values import bytes_of
from stallscope.measure.cgroup import memory_available_bytes
from stallscope.measure.machine import machine
from stallscope.measure.replay import Bar
from stallscope.orderings import FAILS, LAPS, TRIALS, Circumstances, Counts, Orders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stallscope.analyze.orders.search import Found
    from stallscope.experiments.ordering.trial import Trial
    from stallscope.measure import target as targets

_SEARCHED: Final = 0.35
"""Share of the budget after which no more orders are tried."""
_LOOKED: Final = 0.5
"""Share of the budget after which no more changes are looked at."""
_FEWEST_SEARCHED: Final = 4
"""Samples on which orders are searched, however little time there is."""
_HEATS: Final = 0.6
"""Share of the time that is left then for changes by themselves; the rest is for all together."""
_RACED: Final = 0.97
"""Share of the budget after which no lap ends."""
_MEMORY_SHARE: Final = 0.25
"""Of the memory that is left: for the samples at every point of their way, and for a cache."""


class Quest:
    """One search for a faster pipeline.

    Args:
        loader: a shallow copy of the user's.
        aim: what the user points at.
        began_ns: when the budget began (`perf_counter_ns`).
        budget_s: seconds.
    """

    def __init__(self, loader: Any, aim: targets.Target, began_ns: int, budget_s: float) -> None:
        self._loader, self._aim = loader, aim
        self._began_ns, self._budget_s = began_ns, budget_s
        self._notes = list(aim.notes)
        self._bench: Workbench
        self._found: Found
        self._trials: Trials
        self._race: Race | None = None
        self._deadline_ns = began_ns + int(_RACED * budget_s * 1e9)

    def look(self, samples: int, alternatives: Mapping[Any, Any] | None) -> None:
        """Everything that is done in this process."""
        found = survey(self._loader, samples, _room_bytes())
        self._notes += found.notes
        began_ns = time.perf_counter_ns()
        self._bench = bench = Workbench(found, self._loader.batch_size or 1)
        with guarded(self._loader, bench):
            bench.begin(self._is_searched)
            self._choose(began_ns)
            self._found = search(len(bench.ops), bench.start(), bench, self._is_searched)
            self._trials = Trials(bench, self._found, rest_of(self._loader, bench.drawn))
            self._trials.add_alternatives(alternatives)
            self._trials.add_orders(self._is_looked)
            situation = Situation(bench, self._trials.judge, self._loader, self._notes)
            self._trials.add_candidates(situation, self._is_looked)

    def _choose(self, began_ns: int) -> None:
        """Search on so few samples that all orders of ops that commute can be tried in time."""
        bench, n = self._bench, len(self._bench.ops)
        now_ns = time.perf_counter_ns()
        each_s = (now_ns - began_ns) / 1e9 / len(bench.givens) / n
        left_s = _SEARCHED * self._budget_s - (now_ns - self._began_ns) / 1e9
        fitting = int(left_s / (each_s * n * 2 ** (n - 1)))
        bench.searched = min(max(fitting, _FEWEST_SEARCHED), len(bench.givens))

    def race(self) -> None:
        """Measure the original and the most promising trials in turn, then what gained together."""
        pace = Pace(self._loader, self._trials)
        self._race = race = Race(pace.lap_s)
        again, indices = same_batches(self._loader)
        began_ns = time.perf_counter_ns()
        heats_ns = began_ns + int(_HEATS * (self._deadline_ns - began_ns))
        bar = Bar(desc=f"orders of {self._aim.name}", total=100, leave=False, delay=0.5)
        with closing(bar):
            loaders = self._raced([0, *pace.promising(heats_ns)], again, indices)
            race.run(loaders, heats_ns, lambda share: bar.update(int(share * 100 * _HEATS) - bar.n))
            self._note_failed(race)
            with guarded(self._loader, self._bench):
                together = self._raced(self._trials.add_together(race.speedups()), again, indices)
            finals = {0: loaders[0], **together} if together else loaders
            left = 1 - _HEATS
            race.run(
                finals,
                self._deadline_ns,
                lambda share: bar.update(int((_HEATS + share * left) * 100) - bar.n),
            )
        self._note_failed(race)

    def _note_failed(self, race: Race) -> None:
        for number, why in race.failed.items():
            failed = Comparison(FAILS, why=why)
            self._trials.all[number] = replace(self._trials.all[number], comparison=failed)

    def _is_searched(self) -> bool:
        """Whether no more orders are tried."""
        return self._used_share() > _SEARCHED

    def _is_looked(self) -> bool:
        """Whether no more changes are looked at."""
        return self._used_share() > _LOOKED

    def _used_share(self) -> float:
        """Of the budget."""
        return (time.perf_counter_ns() - self._began_ns) / 1e9 / self._budget_s

    def _raced(self, numbers: Iterable[int], loader: Any, indices: list[Any]) -> dict[int, Any]:
        """The loaders of trials, without a cache that there is no room for."""
        made = {number: self._made(self._trials.all[number], loader, indices) for number in numbers}
        return {number: one for number, one in made.items() if one is not None}

    def _made(self, trial: Trial, loader: Any, indices: list[Any]) -> Any:
        made = loader_by(trial.recipe, self._bench.site, loader)
        if not trial.recipe.cached:
            return made
        each = bytes_of([one.finished for one in self._bench.drawn]) / len(self._bench.drawn)
        if each * len(indices) > _room_bytes():
            self._notes.append("the cache was not measured: its samples need too much memory")
            return None
        for index in indices:  # filled before the workers are forked, which all have it then
            made.dataset[index]
        return made

    def result(self, loader: Any) -> Orders:
        """What is known by now.

        Args:
            loader: the user's own.
        """
        bench, trials = self._bench, self._trials
        times = times_said(self._budget_s, self._found, self._race)
        return Orders(
            ops=ops_frame(bench, trials.rest),
            trials=pl.DataFrame(list(trials.rows()), TRIALS, orient="row"),
            laps=self._race.laps() if self._race else pl.DataFrame(schema=LAPS),
            costs=costs_frame(self._found),
            rest=trials.rest,
            counts=Counts(
                self._found.measurements,
                len(self._found.reached_by),
                self._found.exhaustive,
                self._found.unexplored,
            ),
            circumstances=Circumstances(
                name=self._aim.name,
                pipeline=f"{bench.site.place.text}, {bench.site.chain.kind}",
                samples=len(bench.givens),
                num_workers=loader.num_workers,
                batch_size=loader.batch_size,
                budget_s=self._budget_s,
                took_s=(time.perf_counter_ns() - self._began_ns) / 1e9,
                machine=machine(),
            ),
            notes=(*self._notes, *ops_said(bench), *times),
            bench=LiveBench(loader, bench, self._found, trials.rest, trials.all),
        )


def _room_bytes() -> int:
    return int(memory_available_bytes() * _MEMORY_SHARE)
