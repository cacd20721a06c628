"""Settings measured in turns with the loader as it is, until it is clear which is best."""

from __future__ import annotations

import copy
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
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
    from collections.abc import Callable, Iterator

    from stallscope.bench.loops import LoopBlock
    from stallscope.bench.measurement import Measurement
    from stallscope.model.settings import Setting
    from stallscope.model.simulator import LoaderCosts, LoopPrediction
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_CLEAR: Final = 0.12
"""Gains whose intervals reach no farther can be told from each other ..."""
_NARROW: Final = 0.06
"""... and these are measured well enough."""
_TOO_MANY: Final = "This DataLoader will create"
"""What torch's warning of more workers than cores begins with."""
_STARTS: Final = 2
"""Of each setting that should fit into the time."""
_HANDED: Final = 12
"""Batches that are handed over."""
_HANDED_WITHIN_S: Final = 5.0
"""Seconds that each may take."""
_REST_S: Final = 0.002
"""Least rest, in which the worker hands a batch over unasked."""


@dataclass
class Trial:
    """A setting that is looked at."""

    setting: Setting
    change: str
    prediction: LoopPrediction | None = None
    failed: str = ""
    make: Callable[[Any], Any] | None = None
    """Makes the loader of the one as it is, where that is more than a setting."""


@dataclass
class RecordedLoop:
    """A target, and what was recorded of it."""

    target: Target
    run: Run
    costs: LoaderCosts


def loop_of(target: Target, loader: Any) -> TimedLoop:
    """The loop over a loader, with the threads that the user's own loop has."""
    return replace(TimedLoop.of(replace(target, loader=loader)), in_one_thread=False)


class SettingRace:
    """One measurement of some trials; what is known of it stays when it is broken off.

    Args:
        recorded: the loop as it is.
        trials: all of them, that as it is first; the reason is noted at those that fail.
        measurement: whose budget it is.
    """

    def __init__(
        self, recorded: RecordedLoop, trials: list[Trial], measurement: Measurement
    ) -> None:
        self._target, self._costs, self._run = recorded.target, recorded.costs, recorded.run
        self._trials = trials
        self._measurement = measurement
        self._turns = InTurns(measurement, {n: one.change for n, one in enumerate(trials)})

    def run(self, finalists: list[int]) -> None:
        """Measure these trials, those that decide most first."""
        # Few that are measured often say more than many that are measured once
        many = int(self._measurement.left_s / (_STARTS * self._expected_start_s())) - 1
        finalists = finalists[: max(many, 1)]
        with isolated(self._target) as target, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TOO_MANY)  # it is we who ask for them
            for place in (AS_IT_IS, *finalists):
                self._add(place, target)
            self._turns.run(
                lambda: self._open(finalists, _CLEAR), lambda: self._open(finalists, _NARROW)
            )
        for place, why in self._turns.failed.items():
            self._trials[place].failed = why

    def _add(self, place: int, target: Target) -> None:
        trial = self._trials[place]
        try:
            made = with_setting(target.loader, trial.setting) if place else target.loader
            made = made if trial.make is None else trial.make(made)
        except Exception as error:  # noqa: BLE001 - only of a change of ours
            trial.failed = why_raised(error)
            return
        self._turns.add(place, loop_of(target, going_on(made)))

    def _expected_start_s(self) -> float:
        """About what one start of a loop, and enough blocks of it, take."""
        now, known = self._trials[0].setting, self._trials[0].prediction
        samples = float(self._costs.samples.mean())
        period_s = samples / known.samples_per_s.value if known else 0.0
        rounds = now.num_workers + 2 + FEWEST_SWEEPS * max(now.num_workers, 1)
        return (self._run.first_batch_s or 0.0) + rounds * period_s

    def _open(self, finalists: list[int], reach: float) -> list[int]:
        """The trials that may still be the answer, and whose intervals reach farther than this."""
        blocks = self.blocks()
        found = {place: compared(blocks, place) for place in finalists}
        best = max([1.0, *(one.low or 0.0 for one in found.values())])
        now = self._trials[0].setting.num_workers
        return [
            place
            for place, one in found.items()
            if one.high is None
            or (
                (one.half_width > reach or not one.is_settled)
                and one.high >= AS_FAST * best
                # Slower than the loader as it is, and no smaller: that cannot be the answer
                and (one.high >= AS_FAST or self._trials[place].setting.num_workers < now)
            )
        ]

    def blocks(self) -> list[LoopBlock]:
        """What was measured, with what the begin of an epoch adds to each of its samples."""
        return list(self._in_the_long_run())

    def table(self) -> pl.DataFrame:
        """The same with the columns of `bench.loops.BLOCKS`."""
        return pl.DataFrame(self.blocks(), BLOCKS, orient="row")

    def _in_the_long_run(self) -> Iterator[LoopBlock]:
        restarts: dict[int, float] = {}
        for one in self._turns.blocks:
            if one.variant not in restarts:
                own = [block for block in self._turns.blocks if block.variant == one.variant]
                each_s = sum(block.seconds for block in own) / sum(block.samples for block in own)
                restarts[one.variant] = self._restart_s(one.variant, each_s)
            yield one._replace(seconds=one.seconds + one.samples * restarts[one.variant])

    def _restart_s(self, place: int, each_s: float) -> float:
        """What the begin of an epoch adds to each of its samples, seconds."""
        costs, setting = self._costs, self._trials[place].setting
        if not costs.epoch_batches or not setting.num_workers:
            return 0.0
        starts_s = self._turns.starts_s.get(place) or [0.0]
        start_s, samples = sum(starts_s) / len(starts_s), float(costs.samples.mean())
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
    began_s = time.perf_counter()
    copied_s = _took_s(lambda: copy.deepcopy(batch))
    with suppress(Exception), started(TimedLoop(loader, device_of(target), workers=1)) as batches:
        next(batches)  # a batch may be whatever there is
        ready_s, last_s = time.perf_counter() - began_s, 0.0
        rounds: list[float] = []
        received: list[float] = []
        for number in range(_HANDED - 1):
            if number % 2:
                time.sleep(2 * last_s + _REST_S)
            last_s = _took_s(lambda: next(batches, None))
            (received if number % 2 else rounds).append(last_s)
        round_s, receive_s = median(rounds), median(received)
        return Handover(
            max(ready_s - round_s, 0.0), max(round_s - receive_s - copied_s, 0.0), receive_s
        )
    return None


def _took_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
