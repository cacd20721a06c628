"""`ss.orders`: the fastest order of the transforms that gives the same data, and what else helps.

First, in this process, on samples that are captured once: what each op costs, which orders give the
original's data, and what other changes would save. Then the most promising are measured for real,
in the loader's own workers, in turn with the loader as it is.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.errors import ArgumentError, NoBatchError, StallscopeError
from stallscope.isolation import one_thread
from stallscope.loops.batch_timeout import time_limit
from stallscope.loops.cached_loaders import check_plain
from stallscope.loops.cached_values import bytes_of
from stallscope.loops.training_loop import ProgressBar, check_budget, check_whole
from stallscope.machine import machine, memory_available_bytes, require_single_rank
from stallscope.orders import variants
from stallscope.orders.benchmark import Benchmark, expected_lap_s, same_batches
from stallscope.orders.capture import capture, fixed_costs
from stallscope.orders.equivalence import described
from stallscope.orders.evaluator import OrderEvaluator, preserving_state
from stallscope.orders.pipeline import why_one
from stallscope.orders.recipe import loader_by
from stallscope.orders.result import (
    COSTS,
    DECODE,
    FAILS,
    OPS,
    Counts,
    Equivalence,
    Orders,
    OrdersConditions,
    timings_of,
)
from stallscope.run.read_logs import note
from stallscope.stats import ENDS
from stallscope.targets import target as targets
from stallscope.targets.loaders import private_copy
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stallscope.orders.run_ops import OpInput
    from stallscope.orders.search import SearchResult

_SEARCH_UNTIL: Final = 0.35
"""Share of the budget after which no more orders are tried."""
_COMPARE_UNTIL: Final = 0.5
"""Share of the budget after which no more variants are compared."""
_ALONE: Final = 0.6
"""Share of the time that is left then for variants by themselves; the rest is for all together."""
_MEASURE_UNTIL: Final = 0.97
"""Share of the budget after which no lap ends."""
_FEWEST_SEARCHED: Final = 4
"""Samples on which orders are searched, however little time there is."""
_MEMORY_SHARE: Final = 0.25
"""Of the memory that is left: for the samples at every point of their way, and for a cache."""
_DRAWS: Final = 1_000
"""Of the samples, for the interval of an op's cost."""
_SEED: Final = 20_240_229


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
    dataset and its transforms hold what they held. An exception of the dataset's passes unchanged;
    its attribute `orders`, also an interrupt's, holds what was measured before, if anything was.

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
        NoBatchError: a batch did not come within the budget and a grace; its attribute `orders` is
            that of any exception.
    """
    began_ns = time.perf_counter_ns()
    allowed_s = check_budget(budget_s)
    _check(samples, alternatives)
    require_single_rank()
    target = targets.target(target)
    check_plain(target, "its pipeline cannot be run by itself")
    original = target.loaders[0]
    copied = private_copy(original)
    with time_limit(allowed_s), copied as loader, preserving_state(original), one_thread():
        order_search = OrderSearch(loader, target, began_ns, allowed_s)
        try:
            order_search.analyze(int(samples), alternatives)
            order_search.measure()
        except BaseException as error:
            if isinstance(error, StallscopeError) and not isinstance(error, NoBatchError):
                raise
            if isinstance(error, Exception):
                note(error, ["stallscope: raised while ss.orders made samples of this loader"])
            order_search.leave_with(error)
            raise
        return order_search.result()


def _check(samples: object, alternatives: object) -> None:
    check_whole("samples", samples, 1)
    if alternatives is not None and not isinstance(alternatives, dict):
        raise ArgumentError(
            f"alternatives={alternatives!r:.80}: give a dictionary of an op's name and its rewrite"
        )


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
        self._notes: list[str] = []
        self._evaluator: OrderEvaluator
        self._benchmark = Benchmark()

    def analyze(self, samples: int, alternatives: Mapping[Any, Any] | None) -> None:
        """Do everything that is done in this process."""
        site, captured, notes = capture(self._loader, samples, _room_bytes())
        self._notes += notes
        began_ns = time.perf_counter_ns()
        self._evaluator = evaluator = OrderEvaluator(self._target.loaders[0], site, captured)
        is_searched = partial(self._has_used, _SEARCH_UNTIL)
        is_compared = partial(self._has_used, _COMPARE_UNTIL)
        with evaluator.guarded():
            evaluator.run_original(is_searched)
            self._limit_search((time.perf_counter_ns() - began_ns) / 1e9)
            evaluator.search(is_searched)
            evaluator.fixed = fixed_costs(self._loader, captured)
            variants.add_original(evaluator)
            variants.add_alternatives(evaluator, alternatives)
            variants.add_orders(evaluator, is_compared)
            variants.add_candidates(evaluator, self._notes, is_compared)

    def _limit_search(self, original_s: float) -> None:
        """Search on so few samples that all orders of ops that commute can be tried in time.

        Args:
            original_s: how long the ops as they are took on all samples.
        """
        all_, n = len(self._evaluator.inputs), len(self._evaluator.ops)
        left_s = _SEARCH_UNTIL * self._budget_s - self._used_s()
        fitting = int(left_s / (original_s / all_ * 2 ** (n - 1)))
        self._evaluator.searched = min(max(fitting, _FEWEST_SEARCHED), all_)

    def _used_s(self) -> float:
        return (time.perf_counter_ns() - self._began_ns) / 1e9

    def _has_used(self, share: float) -> bool:
        """Whether more than this share of the budget is used."""
        return self._used_s() > share * self._budget_s

    def measure(self) -> None:
        """Measure the original and the finalists in turn, then what gained together."""
        evaluator = self._evaluator
        lap_s = expected_lap_s(self._loader, evaluator.fixed.total_s + evaluator.base_s)
        self._benchmark = benchmark = Benchmark(lap_s)
        again, indices = same_batches(self._loader)
        began_ns = time.perf_counter_ns()
        deadline_ns = self._began_ns + int(_MEASURE_UNTIL * self._budget_s * 1e9)
        alone_ns = began_ns + int(_ALONE * (deadline_ns - began_ns))
        bar = ProgressBar(desc=f"orders of {self._target.name}", total=100, leave=False, delay=0.5)

        def progress(begin: float, end: float) -> Callable[[float], object]:
            return lambda share: bar.update(int((begin + share * (end - begin)) * 100) - bar.n)

        with closing(bar):
            finalists = variants.choose_finalists(evaluator, lap_s, alone_ns)
            loaders = self._loaders([0, *finalists], again, indices)
            benchmark.run(loaders, alone_ns, progress(0, _ALONE))
            self._mark_failed()
            timings = timings_of(benchmark.laps())
            speedups = {trial: timing.speedup for trial, timing in timings.items() if trial}
            with evaluator.guarded():
                added = variants.add_together(evaluator, speedups)
                together = self._loaders(added, again, indices)
            goes_on = together and benchmark.is_settled()
            last = {0: loaders[0], **together} if goes_on else loaders
            benchmark.run(last, deadline_ns, progress(_ALONE, 1))
        self._mark_failed()

    def _mark_failed(self) -> None:
        """Let variants fail whose loader raised."""
        for number, why in self._benchmark.failed.items():
            whole = self._evaluator.variants
            whole[number] = replace(whole[number], comparison=Equivalence(FAILS, why=why))

    def _loaders(self, numbers: Iterable[int], loader: Any, indices: list[Any]) -> dict[int, Any]:
        """The loaders of variants, without a cache that there is no room for."""
        loaders = {}
        samples = self._evaluator.samples
        for number in numbers:
            recipe = self._evaluator.variants[number].recipe
            each_bytes = bytes_of([one.finished for one in samples]) / len(samples)
            if recipe.cached and each_bytes * len(indices) > _room_bytes():
                self._notes.append("the cache was not measured: its samples need too much memory")
                continue
            loaders[number] = loader_by(recipe, self._evaluator.site, loader)
            for index in indices if recipe.cached else ():
                loaders[number].dataset[index]  # before the workers are forked, which all have it
        return loaders

    def leave_with(self, error: BaseException) -> None:
        """Leave what was measured before with an exception, once the ops as they are were."""
        evaluator = getattr(self, "_evaluator", None)
        if evaluator is None or not evaluator.digest:
            return
        with suppress(Exception):  # of ours; the user's own one is on its way
            if not evaluator.variants:
                evaluator.search(lambda: True)  # of what was measured; calls no op
                variants.add_original(evaluator)
            self._notes.insert(0, f"ended before its time, by {type(error).__name__}")
            vars(error)["orders"] = self.result()  # past any __setattr__ of a frozen exception
            said = "stallscope: what was measured before is this exception's attribute `orders`"
            note(error, [said])

    def result(self) -> Orders:
        """What is known by now."""
        evaluator = self._evaluator
        found, loader = evaluator.found, evaluator.loader
        return Orders(
            ops=_ops_table(evaluator),
            trials=variants.trials_table(evaluator),
            laps=self._benchmark.laps(),
            costs=_costs_table(found),
            parts=variants.parts_table(evaluator),
            rest=evaluator.fixed,
            counts=Counts(
                found.measurements, len(found.reached_by), found.exhaustive, found.unexplored
            ),
            circumstances=OrdersConditions(
                name=self._target.name,
                pipeline=f"{evaluator.site.place.text}, {evaluator.site.chain.kind}",
                samples=len(evaluator.inputs),
                num_workers=loader.num_workers,
                batch_size=loader.batch_size,
                budget_s=self._budget_s,
                took_s=self._used_s(),
                others_share=self._benchmark.others_share(),
                machine=machine(),
            ),
            notes=(
                *self._target.told(),
                *self._notes,
                *_notes_on_ops(evaluator),
                *self._notes_on_time(),
            ),
            bench=evaluator,
        )

    def _notes_on_time(self) -> Iterator[str]:
        """What the budget did not suffice for."""
        unexplored = self._evaluator.found.unexplored
        if unexplored:
            yield (
                f"{seconds(self._budget_s)} were not enough for all orders: "
                f"{count(unexplored, 'op')} in a state that was reached were not tried, nor what "
                "may lie behind"
            )
        if disturbed := self._benchmark.disturbed:
            yield (
                f"beside {count(disturbed, 'start')} of loaders other processes had a fifth of the "
                "cores or more: they count only where there are no others"
            )
        if self._benchmark.is_thin():
            yield "the budget was over before everything had been measured a second time"


def _room_bytes() -> int:
    return int(memory_available_bytes() * _MEMORY_SHARE)


def _ops_table(evaluator: OrderEvaluator) -> pl.DataFrame:
    """Columns of `result.OPS`."""
    rows: list[tuple[Any, ...]] = []
    lazy = [(one.lazy, one.decode_s) for one in evaluator.samples if one.lazy is not None]
    if lazy:
        first, _ = lazy[0]
        takes = f"{first.format} {first.size[0]}×{first.size[1]}"
        gives = described(evaluator.inputs[0].value)
        low, high = _interval([each_s for _, each_s in lazy], np.median)
        rows.append(
            (-1, DECODE, None, "", takes, gives, evaluator.fixed.decode_s, low, high, None, None)
        )
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        low, high = _interval(list(outcome.times_s))
        rows.append(
            (
                op.position,
                op.name,
                outcome.is_random,
                op.settings,
                _kinds(evaluator.inputs_of(op.position)),
                _kinds(outcome.results),
                outcome.seconds,
                low,
                high,
                *op.source,
            )
        )
    return pl.DataFrame(rows, OPS, orient="row")


def _kinds(inputs: Sequence[OpInput]) -> str:
    """What samples are, in words; of several kinds the first, and how many others there are."""
    kinds = list(dict.fromkeys(described(given.value) for given in inputs))
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]} and {count(len(kinds) - 1, 'other kind')}"


def _interval(
    times_s: list[float], centre: Callable[..., Any] = np.mean
) -> tuple[float | None, float | None]:
    """The ends of the interval of the centre, from resampled samples; None for a single one."""
    if len(times_s) < 2:  # noqa: PLR2004 - one has no spread
        return None, None
    rng = np.random.default_rng(_SEED)
    resampled = centre(rng.choice(times_s, size=(_DRAWS, len(times_s))), axis=1)
    low, high = np.percentile(resampled, ENDS)
    return float(low), float(high)


def _costs_table(found: SearchResult) -> pl.DataFrame:
    """Columns of `result.COSTS`."""
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


def _notes_on_ops(evaluator: OrderEvaluator) -> Iterator[str]:
    """What has to be known of the ops."""
    if len(evaluator.ops) == 1:
        why = why_one(evaluator.ops[0].call)
        yield f"{evaluator.ops[0].name} is the only op: there is no other order{why and f'; {why}'}"
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        if outcome.unsteady:
            yield f"{outcome.unsteady}: it is only compared on what it gets as it is"
        if outcome.changes_input:
            yield f"{op.name} changes its input in place: it always got a copy here"
        if not evaluator.stream(op.position).copied:
            yield f"{op.name} cannot be copied: it was used itself, and its attributes put back"
    if evaluator.idle_text:
        yield f"{evaluator.idle_text}: nothing is known of it"
    if evaluator.searched < len(evaluator.inputs):
        yield (
            f"orders were searched on {count(evaluator.searched, 'sample')}, and those that were "
            f"found compared on {len(evaluator.inputs)}"
        )
