"""Evaluation of a pipeline: cost and data of any order or change, and loaders that apply it.

Everything runs in this process, on the captured samples, with one torch thread, and each op on its
own stream of random numbers. The search and the proposals run inside of one `guarded` block; the
methods for the panel guard themselves. Nothing here changes an object of the user's.

A pipeline that `__getitem__` writes as calls may have several groups of ops, such as those of image
and mask, which never exchange places.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle, groupby, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.bench.measurement import Measurement
from stallscope.bench.samples import Contest, PairedSamples, SamplePair
from stallscope.isolation import one_thread
from stallscope.loops.cached_values import fresh
from stallscope.targets.loaders import private_copy
from stallscope.units import said_by
from stallscope.verbs.orders.capture import first_indices
from stallscope.verbs.orders.equivalence import compare_outputs, described, pictures
from stallscope.verbs.orders.pipeline import name_of, passed_on
from stallscope.verbs.orders.result import NoSuchOrderError, timed
from stallscope.verbs.orders.run_ops import (
    NotComparableError,
    OpInput,
    Outcome,
    Stream,
    digest_of,
    own_value,
    preserving_state,
    restored,
    state_of,
)
from stallscope.verbs.orders.search import OrderGraph, usual_orders
from stallscope.verbs.orders.variant import (
    BATCH,
    CACHE,
    DECODE,
    DIFFERENT,
    FAILS,
    FETCH,
    IDENTICAL,
    NEAR,
    NOT_COMPARED,
    ON_BATCH,
    REDRAWN,
    ROUNDING,
    CostPart,
    FixedCosts,
    Grade,
    Variant,
    change_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stallscope.verbs.orders.capture import CapturedSample, RecordedStream
    from stallscope.verbs.orders.variant import Picture, Site

_SEARCHED: Final = 5
"""Most samples on which orders are searched; the orders are then compared on all samples, and timed
on others."""
_QUICK_S: Final = 0.8
"""Seconds for measuring an order that the user tries by hand; at least one pair is measured.
Comparing it takes half of them; at least two samples are compared."""


class OrderEvaluator:
    """The ops of one pipeline, on the samples that were captured.

    Attributes:
        ops: each is called on the result of the one before.
        groups: positions of the ops that may exchange places.
        inputs: the samples before the first op.
        original: outputs of the original pipeline.
        outcomes: of each op in the original pipeline, by position.
        inputs_of: inputs of each op in the original pipeline, by position.
        fixed: cost of a sample outside of its ops.
        replay: recorded samples of a stream; None: the dataset has an index.
        graphs: the ops of each group that were tried; `predict` extends them.
        grades: grade by digest of a group's output, on the searched samples.
        searched: number of samples on which orders are searched.
        idle: names of random ops that changed no sample in any draw.
        variants: all pipelines; the first is the original.
    """

    def __init__(
        self,
        loader: Any,
        site: Site,
        samples: Sequence[CapturedSample],
        tolerance: str = ROUNDING,
        replay: RecordedStream | None = None,
    ) -> None:
        self.loader, self.site, self.samples = loader, site, samples
        self.replay = replay
        self.tolerance = tolerance
        self.ops, self.as_it_is = site.ops, tuple(range(len(site.ops)))
        groups = groupby(self.ops, lambda op: op.group)
        self.groups = [tuple(op.position for op in group) for _, group in groups]
        self.inputs = [sample.input for sample in samples]
        self.original: list[OpInput] = []
        self.outcomes: dict[int, Outcome] = {}
        self.inputs_of: dict[int, list[OpInput]] = {}
        self.fixed = FixedCosts()
        self.graphs: list[OrderGraph] = []
        self.grades: dict[str, str] = {}
        self.searched = min(_SEARCHED, len(samples))
        self.idle: list[str] = []
        self.variants: list[Variant] = []
        self._again: list[OpInput] = []
        self._pairs: dict[tuple[int, ...], list[SamplePair]] = {}
        # the object keeps its `id`, which is part of the key
        self._streams: dict[tuple[int, int], tuple[Stream, Any]] = {}
        for position in self.as_it_is:
            self.stream(position)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Use one torch thread, as in a worker, and restore the state that ops change."""
        streams = self._streams.values()
        restores = [restore for stream, _ in streams for restore in stream.restores()]
        with preserving_state(self.loader), restored(restores), one_thread():
            yield

    def stream(self, position: int, op: Any = None) -> Stream:
        """Return the stream of an op, or of an object that replaces it, with the same draws."""
        key = (position, id(op))
        if key not in self._streams:
            stream = Stream(self.ops[position], op)
            if op is not None:
                stream.telling = self.stream(position).telling
            self._streams[key] = stream, op
        return self._streams[key][0]

    # ---- orders, op by op ---------------------------------------------------------------------

    def run_original(self, is_over: Callable[[], bool]) -> None:
        """Run the original ops, before any other method."""
        inputs = self.inputs
        for position, op in enumerate(self.ops):
            stream = self.stream(position)
            outcome = stream.measure(inputs)
            if outcome.is_random and not outcome.unsteady:
                acting = stream.find_telling_draws(inputs, outcome.results, is_over)
                if stream.telling:
                    outcome = stream.measure(inputs)
                if not acting:
                    self.idle.append(op.name)
            self.outcomes[position], self.inputs_of[position] = outcome, inputs
            inputs = list(outcome.results)
        for group in self.groups:
            start = self.inputs_of[group[0]][: self.searched]
            graph = OrderGraph(group, start, state_of(start), self.attempt, self.again)
            graph.walk(group)  # uses the outcomes; calls no op
            self.graphs.append(graph)
        self.original = inputs

    def search(self, is_over: Callable[[], bool]) -> None:
        """Try the ops of each group in all orders that differ, until the time is used up."""
        for graph in self.graphs:
            graph.search(usual_orders(graph.positions, self.inputs_of, self.outcomes), is_over)

    def attempt(self, position: int, applied: Sequence[int], samples: Sequence[OpInput]) -> Outcome:
        """Try an op on samples; `applied` are the ops of its group before it."""
        op, outcome = self.ops[position], self.outcomes[position]
        group = next(group for group in self.groups if position in group)
        if tuple(applied) == group[: group.index(position)]:
            return outcome.first(self.searched)
        before = self.inputs_of[position][: self.searched]
        if outcome.unsteady and digest_of(samples) != digest_of(before):
            return Outcome(why_not=f"not comparable: {outcome.unsteady}")
        try:
            tried = self.stream(position).measure(samples)
        except Exception as error:  # noqa: BLE001 - an op may raise anything on unusual input
            text = said_by(error) or "no text"
            sample = described(own_value(op, samples[0]))
            why = f"{op.name} raises {type(error).__name__} on {sample}: {text:.160}"
            return Outcome(why_not=why)
        if len(applied) == len(group) - 1 and tried.state and tried.state.digest not in self.grades:
            original = self.outcomes[group[-1]].results[: self.searched]
            with suppress(Exception):  # values of the user's own kind; they count as different
                self.grades[tried.state.digest] = _compared(original, tried.results).equivalence
        return tried

    def again(self, position: int, samples: Sequence[OpInput]) -> tuple[OpInput, ...]:
        """Run an op again that was tried on these samples."""
        return tuple(self.stream(position).outputs(samples))

    def op_seconds(self, order: Sequence[int]) -> Iterator[tuple[int, Outcome | None, float]]:
        """Yield each op of an order, its outcome, and its cost on all samples.

        The other samples may be larger than the searched ones, so an op's time is scaled by the
        ratio of both in the original pipeline. An op that was not tried there costs what it does in
        the original.
        """
        for graph in self.graphs:
            for position, tried in graph.follow(order):
                times_s = self.outcomes[position].times_s
                searched_s = fmean(times_s[: self.searched])
                took_s = tried.seconds if tried else searched_s
                scale = fmean(times_s) / searched_s if searched_s else 1.0
                yield position, tried, took_s * scale

    @property
    def whole_s(self) -> float:
        """Seconds per sample of the original pipeline, including everything around the ops."""
        return sum(part.seconds for part in self._parts(Variant(self.as_it_is)))

    @property
    def beside_s(self) -> float:
        """Seconds per sample that no call of a dataset's `__getitem__` includes."""
        around_s = self.fixed.fetch_s + self.fixed.decode_s if self.replay else 0.0
        return self.fixed.batch_s + around_s

    def whole_order(self, first: Iterable[int]) -> tuple[int, ...]:
        """Return an order of all ops, with these first in their groups."""
        order = tuple(dict.fromkeys((*first, *self.as_it_is)))
        return tuple(op for group in self.groups for op in order if op in group)

    # ---- variants -----------------------------------------------------------------------------

    def add(self, variant: Variant) -> Variant:
        """Add a variant to the result, with its derived fields."""
        done = self._completed(replace(variant, trial=len(self.variants)))
        self.variants.append(done)
        return done

    def mark_failed(self, failed: Mapping[int, str]) -> None:
        """Mark variants as failed that raised while they were measured; never the original."""
        for trial, why in failed.items():
            if trial:
                variant = replace(self.variants[trial], grade=Grade(FAILS, why=why))
                self.variants[trial] = self._completed(variant)

    def _completed(self, variant: Variant) -> Variant:
        parts, whole_s = self._parts(variant), self.whole_s
        sum_s = sum(part.seconds for part in parts)
        works = variant.grade.works or variant.grade is NOT_COMPARED
        took_s = sum_s if works and not math.isnan(sum_s) else None
        is_near = variant.grade.within(NEAR) and not variant.grade.why
        return replace(
            variant,
            order=" → ".join(filter(None, self._names_in(variant).values())),
            gains=bool(took_s and took_s < whole_s and is_near and variant.kind != CACHE),
            code=self.site.code_of(variant),
            parts=tuple(part for part in parts if part.seconds > 0),
            predicted_s=took_s,
            predicted_speedup=whole_s / took_s if took_s else None,
        )

    def _names_in(self, variant: Variant) -> dict[int, str]:
        """Return the names of a variant's ops in order; "": another op does this op's work."""
        names = {}
        for position in variant.positions:
            replacement = variant.replaced.get(position)
            on_batch = f" ({ON_BATCH})" if position in variant.on_batch else ""
            named = self.ops[position].name if replacement is None else name_of(replacement)
            names[position] = "" if replacement is passed_on else named + on_batch
        return names

    def _parts(self, variant: Variant) -> list[CostPart]:
        """Return the parts of a variant's time, up to an op that raises; nan: unknown."""
        costs, names, fixed = variant.costs, self._names_in(variant), self.fixed
        parts = [
            CostPart(FETCH, costs.get(FETCH, fixed.fetch_s), "fetch"),
            CostPart(DECODE, costs.get(DECODE, fixed.decode_s), "decode"),
        ]
        for position, tried, seconds in self.op_seconds(variant.per_sample):
            if tried is not None and tried.state is None:
                return parts
            if position in costs and (usual_s := self.outcomes[position].seconds):
                seconds *= costs[position] / usual_s  # noqa: PLW2901 - also in another order
            parts.append(CostPart(names[position], seconds, "transform"))
        if variant.on_batch:
            moved = ", ".join(self.ops[position].name for position in variant.on_batch)
            parts.append(CostPart(f"{moved} {ON_BATCH}", costs[ON_BATCH], "collate"))
        return [*parts, CostPart(BATCH, fixed.batch_s, "collate")]

    def of_order(self, order: tuple[int, ...]) -> Variant:
        """Return the variant of an order whose ops were tried, not compared yet unless it fails."""
        rows = ([position for position in order if position in group] for group in self.groups)
        names = [op.name for op in self.ops]
        changed = [change_of(row, names) for row in rows if row != sorted(row)]
        drawing = [position for position in order if self.outcomes[position].is_random]
        reasons = (tried.why_not for _, tried, _ in self.op_seconds(order) if tried)
        why = next(filter(None, reasons), "")
        return Variant(
            order,
            change="; ".join(changed) or "as it is",
            changes="" if drawing == sorted(drawing) else REDRAWN,
            grade=Grade(FAILS, why=why) if why else NOT_COMPARED,
        )

    # ---- the data of variants ------------------------------------------------------------------

    def judged(self, variant: Variant, *, shows: bool = False, samples: int = 0) -> Variant:
        """Grade a variant's data against the original's, on some or (0) all samples."""
        n = samples or len(self.samples)
        shown: list[tuple[Picture, Picture] | None] = []
        try:
            new = self._outputs(variant, n)
            grade = self._graded(variant, new)
            pairs = zip(self.original[:2], new, strict=False) if shows else ()
            shown = [pictures(old.value, own.value) for old, own in pairs]
        except NotComparableError as error:
            grade = Grade(DIFFERENT, compared=n, why=str(error))
        except Exception as error:  # noqa: BLE001 - an op may raise anything on unusual input
            grade = Grade(FAILS, why=f"raises {type(error).__name__}: {said_by(error):.160}")
        return replace(variant, grade=grade, pictures=tuple(filter(None, shown)))

    def _graded(self, variant: Variant, new: list[OpInput]) -> Grade:
        """Grade a variant's outputs on the first samples."""
        n, original = len(new), self.original[: len(new)]
        unsteady = "; ".join(filter(None, (each.unsteady for each in self.outcomes.values())))
        if digest_of(new) == digest_of(original):
            if unsteady or not any(outcome.is_random for outcome in self.outcomes.values()):
                return Grade(IDENTICAL, compared=n)
            as_it_is = Variant(self.as_it_is)
            self._again = self._again or self._outputs(as_it_is, len(self.inputs), again=True)
            original, new = self._again[:n], self._outputs(variant, n, again=True)
            if digest_of(original) == digest_of(new):
                return Grade(IDENTICAL, compared=2 * n, why=self.idle_text)
        elif unsteady:
            return Grade(DIFFERENT, compared=n, why=f"not comparable: {unsteady}")
        return _compared(original, new)._replace(compared=n)

    @property
    def idle_text(self) -> str:
        """Sentence on random ops that changed no sample in any draw; "": there are none."""
        names = ", ".join(self.idle)
        return f"{names} changed no sample in any draw that was tried" if names else ""

    def _outputs(self, variant: Variant, n: int, *, again: bool = False) -> list[OpInput]:
        """Run a variant on the first samples, on the draws for comparing orders, or on others.

        Raises:
            NotComparableError: an op that keeps a state gets another input than the original's.
        """
        values = self.inputs[:n]
        if variant.draft is not None:
            values = [OpInput((variant.draft(x.source()),), {}) for x in self.samples[:n]]
        for position in variant.per_sample:
            unsteady, usual = self.outcomes[position].unsteady, self.inputs_of[position][:n]
            if unsteady and not again and digest_of(values) != digest_of(usual):
                raise NotComparableError(f"not comparable: {unsteady}")
            stream = self.stream(position, variant.replaced.get(position))
            values = stream.outputs(values, again=again)
        return self._on_batch(variant, values) if variant.on_batch else values

    def _on_batch(self, variant: Variant, inputs: Sequence[OpInput]) -> list[OpInput]:
        """Return the ops' outputs on a batch of the loader's size.

        A matrix product may round differently in another size. An epoch may end with a smaller
        batch, so the first sample gets a batch of its own.
        """
        values = [op_input.value for op_input in inputs]
        size = max(self.loader.batch_size or 1, len(values))
        column = torch.stack(list(islice(cycle(values), size)))
        work = self.site.batch_ops(variant)
        results = [work(fresh(column[:1]))[0], *work(column)[1 : len(values)]]
        return [OpInput((result,), {}) for result in results]

    # ---- for the panel --------------------------------------------------------------------------

    def predict(self, positions: Sequence[int]) -> Variant:
        """Predict the cost of an order; times the ops in states that are new.

        Returns:
            Variant without a grade; if the order fails, its parts end before the op that raises.

        Raises:
            NoSuchOrderError: these are not the positions of all ops.
        """
        order = self._checked(positions)
        for variant in self.variants:
            if variant.is_order and variant.positions == order and variant.predicted_s is not None:
                return variant
        if any(tried is None for _, tried, _ in self.op_seconds(order)):
            with self.guarded():
                for graph in self.graphs:
                    graph.walk(order)
        return self._completed(self.of_order(order))

    def compare(self, variant: Variant) -> Variant:
        """Grade an order that the user tries, with pictures, on as many samples as take a moment.

        A grade from the search, which uses more samples, stays.
        """
        each_s = max(2 * (variant.predicted_s or 0.0), 1e-6)
        samples = min(max(int(_QUICK_S / 2 / each_s), 2), len(self.samples))
        with self.guarded():
            judged = self.judged(variant, shows=True, samples=samples)
        keeps_grade = variant.grade.compared > judged.grade.compared
        return self._completed(replace(judged, grade=variant.grade) if keeps_grade else judged)

    def measure(self, variant: Variant, budget_s: float = _QUICK_S) -> Variant:
        """Time samples of an order and of the original in turn; a second call adds to the first.

        Ends before the budget once the result is significant.

        Raises:
            NoSuchOrderError: the order raises.
        """
        pairs = PairedSamples(Measurement("orders", budget_s))
        pairs.pairs += self._pairs.get(variant.positions, [])
        indexed = self.replay.loader if self.replay else self.loader
        with private_copy(indexed) as mine, self.guarded():
            dataset = self.site.loader_with(variant, mine).dataset
            indices = first_indices(mine, len(self.samples))
            own, reordered = mine.dataset.__getitem__, dataset.__getitem__
            pairs.run({1: Contest("", own, reordered, indices, beside_s=self.beside_s)})
        if not pairs.pairs:
            names = ", ".join(op.name for op in self.ops)
            raise NoSuchOrderError(f"this order of {names} was not measured: {pairs.failed.get(1)}")
        self._pairs[variant.positions] = pairs.pairs
        return timed(variant, pairs.pairs, 1)

    # ---- loaders ------------------------------------------------------------------------------

    def apply(self, loader: Any, trial: int | Sequence[int]) -> Any:
        """Return a new loader with the pipeline of a trial, or with an order.

        Args:
            loader: with the same pipeline at the same place; stays unchanged.
            trial: the number of a trial, or the positions of an order.

        Raises:
            NoSuchOrderError: there is no such trial or order, or another pipeline in the loader.
        """
        variant = self._chosen(trial)
        site, names = self.site.found_in(loader)
        if site is None:
            wanted = ", ".join(op.name for op in self.ops)
            place = self.site.text.partition(", ")[0]
            raise NoSuchOrderError(
                f"this loader's {place} is another pipeline "
                f"({', '.join(names) or 'nothing'} instead of {wanted}): give the loader that was "
                "measured, or call ss.orders for this one"
            )
        return site.loader_with(variant, loader)

    def _chosen(self, trial: int | Sequence[int]) -> Variant:
        if not isinstance(trial, int):
            return Variant(self._checked(trial))
        if not 0 <= trial < len(self.variants):
            last = len(self.variants) - 1
            raise NoSuchOrderError(
                f"there is no trial {trial}: .table() has the trials 0 to {last}"
            )
        chosen = self.variants[trial]
        if not chosen.grade.works:
            raise NoSuchOrderError(
                f"trial {trial} ({chosen.change}) cannot be applied: {chosen.grade.why}"
            )
        return chosen

    def _checked(self, positions: Sequence[int]) -> tuple[int, ...]:
        order = list(positions)
        if sorted(order) != list(self.as_it_is):
            names = ", ".join(f"{op.position} {op.name}" for op in self.ops)
            raise NoSuchOrderError(
                f"{order} is not an order of this pipeline: give each of its ops once, by "
                f"its position ({names})"
            )
        return self.whole_order(order)


def _compared(original: Sequence[OpInput], new: Sequence[OpInput]) -> Grade:
    return compare_outputs(*([op_input.value for op_input in row] for row in (original, new)))
