"""Whether two pipelines give the same data: on the same draws, value by value, then by statistics.

The order of the questions (`OrderEvaluator.judge`) matters. Equal digests are identical. Else the
values are compared: other types, dtypes or shapes are different, whatever the values. Nearly equal
values are close.

Where values are far apart but the pipelines draw random numbers, a test over samples asks whether
simple statistics can tell them apart: a flip and a random crop give other data in the other order
on the same draws, and yet the same distribution. For each sample both pipelines are drawn several
times; statistics of each draw are averaged, and the two averages of one sample make a pair. If the
pipelines draw from the same distribution, the sign of each pair's difference is a toss of a coin:
the test turns the signs of all statistics of a sample together, and compares the largest of the
statistics' t values with what it is then (Westfall and Young, "Resampling-Based Multiple Testing",
1993, chapter 2). Passing is no proof of equality, so the smallest shift that the test would
probably have seen is given with it.
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
from stallscope.orders.result import CLOSE, DIFFERENT, IDENTICAL, Equivalence
from stallscope.units import repr_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]
    from collections.abc import Container, Iterator


_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))
_DEEPEST: Final = 12
_HISTORIES: Final = {"applied_transforms", "_applied_operations"}
"""Attributes in which torchio's subjects and MONAI's tensors write down each op."""
_SPATIAL: Final = 2
_CHANNELS: Final = (1, 3)


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
    """What an object holds beside its items, its history aside."""
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


CLOSE_PSNR_DB: Final = 40.0
"""What differs less is hard to see; lossy image codecs are called transparent from about here on
(Salomon, "Data Compression", 2007, section 4.2)."""
CLOSE_SHARE: Final = 0.1
"""Of the values' range: where a single value differs by more, samples are not close."""
_BYTE: Final = 255.0
STATISTICS: Final = (
    "mean",
    "spread",
    "lowest",
    "highest",
    "detail",
    "left minus right",
    "top minus bottom",
    "middle minus edge",
)
"""Of one draw; detail is the mean difference between neighbours, which resizing changes."""
LEVEL: Final = 0.002
"""So often equal distributions are told apart by mistake: a verdict is given for many orders."""
FEWEST_PAIRS: Final = 11
"""Of fewer the signs can be turned in so few ways that no result is below the level."""
_TURNS: Final = 8_000
_SEED: Final = 20_240_229
_POWER: Final = 0.84
"""Normal quantile of a power of 80%."""


def compare_outputs(original: Sequence[Any], other: Sequence[Any]) -> Equivalence:
    """Compare what two pipelines gave; their digests may differ although all values agree."""
    found = compare_samples(list(map(leaves_of, original)), list(map(leaves_of, other)))
    if found.equivalence == IDENTICAL and digest(original) != digest(other):
        return found._replace(equivalence=DIFFERENT, why="another type, structure or attribute")
    return found


def compare_samples(
    original: Sequence[Sequence[Leaf]], other: Sequence[Sequence[Leaf]]
) -> Equivalence:
    """Compare samples, each a list of leaves.

    Args:
        original: of the pipeline as it is.
        other: of the new one, of the same samples on the same draws.
    """
    samples = list(zip(original, other, strict=True))
    for mine, theirs in samples:
        why = _unlike(mine, theirs)
        if why:
            return Equivalence(DIFFERENT, why=why)
    largest, lowest_db, largest_share = 0.0, math.inf, 0.0
    for one, new in (pair for mine, theirs in samples for pair in zip(mine, theirs, strict=True)):
        if one.values is None or new.values is None:
            continue
        gap, peak = _gap(one.values, new.values), _range(one.values)
        here = float(gap.max(initial=0.0))
        if not math.isfinite(here):
            return Equivalence(DIFFERENT, why="a value is not a number in one of them only")
        if here:
            largest = max(largest, here)
            largest_share = max(largest_share, here / peak if peak else math.inf)
            usual = here * math.sqrt(np.mean((gap / here) ** 2))  # the square of `here` may be 0
            psnr_db = 20 * math.log10(peak / usual) if peak else -math.inf
            lowest_db = min(lowest_db, psnr_db)
    if not largest:
        return Equivalence(IDENTICAL)
    is_close = lowest_db >= CLOSE_PSNR_DB and largest_share <= CLOSE_SHARE
    psnr = lowest_db if math.isfinite(lowest_db) else None
    return Equivalence(CLOSE if is_close else DIFFERENT, largest, psnr)


def _unlike(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> str:
    """What is not of one kind, in words; "" where all is."""
    if len(mine) != len(theirs):
        return f"a sample holds {len(theirs)} values instead of {len(mine)}"
    for a, b in zip(mine, theirs, strict=True):
        if a.kind != b.kind:
            return f"{b.kind} instead of {a.kind}"
        if a.plain != b.plain:
            return f"{b.plain:.40} instead of {a.plain:.40}"
    return ""


def _gap(a: Array, b: Array) -> NDArray[np.float64]:
    """Differences at each place; infinite where one is no number and the other is."""
    one, other = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap: NDArray[np.float64] = np.abs(one - other)
    gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    return np.nan_to_num(gap, nan=np.inf)


def _range(a: Array) -> float:
    """What the largest possible difference is: 255 for bytes, else what the values span."""
    if a.dtype == np.uint8:
        return _BYTE
    finite = a.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.max() - finite.min()) if finite.size else 0.0


class DrawTest(NamedTuple):
    """What the test has shown."""

    distinguished: bool
    statistic: str
    """The one with the largest t value."""
    pairs: int
    """Samples that were compared."""
    smallest_share: float
    """The smallest shift of the mean that it would have seen four times of five, as a share (0 to
    1) of the values' spread."""


def statistics(values: NDArray[np.generic]) -> Floats:
    """Take the statistics of one draw, shape (len(STATISTICS),).

    Args:
        values: an image with its two spatial axes last or first, or an array of any shape.
    """
    x = values.astype(np.float64)
    plane = _plane(x)
    height, width = plane.shape
    detail = np.abs(np.diff(plane, axis=0)).mean() if height > 1 else 0.0
    detail += np.abs(np.diff(plane, axis=1)).mean() if width > 1 else 0.0
    half_w, half_h = width // 2, height // 2
    sides = plane[:, :half_w].mean() - plane[:, -half_w:].mean() if half_w else 0.0
    ends = plane[:half_h].mean() - plane[-half_h:].mean() if half_h else 0.0
    inner = plane[height // 4 : -(height // 4) or None, width // 4 : -(width // 4) or None]
    found = (x.mean(), x.std(), x.min(), x.max(), detail, sides, ends, inner.mean() - plane.mean())
    return np.asarray(found, dtype=np.float64)


def compare_draws(original: Floats, other: Floats) -> DrawTest:
    """Test whether the statistics of two pipelines differ.

    Args:
        original: of the pipeline as it is, shape (samples, draws, statistics).
        other: of the new one, likewise, drawn independently.
    """
    gaps = other.mean(axis=1) - original.mean(axis=1)
    pairs = len(gaps)
    moving = np.abs(gaps).max(axis=0) > 1e-12 * (1 + np.abs(original).max(axis=(0, 1)))
    spread = float(original[..., 1].mean()) or 1.0
    error = float(gaps[:, 0].std(ddof=1)) / math.sqrt(pairs) if pairs > 1 else math.inf
    if not moving.any():
        return DrawTest(False, STATISTICS[0], pairs, 0.0)  # noqa: FBT003 - a value
    seen = _t_values(gaps[None][..., moving])[0]
    rng = np.random.default_rng(_SEED)
    signs = rng.choice([-1.0, 1.0], size=(_TURNS, pairs))
    turned = _t_values((signs[:, :, None] * gaps[None])[..., moving]).max(axis=1)
    limit = float(np.quantile(turned, 1 - LEVEL))
    which = np.flatnonzero(moving)[int(seen.argmax())]
    smallest = (limit + _POWER) * error / spread
    return DrawTest(bool(seen.max() > limit), STATISTICS[int(which)], pairs, smallest)


def _t_values(gaps: Floats) -> Floats:
    """Absolute t values, shape (turns, statistics), of gaps of shape (turns, pairs, statistics)."""
    mean, spread = gaps.mean(axis=1), gaps.std(axis=1, ddof=1)
    floor = 1e-12 + 1e-9 * np.abs(gaps).max(axis=1)
    result: Floats = np.abs(mean) / np.maximum(spread, floor) * math.sqrt(gaps.shape[1])
    return result


def _plane(x: Floats) -> Floats:
    """The values as one plane: channels averaged, anything else as a single row."""
    most_channels = 4
    if x.ndim == 3 and x.shape[0] <= most_channels:  # noqa: PLR2004 - channels first
        plane: Floats = x.mean(axis=0)
    elif x.ndim == 3 and x.shape[-1] <= most_channels:  # noqa: PLR2004 - channels last
        plane = x.mean(axis=-1)
    elif x.ndim == 2:  # noqa: PLR2004 - a plane
        plane = x
    else:
        plane = x.reshape(1, -1)
    return plane
