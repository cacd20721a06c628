"""The processor as the device: it shares its cores with the workers."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stallscope.measure.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable


class HostClock:
    """Times steps that have ended when they return."""

    def __init__(self) -> None:
        self._ended_ns = self._began_ns = perf_counter_ns()
        self._times: list[tuple[float, float]] = []

    def begin(self) -> None:
        """The window begins: with the next batch."""
        self._ended_ns = perf_counter_ns()

    def step_begins(self) -> None:
        """The batch has come."""
        self._began_ns = perf_counter_ns()

    def step_ends(self) -> None:
        """The step has returned."""
        now = perf_counter_ns()
        self._times.append(((now - self._ended_ns) / 1e9, (now - self._began_ns) / 1e9))
        self._ended_ns = now

    def read(self) -> list[tuple[float, float]]:
        """For each step, the time since the one before, and in the step, seconds."""
        return self._times


class Cpu:
    """Steps that compute on the processor.

    Args:
        device: where batches are moved before the step; None: nowhere.
    """

    name = "CPU"
    counts_kernels = False
    has_memory = False

    def __init__(self, device: Any = None) -> None:
        self._device = device

    def move(self, batch: Any) -> Any:
        """The batch where the step wants it."""
        return batch if self._device is None else to_device(batch, self._device)

    def put(self, batch: Any) -> Any:
        """The same batch: there is no memory but the host's."""
        return batch

    def clock(self) -> HostClock:
        """A new clock."""
        return HostClock()

    def busy_share(self, use: Callable[[], None]) -> float | None:  # noqa: ARG002 - the protocol's
        """None: the workers compute on the same cores, so a share would say nothing."""
        return None

    def reported_share(self) -> float | None:
        """None: there is no driver to ask."""
        return None

    def held_bytes(self) -> int:
        """Nothing: its memory is the host's."""
        return 0
