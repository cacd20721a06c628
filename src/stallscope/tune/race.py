"""Settings measured in turns with the loader as it is, until it is clear which is best."""

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

from stallscope.bench.loops import AS_IT_IS, BLOCKS, FEWEST_SWEEPS, InTurns, compared, why_raised
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.devices import device_of
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.model.costs import Handover
from stallscope.model.settings import with_setting
from stallscope.tune.result import AS_FAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.bench.loops import LoopBlock
    from stallscope.bench.measurement import Measurement
    from stallscope.model.settings import Setting
    from stallscope.model.simulator import LoaderCosts, LoopPrediction
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_CLEAR, _NARROW = 0.12, 0.06
"""Half-widths of the interval of a gain: below the first, gains can be told from each other; below
the second, they are measured well enough."""
_TOO_MANY: Final = "This DataLoader will create"
"""Beginning of torch's warning of more workers than cores."""
_STARTS: Final = 2
"""Starts of each setting that should fit into the time."""
_HANDED: Final = 12
"""Batches that are handed over."""
_HANDED_WITHIN_S: Final = 5.0
"""Seconds that each may take."""
_REST_S: Final = 0.002
"""Least rest, in which the worker hands a batch over unasked."""


@dataclass
class Trial:
    """A setting to look at."""

    setting: Setting
    change: str
    prediction: LoopPrediction | None = None
    failed: str = ""
    make: Callable[[Any], Any] | None = None
    """Makes the loader out of the one as it is, where that is more than a setting."""

    @property
    def per_s(self) -> float:
        """Predicted samples per second; 0 where unknown."""
        return self.prediction.samples_per_s.value if self.prediction else 0.0


@dataclass
class RecordedLoop:
    """A target, and its recording."""

    target: Target
    run: Run
    costs: LoaderCosts


def loop_of(target: Target, loader: Any) -> TimedLoop:
    """Return the loop over a loader, with the threads that the user's own loop has."""
    return replace(TimedLoop.of(replace(target, loader=loader)), in_one_thread=False)


class SettingRace:
    """Measurement of some trials; what is known stays when it is interrupted.

    Args:
        recorded: the loop as it is.
        trials: all of them, that as it is first; those that fail get the reason.
        measurement: its budget.
    """

    def __init__(
        self, recorded: RecordedLoop, trials: list[Trial], measurement: Measurement
    ) -> None:
        self._recorded, self._trials, self._measurement = recorded, trials, measurement
        self._turns = InTurns(measurement, {n: trial.change for n, trial in enumerate(trials)})

    def run(self, finalists: list[int]) -> None:
        """Measure these trials, given by their places, the most decisive first."""
        # A few settings that are measured often say more than many that are measured once
        many = int(self._measurement.left_s / (_STARTS * self._expected_start_s())) - 1
        finalists = finalists[: max(many, 1)]
        with isolated(self._recorded.target) as target, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TOO_MANY)  # it is we who ask for them
            for place in (AS_IT_IS, *finalists):
                self._add(place, target)
            self._turns.run(
                lambda: self._open(finalists, _CLEAR), lambda: self._open(finalists, _NARROW)
            )
        for place, why in self._turns.failed.items():
            self._trials[place].failed = why

    def _add(self, place: int, target: Target) -> None:
        trial, loader = self._trials[place], target.loader
        try:
            loader = with_setting(loader, trial.setting) if place else loader
            loader = loader if trial.make is None else trial.make(loader)
        except Exception as error:  # noqa: BLE001 - only of a change of ours
            trial.failed = why_raised(error)
            return
        self._turns.add(place, loop_of(target, going_on(loader)))

    def _expected_start_s(self) -> float:
        """Return about the seconds of one start of a loop, and enough blocks of it."""
        now, samples = self._trials[0], float(self._recorded.costs.samples.mean())
        period_s = samples / now.per_s if now.per_s else 0.0
        workers = now.setting.num_workers
        rounds = workers + 2 + FEWEST_SWEEPS * max(workers, 1)
        return (self._recorded.run.first_batch_s or 0.0) + rounds * period_s

    def _open(self, finalists: list[int], reach: float) -> list[int]:
        """Return the trials that may still be the answer, and whose intervals are wider."""
        blocks = self.blocks()
        gains = {place: compared(blocks, place) for place in finalists}
        best = max([1.0, *(gain.low or 0.0 for gain in gains.values())])
        now = self._trials[0].setting.num_workers
        return [
            place
            for place, gain in gains.items()
            if gain.high is None
            or (
                (gain.half_width > reach or not gain.is_settled)
                and gain.high >= AS_FAST * best
                # Slower than the loader as it is, and no smaller: that cannot be the answer
                and (gain.high >= AS_FAST or self._trials[place].setting.num_workers < now)
            )
        ]

    def blocks(self) -> list[LoopBlock]:
        """Return the blocks, with the restart of epochs shared out over their samples."""
        blocks = self._turns.blocks
        restarts = {place: self._restart_s(place) for place in {one.variant for one in blocks}}
        return [
            one._replace(seconds=one.seconds + one.samples * restarts[one.variant])
            for one in blocks
        ]

    def table(self) -> pl.DataFrame:
        """Return the same with the columns of `bench.loops.BLOCKS`."""
        return pl.DataFrame(self.blocks(), BLOCKS, orient="row")

    def _restart_s(self, place: int) -> float:
        """Return the seconds that the restart of an epoch adds to each of its samples."""
        costs, setting = self._recorded.costs, self._trials[place].setting
        if not costs.epoch_batches or not setting.num_workers:
            return 0.0
        own = [one for one in self._turns.blocks if one.variant == place]
        each_s = sum(one.seconds for one in own) / sum(one.samples for one in own)
        start_s = fmean(self._turns.starts_s.get(place) or [0.0])
        samples = float(costs.samples.mean())
        if setting.persistent_workers:  # they would be there: their first batches are all there is
            start_s = min(start_s, float(costs.batch_s.mean()) + costs.send_s)
        return max(start_s - samples * each_s, 0.0) / costs.epoch_batches / samples


class _OneBatch:
    """Dataset that holds one batch; each read copies the batch, as a worker makes a new one."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _HANDED

    def __getitem__(self, _: int) -> Any:
        return copy.deepcopy(self._batch)


def _unchanged(batch: Any) -> Any:
    return batch


def measure_handover(target: Target, batch: Any) -> Handover | None:
    """Start a worker that only hands a batch over, and time that; None where it gives too few.

    The worker is asked for the next batch when the loop receives one. Asked for at once, a batch
    takes the whole round; after a rest, it lies there.
    """
    loader = DataLoader(
        cast("Any", _OneBatch(batch)),
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=1,
        prefetch_factor=1,
        timeout=_HANDED_WITHIN_S,
        generator=torch.Generator(),  # the user's would give a seed to the worker
    )
    loop, began_s = TimedLoop(loader, device_of(target), workers=1), time.perf_counter()
    with suppress(Exception), started(loop) as batches:  # a batch may be whatever there is
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
