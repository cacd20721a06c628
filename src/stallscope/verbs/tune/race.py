"""Race of settings: each takes turns with the loader as it is, until the best is clear."""

from __future__ import annotations

import copy
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl
import torch
from torch.utils.data import DataLoader

from stallscope.bench.comparison import LITTLE
from stallscope.bench.loops import AS_IT_IS, BLOCKS, FEWEST_SWEEPS, InTurns, compared, why_raised
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import TimedLoop, started
from stallscope.model.costs import Handover
from stallscope.model.settings import with_setting
from stallscope.verbs.tune.result import AS_FAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.bench.loops import LoopBlock
    from stallscope.bench.measurement import Measurement
    from stallscope.model.settings import Setting
    from stallscope.model.simulator import LoaderCosts, LoopPrediction
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_CLEAR, _NARROW = 0.12, 0.06
"""Half-widths of the interval of a gain: the first separates gains from each other, the second is
narrow enough to stop."""
_SURPRISE: Final = 1.1
"""Ratio of a predicted gain to its measured interval from which on predictions count as wrong. Set
by hand."""
_AGAIN: Final = 1.5
"""Width at which a gain that was clear is unclear again, as a multiple: a single block that differs
is no reason to begin anew."""
_TOO_MANY: Final = "This DataLoader will create"
"""Start of torch's warning about more workers than cores."""
_STARTS: Final = 2
"""Starts of each setting that should fit into the budget."""
_HANDED: Final = 12
"""Batches to hand over."""
_HANDED_WITHIN_S: Final = 5.0
"""Time limit of each, seconds."""
_REST_S: Final = 0.002
"""Least rest, in which the worker sends a batch before it is asked for."""


@dataclass
class Trial:
    """Setting, its prediction, and the reason where it cannot be measured."""

    setting: Setting
    change: str
    prediction: LoopPrediction | None = None
    failed: str = ""
    make: Callable[[Any], Any] | None = None
    """Function from the loader as it is to a new loader, for changes beyond a setting."""

    @property
    def per_s(self) -> float:
        """Predicted samples per second; 0 where unknown."""
        return self.prediction.samples_per_s.value if self.prediction else 0.0


@dataclass
class RecordedLoop:
    """Target with its recording."""

    target: Target
    run: Run
    costs: LoaderCosts


def loop_of(target: Target, loader: Any) -> TimedLoop:
    """Return the loop over a loader, with as many threads as the user's own loop."""
    return replace(TimedLoop.of(replace(target, loader=loader)), in_one_thread=False)


class SettingRace:
    """Measurement of trials; an interrupt leaves the blocks so far.

    Args:
        recorded: the loop as it is.
        trials: all trials, the loader as it is first; a trial that fails gets the reason.
        measurement: current call, with its budget.
    """

    def __init__(
        self, recorded: RecordedLoop, trials: list[Trial], measurement: Measurement
    ) -> None:
        self._recorded, self._trials, self._measurement = recorded, trials, measurement
        self._turns = InTurns(measurement, {n: trial.change for n, trial in enumerate(trials)})

    def run(self, finalists: list[int], decisive: int) -> None:
        """Measure trials until the best is clear.

        Args:
            finalists: numbers of the trials, the most decisive first.
            decisive: how many of them decide; the rest is measured only where a gain of these
                differs from the predicted one.
        """
        # A few settings with several starts give more than many settings with a single start
        fitting = int(self._measurement.left_s / (_STARTS * self._expected_start_s())) - 1
        finalists = finalists[: max(fitting, 1)]

        was_clear = False

        def asked(reach: float) -> list[int]:
            first = finalists[:decisive]
            open_ = self._open(first, reach)
            return open_ if open_ or self._are_as_predicted(first) else self._open(finalists, reach)

        def unclear() -> list[int]:
            nonlocal was_clear
            open_ = asked(_CLEAR * _AGAIN if was_clear else _CLEAR)
            was_clear = was_clear or not open_
            return open_

        with isolated(self._recorded.target) as target, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TOO_MANY)  # our settings, not the user's
            for place in (AS_IT_IS, *finalists):
                self._add(place, target)
            self._turns.run(unclear, lambda: asked(_NARROW))
        for place, why in self._turns.failed.items():
            self._trials[place].failed = why

    def _are_as_predicted(self, places: list[int]) -> bool:
        """Return whether the measured gains agree with the predicted ones."""
        blocks, now = self.blocks(), self._trials[AS_IT_IS]
        for place in places:
            predicted, gain = self._trials[place].per_s, compared(blocks, place)
            if predicted and now.per_s and gain.low is not None and gain.high is not None:
                ratio = predicted / now.per_s
                if not gain.low / _SURPRISE <= ratio <= gain.high * _SURPRISE:
                    return False
        return True

    def _add(self, place: int, target: Target) -> None:
        trial, loader = self._trials[place], target.loader
        try:
            loader = with_setting(loader, trial.setting) if place else loader
            loader = loader if trial.make is None else trial.make(loader)
        except Exception as error:  # noqa: BLE001 - raised by our change
            trial.failed = why_raised(error)
            return
        self._turns.add(place, loop_of(target, going_on(loader)))

    def _expected_start_s(self) -> float:
        """Return the expected seconds of one start of a loop with enough blocks."""
        now, samples = self._trials[0], float(self._recorded.costs.samples.mean())
        period_s = samples / now.per_s if now.per_s else 0.0
        workers = now.setting.num_workers
        rounds = workers + 2 + FEWEST_SWEEPS * max(workers, 1)
        return (self._recorded.run.first_batch_s or 0.0) + rounds * period_s

    def _open(self, finalists: list[int], reach: float) -> list[int]:
        """Return the trials that may still be the best, and whose intervals are too wide."""
        blocks = self.blocks()
        gains = {place: compared(blocks, place) for place in finalists}
        best = max([1.0, *(gain.low or 0.0 for gain in gains.values())])
        return [
            place
            for place, gain in gains.items()
            if gain.high is None
            or (
                gain.high >= AS_FAST * best
                and (gain.half_width > reach or (not gain.is_settled and gain.high > LITTLE))
            )
        ]

    def blocks(self) -> list[LoopBlock]:
        """Return the blocks, with the restart of each epoch spread over its samples."""
        blocks = self._turns.blocks
        restarts = {place: self._restart_s(place) for place in {block.variant for block in blocks}}
        return [
            block._replace(seconds=block.seconds + block.samples * restarts[block.variant])
            for block in blocks
        ]

    def table(self) -> pl.DataFrame:
        """Return the blocks, columns of `bench.loops.BLOCKS`."""
        return pl.DataFrame(self.blocks(), BLOCKS, orient="row")

    def _restart_s(self, place: int) -> float:
        """Return the seconds that the restart of an epoch adds to each of its samples."""
        costs, setting = self._recorded.costs, self._trials[place].setting
        if not costs.epoch_batches or not setting.num_workers:
            return 0.0
        own = [block for block in self._turns.blocks if block.variant == place]
        each_s = sum(block.seconds for block in own) / sum(block.samples for block in own)
        start_s = fmean(self._turns.starts_s.get(place) or [0.0])
        samples = float(costs.samples.mean())
        if setting.persistent_workers:  # running already: an epoch waits only for the first batches
            start_s = min(start_s, float(costs.batch_s.mean()) + costs.send_s)
        return max(start_s - samples * each_s, 0.0) / costs.epoch_batches / samples


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
        timeout=_HANDED_WITHIN_S,
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
