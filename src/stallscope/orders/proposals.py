"""Proposals of variants: orders, rewrites, changes beyond the order, and combinations of these.

Only variants whose data was compared with the original's are recommended, so a wrong proposal does
no harm. The functions add to `OrderEvaluator.variants`, inside of its `guarded` block. To add
another change beyond the order, write a function and add its name to `CANDIDATES`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from stallscope.errors import ArgumentError
from stallscope.loops.cached_values import bytes_of, fresh, is_image
from stallscope.orders.evaluator import name_of
from stallscope.orders.fused import fused
from stallscope.orders.loader_parts import (
    Draft,
    Reader,
    decode_by_cv2,
    decode_by_torchvision,
)
from stallscope.orders.run_ops import measure_op
from stallscope.orders.variant import (
    CACHE,
    DIFFERENT,
    EQUIVALENCES,
    IDENTICAL,
    NEAR,
    Grade,
    Variant,
)
from stallscope.units import count, repr_of, seconds, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stallscope.orders.evaluator import OrderEvaluator

_MOST_SAME: Final = 5
"""Orders in the result that give the original's data."""
_MOST_OTHERS: Final = 3
"""Orders in the result of each other grade; twice as many that raise."""
_MOST_COMPARED: Final = 50
"""Orders of one digest that are compared until enough give identical data."""
_WORTH: Final = 0.01
"""Share of a sample's time that a change has to save to be combined with others."""
_MOST_FINALISTS: Final = 7
"""Variants that are timed."""
_ROUNDS: Final = 5
"""Number of times that ops run on a batch."""
_KINDS: Final = ("order", "fused", "alternative", "decode", "batch")
"""Kinds of changes that can be combined; each depends only on those before it."""


def add_original(evaluator: OrderEvaluator) -> None:
    """Add the original pipeline, which has to be the first variant."""
    same = Grade(IDENTICAL, compared=len(evaluator.samples))
    evaluator.add(Variant(evaluator.as_it_is, predicted_s=evaluator.whole_s, grade=same))


# ---- rewrites of ops -----------------------------------------------------------------------------


def add_alternatives(evaluator: OrderEvaluator, alternatives: Mapping[Any, Any] | None) -> None:
    """Add the user's rewrites of ops, each as a variant.

    Args:
        evaluator: the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite is not callable.
    """
    for position, op, name in _rewrites(evaluator, alternatives):
        old = evaluator.op(position)
        op = evaluator.site.rewrite(position, op)  # noqa: PLW2901 - adapted to the site
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
            stream = evaluator.lane_of(position).stream(position, op)
            took_s = measure_op(old, stream, evaluator.inputs_of(position)).seconds
            evaluator.rewritten_s[position, id(op)] = took_s
            saved_s = evaluator.outcome(position).seconds - took_s
            variant = replace(variant, predicted_s=evaluator.whole_s - saved_s)
        evaluator.add(variant)


def _rewrites(
    evaluator: OrderEvaluator, alternatives: Mapping[Any, Any] | None
) -> Iterator[tuple[int, Any, str]]:
    """Yield position, object and expression of each rewrite."""
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
            yield position, op, f"alternatives[{key!r}]{place}"


# ---- orders --------------------------------------------------------------------------------------


def add_orders(evaluator: OrderEvaluator, is_over: Callable[[], bool]) -> None:
    """Add the cheapest orders with the original's data, with other data, and some that raise."""
    for lane in evaluator.lanes:
        classes = lane.graph.cheapest(_MOST_COMPARED)
        as_it_is = [tried for _, tried in lane.graph.follow(lane.as_it_is)][-1]
        digest = as_it_is.state.digest if as_it_is and as_it_is.state else ""
        same = 0
        for _, order in classes.pop(digest, []):
            if same >= _MOST_SAME or is_over():
                break
            if order != lane.as_it_is:
                whole = _within(evaluator, order)
                same += evaluator.add(_of_order(evaluator, whole)).grade.equivalence == IDENTICAL
        left = dict.fromkeys(EQUIVALENCES, _MOST_OTHERS)
        for (_, order), digest in sorted((orders[0], digest) for digest, orders in classes.items()):
            grade = lane.grades.get(digest, DIFFERENT)
            left[grade] -= 1
            if left[grade] >= 0 and not is_over():
                evaluator.add(_of_order(evaluator, _within(evaluator, order)))
        for beginning, why in lane.graph.failures()[: 2 * _MOST_OTHERS]:
            rest = (p for p in lane.as_it_is if p not in beginning)
            whole = _within(evaluator, (*beginning, *rest))
            evaluator.add(evaluator.of_order(whole, why))


def _of_order(evaluator: OrderEvaluator, order: tuple[int, ...]) -> Variant:
    return evaluator.judged(evaluator.of_order(order))


def _within(evaluator: OrderEvaluator, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the whole order, with a new order of one lane."""
    return tuple(
        position
        for lane in evaluator.lanes
        for position in (order if order[0] in lane.ops else lane.as_it_is)
    )


# ---- changes beyond the order --------------------------------------------------------------------


def add_candidates(
    evaluator: OrderEvaluator, notes: list[str], is_over: Callable[[], bool]
) -> None:
    """Add the proposals of each candidate; note a candidate that raises.

    Args:
        evaluator: the pipeline.
        notes: extended by a sentence for each change that was not tried.
        is_over: true once the time is used up.
    """
    for candidate in CANDIDATES if evaluator.site.takes_ops else ():
        if is_over():
            return
        try:
            for variant in candidate(evaluator, notes):
                evaluator.add(evaluator.judged(variant))
                if is_over():
                    return
        except Exception as error:  # noqa: BLE001 - the user's ops and files may raise anything
            notes.append(f"a change could not be tried: {repr_of(error):.160}")


def on_batch(evaluator: OrderEvaluator, notes: list[str]) -> Iterator[Variant]:
    """Propose to run the last op on the whole batch, in the collate function, the last two, etc.

    Only the last ops of a pipeline can wait for the batch, and only those that draw no random
    numbers: on a batch they would draw once for all samples. Torch vectorises an op that cannot
    take a batch (`torch.vmap`).
    """
    why_not = _why_not_on_batch(evaluator)
    if why_not:
        notes.append(f"no op was tried on whole batches: {why_not}")
        return
    variant = Variant(evaluator.as_it_is, "batch")
    for position in reversed(variant.positions):
        outcome = evaluator.outcome(position)
        if outcome.is_random or outcome.unsteady or not _can_be_stacked(evaluator, position):
            return
        variant = _one_more(evaluator, variant, position)
        names = ", ".join(evaluator.op(p).name for p in variant.on_batch)
        vectorised = ", ".join(evaluator.op(p).name for p in sorted(variant.by_vmap))
        yield replace(
            variant,
            change=f"{names} on the whole batch, in the collate function",
            changes=f"{vectorised} vectorised by torch.vmap" if vectorised else "",
            predicted_s=_less(evaluator, _saved_on_batch_s(evaluator, variant)),
        )


def _less(evaluator: OrderEvaluator, saved_s: float | None) -> float | None:
    return None if saved_s is None else evaluator.whole_s - saved_s


def _why_not_on_batch(evaluator: OrderEvaluator) -> str:
    if evaluator.loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own, which may need finished samples"
    if evaluator.loader.batch_sampler is None:
        return "the loader makes no batches of samples"
    if evaluator.site.where is None:
        return "the dataset changes the result of its pipeline"
    return ""


def _can_be_stacked(evaluator: OrderEvaluator, position: int) -> bool:
    """Return true if an op's inputs are tensors of one shape."""
    values = [op_input.value for op_input in evaluator.inputs_of(position)]
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _one_more(evaluator: OrderEvaluator, variant: Variant, position: int) -> Variant:
    """Return the variant with another op on the batch, vectorised if that is nearer."""
    plain = replace(variant, on_batch=(position, *variant.on_batch))
    if evaluator.judged(plain).grade.equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=variant.by_vmap | {position})
    return by_vmap if evaluator.judged(by_vmap).grade.works else plain


def _saved_on_batch_s(evaluator: OrderEvaluator, variant: Variant) -> float | None:
    """Return the seconds per sample saved by running ops on the batch; None: they raise."""
    column = torch.stack([op_input.value for op_input in evaluator.inputs_of(variant.on_batch[0])])
    work = evaluator.site.batch_ops(variant, None).work
    try:
        batch_s = min(_seconds_of(work, fresh(column)) for _ in range(_ROUNDS))
    except Exception:  # noqa: BLE001 - the op takes no batch; the comparison reports that
        return None
    return evaluator.seconds_of(variant.on_batch) - batch_s / len(column)


def _seconds_of(call: Callable[[Any], object], argument: Any) -> float:
    began_ns = time.perf_counter_ns()
    call(argument)
    return (time.perf_counter_ns() - began_ns) / 1e9


def other_decoding(evaluator: OrderEvaluator, notes: list[str]) -> Iterator[Variant]:
    """Propose decoding at a smaller size if an op resizes, and each other installed decoder.

    Only if the pipeline gets images that are still encoded, as from `PIL.Image.open`, or if the
    dataset holds the function that reads an image from a path, as torchvision's do. A JPEG can be
    decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's documentation,
    "Image.draft", and libjpeg's `scale_denom`), which is faster and differs from decoding and then
    resizing. Another decoder may round differently.
    """
    why_not = _why_not_decoding(evaluator)
    if why_not:
        notes.append(f"no other decoding was tried: {why_not}")
        return
    wanted = _wanted_size(evaluator)
    if wanted is None:
        notes.append(
            "decoding at a smaller size was not tried: no op of the pipeline resizes whole images "
            "to half their size or less"
        )
    else:
        name, width, height = wanted
        yield _decoded_by(
            evaluator,
            Draft(width, height),
            f"JPEG decoded at the smallest size that {name} can use (Image.draft)",
            f"{name} starts from an image that libjpeg has shrunk, so pixels differ slightly",
        )
    if importlib.util.find_spec("torchvision"):
        yield _decoded_by(
            evaluator, decode_by_torchvision, "decoded by torchvision.io instead of PIL"
        )
    if importlib.util.find_spec("cv2"):
        yield _decoded_by(evaluator, decode_by_cv2, "decoded by cv2 instead of PIL")


def _decoded_by(evaluator: OrderEvaluator, opener: Any, change: str, changes: str = "") -> Variant:
    own = evaluator.site.reader
    variant = Variant(evaluator.as_it_is, "decode", change, changes)
    if own is None:
        images = [sample.lazy for sample in evaluator.samples if sample.lazy]
        variant = replace(variant, opener=opener)
        saved_s = _saved_s(
            images, lambda lazy: lazy.open().load(), lambda lazy: opener(lazy.open()).load()
        )
    else:
        variant = replace(variant, reader=Reader(opener))
        saved_s = _saved_s([sample.path for sample in evaluator.samples], own.value, variant.reader)
    return replace(variant, predicted_s=_less(evaluator, saved_s))


def _saved_s(
    files: list[Any], usual: Callable[[Any], object], new: Callable[[Any], object]
) -> float | None:
    """Return the seconds per cached file that another reader saves; None: it raises."""
    try:
        for file in files:
            usual(file), new(file)
        return statistics.fmean(_seconds_of(usual, file) - _seconds_of(new, file) for file in files)
    except Exception:  # noqa: BLE001 - the comparison reports that
        return None


def _why_not_decoding(evaluator: OrderEvaluator) -> str:
    values = [sample.input.value for sample in evaluator.samples]
    if evaluator.site.reader is not None:
        if all(is_image(value) and value.mode == "RGB" for value in values):
            return ""
        return "the dataset does not read its files as RGB images of PIL"
    lazy = [sample.lazy for sample in evaluator.samples]
    if not any(lazy):
        return (
            "the dataset's pipeline gets decoded images, or none; a dataset that only opens them "
            "(ImageFolder with loader=PIL.Image.open) lets other decoders be tried"
        )
    if any(image is None or image.file is None for image in lazy):
        return "an image cannot be opened a second time"
    if any(image is None or image.format != "JPEG" for image in lazy):
        return "not all images are JPEGs"
    single = all(
        len(sample.input.args) == 1 and not sample.input.named for sample in evaluator.samples
    )
    return "" if single else "the pipeline has other arguments than an image"


def _wanted_size(evaluator: OrderEvaluator) -> tuple[str, int, int] | None:
    """Return the first op that resizes whole images to half or less, and its largest output."""
    for op in evaluator.ops:
        outcome = evaluator.outcome(op.position)
        before = [op_input.value for op_input in evaluator.inputs_of(op.position)]
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


def kept(evaluator: OrderEvaluator, notes: list[str]) -> Iterator[Variant]:
    """Propose to cache the results of the pipeline's first ops, which are the same every time.

    The cache ends before the first op that draws random numbers: caching its results would freeze
    the augmentation.
    """
    if evaluator.site.where is None or any(
        len(sample.input.args) != 1 for sample in evaluator.samples
    ):
        notes.append(
            "caching was not tried: the dataset changes the result of its pipeline, or calls it "
            "with several values"
        )
        return
    outcomes = {position: evaluator.outcome(position) for position in evaluator.as_it_is}
    changing = (p for p, outcome in outcomes.items() if outcome.is_random or outcome.unsteady)
    cut = next(changing, len(evaluator.ops))
    inputs = evaluator.inputs_of(cut) if cut < len(outcomes) else evaluator.lanes[0].original
    values = [op_input.value for op_input in inputs]
    each_bytes = bytes_of(values) / len(values)
    entries = len(evaluator.loader.dataset)
    saved_s = evaluator.fixed.fetch_s + evaluator.fixed.decode_s + evaluator.seconds_of(range(cut))
    last = evaluator.ops[cut - 1].name if cut else "decoding"
    yield Variant(
        evaluator.as_it_is,
        CACHE,
        f"everything up to {last} kept in memory",
        f"{size(each_bytes * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are cached; workers that end lose their cache",
        cached=cut + 1,
        predicted_s=evaluator.whole_s - saved_s,
    )


CANDIDATES: Final = (fused, on_batch, other_decoding, kept)


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
    can.sort(
        key=lambda variant: (
            not variant.grade.within(evaluator.tolerance),
            variant.predicted_s or 0.0,
        )
    )
    first: dict[tuple[str, Any], Variant] = {}
    for variant in can:
        if variant.kind == "order":  # the fastest of each grade in each lane
            first.setdefault((variant.grade.equivalence, _lanes_of(evaluator, variant)), variant)
        elif variant.kind != "together":
            first.setdefault((variant.kind, None), variant)
    firsts = sorted(first.values(), key=lambda variant: (not variant.gains, can.index(variant)))
    rest = [variant for variant in can if variant not in firsts and variant.gains]
    return [variant.trial for variant in (*firsts, *rest)][:_MOST_FINALISTS]


def _lanes_of(evaluator: OrderEvaluator, variant: Variant) -> tuple[bool, ...]:
    return tuple(lane.is_changed_by(variant) for lane in evaluator.lanes)


def add_together(evaluator: OrderEvaluator, measured: Mapping[int, float]) -> list[int]:
    """Add a combination of all changes that gain within the tolerance, and one beyond it.

    Args:
        evaluator: the pipeline.
        measured: measured speedups, by trial; a change needs a predicted and a measured gain.

    Returns:
        Trials of the new variants.
    """
    saved_s = dict(_gains(evaluator, measured))
    safe = {
        variant: s for variant, s in saved_s.items() if variant.grade.within(evaluator.tolerance)
    }
    joined = [_together(evaluator, safe), _together(evaluator, saved_s)]
    changes = {variant.change: variant for variant in joined if variant is not None}
    return [evaluator.add(variant).trial for variant in changes.values()]


def _gains(
    evaluator: OrderEvaluator, measured: Mapping[int, float]
) -> Iterator[tuple[Variant, float]]:
    """Yield changes that gain enough, and the smaller of predicted and measured savings."""
    whole_s = evaluator.whole_s
    for variant in evaluator.variants:
        if variant.predicted_s is None or not variant.grade.within(NEAR):
            continue
        saved_s = whole_s - variant.predicted_s
        if variant.trial in measured:
            saved_s = min(saved_s, whole_s * (1 - 1 / measured[variant.trial]))
        if saved_s > _WORTH * whole_s:
            yield variant, saved_s


def _together(evaluator: OrderEvaluator, saved_s: Mapping[Variant, float]) -> Variant | None:
    """Combine the best of each kind in one variant; None: there are fewer than two.

    Args:
        evaluator: the pipeline.
        saved_s: seconds per sample that each change saves.
    """
    picked: list[Variant] = []
    for kind in _KINDS:
        gaining = [variant for variant in saved_s if variant.kind == kind]
        for variant in sorted(gaining, key=lambda candidate: -saved_s[candidate]):
            if _fits(evaluator, variant, picked):
                picked.append(variant)
    if len(picked) < 2:  # noqa: PLR2004 - a single change is a variant already
        return None
    whole_s = evaluator.whole_s
    joined = Variant(evaluator.as_it_is)
    for variant in picked:
        joined = joined.joined(variant)
    orders = [variant for variant in picked if variant.kind == "order"]
    positions = tuple(
        position
        for lane in evaluator.lanes
        for position in next((o for o in orders if lane.is_changed_by(o)), joined).positions
        if position in lane.ops
    )
    return evaluator.judged(
        replace(
            joined,
            positions=positions,
            kind="together" if len(picked) > len(orders) else "order",
            change="; ".join(change.change for change in picked),
            changes="; ".join(dict.fromkeys(change.changes for change in picked if change.changes)),
            predicted_s=whole_s
            - sum(whole_s - (change.predicted_s or whole_s) for change in picked),
        )
    )


def _fits(evaluator: OrderEvaluator, variant: Variant, picked: list[Variant]) -> bool:
    """Return true if a change can be combined with those that are picked."""
    replaced = {p for change in picked for p in change.replaced}
    if variant.kind == "alternative":
        return not replaced & set(variant.replaced)
    alike = [change for change in picked if change.kind == variant.kind]
    if variant.kind == "order":
        mine = _lanes_of(evaluator, variant)
        return not any(
            a and b for o in alike for a, b in zip(mine, _lanes_of(evaluator, o), strict=True)
        )
    if alike:
        return False
    positions = (picked[0] if picked else variant).positions
    if variant.kind == "batch":
        moved = variant.on_batch
        return positions[-len(moved) :] == moved and not replaced & set(moved)
    if variant.kind == "fused":
        first, last = (positions.index(position) for position in sorted(variant.replaced))
        is_given_the_same = set(positions[:first]) == set(evaluator.as_it_is[:first])
        return last == first + 1 and is_given_the_same
    return True
