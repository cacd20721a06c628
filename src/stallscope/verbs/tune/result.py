"""Result of `ss.tune`: settings of a loader, their predicted and measured throughput.

Trial 0 is the current loader. The answer is the smallest measured setting (fewest workers, then
least memory) that is as fast as the fastest: significantly faster, or smaller and not slower.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_once
from stallscope.bench.comparison import (
    AS_FAST,
    BLOCKS,
    FASTER,
    OPEN,
    SAME,
    blocks_of,
    compared,
    gain_text,
    open_title,
    rates,
)
from stallscope.columns import NAME, Column, Schema, interval
from stallscope.errors import StallscopeError
from stallscope.model.settings import Setting, code_of, with_setting
from stallscope.result import LoopConditions, SavedResult
from stallscope.run.result import Run  # noqa: TC001 - a field's type, for loading
from stallscope.stats import Estimate
from stallscope.store import stored
from stallscope.units import count, printable, rate, share, size, speedup, used_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stallscope.bench.comparison import LoopBlock, Rate
    from stallscope.model.simulator import LoopPrediction


_ARGUMENTS: Final = (
    Column("num_workers", pl.Int32),
    Column("prefetch_factor", pl.Int32),
    Column("persistent_workers", pl.Boolean),
    Column("in_order", pl.Boolean),
    Column("pin_memory", pl.Boolean),
    Column("threads", pl.Int32),
    Column("multiprocessing_context", pl.String, secret=NAME),
)
"""Arguments of a DataLoader that a setting consists of."""

TRIALS: Final = Schema(
    "One row per setting; trial 0 is the current loader.",
    Column("trial", pl.Int32),
    *_ARGUMENTS,
    Column("change", pl.String, "its name, from a fix, or the arguments that it changes"),
    Column("predicted_per_s", pl.Float64, "samples per second; null: not predicted"),
    *interval("predicted_low_per_s", doc=""),
    Column("stall_share", pl.Float64, "share of the loop's time in stalls, predicted"),
    *interval("stall_low_share", doc=""),
    Column("first_batch_s", pl.Float64, "time to the first batch, predicted"),
    Column("memory_bytes", pl.Int64, "memory of workers and batches in flight"),
    Column("outside", pl.String, "why the prediction goes beyond what was recorded"),
    Column("failed", pl.String, "why it was not or cannot be measured"),
    nullable="prefetch_factor persistent_workers in_order pin_memory threads "
    "multiprocessing_context predicted_per_s predicted_low_per_s predicted_high_per_s "
    "stall_share stall_low_share stall_high_share first_batch_s memory_bytes",
)

SETTINGS: Final = Schema(
    "One row per setting, the recommended one first. Rates include the start of workers in each "
    "epoch.",
    Column("setting", pl.String, "arguments that differ from the current loader", "setting"),
    Column("predicted_per_s", pl.Float64, "samples per second", "predicted/s", rate),
    *interval("predicted_low_per_s", doc=""),
    Column("predicted_gain", pl.Float64, "speedup over the current loader", "speedup", speedup),
    *interval("predicted_gain_low", doc=""),
    Column("measured_per_s", pl.Float64, "samples per second", "measured/s", rate),
    *interval("measured_low_per_s", rate),
    Column("gain", pl.Float64, "speedup over the current loader", "speedup", speedup),
    *interval("gain_low"),
    Column("says", pl.String, "word of `bench.comparison`; null: not measured"),
    Column("starts", pl.Int32, "starts of the workers"),
    Column("status", pl.String, "one of `STATUSES`", "status"),
    Column("reason", pl.String, "why it was not measured, or not predicted for sure"),
    Column("stall_share", pl.Float64, "share of the loop's time, predicted", "stalls"),
    Column("first_batch_s", pl.Float64, "time to the first batch, predicted"),
    Column("memory_bytes", pl.Int64, "memory of workers and batches, predicted", "memory"),
    Column("trial", pl.Int32),
    *_ARGUMENTS,
)

RECOMMENDED, AS_IT_IS, MEASURED = "recommended", "as it is", "measured"
PREDICTED, FAILED, NOT_TRIED = "predicted", "fails", "not tried"
STATUSES: Final = (RECOMMENDED, AS_IT_IS, MEASURED, PREDICTED, FAILED, NOT_TRIED)

PROMISING: Final = 1.1
"""Least predicted speedup of a recommended setting that was not measured."""
_NOT_SLOWER: Final = 0.93
"""Least lower end of the speedup of a smaller setting that counts as equally fast."""


class NoSuchSettingError(StallscopeError, ValueError):
    """Error for a trial that does not exist."""


@dataclass
class Trial:
    """Setting, its prediction, and the reason where it cannot be measured."""

    setting: Setting
    change: str
    prediction: LoopPrediction | None = None
    failed: str = ""
    make: Callable[[Any], Any] | None = None
    """Function from the current loader to a new loader, for changes beyond a setting."""

    @property
    def per_s(self) -> float:
        """Predicted samples per second; 0 where unknown."""
        return self.prediction.samples_per_s.value if self.prediction else 0.0

    def row(self, place: int) -> tuple[Any, ...]:
        """Return the row of `TRIALS` of the trial with this number."""
        predicted: tuple[Any, ...] = (*[None] * 8, "")
        if prediction := self.prediction:
            rest = prediction.first_batch_s, prediction.memory_bytes, prediction.outside
            predicted = (*prediction.samples_per_s, *prediction.stall_share, *rest)
        return (place, *astuple(self.setting), self.change, *predicted, self.failed)


@dataclass(frozen=True)
class TuneConditions(LoopConditions):
    """Target, step and machine of the measurement."""

    cores: float = 1.0
    epoch_batches: int | None = None
    """Batches of an epoch; None where the loader has no length."""
    batch_bytes: int | None = None
    worker_start_s: float | None = None
    """Seconds until a worker is ready, measured for a loop without workers; None: unknown."""
    send_s: float | None = None
    """Seconds to send a batch, and ..."""
    receive_s: float | None = None
    """... to receive it; both as `worker_start_s`."""
    recorded_per_s: float | None = None
    """Samples per second of the recorded loop; None where no step was timed."""
    budget_s: float = 0.0
    took_s: float = 0.0
    full_cores: bool = False
    """True where workers and loop keep all cores busy in the current loader."""


@dataclass(frozen=True, eq=False)
class Tuning(SavedResult):
    """Settings of a loader: predictions, measurements and the best setting."""

    _view: ClassVar[str] = "results.TUNING"
    _noun: ClassVar[str] = "tuning"

    trials: pl.DataFrame = stored(TRIALS)
    blocks: pl.DataFrame = stored(BLOCKS)
    """A variant is a trial. Seconds include each sample's share of an epoch's start."""
    run: Run | None = None
    """The loop as it is; None where it could not be recorded."""
    circumstances: TuneConditions = field(default_factory=TuneConditions)
    """Target, step and machine of the measurement."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""
    bench: Any = field(default=None, repr=False)
    """Loader for further measurements (`tune.TuneBench`); None in a loaded result."""

    @computed_once
    def settings(self) -> pl.DataFrame:
        """Return a row for each setting, the recommended one first; columns of `SETTINGS`."""
        return _settings_table(self)

    table = settings

    @cached_property
    def best(self) -> dict[str, Any]:
        """Row of the best setting in `settings`; the current loader where no setting helps."""
        rows = self.settings().to_dicts()
        return rows[0] if rows[0]["status"] == RECOMMENDED else _own(rows)

    @property
    def code(self) -> str:
        """Code of the best setting; empty where the loader should stay as it is."""
        return code_of(self.setting(0), self.setting(self.best["trial"]))

    def setting(self, trial: int) -> Setting:
        """Return the setting of a trial.

        Raises:
            NoSuchSettingError: there is no such trial.
        """
        for row in self.trials.to_dicts():
            if row["trial"] == trial:
                return _setting(row)
        raise NoSuchSettingError(
            f"there is no trial {trial!r}: give a number of the column `trial` of .settings()"
        )

    def apply(self, loader: Any, trial: int | None = None) -> Any:
        """Return a copy of a loader with another setting.

        The copy has the same dataset, samplers, generator, collate function and worker_init_fn.

        Args:
            loader: a DataLoader.
            trial: number of a trial; the best by default.

        Raises:
            NoSuchSettingError: there is no such trial, or `loader` is no DataLoader.
        """
        setting = self.setting(int(self.best["trial"]) if trial is None else trial)
        if not hasattr(loader, "worker_init_fn"):
            raise NoSuchSettingError(
                f"a {type(loader).__name__} is no torch.utils.data.DataLoader: give the "
                "loader that was tuned"
            )
        return with_setting(loader, setting)


# The table of settings and its answer


def _settings_table(tuning: Tuning) -> pl.DataFrame:
    blocks, trials = blocks_of(tuning.blocks), tuning.trials.to_dicts()
    measured = rates(blocks)
    rows = [_row(trial, _own(trials), blocks, measured.get(trial["trial"])) for trial in trials]
    best = _best(rows)
    if best["trial"]:
        best["status"] = RECOMMENDED
    order = {status: place for place, status in enumerate(STATUSES)}
    rows.sort(key=lambda row: (order[row["status"]], -(row["gain"] or row["predicted_gain"] or 0)))
    return pl.DataFrame(rows, SETTINGS)


def _row(
    trial: dict[str, Any], own: dict[str, Any], blocks: list[LoopBlock], measured: Rate | None
) -> dict[str, Any]:
    """Return a row of `SETTINGS`."""
    row = dict.fromkeys(SETTINGS) | {key: trial[key] for key in SETTINGS if key in trial}
    place = trial["trial"]
    mine, now = (Estimate(*(source[name] for name in _PREDICTED)) for source in (trial, own))
    if all((*mine, *now)):
        gain = mine.over(now) if place else Estimate(1.0, 1.0, 1.0)
        row |= zip(_PREDICTED_GAIN, gain, strict=True)
    status = PREDICTED if row["predicted_per_s"] is not None else NOT_TRIED
    if measured:
        factor = compared(blocks, place) if place else (1.0, None, None, None)
        row |= zip(_MEASURED, (*astuple(measured), *factor), strict=True)
        status = MEASURED
    elif trial["failed"]:
        status = FAILED if trial["failed"].startswith("in its loader") else NOT_TRIED
    return row | {
        "setting": trial["change"],
        "starts": len({block.start for block in blocks if block.variant == place}),
        "status": status if place else AS_IT_IS,
        "reason": "; ".join(filter(None, (trial["failed"], trial["outside"]))),
    }


_PREDICTED: Final = ("predicted_per_s", "predicted_low_per_s", "predicted_high_per_s")
_PREDICTED_GAIN: Final = ("predicted_gain", "predicted_gain_low", "predicted_gain_high")
_MEASURED: Final = (
    *("measured_per_s", "measured_low_per_s", "measured_high_per_s"),
    *("gain", "gain_low", "gain_high", "says"),
)


def _own(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the current loader."""
    return next(row for row in rows if row["trial"] == 0)


def smallest(rated: Iterable[tuple[float, Setting]]) -> Setting:
    """Return the smallest of the settings that are as fast as the fastest.

    Args:
        rated: samples per second and setting of each candidate.
    """
    candidates = list(rated)
    fastest = max(per_s for per_s, _ in candidates)
    near = (setting for per_s, setting in candidates if per_s >= AS_FAST * fastest)
    return min(near, key=lambda setting: setting.size)


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the smallest setting that is as fast as the fastest.

    Settings that change the order are excluded. Without measurements, the predicted speedup has to
    reach `PROMISING`.
    """
    own = _own(rows)
    fair = [row for row in rows if row["trial"] and row["in_order"] == own["in_order"]]
    if own["measured_per_s"] is None:
        key, alike = "predicted_gain", []
        predicted = [row for row in fair if row["status"] == PREDICTED and row[key]]
        gains = [row for row in predicted if row["predicted_gain_low"] > PROMISING]
    else:
        key, gains = "gain", [row for row in fair if row["says"] == FASTER]
        near = (row for row in fair if row["says"] == SAME or (row["gain_low"] or 0) >= _NOT_SLOWER)
        alike = [row for row in near if row not in gains]
        alike.append(own)
    largest = max([1.0, *(row[key] for row in gains)])
    chosen = [row for row in (*gains, *alike) if row[key] >= AS_FAST * largest]
    return min(chosen, key=lambda row: (_setting(row).size, row["trial"]), default=own)


def _setting(row: dict[str, Any]) -> Setting:
    return Setting(**{column.name: row[column.name] for column in _ARGUMENTS})


# Sentences


def sentence(tuning: Tuning) -> str:
    """Return the title: the setting to use, and its speedup."""
    best, own = tuning.best, tuning.setting(0)
    name = best["setting"]
    if best["trial"] == 0:
        return _stay(tuning, best)
    if best["gain"] is None:
        gain = speedup(best["predicted_gain"])
        return f"{name}: {gain} the throughput (predicted; not yet measured)"
    if best["gain"] >= 1 / AS_FAST and best["says"] == FASTER:
        return f"{name} gives {_gain(best, 'the throughput')}"
    fewer = own.num_workers - best["num_workers"]
    saved = f"with {count(fewer, 'worker')} fewer" if fewer > 0 else "and takes less memory"
    return f"{name} is as fast {saved} ({_gain(best)})"


def _gain(row: dict[str, Any], what: str = "") -> str:
    return gain_text(row["gain"], row["gain_low"], row["gain_high"], what)


def _stay(tuning: Tuning, own: dict[str, Any]) -> str:
    """Return the title where no setting is recommended: the reason."""
    others = [row for row in tuning.settings().to_dicts() if row["trial"]]
    measured = [row for row in others if row["starts"]]
    if not own["starts"] or not measured:
        failed = own["starts"] and any(row["status"] == FAILED for row in others)
        return (
            f"{_KEEP}: the others that were tried fail" if failed else _unmeasured(tuning, others)
        )
    best = max(measured, key=lambda row: float(row["gain"]))
    if best["says"] == OPEN and tuning.circumstances.full_cores:
        return f"{_full_cores(tuning)}; best setting: {best['setting']}, {_gain(best)}"
    if best["says"] == OPEN:
        factor = compared(blocks_of(tuning.blocks), best["trial"])
        highs, took_s = (row["gain_high"] for row in measured), tuning.circumstances.took_s
        return open_title("setting", best["setting"], factor, highs, took_s)
    if best["says"] == FASTER:  # but its batches come in another order
        return f"No setting is faster in the same order ({best['setting']}: {_gain(best)})"
    return f"{_KEEP}: no other is faster; the next best, {best['setting']}, gives {_gain(best)}"


def _unmeasured(tuning: Tuning, others: list[dict[str, Any]]) -> str:
    """Return the title where no setting was measured."""
    predicted = [row for row in others if row["predicted_gain"]]
    likely = max(predicted, key=lambda row: float(row["predicted_gain"]), default=None)
    hint = "; raise budget_s to measure the settings"
    if not others:
        return f"{_KEEP}: there is no other setting to try"
    if likely is None:
        return f"No other setting was predicted{hint}"
    gain, low, high = (float(likely[name]) for name in _PREDICTED_GAIN)
    is_sure = low > 1
    if not is_sure and tuning.circumstances.full_cores:
        return _full_cores(tuning)
    if is_sure or gain >= PROMISING:
        # Few batches give an interval from nothing to everything, which says nothing to a reader
        gains = gain_text(
            gain, low if is_sure else None, high if is_sure else None, "the throughput"
        )
        return f"{likely['setting']} may give {gains}, predicted{hint}"
    return f"{_KEEP}: no other setting is predicted to be faster{hint}"


_KEEP: Final = "Keep the current setting"


def _full_cores(tuning: Tuning) -> str:
    full = f"workers and loop keep all {tuning.circumstances.cores:g} cores busy"
    return f"{_KEEP}: {full}, so only less work per sample helps (5_transform_orders)"


def fit(tuning: Tuning) -> str:
    """Return the prediction error of the measured rates, in words."""
    rows = tuning.settings().drop_nulls(["predicted_per_s", "measured_per_s"]).to_dicts()
    errors = sorted(abs(row["predicted_per_s"] / row["measured_per_s"] - 1) for row in rows)
    changed = [row for row in rows if row["trial"] and row["gain"] and row["predicted_gain"]]
    if not errors:
        return "No prediction was tested"
    if len(changed) != 1:
        middle, settings = errors[len(errors) // 2], count(len(errors), "setting")
        return (
            f"Prediction error: {share(middle)} (median), {share(errors[-1])} (most), of {settings}"
        )
    (row,) = changed
    gain, low, high = (row[name] for name in _PREDICTED_GAIN)
    word = "as predicted"
    if (row["gain_high"] or row["gain"]) < low:
        word = "less than predicted"
    elif (row["gain_low"] or row["gain"]) > high:
        word = "more than predicted"
    return f"Predicted {gain:.2f}× ({low:.2f}-{high:.2f}), measured {row['gain']:.2f}×: {word}"


def notes_of(tuning: Tuning) -> list[str]:
    """Return the notes below the picture, a sentence each."""
    about, best, own = tuning.circumstances, tuning.best, tuning.setting(0)
    notes = [f"write: {line}" for line in tuning.code.splitlines()[-1:]]
    notes += about.step_notes("this is the loader alone; a training may need less")
    if best["trial"]:
        if best["num_workers"] != own.num_workers:
            notes.append("same samples, same order; random augmentations use other seeds")
        if best["memory_bytes"] is not None:
            notes.append(f"memory of workers and batches: about {size(best['memory_bytes'])}")
    passing = [
        row for row in tuning.settings().to_dicts() if row["gain_low"] and not row["in_order"]
    ]
    if passing and own.in_order:
        first = max(passing, key=lambda row: float(row["gain"]))
        notes.append(
            f"{first['setting']}: {_gain(first)}; not recommended, as the order of batches varies"
        )
    notes += [fit(tuning)] if tuning.settings()["starts"].sum() else []
    workers = count(about.num_workers, "worker") if about.num_workers else "no workers"
    notes.append(
        f"now: {workers} · {about.cores:g} cores · {used_of(about.took_s, about.budget_s)}"
    )
    return [printable(note, 600) for note in (*notes, *tuning.notes)]
