"""Changes beyond the order: ops on the batch, other ways of decoding, a part kept in memory.

A candidate is a function that looks at the pipeline and yields variants; in `notes` it says why it
proposes none. Each variant is compared and measured like an order, so a candidate may be wrong
without harm. Another one is one more function, and one more name in `CANDIDATES`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from stallscope.loops.cached_values import bytes_of, fresh, is_image
from stallscope.orders.loader_parts import (
    BatchOps,
    Draft,
    Reader,
    decode_by_cv2,
    decode_by_torchvision,
)
from stallscope.orders.recipe import Recipe, Variant
from stallscope.orders.result import FAILS, IDENTICAL
from stallscope.units import count, seconds, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.orders.evaluator import OrderEvaluator

_ROUNDS: Final = 5
"""Times that ops are run on a batch."""


def _without(evaluator: OrderEvaluator, saved_s: float | None) -> float | None:
    """What the ops cost, less what is saved."""
    return None if saved_s is None else evaluator.base_s - saved_s


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
    recipe = Recipe(evaluator.as_it_is)
    for position in reversed(recipe.positions):
        outcome = evaluator.outcomes[position]
        if outcome.is_random or outcome.unsteady or not _can_be_stacked(evaluator, position):
            return
        recipe = _one_more(evaluator, recipe, position)
        names = ", ".join(evaluator.ops[p].name for p in recipe.on_batch)
        vectorised = ", ".join(evaluator.ops[p].name for p in sorted(recipe.by_vmap))
        yield Variant(
            "batch",
            recipe,
            f"{names} on the whole batch, in the collate function",
            f"{vectorised} vectorised by torch.vmap" if vectorised else "",
            _without(evaluator, _saved_on_batch_s(evaluator, recipe)),
        )


def _why_not_on_batch(evaluator: OrderEvaluator) -> str:
    if evaluator.loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own, which may need finished samples"
    if evaluator.loader.batch_sampler is None:
        return "the loader makes no batches of samples"
    if evaluator.site.where is None:
        return "the dataset does more with what comes out of its pipeline"
    return ""


def _can_be_stacked(evaluator: OrderEvaluator, position: int) -> bool:
    """Whether all samples that an op gets are tensors of one shape."""
    values = [given.value for given in evaluator.inputs_of(position)]
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _one_more(evaluator: OrderEvaluator, recipe: Recipe, position: int) -> Recipe:
    """The recipe with one more op on the batch, vectorised where it is not identical without."""
    plain = replace(recipe, on_batch=(position, *recipe.on_batch))
    if evaluator.judge(plain).equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=recipe.by_vmap | {position})
    return by_vmap if evaluator.judge(by_vmap).equivalence != FAILS else plain


def _saved_on_batch_s(evaluator: OrderEvaluator, recipe: Recipe) -> float | None:
    """What the ops cost on each sample, less what they cost on the batch; None: they raise."""
    column = torch.stack([given.value for given in evaluator.inputs_of(recipe.on_batch[0])])
    work = BatchOps(None, recipe.works(evaluator.site.chain), ()).work
    try:
        batch_s = min(_seconds_of(work, fresh(column)) for _ in range(_ROUNDS))
    except Exception:  # noqa: BLE001 - an op that takes no batch; the comparison says so
        return None
    return evaluator.seconds_of(recipe.on_batch) - batch_s / len(column)


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
    if own is None:
        recipe = Recipe(evaluator.as_it_is, opener=opener)
        images = [one.lazy for one in evaluator.samples if one.lazy]
        saved_s = _saved_s(
            images, lambda lazy: lazy.open().load(), lambda lazy: opener(lazy.open()).load()
        )
    else:
        recipe = Recipe(evaluator.as_it_is, reader=Reader(opener))
        saved_s = _saved_s([one.path for one in evaluator.samples], own.value, recipe.reader)
    return Variant("decode", recipe, change, changes, _without(evaluator, saved_s))


def _saved_s(
    files: list[Any], usual: Callable[[Any], object], other: Callable[[Any], object]
) -> float | None:
    """How much less another way of reading takes for a file in the cache; None: it raises."""
    try:
        for file in files:
            usual(file), other(file)
        return statistics.fmean(_seconds_of(usual, one) - _seconds_of(other, one) for one in files)
    except Exception:  # noqa: BLE001 - the comparison says so
        return None


def _why_not_decoding(evaluator: OrderEvaluator) -> str:
    values = [given.value for given in evaluator.inputs]
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
    single = all(len(given.args) == 1 and not given.named for given in evaluator.inputs)
    return "" if single else "the pipeline is called with more than an image"


def _wanted_size(evaluator: OrderEvaluator) -> tuple[str, int, int] | None:
    """The first op that makes whole images half as large or less, and the size it makes."""
    for op in evaluator.ops:
        outcome = evaluator.outcomes[op.position]
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
    if evaluator.site.where is None or any(len(given.args) != 1 for given in evaluator.inputs):
        notes.append(
            "keeping finished parts was not tried: the dataset does more with what comes "
            "out of its pipeline, or calls it with more than one value"
        )
        return
    changing = (p for p, o in evaluator.outcomes.items() if o.is_random or o.unsteady)
    cut = next(changing, len(evaluator.ops))
    values = [given.value for given in evaluator.inputs_of(cut)]
    each_bytes = bytes_of(values) / len(values)
    entries = len(evaluator.loader.dataset)
    saved_s = evaluator.fixed.fetch_s + evaluator.fixed.decode_s + evaluator.seconds_of(range(cut))
    last = evaluator.ops[cut - 1].name if cut else "decoding"
    yield Variant(
        "cache",
        Recipe(evaluator.as_it_is, cached=cut + 1),
        f"everything up to {last} kept in memory",
        f"{size(each_bytes * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are kept, and is lost with workers that end",
        evaluator.base_s - saved_s,
    )


CANDIDATES: Final = (on_batch, other_decoding, kept)
