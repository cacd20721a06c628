"""Samples as numbers to compare, and as pictures to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from stallscope.measure.cache.values import leaves
from stallscope.measure.pipelines.digests import described, is_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPATIAL = 2
_CHANNELS = (1, 3)


class Piece(NamedTuple):
    """One tensor, array, image or plain value of a sample."""

    kind: str
    """Type, dtype and shape, in words."""
    values: NDArray[np.generic] | None
    """None for what is no array of numbers."""
    plain: str
    """What it is, where it has no values."""


def pieces(value: Any) -> list[Piece]:
    """What a sample is made of."""
    return [_piece(leaf) for leaf in leaves(value)]


def _piece(leaf: Any) -> Piece:
    values = as_array(leaf)
    if values is None or values.dtype.kind not in "biuf":
        return Piece(type(leaf).__name__, None, f"{leaf!r}"[:200])
    return Piece(described(leaf), values, "")


def as_array(leaf: Any) -> NDArray[np.generic] | None:
    """The values of a tensor, an array or an image; None for anything else."""
    if isinstance(leaf, torch.Tensor):
        plain = leaf.detach().as_subclass(torch.Tensor)
        plain = plain.to_dense() if plain.layout is not torch.strided else plain
        plain = plain.float() if plain.dtype == torch.bfloat16 else plain
        array: NDArray[np.generic] = plain.cpu().numpy()
        return array
    if isinstance(leaf, np.ndarray):
        return leaf
    return np.asarray(leaf) if is_image(leaf) else None


def largest_array(value: Any) -> NDArray[np.generic] | None:
    """The array that most of a sample is in: its image; None where it has none of numbers."""
    arrays = [array for leaf in leaves(value) if (array := as_array(leaf)) is not None]
    arrays = [array for array in arrays if array.dtype.kind in "biuf" and array.size]
    return max(arrays, key=lambda array: array.size, default=None)


def pictures(one: Any, other: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
    """Two samples as pictures on the same scale of brightness; None where they are no images."""
    first, second = (_as_image(largest_array(value)) for value in (one, other))
    if first is None or second is None:
        return None
    if first.dtype == np.uint8 and second.dtype == np.uint8:
        return _in_colour(first.astype(np.uint8)), _in_colour(second.astype(np.uint8))
    low, high = float(np.nanmin(first)), float(np.nanmax(first))
    scale = 255.0 / (high - low) if high > low else 1.0
    one_, other_ = (
        np.clip(np.nan_to_num((image.astype(np.float64) - low) * scale), 0, 255).astype(np.uint8)
        for image in (first, second)
    )
    return _in_colour(one_), _in_colour(other_)


def _as_image(array: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
    """Shape (height, width) or (height, width, channels); None for what is no image."""
    if array is None or array.ndim not in (_SPATIAL, _SPATIAL + 1):
        return None
    if array.ndim == _SPATIAL:
        return array if min(array.shape) > 1 else None
    if array.shape[0] in _CHANNELS:
        array = np.moveaxis(array, 0, -1)
    return array if array.shape[-1] in _CHANNELS else None


def _in_colour(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = image[..., None] if image.ndim == _SPATIAL else image
    wide: NDArray[np.uint8] = np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))
    return wide
