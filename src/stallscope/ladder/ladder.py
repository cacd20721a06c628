"""`ss.ladder`: throughput of the loop without each of the loader's costs.

Each rung is a loop. The lowest iterates the loader as it is. The next ones have the loader's own
workers, with samples cached in memory at some stage. The highest iterate whole batches in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.loops import AS_IT_IS as _BOTTOM
from stallscope.bench.loops import InTurns, compared, rate
from stallscope.bench.measurement import Measurement, memory_limit
from stallscope.isolation import isolated
from stallscope.ladder.result import AS_IT_IS, FACTS, RUNGS, Ladder
from stallscope.ladder.rungs import Rungs
from stallscope.loops.training_loop import check_step_s
from stallscope.machine import require_single_rank
from stallscope.result import LoopConditions
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.ladder.result import Rung
    from stallscope.loops.devices import MemoryUse


_CAPTURE_SHARE: Final = 0.2
"""Largest share of the budget for caching samples."""
_NARROW: Final = 0.08
"""Half-width of an interval that is narrow enough for a picture."""
_MEMORY_SHARE: Final = 0.25
"""Share of the free memory for samples and batches."""


def ladder(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
    max_bytes: int | None = None,
) -> Ladder:
    """Measure the loop as it is, then with more and more of the loader's work cached in memory.

    The loops iterate shallow copies of the loader. Afterwards random generators, samplers and the
    state that `step` trains are restored, and the workers have ended. Exceptions of the dataset and
    of the step pass unchanged; their attribute `ladder` holds the partial result.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without a step, only the loader is measured.
        device: batches are moved there before `step`; the target's by default.
        budget_s: time limit, seconds; the current batch is finished.
        max_bytes: memory for samples and batches; by default a quarter of the memory available to
            this process.

    Raises:
        ArgumentError: `budget_s` or `max_bytes` is no valid number.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target keeps a generator in the middle of an epoch, or this process is
            one of several ranks.
        NoBatchError: a batch did not come in time; `ladder` holds the partial result.
    """
    measurement = Measurement("ladder", budget_s)
    room = memory_limit(max_bytes, _MEMORY_SHARE)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    check_step_s(target.simulated_step_s, measurement.budget_s)
    with measurement.of(target.name), isolated(target) as target:
        climb = LadderMeasurement(Rungs(target, room), measurement)
        measurement.result = climb.result
        climb.run()
        return climb.result()


class LadderMeasurement:
    """Measurement of a ladder; variants are the numbers of rungs in `RUNGS`."""

    def __init__(self, rungs: Rungs, measurement: Measurement) -> None:
        self._rungs, self._measurement = rungs, measurement
        self._memory: MemoryUse | None = None
        self._turns = InTurns(
            measurement,
            {number: rung.name for number, rung in enumerate(RUNGS)},
            rungs.replaced,
            watches_device=rungs.device.counts_kernels,
        )

    def run(self) -> None:
        """Measure until the answer is settled or the budget is used."""
        turns, rungs = self._turns, self._rungs
        turns.add(_BOTTOM, rungs.loops[AS_IT_IS])
        turns.try_out(_BOTTOM)
        self._memory = rungs.device.memory()  # of the step alone: nothing is cached yet
        if max(turns.starts_s[_BOTTOM]) > self._measurement.left_s:
            rungs.leave_out(self._measurement.was_over())
        else:
            self._measurement.now("keeping samples in memory")
            rungs.capture(self._measurement.until_ns(_CAPTURE_SHARE * self._measurement.budget_s))
        for rung in rungs.cached:
            turns.add(RUNGS.index(rung), rungs.loops[rung])
        turns.run(self._wanted, self._wide)

    def _wanted(self) -> list[int]:
        """Return the rungs to measure further, the top first, as the top gives the answer."""
        turns = self._turns
        cached = [n for n in map(RUNGS.index, self._rungs.cached) if n not in turns.failed]
        if not cached:
            measured = rate(turns.blocks, _BOTTOM)
            return [_BOTTOM] if measured is None or measured.half_width > _NARROW else []
        top = cached[-1]
        is_settled = compared(turns.blocks, top).is_settled
        if not is_settled and not turns.has_time_for(cached):
            return [top]
        unmeasured = [n for n in cached if rate(turns.blocks, n) is None]
        return unmeasured if is_settled or top in unmeasured else [*unmeasured, top]

    def _wide(self) -> list[int]:
        """Return the rungs whose intervals are too wide for a picture."""
        intervals = {number: rate(self._turns.blocks, number) for number in range(len(RUNGS))}
        return [
            n for n, interval in intervals.items() if interval and interval.half_width > _NARROW
        ]

    def result(self) -> Ladder:
        """Return the result so far."""
        rungs, target = self._rungs, self._rungs.target
        return Ladder(
            blocks=self._turns.table(),
            facts=pl.DataFrame([self._fact(rung) for rung in RUNGS], FACTS, orient="row"),
            circumstances=LoopConditions.of(target, device=rungs.device.name),
            notes=(*target.notes, *self._measurement.notes, *self._device_notes(), *rungs.notes),
            took_s=self._measurement.used_s,
        )

    def _device_notes(self) -> Iterator[str]:
        """Yield the memory use and the busy shares of the device in the loop as it is."""
        busy, reported = self._turns.busy.get(_BOTTOM), self._turns.reported.get(_BOTTOM)
        notes = []
        if self._memory is not None:
            used, total = self._memory
            notes.append(f"memory {share(used / total)} full ({size(total)})")
        if busy is not None:
            notes.append(f"computing {share(busy)} of the time")
        if reported is not None:
            notes.append(f"{share(reported)} by NVML, which counts whenever any kernel runs")
        if notes:
            yield f"{self._rungs.device.name}, as it is: {', '.join(notes)}"

    def _fact(self, rung: Rung) -> tuple[Any, ...]:
        turns, number = self._turns, RUNGS.index(rung)
        why = turns.failed.get(number) or self._rungs.why_not.get(rung)
        measured = any(block.variant == number for block in turns.blocks)
        return (
            rung.name,
            self._rungs.bytes_of(rung),
            turns.busy.get(number),
            turns.reported.get(number),
            None if measured else why or self._measurement.was_over(),
        )
