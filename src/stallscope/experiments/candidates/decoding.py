"""Decoding straight to the wanted size, or with another decoder.

Only where the pipeline gets images that are still encoded, as `PIL.Image.open` gives them, or
where the dataset holds the function that makes an image of a path, as torchvision's do. A JPEG
can be decoded at a half, a quarter or an eighth of its size (`Image.draft`; Pillow's documentation,
"Image.draft", and libjpeg's `scale_denom`), which is faster and not the same as decoding and then
resizing. Another decoder may round other than PIL's. Both are compared like everything else.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any

from stallscope.experiments.candidates.protocol import Proposal
from stallscope.experiments.ordering.recipe import Recipe
from stallscope.measure.pipelines.decoders import Cv2Decoder, Draft, Reader, TorchvisionDecoder
from stallscope.measure.pipelines.digests import is_image
from stallscope.measure.pipelines.inputs import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.experiments.candidates.protocol import Situation
    from stallscope.experiments.ordering.workbench import Workbench


def proposals(situation: Situation) -> Iterator[Proposal]:
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


def _proposal(bench: Workbench, opener: Any, change: str, changes: str) -> Proposal:
    order = tuple(range(len(bench.ops)))
    if _is_read(bench):
        reader = Reader(opener)
        recipe = Recipe(order, reader=reader)
        return Proposal("decode", recipe, change, changes, _saved_reading_s(bench, reader))
    recipe = Recipe(order, opener=opener)
    return Proposal("decode", recipe, change, changes, _saved_s(bench, opener))


def _is_read(bench: Workbench) -> bool:
    """Whether a function of the dataset's makes the images of their paths."""
    return bench.site.reader is not None


def _saved_reading_s(bench: Workbench, reader: Any) -> float:
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


def _why_not(bench: Workbench) -> str:
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


def _wanted(bench: Workbench) -> tuple[str, int, int] | None:
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


def _saved_s(bench: Workbench, opener: Any) -> float | None:
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
