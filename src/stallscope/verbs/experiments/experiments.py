"""`ss.experiments`: changes that speed the step up, where data is not the bottleneck.

The step alone runs on a few batches in memory. First, the lines are found that make the host wait
for the device, and kernels are counted. Then laps of the step as it is and with each change take
turns, each from the same state of models, optimizers and generators. Their losses are compared. A
change that fails gets a reason.
"""

from __future__ import annotations

import math
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
from stallscope.hooks.device_time import Accelerator, SimulatedDevice
from stallscope.hooks.patches import Patches
from stallscope.isolation import as_before, isolated, modules_of, reached
from stallscope.loops.cached_loaders import CachedBatches
from stallscope.loops.devices import BatchMemory, device_of
from stallscope.loops.training_loop import TimedLoop, started
from stallscope.machine import require_single_rank
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, repr_of, times
from stallscope.verbs.experiments.changes import CHANGES, StepContext, as_it_is
from stallscope.verbs.experiments.result import (
    AS_IT_IS,
    COPY_TIMES,
    PAIRS,
    TRIALS,
    WAITS,
    Experiments,
    ExperimentsConditions,
    of_laps,
)
from stallscope.verbs.experiments.waits import StepFacts, StepWatch, copy_times, use_watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from stallscope.loops.devices import Kernels
    from stallscope.targets.target import Step, Target
    from stallscope.verbs.experiments.changes import Change


_NARROW: Final = 0.025
"""Half-width of a gain's interval that is narrow enough."""
_BATCHES: Final = 4
"""Batches kept in memory, of different samples."""
_FETCH_SHARE, _LOSS_SHARE = 0.25, 0.35
"""Shares of the budget for fetching batches, and for comparing losses."""
_WARMUP: Final = 2
"""Steps of a lap that are not timed: fewer than `WARMUP`, as the batches are in memory and the step
has run before."""
_LOSS_STEPS: Final = 20
_FEWEST_STEPS, _MOST_STEPS = 3, 200
_LAP_S: Final = 0.4
"""Seconds of the timed part of a lap, where the budget allows it."""
_USUAL_ROUNDS: Final = 8
"""Pairs of laps that usually settle the speedup of a change."""
_MUCH_SLOWER: Final = 3.0
"""Slowdown above which a change is not timed further."""
_LOOKED_AT: Final = 3
"""Steps that are watched."""


class _Lap(NamedTuple):
    step_s: float
    losses: list[float]


class _StepLoop:
    """Loop of a step over batches in memory."""

    def __init__(self, target: Target, batches: list[Any]) -> None:
        device = device_of(target)
        self.losses = _Losses()
        self._step: Step = target.step  # type: ignore[assignment]
        self._device, cached = device, batches
        if device.has_memory:
            with suppress(RuntimeError):  # no room: the loop copies each batch
                cached = [device.kept(batch, BatchMemory.DEVICE) for batch in batches]
                self._device = device.reading(BatchMemory.DEVICE)
        self._batches = CachedBatches(cached)

    def use(self, steps: int, call: Callable[[Any], object]) -> None:
        """Call a function on some batches, untimed."""
        for batch in islice(self._batches, steps):
            call(self._device.move(batch))

    def lap(
        self, change: AbstractContextManager[Step], steps: int, most_s: float = math.inf
    ) -> _Lap:
        """Time steps of a change from the current state, at most so long, and restore the state."""
        losses, device = self.losses, self._device
        losses.take_all()  # of a lap that raised
        with as_before([], self._step), change as step:
            clock = device.clock()
            batches = map(device.move, islice(self._batches, _WARMUP + steps))
            for moved in islice(batches, _WARMUP):
                losses.take(step(moved))
            clock.begin()
            began_s = time.perf_counter()
            for moved in batches:
                clock.step_begins()
                losses.take(step(moved))
                clock.step_ends()
                if time.perf_counter() - began_s > most_s:
                    break
            took_s = [whole for whole, _ in clock.read()]
        return _Lap(median(took_s), losses.take_all())


class _Losses:
    """Losses of steps: the value that a step returns, or calls `backward` on."""

    def __init__(self) -> None:
        self._last: Any = None
        self._stored: list[Any] = []

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Observe calls of `backward` in the block."""
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

    def take(self, returned: object) -> None:
        """Store the loss of the last step, without waiting for the device."""
        loss = returned if isinstance(returned, (float, torch.Tensor)) else self._last
        self._last = None
        if isinstance(loss, torch.Tensor):
            loss = loss.detach().clone() if loss.numel() == 1 else None
        if loss is not None:
            self._stored.append(loss)

    def take_all(self) -> list[float]:
        """Return all losses, and forget them."""
        stored, self._stored, self._last = self._stored, [], None
        return [float(loss) for loss in stored]


class _StepTrials:
    """Trials of changes to a step; an interrupt leaves the result so far."""

    def __init__(self, target: Target, measurement: Measurement) -> None:
        self._target, self._measurement = target, measurement
        self._device = device_of(target)
        self._facts = StepFacts()
        self._kernels: Kernels | None = None
        self._base: _Lap | None = None
        self._loss_steps = 0
        self._differences: dict[str, float | None] = {}
        self._why_not: dict[str, str] = {}
        self._pairs: list[tuple[str, float, float]] = []
        self._copies: list[tuple[Any, ...]] = []

    def run(self) -> None:
        """Watch the step, compare losses, and time the changes."""
        self._measurement.now("batches to try the step on")
        batches = self._fetched()
        self._loop = _StepLoop(self._target, batches)
        if self._device.has_memory:  # copies first, as the profiler may slow later ones
            self._copies = copy_times(self._device, batches[0])
        else:
            self._measurement.note(f"copies were not timed: {self._device.why_no_memory}")
        self._measurement.now("the step as it is")
        self._context = self._watch()
        with self._loop.losses.seen():
            self._time(self._compare_losses())

    def _fetched(self) -> list[Any]:
        until_ns = self._measurement.until_ns(self._measurement.budget_s * _FETCH_SHARE)
        fetched: list[Any] = []
        with started(TimedLoop.of(self._target)) as batches:
            for batch in islice(batches, _BATCHES):
                fetched.append(batch)
                if time.perf_counter_ns() > until_ns:
                    break
        if not fetched:
            raise NoBatchError("the loader gave no batch to try the step on")
        return fetched

    def _watch(self) -> StepContext:
        """Watch the step after a warm-up, as the first run may do more."""
        step: Step = self._target.step  # type: ignore[assignment]
        behind, device = self._device.behind, self._device
        simulated = behind if isinstance(behind, SimulatedDevice) else None
        kind = behind.where.type if isinstance(behind, Accelerator) else "cpu"
        with as_before([], step):
            self._loop.use(_WARMUP + 1, step)
            watch = StepWatch(kind, simulated)
            try:
                with watch.watching() as self._facts:
                    self._loop.use(_LOOKED_AT, lambda batch: use_watched(step, batch, self._facts))
            except Exception as error:  # noqa: BLE001 - the step works unwatched
                why = f"the step raised {repr_of(error):.200} while watched"
                self._measurement.note(f"the waiting lines are unknown: {why}")
            if device.counts_kernels:
                self._kernels = device.kernels(lambda: self._loop.use(_LOOKED_AT, step))
        optimizers = reached(step, torch.optim.Optimizer)
        return StepContext(step, modules_of(step), optimizers, kind, self._facts)

    def _compare_losses(self) -> list[Change]:
        """Return the changes that work; store the largest difference in loss of each."""
        context, began_s = self._context, time.perf_counter()
        self._loop.lap(as_it_is(context), _FEWEST_STEPS)
        step_s = (time.perf_counter() - began_s) / (_FEWEST_STEPS + _WARMUP)
        reasons = {change: change.why_not(context) for change in CHANGES}
        self._why_not = {change.name: why for change, why in reasons.items() if why}
        wanted = [change for change, why in reasons.items() if not why]
        room_s = self._measurement.left_s * _LOSS_SHARE / (len(wanted) + 2)
        steps = max(min(int(room_s / step_s), _LOSS_STEPS) - _WARMUP, _FEWEST_STEPS)
        self._loss_steps = steps + _WARMUP
        self._base = base = self._loop.lap(as_it_is(context), steps)
        began_s = time.perf_counter()
        again = self._loop.lap(as_it_is(context), steps)
        most_s = max(_MUCH_SLOWER * (time.perf_counter() - began_s), _LAP_S)
        self._differences[AS_IT_IS] = _largest_difference(base, again)
        works, usual_s = [], min(base.step_s, again.step_s)
        for change in wanted:
            self._measurement.now(change.name)
            if self._measurement.left_s < step_s * self._loss_steps:
                self._why_not[change.name] = self._measurement.was_over()
                continue
            slower = 0.0
            try:
                lap = self._loop.lap(change.make(context), steps, most_s)
                if lap.step_s > _MUCH_SLOWER * usual_s:  # or other processes interfere now
                    beside = self._loop.lap(as_it_is(context), steps, most_s)
                    lap = self._loop.lap(change.make(context), steps, most_s)
                    slower = lap.step_s / beside.step_s
            except Exception as error:  # noqa: BLE001 - raised by the change
                self._why_not[change.name] = f"the step raised {repr_of(error):.200}"
                continue
            self._differences[change.name] = _largest_difference(base, lap)
            if slower > _MUCH_SLOWER:
                self._why_not[change.name] = f"a step takes {times(slower)} as long"
            else:
                works.append(change)
        return works

    def _time(self, changes: list[Change]) -> None:
        """Time pairs of laps, in alternating order, until each gain is settled."""
        assert self._base is not None  # noqa: S101 - the losses were compared
        longest_s = 0.0
        room_s = self._measurement.left_s / max(2 * len(changes) * _USUAL_ROUNDS, 1)
        steps = int(min(_LAP_S, room_s / 2) / max(self._base.step_s, 1e-6))
        steps = max(min(steps, _MOST_STEPS), _FEWEST_STEPS)
        for number in count():
            changes = [change for change in changes if not self._is_settled(change)]
            for change in changes:
                if self._measurement.left_s < 1.2 * longest_s:
                    return
                began_s = time.perf_counter()
                self._measurement.now(change.name)
                turns = (change.make, as_it_is) if number % 2 else (as_it_is, change.make)
                took_s = {make: self._loop.lap(make(self._context), steps).step_s for make in turns}
                self._pairs.append((change.name, took_s[as_it_is], took_s[change.make]))
                longest_s = max(longest_s, time.perf_counter() - began_s)
            if not changes:
                return

    def _is_settled(self, change: Change) -> bool:
        factor = of_laps([pair[1:] for pair in self._pairs if pair[0] == change.name])
        return factor.is_settled and (factor.says != FASTER or factor.half_width <= _NARROW)

    # ---- result -------------------------------------------------------------------------------

    def result(self) -> Experiments:
        """Return the result so far."""
        names = [(AS_IT_IS, ""), *((change.name, change.code) for change in CHANGES)]
        trials = [
            (name, code, self._differences.get(name), self._why_not.get(name))
            for name, code in names
        ]
        steps = max(self._facts.steps, 1)
        waits = [
            (*line, len(took_s) / steps, sum(took_s) / steps)
            for line, took_s in self._facts.waits.items()
        ]
        waits.sort(key=lambda row: -row[-1])
        return Experiments(
            trials=pl.DataFrame(trials, TRIALS, orient="row"),
            pairs=pl.DataFrame(self._pairs, PAIRS, orient="row"),
            waits=pl.DataFrame(waits, WAITS, orient="row"),
            copy_times=pl.DataFrame(self._copies, COPY_TIMES, orient="row"),
            circumstances=self._conditions(),
            notes=(*self._target.notes, *self._measurement.notes),
        )

    def _conditions(self) -> ExperimentsConditions:
        base, kernels = self._base, self._kernels
        lengths_s = kernels.lengths_s if kernels else []
        as_is_s = [before_s for _, before_s, _ in self._pairs]
        as_is_s += [base.step_s] if base and not as_is_s else []
        return ExperimentsConditions.of(
            self._target,
            device=self._device.name,
            step_s=median(as_is_s) if as_is_s else None,
            loss=fmean(map(abs, base.losses)) if base and base.losses else None,
            loss_steps=self._loss_steps,
            kernels_per_step=len(lengths_s) / _LOOKED_AT if kernels else None,
            kernel_s=median(lengths_s) if lengths_s else None,
            gap_s=median(kernels.gaps_s) if kernels and kernels.gaps_s else None,
            device_busy_share=kernels and kernels.busy_share,
            took_s=self._measurement.used_s,
        )


def _largest_difference(first: _Lap, second: _Lap) -> float | None:
    """Return the largest difference of losses; None where losses are missing or not finite."""
    pairs = zip(first.losses, second.losses, strict=False)
    largest = max((abs(before - after) for before, after in pairs), default=math.inf)
    return largest if largest < math.inf else None


def experiments(
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
) -> Experiments:
    """Try one-line changes that may speed a training step up, and undo them.

    The step runs on a few batches in memory. The changes are autocast in bfloat16, channels_last,
    cuDNN's benchmark and fused optimizers. The result also lists the lines that make the host wait
    for its device and, on a device with its own memory, the time of copies. Afterwards random
    generators and the state that `step` trains are restored. Exceptions of the dataset and of the
    step pass unchanged; their attribute `experiments` holds the partial result.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. The value that it returns, or calls
            `backward` on, is its loss.
        device: batches are moved there before `step`; the target's by default.
        budget_s: time limit, seconds; the current laps are finished. The call ends earlier where
            all gains are settled.

    Raises:
        ArgumentError: there is no step, or `budget_s` is no valid number.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target keeps a generator in the middle of an epoch, or this process is
            one of several ranks.
        NoBatchError: a batch did not come in time.
    """
    measurement = Measurement("experiments", budget_s)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    if target.step is None:
        raise ArgumentError("no step was given: give the function that uses one batch")
    with measurement.of(target.name), isolated(target) as target:
        trials = _StepTrials(target, measurement)
        measurement.result = trials.result
        trials.run()
        return trials.result()
