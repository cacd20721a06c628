"""A simulated device whose clock is as inexact as that of a GPU."""

from __future__ import annotations

import struct
from time import perf_counter_ns
from typing import Any

from stallscope.hooks.device_time import SimulatedDevice, SimulatedEvent

FLOAT = struct.Struct("f")
TICK_NS = 500


class GpuLike(SimulatedDevice):
    """Its clock has another origin than the host's, goes faster, and shows half microseconds.

    Args:
        drift: how much faster.
        named: of any simulated device.
    """

    def __init__(self, *, drift: float = 2e-5, **named: Any) -> None:
        super().__init__(**named)
        self.rate = 1 + drift
        self.origin_ns = perf_counter_ns() - 7_000_000_000

    def event(self) -> Event:
        """An event whose distances are as inexact as the clock."""
        return Event(self)

    def shows(self, at_ns: int) -> int:
        """Return the reading of the device's clock at a time of the host's, ns."""
        return int((at_ns - self.origin_ns) * self.rate) // TICK_NS * TICK_NS


class Event(SimulatedEvent):
    """A distance is as exact as a 32-bit float, as torch's."""

    def __init__(self, device: GpuLike) -> None:
        self.device = device

    def elapsed_time(self, later: Any) -> float:
        super().elapsed_time(later)
        shows = self.device.shows
        distance = (shows(later.reached_ns) - shows(self.reached_ns)) / 1e6
        return FLOAT.unpack(FLOAT.pack(distance))[0]
