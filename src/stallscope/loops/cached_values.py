"""Samples and batches of any type: how large they are, copies of them, and whether they changed.

Floats may be bytes, scaled: an image of uint8 that was divided by 255 and normalised has, in each
of its channels, no more than 256 values at equal distances. Four samples are looked at together, so
a change that each sample draws for itself (of its brightness, say) is no such scale.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from stallscope.hooks.find_ops import own_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


DEEPEST: Final = 12
"""Most levels of a batch that are looked into."""


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield what lists, tuples, mappings and attributes of objects hold, all the way down."""
    if depth > DEEPEST:
        return
    inside = _inside(value)
    if inside is None:
        yield value
        return
    for part in inside:
        yield from leaves(part, depth + 1)


def _inside(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if _is_tensor(value) or is_image(value):
        return None
    return list(own_attributes(value).values()) or None


def bytes_of(value: Any) -> int:
    """Return about how much memory a value needs, bytes."""
    return sum(map(_bytes_of_leaf, leaves(value)))


def _bytes_of_leaf(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size()
    if _is_array(leaf):
        return int(leaf.nbytes)
    if is_image(leaf):
        return int(leaf.width * leaf.height * len(leaf.getbands()))
    return sys.getsizeof(leaf, 64)


def samples_in(batch: Any, usual: int | None = None) -> int:
    """Count the samples of a batch: a tensor, columns or a list of samples; else one.

    Of several lengths that a batch has, the `usual` one is meant, the loader's batch size.
    """
    lengths = list(_lengths(batch))
    meant = next((length for length, is_last in lengths if is_last), 1)
    if usual is None or meant > usual:
        return meant
    return max((length for length, _ in lengths if length <= usual), default=1)


def _lengths(batch: Any, *, is_inside: bool = False) -> Iterator[tuple[int, bool]]:
    """Yield the length of a batch, of the first thing in it, and so on; and which is meant.

    A list of tensors inside of a batch may be a column of samples, as the images of a detector,
    which are of any size, or some views of each.
    """
    if _is_tensor(batch):
        yield from [(len(batch), True)] if batch.ndim else []
    elif isinstance(batch, (list, tuple)) and batch:
        deeper = list(_lengths(batch[0], is_inside=True))
        yield len(batch), not deeper or (is_inside and _is_tensor(batch[0]))
        yield from deeper
    elif inside := _inside(batch):
        yield from _lengths(inside[0], is_inside=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or _is_array(value)


def fresh(value: Any) -> Any:
    """Return a copy that shares nothing which could be changed in place."""
    return mapped(value, copied)


def shell(value: Any) -> Any:
    """Copy the containers alone: items can be added and taken away, tensors are shared."""
    return mapped(value, lambda leaf: leaf)


def compact(value: Any) -> Any:
    """Let tensors own no more memory than they show: pickling sends all of it."""

    def own(leaf: Any) -> Any:
        is_plain = type(leaf) is torch.Tensor and leaf.layout is torch.strided
        shown = leaf.numel() * leaf.element_size() if is_plain else 0
        return leaf.clone() if is_plain and leaf.untyped_storage().nbytes() > shown else leaf

    return mapped(value, own)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with new containers and changed leaves; an object's class is kept."""
    if type(value) is dict:
        return {key: mapped(part, change) for key, part in value.items()}
    if type(value) is list:
        return [mapped(part, change) for part in value]
    if isinstance(value, tuple):
        values = [mapped(part, change) for part in value]
        if type(value) is tuple:
            return tuple(values)
        return type(value)(*values) if hasattr(value, "_fields") else change(value)
    return change(value)


def copied(leaf: Any) -> Any:
    """Copy what is held as a whole."""
    if type(leaf) is torch.Tensor:
        clone = leaf.detach().clone()
        clone = clone.pin_memory() if leaf.is_pinned() else clone
        return clone.requires_grad_(leaf.requires_grad)
    if is_image(leaf):
        return leaf.copy()
    return copy.deepcopy(leaf)


def versions(value: Any) -> list[int]:
    """Return a number for each tensor, which grows when it is changed in place."""
    tensors = (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
    return [tensor._version for tensor in tensors if not tensor.is_inference()]  # noqa: SLF001 - torch has no other name for it


def same(left: Any, right: Any) -> bool:
    """Return whether values are equal in each tensor, array and image, and alike in the rest."""
    ours, theirs = list(leaves(left)), list(leaves(right))
    return len(ours) == len(theirs) and all(map(_same_leaf, ours, theirs))


def _same_leaf(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.device == right.device and torch.equal(left, right)
    if _is_array(left):
        return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
    if is_image(left):
        return bool(left == right)
    return bool(left == right) if isinstance(left, (str, bytes, int, float)) else True


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "nbytes") and hasattr(value, "ndim")


def is_image(value: Any) -> bool:
    """Tell whether this is an image of PIL's."""
    return type(value).__module__.startswith("PIL.") and hasattr(value, "getbands")


_MOST_SHARED: Final = 1 << 25
"""Bytes of shared memory that are tried."""
_TRIES: Final = 5
_SAMPLES: Final = 4
_FEWEST_VALUES: Final = 1 << 10
"""Fewer may lie at equal distances by accident."""
_MOST_CHANNELS: Final = 4
_LEVELS: Final = 256
_OFF: Final = 0.02
"""Largest distance from a level, relative to the spacing, that float32 rounding explains."""


class BatchBytes(NamedTuple):
    """Size of a batch."""

    all: int
    """With everything in it."""
    floats: int
    """Those in floats that are bytes, scaled."""
    as_uint8: int
    """Bytes of these floats as uint8."""
    release_s: float = 0.0
    """Seconds that the loop's process takes to free the batch, if it is in shared memory."""


def _are_bytes(floats: torch.Tensor) -> bool:
    """Return whether floats are bytes, scaled, which uint8 would hold."""
    if floats.ndim < 2:  # noqa: PLR2004 - samples of several values
        return False
    floats = floats.detach()
    for axis in range(floats.ndim):
        if axis and not 1 < floats.shape[axis] <= _MOST_CHANNELS:
            continue
        channels = floats.unbind(axis) if axis else [floats]
        if any(torch.unique(channel[:1]).numel() > _LEVELS for channel in channels):
            continue  # one sample is enough, for most
        if all(map(_has_levels, channels)):
            return True
    return False


def _has_levels(values: torch.Tensor) -> bool:
    levels = torch.unique(values)
    if values.numel() < _FEWEST_VALUES or not 1 < levels.numel() <= _LEVELS:
        return False
    steps = (levels.double() - levels[0]) / levels.double().diff().min()
    return bool(steps[-1] <= _LEVELS - 0.5 and (steps - steps.round()).abs().max() < _OFF)


def batch_bytes(batch: Any) -> BatchBytes:
    """Count the bytes of a batch, and of those floats in it that uint8 would hold."""
    tensors = [leaf for leaf in map(_floats, leaves(batch)) if leaf is not None]
    floats = [leaf for leaf in tensors if _are_bytes(leaf[:_SAMPLES])]
    whole = bytes_of(batch)
    as_uint8 = sum(leaf.numel() for leaf in floats)
    return BatchBytes(whole, bytes_of(floats), as_uint8, _release_s(whole))


def _release_s(size: int) -> float:
    """Time how long unmapping so much shared memory takes; 0 where it is full."""
    length = min(size, _MOST_SHARED)
    took_s = []
    with suppress(RuntimeError, OSError):
        for _ in range(_TRIES):
            shared = torch.zeros(length, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
            began_s = time.perf_counter()
            del shared
            took_s.append(time.perf_counter() - began_s)
    return median(took_s) * size / length if took_s and length else 0.0


def _floats(leaf: Any) -> torch.Tensor | None:
    """Return floats of four bytes and more in memory as a tensor; None for anything else."""
    if type(leaf).__module__ == "numpy" and getattr(leaf, "dtype", None) in ("float32", "float64"):
        leaf = torch.as_tensor(leaf)
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in (torch.float32, torch.float64):
        return None
    return leaf if leaf.layout is torch.strided and leaf.device.type == "cpu" else None
