"""`ss.orders`: the fastest order of the transforms that gives the same data, and what else helps.

First, in this process, on samples that are drawn once: what each op costs, which orders give the
original's data, and what other changes would save. Then the most promising are measured for real,
in the loader's own workers, in turn with the loader as it is.
"""

from __future__ import annotations

import time
from contextlib import closing
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.orders.search import search
from stallscope.benches import Comparison
from stallscope.errors import ArgumentError, StallscopeError, UnsupportedError
from stallscope.experiments.candidates.protocol import Situation
from stallscope.experiments.failure import note
from stallscope.experiments.ordering.live import LiveBench, guarded
from stallscope.experiments.ordering.race import LAP_S, Race, same_batches
from stallscope.experiments.ordering.recipe import loader_by
from stallscope.experiments.ordering.report import costs_frame, ops_frame, ops_said, times_said
from stallscope.experiments.ordering.rest import rest_of
from stallscope.experiments.ordering.survey import survey
from stallscope.experiments.ordering.trials import Trials, with_equivalence
from stallscope.experiments.ordering.workbench import Workbench
from stallscope.measure import target as targets
from stallscope.measure.cache.loaders import is_plain
from stallscope.measure.cache.values import bytes_of
from stallscope.measure.cgroup import memory_available_bytes
from stallscope.measure.distributed import alone
from stallscope.measure.inner import loaders_of, private
from stallscope.measure.machine import machine
from stallscope.measure.onethread import one_thread
from stallscope.measure.replay import Bar
from stallscope.measure.snapshot import as_before
from stallscope.orderings import FAILS, LAPS, TRIALS, Circumstances, Counts, Orders
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.analyze.orders.search import Found
    from stallscope.experiments.ordering.trials import Trial

_SEARCHED: Final = 0.35
"""Share of the budget after which no more orders are tried."""
_LOOKED: Final = 0.5
"""Share of the budget after which no more changes are looked at."""
_FEWEST_SEARCHED: Final = 4
"""Samples on which orders are searched, however little time there is."""
_RACED: Final = 0.97
"""Share of the budget after which no lap ends."""
_MOST_RACED: Final = 7
"""Pipelines beside the original that are measured for real."""
_RACED_FIRST: Final = ("together", "order", "alternative", "batch", "decode", "cache")
"""The kinds of which one is measured first."""
_START_S: Final = 0.15
"""About what starting and ending a loader's workers takes."""
_MEMORY_SHARE: Final = 0.25
"""Of the memory that is left: for the samples at every point of their way, and for a cache."""


def orders(
    target: Any,
    *,
    alternatives: Mapping[Any, Any] | None = None,
    samples: int = 16,
    budget_s: float = 60.0,
) -> Orders:
    """Look for a faster pipeline that gives the same data.

    Makes samples in this process, and batches with copies of the loader in its own workers.
    Afterwards all random generators and the samplers are as they were, and the dataset and its
    transforms were never changed. An exception of the dataset's passes unchanged.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        alternatives: rewrites of the pipeline's ops, by the op's name or position
            (`{"RandomMask": MyFasterMask()}`), one or several for each; compared on the same draws.
        samples: on how many samples pipelines are compared and ops timed; fewer where they are
            large.
        budget_s: it is over after this time, seconds, and the batch that is under way then.

    Raises:
        ArgumentError: a number that cannot be used, or a rewrite of an op that is not there.
        NoPipelineError: the dataset calls no transforms that could be put in another order.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, its
            dataset is a stream, or this process is one of several ranks.
    """
    began_ns = time.perf_counter_ns()
    _check(samples, budget_s, alternatives)
    alone()
    aim = targets.target(target)
    _check_loader(aim.loader)
    original = loaders_of(aim.loader)[0]
    with private(original) as loader, as_before(original), one_thread():
        quest = _Quest(loader, aim, began_ns, float(budget_s))
        try:
            quest.look(int(samples), alternatives)
            quest.race()
        except StallscopeError:
            raise
        except Exception as error:
            note(error, ["stallscope: raised while ss.orders made samples of this loader"])
            raise
        return quest.result(original)


def _check(samples: object, budget_s: object, alternatives: object) -> None:
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(f"samples={samples!r}: give a whole number, 1 or more")
    if not (isinstance(budget_s, (int, float)) and budget_s > 0):  # false for nan, too
        raise ArgumentError(f"budget_s={budget_s!r}: give a number of seconds above 0")
    if alternatives is not None and not isinstance(alternatives, dict):
        raise ArgumentError(
            f"alternatives={alternatives!r:.80}: give a dictionary of an op's name and its rewrite"
        )


def _check_loader(target: Any) -> None:
    """Make sure that there is one DataLoader, of which torch makes the samples."""
    found = loaders_of(target)
    if len(found) == 1 and is_plain(found[0]):
        return
    kind = f"{type(target).__module__}.{type(target).__qualname__}"
    why = "iterates its dataset with code of its own"
    if len(found) != 1:
        why = f"holds {count(len(found), 'torch.utils.data.DataLoader')}"
    raise UnsupportedError(
        f"this {kind} {why}, so its pipeline cannot be run by itself: give a plain DataLoader over "
        "the same dataset"
    )


class _Quest:
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

    def look(self, samples: int, alternatives: Mapping[Any, Any] | None) -> None:
        """Everything that is done in this process."""
        found = survey(self._loader, samples, _room_bytes())
        self._notes += found.notes
        began_ns = time.perf_counter_ns()
        self._bench = bench = Workbench(
            found, self._loader.batch_size or 1, lambda: self._is_over(_SEARCHED)
        )
        with guarded(self._loader, bench):
            self._choose(began_ns)
            over = lambda: self._is_over(_SEARCHED)  # noqa: E731 - short
            self._found = search(len(bench.ops), bench.start(), bench, over)
            self._trials = Trials(bench, self._found, rest_of(self._loader, bench.drawn))
            self._trials.add_alternatives(alternatives)
            self._trials.add_orders(lambda: self._is_over(_LOOKED))
            situation = Situation(bench, self._loader, self._notes)
            self._trials.add_candidates(situation, lambda: self._is_over(_LOOKED))
            self._trials.add_together()

    def _choose(self, began_ns: int) -> None:
        """Search on so few samples that all orders of ops that commute can be tried in time."""
        bench, n = self._bench, len(self._bench.ops)
        now_ns = time.perf_counter_ns()
        each_s = (now_ns - began_ns) / 1e9 / len(bench.givens) / n
        left_s = _SEARCHED * self._budget_s - (now_ns - self._began_ns) / 1e9
        fitting = int(left_s / (each_s * n * 2 ** (n - 1)))
        bench.searched = min(max(fitting, _FEWEST_SEARCHED), len(bench.givens))

    def race(self) -> None:
        """Measure the original and the most promising trials in turn."""
        numbers = self._promising()
        loader, indices = same_batches(self._loader)
        loaders = {n: self._raced(self._trials.all[n], loader, indices) for n in (0, *numbers)}
        deadline_ns = self._began_ns + int(_RACED * self._budget_s * 1e9)
        racing = {number: one for number, one in loaders.items() if one is not None}
        self._race = Race(racing, deadline_ns, self._lap_s)
        bar = Bar(desc=f"orders of {self._aim.name}", total=100, leave=False, delay=0.5)
        with closing(bar):
            self._race.run(lambda share: bar.update(int(share * 100) - bar.n))
        for number, why in self._race.failed.items():
            trial = self._trials.all[number]
            self._trials.all[number] = with_equivalence(trial, Comparison(FAILS, why=why))

    def _is_over(self, share: float) -> bool:
        return time.perf_counter_ns() > self._began_ns + share * self._budget_s * 1e9

    def _promising(self) -> list[int]:
        """The trials that are measured: of each kind the one that gains most, then what is left.

        So many that all of them can be started twice in the time that is left.
        """
        trials = self._trials
        can = [
            number
            for number, trial in enumerate(trials.all)
            if number and trial.ops_s is not None and trial.comparison.equivalence != FAILS
        ]
        can.sort(key=lambda n: (not trials.all[n].is_same, trials.all[n].ops_s or 0.0))
        first: dict[str, int] = {}
        for number in can:
            first.setdefault(trials.all[number].kind, number)
        firsts = [first[kind] for kind in _RACED_FIRST if kind in first]
        rest = [n for n in can if n not in firsts and trials.is_gain(trials.all[n])]
        return [*firsts, *rest][: self._places()]

    @property
    def _lap_s(self) -> float:
        """About what a lap takes: start-up, warm-up and the steady state."""
        workers = max(self._loader.num_workers, 1)
        batch_s = self._trials.rest.total_s + self._trials.base_s
        batch_s *= (self._loader.batch_size or 1) / workers
        return float(_START_S + max(LAP_S, batch_s * workers) + (workers + 1) * batch_s)

    def _places(self) -> int:
        """How many loaders beside the original can be started twice in the time that is left."""
        left_s = _RACED * self._budget_s - (time.perf_counter_ns() - self._began_ns) / 1e9
        return min(max(int(left_s / (2 * self._lap_s)) - 1, 1), _MOST_RACED)

    def _raced(self, trial: Trial, loader: Any, indices: set[Any]) -> Any:
        """The loader of a trial; None for a cache that there is no room for."""
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
