"""`ss.tune`: search for the fastest setting of a loader, with the fewest workers.

The loop as it is is recorded once, and every setting of a grid is predicted from this recording.
The promising settings then take turns with the current loader, until the best is clear.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import count
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.bench.comparison import AS_FAST, AS_IT_IS, BLOCKS, LITTLE, compared
from stallscope.bench.loops import FEWEST_SWEEPS, InTurns, why_raised
from stallscope.bench.measurement import Measurement, memory_limit
from stallscope.hooks.device_time import Accelerator
from stallscope.hooks.loader_access import start_method
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import check_plain, going_on, is_plain, is_stream
from stallscope.loops.cached_values import bytes_of, leaves
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import (
    Enough,
    Limits,
    Replay,
    TimedLoop,
    check_step_s,
    measure_handover,
    started,
)
from stallscope.machine import (
    SHARED_MEMORY,
    cores_available,
    require_single_rank,
    shared_memory_free,
)
from stallscope.model.batch_times import MachineUse, use
from stallscope.model.costs import MANY_THREADS, costs_of, recorded_per_s
from stallscope.model.settings import given_settings, grid, setting_of, with_setting
from stallscope.model.simulator import predict
from stallscope.model.thresholds import OTHERS, SATURATED
from stallscope.run.record import record_target
from stallscope.targets import target as targets
from stallscope.targets.loaders import epoch_length
from stallscope.units import BUDGET_S, WARMUP, size
from stallscope.verbs.tune.result import TRIALS, Trial, TuneConditions, Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stallscope.bench.comparison import LoopBlock
    from stallscope.loops.training_loop import Handover
    from stallscope.model.batch_times import LoaderCosts
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_STEADY_S, _BATCHES, _ROUNDS = 2.0, 12, 4
"""Seconds, batches and rounds of the workers to record, where the budget allows it."""
_RECORD_SHARE, _LATE_SHARE = 0.25, 0.2
"""Largest share of the budget for the recording, and the share after which few batches suffice."""
_MEMORY_SHARE: Final = 0.5
"""Share of the free memory for workers and batches: more than `MEMORY_SHARE`, as the training would
need the same."""
_HANDED_AT_ONCE: Final = 4
"""Copies of a batch that exist at a time while it is handed over."""
_FULL_CORES: Final = "workers and loop keep all cores busy: more workers would share them"
_MOST: Final = 5
"""Most settings to measure beside the current loader."""
_NEAR, _WORTH_A_LOOK = 0.9, 0.6
"""Least predicted rate to measure, as a share of the best prediction: with workers, without."""
_MOST_TIMES: Final = 2
"""Most workers to measure, as a multiple of those that suffice for `_NEAR`: predictions err."""
_CLEAR, _NARROW = 0.12, 0.06
"""Half-widths of the interval of a gain: the first separates gains from each other, the second is
narrow enough to stop."""
_SURPRISE: Final = 1.1
"""Least ratio of a predicted gain to its measured interval to count as wrong. Set by hand."""
_AGAIN: Final = 1.5
"""Multiple of a width at which a clear gain is unclear again: a single block may differ."""
_TOO_MANY: Final = "This DataLoader will create"
"""Start of torch's warning about more workers than cores."""
_STARTS: Final = 2
"""Starts of each setting that should fit into the budget."""


def tune(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
    settings: Iterable[Mapping[str, Any]] | None = None,
    max_bytes: int | None = None,
) -> Tuning:
    """Predict the throughput of other settings of a loader, and measure the promising ones.

    The loops iterate shallow copies of the loader. Afterwards random generators, samplers and the
    state that `step` trains are restored, and the workers have ended. Exceptions of the dataset and
    of the step pass unchanged; their attribute `tuning` holds the partial result. An exception that
    only another setting raises becomes the reason in that setting's row.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without a step, the loader alone is tuned,
            and a training may need less.
        device: batches are moved there before `step`; the target's by default.
        budget_s: time limit, seconds; the current batch is finished. The call ends earlier where
            the answer is clear.
        settings: settings to try in place of the usual ones, each a dictionary of a DataLoader's
            arguments (`{"num_workers": 4}`); `threads` counts those of each worker.
        max_bytes: memory for workers and for batches on their way; by default half of the memory
            available to this process.

    Raises:
        ArgumentError: `budget_s`, `settings` or `max_bytes` is invalid.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target is not one DataLoader that torch's own code iterates, or this
            process is one of several ranks.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come in time; `tuning` holds the partial result.
    """
    measurement = Measurement("tune", budget_s, "tuning")
    room = memory_limit(max_bytes, _MEMORY_SHARE)
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    check_plain(target, "it has no settings that can be changed from the outside")
    if not is_plain(target.loader):
        target = replace(target, loader=target.loaders[0])
    check_step_s(target.simulated_step_s, measurement.budget_s)
    search = SettingSearch(target, measurement, room, settings)
    with measurement.of(target.name):
        search.record()
        search.predict()
        search.measure(*search.finalists())
        return search.result()


@dataclass
class TuneBench:
    """Recorded loop as the baseline of any change."""

    target: Target
    run: Run
    costs: LoaderCosts

    def measure(self, trial: Trial, budget_s: float) -> Tuning:
        """Measure a change in turns with the current loader.

        Args:
            trial: the change.
            budget_s: time limit, seconds.

        Raises:
            ArgumentError: `budget_s` is no valid time.
        """
        measurement = Measurement("tune", budget_s, "tuning")
        room = memory_limit(None, _MEMORY_SHARE)
        search = SettingSearch(self.target, measurement, room, settings=(), recorded=self)
        search.trials.append(trial)
        with measurement.of(trial.change):
            search.predict()
            search.measure([] if trial.failed else [trial])
            return search.result()

    def trial(self, setting: Mapping[str, Any]) -> Trial:
        """Return the prediction of a setting, given as arguments of a DataLoader."""
        now = setting_of(self.target.loader)
        new = given_settings(now, [setting], [])[-1]
        return Trial(new, now.text(new), predict(self.costs, new))


class SettingSearch:
    """Search for a better setting; an interrupt leaves the partial result.

    Args:
        target: the user's target.
        measurement: current call, with its budget.
        room: most bytes of workers and batches.
        settings: settings to try; None: the usual ones.
        recorded: earlier recording of the target.
    """

    def __init__(
        self,
        target: Target,
        measurement: Measurement,
        room: int,
        settings: Iterable[Mapping[str, Any]] | None = None,
        recorded: TuneBench | None = None,
    ) -> None:
        self._target, self._measurement, self._room = target, measurement, room
        self._now = setting_of(target.loader)
        self._cores = float(cores_available())
        self._given = settings is not None
        pins = isinstance(device_of(target).behind, Accelerator)  # else torch pins nothing
        stream = is_stream(target.loader)
        whole = grid(self._now, self._cores, pins=pins, is_stream=stream)
        wanted = given_settings(self._now, settings, whole)
        self.trials = [Trial(setting, self._now.text(setting)) for setting in wanted]
        self._run = recorded.run if recorded else None
        self._costs = recorded.costs if recorded else None
        self._batch_bytes = recorded.costs.batch_bytes if recorded else None
        self._epoch_batches = epoch_length(target.loader)
        self._use = MachineUse()
        self._handover: Handover | None = None
        self._recorded_per_s: float | None = None
        self._race: SettingRace | None = None
        self._notes: list[str] = []
        if stream and not self._now.num_workers:
            self._notes.append(
                "no workers were tried: each worker would repeat the whole stream, unless the "
                "dataset divides its samples among workers"
            )
        elif stream:
            self._notes.append("the order of a stream's samples depends on the number of workers")

    def record(self) -> None:
        """Record the loop as it is, with its samples, and hand one batch over."""
        workers, left_s = max(self._now.num_workers, 1), self._measurement.left_s
        enough = Enough(
            max(WARMUP, workers),
            max(_BATCHES, _ROUNDS * workers),
            min(_STEADY_S, left_s / 10),
            few=2 * workers,
            late_s=left_s * _LATE_SHARE,
        )
        limits = Limits(1_000_000, max(left_s * _RECORD_SHARE, 0.1), enough)
        self._run = record_target(self._target, limits, seen=Replay(look=self._look_at))
        self._measurement.result = self.result
        if self._now.num_workers or self._batch_bytes is None:
            return
        with (
            isolated(replace(self._target, step=None)) as target,
            started(TimedLoop.in_turns(target, target.loader)) as batches,
        ):
            batch = next(batches, None)
            if self._can_hand_over(batch, self._batch_bytes):
                self._handover = measure_handover(self._target, batch)

    def _look_at(self, batch: Any) -> None:
        self._batch_bytes = bytes_of(batch)

    def _can_hand_over(self, batch: Any, size: int) -> bool:
        """Return whether a worker could send this batch, and some setting has workers."""
        room = min(self._room, shared_memory_free())
        return (
            any(trial.setting.num_workers for trial in self.trials)
            and not any(getattr(leaf, "is_cuda", False) for leaf in leaves(batch))
            and start_method(self._target.loader) == "fork"
            and _HANDED_AT_ONCE * size <= room
        )

    def predict(self) -> None:
        """Predict all settings, and exclude those that need too much memory."""
        self._costs, self._use, self._recorded_per_s = apart(self._look_into_run)
        for trial in self.trials:
            adds_workers = trial.setting.num_workers > self._now.num_workers
            if self._is_full and adds_workers and not self._given:
                trial.failed = trial.failed or _FULL_CORES
            if trial.failed:
                continue
            if trial.prediction is None and trial.make is None:
                trial.prediction = predict(self._costs, trial.setting)
            trial.failed = self._too_large(trial)

    def _look_into_run(self) -> tuple[LoaderCosts, MachineUse, float | None]:
        assert self._run is not None  # noqa: S101 - called after recording
        costs = self._costs or costs_of(
            self._run,
            self._now,
            epoch_batches=self._epoch_batches,
            batch_bytes=self._batch_bytes,
            cores=self._cores,
            handover=self._handover,
        )
        return costs, use(self._run, self._now.num_workers), recorded_per_s(self._run)

    @property
    def _is_full(self) -> bool:
        """True where workers and loop keep all cores busy, so that more workers would not help."""
        return (self._use.own_cores(self._now.num_workers) or 0.0) >= SATURATED * self._cores

    def _too_large(self, trial: Trial) -> str:
        """Return the reason why a setting does not fit into memory; empty where it fits."""
        needs = trial.prediction.memory_bytes if trial.prediction else None
        setting = trial.setting
        if trial is self.trials[0] or needs is None:
            return ""
        if needs > self._room:
            return (
                f"its workers and batches need about {size(needs)}, of {size(self._room)} allowed"
            )
        shared = setting.num_workers * (setting.prefetch_factor or 0) * (self._batch_bytes or 0)
        if shared > shared_memory_free():
            free = size(shared_memory_free())
            return f"its batches need about {size(shared)} of {SHARED_MEMORY}, {free} is free"
        return ""

    # ---- settings to measure ----------------------------------------------------------------

    def finalists(self) -> tuple[list[Trial], list[Trial]]:
        """Return the trials to measure, and those to add where a measurement differs from these.

        The first ones decide, if the predictions hold: the smallest of the fast settings, and what
        cannot be predicted. The most decisive are the first of each list.
        """
        own, now = self.trials[0], self._now
        possible = [trial for trial in self.trials[1:] if not trial.failed]
        predicted = [trial for trial in possible if trial.per_s]
        if self._given or not predicted:
            return possible, []
        # The same batches in the same order, from equal threads
        order_of = attrgetter("in_order", "pin_memory", "threads")
        same = [trial for trial in predicted if order_of(trial.setting) == order_of(now)]
        if self._is_full:  # else only a setting that gains for sure, or takes less memory, helps
            same = [t for t in same if t.per_s > LITTLE * own.per_s or t.setting.size < now.size]
        best = max(trial.per_s for trial in (own, *same))
        fastest = [trial for trial in same if trial.per_s >= AS_FAST * best]
        # Many more workers than enough would only fill memory
        enough = [t.setting.num_workers for t in same if t.per_s >= _NEAR * best]
        most = _MOST_TIMES * max(min(enough, default=0), 1)
        same = [trial for trial in same if trial.setting.num_workers <= most]
        same.sort(key=lambda trial: (-trial.per_s, trial.setting.size))
        decisive = [min(fastest, key=lambda trial: trial.setting.size)] if fastest else same[:1]
        if (self._use.threads or 0) > MANY_THREADS and now.num_workers and now.threads is None:
            setting = replace(now, threads=1)
            self.trials.append(Trial(setting, now.text(setting)))
            decisive.insert(1, self.trials[-1])
        passing = [trial for trial in predicted if not trial.setting.in_order]
        if now.in_order and passing:
            first = max(passing, key=lambda trial: trial.per_s)
            decisive += [first] * (first.per_s > own.per_s / _NEAR)
        decisive += [trial for trial in possible if trial.setting.pin_memory][:1]
        others, by_count = same[:1], {now.num_workers: own}
        for trial in same:
            least = _NEAR if trial.setting.num_workers else _WORTH_A_LOOK
            is_new = by_count.setdefault(trial.setting.num_workers, trial) is trial
            others += [trial] * (is_new and trial.per_s >= least * best)
        ordered = list({id(trial): trial for trial in (*decisive, *others)}.values())
        return ordered[: len(decisive)], ordered[len(decisive) :]

    def measure(self, decisive: list[Trial], others: Sequence[Trial] = ()) -> None:
        """Let settings take turns with the current loader, until the best is clear."""
        if self._run is None or self._costs is None or not decisive:
            return
        recorded = TuneBench(self._target, self._run, self._costs)
        self._race = SettingRace(recorded, self.trials, self._measurement)
        places = {id(trial): place for place, trial in enumerate(self.trials)}
        finalists = [places[id(trial)] for trial in (*decisive, *others)][:_MOST]
        self._race.run(finalists, len(decisive))
        if (others_cores := self._costs.others_cores) > OTHERS * self._cores:
            self._notes.append(
                f"other processes used {others_cores:.1f} of {self._cores:g} cores during the "
                "recording: predictions leave these cores to them"
            )

    # ---- results ----------------------------------------------------------------------------

    def result(self) -> Tuning:
        """Return the result so far."""
        target, run, handover = self._target, self._run, self._handover
        conditions = TuneConditions.of(
            target,
            device=device_of(target).name,
            cores=self._cores,
            epoch_batches=self._epoch_batches,
            batch_bytes=self._batch_bytes,
            worker_start_s=handover and handover.start_s,
            send_s=handover and handover.send_s,
            receive_s=handover and handover.receive_s,
            recorded_per_s=self._recorded_per_s,
            budget_s=self._measurement.budget_s,
            took_s=self._measurement.used_s,
            full_cores=self._is_full,
        )
        return Tuning(
            trials=pl.DataFrame(map(Trial.row, self.trials, count()), TRIALS, orient="row"),
            blocks=self._race.table() if self._race else pl.DataFrame(schema=BLOCKS),
            run=run,
            circumstances=conditions,
            notes=(*target.notes, *self._notes, *self._measurement.notes),
            bench=TuneBench(target, run, self._costs) if run and self._costs else None,
        )


class SettingRace:
    """Race of settings: each takes turns with the current loader; an interrupt leaves the blocks.

    Args:
        recorded: the loop as it is.
        trials: all trials, the current loader first; a trial that fails gets the reason.
        measurement: current call, with its budget.
    """

    def __init__(self, recorded: TuneBench, trials: list[Trial], measurement: Measurement) -> None:
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
        self._turns.add(place, TimedLoop.in_turns(target, going_on(loader)))

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
        """Return the blocks, columns of `bench.comparison.BLOCKS`."""
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
