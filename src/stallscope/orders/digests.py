"""Digests of samples: equal for the same bits of the same types, and for nothing else.

Type, dtype, shape, mode and bytes of all that a sample holds go in. How a tensor lies in memory
does not: it is part of a state's key (`layout`), because an op may take longer for it. Nor does the
list of the ops that a sample has been through: it differs between any two orders. Pixels go in
by Python's own keyed hash (SipHash, 64 bits, PEP 456), which is several times as fast as those of
hashlib; so digests of one process mean nothing to another. What a sample holds can also be had as
arrays to compare, and as pictures to look at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from stallscope.loops.cached_values import is_image, leaves
from stallscope.targets.object_graph import own_attributes
from stallscope.units import repr_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from numpy.typing import NDArray


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
    """Digest a value, as 32 hexadecimal digits."""
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
