"""What is looked at: orders, rewrites, changes beyond the order, and all that gain together.

Nothing is recommended whose data was not compared with the original's, so a proposal may be wrong
without harm. The functions add to `OrderEvaluator.variants`, inside of its `guarded` block.
Another change beyond the order is one more function, and one more name in `CANDIDATES`.
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
"""Orders that give the original's data."""
_MOST_OTHERS: Final = 3
"""Orders of each other grade, and twice as many of those that raise."""
_MOST_COMPARED: Final = 50
"""Orders of one digest that are looked at until enough are found to be the same."""
_WORTH: Final = 0.01
"""Share of a sample's time: changes that should save less are left out where all come together."""
_MOST_FINALISTS: Final = 7
"""Pipelines beside the original that are measured for real."""
_ROUNDS: Final = 5
"""Times that ops are run on a batch."""
_KINDS: Final = ("order", "fused", "alternative", "decode", "batch")
"""Kinds that come together, those first on which others depend."""


def add_original(evaluator: OrderEvaluator) -> None:
    """Add the pipeline as it is; has to come first."""
    same = Grade(IDENTICAL, compared=len(evaluator.samples))
    evaluator.add(Variant(evaluator.as_it_is, predicted_s=evaluator.whole_s, grade=same))


# ---- rewrites of ops -----------------------------------------------------------------------------


def add_alternatives(evaluator: OrderEvaluator, alternatives: Mapping[Any, Any] | None) -> None:
    """Add the user's rewrites of ops, each by itself.

    Args:
        evaluator: the pipeline.
        alternatives: a rewrite, or several, by an op's name or position.

    Raises:
        ArgumentError: there is no such op, or the rewrite cannot be called.
    """
    for position, op, name in _rewrites(evaluator, alternatives):
        old = evaluator.op(position)
        op = evaluator.site.rewrite(position, op)  # noqa: PLW2901 - as the pipeline calls it
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
    known = {op.name: op.position for op in evaluator.ops}
    for key, value in (alternatives or {}).items():
        position = known.get(key) if isinstance(key, str) else key
        if not isinstance(position, int) or position not in evaluator.as_it_is:
            raise ArgumentError(
                f"alternatives: there is no op {key!r} in this pipeline; there are "
                f"{', '.join(repr(name) for name in known)}"
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
    """Add the cheapest orders of the original's data, of other data, and some that raise."""
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
        for (_, order), one in sorted((found[0], digest) for digest, found in classes.items()):
            grade = lane.grades.get(one, DIFFERENT)
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
    """Return the whole order in which one lane has another one."""
    return tuple(
        position
        for lane in evaluator.lanes
        for position in (order if order[0] in lane.ops else lane.as_it_is)
    )


# ---- changes beyond the order --------------------------------------------------------------------


def add_candidates(
    evaluator: OrderEvaluator, notes: list[str], is_over: Callable[[], bool]
) -> None:
    """Add what each candidate proposes; of one that fails itself that is noted.

    Args:
        evaluator: the pipeline.
        notes: get a sentence for what was not tried.
        is_over: whether there is no time for more.
    """
    for candidate in CANDIDATES if evaluator.site.takes_ops else ():
        if is_over():
            return
        try:
            for variant in candidate(evaluator, notes):
                evaluator.add(evaluator.judged(variant))
                if is_over():
                    return
        except Exception as error:  # noqa: BLE001 - the user's ops and files, in an odd place
            notes.append(f"a change could not be tried: {repr_of(error):.160}")


def on_batch(evaluator: OrderEvaluator, notes: list[str]) -> Iterator[Variant]:
    """Propose ops on the whole batch, in the collate function: one at the end, two, and so on.

    Only the last ops of a pipeline can wait for the batch, and only those that draw no random
    numbers: on a batch they would draw once for all samples. An op that cannot take a batch is
    vectorised by torch (`torch.vmap`).
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
        return "the dataset does more with what comes out of its pipeline"
    return ""


def _can_be_stacked(evaluator: OrderEvaluator, position: int) -> bool:
    """Return whether all samples that an op gets are tensors of one shape."""
    values = [given.value for given in evaluator.inputs_of(position)]
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _one_more(evaluator: OrderEvaluator, variant: Variant, position: int) -> Variant:
    """Return the variant with one more op on the batch, vectorised where that is nearer."""
    plain = replace(variant, on_batch=(position, *variant.on_batch))
    if evaluator.judged(plain).grade.equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=variant.by_vmap | {position})
    return by_vmap if evaluator.judged(by_vmap).grade.works else plain


def _saved_on_batch_s(evaluator: OrderEvaluator, variant: Variant) -> float | None:
    """Return the ops' cost on each sample less that on the batch; None: they raise."""
    column = torch.stack([given.value for given in evaluator.inputs_of(variant.on_batch[0])])
    work = evaluator.site.batch_ops(variant, None).work
    try:
        batch_s = min(_seconds_of(work, fresh(column)) for _ in range(_ROUNDS))
    except Exception:  # noqa: BLE001 - an op that takes no batch; the comparison says so
        return None
    return evaluator.seconds_of(variant.on_batch) - batch_s / len(column)


def _seconds_of(call: Callable[[Any], object], given: Any) -> float:
    began_ns = time.perf_counter_ns()
    call(given)
    return (time.perf_counter_ns() - began_ns) / 1e9


def other_decoding(evaluator: OrderEvaluator, notes: list[str]) -> Iterator[Variant]:
    """Propose a smaller decoding where an op resizes, and each other decoder that is installed.

    Only where the pipeline gets images that are still encoded, as `PIL.Image.open` gives them, or
    where the dataset holds the function that makes an image of a path, as torchvision's do. A JPEG
    can be decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's
    documentation, "Image.draft", and libjpeg's `scale_denom`), which is faster and not the same as
    decoding and then resizing. Another decoder may round other than PIL's.
    """
    why_not = _why_not_decoding(evaluator)
    if why_not:
        notes.append(f"no other way of decoding was tried: {why_not}")
        return
    wanted = _wanted_size(evaluator)
    if wanted is None:
        notes.append(
            "decoding at a smaller size was not tried: no op of the pipeline makes whole images "
            "half as large or less"
        )
    else:
        name, width, height = wanted
        yield _decoded_by(
            evaluator,
            Draft(width, height),
            f"JPEG decoded at the smallest size that {name} can use (Image.draft)",
            f"{name} starts from an image that libjpeg has shrunk: other pixels, slightly",
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
        images = [one.lazy for one in evaluator.samples if one.lazy]
        variant = replace(variant, opener=opener)
        saved_s = _saved_s(
            images, lambda lazy: lazy.open().load(), lambda lazy: opener(lazy.open()).load()
        )
    else:
        variant = replace(variant, reader=Reader(opener))
        saved_s = _saved_s([one.path for one in evaluator.samples], own.value, variant.reader)
    return replace(variant, predicted_s=_less(evaluator, saved_s))


def _saved_s(
    files: list[Any], usual: Callable[[Any], object], other: Callable[[Any], object]
) -> float | None:
    """Return how much less another way of reading takes for a cached file; None: it raises."""
    try:
        for file in files:
            usual(file), other(file)
        return statistics.fmean(_seconds_of(usual, one) - _seconds_of(other, one) for one in files)
    except Exception:  # noqa: BLE001 - the comparison says so
        return None


def _why_not_decoding(evaluator: OrderEvaluator) -> str:
    values = [one.given.value for one in evaluator.samples]
    if evaluator.site.reader is not None:
        if all(is_image(value) and value.mode == "RGB" for value in values):
            return ""
        return "what the dataset makes of its files are no RGB images of PIL's"
    lazy = [one.lazy for one in evaluator.samples]
    if not any(lazy):
        return (
            "the dataset gives its pipeline images that are decoded already, or none; one that "
            "only opens them (ImageFolder with loader=PIL.Image.open) lets others be tried"
        )
    if any(one is None or one.file is None for one in lazy):
        return "an image cannot be opened a second time"
    if any(one is None or one.format != "JPEG" for one in lazy):
        return "not all images are JPEGs"
    single = all(len(one.given.args) == 1 and not one.given.named for one in evaluator.samples)
    return "" if single else "the pipeline is called with more than an image"


def _wanted_size(evaluator: OrderEvaluator) -> tuple[str, int, int] | None:
    """Find the first op that makes whole images half as large or less, and the size it makes."""
    for op in evaluator.ops:
        outcome = evaluator.outcome(op.position)
        before = [given.value for given in evaluator.inputs_of(op.position)]
        after = [given.value for given in outcome.results]
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
    """Propose to do once, and keep, the part of the pipeline that is the same every time.

    The cut lies before the first op that draws random numbers: behind it, keeping results would
    freeze what is meant to change.
    """
    if evaluator.site.where is None or any(len(one.given.args) != 1 for one in evaluator.samples):
        notes.append(
            "keeping finished parts was not tried: the dataset does more with what comes "
            "out of its pipeline, or calls it with more than one value"
        )
        return
    outcomes = {position: evaluator.outcome(position) for position in evaluator.as_it_is}
    changing = (p for p, outcome in outcomes.items() if outcome.is_random or outcome.unsteady)
    cut = next(changing, len(evaluator.ops))
    inputs = evaluator.inputs_of(cut) if cut < len(outcomes) else evaluator.lanes[0].original
    values = [given.value for given in inputs]
    each_bytes = bytes_of(values) / len(values)
    entries = len(evaluator.loader.dataset)
    saved_s = evaluator.fixed.fetch_s + evaluator.fixed.decode_s + evaluator.seconds_of(range(cut))
    last = evaluator.ops[cut - 1].name if cut else "decoding"
    yield Variant(
        evaluator.as_it_is,
        CACHE,
        f"everything up to {last} kept in memory",
        f"{size(each_bytes * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are kept, and is lost with workers that end",
        cached=cut + 1,
        predicted_s=evaluator.whole_s - saved_s,
    )


CANDIDATES: Final = (fused, on_batch, other_decoding, kept)


# ---- what is measured, and what comes together ---------------------------------------------------


def choose_finalists(evaluator: OrderEvaluator) -> list[int]:
    """Choose the trials that are measured: of each kind the one that gains most, then the rest.

    The largest promise comes first: a short budget has room for one.
    """
    can = [
        one
        for one in evaluator.variants[1:]
        if one.predicted_s is not None and one.grade.within(NEAR)
        # What the user asks for is always worth a look, else what is predicted to gain
        if one.kind == "alternative" or one.predicted_s < evaluator.whole_s
    ]
    can.sort(key=lambda one: (not one.grade.within(evaluator.tolerance), one.predicted_s or 0.0))
    first: dict[tuple[str, Any], Variant] = {}
    for one in can:
        if one.kind == "order":  # the fastest of each grade in each lane
            first.setdefault((one.grade.equivalence, _lanes_of(evaluator, one)), one)
        elif one.kind != "together":
            first.setdefault((one.kind, None), one)
    firsts = sorted(first.values(), key=lambda one: (not one.gains, can.index(one)))
    rest = [one for one in can if one not in firsts and one.gains]
    return [one.trial for one in (*firsts, *rest)][:_MOST_FINALISTS]


def _lanes_of(evaluator: OrderEvaluator, variant: Variant) -> tuple[bool, ...]:
    return tuple(lane.is_changed_by(variant) for lane in evaluator.lanes)


def add_together(evaluator: OrderEvaluator, measured: Mapping[int, float]) -> list[int]:
    """Add all changes that gain within the tolerance; and with those beyond it on top.

    Args:
        evaluator: the pipeline.
        measured: how many times as fast variants were, by their number; a change has to gain here,
            too, and not only as predicted.

    Returns:
        The numbers of the new variants.
    """
    saved_s = dict(_gains(evaluator, measured))
    safe = {one: s for one, s in saved_s.items() if one.grade.within(evaluator.tolerance)}
    found = [_together(evaluator, safe), _together(evaluator, saved_s)]
    changes = {one.change: one for one in found if one is not None}
    return [evaluator.add(one).trial for one in changes.values()]


def _gains(
    evaluator: OrderEvaluator, measured: Mapping[int, float]
) -> Iterator[tuple[Variant, float]]:
    """Yield changes that are worth it, and what each saves at least: as predicted, and measured."""
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
    """Join the best of each kind in one pipeline; None where there are not two.

    Args:
        evaluator: the pipeline.
        saved_s: changes that gain, and by how much, seconds per sample.
    """
    picked: list[Variant] = []
    for kind in _KINDS:
        gaining = [one for one in saved_s if one.kind == kind]
        for variant in sorted(gaining, key=lambda one: -saved_s[one]):
            if _fits(evaluator, variant, picked):
                picked.append(variant)
    if len(picked) < 2:  # noqa: PLR2004 - one alone is a variant already
        return None
    whole_s = evaluator.whole_s
    joined = Variant(evaluator.as_it_is)
    for variant in picked:
        joined = joined.joined(variant)
    orders = [one for one in picked if one.kind == "order"]
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
            change="; ".join(one.change for one in picked),
            changes="; ".join(dict.fromkeys(one.changes for one in picked if one.changes)),
            predicted_s=whole_s - sum(whole_s - (one.predicted_s or whole_s) for one in picked),
        )
    )


def _fits(evaluator: OrderEvaluator, variant: Variant, picked: list[Variant]) -> bool:
    """Return whether a change can be made beside those that are picked."""
    replaced = {p for other in picked for p in other.replaced}
    if variant.kind == "alternative":
        return not replaced & set(variant.replaced)
    alike = [other for other in picked if other.kind == variant.kind]
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
        first, last = (positions.index(one) for one in sorted(variant.replaced))
        is_given_the_same = set(positions[:first]) == set(evaluator.as_it_is[:first])
        return last == first + 1 and is_given_the_same
    return True
