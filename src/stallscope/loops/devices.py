"""What computes the steps, and times them: the processor, a CUDA device, or a timer.

A CUDA device runs behind the host, so its steps are timed by its own events, and the host waits for
it at the end of a window only. Another accelerator is one more class with the methods of `Cpu`.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from stallscope.isolation.snapshot import modules_of, to_device
from stallscope.targets.target import SimulatedStep
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stallscope.targets.target import Target


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
    """Steps that compute on the processor, which shares its cores with the workers, or a timer.

    Args:
        device: where batches are moved before the step; None: nowhere.
        name: in words.
    """

    counts_kernels = False
    """Whether `busy_share` can tell anything."""

    def __init__(self, device: Any = None, name: str = "CPU") -> None:
        self._device = device
        self.name = name

    def move(self, batch: Any) -> Any:
        """The batch where the step wants it."""
        return batch if self._device is None else to_device(batch, self._device)

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


class EventClock:
    """Times steps by events on the device's current stream."""

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._begins: list[torch.cuda.Event] = []
        self._ends: list[torch.cuda.Event] = []

    def begin(self) -> None:
        """The window begins: with the next batch."""
        torch.cuda.synchronize(self._where)
        self._ends = [self._event()]

    def step_begins(self) -> None:
        """The batch has come, and its copy to the device is under way on the same stream."""
        self._begins.append(self._event())

    def step_ends(self) -> None:
        """The step has returned, though the device may still be at it."""
        self._ends.append(self._event())

    def read(self) -> list[tuple[float, float]]:
        """For each step, the time since the one before, and in the step, seconds."""
        torch.cuda.synchronize(self._where)
        befores, ends = self._ends[:-1], self._ends[1:]
        steps = zip(befores, self._begins, ends, strict=True)
        return [
            (before.elapsed_time(end) / 1e3, begin.elapsed_time(end) / 1e3)
            for before, begin, end in steps
        ]

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._where))
        return event


class Cuda:
    """Steps that compute on a CUDA device.

    Args:
        where: the device.
        moves: whether the kit moves the batches there, rather than the step.
    """

    counts_kernels = True

    def __init__(self, where: torch.device, *, moves: bool) -> None:
        self._where = where
        self._moves = moves
        self.name = torch.cuda.get_device_name(where)

    def move(self, batch: Any) -> Any:
        """The batch on the device, if the kit is to move it."""
        return self.put(batch) if self._moves else batch

    def put(self, batch: Any) -> Any:
        """The batch in the device's memory."""
        return to_device(batch, self._where)

    def clock(self) -> EventClock:
        """A new clock."""
        return EventClock(self._where)

    def busy_share(self, use: Callable[[], None]) -> float | None:
        """Share of the wall of a few steps in which a kernel runs, as the profiler says."""
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize(self._where)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            began = perf_counter_ns()
            use()
            torch.cuda.synchronize(self._where)
            wall_s = (perf_counter_ns() - began) / 1e9
        kernels = (
            (event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.device_type.name == "CUDA" and "Memcpy" not in event.name
        )
        return min(covered(kernels) / 1e6 / wall_s, 1.0)

    def reported_share(self) -> float | None:
        """NVML's utilisation: the share of the last moments in which any kernel ran."""
        with suppress(Exception):  # no NVML package, no right to ask, a driver without the call
            return torch.cuda.utilization(self._where) / 100
        return None

    def held_bytes(self) -> int:
        """What torch has allocated on it, bytes."""
        return torch.cuda.memory_allocated(self._where)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans, in their unit: what runs at the same time counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


Device = Cpu | Cuda


def device_of(target: Target) -> Device:
    """What the target's step computes on: where the user says, or where its modules are."""
    if isinstance(target.step, SimulatedStep):
        return Cpu(name=f"simulated (a timer of {seconds(target.step.seconds)})")
    device = target.device
    parameters = (one for module in modules_of(target.step) for one in module.parameters())
    own = next((parameter.device for parameter in parameters), None)
    where = torch.device(device) if device is not None else own
    if where is not None and where.type == "cuda":
        return Cuda(where, moves=device is not None)
    return Cpu(device)
