"""How far a pipeline's data is from the original's: on the same draws, value by value, graded.

Equal digests are *identical*. Else the values are compared; other types, dtypes or shapes are
*different*, whatever the values. Differences are shares of the values' range, which is 255 for
bytes, and else what all samples together span.

*Rounding* is what another order of floating-point operations does: an operation on 32-bit numbers
is off by at most 6e-8 of their size, a resize of some hundred of them by a hundred times that.
*8-bit rounding* is what rounding to 8 bits in another place does: each moves a value by at most
0.5/255, and interpolation, which is linear, by no more than what it interpolates; one before it,
one behind it and one that falls away make 1.5/255. It is spread over a picture, so its mean counts.

Labels have no rounding: integers that are no picture, masks, text. Small tables, such as boxes,
have none to 8 bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.hooks.find_ops import own_attributes
from stallscope.loops.cached_values import is_image, leaves
from stallscope.orders.variant import (
    DIFFERENT,
    EQUIVALENCES,
    IDENTICAL,
    NEAR,
    ROUNDING,
    Grade,
)
from stallscope.units import repr_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.generic]

ROUNDING_SHARE: Final = 1e-5
"""Largest difference by floating-point rounding, as a share of the values' range."""
NEAR_SHARE: Final = 1.5 / 255
"""Largest difference by rounding to 8 bits, likewise."""
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))
_DEEPEST: Final = 12
_HISTORIES: Final = {"applied_transforms", "_applied_operations"}
"""Attributes in which torchio's subjects and MONAI's tensors write down each op."""
_SPATIAL: Final = 2
_CHANNELS: Final = (1, 3)
_COLOURS: Final = 3


class State(NamedTuple):
    """Samples at some point of their way."""

    digest: str
    """Equal for equal data."""
    layout: str = ""
    """Equal for data that lies alike in memory, which the next op's cost depends on."""


class Leaf(NamedTuple):
    """One tensor, array, image or plain value of a sample."""

    kind: str
    """Type, dtype and shape, in words."""
    values: NDArray[np.generic] | None
    """None for what is no array of numbers."""
    plain: str = ""
    """What it is, where it has no values."""


def digest(value: Any) -> str:
    """Digest a value, as 32 hexadecimal digits: equal for the same bits of the same types alone.

    Type, dtype, shape, mode and bytes of all that it holds go in. How a tensor lies in memory does
    not: it is part of a state's key (`layout`), because an op may take longer for it. Nor does the
    list of the ops that a sample has been through: it differs between any two orders. Pixels go in
    by Python's own keyed hash (SipHash, 64 bits, PEP 456), which is several times as fast as those
    of hashlib; so digests of one process mean nothing to another.
    """
    found = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value, 0):
        found.update(piece)
    return found.hexdigest()


def layout(value: Any) -> str:
    """Tell in which order the axes of each tensor and array of a value lie in memory."""
    found = []
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            found.append(_axes(leaf.stride(), tuple(leaf.shape)))
        elif isinstance(leaf, np.ndarray):
            found.append(_axes(leaf.strides, leaf.shape))
    return ";".join(found)


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
        items = ", ".join(f"{key}: {described(one)}" for key, one in value.items())
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
        yield from _of_tensor(value, depth)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield from _of_array(value, depth)
    elif is_image(value):
        yield repr((value.mode, value.size)).encode()
        yield _hashed(value.tobytes())
        yield repr(value.getpalette() if value.mode == "P" else None).encode()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif depth < _DEEPEST:
        yield from _of_container(value, depth + 1)


def _of_tensor(tensor: torch.Tensor, depth: int) -> Iterator[bytes]:
    yield repr((tensor.dtype, tuple(tensor.shape), str(tensor.device))).encode()
    plain = tensor.detach().as_subclass(torch.Tensor)
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu().contiguous()
    yield _hashed(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""
    yield from _of_attributes(tensor, (), depth + 1)  # a box's format, a volume's affine


def _of_array(array: Any, depth: int) -> Iterator[bytes]:
    yield repr((str(array.dtype), array.shape)).encode()
    if array.dtype.hasobject:
        yield from _of_container(array.tolist(), depth + 1)
    else:
        yield _hashed(array.tobytes())


def _hashed(pixels: bytes) -> bytes:
    return hash(pixels).to_bytes(8, "little", signed=True)


def _of_container(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _pieces(value[key], depth)
        if isinstance(value, dict):  # else its attributes are where it has its items from
            yield from _of_attributes(value, value, depth)
    elif isinstance(value, (list, tuple)):
        yield str(len(value)).encode()
        for one in value:
            yield from _pieces(one, depth)
        yield from _of_attributes(value, (), depth)
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value))).encode()
    elif own_attributes(value):
        yield from _of_attributes(value, (), depth)
    else:
        yield repr(value).encode()


def _of_attributes(thing: Any, items: Container[str], depth: int) -> Iterator[bytes]:
    """Yield what an object holds beside its items, without its history."""
    attributes = own_attributes(thing)
    for name in sorted(attributes.keys() - _HISTORIES):
        if name not in items:  # torchio's subjects have each item as an attribute, too
            yield repr(name).encode()
            yield from _pieces(attributes[name], depth)


def leaves_of(value: Any) -> list[Leaf]:
    """Take a sample apart into what is compared."""
    found = []
    for leaf in leaves(value):
        values = as_array(leaf)
        if values is None or values.dtype.kind not in "biuf":
            found.append(Leaf(type(leaf).__name__, None, repr_of(leaf)[:200]))
        else:
            found.append(Leaf(described(leaf), values))
    return found


def as_array(leaf: Any) -> NDArray[np.generic] | None:
    """Read the values of a tensor, an array or an image; None for anything else."""
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
    """Find the array that most of a sample is in: its image; None where it has none of numbers."""
    arrays = [array for leaf in leaves(value) if (array := as_array(leaf)) is not None]
    arrays = [array for array in arrays if array.dtype.kind in "biuf" and array.size]
    return max(arrays, key=lambda array: array.size, default=None)


GEOMETRY, CONVERSION, POINTWISE = "geometry", "conversion", "pointwise"
"""What an op does to a sample: it moves values to other places, changes their type, or neither."""


def work_of(given: Any, result: Any) -> str:
    """Tell what an op has done to a sample; `POINTWISE` where nobody knows."""
    before, after = largest_array(given), largest_array(result)
    if before is None or after is None:
        return POINTWISE
    if _plane_of(before) != _plane_of(after):
        return GEOMETRY
    if type(given) is not type(result) or before.dtype != after.dtype:
        return CONVERSION
    same = before.shape == after.shape and not np.array_equal(before, after)
    first, then = ((one.astype(float).sum(), one.min(), one.max()) for one in (before, after))
    return GEOMETRY if same and np.allclose(first, then, rtol=1e-9, atol=0.0) else POINTWISE


def _plane_of(array: Array) -> tuple[int, ...]:
    """Return the sides of an image, wherever its channels are."""
    return tuple(sorted(array.shape, reverse=True)[:_SPATIAL])


def pictures(one: Any, other: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
    """Show two samples on the same scale of brightness; None where they are no images."""
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


NEAR_PSNR_DB: Final = 48.0
"""Errors that are spread evenly up to 1.5/255 have a PSNR of 49 dB."""
_BYTE: Final = 255.0
_FEWEST_OF_PICTURE: Final = 1_024
"""Values; what is smaller, or has one axis, is a table."""
_FEWEST_SHADES: Final = 64
"""Of a grey picture in bytes; a mask has fewer classes."""


def compare_outputs(original: Sequence[Any], other: Sequence[Any]) -> Grade:
    """Compare what two pipelines gave; their digests may differ although all values agree."""
    found = compare_samples(list(map(leaves_of, original)), list(map(leaves_of, other)))
    if found.equivalence == IDENTICAL and digest(original) != digest(other):
        return found._replace(equivalence=DIFFERENT, why="another type, structure or attribute")
    return found


def compare_samples(original: Sequence[Sequence[Leaf]], other: Sequence[Sequence[Leaf]]) -> Grade:
    """Compare samples, each a list of leaves.

    Args:
        original: of the pipeline as it is.
        other: of the new one, of the same samples on the same draws.
    """
    samples = list(zip(original, other, strict=True))
    for mine, theirs in samples:
        why = _unlike(mine, theirs)
        if why:
            return Grade(DIFFERENT, why=why)
    grade, largest, lowest_db = IDENTICAL, 0.0, math.inf
    for column in zip(*(zip(mine, theirs, strict=True) for mine, theirs in samples), strict=False):
        pairs = [
            (one.values, new.values)
            for one, new in column
            if one.values is not None and new.values is not None
        ]
        if not pairs:
            continue
        found = _graded(column[0][0].kind, pairs)
        if not math.isfinite(found.max_difference or 0.0):
            return Grade(DIFFERENT, why="a value is not a number in one of them only")
        grade = max(grade, found.equivalence, key=EQUIVALENCES.index)
        largest = max(largest, found.max_difference or 0.0)
        lowest_db = min(lowest_db, math.inf if found.psnr_db is None else found.psnr_db)
    if grade == IDENTICAL:
        return Grade(IDENTICAL)
    return Grade(grade, largest, lowest_db if math.isfinite(lowest_db) else None)


def _graded(kind: str, pairs: Sequence[tuple[Array, Array]]) -> Grade:
    """Grade one leaf over all samples."""
    gaps = [_gap(one, new) for one, new in pairs]
    here = max(float(gap.max(initial=0.0)) for gap in gaps)
    if not here or not math.isfinite(here):
        return Grade(DIFFERENT if here else IDENTICAL, here)
    first = pairs[0][0]
    peak = _range([one for one, _ in pairs])
    share = here / peak if peak else math.inf
    means = [math.sqrt(np.mean((gap / here) ** 2)) for gap in gaps if gap.size]
    psnr_db = -20 * math.log10(share * max(means)) if math.isfinite(share) else -math.inf
    grade = DIFFERENT
    if first.dtype.kind == "f" and share <= max(ROUNDING_SHARE, _steps(first)):
        grade = ROUNDING
    elif _is_picture(kind, first) and share <= NEAR_SHARE and psnr_db >= NEAR_PSNR_DB:
        grade = NEAR
    return Grade(grade, share, psnr_db)


def _steps(values: Array) -> float:
    """Return two steps between numbers near 1, of types that are coarser than 32 bits."""
    kind: Any = values.dtype
    return 2 * float(np.finfo(kind).eps) if kind.itemsize < 4 else 0.0  # noqa: PLR2004


def _is_picture(kind: str, values: Array) -> bool:
    """Return whether values that are rounded to 8 bits are still the same picture."""
    if kind.startswith(("Mask ", "PIL P ", "PIL 1 ")) or values.size < _FEWEST_OF_PICTURE:
        return False
    if values.dtype.kind == "f":
        return values.squeeze().ndim >= _SPATIAL
    has_colours = values.ndim > _SPATIAL and _COLOURS in (values.shape[0], values.shape[-1])
    is_bytes = values.dtype == np.uint8
    return is_bytes and (has_colours or len(np.unique(values)) >= _FEWEST_SHADES)


def _unlike(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> str:
    """Say what is not of one kind; "" where all is."""
    if len(mine) != len(theirs):
        return f"a sample holds {len(theirs)} values instead of {len(mine)}"
    for a, b in zip(mine, theirs, strict=True):
        if a.kind != b.kind:
            return f"{b.kind} instead of {a.kind}"
        if a.plain != b.plain:
            return f"{b.plain:.40} instead of {a.plain:.40}"
    return ""


def _gap(a: Array, b: Array) -> NDArray[np.float64]:
    """Return the differences; infinite where one value is no number and the other is."""
    one, other = (np.atleast_1d(values).astype(np.float64) for values in (a, b))
    with np.errstate(invalid="ignore"):
        gap: NDArray[np.float64] = np.abs(one - other)
    gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    return np.nan_to_num(gap, nan=np.inf)


def _range(values: Sequence[Array]) -> float:
    """Return the largest possible difference: 255 for bytes, else what all samples span."""
    if values[0].dtype == np.uint8:
        return _BYTE
    ends = [
        (float(finite.min()), float(finite.max()))
        for one in values
        if (finite := one[np.isfinite(one)]).size
    ]
    return max(high for _, high in ends) - min(low for low, _ in ends) if ends else 0.0
