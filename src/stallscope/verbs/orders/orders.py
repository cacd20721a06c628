"""`ss.orders`: the fastest order of the transforms with the same data, and other changes.

In this process, on samples that are captured once: the cost of each op, the orders that give the
original's data, and the savings of other changes. Then the most promising variants are timed on
pairs of samples, by the original and by the variant. The best is confirmed in the loader's workers.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import AS_IT_IS, BLOCKS, FASTER, compared, mean_of
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement, memory_limit
from stallscope.bench.samples import NARROW, PAIRS, Contest, PairedSamples
from stallscope.errors import ArgumentError, made_here
from stallscope.isolation import one_thread
from stallscope.loops.cached_loaders import (
    check_plain,
    going_on,
    is_stream,
    next_indices,
    warm,
)
from stallscope.loops.training_loop import TimedLoop, check_whole
from stallscope.machine import machine, require_single_rank
from stallscope.targets import target as targets
from stallscope.targets.loaders import private_copy
from stallscope.units import BUDGET_S, count, seconds
from stallscope.verbs.orders import proposals
from stallscope.verbs.orders.calls import find_calls
from stallscope.verbs.orders.capture import (
    NoPipelineError,
    capture,
    first_indices,
    fixed_costs,
    replayed,
)
from stallscope.verbs.orders.equivalence import described
from stallscope.verbs.orders.evaluator import OrderEvaluator
from stallscope.verbs.orders.pipeline import places
from stallscope.verbs.orders.result import (
    OPS,
    Counts,
    Orders,
    OrdersConditions,
    check_tolerance,
    parts_table,
    trials_table,
)
from stallscope.verbs.orders.run_ops import own_value, preserving_state
from stallscope.verbs.orders.variant import DECODE, ROUNDING, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stallscope.bench.comparison import Factor
    from stallscope.verbs.orders.capture import CapturedSample, RecordedStream
    from stallscope.verbs.orders.pipeline import Op
    from stallscope.verbs.orders.run_ops import OpInput


_SEARCH_UNTIL: Final = 0.35
"""Share of the budget for trying orders, and the analysis before."""
_COMPARE_UNTIL: Final = 0.5
"""Share of the budget for that and for comparing variants."""
_PAIRED: Final = 0.6
"""Share of the time left for timing single variants, and then again for combined ones; the rest is
for the best variant in the loader."""
_PASSES: Final = 40
"""Approximate number of times that the analysis makes each sample."""
_FEWEST_PASSES: Final = 12
"""Number of times that the analysis makes a single sample, at least."""
_GRACE_S: Final = 1.0
"""Seconds that a measurement may always take, so a shorter budget is not refused."""
_RECORD_UNTIL: Final = 0.15
"""Share of the budget for recording samples of a stream."""
_RECORDED: Final = 64
"""Recorded samples of a stream, at most, where two batches have more."""
_BATCHES: Final = 8
"""Batches that are made repeatedly."""
_CLEAR: Final = 0.1
"""Half width of the interval of the loader's speedup at which measuring ends."""


def orders(
    target: Any,
    *,
    alternatives: Mapping[Any, Any] | None = None,
    samples: int = 16,
    tolerance: str = ROUNDING,
    budget_s: float = BUDGET_S,
) -> Orders:
    """Look for a faster pipeline that gives the same data.

    Makes samples in this process, and batches with copies of the loader in its own workers. A
    stream runs once for some samples, whose transforms are then repeated.
    Afterwards all random generators, samplers, and attributes of the dataset and its transforms are
    restored. An exception of the dataset passes unchanged. If an exception or Ctrl-C ends the call,
    its attribute `orders` holds what was measured before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        alternatives: rewrites of the pipeline's ops, by the op's name or position
            (`{"RandomMask": MyFasterMask()}`), one or several for each; compared on the same draws.
        samples: number of samples for comparing pipelines and timing ops; fewer if they are large.
        tolerance: largest difference of a recommended pipeline's data from the original's:
            "identical", "rounding" (of floating-point numbers) or "8-bit rounding".
        budget_s: time limit, seconds; the sample that is under way then is finished. The call ends
            earlier once no question is open.

    Raises:
        ArgumentError: a number or tolerance cannot be used, the budget is too short for a single
            sample, or a rewrite names no op of the pipeline.
        NoPipelineError: the dataset calls no transforms that have an order.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target is not one DataLoader that torch's own code iterates, or this
            process is one of several ranks.
        NoBatchError: a batch did not come in time.
    """
    measurement = Measurement("orders", budget_s)
    check_whole("samples", samples, 1)
    if alternatives is not None and not isinstance(alternatives, dict):
        raise ArgumentError(
            f"alternatives={alternatives!r:.80}: give a dictionary of an op's name and its rewrite"
        )
    check_tolerance(tolerance)
    require_single_rank()
    target = targets.target(target)
    check_plain(target, "its pipeline cannot be run by itself")
    original = target.loaders[0]
    copied = private_copy(original)
    with (
        measurement.of(target.name),
        copied as loader,
        preserving_state(original),
        one_thread(),
    ):
        order_search = OrderSearch(loader, target, measurement, tolerance)
        measurement.result = order_search.partial_result
        with made_here(original.num_workers):
            order_search.analyze(int(samples), alternatives)
        order_search.measure()
        return order_search.result()


class OrderSearch:
    """One search for a faster pipeline, with a shallow copy of the user's loader."""

    def __init__(
        self, loader: Any, target: targets.Target, measurement: Measurement, tolerance: str
    ) -> None:
        self._loader, self._target, self._tolerance = loader, target, tolerance
        self._stream: Any = None
        """The loader over a stream; `_loader` is then one over recorded samples."""
        self._measurement = measurement
        self._evaluator: OrderEvaluator
        self._finalists: list[int] = []
        self._pairs: PairedSamples | None = None
        self._turns: InTurns | None = None

    def analyze(self, samples: int, alternatives: Mapping[Any, Any] | None) -> None:
        """Analyze the ops, and find and compare variants, all in this process."""
        replay = self._recorded(samples) if is_stream(self._loader) else None
        n_samples = self._affordable(samples)
        site, captured = self._captured(n_samples)
        self._evaluator = evaluator = OrderEvaluator(
            self._target.loaders[0], site, captured, self._tolerance, replay
        )
        rewrites = list(proposals.rewrites_of(evaluator, alternatives))
        is_searched = partial(self._measurement.has_used, _SEARCH_UNTIL)
        is_compared = partial(self._measurement.has_used, _COMPARE_UNTIL)
        with evaluator.guarded():
            evaluator.run_original(is_searched)
            fixed = fixed_costs(self._loader, captured)
            evaluator.fixed = replace(replay.costs, batch_s=fixed.batch_s) if replay else fixed
            proposals.add_original(evaluator)
            proposals.add_alternatives(evaluator, rewrites)
            evaluator.search(is_searched)
            proposals.add_orders(evaluator, is_compared)
            proposals.add_candidates(evaluator, self._measurement.note, is_compared)

    def _recorded(self, samples: int) -> RecordedStream:
        """Let recorded samples of a stream take the place of its loader."""
        self._stream = self._loader
        most = max(samples, min(2 * (self._loader.batch_size or 1), _RECORDED))
        is_over = partial(self._measurement.has_used, _RECORD_UNTIL)
        replay = replayed(self._loader, most, memory_limit() // 2, is_over)
        self._loader = replay.loader
        self._measurement.note(
            f"{count(len(replay.loader.dataset), 'sample')} of the stream were recorded; "  # type: ignore[arg-type]  # it has a length
            "each time includes the stream's work around the pipeline"
        )
        return replay

    def _captured(self, samples: int) -> tuple[Any, list[CapturedSample]]:
        """Capture samples of a pipeline that the dataset holds, or else writes as calls.

        Ops in several attributes are a pipeline that `__getitem__` writes as calls.
        """
        dataset, held = self._loader.dataset, None
        room_bytes = memory_limit()
        try:
            held = capture(self._loader, samples, room_bytes)
        except NoPipelineError as error:
            no_pipeline = error
        is_single = held is not None and len(held[0].chain.ops) == 1 and len(places(dataset)) > 1
        if self._stream is None and (held is None or is_single):
            with suppress(Exception):  # the user's code may not run as a copy
                indices = first_indices(self._loader, samples)
                if calls := find_calls(dataset, indices, room_bytes):
                    return calls
        if held is None:
            raise no_pipeline
        site, captured, notes = held
        for note in notes:
            self._measurement.note(note)
        return site, captured

    def _affordable(self, samples: int) -> int:
        """Return the number of samples that the budget allows, judged by the first ones."""
        budget_s = self._measurement.budget_s
        took_s = float("inf")
        for index in first_indices(self._loader, 2):  # the first includes one-time imports
            began_s = time.perf_counter()
            self._loader.dataset[index]
            took_s = min(took_s, time.perf_counter() - began_s)
            if took_s * _PASSES * samples < _COMPARE_UNTIL * budget_s:
                return samples
            if took_s * _FEWEST_PASSES > max(self._measurement.left_s, _GRACE_S):
                least = seconds(_FEWEST_PASSES * took_s + self._measurement.used_s)
                raise ArgumentError(
                    f"budget_s={budget_s:g}: making one sample takes {seconds(took_s)}; to compare "
                    f"pipelines give {least} or more"
                )
        return max(min(int(_COMPARE_UNTIL * budget_s / (took_s * _PASSES)), samples), 1)

    def measure(self) -> None:
        """Time the finalists on pairs of samples, combine those that gain, confirm the best."""
        evaluator = self._evaluator
        batches = next_indices(self._loader, _BATCHES)
        self._pairs = pairs = PairedSamples(self._measurement)
        with evaluator.guarded():
            self._finalists = proposals.choose_finalists(evaluator)
            pairs.run(self._contests(evaluator, self._finalists, batches), _PAIRED)
            evaluator.mark_failed(pairs.failed)
            speedups = {trial: pairs.factor(trial).factor for trial in self._finalists}
            together = proposals.add_together(evaluator, speedups)
            pairs.run(self._contests(evaluator, together, batches), _PAIRED)
            evaluator.mark_failed(pairs.failed)
            if best := self._best():
                pairs.run(self._contests(evaluator, [best], batches), _PAIRED, NARROW)
        self._confirm(evaluator, batches)

    def _contests(
        self, evaluator: OrderEvaluator, numbers: Iterable[int], batches: list[Any]
    ) -> dict[int, Contest]:
        """Return a contest of each variant with the original, on samples or, if needed, batches."""
        fixed, loader = evaluator.fixed, self._loader
        has_batches = loader.batch_sampler is not None
        once = {
            key_of(index): index
            for batch in batches
            for index in (batch if has_batches else [batch])
        }
        contests: dict[int, Contest] = {}
        for number in numbers:
            variant = evaluator.variants[number]
            units, samples = list(once.values()), 1
            changed = evaluator.site.loader_with(variant, loader)
            as_it_is, new = loader.dataset.__getitem__, changed.dataset.__getitem__
            beside_s = evaluator.beside_s
            if variant.on_batch and has_batches:
                units, samples = batches, len(batches[0])
                beside_s = samples * (beside_s - fixed.batch_s)
                as_it_is, new = partial(_batch, loader), partial(_batch, changed)
            if variant.cached:
                units = units[: len(evaluator.samples)]
                for index in units:
                    new(index)
            expected_s = 2 * samples * evaluator.whole_s
            contests[number] = Contest(
                variant.change, as_it_is, new, units, samples, beside_s, expected_s
            )
        return contests

    def _confirm(self, evaluator: OrderEvaluator, batches: list[Any]) -> None:
        """Measure the best variant in the loader's workers, without a step."""
        trial = self._best()
        if trial is None:
            return
        variant, stream = evaluator.variants[trial], self._stream
        again = warm(self._loader, batches) if stream is None else going_on(stream)
        changed = evaluator.site.loader_with(variant, again)
        self._turns = turns = InTurns(self._measurement, {trial: variant.change})
        turns.add(AS_IT_IS, TimedLoop.of(targets.Target(again)))
        turns.add(trial, TimedLoop.of(targets.Target(changed)))

        def gain() -> Factor:
            return compared(turns.blocks, trial)

        turns.run(
            lambda: [] if gain().is_settled else [trial],
            lambda: [trial] if gain().half_width > _CLEAR else [],
        )
        for failing, why in turns.failed.items():
            if why.startswith("in its loader"):  # any other reason is a lack of time
                evaluator.mark_failed({failing: why})
            else:
                self._measurement.note(f"not confirmed in the loader's workers: {why}")

    def _best(self) -> int | None:
        """Return the best trial; None: none is significantly faster."""
        best = self.result().best_variant()
        return best.trial if best and best.says == FASTER else None

    def partial_result(self) -> Orders | None:
        """Return a partial result; None: not even the original was measured."""
        evaluator = getattr(self, "_evaluator", None)
        if evaluator is None or not evaluator.original:
            return None
        if not evaluator.variants:
            proposals.add_original(evaluator)
        return self.result()

    def result(self) -> Orders:
        """Return the result of everything that was measured so far."""
        evaluator = self._evaluator
        loader, graphs = evaluator.loader, evaluator.graphs
        return Orders(
            ops=_ops_table(evaluator),
            trials=trials_table(evaluator.variants),
            pairs=self._pairs.table() if self._pairs else pl.DataFrame(schema=PAIRS),
            blocks=self._turns.table() if self._turns else pl.DataFrame(schema=BLOCKS),
            parts=parts_table(evaluator.variants),
            rest=evaluator.fixed,
            counts=Counts(
                measurements=sum(graph.measurements for graph in graphs),
                states=sum(len(graph.reached_by) for graph in graphs),
                exhaustive=sum(graph.exhaustive for graph in graphs),
                unexplored=sum(graph.unexplored for graph in graphs),
            ),
            circumstances=OrdersConditions(
                name=self._target.name,
                pipeline=evaluator.site.text,
                samples=len(evaluator.samples),
                num_workers=loader.num_workers,
                batch_size=loader.batch_size,
                tolerance=self._tolerance,
                budget_s=self._measurement.budget_s,
                took_s=self._measurement.used_s,
                machine=machine(),
            ),
            notes=(
                *self._target.notes,
                *self._measurement.notes,
                *_notes_on_ops(evaluator),
                *self._notes_on_time(sum(graph.unexplored for graph in graphs)),
            ),
            bench=evaluator,
        )

    def _notes_on_time(self, unexplored: int) -> Iterator[str]:
        """Yield notes on what the budget was too short for."""
        if unexplored:
            yield (
                f"{seconds(self._measurement.budget_s)} were too short for all orders: "
                f"{count(unexplored, 'op')} (and the orders behind them) were not tried"
            )
        timed = {pair.variant for pair in self._pairs.pairs} if self._pairs else set()
        missed = [pair for pair in self._finalists if pair not in timed]
        if missed:
            yield f"{count(len(missed), 'pipeline')} not timed: raise budget_s"


def _batch(loader: Any, indices: Sequence[Any]) -> Any:
    """Return the batch of these samples, as a worker makes it."""
    return loader.collate_fn([loader.dataset[index] for index in indices])


def _ops_table(evaluator: OrderEvaluator) -> pl.DataFrame:
    """Return a table with the columns of `result.OPS`."""
    rows: list[tuple[Any, ...]] = []
    lazy = [sample for sample in evaluator.samples if sample.lazy]
    if lazy:
        gives = described(evaluator.samples[0].input.value)
        cost = mean_of([each.decode_s for each in lazy]).moved_to(evaluator.fixed.decode_s)
        decode = (-1, DECODE, None, "", lazy[0].lazy, gives)
        rows.append((*decode, cost.value, cost.low, cost.high, None, None))
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        kinds = (_kinds(op, evaluator.inputs_of[op.position]), _kinds(op, outcome.results))
        cost = mean_of(outcome.times_s)
        about = (op.position, op.name, outcome.is_random, op.settings, *kinds)
        rows.append((*about, cost.value, cost.low, cost.high, *op.source))
    return pl.DataFrame(rows, OPS, orient="row")


def _kinds(op: Op, inputs: Sequence[OpInput]) -> str:
    """Return the kind of an op's samples in words; of several the first, and their number."""
    kinds = list(dict.fromkeys(described(own_value(op, op_input)) for op_input in inputs))
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]} and {count(len(kinds) - 1, 'other kind')}"


def _notes_on_ops(evaluator: OrderEvaluator) -> Iterator[str]:
    if len(evaluator.ops) == 1:
        yield f"{evaluator.ops[0].name} is the only op: there is no other order"
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        if outcome.unsteady:
            yield f"{outcome.unsteady}: it is only compared on its original inputs"
        if not evaluator.stream(op.position).copied:
            yield f"{op.name} cannot be copied: the object itself ran, and was restored"
    if evaluator.idle:
        yield f"{evaluator.idle_text}, so its effect could not be compared"
    searched = evaluator.searched
    if searched < len(evaluator.samples):
        yield (
            f"orders were searched on {count(searched, 'sample')}, and the best compared on "
            f"{len(evaluator.samples)}"
        )
