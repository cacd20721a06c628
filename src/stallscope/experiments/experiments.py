"""`ss.experiments`: what would make the step faster where data is not what it waits for.

A few batches are kept in memory, and the step alone is run on them. First it is watched: which
lines make the host wait for the device, how many kernels it is made of. Then each change is tried:
laps as the step is and laps with the change in turn, each from the same state of all that trains
and draws. The losses of these steps are laid beside each other. A change that fails says why.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from itertools import count, islice
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
import torch

from stallscope.bench.comparison import FASTER
from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError, NoBatchError
from stallscope.experiments.changes import AHEAD, CHANGES, COMPILE, Scene, as_it_is, nudged
from stallscope.experiments.result import (
    AS_IT_IS,
    COPY_TIMES,
    PAIRS,
    TRIALS,
    WAITS,
    Experiments,
    ExperimentsConditions,
    of_laps,
)
from stallscope.experiments.waits import StepFacts, StepWatch, copy_times, use_watched
from stallscope.hooks.device_time import Accelerator, SimulatedDevice
from stallscope.hooks.patches import Patches
from stallscope.isolation import as_before, isolated, modules_of, reached
from stallscope.loops.cached_loaders import CachedBatches
from stallscope.loops.devices import BatchMemory, device_of
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.machine import machine, require_single_rank
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, repr_of, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from stallscope.experiments.changes import Change
    from stallscope.loops.devices import Kernels
    from stallscope.targets.target import Step, Target


_BATCHES: Final = 4
"""Kept in memory, of different samples."""
_FETCH_SHARE: Final = 0.25
_LOSS_SHARE: Final = 0.35
"""Of the budget, for making the batches, and for comparing losses."""
_WARMUP: Final = 2
"""Steps of a lap that are not timed."""
_LOSS_STEPS: Final = 20
_FEWEST_STEPS: Final = 3
_LAP_S: Final = 0.4
"""So long the timed part of a lap lasts, where the budget allows it."""
_USUAL_ROUNDS: Final = 8
"""Pairs of laps of each change that usually tell what it gains."""
_NARROW: Final = 0.025
"""A gain whose interval reaches no farther is measured well enough."""
_MUCH_SLOWER: Final = 3.0
"""Times as long: then it is not tried any further."""
_LOOKED_AT: Final = 3
"""Steps that are watched."""


class _Lap(NamedTuple):
    step_s: float
    """The median."""
    losses: list[float]


class _Bench:
    """A step on batches in memory, and laps of it."""

    def __init__(
        self,
        target: Target,
        batches: list[Any],
        losses: _Losses,
        memory: BatchMemory = BatchMemory.DEVICE,
    ) -> None:
        device = device_of(target)
        self._losses = losses
        self.step: Step = target.step  # type: ignore[assignment]
        self.device = device.reading(memory) if device.has_memory else device
        kept = batches
        if device.has_memory:
            try:
                kept = [device.kept(batch, memory) for batch in batches]
            except RuntimeError:  # no room: then each is copied anew
                self.device = device
        self._batches = CachedBatches(kept)

    def use(self, steps: int, call: Callable[[Any], object]) -> None:
        """Some steps, untimed."""
        for batch in islice(self._batches, steps):
            call(self.device.move(batch))

    def lap(
        self,
        change: AbstractContextManager[Step],
        steps: int,
        most_s: float = float("inf"),
        *,
        ahead: bool = False,
    ) -> _Lap:
        """Steps from where everything stands now, which is put back.

        Args:
            change: gives the step in its block.
            steps: so many are timed.
            most_s: after this time from the first timed step on, seconds, it ends with the next.
            ahead: whether each batch is copied while the one before is used.
        """
        losses = self._losses
        losses.clear()
        with as_before([], self.step), change as step:
            clock = self.device.clock()
            batches = islice(self._batches, _WARMUP + steps)
            there = self.device.ahead(batches) if ahead else map(self.device.move, batches)
            for moved in islice(there, _WARMUP):
                losses.take(step(moved))
            clock.begin()
            began_s = time.perf_counter()
            for moved in there:
                clock.step_begins()
                losses.take(step(moved))
                clock.step_ends()
                if time.perf_counter() - began_s > most_s:
                    break
            took_s = [whole for whole, _ in clock.read()]
        return _Lap(median(took_s), losses.values())


class _Losses:
    """The loss of each step: what it returns, or what it calls `backward` on."""

    def __init__(self) -> None:
        self._last: Any = None
        self._found: list[Any] = []

    @contextmanager
    def seen(self) -> Iterator[None]:
        """In the block calls of `backward` are seen."""
        patches, original = Patches(), torch.autograd.backward

        def backward(tensors: Any, *args: Any, **named: Any) -> Any:
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            self._last = self._last if first is None else first
            return original(tensors, *args, **named)

        patches.put(torch.autograd, "backward", backward)
        try:
            yield
        finally:
            patches.undo()

    def clear(self) -> None:
        """Forget all by now."""
        self._found.clear()
        self._last = None

    def take(self, returned: object) -> None:
        """A step is over; nothing is waited for, as `.item()` would."""
        loss = returned if isinstance(returned, (float, torch.Tensor)) else self._last
        self._last = None
        if isinstance(loss, torch.Tensor):
            loss = loss.detach().clone() if loss.numel() == 1 else None
        if loss is not None:
            self._found.append(loss)

    def values(self) -> list[float]:
        """All of them."""
        return [float(loss) for loss in self._found]


class _Trials:
    """What is known of a step and of the changes; all of it stays when it is broken off."""

    def __init__(self, target: Target, measurement: Measurement, *, compiles: bool) -> None:
        self._target = target
        self._device = device_of(target)
        self._measurement = measurement
        self._compiles = compiles
        self._facts = StepFacts()
        self._copying: _Bench | None = None
        self._kernels: Kernels | None = None
        self._base: _Lap | None = None
        self._loss_steps = 0
        self._rounding: float | None = None
        self._differences: dict[str, float | None] = {}
        self._why_not: dict[str, str] = {}
        self._pairs: list[tuple[str, float, float]] = []
        self._copies: list[tuple[Any, ...]] = []

    def run(self) -> None:
        """Watch, compare losses, time."""
        self._measurement.now("batches to try the step on")
        batches = self._fetched()
        losses = _Losses()
        bench = _Bench(self._target, batches, losses)
        if self._device.has_memory:  # copies first: a profiler that has run may slow them down
            self._copying = _Bench(self._target, batches, losses, BatchMemory.PINNED)
            self._copies = copy_times(self._device, batches[0])
        else:
            self._measurement.note(f"copies were not timed: {self._device.why_no_memory}")
        self._measurement.now("the step as it is")
        scene = self._watch(bench)
        with losses.seen():
            self._timed(bench, scene, self._compared(bench, scene))

    def _fetched(self) -> list[Any]:
        until_ns = self._measurement.until_ns(self._measurement.budget_s * _FETCH_SHARE)
        kept: list[Any] = []
        with started(TimedLoop.of(self._target)) as batches:
            for batch in batches:
                kept.append(batch)
                if len(kept) >= _BATCHES or time.perf_counter_ns() > until_ns:
                    break
        if not kept:
            raise NoBatchError("the loader gave no batch to try the step on")
        return kept

    def _watch(self, bench: _Bench) -> Scene:
        """What the step does, once it has run: what it does first of all is none of it."""
        step = bench.step
        modules, optimizers = modules_of(step), reached(step, torch.optim.Optimizer)
        behind = self._device.behind
        simulated = behind if isinstance(behind, SimulatedDevice) else None
        kind = behind.where.type if isinstance(behind, Accelerator) else "cpu"
        with as_before([], step):
            bench.use(_WARMUP + 1, step)
            if self._copying is not None:  # it is seen here whether the step changes its batch
                self._copying.use(_WARMUP, step)
            watch = StepWatch(kind, simulated)
            try:
                with watch.watching() as self._facts:
                    bench.use(_LOOKED_AT, lambda batch: use_watched(step, batch))
                    self._facts.steps = _LOOKED_AT
            except Exception as error:  # noqa: BLE001 - it runs without being watched
                self._facts.failure = f"while it was watched the step raised {repr_of(error):.200}"
                self._measurement.note(f"what it waits for is not known: {self._facts.failure}")
            if self._device.counts_kernels:
                self._kernels = self._device.kernels(lambda: bench.use(_LOOKED_AT, step))
        why_no_copies = "" if self._copying is not None else self._device.why_no_memory
        return Scene(step, modules, optimizers, kind, self._facts, why_no_copies)

    # ---- the experiments --------------------------------------------------------------------

    def _compared(self, bench: _Bench, scene: Scene) -> list[Change]:
        """The changes that work; of each the largest difference of the loss."""
        first_ns = time.perf_counter_ns()
        bench.lap(as_it_is(scene), _FEWEST_STEPS)
        lap_s = (time.perf_counter_ns() - first_ns) / 1e9 / (_FEWEST_STEPS + _WARMUP)
        for change in CHANGES:
            why = change.why_not(scene)
            if change is COMPILE and not self._compiles and not why:
                why = "it may take minutes, whatever the budget is: ask for it with compiles=True"
            if why:
                self._why_not[change.name] = why
        wanted = [change for change in CHANGES if change.name not in self._why_not]
        room_s = self._measurement.left_s * _LOSS_SHARE / (len(wanted) + 3)
        steps = max(min(int(room_s / lap_s), _LOSS_STEPS) - _WARMUP, _FEWEST_STEPS)
        self._loss_steps = steps + _WARMUP
        self._base = bench.lap(as_it_is(scene), steps)
        began_s = time.perf_counter()
        again = bench.lap(as_it_is(scene), steps)
        most_s = max(_MUCH_SLOWER * (time.perf_counter() - began_s), _LAP_S)
        self._differences[AS_IT_IS] = _largest(self._base.losses, again.losses)
        if scene.modules and again.losses:
            with suppress(Exception):  # weights that nobody may change: then it is not known
                self._rounding = _largest(self._base.losses, bench.lap(nudged(scene), steps).losses)
        works = []
        for change in wanted:
            self._measurement.now(change.name)
            if self._measurement.left_s < lap_s * self._loss_steps:
                self._why_not[change.name] = self._measurement.was_over()
                continue
            beside = None
            try:
                lap = self._changed(bench, scene, change, steps, most_s)
                if self._is_much_slower(lap, again):  # or is somebody else in its way by now?
                    beside = self._unchanged(bench, scene, change, steps, most_s)
                    lap = self._changed(bench, scene, change, steps, most_s)
            except Exception as error:  # noqa: BLE001 - as it is, the step works
                self._why_not[change.name] = f"with it the step raised {repr_of(error):.200}"
                continue
            self._differences[change.name] = _largest(self._base.losses, lap.losses)
            if beside is not None and lap.step_s > _MUCH_SLOWER * beside.step_s:
                slower = times(lap.step_s / beside.step_s)
                self._why_not[change.name] = f"with it a step takes {slower} as long"
                continue
            works.append(change)
        return works

    def _is_much_slower(self, lap: _Lap, again: _Lap) -> bool:
        known = [one.step_s for one in (self._base, again) if one is not None]
        return lap.step_s > _MUCH_SLOWER * min(known)

    def _timed(self, bench: _Bench, scene: Scene, changes: list[Change]) -> None:
        """Pairs of laps, whose order alternates, until it is clear what each change gains."""
        if self._base is None:
            return
        longest_s = 0.0
        room_s = self._measurement.left_s / max(2 * len(changes) * _USUAL_ROUNDS, 1)
        steps = int(min(_LAP_S, room_s / 2) / max(self._base.step_s, 1e-6))
        steps = max(min(steps, 200), _FEWEST_STEPS)
        for number in count():
            changes = [change for change in changes if not self._is_known(change)]
            if not changes:
                return
            for change in changes:
                if self._measurement.left_s < 1.2 * longest_s:
                    return
                began_s = time.perf_counter()
                self._measurement.now(change.name)
                took_s = {}
                for changed in (True, False) if number % 2 else (False, True):
                    lap = self._changed if changed else self._unchanged
                    took_s[changed] = lap(bench, scene, change, steps).step_s
                self._pairs.append((change.name, took_s[False], took_s[True]))
                longest_s = max(longest_s, time.perf_counter() - began_s)

    def _is_known(self, change: Change) -> bool:
        """Whether more laps of a change would hardly move what is said of it."""
        found = of_laps([pair[1:] for pair in self._pairs if pair[0] == change.name])
        return found.is_settled and (found.says != FASTER or found.half_width <= _NARROW)

    def _changed(
        self, bench: _Bench, scene: Scene, change: Change, steps: int, most_s: float = float("inf")
    ) -> _Lap:
        if change is AHEAD and self._copying is not None:
            return self._copying.lap(as_it_is(scene), steps, ahead=True)
        return bench.lap(change.made(scene), steps, most_s)

    def _unchanged(
        self, bench: _Bench, scene: Scene, change: Change, steps: int, most_s: float = float("inf")
    ) -> _Lap:
        """Beside the change: copies ahead, beside copies that are not."""
        if change is AHEAD and self._copying is not None:
            bench = self._copying
        return bench.lap(as_it_is(scene), steps, most_s)

    # ---- what is known by now -----------------------------------------------------------------

    def result(self) -> Experiments:
        """As a value."""
        names = [(AS_IT_IS, ""), *((change.name, change.code) for change in CHANGES)]
        trials = [
            (name, code, self._differences.get(name), self._why_not.get(name))
            for name, code in names
        ]
        return Experiments(
            trials=pl.DataFrame(trials, TRIALS, orient="row"),
            pairs=pl.DataFrame(self._pairs, PAIRS, orient="row"),
            waits=pl.DataFrame(self._waits(), WAITS, orient="row"),
            copy_times=pl.DataFrame(self._copies, COPY_TIMES, orient="row"),
            circumstances=self._conditions(),
            notes=(*self._target.told(), *self._measurement.notes),
        )

    def _waits(self) -> list[tuple[Any, ...]]:
        steps = max(self._facts.steps, 1)
        rows = [
            (*line, len(took_s) / steps, sum(took_s) / steps)
            for line, took_s in self._facts.waits.items()
        ]
        return sorted(rows, key=lambda row: -row[-1])

    def _conditions(self) -> ExperimentsConditions:
        target, base, kernels = self._target, self._base, self._kernels
        lengths_s = kernels.lengths_s if kernels else []
        as_is_s = [before_s for name, before_s, _ in self._pairs if name != AHEAD.name]
        as_is_s += [base.step_s] if base and not as_is_s else []
        return ExperimentsConditions(
            name=target.name,
            num_workers=target.num_workers,
            machine=machine(),
            device=self._device.name,
            simulated_step_s=target.simulated_step_s,
            has_step=True,
            step_s=median(as_is_s) if as_is_s else None,
            loss=fmean(map(abs, base.losses)) if base and base.losses else None,
            loss_steps=self._loss_steps,
            rounding=self._rounding,
            kernels_per_step=len(lengths_s) / _LOOKED_AT if kernels else None,
            kernel_s=median(lengths_s) if lengths_s else None,
            gap_s=median(kernels.gaps_s) if kernels and kernels.gaps_s else None,
            device_busy_share=kernels and kernels.busy_share,
            took_s=self._measurement.used_s,
        )


def _largest(ones: list[float], others: list[float]) -> float | None:
    """The largest difference; None where losses are missing or are no numbers."""
    apart = [abs(one - other) for one, other in zip(ones, others, strict=False)]
    largest = max(apart, default=None)
    return largest if largest is not None and largest < float("inf") else None


def experiments(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
    compiles: bool = False,
) -> Experiments:
    """Try on a training step what makes steps faster, one line each, and put it back.

    Runs the step on a few batches that are kept in memory. Tried are autocast in bfloat16,
    channels_last, cuDNN's benchmark, gradients set to None, fused optimizers and copies ahead, as
    far as the step has what they change; and `torch.compile` on request. Also says which lines make
    the host wait for its device, and on a device with a memory of its own what copies take.
    Afterwards all random generators and what `step` trains are as they were. An exception of the
    dataset's or of the step's passes unchanged; its attribute `experiments` holds what was measured
    before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. What it returns, or calls `backward` on, is
            its loss.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the laps that are under way then. It
            stops earlier where nothing is open any more.
        compiles: whether to try `torch.compile`, too, which keeps to no budget.

    Raises:
        ArgumentError: there is no step, or `budget_s` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it keeps a generator in the middle of an epoch; more than one rank.
        NoBatchError: a batch did not come within the budget and a grace.
    """
    measurement = Measurement("experiments", budget_s)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    if target.step is None:
        raise ArgumentError("no step was given: give the function that uses one batch")
    with measurement.of(target.name), isolated(target) as target:
        trials = _Trials(target, measurement, compiles=compiles)
        measurement.result = trials.result
        trials.run()
        return trials.result()
