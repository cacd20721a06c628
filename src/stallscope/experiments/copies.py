"""How long a batch takes to the device: from which memory, waited for or not, and as bytes."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.loops.byte_values import Bytes, as_bytes
from stallscope.loops.cached_values import bytes_of, mapped
from stallscope.loops.devices import BatchMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.loops.devices import Device


PAGEABLE: Final = "from pageable memory"
PINNED: Final = "from pinned memory"
NON_BLOCKING: Final = "pinned, non_blocking=True"
AS_BYTES: Final = "pinned, non_blocking=True, as uint8, scaled on the device"
_ROUNDS: Final = 9
"""Of all ways in turn; the first is left out."""


def copy_times(device: Device, batch: Any) -> list[tuple[Any, ...]]:
    """Copy a batch in each way, in turn; rows of `result.COPY_TIMES`.

    Args:
        device: works behind the host, and has a memory of its own.
        batch: as the loader gives it.
    """
    ways: dict[str, tuple[Any, Device, bool]] = {
        PAGEABLE: (batch, device.reading(BatchMemory.PAGEABLE), True)
    }
    difference = None
    try:
        pinned = device.kept(batch, BatchMemory.PINNED)
    except RuntimeError:  # the system allows no more of it
        pinned = None
    if pinned is not None:
        reading = device.reading(BatchMemory.PINNED)
        ways[PINNED] = pinned, reading, True
        ways[NON_BLOCKING] = pinned, reading, False
        small = mapped(batch, _small)
        if any(isinstance(leaf, Bytes) for leaf in _tensors(small)):
            difference = _difference(batch, small)
            ways[AS_BYTES] = _pinned(device, small), reading, False
    rows = []
    for number in range(_ROUNDS):
        for way, (source, reading, waits) in ways.items():
            host_s, copy_s = _timed(device, _copying(reading, source, waits=waits))
            if number:
                apart = difference if way == AS_BYTES else None
                rows.append((way, bytes_of(source), copy_s, host_s, apart))
    return rows


def _small(leaf: Any) -> Any:
    found = as_bytes(leaf) if isinstance(leaf, torch.Tensor) else None
    return leaf if found is None else found


def _pinned(device: Device, small: Any) -> Any:
    return mapped(
        small,
        lambda leaf: (
            replace(leaf, values=device.kept(leaf.values, BatchMemory.PINNED))
            if isinstance(leaf, Bytes)
            else device.kept(leaf, BatchMemory.PINNED)
        ),
    )


def _difference(batch: Any, small: Any) -> float:
    """How far the floats that come out are from those that went in, at most."""
    pairs = zip(_tensors(batch), _tensors(small), strict=True)
    apart = (
        float((one - other.floats()).abs().max())
        for one, other in pairs
        if isinstance(other, Bytes)
    )
    return max(apart)


def _tensors(batch: Any) -> list[Any]:
    found: list[Any] = []
    mapped(batch, found.append)
    return [leaf for leaf in found if isinstance(leaf, (torch.Tensor, Bytes))]


def _copying(device: Device, batch: Any, *, waits: bool) -> Callable[[], object]:
    return lambda: device.copied(batch, waits=waits)


def _timed(device: Device, copy: Callable[[], object]) -> tuple[float, float]:
    """How long the host was held, and until the copy was there, seconds."""
    behind = device.behind
    assert behind is not None  # noqa: S101 - who has a memory of its own works behind the host
    behind.synchronize()
    began_ns = perf_counter_ns()
    there = copy()
    host_ns = perf_counter_ns() - began_ns
    behind.synchronize()
    copy_ns = perf_counter_ns() - began_ns
    del there
    return host_ns / 1e9, copy_ns / 1e9
