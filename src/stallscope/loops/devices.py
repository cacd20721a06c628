"""Devices that compute the steps, and time them: the processor, a GPU, or a timer.

A device that works behind the host times its steps by its own events, and the host waits for it at
the ends of a window only. That is `hooks.device_time`; here is what a loop asks of a device.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from enum import Enum
from itertools import accumulate
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import finalize

import torch

from stallscope.hooks.device_time import STEP as KERNEL
from stallscope.hooks.device_time import (
    Accelerator,
    Edge,
    EventClock,
    SimulatedDevice,
    works_behind,
)
from stallscope.hooks.loader_access import value_of
from stallscope.isolation import modules_of, reached, to_device
from stallscope.loops.cached_values import bytes_of, fresh, leaves, mapped
from stallscope.targets.target import SimulatedStep
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stallscope.hooks.device_time import AsyncDevice
    from stallscope.targets.target import Target


_AHEAD: Final = 8
"""Steps that a loop of our own gives a device before it waits: it is never idle for that."""


class BatchMemory(Enum):
    """Place of a batch."""

    PAGEABLE = "pageable memory"
    PINNED = "pinned memory"
    DEVICE = "the device's memory"


class MemoryUse(NamedTuple):
    """Use of a device's memory."""

    used_bytes: int
    """Bytes in use, by all processes."""
    total_bytes: int


class Kernels(NamedTuple):
    """Work of a device while a few steps ran."""

    lengths_s: list[float]
    """Duration of each kernel, seconds."""
    busy_s: float
    """While any of them ran."""
    wall_s: float
    """From the first step's beginning to the end of the last kernel."""
    gaps_s: list[float]
    """From the end of all before to the beginning of each but the first; 0 where they touch."""

    @property
    def busy_share(self) -> float:
        """Return the share of the wall."""
        return min(self.busy_s / self.wall_s, 1.0) if self.wall_s else 0.0


class StepClock:
    """Times steps by the events of a device that works behind the host.

    None: a step has ended when it returns, as it has on a simulated device without work.
    """

    def __init__(self, device: AsyncDevice | None) -> None:
        self._device = device or SimulatedDevice()
        self._edges: list[tuple[int, int, int]] = []

    def begin(self) -> None:
        """Begin the window with the next batch. Waits for what a device was given before."""
        self._clock = EventClock(self._device, lambda *edge: self._edges.append(edge))

    def step_begins(self) -> None:
        """Note that the batch has come, and its copy to a device is under way."""
        self._clock.edge(Edge.STEP)

    def step_ends(self) -> None:
        """Note that the step has returned, though a device may still be at it.

        Waits for one of the steps before: a host that is far ahead would wait for all of them at
        the end of the window, long after it.
        """
        self._clock.edge(Edge.NOTHING)
        self._clock.wait_for(2 * _AHEAD)

    def read(self) -> list[tuple[float, float]]:
        """Return for each step the time since the one before, and in the step, seconds."""
        self._clock.end()
        begins = [at_ns for edge, at_ns, _ in self._edges if edge == Edge.STEP]
        ends = [at_ns for edge, at_ns, _ in self._edges if edge in (Edge.START, Edge.NOTHING)]
        steps = zip(ends[:-1], begins, ends[1:], strict=True)
        return [((end - before) / 1e9, (end - begin) / 1e9) for before, begin, end in steps]


class Cpu:
    """Steps that compute on the processor, which shares its cores with the workers, or a timer.

    Batches are moved to a `device` before the step; None: nowhere.
    """

    behind: AsyncDevice | None = None
    """Asynchronous device; None: the host is the device."""
    counts_kernels = False
    """True if `kernels` returns measurements."""
    has_memory = False
    """True if batches are copied to a memory of its own."""
    why_no_memory = "no device has its own memory"

    def __init__(self, device: Any = None, name: str = "CPU") -> None:
        self._device = device
        self.name = name

    @property
    def moves(self) -> bool:
        """Return whether batches are moved before the step."""
        return self._device is not None

    def move(self, batch: Any) -> Any:
        """Return the batch where the step wants it."""
        return batch if self._device is None else to_device(batch, self._device)

    def clock(self) -> StepClock:
        """Return a new clock."""
        return StepClock(self.behind)

    def kernels(self, use: Callable[[], None]) -> Kernels | None:  # noqa: ARG002 - the protocol's
        """Return None: workers compute on the same cores, so a share would say nothing."""
        return None

    def reported_share(self) -> float | None:
        """Return None: there is no driver to ask."""
        return None

    def memory(self) -> MemoryUse | None:
        """Return how full its memory is; None: it is the host's."""
        return None

    def kept(self, batch: Any, memory: BatchMemory) -> Any:
        """Return a batch in such a memory, for a device that has its own.

        Raises:
            RuntimeError: there is no room for it.
        """
        if memory is BatchMemory.PINNED:
            return mapped(batch, _pinned)
        return to_device(batch, self._device)

    def reading(self, memory: BatchMemory) -> Device:  # noqa: ARG002 - the protocol's
        """Return the device for batches that lie there; torch's tensors know it themselves."""
        return self

    def copied(self, batch: Any, *, waits: bool) -> Any:  # noqa: ARG002 - the protocol's
        """Return the batch in the device's memory, for a device that has its own."""
        return batch


class Gpu(Cpu):
    """Steps that compute on a device of torch's that works behind the host.

    It `moves` batches there where the kit does that, rather than the step; `is_steps` where it is
    known that the step computes there.
    """

    def __init__(self, where: torch.device, *, moves: bool, is_steps: bool = True) -> None:
        self.behind = Accelerator(where)
        super().__init__(where if moves else None, self.behind.name)
        self._where = where
        self.counts_kernels = where.type == "cuda"
        self.has_memory = is_steps
        if not is_steps:
            self.why_no_memory = "the device of the step's batches is unknown (pass device='cuda')"

    def kept(self, batch: Any, memory: BatchMemory) -> Any:
        """Return the batch in such a memory."""
        if memory is BatchMemory.DEVICE:
            return to_device(batch, self._where)
        return super().kept(batch, memory)

    def copied(self, batch: Any, *, waits: bool) -> Any:
        """Return a copy there, which the host waits for or not."""

        def there(leaf: Any) -> Any:
            return leaf.to(self._where, non_blocking=not waits) if hasattr(leaf, "to") else leaf

        return mapped(batch, there)

    def memory(self) -> MemoryUse | None:
        """Return what the driver says, other processes included."""
        if not self.counts_kernels:
            return None
        with suppress(RuntimeError):  # a driver without the call, a device that is gone
            free, total = torch.cuda.mem_get_info(self._where)
            return MemoryUse(total - free, total)
        return None

    def kernels(self, use: Callable[[], None]) -> Kernels | None:
        """Return those of a few steps, as the profiler says; copies are none."""
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize(self._where)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")  # there is one
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                began = perf_counter_ns()
                use()
                torch.cuda.synchronize(self._where)
                wall_s = (perf_counter_ns() - began) / 1e9
            events = profiler.events() or ()
        spans_s = [
            (event.time_range.start / 1e6, event.time_range.end / 1e6)
            for event in events
            if event.device_type.name == "CUDA" and "Memcpy" not in event.name
        ]
        return _kernels(spans_s, wall_s)

    def reported_share(self) -> float | None:
        """Return NVML's utilisation: the share of the last moments in which any kernel ran."""
        with suppress(Exception):  # no NVML package, no right to ask, a driver without the call
            return torch.cuda.utilization(self._where) / 100
        return None


class Simulated(Cpu):
    """Steps that a simulated device computes behind the host.

    No tensor says here in which `memory` its batches lie: without CUDA none is pinned.
    """

    def __init__(self, device: SimulatedDevice, memory: BatchMemory) -> None:
        super().__init__(name=device.name)
        self.behind = self._simulated = device
        self._memory = memory
        self.has_memory, self.counts_kernels = device.copies, True

    @property
    def moves(self) -> bool:
        """Return whether it takes time to copy a batch."""
        return self._simulated.copies and self._memory is not BatchMemory.DEVICE

    def move(self, batch: Any) -> Any:
        """Return the same batch, once the time of its copy is spent or given."""
        if self.moves:
            self._simulated.copy(bytes_of(batch), pinned=self._memory is BatchMemory.PINNED)
        return batch

    def kernels(self, use: Callable[[], None]) -> Kernels | None:
        """Return those of a few steps, as it knows itself."""
        self._simulated.synchronize()
        began_ns = perf_counter_ns()
        use()
        self._simulated.synchronize()
        wall_s = (perf_counter_ns() - began_ns) / 1e9
        spans_s = [
            (work.start_ns / 1e9, work.end_ns / 1e9)
            for work in self._simulated.work
            if work.kind == KERNEL and work.start_ns >= began_ns
        ]
        return _kernels(spans_s, wall_s)

    def memory(self) -> MemoryUse | None:
        """Return what is reserved of it."""
        total = self._simulated.memory_bytes
        return MemoryUse(self._simulated.held_bytes, total) if total else None

    def kept(self, batch: Any, memory: BatchMemory) -> Any:
        """Return a copy; on the device it takes memory as long as it lives."""
        copy = fresh(batch)
        if memory is BatchMemory.DEVICE:
            for leaf in leaves(copy):
                if isinstance(leaf, torch.Tensor):
                    size = leaf.numel() * leaf.element_size()
                    self._simulated.reserve(size)
                    finalize(leaf, self._simulated.release, size)
        return copy

    def copied(self, batch: Any, *, waits: bool) -> Any:
        """Return the batch once the time of its copy is spent or given; scaling takes none."""
        self._simulated.copy(bytes_of(batch), pinned=self._memory is BatchMemory.PINNED)
        if waits:
            self._simulated.synchronize()
        return batch

    def reading(self, memory: BatchMemory) -> Device:
        """Return the same device, for batches that lie there."""
        return Simulated(self._simulated, memory)


def _pinned(leaf: Any) -> Any:
    pin = getattr(leaf, "pin_memory", None)
    return pin() if callable(pin) else leaf


def _kernels(spans_s: list[tuple[float, float]], wall_s: float) -> Kernels:
    spans_s = sorted(spans_s)
    reached_s = accumulate((end for _, end in spans_s), max)
    gaps_s = [
        max(start - end, 0.0) for (start, _), end in zip(spans_s[1:], reached_s, strict=False)
    ]
    return Kernels([end - start for start, end in spans_s], covered(spans_s), wall_s, gaps_s)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans: what runs at the same time counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


Device = Cpu
"""The protocol is what the processor has."""


def device_of(target: Target) -> Device:
    """Return what the target's step computes on: where the user says, or where its modules are.

    A step that reaches no module may replay a graph, or call what was compiled: of a process that
    uses CUDA it is timed by events, which are right also where the step leaves the device idle.
    """
    step, device = target.step, target.device
    simulated = next(iter(reached(step, SimulatedDevice)), None)
    if simulated is not None:
        pins = any(value_of(loader, "pin_memory") for loader in target.loaders)
        return Simulated(simulated, BatchMemory.PINNED if pins else BatchMemory.PAGEABLE)
    if isinstance(step, SimulatedStep):
        return Cpu(name=f"simulated (a timer of {seconds(step.seconds)})")
    parameters = (each for module in modules_of(step) for each in module.parameters())
    own = next((parameter.device for parameter in parameters), None)
    where = torch.device(device) if device is not None else own
    if where is not None and works_behind(where):
        return Gpu(where, moves=device is not None)
    if where is None and step is not None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        current = torch.device("cuda", torch.cuda.current_device())
        return Gpu(current, moves=False, is_steps=False)
    return Cpu(device)
