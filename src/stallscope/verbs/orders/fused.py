"""A resize and the crop behind it as one op, which resizes only the part that the crop keeps.

Pillow resizes a part of an image as it resizes the whole (`Image.resize(box=...)`, Pillow's
documentation). The part is larger than the crop by the reach of the filter, so that pixels at its
edge see their neighbours. Workers import this module, so it imports no polars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from stallscope.loops.cached_values import is_image
from stallscope.verbs.orders.pipeline import passed_on
from stallscope.verbs.orders.variant import Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.verbs.orders.evaluator import OrderEvaluator

_REACH: Final = 3
"""Reach of the widest of Pillow's filters (Lanczos), in pixels of the resized image."""
_MODULES: Final = ("torchvision.transforms.transforms", "torchvision.transforms.v2._geometry")
_CROPS: Final = ("CenterCrop", "RandomCrop")


@dataclass(frozen=True, eq=False)
class ResizedCrop:
    """Resize and crop in one, for PIL images; anything else goes through both ops."""

    resize: Any
    """The user's op."""
    crop: Any
    """The user's op; draws its place as before."""

    @property
    def __name__(self) -> str:
        return f"{type(self.resize).__name__} and {type(self.crop).__name__} in one"

    def __call__(self, image: Any) -> Any:
        """Return the crop of the resized image."""
        if not is_image(image):
            return self.crop(self.resize(image))
        wide, high = self.resize(Image.new("1", image.size)).size  # quick, as it is black and white
        top, left, down, across = _box_of(self.crop, wide, high)
        if min(top, left) < 0 or top + down > high or left + across > wide:
            return self.crop(self.resize(image))  # the crop pads
        scales = image.width / wide, image.height / high
        spare = [math.ceil(_REACH * max(1.0, 1 / scale)) + 1 for scale in scales]
        first = max(left - spare[0], 0), max(top - spare[1], 0)
        last = min(left + across + spare[0], wide), min(top + down + spare[1], high)
        name = str(getattr(self.resize.interpolation, "value", self.resize.interpolation))
        part = image.resize(
            (last[0] - first[0], last[1] - first[1]),
            Image.Resampling[name.partition("-")[0].upper()],  # "bilinear", "nearest-exact"
            (
                first[0] * scales[0],
                first[1] * scales[1],
                min(last[0] * scales[0], image.width),
                min(last[1] * scales[1], image.height),
            ),
        )
        at = left - first[0], top - first[1]
        return part.crop((*at, at[0] + across, at[1] + down))


def _box_of(crop: Any, wide: int, high: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the crop, with the op's own draws."""
    down, across = crop.size
    if type(crop).__name__ == "CenterCrop":
        return round((high - down) / 2.0), round((wide - across) / 2.0), down, across
    empty = Image.new("1", (wide, high))  # the op only uses its size
    params = getattr(crop, "make_params", None) or getattr(crop, "_get_params", None)
    if params is not None:  # of v2; the second name is that of older versions
        sides = params([empty])
        return sides["top"], sides["left"], sides["height"], sides["width"]
    box: tuple[int, int, int, int] = crop.get_params(empty, crop.size)
    return box


def _can_be_one(resize: Any, crop: Any) -> bool:
    kinds = type(resize), type(crop)
    if any(kind.__module__ not in _MODULES for kind in kinds):
        return False
    pads = getattr(crop, "padding", None) or getattr(crop, "pad_if_needed", False)
    return (
        kinds[0].__name__ == "Resize"
        and kinds[1].__name__ in _CROPS
        and resize.size is not None
        and not pads
    )


def fused(evaluator: OrderEvaluator) -> Iterator[Variant]:
    """Propose a single op for a resize and the crop that follows it."""
    for first, last in pairwise(evaluator.ops):
        inputs = evaluator.inputs_of[first.position]
        if not _can_be_one(first.call, last.call) or not all(is_image(x.value) for x in inputs):
            continue
        op = ResizedCrop(first.call, last.call)
        # in the crop's place, so that it draws from the crop's stream
        took_s = evaluator.time_rewrite(last.position, op, inputs)
        saved_s = evaluator.seconds_of((first.position, last.position)) - took_s
        yield Variant(
            evaluator.as_it_is,
            "fused",
            f"{first.name} and {last.name} in one",
            replaced={first.position: passed_on, last.position: op},
            predicted_s=evaluator.whole_s - saved_s,
        )
