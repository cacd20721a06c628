"""Loop over a loader: so many batches, no longer than the budget, with a bar."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Integral, Real
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from tqdm.auto import tqdm

from stallscope.errors import ArgumentError
from stallscope.hooks.device_time import Edge
from stallscope.isolation import in_one_thread
from stallscope.loops.batch_timeout import limited, starting
from stallscope.loops.devices import device_of
from stallscope.stages import H2D, STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.probe import Probe
    from stallscope.loops.devices import Device
    from stallscope.targets.target import Target


_FOREVER_S: Final = 1e6
_SHOW_EVERY_S: Final = 0.5
_FEWEST_STEPS: Final = 4
"""Simulated steps that have to fit into a budget; fewer say nothing about a loop."""
_UNDER_WAY: Final = 2
"""Batches that are not waited for where there is hardly time for them."""


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
    exhausted: bool = False
    out_of_time: bool = False
    """True if the budget ended the loop."""
    began_ns: int = field(default_factory=perf_counter_ns)
    steady_ns: int | None = None
    """Begin of the steady state of `Limits.enough` (`perf_counter_ns`)."""
    first_ns: int = 0
    look: Callable[[Any], object] | None = None
    """Called with the first batch, before it is used."""

    def is_over(self, limits: Limits) -> bool:
        """Return whether the loop has to stop, or has nothing more to go through."""
        is_over = self.steps >= limits.batches or self.out_of_time or self.exhausted
        return is_over or self._is_long_enough(limits.enough)

    def ahead_ns(self, limits: Limits) -> float:
        """Return how long before the end of its budget the loop stops, ns.

        A loop that ends when it is long enough is a part of something longer, which has a budget,
        too: the next batch, and those that workers finish before they end, take as long as those
        before. The start of the workers, before the first batch, is paid once.
        """
        if limits.enough is None or self.steps <= 1:
            return 0.0
        return _UNDER_WAY * (perf_counter_ns() - self.first_ns) / (self.steps - 1)

    def _is_long_enough(self, enough: Enough | None) -> bool:
        if enough is None or self.steps < enough.after:
            return False
        now_ns = perf_counter_ns()
        self.steady_ns = self.steady_ns or now_ns
        steady = self.steps - enough.after
        if now_ns - self.began_ns >= enough.late_s * 1e9:
            return steady >= enough.few
        return now_ns - self.steady_ns >= enough.seconds * 1e9 and steady >= enough.batches


def replay(probe: Probe, target: Target, limits: Limits, seen: Replay, title: str) -> None:
    """Use so many batches, over as many epochs as that takes; the workers are gone afterwards."""
    deadline_ns = perf_counter_ns() + float(limits.budget_s) * 1e9
    device = device_of(target)
    wanted = None if limits.enough else limits.batches
    bar = ProgressBar(
        total=wanted, desc=title, unit="batch", leave=False, delay=0.5, mininterval=_SHOW_EVERY_S
    )
    try:
        with closing(bar):
            while not seen.is_over(limits):
                before = seen.steps
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
                        seen.steps += 1
                        seen.first_ns = seen.first_ns or perf_counter_ns()
                        bar.update()
                        seen.out_of_time = perf_counter_ns() + seen.ahead_ns(limits) > deadline_ns
                        if seen.is_over(limits):
                            break
                seen.exhausted = seen.steps == before
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
        super().__init__(*args, **{"disable": None, **named})

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
