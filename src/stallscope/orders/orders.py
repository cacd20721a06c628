"""`ss.orders`: the fastest order of the transforms that gives the same data, and what else helps.

First, in this process, on samples that are drawn once: what each op costs, which orders give the
original's data, and what other changes would save. Then the most promising are measured for real,
in the loader's own workers, in turn with the loader as it is.

What a search for orders has found, as tables and sentences.

One search for a faster pipeline: look at it in this process, then race what is promising.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.errors import ArgumentError, StallscopeError
from stallscope.isolation.snapshot import one_thread
from stallscope.loops.cached_loaders import check_plain
from stallscope.loops.cached_values import bytes_of
from stallscope.loops.training_loop import ProgressBar, check_budget
from stallscope.machine import machine, memory_available_bytes, require_single_rank
from stallscope.orders.bench import Comparison
from stallscope.orders.benchmark import LapSchedule, Race, same_batches
from stallscope.orders.candidates import Situation
from stallscope.orders.digests import described
from stallscope.orders.evaluator import PipelineRunner
from stallscope.orders.live import OrderEvaluator, guarded, preserving_state
from stallscope.orders.recipe import loader_by
from stallscope.orders.result import (
    COSTS,
    FAILS,
    LAPS,
    OPS,
    TRIALS,
    Counts,
    Orders,
    OrdersConditions,
)
from stallscope.orders.search import search
from stallscope.orders.survey import rest_of, survey
from stallscope.orders.trials import Trials
from stallscope.run.failures import note
from stallscope.targets import target as targets
from stallscope.targets.object_graph import private_copy
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stallscope.orders.result import FixedCosts
    from stallscope.orders.search import SearchResult
    from stallscope.orders.trials import Trial


_DRAWS: Final = 1_000
_SEED: Final = 20_240_229


def ops_frame(bench: PipelineRunner, rest: FixedCosts) -> pl.DataFrame:
    """Columns of `orderings.OPS`."""
    return pl.DataFrame([*_decode_row(bench, rest), *_op_rows(bench)], OPS, orient="row")


def _decode_row(bench: PipelineRunner, rest: FixedCosts) -> Iterator[tuple[Any, ...]]:
    lazy = [one for one in bench.drawn if one.lazy is not None]
    if not lazy or lazy[0].lazy is None:
        return
    width, height = lazy[0].lazy.size
    takes = f"{lazy[0].lazy.format} {width}×{height}"
    gives = described(bench.givens[0].value)
    low, high = _interval([one.decode_s for one in lazy], np.median)
    yield -1, "decode", None, "", takes, gives, rest.decode_s, low, high, None, None


def _op_rows(bench: PipelineRunner) -> Iterator[tuple[Any, ...]]:
    before = list(bench.givens)
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        low, high = _interval(list(outcome.times_s))
        yield (
            op.position,
            op.name,
            outcome.is_random,
            op.settings,
            _described([given.value for given in before]),
            _described([given.value for given in outcome.givens]),
            outcome.seconds,
            low,
            high,
            *op.source,
        )
        before = list(outcome.givens)


def costs_frame(found: SearchResult) -> pl.DataFrame:
    """Columns of `orderings.COSTS`."""
    rows = [
        (
            position,
            list(found.reached_by.get(node, ())),
            node.state.digest,
            tried.seconds,
            tried.why_not or None,
        )
        for node, edges in found.edges.items()
        for position, tried in edges.items()
    ]
    return pl.DataFrame(rows, COSTS, orient="row")


def ops_said(bench: PipelineRunner) -> Iterator[str]:
    """What has to be known of the ops."""
    if len(bench.ops) == 1:
        yield f"{bench.ops[0].name} is the only op: there is no other order"
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        if outcome.unsteady:
            yield f"{outcome.unsteady}: it is only compared on what it gets as it is"
        if outcome.changes_input:
            yield f"{op.name} changes its input in place: it always got a copy here"
        if not bench.stream(op.position).copied:
            yield f"{op.name} cannot be copied: it was used itself, and its attributes put back"
    if bench.idle:
        yield f"{bench.idle_told}: nothing is known of it"
    if bench.searched < len(bench.givens):
        yield (
            f"orders were searched on {count(bench.searched, 'sample')}, and those that were found "
            f"compared on {len(bench.givens)}"
        )


def times_said(budget_s: float, found: SearchResult, race: Race | None) -> Iterator[str]:
    """What the budget did not suffice for."""
    if found.unexplored:
        yield (
            f"{seconds(budget_s)} were not enough for all orders: {count(found.unexplored, 'op')} "
            "in a state that was reached were not tried, nor what may lie behind"
        )
    if race is None or race.is_thin():
        yield "the budget was over before everything had been measured a second time"


def _described(values: list[Any]) -> str:
    """What samples are, in words; of several kinds the first, and how many others there are."""
    kinds = list(dict.fromkeys(map(described, values)))
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]} and {count(len(kinds) - 1, 'other kind')}"


def _interval(
    times_s: list[float], centre: Callable[..., Any] = np.mean
) -> tuple[float | None, float | None]:
    """The ends of a 95% interval of the centre, from resampled samples; None for a single one."""
    if len(times_s) < 2:  # noqa: PLR2004 - one has no spread
        return None, None
    rng = np.random.default_rng(_SEED)
    drawn = centre(rng.choice(times_s, size=(_DRAWS, len(times_s))), axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


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


class OrderSearch:
    """One search for a faster pipeline.

    Args:
        loader: a shallow copy of the user's.
        target: what the user points at.
        began_ns: when the budget began (`perf_counter_ns`).
        budget_s: seconds.
    """

    def __init__(self, loader: Any, target: targets.Target, began_ns: int, budget_s: float) -> None:
        self._loader, self._target = loader, target
        self._began_ns, self._budget_s = began_ns, budget_s
        self._notes = list(target.notes)
        self._bench: PipelineRunner
        self._found: SearchResult
        self._trials: Trials
        self._race: Race | None = None
        self._deadline_ns = began_ns + int(_RACED * budget_s * 1e9)

    def look(self, samples: int, alternatives: Mapping[Any, Any] | None) -> None:
        """Everything that is done in this process."""
        found = survey(self._loader, samples, _room_bytes())
        self._notes += found.notes
        began_ns = time.perf_counter_ns()
        self._bench = bench = PipelineRunner(found, self._loader.batch_size or 1)
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
        pace = LapSchedule(self._loader, self._trials)
        self._race = race = Race(pace.lap_s)
        again, indices = same_batches(self._loader)
        began_ns = time.perf_counter_ns()
        heats_ns = began_ns + int(_HEATS * (self._deadline_ns - began_ns))
        bar = ProgressBar(desc=f"orders of {self._target.name}", total=100, leave=False, delay=0.5)
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
            circumstances=OrdersConditions(
                name=self._target.name,
                pipeline=f"{bench.site.place.text}, {bench.site.chain.kind}",
                samples=len(bench.givens),
                num_workers=loader.num_workers,
                batch_size=loader.batch_size,
                budget_s=self._budget_s,
                took_s=(time.perf_counter_ns() - self._began_ns) / 1e9,
                machine=machine(),
            ),
            notes=(*self._notes, *ops_said(bench), *times),
            bench=OrderEvaluator(loader, bench, self._found, trials.rest, trials.all),
        )


def _room_bytes() -> int:
    return int(memory_available_bytes() * _MEMORY_SHARE)


def orders(
    target: Any,
    *,
    alternatives: Mapping[Any, Any] | None = None,
    samples: int = 16,
    budget_s: float = 60.0,
) -> Orders:
    """Look for a faster pipeline that gives the same data.

    Makes samples in this process, and batches with copies of the loader in its own workers.
    Afterwards all random generators and the samplers are as they were, and the attributes of the
    dataset and its transforms hold what they held. An exception of the dataset's passes unchanged.

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
    allowed_s = check_budget(budget_s)
    _check(samples, alternatives)
    require_single_rank()
    target = targets.target(target)
    check_plain(target, "its pipeline cannot be run by itself")
    original = target.loaders[0]
    with private_copy(original) as loader, preserving_state(original), one_thread():
        quest = OrderSearch(loader, target, began_ns, allowed_s)
        try:
            quest.look(int(samples), alternatives)
            quest.race()
        except StallscopeError:
            raise
        except Exception as error:
            note(error, ["stallscope: raised while ss.orders made samples of this loader"])
            raise
        return quest.result(original)


def _check(samples: object, alternatives: object) -> None:
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(f"samples={samples!r}: give a whole number, 1 or more")
    if alternatives is not None and not isinstance(alternatives, dict):
        raise ArgumentError(
            f"alternatives={alternatives!r:.80}: give a dictionary of an op's name and its rewrite"
        )
