"""Changes beyond the order: one file each, tried in the order of this list.

A candidate is a function that looks at the pipeline and proposes recipes. Every proposal is
compared and measured like an order, so a candidate may be wrong without harm. A fourth is one more
file, and one more line here.

What a candidate gets, and what it proposes.

Other ways to decode an image that `PIL.Image.open` has opened; the first op of a pipeline.

They live here, apart from what proposes them, because workers import them. Each gives an image of
PIL's, so that the ops behind it get what they got.

Decoding straight to the wanted size, or with another decoder.

Only where the pipeline gets images that are still encoded, as `PIL.Image.open` gives them, or
where the dataset holds the function that makes an image of a path, as torchvision's do. A JPEG
can be decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's documentation,
"Image.draft", and libjpeg's `scale_denom`), which is faster and not the same as decoding and then
resizing. Another decoder may round other than PIL's. Both are compared like everything else.

Ops on the whole batch, in the collate function, instead of on each sample.

Only the last ops of a pipeline can wait for the batch, and only those that draw no random numbers:
on a batch they would draw once for all samples. An op that cannot take a batch is vectorised by
torch (`torch.vmap`).

The part of a pipeline that is the same every time, done once and kept in memory.

The cut lies before the first op that draws random numbers: behind it, keeping results would freeze
what is meant to change.
"""

from __future__ import annotations

import importlib.util
import io
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from stallscope.loops.cached_values import bytes_of, fresh
from stallscope.orders.captured import opened
from stallscope.orders.digests import is_image
from stallscope.orders.recipe import Recipe
from stallscope.orders.result import IDENTICAL
from stallscope.units import count, seconds, size

if TYPE_CHECKING:
    from stallscope.orders.evaluator import EquivalenceJudge, PipelineRunner


@dataclass(frozen=True)
class Situation:
    """What a candidate may look at."""

    bench: PipelineRunner
    """The pipeline at work, with the samples that were drawn."""
    judge: EquivalenceJudge
    """Compares recipes with the pipeline as it is."""
    loader: Any
    """The user's, or a shallow copy."""
    notes: list[str]
    """Where a candidate says why it proposes nothing."""


@dataclass(frozen=True)
class Proposal:
    """A change to a pipeline that may make it faster."""

    kind: str
    """One of `orderings.KINDS`."""
    recipe: Recipe
    """The new pipeline."""
    change: str
    """What is changed, in words."""
    changes: str = ""
    """What that means for the model or the machine; "" for nothing."""
    saved_s: float | None = None
    """What it should save, seconds per sample; None: not known before it is measured."""


Candidate = Callable[[Situation], Iterator[Proposal]]


class Draft:
    """Decode a JPEG at the smallest of its sizes that is no smaller than this.

    Args:
        width: pixels.
        height: likewise.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        if getattr(image, "tile", None):
            image.draft(image.mode, (self.width, self.height))
        image.load()
        return image

    def __repr__(self) -> str:
        return f"Draft(width={self.width}, height={self.height})"


class TorchvisionDecoder:
    """Decode with torchvision.io; what is decoded already stays as it is."""

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        data = _encoded(image)
        if data is None:
            return image
        import torch
        from torchvision.io import ImageReadMode, decode_image

        tensor = decode_image(
            torch.frombuffer(bytearray(data), dtype=torch.uint8), _mode(image, ImageReadMode)
        )
        return _image(tensor.permute(1, 2, 0).contiguous().numpy())

    def __repr__(self) -> str:
        return "TorchvisionDecoder()"


class Cv2Decoder:
    """Decode with OpenCV; what is decoded already stays as it is."""

    def __call__(self, image: Any) -> Any:
        """The image, decoded."""
        data = _encoded(image)
        if data is None:
            return image
        import cv2

        flag = cv2.IMREAD_GRAYSCALE if image.mode == "L" else cv2.IMREAD_COLOR
        # as PIL does, without turning by the file's Exif data
        array: Any = cv2.imdecode(
            np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION
        )
        return _image(array if array.ndim == 2 else cv2.cvtColor(array, cv2.COLOR_BGR2RGB))  # noqa: PLR2004 - a grey one

    def __repr__(self) -> str:
        return "Cv2Decoder()"


class Reader:
    """Makes an image of a path, as RGB, with another decoder.

    Args:
        decoder: one of those above.
    """

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder

    def __call__(self, path: Any) -> Any:
        """The image, decoded; whatever the decoder cannot read is decoded by PIL."""
        with Image.open(path) as image:
            return self.decoder(image).convert("RGB")

    def __repr__(self) -> str:
        return f"Reader({self.decoder!r})"


def _encoded(image: Any) -> bytes | None:
    """The bytes of a file that is open and not yet decoded; only RGB and grey ones."""
    if not getattr(image, "tile", None) or image.mode not in ("RGB", "L"):
        return None
    file = image.fp
    file.seek(0, io.SEEK_SET)
    data = bytes(file.read())
    image.close()
    return data


def _mode(image: Any, modes: Any) -> Any:
    return modes.GRAY if image.mode == "L" else modes.RGB


def _image(array: Any) -> Any:
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def decoding_proposals(situation: Situation) -> Iterator[Proposal]:
    """A smaller decoding where an op resizes, and each other decoder that is installed."""
    bench = situation.bench
    why_not = _why_not(bench)
    if why_not:
        situation.notes.append(f"no other way of decoding was tried: {why_not}")
        return
    size = _wanted(bench)
    if size is None:
        situation.notes.append(
            "decoding at a smaller size was not tried: no op of the pipeline makes whole images "
            "half as large or less"
        )
    else:
        name, width, height = size
        yield _proposal(
            bench,
            Draft(width, height),
            f"JPEG decoded at the smallest size that {name} can use (Image.draft)",
            f"{name} starts from an image that libjpeg has shrunk: other pixels, slightly",
        )
    if importlib.util.find_spec("torchvision"):
        yield _proposal(bench, TorchvisionDecoder(), "decoded by torchvision.io instead of PIL", "")
    if importlib.util.find_spec("cv2"):
        yield _proposal(bench, Cv2Decoder(), "decoded by cv2 instead of PIL", "")


def _proposal(bench: PipelineRunner, opener: Any, change: str, changes: str) -> Proposal:
    order = tuple(range(len(bench.ops)))
    if _is_read(bench):
        reader = Reader(opener)
        recipe = Recipe(order, reader=reader)
        return Proposal("decode", recipe, change, changes, _saved_reading_s(bench, reader))
    recipe = Recipe(order, opener=opener)
    return Proposal("decode", recipe, change, changes, _saved_s(bench, opener))


def _is_read(bench: PipelineRunner) -> bool:
    """Whether a function of the dataset's makes the images of their paths."""
    return bench.site.reader is not None


def _saved_reading_s(bench: PipelineRunner, reader: Any) -> float:
    """What making an image of its path takes now, less what it takes then."""
    if bench.site.reader is None:
        return 0.0
    own, gaps = bench.site.reader.value, []
    for one in bench.drawn:
        times_s = []
        for make in (own, reader):
            make(one.path)
            began_ns = time.perf_counter_ns()
            make(one.path)
            times_s.append((time.perf_counter_ns() - began_ns) / 1e9)
        gaps.append(times_s[0] - times_s[1])
    return sum(gaps) / len(gaps)


def _why_not(bench: PipelineRunner) -> str:
    if _is_read(bench):
        plain = all(_is_rgb(given.value) for given in bench.givens)
        return "" if plain else "what the dataset makes of its files are no RGB images of PIL's"
    lazy = [one.lazy for one in bench.drawn]
    if not any(lazy):
        return (
            "the dataset gives its pipeline images that are decoded already, or none; one that "
            "only opens them (ImageFolder with loader=PIL.Image.open) lets others be tried"
        )
    if any(one is None or one.file is None for one in lazy):
        return "an image cannot be opened a second time"
    if any(one is None or one.format != "JPEG" for one in lazy):
        return "not all images are JPEGs"
    single = all(len(given.args) == 1 and not given.named for given in bench.givens)
    return "" if single else "the pipeline is called with more than an image"


def _is_rgb(value: Any) -> bool:
    return is_image(value) and value.mode == "RGB"


def _wanted(bench: PipelineRunner) -> tuple[str, int, int] | None:
    """The first op that makes whole images half as large or less, and the size it makes."""
    before = [given.value for given in bench.givens]
    for op in bench.ops:
        after = [given.value for given in bench.outcomes[op.position].givens]
        if not all(map(is_image, (*before, *after))):
            return None
        shrinks = all(
            2 * b.width <= a.width and 2 * b.height <= a.height
            for a, b in zip(before, after, strict=True)
        )
        if shrinks and "resize" in op.name.lower() and not bench.outcomes[op.position].is_random:
            return op.name, max(b.width for b in after), max(b.height for b in after)
        before = after
    return None


def _saved_s(bench: PipelineRunner, opener: Any) -> float | None:
    """What opening and decoding cost now, less what they cost then."""
    gaps = []
    for one in bench.drawn:
        if one.lazy is None:
            return None
        image = opened(one.lazy)
        began_ns = time.perf_counter_ns()
        image.load()
        middle_ns = time.perf_counter_ns()
        image.close()
        image = opened(one.lazy)
        later_ns = time.perf_counter_ns()
        try:
            opener(image).load()
        except Exception:  # noqa: BLE001 - the comparison says so
            return None
        gaps.append(((middle_ns - began_ns) - (time.perf_counter_ns() - later_ns)) / 1e9)
    return sum(gaps) / len(gaps)


_ROUNDS: Final = 5


def batching_proposals(situation: Situation) -> Iterator[Proposal]:
    """Each number of ops at the end, from one to all that draw nothing."""
    bench = situation.bench
    why_not = _batching_why_not(situation)
    if why_not:
        situation.notes.append(f"no op was tried on whole batches: {why_not}")
        return
    recipe = Recipe(tuple(range(len(bench.ops))))
    for position in reversed(recipe.positions):
        outcome = bench.outcomes[position]
        if outcome.is_random or outcome.unsteady or not _are_tensors(bench, position):
            return
        recipe = _one_more(situation.judge, recipe, position)
        names = ", ".join(bench.ops[p].name for p in recipe.on_batch)
        vectorised = ", ".join(bench.ops[p].name for p in sorted(recipe.by_vmap))
        yield Proposal(
            "batch",
            recipe,
            f"{names} on the whole batch, in the collate function",
            f"{vectorised} vectorised by torch.vmap" if vectorised else "",
            _batching_saved_s(bench, recipe),
        )


def _batching_why_not(situation: Situation) -> str:
    if situation.loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own, which may need finished samples"
    if situation.loader.batch_sampler is None:
        return "the loader makes no batches of samples"
    if situation.bench.site.where is None:
        return "the dataset does more with what comes out of its pipeline"
    return ""


def _are_tensors(bench: PipelineRunner, position: int) -> bool:
    """Whether all samples that an op gets are tensors of one shape, so that they can be stacked."""
    values = _before(bench, position)
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    return len(shapes) == 1 and all(isinstance(value, torch.Tensor) for value in values)


def _before(bench: PipelineRunner, position: int) -> list[Any]:
    givens = bench.outcomes[position - 1].givens if position else bench.givens
    return [given.value for given in givens]


def _one_more(judge: EquivalenceJudge, recipe: Recipe, position: int) -> Recipe:
    """The recipe with one more op on the batch, vectorised where it is not identical without."""
    plain = replace(recipe, on_batch=(position, *recipe.on_batch))
    if judge.compare(plain).equivalence == IDENTICAL:
        return plain
    by_vmap = replace(plain, by_vmap=recipe.by_vmap | {position})
    return by_vmap if judge.compare(by_vmap).equivalence != "fails" else plain


def _batching_saved_s(bench: PipelineRunner, recipe: Recipe) -> float | None:
    """What the ops cost on each sample, less what they cost on the batch."""
    column = torch.stack(_before(bench, recipe.on_batch[0]))
    alone = sum(bench.outcomes[position].seconds for position in recipe.on_batch)
    best_s = float("inf")
    try:
        for _ in range(_ROUNDS):
            given = fresh(column)
            began_ns = time.perf_counter_ns()
            for position in recipe.on_batch:
                op = recipe.op(bench.site.chain, position)
                given = torch.vmap(op)(given) if position in recipe.by_vmap else op(given)
            best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
    except Exception:  # noqa: BLE001 - an op that takes no batch; the comparison says so
        return None
    return alone - best_s / len(column)


def memory_proposals(situation: Situation) -> Iterator[Proposal]:
    """One cut, as late as it can lie."""
    bench = situation.bench
    if bench.site.where is None or any(len(given.args) != 1 for given in bench.givens):
        situation.notes.append(
            "keeping finished parts in memory was not tried: the dataset does more with what comes "
            "out of its pipeline, or calls it with more than one value"
        )
        return
    cut = _cut(bench)
    made = [one.value for one in (bench.outcomes[cut - 1].givens if cut else bench.givens)]
    each = bytes_of(made) / len(made)
    entries = len(situation.loader.dataset)
    fetch_s = statistics.median(one.fetch_s for one in bench.drawn)
    fetch_s += statistics.median(one.decode_s for one in bench.drawn)
    saved_s = fetch_s + sum(bench.outcomes[position].seconds for position in range(cut))
    last = bench.ops[cut - 1].name if cut else "decoding"
    yield Proposal(
        "cache",
        Recipe(tuple(range(len(bench.ops))), cached=max(cut, 0) + 1),
        f"everything up to {last} kept in memory",
        f"{size(each * entries)} for {count(entries, 'sample')}, in each worker; saves "
        f"{seconds(saved_s)} per sample once all are kept, and is lost with workers that end",
        saved_s,
    )


def _cut(bench: PipelineRunner) -> int:
    """How many ops lie before the first that is not the same every time."""
    for op in bench.ops:
        outcome = bench.outcomes[op.position]
        if outcome.is_random or outcome.unsteady:
            return op.position
    return len(bench.ops)


CANDIDATES: Final[tuple[Candidate, ...]] = (
    batching_proposals,
    decoding_proposals,
    memory_proposals,
)
