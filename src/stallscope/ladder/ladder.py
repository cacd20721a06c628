"""`ss.ladder`: how fast the loop would be without each of the loader's costs.

Every rung is a loop of its own. The lowest is the loader as it is. Then come, with the loader's own
workers, loops whose samples are in memory at some point of their way, and on top loops over whole
batches in memory. Laps run up and down the ladder in turn, so that a machine that grows slower
meanwhile does so for all rungs.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.errors import ArgumentError
from stallscope.isolation import isolated
from stallscope.ladder.result import AS_IT_IS, FACTS, LAPS, RUNGS, Ladder, is_clear
from stallscope.ladder.rungs import Rungs
from stallscope.loops.batch_timeout import time_limit
from stallscope.loops.timed_loop import Span, TimedPass
from stallscope.loops.training_loop import ProgressBar, check_budget
from stallscope.machine import (
    CpuUse,
    machine,
    memory_available_bytes,
    require_single_rank,
    resident_bytes,
)
from stallscope.result import LoopConditions
from stallscope.run.read_logs import note
from stallscope.targets import target as targets
from stallscope.units import count, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.ladder.result import Rung
    from stallscope.loops.devices import MemoryUse


_LAP_S: Final = 0.45
"""The steady state of one lap: so long, where the budget allows it."""
_SHORTEST_LAP_S: Final = 0.25
_MOST_SWEEPS: Final = 3
"""Down, up, down: an interval over fewer laps than this is a wide one."""
_LONGEST_SHARE: Final = 0.2
"""Of the budget: no single lap and no capture takes more."""
_MEMORY_SHARE: Final = 0.25
"""Of the memory that is left."""


def ladder(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = 60.0,
    max_bytes: int | None = None,
) -> Ladder:
    """Measure the loop as it is, and with more and more of the loader's work cached in memory.

    Iterates shallow copies of the loader. Afterwards all random generators, the samplers and what
    `step` trains are as they were, and the workers are gone. An exception of the dataset's or of
    the step's passes unchanged; its attribute `ladder` holds what was measured before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one only the loader is measured.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the batch that is under way then.
        max_bytes: memory for samples and batches; by default a quarter of what is left to this
            process.

    Raises:
        ArgumentError: `budget_s` or `max_bytes` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it keeps a generator in the middle of an epoch; more than one rank.
        NoBatchError: a batch did not come within the budget and a grace; its attribute `ladder`
            holds what was measured before.
    """
    began_ns = time.perf_counter_ns()
    allowed_s = check_budget(budget_s)
    is_size = isinstance(max_bytes, (int, float)) and 0 <= max_bytes < math.inf
    if max_bytes is not None and not is_size:
        raise ArgumentError(f"max_bytes={max_bytes!r}: give a number of bytes, 0 or more")
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    room = int(memory_available_bytes() * _MEMORY_SHARE if max_bytes is None else max_bytes)
    with time_limit(allowed_s), isolated(target) as target:
        climb = _Climb(Rungs(target, room), began_ns, allowed_s)
        try:
            climb.run()
        except BaseException as error:
            climb.leave_with(error)
            raise
        return climb.result()


class _Climb:
    """One measurement of a ladder, whose budget began at a time (`perf_counter_ns`)."""

    def __init__(self, rungs: Rungs, began_ns: int, budget_s: float) -> None:
        self._rungs = rungs
        self._target = rungs.target
        self._notes: list[str] = []
        self._budget_s = budget_s
        self._room = int(memory_available_bytes() * _MEMORY_SHARE)
        self._deadline_ns = began_ns + int(budget_s * 1e9)
        self._laps: dict[Rung, list[TimedPass]] = {}
        self._took_s: dict[Rung, float] = {}
        self._others: dict[Rung, list[float]] = {}
        self._why_not: dict[Rung, str] = {}
        self._now = AS_IT_IS
        self._memory: MemoryUse | None = None

    def run(self) -> None:
        """Lap after lap, until the answer is clear or the time is over."""
        bar = ProgressBar(desc=f"ladder of {self._target.name}", unit="lap", leave=False, delay=0.5)
        with closing(bar):
            self._lap(AS_IT_IS, bar)
            self._memory = self._rungs.device.memory()  # of the step, and of nothing that is kept
            bar.set_postfix_str("keeping samples in memory")
            self._capture()
            rungs = [AS_IT_IS, *self._rungs.cached]
            bar.total = _MOST_SWEEPS * len(rungs)
            before = self._held_bytes()
            for sweep in range(_MOST_SWEEPS):
                for rung in rungs if sweep % 2 else rungs[::-1]:
                    if self._grew_by(self._held_bytes() - before):
                        return
                    self._lap(rung, bar)
                if sweep and apart(lambda: is_clear(self.result())):
                    break

    def _capture(self) -> None:
        start_s, left_s = self._start_s(AS_IT_IS), self._left_s()
        if start_s > left_s:
            self._rungs.leave_out(self._no_time(start_s, left_s))
        else:
            self._rungs.capture(self._until(self._budget_s * _LONGEST_SHARE))

    def _start_s(self, rung: Rung) -> float:
        """What it takes at least to start a rung: its workers, as they have started before."""
        before = self._laps.get(AS_IT_IS)
        return before[0].start_s if before and self._rungs.starts_workers(rung) else 0.0

    def _no_time(self, start_s: float, left_s: float) -> str:
        if left_s <= 0:
            return f"the budget of {seconds(self._budget_s)} was over"
        left = f"{seconds(left_s)} were left of the budget"
        return f"its workers take about {seconds(start_s)} to start, and {left}"

    def _held_bytes(self) -> int:
        return resident_bytes() + self._rungs.device.held_bytes()

    def _grew_by(self, more: int) -> bool:
        """Whether the step keeps so much that the rest of the ladder might take all memory."""
        if more <= self._room:
            return False
        self._notes.append(
            f"stopped early: this process grew by {size(more)}, as if the step kept something of "
            "each batch (a loss with its graph, say; `.item()` or `.detach()` keeps less)"
        )
        return True

    def leave_with(self, error: BaseException) -> None:
        """Tell an exception of the user's where it came from, and what was measured before it."""
        vars(error)["ladder"] = self.result()  # past any __setattr__ of a frozen exception
        note(
            error,
            [
                f"stallscope: raised while '{self._now.name}' was measured",
                "stallscope: what was measured before is this exception's attribute `ladder`",
            ],
        )

    def _lap(self, rung: Rung, bar: Any) -> None:
        left_s = self._left_s()
        expected_s = self._took_s.get(rung, self._start_s(rung))
        if rung in self._why_not or (rung in self._laps and expected_s > left_s):
            return
        if left_s <= 0 or expected_s > left_s:
            self._why_not.setdefault(rung, self._no_time(expected_s, left_s))
            return
        self._now = rung
        bar.set_postfix_str(rung.name)
        began_ns, lap = time.perf_counter_ns(), TimedPass()
        laps = self._laps.setdefault(rung, [])
        laps.append(lap)
        span = Span(
            self._lap_s(left_s),
            self._until(self._budget_s * _LONGEST_SHARE),
            watches_device=self._rungs.device.counts_kernels and len(laps) == 1,
        )
        before = CpuUse.now()
        failure = self._rungs.run(rung, lap, span)
        self._others.setdefault(rung, []).append(CpuUse.now().others_share(before))
        if failure or not lap.seconds:
            laps.pop()
            made = count(lap.used, "batch")
            too_short = f"in its time it made {made}, too few for a steady state"
            if lap.exhausted:
                too_short = f"the loader ended after {made}, before its steady state"
            self._why_not.setdefault(rung, failure or too_short)
        self._took_s[rung] = (time.perf_counter_ns() - began_ns) / 1e9
        bar.update()

    def _lap_s(self, left_s: float) -> float:
        """So long that all laps of all rungs fit into the time that is left, start-up included."""
        planned = _MOST_SWEEPS * (1 + len(self._rungs.cached))
        return min(_LAP_S, max(left_s / planned / 2, _SHORTEST_LAP_S))

    def _left_s(self) -> float:
        return (self._deadline_ns - time.perf_counter_ns()) / 1e9

    def _until(self, most_s: float) -> int:
        return min(self._deadline_ns, time.perf_counter_ns() + int(most_s * 1e9))

    def result(self) -> Ladder:
        """What is known by now."""
        rungs, target = self._rungs, self._target
        return Ladder(
            laps=pl.DataFrame(list(self._rows()), LAPS, orient="row"),
            facts=pl.DataFrame([self._fact(rung) for rung in RUNGS], FACTS, orient="row"),
            circumstances=LoopConditions(
                name=target.name,
                device=rungs.device.name,
                simulated_step_s=target.simulated_step_s,
                has_step=target.step is not None,
                num_workers=target.num_workers,
                machine=machine(),
            ),
            notes=(*target.told(), *self._notes, *self._of_device(), *rungs.notes),
        )

    def _of_device(self) -> Iterator[str]:
        """How busy the device is as it is, however one counts, and how full."""
        _, _, busy, reported, *_ = self._fact(AS_IT_IS)
        said = []
        if self._memory is not None:
            used, total = self._memory
            said.append(f"its memory is {share(used / total)} full ({size(total)})")
        if busy is not None:
            said.append(f"it computes {share(busy)} of the time")
        if reported is not None:
            said.append(f"NVML, which counts whenever any kernel runs, says {share(reported)}")
        if said:
            yield f"{self._rungs.device.name}, as it is: {', and '.join(said)}"

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        has_step = self._target.step is not None
        for rung, laps in self._laps.items():
            # The very first lap also pays what this process does for the first time.
            counted = laps[1:] if rung is AS_IT_IS and len(laps) > 1 else laps
            for number, lap in enumerate(counted):
                for whole, step_s, samples in zip(
                    lap.seconds, lap.step_s, lap.samples, strict=False
                ):
                    yield rung.name, number, whole, step_s if has_step else None, samples

    def _fact(self, rung: Rung) -> tuple[Any, ...]:
        laps = self._laps.get(rung, [])
        busy = next((lap.busy_share for lap in laps if lap.busy_share is not None), None)
        others = self._others.get(rung)
        reported = [lap.reported_share for lap in laps if lap.reported_share is not None]
        why = self._why_not.get(rung) or self._rungs.why_not.get(rung)
        return (
            rung.name,
            self._rungs.bytes_of(rung),
            busy,
            fmean(reported) if reported else None,
            fmean(others) if others else None,
            None if laps else why or "not reached",
        )
