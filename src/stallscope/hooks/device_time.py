"""Times when a device had work and when it had none, on the host's clock; and a simulated device.

A GPU works behind the host: a step returns when its kernels have been given to it, not when they
have run. So what a wait for data costs is not its length, but what of it the device was idle. An
event before and after each step and each copy says when the device came to that place. Events are
asked whether they have been reached, and never waited for but at the two ends of a recording,
where they tie the device's clock to the host's.

`SimulatedDevice` behaves so on any machine, and knows the truth. Light, because it runs between two
steps of the user's.
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict, deque
from enum import IntEnum
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import ref

import torch

from stallscope.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stallscope.hooks.event_log import ProcessLog

    AsyncDevice: TypeAlias = "Accelerator | SimulatedDevice"
    """A device that works behind the host."""


class Edge(IntEnum):
    """Work of the device from an event on, until the next event."""

    NOTHING = 0
    """The host gives it nothing: it waits for a batch, or does something of its own."""
    COPY = 1
    """A batch is copied to it."""
    STEP = 2
    """A step uses a batch."""
    START = 3
    """Nothing; the clocks were compared, the device was idle."""
    END = 4
    """The same at the end; with how far the device's clock has gone astray since."""
    UNKNOWN = 5
    """Not seen."""


_SPARE: Final[defaultdict[torch.device, list[Any]]] = defaultdict(list)
"""Events to be used again. Each that was ever made lives as long as its process: a worker that is
forked has them, too, and CUDA kills one that destroys them, as its garbage collection would."""


class Accelerator:
    """A device of torch's with events: CUDA, XPU, MPS.

    An event stands on the stream that is current in the thread that asks; what runs on other
    streams is not seen.
    """

    def __init__(self, where: torch.device) -> None:
        is_cuda = where.type == "cuda"
        if is_cuda and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        self.where = where
        self._module: Any = getattr(torch, where.type, None)
        self._streams = getattr(self._module, "current_stream", None)  # MPS has one, and no name
        number = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._number: Callable[[int | None], int] | None = number if is_cuda else None
        self._current: tuple[tuple[Any, ...], int | None] = (), None
        events = torch.mps.event if where.type == "mps" else self._module
        self._event: Any = getattr(events, "Event", None)
        named = getattr(self._module, "get_device_name", None)
        self.name: str = named(where) if named else where.type

    def event(self) -> Any:
        """Return a new event; an `UnsupportedError` where torch has none for such a device."""
        if _SPARE[self.where]:
            return _SPARE[self.where].pop()
        if self._event is None:
            raise UnsupportedError(f"torch has no events for {self.where.type}")
        event = self._event(enable_timing=True)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))  # see `_SPARE`
        return event

    def give_back(self, events: Iterable[Any]) -> None:
        """Take events that nobody asks any more; they may stand elsewhere next."""
        _SPARE[self.where].extend(events)

    def record(self, event: Any) -> None:
        """Put an event behind all the work that the current stream was given by now."""
        number = self._number(self.where.index) if self._number else None
        if number is None or number != self._current[1]:  # torch makes an object each time
            self._current = (self._streams(self.where),) if self._streams else (), number
        event.record(*self._current[0])

    def synchronize(self) -> None:
        """Wait until all streams have done their work."""
        self._module.synchronize(*([self.where] if self._streams else []))


def works_behind(where: torch.device | None) -> bool:
    """Return whether a device works behind the host."""
    return where is not None and where.type not in ("cpu", "meta")


def device_in_use(since_ns: int) -> AsyncDevice | None:
    """Return the device that has work of this process, as far as one can tell without waking one.

    A simulated one has been given some since then (`perf_counter_ns`).
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return Accelerator(torch.device("cuda", torch.cuda.current_device()))
    simulated = SimulatedDevice.latest()
    return simulated if simulated is not None and simulated.given_ns >= since_ns else None


def others_in_use() -> int:
    """Return how many more CUDA devices hold something of this process's."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return sum(map(bool, map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))) - 1


# ---- reading the time --------------------------------------------------------------------------

_TRIES: Final = 3
_LOOKS: Final = 8
"""Steps in which a device is looked for: a batch is moved to it in the first one, or never."""
_READS: Final = 12
"""Number of events read together, after the last of them. Single reads between steps would take
several times as long, because the CPU caches hold none of our code then."""
_POLL_S: Final = 5e-5


class EventClock:
    """Tells when a device came to each event, on the host's clock, and waits for none.

    Times count from the first event, each from the one before it, so that they stay exact however
    long it goes on: torch gives a distance as a 32-bit float. Some steps later, `write` gets each
    edge with its time (`perf_counter_ns`, as the device's clock has it) and 0, in their order.
    """

    def __init__(self, device: AsyncDevice, write: Callable[[int, int, int], object]) -> None:
        self._device: Any = device
        self._write = write
        self._pending: deque[tuple[Edge, Any]] = deque()
        self._spare: list[Any] = []
        self._last, self._at_ns = self._compared()
        write(Edge.START, self._at_ns, 0)

    def edge(self, edge: Edge) -> None:
        """End here what the device was given until now; called between two steps."""
        pending = self._pending
        event = self._spare.pop() if self._spare else self._device.event()
        self._device.record(event)
        pending.append((edge, event))
        if len(pending) >= 2 * _READS and pending[_READS - 1][1].query():
            self._read(_READS)

    def wait_for(self, edges: int) -> None:
        """Wait until no more edges than that are under way; for a loop of our own."""
        while len(self._pending) > edges:
            while not self._pending[0][1].query():
                time.sleep(_POLL_S)
            self._read(1)

    def end(self) -> None:
        """Wait for the device, read what is left, and compare the clocks once more."""
        event, host_ns = self._compared()
        self._read(len(self._pending))
        at_ns = self._at_ns + round(self._last.elapsed_time(event) * 1e6)
        self._write(Edge.END, at_ns, host_ns - at_ns)
        self._device.give_back([*self._spare, self._last, event])
        self._spare.clear()

    def _read(self, edges: int) -> None:
        """Write the earliest edges, which have been reached."""
        for _ in range(edges):
            edge, event = self._pending.popleft()
            self._at_ns += round(self._last.elapsed_time(event) * 1e6)
            self._spare.append(self._last)
            self._last = event
            self._write(edge, self._at_ns, 0)

    def _compared(self) -> tuple[Any, int]:
        """Return an event of an idle device, and when it was reached: the narrowest of some tries.

        The host's times around it differ least then.
        """
        self._device.synchronize()
        tries: list[tuple[int, int, Any]] = []
        for number in range(_TRIES):
            event = self._device.event()
            before_ns = perf_counter_ns()
            self._device.record(event)
            self._device.synchronize()
            after_ns = perf_counter_ns()
            tries.append((after_ns - before_ns, number, (event, (before_ns + after_ns) // 2)))
        event, host_ns = min(tries)[2]
        self._device.give_back(spare for *_, (spare, _) in tries if spare is not event)
        return event, host_ns


class DeviceMarks:
    """Writes into the marks of a recording when its device had work.

    One thread trains; in any other nothing is written, for the current stream is each thread's
    own. What fails is noted once, and the device is watched no longer. Without a device, the one
    that the process uses is looked for until some steps have been made.
    """

    def __init__(self, marks: ProcessLog, device: AsyncDevice | None = None) -> None:
        self._marks, self._device = marks, device
        self._clock: EventClock | None = None
        self._thread, self._began_ns = get_ident(), perf_counter_ns()
        self.looks = _LOOKS
        """Remaining searches for a device; read in each step."""
        self.on = False
        """True if there is a device; read in each step."""

    def look(self) -> None:
        """Begin, if there is a device by now; of a loop in another thread nothing is claimed."""
        if self.looks:
            self.looks -= 1
            self._try(self._begin)

    def edge(self, edge: Edge) -> None:
        """Mark what the host gives the device from now on; any thread of the user's may call it."""
        if self._clock is not None and get_ident() == self._thread:
            self._try(self._clock.edge, edge)

    def end(self, *, here: bool = True) -> None:
        """End with the recording; in a forked child (`here=False`) the device is its parent's."""
        clock, self._clock = self._clock, None
        self.on, self.looks = False, 0
        if clock is not None and here:
            self._try(self._end, clock)

    def _begin(self) -> None:
        device = self._device or device_in_use(self._began_ns)
        if device is not None:
            self.looks = 0
            self._marks.say(device=device.name)
            if get_ident() == self._thread:
                self._clock = EventClock(device, self._marks.mark_device)
                self.on = True

    def _end(self, clock: EventClock) -> None:
        clock.end()
        if others_in_use() > 0:
            self._marks.say(device=None)

    def _try(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self._clock, self.on, self.looks = None, False, 0
            self._marks.failures.note("when the device was idle", error)


# ---- a device to try it on -----------------------------------------------------------------------

OutOfMemoryError: Final = torch.cuda.OutOfMemoryError
"""Error of torch for a device without free memory; also defined without CUDA."""

STEP: Final = "step"
COPY: Final = "h2d"


class Work(NamedTuple):
    """A piece of work of a simulated device."""

    start_ns: int
    """`perf_counter_ns()`"""
    end_ns: int
    kind: str
    """`STEP` or `COPY`."""


class SimulatedDevice:
    """A device that is only a timer, and works behind the host.

    What a thread with a queue would do follows from when it was given each piece of work, so there
    is no thread: nothing to start, to stop or to fork, and the truth is exact. What the host would
    wait for, it waits for: a queue of more than `depth` pieces, a copy from memory that is not
    pinned, a synchronisation. Without a rate, copies take no time; without `memory_bytes`,
    `reserve` takes any amount.
    """

    latest: Callable[[], SimulatedDevice | None] = staticmethod(lambda: None)
    """The one that was given work last, if it still exists."""

    def __init__(
        self,
        *,
        depth: int = 4,
        pageable_bytes_per_s: float | None = None,
        pinned_bytes_per_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.name = "simulated device behind the host"
        self._rates = {False: pageable_bytes_per_s, True: pinned_bytes_per_s}
        self.depth, self.memory_bytes = depth, memory_bytes
        self.held_bytes = 0
        self._free_ns = 0
        self._queue: deque[int] = deque()
        self._done: list[Work] = []
        self.given_ns = 0
        """Time of the last launch (`perf_counter_ns`)."""

    @property
    def copies(self) -> bool:
        """Return whether copies take time."""
        return any(self._rates.values())

    @property
    def work(self) -> list[Work]:
        """Return what it did and has still to do, in order: the truth."""
        return list(self._done)

    def launch(self, seconds: float) -> None:
        """Give it work for so long; returns at once, unless the queue is full."""
        self._give(STEP, round(seconds * 1e9))

    def copy(self, size: int, *, pinned: bool = False) -> None:
        """Copy so many bytes to it; later work waits for them.

        Out of pageable memory the host waits until they are there; a copy is behind all work, as on
        the current stream.
        """
        rate = self._rates[pinned]
        end_ns = self._give(COPY, round(size / rate * 1e9) if rate else 0)
        if not pinned:
            _sleep_until(end_ns)

    def reserve(self, size: int) -> None:
        """Take so many bytes of its memory, else raise torch's `OutOfMemoryError`."""
        if self.memory_bytes is not None and self.held_bytes + size > self.memory_bytes:
            left = self.memory_bytes - self.held_bytes
            raise OutOfMemoryError(f"{self.name}: tried to allocate {size} bytes, {left} are left")
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Give back what was reserved, bytes."""
        self.held_bytes -= size

    def synchronize(self) -> None:
        """Wait until all of its work is done."""
        _sleep_until(self._free_ns)

    def event(self) -> SimulatedEvent:
        """Return a new event."""
        return SimulatedEvent()

    def give_back(self, events: Iterable[SimulatedEvent]) -> None:
        """Do nothing: they are no resource of anybody's."""

    def record(self, event: SimulatedEvent) -> None:
        """Put an event behind the work that was given by now."""
        event.reached_ns = max(perf_counter_ns(), self._free_ns)

    def _give(self, kind: str, length_ns: int) -> int:
        SimulatedDevice.latest, self.given_ns = ref(self), perf_counter_ns()
        queue = self._queue
        while queue and queue[0] <= perf_counter_ns():
            queue.popleft()
        if len(queue) >= self.depth:
            _sleep_until(queue.popleft())
        start_ns = max(perf_counter_ns(), self._free_ns)
        end_ns = self._free_ns = start_ns + length_ns
        queue.append(end_ns)
        self._done.append(Work(start_ns, end_ns, kind))
        return end_ns


class SimulatedEvent:
    """A place in a simulated device's work."""

    reached_ns = 0
    """Time of the device there (`perf_counter_ns`)."""

    def query(self) -> bool:
        """Return whether the device has come there."""
        return perf_counter_ns() >= self.reached_ns

    def elapsed_time(self, later: SimulatedEvent) -> float:
        """Return the milliseconds from here; a `RuntimeError` where one was not reached."""
        if perf_counter_ns() < max(self.reached_ns, later.reached_ns):
            raise RuntimeError("both events have to be reached before their distance is known")
        return (later.reached_ns - self.reached_ns) / 1e6


def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - perf_counter_ns()) > 0:
        time.sleep(left_ns / 1e9)
