"""`ss.ladder`: throughput of the loop without each of the loader's costs.

Each rung is a loop. The lowest iterates the current loader. The next ones have the loader's own
workers, with samples cached in memory at some stage. The highest iterate whole batches in memory.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import AS_IT_IS as _BOTTOM
from stallscope.bench.comparison import compared, rate
from stallscope.bench.loops import InTurns
from stallscope.bench.measurement import Measurement, memory_limit
from stallscope.errors import NoBatchError
from stallscope.hooks.device_time import OutOfMemoryError
from stallscope.isolation import isolated
from stallscope.loops import cached_loaders
from stallscope.loops.cached_loaders import CachedBatches
from stallscope.loops.cached_values import bytes_of
from stallscope.loops.devices import BatchMemory, device_of
from stallscope.loops.training_loop import TimedLoop, check_step_s, started
from stallscope.machine import require_single_rank
from stallscope.result import LoopConditions
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, count, repr_of, share, size
from stallscope.verbs.ladder.result import (
    AS_IT_IS,
    BATCHES,
    FACTS,
    FETCHED,
    ON_DEVICE,
    PINNED,
    RUNGS,
    TRANSFORMED,
    WARM,
    Ladder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.loops.cached_loaders import Unfinished
    from stallscope.loops.devices import Device, MemoryUse
    from stallscope.targets.target import Target
    from stallscope.verbs.ladder.result import Rung


_CAPTURE_SHARE: Final = 0.2
"""Largest share of the budget for caching samples."""
_NARROW: Final = 0.08
"""Half-width of an interval that is narrow enough for a picture."""
_NO_MORE: Final = "the loader gave no more batches"
_MOST_BATCHES: Final = 4
"""Batches kept in memory: enough that samples of all sizes are among them."""
_COPIES: Final = 2
"""Most copies of a batch: in pageable and in pinned memory."""
_SAMPLES: Final = (FETCHED, TRANSFORMED)
_BATCHES: Final = (BATCHES, PINNED, ON_DEVICE)


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
    room = memory_limit(max_bytes)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    check_step_s(target.simulated_step_s, measurement.budget_s)
    with measurement.of(target.name), isolated(target) as target:
        climb = LadderMeasurement(Rungs(target, room), measurement)
        measurement.result = climb.result
        climb.run()
        return climb.result()


class Rungs:
    """The loops over one target: the lowest iterates its loader, the others iterate copies."""

    def __init__(self, target: Target, max_bytes: int) -> None:
        self.target, self.device = target, device_of(target)
        self.loops: dict[Rung, TimedLoop] = {}
        self.why_not: dict[Rung, str] = {}
        """Reason for each rung that has no loop."""
        self.notes: list[str] = []
        self._loader: Any = target.loader
        self._max_bytes = max_bytes
        self.sizes: dict[Rung, int] = {}
        """Bytes of each rung's cache, if it has any."""
        self.loops[AS_IT_IS] = self._loop(cached_loaders.going_on(self._loader))

    @property
    def cached(self) -> list[Rung]:
        """Rungs above the lowest that can be measured, from the bottom to the top."""
        return [rung for rung in RUNGS[1:] if rung in self.loops]

    def replaced(
        self,
        number: int,
        error: Exception,
        in_loader: bool,  # noqa: FBT001 - a callback
    ) -> dict[int, TimedLoop | str]:
        """Return loops that replace a failed one, or reasons, by the numbers of their rungs.

        Replaced are only loaders that we created, and caches on the device. Exceptions of the
        user's own code pass.
        """
        rung, top = RUNGS[number], RUNGS.index(ON_DEVICE)
        if isinstance(error, OutOfMemoryError) and ON_DEVICE in self.loops:
            self._keep_fewer()
            again = {} if number == top else {number: self.loops[rung]}
            return {**again, top: self.loops.get(ON_DEVICE) or self.why_not[ON_DEVICE]}
        if rung in (AS_IT_IS, WARM) or not in_loader or isinstance(error, OutOfMemoryError):
            raise error
        return {number: f"with cached samples the loader raised {repr_of(error):.200}"}

    def leave_out(self, why: str, rungs: tuple[Rung, ...] = RUNGS[1:]) -> None:
        """Skip these rungs, and store the reason."""
        self.why_not.update(dict.fromkeys(rungs, why))

    # ---- caches in memory -------------------------------------------------------------------

    def capture(self, deadline_ns: int) -> None:
        """Cache samples and batches in memory, until the deadline, and create loops over them."""
        if cached_loaders.is_plain(self._loader):
            self._capture_samples(deadline_ns)
        else:
            what = type(self._loader).__name__
            why = f"a {what} iterates by itself, so its samples cannot be replaced"
            self.leave_out(why, (WARM, *_SAMPLES))
            self._capture_batches(deadline_ns)
        if any(self.sizes.values()):
            self.notes.append(
                "the cached rungs repeat the same random samples and leave the CPU to the step: "
                "the top rung is an upper bound"
            )

    def _capture_samples(self, deadline_ns: int) -> None:
        """Cache samples of the loader's own workers, before their transforms and after."""
        stream = cached_loaders.is_stream(self._loader)
        indices = [] if stream else cached_loaders.next_indices(self._loader, _MOST_BATCHES)
        finished: list[list[Any]] = []
        try:
            batches, why = self._fitting(
                self._captured(indices, stream=stream),
                lambda batch: bytes_of(batch[0]) * (1 + _COPIES) + bytes_of(batch[1]),
                deadline_ns,
            )
            finished = [samples for samples, _ in batches]
        except NoBatchError:
            raise
        except Exception as error:  # noqa: BLE001 - the lowest rung works without caches
            self.leave_out(f"its samples cannot be cached: {repr_of(error):.200}", _SAMPLES)
            self._capture_batches(deadline_ns)
        else:
            if finished:
                self._keep_halves([halves for _, halves in batches], stream=stream)
                self._keep_finished(finished)
            else:
                self.leave_out(why, (*_SAMPLES, *_BATCHES))
        if stream:
            self.why_not[WARM] = "a stream cannot repeat its samples"
        else:
            repeated = indices[: len(finished)] or indices
            self.loops[WARM] = self._loop(cached_loaders.warm(self._loader, repeated))

    def _fitting(
        self, batches: Iterable[Any], bytes_needed: Callable[[Any], int], deadline_ns: int
    ) -> tuple[list[Any], str]:
        """Return the batches that fit into memory, until the deadline; the reason for no more."""
        fitting: list[Any] = []
        needed = 0
        for batch in islice(batches, _MOST_BATCHES):
            needed += bytes_needed(batch)
            if needed > self._max_bytes:
                return fitting, f"one batch needs more than the {size(self._max_bytes)} allowed"
            fitting.append(batch)
            if time.perf_counter_ns() > deadline_ns:
                break
        return fitting, _NO_MORE

    def _captured(
        self, indices: list[Any], *, stream: bool
    ) -> Iterator[tuple[list[Any], list[Unfinished | None]]]:
        collates = cached_loaders.collates(self._loader)
        loop = self._loop(cached_loaders.capturing(self._loader, indices))
        with started(loop) as batches:
            for batch in batches:
                samples = pickle.loads(batch)  # noqa: S301 - from our own workers
                samples = samples if collates else [samples]
                pairs = [(sample, None) for sample in samples] if stream else samples
                yield [finished for finished, _ in pairs], [unfinished for _, unfinished in pairs]

    def _keep_halves(self, halves: list[list[Unfinished | None]], *, stream: bool) -> None:
        flat = [half for batch in halves for half in batch]
        unfinished = [half for half in flat if half is not None]
        if stream:
            self.why_not[FETCHED] = "samples of a stream cannot be cached before their transforms"
        elif len(unfinished) < len(flat):
            self.why_not[FETCHED] = (
                "the dataset has no transform, or processes the transform's result further"
            )
        else:
            counts = [len(batch) for batch in halves]
            loader = cached_loaders.transforming(self._loader, unfinished, counts)
            self.loops[FETCHED] = self._loop(loader)
            self.sizes[FETCHED] = bytes_of([(half.calls, half.sample) for half in unfinished])

    def _keep_finished(self, finished: list[list[Any]]) -> None:
        flat = [sample for batch in finished for sample in batch]
        counts = [len(batch) for batch in finished]
        self.loops[TRANSFORMED] = self._loop(cached_loaders.collating(self._loader, flat, counts))
        self.sizes[TRANSFORMED] = bytes_of(flat)
        collate, collates = self._loader.collate_fn, cached_loaders.collates(self._loader)
        try:
            batches = [collate(batch if collates else batch[0]) for batch in finished]
        except Exception as error:  # noqa: BLE001 - a collate function may need its worker
            self.leave_out(f"its batches cannot be made here: {repr_of(error):.200}", _BATCHES)
        else:
            self._keep_batches(batches)

    def _capture_batches(self, deadline_ns: int) -> None:
        with started(self.loops[AS_IT_IS]) as batches:
            cached, why = self._fitting(
                batches, lambda batch: _COPIES * bytes_of(batch), deadline_ns
            )
        if cached:
            self._keep_batches(cached)
        else:
            self.leave_out(why, _BATCHES)

    def _keep_batches(self, batches: list[Any]) -> None:
        if self.target.step is None:
            why = "no step was given, and reading a cached batch takes no time"
            self.leave_out(why, _BATCHES)
            return
        self._keep(BATCHES, CachedBatches(batches), self.device.reading(BatchMemory.PAGEABLE))
        if not self.device.has_memory:
            self.leave_out(self.device.why_no_memory, (PINNED, ON_DEVICE))
            return
        self._keep_in(BatchMemory.PINNED, PINNED, batches)
        self._keep_in(BatchMemory.DEVICE, ON_DEVICE, batches)

    def _keep_in(self, memory: BatchMemory, rung: Rung, batches: list[Any]) -> None:
        """Cache as many batches as fit into this memory."""
        cached: list[Any] = []
        try:
            cached.extend(self.device.kept(batch, memory) for batch in batches)
        except RuntimeError as error:  # base of torch's OutOfMemoryError
            if not cached:
                self.why_not[rung] = f"{memory.value} takes no batch: {repr_of(error):.200}"
                return
        self._keep(rung, CachedBatches(cached), self.device.reading(memory))
        self._note_fewer(rung, len(cached), len(batches))

    def _keep(self, rung: Rung, batches: CachedBatches, device: Device) -> None:
        self.loops[rung] = TimedLoop(batches, device, self.target.step, self.target.batch_size)
        self.sizes[rung] = batches.bytes

    def _keep_fewer(self) -> None:
        """Drop half of the batches on the device, or all, as the step needs the memory."""
        loop = self.loops.pop(ON_DEVICE)
        cached = loop.batches
        if not isinstance(cached, CachedBatches) or len(cached) < 2:  # noqa: PLR2004 - halves
            self.why_not[ON_DEVICE] = "the device has no memory for the step and a batch"
            return
        self._keep(ON_DEVICE, cached.first(len(cached) // 2), loop.device)
        self._note_fewer(ON_DEVICE, len(cached) // 2, len(cached))

    def _note_fewer(self, rung: Rung, fit: int, wanted: int) -> None:
        if fit < wanted:
            self.notes.append(
                f"'{rung.name}' repeats {count(fit, 'batch')} instead of {wanted}: memory was too "
                "small for more"
            )

    def _loop(self, loader: Any) -> TimedLoop:
        return TimedLoop.of(replace(self.target, loader=loader))


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
            self._rungs.sizes.get(rung, 0) if rung in self._rungs.loops else None,
            turns.busy.get(number),
            turns.reported.get(number),
            None if measured else why or self._measurement.was_over(),
        )
