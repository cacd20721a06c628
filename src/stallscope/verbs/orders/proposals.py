"""Proposals of variants: orders, rewrites, changes beyond the order, and combinations of these.

Only variants whose data was compared with the original's are recommended, so a wrong proposal does
no harm. The functions add to `OrderEvaluator.variants`, inside of its `guarded` block. To add
another change beyond the order, write a function and add its name to `CANDIDATES`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from stallscope.bench.measurement import memory_limit
from stallscope.errors import ArgumentError
from stallscope.loops.cached_values import bytes_of, fresh, is_image
from stallscope.units import count, repr_of, seconds, size
from stallscope.verbs.orders.calls import CallOp
from stallscope.verbs.orders.pipeline import name_of, passed_on
from stallscope.verbs.orders.run_ops import clocked, shortest_s
from stallscope.verbs.orders.variant import (
    CACHE,
    DECODE,
    DIFFERENT,
    EQUIVALENCES,
    FETCH,
    IDENTICAL,
    NEAR,
    ON_BATCH,
    Grade,
    ResizedCrop,
    Variant,
    can_be_one,
    drafted,
    moved_ops,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stallscope.verbs.orders.evaluator import OrderEvaluator

_MOST_OTHERS: Final = 3
"""Orders in the result with other data, of each grade; twice as many that raise."""
_MOST_COMPARED: Final = 50
"""Cheapest orders of one digest, of which those are taken that move the fewest ops."""
_WORTH: Final = 0.01
"""Share of a sample's time that a change has to save to move more ops, or to be combined."""
_MOST_FINALISTS: Final = 7
"""Variants that are timed."""
_KINDS: Final = ("order", "fused", "alternative", "decode", "batch")
"""Kinds of changes that can be combined; each depends only on those before it."""


def add_original(evaluator: OrderEvaluator) -> None:
    """Add the original pipeline, which has to be the first variant."""
    same = Grade(IDENTICAL, compared=len(evaluator.samples))
    evaluator.add(Variant(evaluator.as_it_is, grade=same))


# ---- rewrites of ops -----------------------------------------------------------------------------


def add_alternatives(evaluator: OrderEvaluator, rewrites: Iterable[tuple[int, Any, str]]) -> None:
    """Add the user's rewrites of ops, see `rewrites_of`, each as a variant."""
    for position, op, name in rewrites:
        old = evaluator.ops[position]
        variant = evaluator.judged(
            Variant(
                evaluator.as_it_is,
                "alternative",
                f"{name_of(op)} instead of {old.name}",
                replaced={position: op},
                names={position: name},
            )
        )
        if variant.grade.works:
            outcome = evaluator.stream(position, op).measure(evaluator.inputs_of[position])
            variant = replace(variant, costs={position: outcome.seconds})
        evaluator.add(variant)


def rewrites_of(
    evaluator: OrderEvaluator, alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Yield position, object and expression of each rewrite, whose state is restored from now on.

    Raises:
        ArgumentError: there is no such op, or the rewrite is not callable.
    """
    positions = {op.name: op.position for op in evaluator.ops}
    for key, value in (alternatives or {}).items():
        position = positions.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in evaluator.as_it_is:
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in positions)}"
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        for number, op in enumerate(several):
            if not callable(op) or isinstance(op, type):
                raise ArgumentError(
                    f"alternatives[{key!r}] is {op!r:.80}: give an op that can be called with a "
                    "sample, an object and not its class"
                )
            place = f"[{number}]" if len(several) > 1 else ""
            call = evaluator.ops[position].call
            if isinstance(call, CallOp):  # the rewrite gets the arguments of the old call
                op = replace(call, function=op)  # noqa: PLW2901
            evaluator.stream(position, op)
            yield position, op, f"alternatives[{key!r}]{place}"


# ---- orders --------------------------------------------------------------------------------------


def add_orders(evaluator: OrderEvaluator, is_over: Callable[[], bool]) -> None:
    """Add the cheapest orders with the original's data, with other data, and some that raise."""
    for graph in evaluator.graphs:
        classes = graph.cheapest(_MOST_COMPARED)
        as_it_is = [tried for _, tried in graph.follow(graph.positions)][-1]
        digest = as_it_is.state.digest if as_it_is and as_it_is.state else ""
        # each further one costs more, and moves fewer ops
        fewest = len(graph.positions) + 1
        for order in _simplest_first(classes.pop(digest, []), evaluator.whole_s):
            if is_over():
                break
            moves = len(moved_ops(order))
            if 0 < moves < fewest and _add_order(evaluator, order).grade.equivalence == IDENTICAL:
                fewest = moves
        left = dict.fromkeys(EQUIVALENCES, _MOST_OTHERS)
        for digest, orders in sorted(classes.items(), key=lambda of_data: of_data[1][0]):
            grade = evaluator.grades.get(digest, DIFFERENT)
            left[grade] -= 1
            if left[grade] >= 0 and not is_over():
                _add_order(evaluator, _simplest_first(orders, evaluator.whole_s)[0])
        for beginning in graph.failures()[: 2 * _MOST_OTHERS]:
            evaluator.add(evaluator.of_order(evaluator.whole_order(beginning)))


def _simplest_first(
    timed: Sequence[tuple[float, tuple[int, ...]]], whole_s: float
) -> list[tuple[int, ...]]:
    """Sort orders by cost; of those that cost about the same, the one that moves fewest ops."""
    least_s = min((seconds for seconds, _ in timed), default=0.0)

    def rank(entry: tuple[float, tuple[int, ...]]) -> tuple[float, int, float]:
        seconds, order = entry
        return (seconds - least_s) // (_WORTH * whole_s), len(moved_ops(order)), seconds

    return [order for _, order in sorted(timed, key=rank)]


def _add_order(evaluator: OrderEvaluator, order: tuple[int, ...]) -> Variant:
    variant = evaluator.of_order(evaluator.whole_order(order))
    return evaluator.add(evaluator.judged(variant))


# ---- changes beyond the order --------------------------------------------------------------------


def add_candidates(
    evaluator: OrderEvaluator, note: Callable[[str], None], is_over: Callable[[], bool]
) -> None:
    """Add the proposals of each candidate; note a candidate that raises."""
    for candidate in CANDIDATES:
        if is_over():
            return
        try:
            for variant in candidate(evaluator):
                evaluator.add(evaluator.judged(variant))
                if is_over():
                    return
        except Exception as error:  # noqa: BLE001 - the user's ops and files may raise anything
            note(f"a change could not be tried: {repr_of(error):.160}")


def fused(evaluator: OrderEvaluator) -> Iterator[Variant]:
    """Propose a single op for a resize and the crop that follows it."""
    for first, last in pairwise(evaluator.ops):
        inputs = evaluator.inputs_of[first.position]
        if not can_be_one(first.call, last.call) or not all(is_image(x.value) for x in inputs):
            continue
        op = ResizedCrop(first.call, last.call)
        # in the crop's place, so that it draws from the crop's stream
        took_s = evaluator.stream(last.position, op).measure(inputs).seconds
        yield Variant(
            evaluator.as_it_is,
            "fused",
            f"{first.name} and {last.name} in one",
            replaced={first.position: passed_on, last.position: op},
            costs={first.position: 0.0, last.position: took_s},
        )


def on_batch(evaluator: OrderEvaluator) -> Iterator[Variant]:
    """Propose to run the last op on the whole batch, in the collate function, the last two, etc.

    Only the last ops of a pipeline can wait for the batch, and only those that draw no random
    numbers: on a batch they would draw once for all samples.
    """
    loader, site = evaluator.loader, evaluator.site
    if loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return  # another collate function may need finished samples
    moved: tuple[int, ...] = ()
    for position in reversed(evaluator.as_it_is) if site.where is not None else ():
        outcome = evaluator.outcomes[position]
        values = [op_input.value for op_input in evaluator.inputs_of[position]]
        are_tensors = all(isinstance(value, torch.Tensor) for value in values)
        if outcome.is_random or outcome.unsteady or not are_tensors:
            return
        if len({value.shape for value in values}) > 1:
            return
        moved = (position, *moved)
        names = ", ".join(evaluator.ops[p].name for p in moved)
        variant = Variant(
            evaluator.as_it_is,
            "batch",
            f"{names} on the whole batch, in the collate function",
            on_batch=moved,
        )
        try:
            batch_s = _shortest_s(site.batch_ops(variant), [torch.stack(values)]) / len(values)
        except Exception:  # noqa: BLE001 - an op that takes no batch
            return
        yield replace(variant, costs={ON_BATCH: batch_s})


def _shortest_s(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """Return the mean over the arguments of the shortest call."""
    return statistics.fmean(
        shortest_s(lambda x=argument: clocked(partial(call, fresh(x)))[1], len(arguments))  # type: ignore[misc]
        for argument in arguments
    )


def smaller_decoding(evaluator: OrderEvaluator) -> Iterator[Variant]:
    """Propose decoding at a smaller size if an op resizes.

    Only if the pipeline gets images that are still encoded, as from `PIL.Image.open`, or if the
    dataset holds the function that reads an image from a path, as torchvision's do. A JPEG can be
    decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's documentation,
    "Image.draft", and libjpeg's `scale_denom`), which is faster and differs from decoding and then
    resizing.
    """
    wanted = _wanted_size(evaluator)
    if wanted is None:
        return
    name, width, height = wanted
    samples, own = evaluator.samples, evaluator.site.reader
    draft = partial(drafted, (width, height))
    part, part_s = (FETCH, evaluator.fixed.fetch_s) if own else (DECODE, evaluator.fixed.decode_s)
    if own is not None:
        is_possible = all(sample.input.value.mode == "RGB" for sample in samples)
    else:
        is_possible = all(s.file and s.lazy.startswith("JPEG ") for s in samples)
    if not is_possible:
        return

    def as_now(number: int) -> object:
        source = samples[number].source()
        return own.value(source) if own else source.load()

    saved_s = _shortest_s(as_now, range(len(samples)))
    saved_s -= _shortest_s(lambda number: draft(samples[number].source()), range(len(samples)))
    yield Variant(
        evaluator.as_it_is,
        "decode",
        f"JPEG decoded at the smallest size that {name} can use (Image.draft)",
        f"{name} starts from an image that libjpeg has shrunk, so pixels differ slightly",
        draft=draft,
        costs={part: max(part_s - saved_s, 0.0)},
    )


def _wanted_size(evaluator: OrderEvaluator) -> tuple[str, int, int] | None:
    """Return the first op that resizes whole images to half or less, and its largest output."""
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        before = [op_input.value for op_input in evaluator.inputs_of[op.position]]
        after = [op_input.value for op_input in outcome.results]
        if not all(map(is_image, (*before, *after))):
            return None
        shrinks = all(
            2 * b.width <= a.width and 2 * b.height <= a.height
            for a, b in zip(before, after, strict=True)
        )
        if shrinks and "resize" in op.name.lower() and not outcome.is_random:
            return op.name, max(b.width for b in after), max(b.height for b in after)
    return None


def cached_head(evaluator: OrderEvaluator) -> Iterator[Variant]:
    """Propose to cache the results of the pipeline's first ops, which are the same every time.

    The cache ends before the first op that draws random numbers: caching its results would freeze
    the augmentation.
    """
    if evaluator.replay or evaluator.site.where is None:
        return
    if any(len(sample.input.args) != 1 for sample in evaluator.samples):
        return
    cut = 0
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
        if outcome.is_random or outcome.unsteady:
            break
        cut += 1
    inputs = evaluator.inputs_of.get(cut, evaluator.original)
    values = [op_input.value for op_input in inputs]
    entries, workers = len(evaluator.loader.dataset), max(evaluator.loader.num_workers, 1)
    needs_bytes = bytes_of(values) / len(values) * entries
    free_bytes = memory_limit(None, 1.0)
    fits = needs_bytes * workers < free_bytes / 2
    saved_s = evaluator.fixed.fetch_s + evaluator.fixed.decode_s
    saved_s += sum(evaluator.outcomes[position].seconds for position in range(cut))
    last = evaluator.ops[cut - 1].name if cut else "decoding"
    where = f"each of {workers} workers" if workers > 1 else "one process"
    effect = f"too much for the {size(free_bytes)} that are free, so it was not timed"
    if fits:
        saves = f"saves {seconds(saved_s)} per sample once all are cached"
        effect = f"{saves}; workers that end lose their cache"
    yield Variant(
        evaluator.as_it_is,
        CACHE,
        f"everything up to {last} kept in memory",
        f"{size(needs_bytes)} for {count(entries, 'sample')} in {where}; {effect}",
        cached=cut + 1,
        costs=dict.fromkeys((FETCH, DECODE, *range(cut)), 0.0 if fits else math.nan),
    )


CANDIDATES: Final = (fused, on_batch, smaller_decoding, cached_head)


# ---- finalists, and combinations -----------------------------------------------------------------


def choose_finalists(evaluator: OrderEvaluator) -> list[int]:
    """Return the trials to measure: the fastest of each kind, then the rest.

    The largest predicted gain comes first, as a short budget may allow for one trial only.
    """
    can = [
        variant
        for variant in evaluator.variants[1:]
        if variant.predicted_s is not None and variant.grade.within(NEAR)
        # a rewrite of the user's is always measured; anything else if it is predicted to gain
        if variant.kind == "alternative" or variant.predicted_s < evaluator.whole_s
    ]
    can.sort(key=lambda v: (not v.grade.within(evaluator.tolerance), v.predicted_s or 0.0))
    first: dict[Any, Variant] = {}
    for variant in can:
        key: Any = variant.kind
        if variant.is_order:  # the fastest of each grade in each group
            key = (variant.grade.equivalence, _parts_changed(evaluator, variant))
        first.setdefault(key, variant)
    firsts = sorted(first.values(), key=lambda variant: not variant.gains)
    rest = [variant for variant in can if variant not in firsts and variant.gains]
    return [variant.trial for variant in (*firsts, *rest)][:_MOST_FINALISTS]


def add_together(evaluator: OrderEvaluator, measured: Mapping[int, float]) -> list[int]:
    """Add the combination of the changes that gain; of those that exclude each other, the best.

    A change needs a predicted gain and, in `measured` by trial, a measured one. It stays out if the
    data would no longer be within the tolerance.

    Returns:
        Trial of the combination; nothing if there are fewer than two changes.
    """
    whole_s = evaluator.whole_s
    saved_s = {}
    for variant in evaluator.variants:
        if variant.predicted_s is not None and variant.grade.within(evaluator.tolerance):
            measured_s = whole_s / measured.get(variant.trial, math.inf)
            saved_s[variant] = whole_s - max(variant.predicted_s, measured_s)
    gaining = [v for v in saved_s if v.kind in _KINDS and saved_s[v] > _WORTH * whole_s]
    gaining.sort(key=lambda variant: (_KINDS.index(variant.kind), -saved_s[variant]))
    picked: list[Variant] = []
    joined, changed = Variant(evaluator.as_it_is), frozenset[Any]()
    for variant in gaining:
        parts = _parts_changed(evaluator, variant)
        candidate = _joined(evaluator, joined, variant)
        if not parts & changed and evaluator.judged(candidate).grade.within(evaluator.tolerance):
            joined, picked, changed = candidate, [*picked, variant], changed | parts
    if len(picked) < 2:  # noqa: PLR2004 - a single change is a variant already
        return []
    together = replace(
        joined,
        kind="order" if {variant.kind for variant in picked} == {"order"} else "together",
        change="; ".join(variant.change for variant in picked),
        changes="; ".join(dict.fromkeys(v.changes for v in picked if v.changes)),
    )
    return [evaluator.add(evaluator.judged(together)).trial]


def _parts_changed(evaluator: OrderEvaluator, variant: Variant) -> frozenset[Any]:
    """Return what only one change can change: groups of an order, replaced ops, or its kind."""
    if not variant.is_order:
        return frozenset(variant.replaced or [variant.kind])
    return frozenset(g for g in evaluator.groups if _order_of(g, variant) != g)


def _order_of(group: tuple[int, ...], variant: Variant) -> tuple[int, ...]:
    return tuple(position for position in variant.positions if position in group)


def _joined(evaluator: OrderEvaluator, before: Variant, change: Variant) -> Variant:
    """Return both changes combined, with the order of `change` in the groups that it reorders."""
    reordered = _parts_changed(evaluator, change) if change.is_order else frozenset()
    positions = [
        position
        for group in evaluator.groups
        for position in _order_of(group, change if group in reordered else before)
    ]
    moved = before.on_batch or change.on_batch
    return replace(
        before,
        positions=(*(position for position in positions if position not in moved), *moved),
        replaced={**before.replaced, **change.replaced},
        names={**before.names, **change.names},
        costs={**before.costs, **change.costs},
        on_batch=moved,
        draft=before.draft or change.draft,
    )
