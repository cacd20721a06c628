"""Grades of a pipeline's data against the original's, on the same draws, value by value.

Equal digests are *identical*. Else the values are compared; other types, dtypes or shapes are
*different*, whatever the values. Differences are shares of the values' range, which is 255 for
bytes, and else the range of all samples together.

*Rounding* comes from another order of floating-point operations: an operation on 32-bit numbers is
off by at most 6e-8 of their size, a resize of some hundred of them by a hundred times that.
*8-bit rounding* comes from rounding to 8 bits at another step. Each rounding moves a value by at
most 0.5/255, and interpolation, which is linear, does not enlarge that. A rounding before it, a
rounding after it and one that is dropped make 1.5/255. The errors spread over a picture, so their
mean counts, too.

Labels have no rounding: integers that are not a picture, masks, floats that are a few whole numbers
in all samples (a mask of a volume), text. Spectrograms and volumes are compared as pictures are, by
the range of their values. Small tables, such as boxes, and signals have no 8-bit rounding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.hooks.find_ops import own_attributes
from stallscope.loops.cached_values import DEEPEST, is_image, leaves
from stallscope.units import repr_of
from stallscope.verbs.orders.variant import (
    DIFFERENT,
    EQUIVALENCES,
    IDENTICAL,
    NEAR,
    ROUNDING,
    Grade,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Picture = NDArray[np.uint8]

ROUNDING_SHARE: Final = 1e-5
"""Largest difference by floating-point rounding, as a share of the values' range."""
BYTE: Final = 255.0
"""Range of bytes."""
NEAR_SHARE: Final = 1.5 / BYTE
"""Largest difference by 8-bit rounding, as a share of the values' range."""
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))
_HISTORIES: Final = {"applied_transforms", "_applied_operations"}
"""Attributes in which torchio's subjects and MONAI's tensors log each op."""
_SPATIAL: Final = 2
_CHANNELS: Final = (1, 3)
_COLOURS: Final = 3


class State(NamedTuple):
    """State of the samples between two ops."""

    digest: str
    """Digest of the data."""
    layout: str = ""
    """Layout of the data in memory, which the next op's cost depends on."""


def digest(value: Any) -> str:
    """Return a digest of 32 hexadecimal digits, equal only for the same bits of the same types.

    It covers type, dtype, shape, mode and bytes of everything in the value. The layout of a tensor
    in memory is left out: it is part of a state's key (`layout`), because an op may take longer for
    it. The log of a sample's ops is left out, as it differs between any two orders. Pixels are
    hashed by Python's own keyed hash (SipHash, 64 bits, PEP 456), which is several times as fast as
    those of hashlib; so digests are valid in one process only.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value, 0):
        hasher.update(piece)
    return hasher.hexdigest()


def layout(value: Any) -> str:
    """Return the order in memory of the axes of each tensor and array of a value."""
    orders = []
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            orders.append(_axes(leaf.stride(), tuple(leaf.shape)))
        elif isinstance(leaf, np.ndarray):
            orders.append(_axes(leaf.strides, leaf.shape))
    return ";".join(orders)


def described(value: Any) -> str:
    """Describe a value in words: "PIL RGB 533×800", "uint8 (3, 256, 256)"."""
    text = type(value).__name__
    if isinstance(value, torch.Tensor):
        kind = "" if type(value) is torch.Tensor else f"{text} "
        text = f"{kind}{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    elif isinstance(value, np.ndarray):
        text = f"ndarray {value.dtype} {value.shape}"
    elif is_image(value):
        text = f"PIL {value.mode} {value.width}×{value.height}"
    elif isinstance(value, Mapping):
        items = ", ".join(f"{key}: {described(item)}" for key, item in value.items())
        text = f"{{{items}}}"
    elif isinstance(value, tuple):
        text = f"({', '.join(map(described, value))})"
    elif isinstance(value, list):
        text = f"list of {len(value)}" + (f" ({described(value[0])}, …)" if value else "")
    return text


def _axes(strides: tuple[int, ...], shape: tuple[int, ...]) -> str:
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    return "".join(str(axis) for axis in order if shape[axis] > 1)


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, torch.Tensor):
        yield repr((value.dtype, tuple(value.shape), str(value.device))).encode()
        bits = _plain(value).contiguous().reshape(-1).view(torch.uint8)
        yield _hashed(bits.numpy().tobytes())
        yield from _of_attributes(value, (), depth + 1)  # a box's format, a volume's affine
    elif isinstance(value, (np.ndarray, np.generic)):
        yield repr((str(value.dtype), value.shape)).encode()
        if value.dtype.hasobject:
            yield from _of_container(value.tolist(), depth + 1)
        else:
            yield _hashed(value.tobytes())
    elif is_image(value):
        yield repr((value.mode, value.size)).encode()
        yield _hashed(value.tobytes())
        yield repr(value.getpalette() if value.mode == "P" else None).encode()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif depth < DEEPEST:
        yield from _of_container(value, depth + 1)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of torch's own class, in memory of the CPU."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    return (plain if plain.layout is torch.strided else plain.to_dense()).cpu()


def _hashed(pixels: bytes) -> bytes:
    return hash(pixels).to_bytes(8, "little", signed=True)


def _of_container(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _pieces(value[key], depth)
        if isinstance(value, dict):  # the attributes of any other mapping hold its items
            yield from _of_attributes(value, value, depth)
    elif isinstance(value, (list, tuple)):
        yield str(len(value)).encode()
        for item in value:
            yield from _pieces(item, depth)
        yield from _of_attributes(value, (), depth)
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value))).encode()
    elif own_attributes(value):
        yield from _of_attributes(value, (), depth)
    else:
        yield repr(value).encode()


def _of_attributes(holder: Any, items: Container[str], depth: int) -> Iterator[bytes]:
    """Yield the attributes of an object, without its items and its history."""
    attributes = own_attributes(holder)
    for name in sorted(attributes.keys() - _HISTORIES):
        if name not in items:  # torchio's subjects have each item as an attribute, too
            yield repr(name).encode()
            yield from _pieces(attributes[name], depth)


def as_array(leaf: Any) -> Array | None:
    """Return the numbers of a tensor, an array or an image; None for anything else."""
    array = np.asarray(leaf) if is_image(leaf) else leaf
    if isinstance(leaf, torch.Tensor):
        plain = _plain(leaf)
        array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" else None


def pictures(original: Any, new: Any) -> tuple[Picture, Picture] | None:
    """Return two samples on the same scale of brightness; None: they are not images."""
    first, second = (_as_image(value) for value in (original, new))
    if first is None or second is None:
        return None
    low, scale = 0.0, 1.0
    if not first.dtype == second.dtype == np.uint8:
        low, high = float(np.nanmin(first)), float(np.nanmax(first))
        scale = 255.0 / (high - low) if high > low else 1.0
    return _shades(first, low, scale), _shades(second, low, scale)


def _shades(image: Array, low: float, scale: float) -> Picture:
    shades = np.nan_to_num((image.astype(np.float64) - low) * scale).clip(0, 255).astype(np.uint8)
    wide: Picture = np.ascontiguousarray(np.broadcast_to(shades, (*image.shape[:2], 3)))
    return wide


def _as_image(value: Any) -> Array | None:
    """Return a sample's largest array, of shape (height, width, channels); None: not an image."""
    arrays = [array for leaf in leaves(value) if (array := as_array(leaf)) is not None]
    array = max(arrays, key=lambda array: array.size, default=None)
    if array is None or not array.size or array.ndim not in (_SPATIAL, _SPATIAL + 1):
        return None
    if array.ndim == _SPATIAL:
        return array[..., None] if min(array.shape) > 1 else None
    if array.shape[0] in _CHANNELS:
        array = np.moveaxis(array, 0, -1)
    return array if array.shape[-1] in _CHANNELS else None


NEAR_PSNR_DB: Final = 48.0
"""Errors that are spread evenly up to 1.5/255 have a PSNR of 49 dB."""
FEWEST_OF_PICTURE: Final = 1_024
"""Values of a picture; a smaller array, or one with a single axis, is a table."""
_FEWEST_SHADES: Final = 64
"""Shades of a picture; a mask has fewer classes."""


def compare_outputs(original: Sequence[Any], new: Sequence[Any]) -> Grade:
    """Grade the outputs of two pipelines; their digests may differ although all values agree.

    Args:
        original: samples of the original pipeline.
        new: the same samples of the new pipeline, on the same draws.
    """
    rows = [
        ([*map(_leaf, old)], [*map(_leaf, theirs)])
        for old, theirs in zip(map(leaves, original), map(leaves, new), strict=True)
    ]
    for mine, theirs in rows:
        if why := _unlike(mine, theirs):
            return Grade(DIFFERENT, why=why)
    grade, largest, lowest_db = IDENTICAL, 0.0, math.inf
    for column in zip(*(zip(mine, theirs, strict=True) for mine, theirs in rows), strict=False):
        pairs = [(a, b) for (_, a), (_, b) in column if a is not None and b is not None]
        if not pairs:
            continue
        leaf_grade = _graded(column[0][0][0], pairs)
        if not math.isfinite(leaf_grade.max_difference or 0.0):
            return Grade(DIFFERENT, why="a value is NaN or infinite in only one of them")
        grade = max(grade, leaf_grade.equivalence, key=EQUIVALENCES.index)
        largest = max(largest, leaf_grade.max_difference or 0.0)
        lowest_db = min(lowest_db, math.inf if leaf_grade.psnr_db is None else leaf_grade.psnr_db)
    if grade != IDENTICAL:
        return Grade(grade, largest, lowest_db if math.isfinite(lowest_db) else None)
    if digest(original) != digest(new):
        return Grade(DIFFERENT, why="another type, structure or attribute")
    return Grade(IDENTICAL)


def _leaf(value: Any) -> tuple[str, Array | None]:
    """Return type, dtype and shape of an array, and its numbers; or the text of another value."""
    numbers = as_array(value)
    return (repr_of(value)[:200] if numbers is None else described(value)), numbers


def _graded(kind: str, pairs: Sequence[tuple[Array, Array]]) -> Grade:
    """Grade one leaf over all samples."""
    gaps = [_gap(values, new) for values, new in pairs]
    here = max(float(gap.max(initial=0.0)) for gap in gaps)
    if not here or not math.isfinite(here):
        return Grade(DIFFERENT if here else IDENTICAL, here)
    first = pairs[0][0]
    peak = _range([old for old, _ in pairs])
    share = here / peak if peak else math.inf
    means = [math.sqrt(np.mean((gap / here) ** 2)) for gap in gaps if gap.size]
    psnr_db = -20 * math.log10(share * max(means)) if math.isfinite(share) else -math.inf
    grade = DIFFERENT
    if all(_are_classes(old) for old, _ in pairs):
        grade = DIFFERENT
    elif first.dtype.kind == "f" and share <= max(ROUNDING_SHARE, _steps(first)):
        grade = ROUNDING
    elif _is_picture(kind, first) and share <= NEAR_SHARE and psnr_db >= NEAR_PSNR_DB:
        grade = NEAR
    return Grade(grade, share, psnr_db)


def _are_classes(values: Array) -> bool:
    """Return true if floats are a few whole numbers, as in a mask."""
    if values.dtype.kind != "f" or not np.array_equal(values, np.floor(values)):
        return False
    return len(np.unique(values)) < _FEWEST_SHADES


def _steps(values: Array) -> float:
    """Return two steps between numbers near 1, for types coarser than 32 bits; else 0."""
    kind: Any = values.dtype
    return 2 * float(np.finfo(kind).eps) if kind.itemsize < 4 else 0.0  # noqa: PLR2004


def _is_picture(kind: str, values: Array) -> bool:
    """Return true if values are a picture, which tolerates 8-bit rounding."""
    if kind.startswith(("Mask ", "PIL P ", "PIL 1 ")) or values.size < FEWEST_OF_PICTURE:
        return False
    if values.dtype.kind == "f":
        return values.squeeze().ndim >= _SPATIAL
    has_colours = values.ndim > _SPATIAL and _COLOURS in (values.shape[0], values.shape[-1])
    is_bytes = values.dtype == np.uint8
    return is_bytes and (has_colours or len(np.unique(values)) >= _FEWEST_SHADES)


def _unlike(mine: Sequence[tuple[str, Any]], theirs: Sequence[tuple[str, Any]]) -> str:
    """Return the first difference in kind; "": there is none."""
    if len(mine) != len(theirs):
        return f"a sample holds {len(theirs)} values instead of {len(mine)}"
    texts = ((a, b) for (a, _), (b, _) in zip(mine, theirs, strict=True) if a != b)
    return next((f"{b:.40} instead of {a:.40}" for a, b in texts), "")


def _gap(a: Array, b: Array) -> NDArray[np.float64]:
    """Return the differences; infinite where only one value is NaN."""
    first, second = (np.atleast_1d(values).astype(np.float64) for values in (a, b))
    with np.errstate(invalid="ignore"):
        gap: NDArray[np.float64] = np.abs(first - second)
    gap[(first == second) | (np.isnan(first) & np.isnan(second))] = 0.0
    return np.nan_to_num(gap, nan=np.inf)


def _range(values: Sequence[Array]) -> float:
    """Return the largest possible difference: 255 for bytes, else the range of all samples."""
    if values[0].dtype == np.uint8:
        return BYTE
    ends = [
        (float(finite.min()), float(finite.max()))
        for array in values
        if (finite := array[np.isfinite(array)]).size
    ]
    return max(high for _, high in ends) - min(low for low, _ in ends) if ends else 0.0
