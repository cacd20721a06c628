"""Loops over a loader: recorded for so many batches, or timed in their steady state.

A lap is one start of a timed loop. Its first batches are used and not timed: workers start, and
what they made beforehand is used up. Where the batches end before a lap does, the loop starts
again.
"""

from __future__ import annotations

import copy
import gc
import math
import multiprocessing
import threading
import time
from collections import deque
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Integral, Real
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import ref

import psutil
import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from stallscope.errors import ArgumentError
from stallscope.hooks.device_time import Edge
from stallscope.hooks.loader_access import end
from stallscope.interrupts import held_back
from stallscope.isolation import in_one_thread
from stallscope.loops.batch_timeout import limited, starting, status_of
from stallscope.loops.cached_values import leaves
from stallscope.loops.devices import device_of
from stallscope.stages import H2D, STEP
from stallscope.targets.loaders import iterators_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.hooks.probe import Probe
    from stallscope.loops.devices import Device
    from stallscope.targets.target import Target


_FOREVER_S: Final = 1e6
_FEWEST_STEPS: Final = 4
"""Simulated steps that have to fit into a budget; fewer say nothing about a loop."""
_UNDER_WAY: Final = 2
"""Batches that are not waited for where there is hardly time for them."""
_GRACE_S: Final = 5.0
"""Seconds for a worker to end after the request, or to hand a batch over that is there."""
_FOLLOWED: Final = 32
"""Last batches whose life is followed; a loop has few of them in hand at a time."""
_NEAR: Final = 64
"""Values of a batch that are looked through for a tensor: there may be millions."""
_HANDED: Final = 12
"""Batches to hand over."""
_REST_S: Final = 0.002
"""Least rest, in which the worker sends a batch before it is asked for."""


@dataclass(frozen=True)
class Enough:
    """Length of a steady state that needs no more."""

    after: int
    """Batches before it."""
    batches: int
    """Minimum number of batches ..."""
    seconds: float
    """... and of seconds."""
    few: int = 0
    """After `late_s`, so many batches will do."""
    late_s: float = float("inf")
    """Since the loop began, seconds."""
    begin_share: float = float("inf")
    """The loop goes on into a second epoch while the begin of the first takes more than this share
    of its time: for loaders of unknown length."""


@dataclass(frozen=True)
class Limits:
    """Limits of a loop over a loader.

    Raises:
        ArgumentError: a number that cannot be a limit.
    """

    batches: int
    budget_s: float
    """After the batch that comes after this time, seconds; `inf`: never for that."""
    enough: Enough | None = None
    """After a steady state that is long enough; None: not for that."""

    def __post_init__(self) -> None:
        check_whole("batches", self.batches, 1)
        check_budget(self.budget_s)

    @classmethod
    def of(cls, batches: int, *, warmup: int, processes: int, budget_s: float) -> Limits:
        """Leave room for the steady state after warm-up and the first batch of each process."""
        check_whole("batches", batches, 1)
        check_whole("warmup", warmup, 0)
        return cls(batches + max(warmup, processes, 1), budget_s)


def check_budget(budget_s: object) -> float:
    """Make sure that it is a number of seconds above 0, else raise an `ArgumentError`.

    In the place of `inf` it returns more than anybody waits for.
    """
    if not (isinstance(budget_s, Real) and budget_s > 0):  # type: ignore[operator]  # false for nan, too
        raise ArgumentError(f"budget_s={budget_s!r}: give a number of seconds above 0")
    return min(float(budget_s), _FOREVER_S)


def check_step_s(step_s: float | None, budget_s: float) -> None:
    """Refuse a simulated step of which too few fit into the budget.

    Raises:
        ArgumentError: they do not; most likely somebody has given milliseconds.
    """
    if step_s is not None and _FEWEST_STEPS * step_s > budget_s:
        raise ArgumentError(
            f"{_FEWEST_STEPS} steps of {step_s:g} seconds are longer than the budget of "
            f"{budget_s:g}: give seconds, not milliseconds, or a larger budget_s"
        )


def check_whole(name: str, value: object, least: int) -> None:
    """Make sure that it is a whole number that is large enough, else raise an `ArgumentError`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name}={value!r}: give a whole number, {least} or more")


@dataclass
class Replay:
    """Progress of the loop. Filled while it runs, so that an interrupt loses nothing."""

    steps: int = 0
    epochs: int = 0
    steps_before: int = 0
    """Steps before the current epoch."""
    exhausted: bool = False
    out_of_time: bool = False
    """True if the budget ended the loop."""
    began_ns: int = field(default_factory=perf_counter_ns)
    steady_ns: int | None = None
    """Begin of the steady state of `Limits.enough` (`perf_counter_ns`)."""
    first_ns: int = 0
    look: Callable[[Any], object] | None = None
    """Called with the first batch, before it is used."""
    keeps_batches: bool = False
    """True: at the end of the loop all of its last batches were still in memory."""
    _lives: deque[ref[Any]] = field(default_factory=lambda: deque(maxlen=_FOLLOWED))

    def follow(self, batch: Any) -> None:
        """Follow the life of a batch: that of its first tensor."""
        with suppress(Exception):  # an object of other people, which may raise when it is read
            near = islice(leaves(batch), _NEAR)
            tensor = next(leaf for leaf in near if isinstance(leaf, torch.Tensor))
            self._lives.append(ref(tensor))
        are_alive = all(life() is not None for life in self._lives)
        self.keeps_batches = are_alive and len(self._lives) == _FOLLOWED

    def is_over(self, limits: Limits) -> bool:
        """Return whether the loop has to stop, or has nothing more to go through."""
        enough = limits.enough
        if self.steps >= limits.batches or self.out_of_time or self.exhausted:
            return True
        if enough is None or self.steps < enough.after:
            return False
        now_ns = perf_counter_ns()
        self.steady_ns = self.steady_ns or now_ns
        steady = self.steps - enough.after
        if now_ns - self.began_ns >= enough.late_s * 1e9:
            return steady >= enough.few
        if self._begins(enough, now_ns - self.began_ns):
            return False
        return now_ns - self.steady_ns >= enough.seconds * 1e9 and steady >= enough.batches

    def _begins(self, enough: Enough, length_ns: float) -> bool:
        """Return whether the cost of an epoch's begin is still to be seen."""
        if not math.isfinite(enough.begin_share):
            return False
        if self.epochs == 1:
            return self.first_ns - self.began_ns > enough.begin_share * length_ns
        return self.epochs == 2 and self.steps - self.steps_before < enough.after  # noqa: PLR2004 - the first with a begin like all later ones

    def ahead_ns(self, limits: Limits) -> float:
        """Return how long before the end of its budget the loop stops, ns.

        A loop that ends when it is long enough is a part of something longer, which has a budget,
        too: the next batch, and those that workers finish before they end, take as long as those
        before. The start of the workers, before the first batch, is paid once.
        """
        if limits.enough is None or self.steps <= 1:
            return 0.0
        return _UNDER_WAY * (perf_counter_ns() - self.first_ns) / (self.steps - 1)


def replay(probe: Probe, target: Target, limits: Limits, seen: Replay, title: str) -> None:
    """Use so many batches, over as many epochs as that takes; the workers are gone afterwards."""
    deadline_ns = perf_counter_ns() + float(limits.budget_s) * 1e9
    device = device_of(target)
    wanted = None if limits.enough else limits.batches
    bar = ProgressBar(total=wanted, desc=title, unit="batch")
    try:
        with closing(bar):
            while not seen.is_over(limits):
                seen.steps_before = seen.steps
                seen.epochs += 1
                with starting(target.loader):
                    iterator = probe.begin(target.loader)
                batches = probe.batches(limited(iterator))
                if target.loads_here:
                    batches = in_one_thread(batches)
                with closing(batches):
                    for batch in batches:
                        if not seen.steps and seen.look is not None:
                            seen.look(batch)
                        _use(probe, target, device, batch)
                        seen.follow(batch)
                        seen.steps += 1
                        seen.first_ns = seen.first_ns or perf_counter_ns()
                        bar.update()
                        seen.out_of_time = perf_counter_ns() + seen.ahead_ns(limits) > deadline_ns
                        if seen.is_over(limits):
                            break
                seen.exhausted = seen.steps == seen.steps_before
    finally:
        probe.shut_down()


def _use(probe: Probe, target: Target, device: Device, batch: Any) -> None:
    if target.step is None:
        return
    edge = probe.device.edge
    if device.moves:
        edge(Edge.COPY)
        done = probe.part(H2D)
        batch = device.move(batch)
        done()
    edge(Edge.STEP)
    done = probe.part(STEP)
    target.step(batch)
    done()  # one that raises has no end, and is no step
    edge(Edge.NOTHING)
    probe.device.look()  # the first step may have found one


class ProgressBar(tqdm):  # type: ignore[misc]
    """A bar without tqdm's monitor thread, which would live while workers are forked.

    One that does not stay leaves nothing behind in a notebook: tqdm's own leaves its last text in
    the saved cell.
    """

    monitor_interval = 0
    _place: Any = None
    """Place of the bar in a notebook."""

    def __init__(self, *args: Any, **named: Any) -> None:
        # None: tqdm shows no bar where standard error is a file, as a job's log
        usual = {"disable": None, "leave": False, "delay": 0.5, "mininterval": 0.5}
        super().__init__(*args, **{**usual, **named})

    def display(self, *args: Any, check_delay: bool = True, **named: Any) -> Any:
        """Show the bar as it is now."""
        box = getattr(self, "container", None)
        is_shown = getattr(self, "displayed", False)
        if box is not None and check_delay and not self.leave and not is_shown:
            from IPython.display import display

            self._place = display(box, display_id=True)  # type: ignore[no-untyped-call]
            self.displayed = True
        if box is not None:
            named["check_delay"] = check_delay
        return super().display(*args, **named)

    def close(self) -> None:
        """Take the bar away; what ends before its time has not failed, and is not shown in red."""
        if self.total:  # type: ignore[has-type]
            self.total = self.n
        super().close()
        if self._place is not None:
            self._place.update({"text/plain": ""}, raw=True)
            self._place = None


# tqdm's own would fix the start method of the user's processes
ProgressBar.set_lock(threading.RLock())


# ---- timed loops ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedLoop:
    """Batches, and what is done with each."""

    batches: Iterable[Any]
    """Asked for an iterator by each start; it may end."""
    device: Device
    step: Callable[[Any], object] | None = None
    """Uses one batch; None just takes it."""
    batch_size: int | None = None
    """The loader's own; None where it has none."""
    workers: int = 0
    """Worker processes; 0: none, or the batches come from memory."""
    in_one_thread: bool = False
    """True if batches of this process are loaded with one torch thread."""

    @classmethod
    def of(cls, target: Target) -> TimedLoop:
        """Return the loop that trains on a target's batches."""
        return cls(
            target.loader,
            device_of(target),
            target.step,
            target.batch_size,
            target.num_workers,
            in_one_thread=target.loads_here,
        )

    @classmethod
    def in_turns(cls, target: Target, loader: Any) -> TimedLoop:
        """Return the loop over a loader, with as many threads as the user's own loop."""
        return replace(cls.of(replace(target, loader=loader)), in_one_thread=False)

    def use(self, batch: Any) -> None:
        """Move a batch where the step wants it, and use it there."""
        moved = self.device.move(batch)
        if self.step is not None:
            self.step(moved)

    @property
    def warmup(self) -> int:
        """Return the batches before the steady state: the first of each worker, and one more.

        With few workers that is less than `WARMUP`: loops are timed in turns, and what is left of
        a warm-up is in all of them.
        """
        return self.workers + 1

    @property
    def block(self) -> int:
        """Return how many steps are one measurement: workers that began together send together."""
        return max(self.workers, 1)


class TimedPass:
    """Batches of one start of a loop, and its measurements meanwhile."""

    def __init__(self, source: Any, batches: Iterator[Any], began_s: float) -> None:
        self.source = source
        """The iterator of the loader's own."""
        self.start_s = 0.0
        """From asking for the batches to the first of them."""
        self.used = 0
        """Batches, those before the steady state included."""
        self.in_loader = False
        """True while the loop waits for a batch."""
        self._batches, self._began_s = batches, began_s

    def __iter__(self) -> TimedPass:
        return self

    def __next__(self) -> Any:
        self.in_loader = True
        batch = next(self._batches)
        self.in_loader = False
        self.start_s = self.start_s or time.perf_counter() - self._began_s
        self.used += 1
        return batch


@contextmanager
def started(loop: TimedLoop) -> Iterator[TimedPass]:
    """Yield the batches of one start; afterwards nothing of it lives."""
    before, began_s = _children(), time.perf_counter()
    try:
        with iterators_ended(loop.batches):  # the next start would go on with them
            with held_back(), starting(loop.batches):  # an interrupt would leave a worker behind
                source = iter(loop.batches)
            batches = limited(source)
            batches = in_one_thread(batches) if loop.in_one_thread else batches
            try:
                yield TimedPass(source, batches, began_s)
            finally:
                with held_back():
                    batches.close()
                    end(source)
    finally:
        with held_back():
            if _children() - before:
                gc.collect()  # whoever started workers holds them in a cycle, maybe
            mine = _children() - before  # without workers of another loop, which wait for its turn
            _wait_for_end({child for child in mine if status_of(child) != psutil.STATUS_STOPPED})


def _children() -> set[Any]:
    """Return processes that may be workers of a loader: a pool or a manager is the user's."""
    active = multiprocessing.active_children()
    return {child for child in active if child.daemon and "PoolWorker" not in child.name}


def _wait_for_end(processes: set[Any]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
        if process.is_alive():
            process.kill()
            process.join()


def device_busy(loop: TimedLoop, batches: Iterator[Any]) -> float | None:
    """Return how busy the device is in a few more steps.

    While a profiler starts, nobody takes batches, and they pile up: they are used first.
    """
    if loop.step is None:
        return None
    length = max(2 * loop.block, 4)

    def use() -> None:
        for batch in islice(batches, length):
            loop.use(batch)

    loop.device.kernels(lambda: None)  # the profiler's first start is a long one
    for batch in islice(batches, loop.warmup + loop.block):
        loop.use(batch)
    kernels = loop.device.kernels(use)
    return kernels and kernels.busy_share


class Handover(NamedTuple):
    """Seconds to hand batches over to the loop."""

    start_s: float
    """Seconds until a started worker is ready for its first batch."""
    send_s: float
    """Seconds from a finished batch to a sent one."""
    receive_s: float
    """Seconds in which the loop receives a batch."""


def measure_handover(target: Target, batch: Any) -> Handover | None:
    """Time a worker that only hands a batch over; return None where too few batches arrive.

    The loop asks for the next batch when a batch arrives. Received at once, the next batch takes
    the whole round; after a rest, it is ready.
    """
    loader = DataLoader(
        cast("Any", [batch] * _HANDED),
        batch_size=None,
        collate_fn=copy.deepcopy,  # as a worker makes each batch anew
        num_workers=1,
        prefetch_factor=1,
        timeout=_GRACE_S,
        generator=torch.Generator(),  # spares the user's generator
    )
    loop, began_s = TimedLoop(loader, device_of(target), workers=1), time.perf_counter()
    with suppress(Exception), started(loop) as batches:  # a batch may be any object
        copied_s = _took_s(lambda: copy.deepcopy(batch))
        next(batches)
        ready_s, last_s = time.perf_counter() - began_s, 0.0
        rounds: list[float] = []
        received: list[float] = []
        for number in range(_HANDED - 1):
            if number % 2:
                time.sleep(2 * last_s + _REST_S)
            last_s = _took_s(lambda: next(batches, None))
            (received if number % 2 else rounds).append(last_s)
        round_s, receive_s = median(rounds), median(received)
        sent_s = max(round_s - receive_s - copied_s, 0.0)
        return Handover(max(ready_s - round_s, 0.0), sent_s, receive_s)
    return None


def _took_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
