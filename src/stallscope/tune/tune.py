"""`ss.tune`: which setting of the loader gives the most, with the fewest workers.

One recording of the loop as it is, from which every setting of a grid is predicted. Those that
matter are then measured, each in turn with the loader as it is, until the best is clear.
"""

from __future__ import annotations

import math
from dataclasses import astuple, fields, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.bench.comparison import ALIKE
from stallscope.bench.loops import BLOCKS
from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError
from stallscope.hooks.device_time import Accelerator
from stallscope.hooks.loader_access import start_method
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import check_plain, is_plain, is_stream
from stallscope.loops.cached_values import bytes_of, leaves
from stallscope.loops.devices import device_of
from stallscope.loops.timed_loop import started
from stallscope.loops.training_loop import Enough, Limits, check_step_s
from stallscope.machine import (
    cores_available,
    machine,
    memory_available_bytes,
    require_single_rank,
    shared_memory_free,
)
from stallscope.model.costs import (
    MANY_THREADS,
    Handover,
    costs_of,
    recorded_per_s,
)
from stallscope.model.machine_use import use
from stallscope.model.settings import Setting, given_settings, grid, setting_of
from stallscope.model.simulator import predict
from stallscope.model.thresholds import OTHERS
from stallscope.run.record import record_target
from stallscope.targets import target as targets
from stallscope.targets.loaders import epoch_length
from stallscope.tune.race import RecordedLoop, SettingRace, Trial, loop_of, measure_handover
from stallscope.tune.result import AS_FAST, TRIALS, TuneConditions, Tuning, smallness
from stallscope.units import BUDGET_S, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stallscope.model.simulator import LoaderCosts
    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_WARMUP: Final = 4
_STEADY_S: Final = 3.0
"""Of the recording, where the budget allows it ..."""
_BATCHES: Final = 12
"""... and so many batches ..."""
_ROUNDS: Final = 4
"""... and so many rounds of the workers."""
_RECORD_SHARE: Final = 0.25
"""Of the budget, at most."""
_LATE_SHARE: Final = 0.2
_MEMORY_SHARE: Final = 0.5
"""Of the memory that is left."""
_HANDED_AT_ONCE: Final = 4
"""Copies of a batch that handing it over needs at a time."""
_SHARED: Final = "/dev/shm"  # noqa: S108 - where workers put their batches
_FULL: Final = 0.9
"""Share of the cores from which on no more workers are tried: what is left is the loop's own."""
_FULL_CORES: Final = "workers and loop keep all cores busy: more workers would share them"
_MOST: Final = 5
"""Settings that are measured beside the loader as it is."""
_NEAR: Final = 0.9
"""A prediction that promises less than this of the best one is not measured ..."""
_MOST_TIMES: Final = 2
"""Times as many workers as are enough for that share, at most: predictions may be off."""
_WORTH_A_LOOK: Final = 0.6
"""... but loading without workers is, from this share on."""


def tune(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    budget_s: float = BUDGET_S,
    settings: Iterable[Mapping[str, Any]] | None = None,
    max_bytes: int | None = None,
) -> Tuning:
    """Predict what other settings of a loader would give, measure the few that matter.

    Iterates shallow copies of the loader. Afterwards all random generators, the samplers and what
    `step` trains are as they were, and the workers are gone. An exception of the dataset's or of
    the step's passes unchanged, and its attribute `tuning` holds what was known before; one that
    only another setting raises is the reason of that setting's row.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default. Without one the loader alone is tuned, and a
            training may need less.
        device: where batches are moved before `step`; the target's by default.
        budget_s: it is over after this time, seconds, and the batch that is under way then. It
            stops earlier where the answer is clear.
        settings: those to look at in place of the usual ones, each a dictionary of a DataLoader's
            arguments (`{"num_workers": 4}`); `threads` is that of each worker.
        max_bytes: memory that workers and batches on their way may take; by default half of what is
            left to this process.

    Raises:
        ArgumentError: `budget_s`, `settings` or `max_bytes` is nothing that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, or this
            process is one of several ranks.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come within the budget and a grace; its attribute `tuning` is
            that of any exception.
    """
    measurement = Measurement("tune", budget_s, "tuning")
    is_size = isinstance(max_bytes, (int, float)) and 0 <= max_bytes < math.inf
    if max_bytes is not None and not is_size:
        raise ArgumentError(f"max_bytes={max_bytes!r}: give a number of bytes, 0 or more")
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    check_plain(target, "it has no settings that can be changed from the outside")
    if not is_plain(target.loader):
        target = replace(target, loader=target.loaders[0])
    room = int(memory_available_bytes() * _MEMORY_SHARE if max_bytes is None else max_bytes)
    check_step_s(target.simulated_step_s, measurement.budget_s)
    search = SettingSearch(target, measurement, room, settings)
    with measurement.of(target.name):
        measurement.result = search.known
        search.run()
        return search.result()


class TuneBench(RecordedLoop):
    """What is needed to measure one change more."""

    def measure(self, trial: Trial, budget_s: float) -> Tuning:
        """Measure a change beside the loader as it is; `change` may be a dictionary of settings.

        Args:
            trial: the change.
            budget_s: seconds.

        Raises:
            ArgumentError: that is no time.
        """
        measurement = Measurement("tune", budget_s, "tuning")
        room = int(memory_available_bytes() * _MEMORY_SHARE)
        search = SettingSearch(self.target, measurement, room, settings=())
        search.know(self.run, self.costs)
        search.trials.append(trial)
        with measurement.of(trial.change):
            search.predict()
            search.measure([1] if not trial.failed else [])
            return search.result()

    def trial(self, setting: Mapping[str, Any]) -> Trial:
        """A setting, as arguments of a DataLoader, as a trial with its prediction."""
        now = setting_of(self.target.loader)
        new = given_settings(now, [setting], [])[-1]
        return Trial(new, now.text(new), predict(self.costs, new))


class SettingSearch:
    """One search for a better setting.

    Args:
        target: what the user points at.
        measurement: whose budget it is.
        room: bytes that workers and batches may take.
        settings: those to look at; None: the usual ones.
    """

    def __init__(
        self,
        target: Target,
        measurement: Measurement,
        room: int,
        settings: Iterable[Mapping[str, Any]] | None = None,
    ) -> None:
        self._target, self._measurement = target, measurement
        self._room = room
        self._now = setting_of(target.loader)
        self._cores = float(cores_available())
        self._given = settings is not None
        pins = isinstance(device_of(target).behind, Accelerator)  # else torch pins nothing
        stream = is_stream(target.loader)
        whole = grid(self._now, self._cores, pins=pins, is_stream=stream)
        wanted = given_settings(self._now, settings, whole)
        self.trials = [Trial(one, self._now.text(one)) for one in wanted]
        self._is_full = False
        self._epoch_batches = epoch_length(target.loader)
        self._batch_bytes: int | None = None
        self._handover: Handover | None = None
        self._run: Run | None = None
        self._costs: LoaderCosts | None = None
        self._race: SettingRace | None = None
        self._notes = [*_notes_on(self._now, stream=stream)]

    @property
    def _left_s(self) -> float:
        return self._measurement.left_s

    def run(self) -> None:
        """Record, predict, measure."""
        self.record()
        self.predict()
        self.measure(self.finalists())

    def record(self) -> None:
        """Run the loop as it is, with its samples; and look at one batch."""
        many = max(self._now.num_workers, 1)
        enough = Enough(
            max(_WARMUP, many),
            max(_BATCHES, _ROUNDS * many),
            min(_STEADY_S, self._left_s / 10),
            few=2 * many,
            late_s=self._left_s * _LATE_SHARE,
        )
        limits = Limits(1_000_000, max(self._left_s * _RECORD_SHARE, 0.1), enough)
        self._run = record_target(self._target, limits, _WARMUP, self._look_at)
        if not self._now.num_workers and self._batch_bytes is not None:
            with (
                isolated(replace(self._target, step=None)) as target,
                started(loop_of(target, target.loader)) as batches,
            ):
                self._handover = self._handed_over(next(batches, None))

    def _look_at(self, batch: Any) -> None:
        self._batch_bytes = bytes_of(batch)

    def _handed_over(self, batch: Any) -> Handover | None:
        """What a worker would take to hand a batch over; None where that cannot be seen."""
        others = any(trial.setting.num_workers for trial in self.trials)
        on_device = any(getattr(one, "is_cuda", False) for one in leaves(batch))
        started_slowly = start_method(self._target.loader) != "fork"
        room = min(self._room, shared_memory_free())
        needs = _HANDED_AT_ONCE * (self._batch_bytes or 0)
        if not others or on_device or started_slowly or needs > room:
            return None
        return measure_handover(self._target, batch)

    def know(self, run: Run, costs: LoaderCosts) -> None:
        """Take over what was recorded before."""
        self._run, self._costs = run, costs
        self._batch_bytes = costs.batch_bytes

    def predict(self) -> None:
        """Predict all settings, and leave out those that need too much."""
        run = self._run
        if run is not None and self._costs is None:
            self._costs = apart(lambda: self._costs_of(run))
        self._is_full = run is not None and self._are_cores_full(run)
        for trial in self.trials:
            if (
                self._is_full
                and not self._given
                and trial.setting.num_workers > self._now.num_workers
            ):
                trial.failed = trial.failed or _FULL_CORES
            if (
                self._costs is not None
                and not trial.failed
                and trial.prediction is None
                and trial.make is None
            ):
                trial.prediction = predict(self._costs, trial.setting)
            if not trial.failed:
                trial.failed = self._too_large(trial)

    def _are_cores_full(self, run: Run) -> bool:
        """Whether workers and loop keep all cores busy, so that more workers would share them."""
        many = self._now.num_workers
        used = apart(lambda: use(run, many).own_cores(many))
        return used is not None and used >= _FULL * self._cores

    def _costs_of(self, run: Run) -> LoaderCosts:
        return costs_of(
            run,
            self._now,
            epoch_batches=self._epoch_batches,
            batch_bytes=self._batch_bytes,
            cores=self._cores,
            handover=self._handover,
        )

    def _too_large(self, trial: Trial) -> str:
        """Why there is no room for a setting; empty where there is."""
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
            return f"its batches need about {size(shared)} of {_SHARED}, {free} is free"
        return ""

    # ---- which to measure -------------------------------------------------------------------

    def finalists(self) -> list[int]:
        """Numbers of the trials that are worth measuring, those that decide most first."""
        open_ = [place for place, one in enumerate(self.trials) if place and not one.failed]
        if self._given:
            return open_
        known = [place for place in open_ if self._per_s(place)]
        if not known:
            return open_[:_MOST]
        same = [place for place in known if self._is_plain_change(place)]
        if self._is_full:  # what is as fast as it is by all that is known is not looked at
            least = (1 + ALIKE) * self._per_s(0)
            same = [place for place in same if self._per_s(place) > least]
        best = max(map(self._per_s, [0, *same]))
        near = [place for place in same if self._per_s(place) >= AS_FAST * best]
        near.sort(key=lambda place: smallness(self._row(place)))
        wanted = near[:1]
        same = self._of_few_workers(same, _NEAR * best)
        wanted += sorted(same, key=self._per_s, reverse=True)[:1]
        wanted += self._other_counts(same, best)
        own = self._row(0)
        if (self._threads_of_a_worker() or 0) > MANY_THREADS and self._now.threads is None:
            wanted.insert(1, self._with_threads())
        passing = [place for place in known if not self.trials[place].setting.in_order]
        if own["in_order"] and passing:
            first = max(passing, key=self._per_s)
            wanted += [first] * (self._per_s(first) > self._per_s(0) / _NEAR)
        wanted += [place for place in open_ if self.trials[place].setting.pin_memory][:1]
        return list(dict.fromkeys(wanted))[:_MOST]

    def _of_few_workers(self, same: list[int], enough_per_s: float) -> list[int]:
        """Those without many more workers than is enough: they would only fill memory."""
        counts = {place: self.trials[place].setting.num_workers for place in same}
        enough = [many for place, many in counts.items() if self._per_s(place) >= enough_per_s]
        most = _MOST_TIMES * max(min(enough, default=0), 1)
        return [place for place, many in counts.items() if many <= most]

    def _is_plain_change(self, place: int) -> bool:
        """Whether a setting gives the same batches in the same order, and is predicted as such."""
        setting = self.trials[place].setting
        return (
            setting.in_order == self._now.in_order
            and setting.pin_memory == self._now.pin_memory
            and setting.threads == self._now.threads
        )

    def _other_counts(self, same: list[int], best: float) -> Iterator[int]:
        """The best setting of each other number of workers that promises enough."""
        by_count: dict[int, int] = {}
        for place in sorted(same, key=lambda one: (-self._per_s(one), smallness(self._row(one)))):
            by_count.setdefault(self.trials[place].setting.num_workers, place)
        for many, place in sorted(by_count.items(), key=lambda pair: -self._per_s(pair[1])):
            least = _NEAR if many else _WORTH_A_LOOK
            if many != self._now.num_workers and self._per_s(place) >= least * best:
                yield place

    def _per_s(self, place: int) -> float:
        found = self.trials[place].prediction
        return found.samples_per_s.value if found else 0.0

    def _row(self, place: int) -> dict[str, Any]:
        names = [one.name for one in fields(Setting)]
        return {
            **dict(zip(names, astuple(self.trials[place].setting), strict=True)),
            "trial": place,
        }

    def _threads_of_a_worker(self) -> float | None:
        run, many = self._run, self._now.num_workers
        return apart(lambda: use(run, many).threads) if run is not None and many else None

    def _with_threads(self) -> int:
        """One thread in each worker, as a trial of its own."""
        setting = replace(self._now, threads=1)
        self.trials.append(Trial(setting, self._now.text(setting)))
        return len(self.trials) - 1

    def measure(self, finalists: list[int]) -> None:
        """Measure settings in turn with the loader as it is, until the best is clear."""
        if self._run is None or self._costs is None or not finalists:
            return
        recorded = RecordedLoop(self._target, self._run, self._costs)
        self._race = race = SettingRace(recorded, self.trials, self._measurement)
        race.run(finalists)
        had = self._costs.others_cores
        if had > OTHERS * self._cores:
            self._notes.append(
                f"other processes had {had:.1f} of {self._cores:g} cores while the loop was "
                "recorded: predictions leave them their share"
            )

    # ---- what is known ----------------------------------------------------------------------

    def known(self) -> Tuning | None:
        """What is known when it ends before its time; None: nothing."""
        return None if self._run is None else self.result()

    def result(self) -> Tuning:
        """What is known by now."""
        target, run = self._target, self._run
        conditions = TuneConditions(
            name=target.name,
            num_workers=self._now.num_workers,
            machine=machine(),
            device=device_of(target).name,
            simulated_step_s=target.simulated_step_s,
            has_step=target.step is not None,
            cores=self._cores,
            epoch_batches=self._epoch_batches,
            batch_bytes=self._batch_bytes,
            worker_start_s=self._handover and self._handover.start_s,
            send_s=self._handover and self._handover.send_s,
            receive_s=self._handover and self._handover.receive_s,
            recorded_per_s=None if run is None else apart(lambda: recorded_per_s(run)),
            budget_s=self._measurement.budget_s,
            took_s=self._measurement.used_s,
            full_cores=self._is_full,
        )
        bench = TuneBench(target, run, self._costs) if run and self._costs else None
        return Tuning(
            trials=pl.DataFrame(
                [_trial_row(place, one) for place, one in enumerate(self.trials)],
                TRIALS,
                orient="row",
            ),
            blocks=self._race.table() if self._race else pl.DataFrame(schema=BLOCKS),
            run=run,
            circumstances=conditions,
            notes=(*target.told(), *self._notes, *self._measurement.notes),
            bench=bench,
        )


def _trial_row(place: int, trial: Trial) -> tuple[Any, ...]:
    known = trial.prediction
    told = (*known.samples_per_s, *known.stall_share) if known else (None,) * 6
    rest = (known.first_batch_s, known.memory_bytes, known.outside) if known else (None, None, "")
    return (place, *astuple(trial.setting), trial.change, *told, *rest, trial.failed)


def _notes_on(now: Setting, *, stream: bool) -> Iterator[str]:
    if stream and not now.num_workers:
        yield (
            "a stream that is loaded without workers: with some, a dataset that does not divide "
            "its samples among them gives each as often as there are workers, so none was tried"
        )
    elif stream:
        yield "a stream: with another number of workers its samples come in another order"
