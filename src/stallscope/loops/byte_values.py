"""Floats of a batch that are bytes, scaled: whatever made them, uint8 would hold the same.

An image of uint8 that was divided by 255 and normalised has, in each of its channels, no more than
256 values at equal distances. Four samples are looked at together, so a change that each sample
draws for itself (of its brightness, say) is no such scale.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from stallscope.loops.cached_values import bytes_of, leaves

_MOST_SHARED: Final = 1 << 25
"""Bytes of shared memory that are tried."""
_TRIES: Final = 5
_SAMPLES: Final = 4
_MOST_VALUES: Final = 1 << 16
"""Of a channel that are looked at."""
_FEWEST_VALUES: Final = 1 << 10
"""Fewer may lie at equal distances by accident."""
_MOST_CHANNELS: Final = 4
_LEVELS: Final = 256
_OFF: Final = 0.02
"""So far from a level, in distances between two, rounding of float32 may put a value."""


class BatchBytes(NamedTuple):
    """How large a batch is."""

    all: int
    """With everything in it."""
    floats: int
    """Those in floats that are bytes, scaled."""
    as_uint8: int
    """That these would be as uint8."""
    release_s: float = 0.0
    """What letting go of it takes the loop's process, where it lies in shared memory; seconds."""


@dataclass(frozen=True)
class Bytes:
    """Floats as bytes, and what makes floats of them again."""

    values: torch.Tensor
    """uint8, in the shape of the floats."""
    scale: torch.Tensor
    """Of each channel; so many dimensions as the values have."""
    offset: torch.Tensor
    """In the same way."""
    dtype: torch.dtype
    """Of the floats."""

    def floats(self) -> torch.Tensor:
        """What they stand for."""
        return self.values.to(self.dtype) * self.scale + self.offset

    def to(self, device: Any, *, non_blocking: bool = False) -> torch.Tensor:
        """The floats on a device: the bytes are copied, and scaled there."""
        parts = (self.values, self.scale, self.offset)
        values, scale, offset = (one.to(device, non_blocking=non_blocking) for one in parts)
        return values.to(self.dtype) * scale + offset


def as_bytes(tensor: torch.Tensor) -> Bytes | None:
    """Floats that are bytes, scaled, as such; None for anything else."""
    if _tensor(tensor) is None or not _fits(tensor):
        return None
    of_channel = next(
        (
            place
            for place in range(1, tensor.ndim)
            if tensor.shape[place] <= _MOST_CHANNELS and not _are_levels(tensor[:_SAMPLES])
        ),
        None,
    )
    floats = tensor.detach()
    channels = [floats] if of_channel is None else floats.unbind(of_channel)
    lows, steps = [], []
    for channel in channels:
        levels = torch.unique(channel)
        if levels.numel() < 2:  # noqa: PLR2004 - a distance
            return None
        reach, least = (levels[-1] - levels[0]).double(), levels.double().diff().min()
        lows.append(levels[0])
        steps.append((reach / (reach / least).round()).to(floats.dtype))
    shape = [1] * floats.ndim
    shape[of_channel or 0] = len(channels)
    scale, offset = torch.stack(steps).view(shape), torch.stack(lows).view(shape)
    values = ((floats - offset) / scale).round()
    return (
        Bytes(values.to(torch.uint8), scale, offset, floats.dtype)
        if values.max() < _LEVELS
        else None
    )


def batch_bytes(batch: Any) -> BatchBytes:
    """Count the bytes of a batch, and of those floats in it that uint8 would hold."""
    floats = [leaf for leaf in map(_tensor, leaves(batch)) if leaf is not None and _fits(leaf)]
    whole = bytes_of(batch)
    as_uint8 = sum(one.numel() for one in floats)
    return BatchBytes(whole, bytes_of(floats), as_uint8, _release_s(whole))


def _release_s(size: int) -> float:
    """What unmapping so much shared memory takes, tried on some of our own; 0 where it is full."""
    some = min(size, _MOST_SHARED)
    took_s = []
    with suppress(RuntimeError, OSError):
        for _ in range(_TRIES):
            shared = torch.zeros(some, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
            began_s = time.perf_counter()
            del shared
            took_s.append(time.perf_counter() - began_s)
    return median(took_s) * size / some if took_s and some else 0.0


def _tensor(leaf: Any) -> torch.Tensor | None:
    """Floats of four bytes and more in memory, the first samples first; None for anything else."""
    tensor = leaf if isinstance(leaf, torch.Tensor) else None
    if type(leaf).__module__ == "numpy" and getattr(leaf, "dtype", None) in ("float32", "float64"):
        tensor = torch.as_tensor(leaf)
    is_wide = tensor is not None and tensor.dtype in (torch.float32, torch.float64)
    is_plain = is_wide and tensor is not None and tensor.layout is torch.strided
    return tensor if is_plain and tensor is not None and tensor.device.type == "cpu" else None


def _fits(tensor: torch.Tensor) -> bool:
    """Whether all its values, or those of each of its channels, are 256 levels at most."""
    if tensor.ndim < 2:  # noqa: PLR2004 - samples of several values
        return False
    some = tensor.detach()[:_SAMPLES]
    places = [place for place in range(1, some.ndim) if some.shape[place] <= _MOST_CHANNELS]
    return _are_levels(some) or any(
        all(map(_are_levels, some.unbind(place))) for place in places if some.shape[place] > 1
    )


def _are_levels(values: torch.Tensor) -> bool:
    flat = values.flatten()
    if flat.numel() < _FEWEST_VALUES:
        return False
    found = torch.unique(flat[:: -(-flat.numel() // _MOST_VALUES)])
    if not 1 < found.numel() <= _LEVELS or not found.isfinite().all():
        return False
    steps = (found.double() - found[0]) / found.double().diff().min()
    return bool(steps[-1] < _LEVELS - 0.5 and (steps - steps.round()).abs().max() < _OFF)
