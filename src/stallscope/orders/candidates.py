"""Changes beyond the order: ops on the batch, other ways of decoding, a part kept in memory.

A candidate is a function that looks at the pipeline and yields variants. Each of them is compared
and measured like an order, so a candidate may be wrong without harm. Another one is one more
function, and one more line in `CANDIDATES`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.utils.data import default_collate

from stallscope.loops.cached_values import bytes_of, fresh
from stallscope.orders.digests import is_image
from stallscope.orders.loader_parts import Cv2Decoder, Draft, Reader, TorchvisionDecoder
from stallscope.orders.recipe import Recipe, Variant
from stallscope.orders.result import FAILS, IDENTICAL
from stallscope.units import count, seconds, size

if TYPE_CHECKING:
    from stallscope.orders.equivalence import EquivalenceJudge
    from stallscope.orders.pipeline_runner import PipelineRunner

_ROUNDS: Final = 5
"""Times that ops are run on a batch."""


class Situation(NamedTuple):
    """What a candidate may look at."""

    runner: PipelineRunner
    """The pipeline, with the samples that were captured."""
    judge: EquivalenceJudge
    """Compares recipes with the pipeline as it is."""
    loader: Any
    """The user's, or a shallow copy."""
    notes: list[str]
    """Where a candidate says why it proposes nothing."""


Candidate = Callable[[Situation], Iterator[Variant]]


def _without(runner: PipelineRunner, saved_s: float | None) -> float | None:
    """What the ops cost, less what is saved."""
    return None if saved_s is None else runner.base_s - saved_s


def on_batch(situation: Situation) -> Iterator[Variant]:
    """Propose ops on the whole batch, in the collate function: one at the end, two, and so on.

    Only the last ops of a pipeline can wait for the batch, and only those that draw no random
    numbers: on a batch they would draw once for all samples. An op that cannot take a batch is
    vectorised by torch (`torch.vmap`).
    """
    runner = situation.runner
    why_not = _why_not_on_batch(situation)
    if why_not:
        situation.notes.append(f"no op was tried on whole batches: {why_not}")
        return
    recipe = Recipe(runner.as_it_is)
    for position in reversed(recipe.positions):
        outcome = runner.outcomes[position]
        if outcome.is_random or outcome.unsteady or not _can_be_stacked(runner, position):
            return
        recipe = _one_more(situation.judge, recipe, position)
        names = ", ".join(runner.ops[p].name for p in recipe.on_batch)
        vectorised = ", ".join(runner.ops[p].name for p in sorted(recipe.by_vmap))
        yield Variant(
            "batch",
            recipe,
            f"{names} on the whole batch, in the collate function",
            f"{vectorised} vectorised by torch.vmap" if vectorised else "",
            _without(runner, _saved_on_batch_s(runner, recipe)),
        )


def _why_not_on_batch(situation: Situation) -> str:
    if situation.loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own, which may need finished samples"
    if situation.loader.batch_sampler is None:
        return "the loader makes no batches of samples"
    if situation.runner.site.where is None:
        return "the dataset does more with what comes out of its pipeline"
    return ""


def _can_be_stacked(runner: PipelineRunner, position: int) -> bool:
    """Whether all samples that an op gets are tensors of one shape."""
    values = [given.value for given in runner.inputs_of(position)]
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _one_more(judge: EquivalenceJudge, recipe: Recipe, position: int) -> Recipe:
    """The recipe with one more op on the batch, vectorised where it is not identical without."""
    plain = replace(recipe, on_batch=(position, *recipe.on_batch))
    if judge.compare(plain).equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=recipe.by_vmap | {position})
    return by_vmap if judge.compare(by_vmap).equivalence != FAILS else plain


def _saved_on_batch_s(runner: PipelineRunner, recipe: Recipe) -> float | None:
    """What the ops cost on each sample, less what they cost on the batch."""
    column = torch.stack([given.value for given in runner.inputs_of(recipe.on_batch[0])])
    best_s = float("inf")
    try:
        for _ in range(_ROUNDS):
            value = fresh(column)
            began_ns = time.perf_counter_ns()
            for op, by_vmap in recipe.works(runner.site.chain):
                value = torch.vmap(op)(value) if by_vmap else op(value)
            best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
    except Exception:  # noqa: BLE001 - an op that takes no batch; the comparison says so
        return None
    return runner.seconds_of(recipe.on_batch) - best_s / len(column)


def other_decoding(situation: Situation) -> Iterator[Variant]:
    """Propose a smaller decoding where an op resizes, and each other decoder that is installed.

    Only where the pipeline gets images that are still encoded, as `PIL.Image.open` gives them, or
    where the dataset holds the function that makes an image of a path, as torchvision's do. A JPEG
    can be decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's
    documentation, "Image.draft", and libjpeg's `scale_denom`), which is faster and not the same as
    decoding and then resizing. Another decoder may round other than PIL's.
    """
    runner = situation.runner
    why_not = _why_not_decoding(runner)
    if why_not:
        situation.notes.append(f"no other way of decoding was tried: {why_not}")
        return
    wanted = _wanted_size(runner)
    if wanted is None:
        situation.notes.append(
            "decoding at a smaller size was not tried: no op of the pipeline makes whole images "
            "half as large or less"
        )
    else:
        name, width, height = wanted
        yield _decoded_by(
            runner,
            Draft(width, height),
            f"JPEG decoded at the smallest size that {name} can use (Image.draft)",
            f"{name} starts from an image that libjpeg has shrunk: other pixels, slightly",
        )
    if importlib.util.find_spec("torchvision"):
        yield _decoded_by(runner, TorchvisionDecoder(), "decoded by torchvision.io instead of PIL")
    if importlib.util.find_spec("cv2"):
        yield _decoded_by(runner, Cv2Decoder(), "decoded by cv2 instead of PIL")


def _decoded_by(runner: PipelineRunner, opener: Any, change: str, changes: str = "") -> Variant:
    if runner.site.reader is None:
        recipe, saved_s = Recipe(runner.as_it_is, opener=opener), _saved_opening_s(runner, opener)
    else:
        reader, own = Reader(opener), runner.site.reader.value
        recipe = Recipe(runner.as_it_is, reader=reader)
        saved_s = statistics.fmean(
            _second_call_s(own, one.path) - _second_call_s(reader, one.path)
            for one in runner.samples
        )
    return Variant("decode", recipe, change, changes, _without(runner, saved_s))


def _second_call_s(read: Callable[[Any], Any], path: Any) -> float:
    """How long reading a file takes that is in the cache."""
    read(path)
    began_ns = time.perf_counter_ns()
    read(path)
    return (time.perf_counter_ns() - began_ns) / 1e9


def _saved_opening_s(runner: PipelineRunner, opener: Any) -> float | None:
    """What opening and decoding cost now, less what they cost then."""
    gaps_s = []
    for one in runner.samples:
        if one.lazy is None:
            return None
        image = one.lazy.open()
        began_ns = time.perf_counter_ns()
        image.load()
        middle_ns = time.perf_counter_ns()
        image.close()
        image = one.lazy.open()
        later_ns = time.perf_counter_ns()
        try:
            opener(image).load()
        except Exception:  # noqa: BLE001 - the comparison says so
            return None
        gaps_s.append(((middle_ns - began_ns) - (time.perf_counter_ns() - later_ns)) / 1e9)
    return statistics.fmean(gaps_s)


def _why_not_decoding(runner: PipelineRunner) -> str:
    values = [given.value for given in runner.inputs]
    if runner.site.reader is not None:
        if all(is_image(value) and value.mode == "RGB" for value in values):
            return ""
        return "what the dataset makes of its files are no RGB images of PIL's"
    lazy = [one.lazy for one in runner.samples]
    if not any(lazy):
        return (
            "the dataset gives its pipeline images that are decoded already, or none; one that "
            "only opens them (ImageFolder with loader=PIL.Image.open) lets others be tried"
        )
    if any(one is None or one.file is None for one in lazy):
        return "an image cannot be opened a second time"
    if any(one is None or one.format != "JPEG" for one in lazy):
        return "not all images are JPEGs"
    single = all(len(given.args) == 1 and not given.named for given in runner.inputs)
    return "" if single else "the pipeline is called with more than an image"


def _wanted_size(runner: PipelineRunner) -> tuple[str, int, int] | None:
    """The first op that makes whole images half as large or less, and the size it makes."""
    for op in runner.ops:
        outcome = runner.outcomes[op.position]
        before = [given.value for given in runner.inputs_of(op.position)]
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


def kept_in_memory(situation: Situation) -> Iterator[Variant]:
    """Propose to do once, and keep, the part of the pipeline that is the same every time.

    The cut lies before the first op that draws random numbers: behind it, keeping results would
    freeze what is meant to change.
    """
    runner = situation.runner
    if runner.site.where is None or any(len(given.args) != 1 for given in runner.inputs):
        situation.notes.append(
            "keeping finished parts in memory was not tried: the dataset does more with what comes "
            "out of its pipeline, or calls it with more than one value"
        )
        return
    changing = (p for p, o in runner.outcomes.items() if o.is_random or o.unsteady)
    cut = next(changing, len(runner.ops))
    values = [given.value for given in runner.inputs_of(cut)]
    each_bytes = bytes_of(values) / len(values)
    entries = len(situation.loader.dataset)
    saved_s = statistics.median(one.fetch_s for one in runner.samples)
    saved_s += statistics.median(one.decode_s for one in runner.samples)
    saved_s += runner.seconds_of(range(cut))
    last = runner.ops[cut - 1].name if cut else "decoding"
    yield Variant(
        "cache",
        Recipe(runner.as_it_is, cached=cut + 1),
        f"everything up to {last} kept in memory",
        f"{size(each_bytes * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are kept, and is lost with workers that end",
        runner.base_s - saved_s,
    )


CANDIDATES: Final[tuple[Candidate, ...]] = (on_batch, other_decoding, kept_in_memory)
