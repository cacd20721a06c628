"""The settings of a loader as a value: what each was predicted to give, and what it gave.

Trial 0 is the loader as it is. Of what was measured, the answer is the smallest setting (fewest
workers, then least memory) that is as fast as the fastest: faster for sure, or smaller and not
slower.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench.comparison import FASTER, OPEN, SAME, budget_for
from stallscope.bench.loops import STORED_BLOCKS, blocks_of, compared, rates
from stallscope.columns import NAME, Column, Schema
from stallscope.errors import StallscopeError
from stallscope.model.settings import Setting, code_of, setting_of, with_setting
from stallscope.model.simulator import Estimate
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import Contents, StoredTable
from stallscope.units import count, duration, printable, rate, seconds, share, size, speedup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.bench.comparison import Factor, Rate
    from stallscope.run.result import Run


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
    "One row a setting; trial 0 is the loader as it is.",
    Column("trial", pl.Int32),
    *_ARGUMENTS,
    Column("change", pl.String, "its name, from a fix, or the arguments that it changes"),
    Column("predicted_per_s", pl.Float64, "samples per second; null: nothing is known"),
    Column("predicted_low_per_s", pl.Float64),
    Column("predicted_high_per_s", pl.Float64),
    Column("stall_share", pl.Float64, "share of the loop's time in stalls, predicted"),
    Column("stall_low_share", pl.Float64),
    Column("stall_high_share", pl.Float64),
    Column("first_batch_s", pl.Float64, "time to the first batch, predicted"),
    Column("memory_bytes", pl.Int64, "memory of workers and of batches on their way"),
    Column("outside", pl.String, "why the prediction goes beyond what was recorded"),
    Column("failed", pl.String, "why it was not or cannot be measured"),
)

_FILLED: Final = {"trial", "num_workers", "change", "outside", "failed"}

SETTINGS: Final = Schema(
    "One row a setting, the recommended one first. Rates hold the start of workers in each epoch.",
    Column("setting", pl.String, "arguments that differ from the loader as it is", "setting"),
    Column("predicted_per_s", pl.Float64, "samples per second", "predicted/s", rate),
    Column("predicted_low_per_s", pl.Float64),
    Column("predicted_high_per_s", pl.Float64),
    Column("predicted_gain", pl.Float64, "speedup over the loader as it is", "speedup", speedup),
    Column("predicted_gain_low", pl.Float64),
    Column("predicted_gain_high", pl.Float64),
    Column("measured_per_s", pl.Float64, "samples per second", "measured/s", rate),
    Column("measured_low_per_s", pl.Float64, "its 95% CI", INTERVAL, rate),
    Column("measured_high_per_s", pl.Float64),
    Column("gain", pl.Float64, "speedup over the loader as it is", "speedup", speedup),
    Column("gain_low", pl.Float64, "its 95% CI"),
    Column("gain_high", pl.Float64),
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
"""What is only predicted to be faster by less than this is not recommended."""
AS_FAST: Final = 0.97
"""A setting is as fast as another one that gives no more than this times as many samples."""
_NOT_SLOWER: Final = 0.93
"""The lower end of what a smaller setting is said to give, for it to be called as fast."""


class NoSuchSettingError(StallscopeError, ValueError):
    """There is no such trial."""


@dataclass(frozen=True)
class TuneConditions(LoopConditions):
    """What was measured, and on what."""

    cores: float = 1.0
    """That the processes of the loop may use."""
    epoch_batches: int | None = None
    """Batches of an epoch; None where the loader has no length."""
    batch_bytes: int | None = None
    """Of a batch; None where it was not looked at."""
    worker_start_s: float | None = None
    """Until a worker is ready, where the loop makes its batches itself; None: not measured."""
    send_s: float | None = None
    """What it takes to send a batch, and ..."""
    receive_s: float | None = None
    """... what receiving it takes the loop; both as `worker_start_s`."""
    recorded_per_s: float | None = None
    """Samples a second of the loop that was recorded; None where no step was timed."""
    budget_s: float = 0.0
    """What was allowed, seconds."""
    took_s: float = 0.0
    """What was used."""
    full_cores: bool = False
    """Whether workers and loop keep all cores busy as it is."""


@dataclass(frozen=True, eq=False)
class Tuning(SavedResult):
    """Settings of a loader: what each should give, what some gave, and which one to use."""

    _view: ClassVar[str] = "results.TUNING"
    _contents: ClassVar = Contents(
        kind="tuning",
        noun="tuning",
        tables=(
            StoredTable("trials", TRIALS, _FILLED, holds={"trial": 0}),
            STORED_BLOCKS._replace(refers={"variant": "trials.trial"}),
        ),
        values={"circumstances": TuneConditions, "notes": tuple[str, ...]},
        parts={"run": "run"},
    )

    trials: pl.DataFrame
    """Columns of `TRIALS`."""
    blocks: pl.DataFrame
    """Columns of `bench.loops.BLOCKS`; a variant is a trial, and seconds include what the begin of
    an epoch adds to each sample."""
    run: Run | None = None
    """The loop as it is; None where it could not be recorded."""
    circumstances: TuneConditions = field(default_factory=TuneConditions)
    """What was measured, and on what."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""
    bench: Any = field(default=None, repr=False)
    """The loader, still at hand (`tune.TuneBench`); None: there is only this data."""

    @cached_property
    @computed_apart
    def _settings(self) -> pl.DataFrame:
        return _settings_table(self)

    def settings(self) -> pl.DataFrame:
        """One row a setting, the recommended one first; columns of `SETTINGS`."""
        return self._settings

    def table(self) -> pl.DataFrame:
        """The same as `settings`."""
        return self._settings

    @cached_property
    def best(self) -> dict[str, Any]:
        """The setting to use, a row of `settings`: the loader as it is where nothing helps."""
        rows = self._settings.to_dicts()
        first = (row for row in rows if row["status"] == RECOMMENDED)
        own = (row for row in rows if row["trial"] == 0)
        return next(first, None) or next(own)

    @property
    def code(self) -> str:
        """The line to write for the best setting; empty where the loader should stay as it is."""
        if self.best["trial"] == 0:
            return ""
        return code_of(self.setting(0), self.setting(self.best["trial"]))

    def setting(self, trial: int) -> Setting:
        """The setting of a trial, as a value.

        Raises:
            NoSuchSettingError: there is none of that number.
        """
        names = [one.name for one in fields(Setting)]
        for row in self.trials.to_dicts():
            if row["trial"] == trial:
                return Setting(**{name: row[name] for name in names})
        raise NoSuchSettingError(
            f"there is no trial {trial!r}: give a number of the column `trial` of .settings()"
        )

    def apply(self, loader: Any, trial: int | None = None) -> Any:
        """A new loader with a setting; the given one stays as it is.

        It has the same dataset, samplers, generator, collate function and worker_init_fn.

        Args:
            loader: a DataLoader.
            trial: the number of a trial; the best by default.

        Raises:
            NoSuchSettingError: there is no such trial, or this is no DataLoader.
        """
        setting = self.setting(int(self.best["trial"]) if trial is None else trial)
        if not hasattr(loader, "worker_init_fn"):
            raise NoSuchSettingError(
                f"a {type(loader).__name__} is no torch.utils.data.DataLoader: give the one that "
                "was tuned"
            )
        if setting == setting_of(loader):
            return with_setting(loader, setting_of(loader))
        return with_setting(loader, setting)


def _settings_table(tuning: Tuning) -> pl.DataFrame:
    blocks, trials = blocks_of(tuning.blocks), tuning.trials.to_dicts()
    known = rates(blocks)
    rows = []
    for trial in trials:
        place = trial["trial"]
        gain = compared(blocks, place) if place and place in known else None
        starts = len({one.start for one in blocks if one.variant == place})
        rows.append(_row(trial, trials[0], known.get(place), gain) | {"starts": starts})
    best = _best(rows)
    if best["trial"]:
        best["status"] = RECOMMENDED
    order = {status: place for place, status in enumerate(STATUSES)}
    rows.sort(key=lambda row: (order[row["status"]], -(row["gain"] or row["predicted_gain"] or 0)))
    return pl.DataFrame([[row[name] for name in SETTINGS] for row in rows], SETTINGS, orient="row")


def _row(
    trial: dict[str, Any], own: dict[str, Any], known: Rate | None, gain: Factor | None
) -> dict[str, Any]:
    row = dict.fromkeys(SETTINGS) | {key: trial[key] for key in SETTINGS if key in trial}
    row |= {"setting": trial["change"]} | _predicted_gain(trial, own)
    if known:
        row |= {
            "measured_per_s": known.value,
            "measured_low_per_s": known.low,
            "measured_high_per_s": known.high,
        }
    if gain:
        row |= dict(zip(("gain", "gain_low", "gain_high", "says"), gain, strict=True))
    elif known:
        row |= {"gain": 1.0}
    status = MEASURED if known else PREDICTED
    if trial["trial"] == 0:
        status = AS_IT_IS
    elif trial["failed"] and not known:
        status = FAILED if trial["failed"].startswith("in its loader") else NOT_TRIED
    elif not known and trial["predicted_per_s"] is None:
        status = NOT_TRIED
    why = (trial["failed"], trial["outside"])
    return row | {"status": status, "reason": "; ".join(filter(None, why))}


def _predicted_gain(trial: dict[str, Any], own: dict[str, Any]) -> dict[str, float | None]:
    names = ("predicted_per_s", "predicted_low_per_s", "predicted_high_per_s")
    mine, now = ([one[name] for name in names] for one in (trial, own))
    if not all((*mine, *now)):
        return {}
    if trial["trial"] == 0:
        return dict.fromkeys(_GAIN, 1.0)
    return dict(zip(_GAIN, with_gain(Estimate(*mine), Estimate(*now)), strict=True))


def with_gain(mine: Estimate, now: Estimate) -> Estimate:
    """How many times as much as now something is predicted to give; the two are independent."""
    gain = mine.value / now.value
    down = ((1 - mine.low / mine.value) ** 2 + (now.high / now.value - 1) ** 2) ** 0.5
    up = ((mine.high / mine.value - 1) ** 2 + (1 - now.low / now.value) ** 2) ** 0.5
    return Estimate(gain, gain * max(1 - down, 0.0), gain * (1 + up))


def smallest(rated: Iterable[tuple[float, Setting]]) -> Setting:
    """The smallest of the settings that are as fast as the fastest.

    Args:
        rated: samples a second, and the setting; the one as it is first.
    """
    known = list(rated)
    most = max(per_s for per_s, _ in known)
    near = [
        {**asdict(setting), "trial": place}
        for place, (per_s, setting) in enumerate(known)
        if per_s >= AS_FAST * most
    ]
    place: int = min(near, key=smallness)["trial"]
    return known[place][1]


_GAIN: Final = ("predicted_gain", "predicted_gain_low", "predicted_gain_high")


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The smallest setting that is as fast as the fastest; the loader as it is where that is it."""
    own = next(row for row in rows if row["trial"] == 0)
    fair = [
        row
        for row in rows
        if row["trial"]
        and row["in_order"] == own["in_order"]
        and not row["setting"].startswith("@")
    ]
    if own["measured_per_s"] is None:  # nothing was measured
        return _best_predicted(fair, own)
    gains = [row for row in fair if row["says"] == FASTER]
    most = max([1.0, *(row["gain"] for row in gains)])
    alike = [row for row in fair if row not in gains and _is_as_fast(row)]
    rated = [(row["gain"], row) for row in (*gains, *alike)]
    chosen = [row for gain, row in [(1.0, own), *rated] if gain >= AS_FAST * most]
    return min(chosen, key=smallness)


def _is_as_fast(row: dict[str, Any]) -> bool:
    """Whether a setting is not slower than the loader as it is, as far as that can be measured."""
    low = row["gain_low"]
    return row["says"] == SAME or (low is not None and low >= _NOT_SLOWER)


def _best_predicted(fair: list[dict[str, Any]], own: dict[str, Any]) -> dict[str, Any]:
    known = [row for row in fair if row["status"] == PREDICTED and row["predicted_gain"]]
    gains = [row for row in known if row["predicted_gain_low"] > PROMISING]
    most = max((row["predicted_gain"] for row in gains), default=0.0)
    chosen = [row for row in gains if row["predicted_gain"] >= AS_FAST * most]
    return min(chosen, key=smallness, default=own)


def smallness(row: dict[str, Any]) -> tuple[Any, ...]:
    """Key of an order: fewest workers, least made ahead, least changed; a row of the table."""
    return (
        row["num_workers"],
        row["prefetch_factor"] or 0,
        row["pin_memory"],
        row["persistent_workers"],
        row["threads"] is not None,
        row["trial"],
    )


def sentence(tuning: Tuning) -> str:
    """Which setting to use, and what it gives."""
    best = tuning.best
    own = tuning.setting(0)
    if best["trial"] == 0:
        return _stay(tuning, best)
    told = tuning.setting(best["trial"])
    if best["gain"] is None:
        return (
            f"{best['setting']} should give {speedup(best['predicted_gain'])} as many samples: "
            "predicted, not measured"
        )
    ends = interval_text(best["gain_low"], best["gain_high"])
    if best["gain"] < 1 / AS_FAST and told.num_workers < own.num_workers:
        fewer = count(own.num_workers - told.num_workers, "worker")
        return f"{best['setting']} is as fast ({best['gain']:.2f}×{ends}) with {fewer} fewer"
    if best["gain"] < 1 / AS_FAST:
        return f"{best['setting']} is as fast ({best['gain']:.2f}×{ends}) and takes less memory"
    return f"{best['setting']} gives {speedup(best['gain'])} as many samples{ends}"


def _stay(tuning: Tuning, own: dict[str, Any]) -> str:
    rows = tuning.settings().filter(pl.col("starts") > 0).to_dicts()
    others = [row for row in rows if row["trial"]]
    if not own["starts"] or not others:
        return _unmeasured(tuning, "" if own["starts"] else "the time was over before it was")
    nearest = max(others, key=lambda row: row["gain"])
    ends = interval_text(nearest["gain_low"], nearest["gain_high"])
    said = f"nearest: {nearest['setting']}, {nearest['gain']:.2f}×{ends}"
    if nearest["says"] == OPEN:
        found = compared(blocks_of(tuning.blocks), nearest["trial"])
        more = duration(budget_for(found, tuning.circumstances.took_s))
        return f"Not settled whether another setting is faster: allow {more} (budget_s); {said}"
    if nearest["says"] == FASTER:  # and is none of those that may be recommended
        gives = f"{nearest['setting']} gives {nearest['gain']:.2f}×{ends}"
        return f"Leave it as it is, unless samples may come in another order: {gives}"
    many = count(len(others), "setting")
    return f"Leave it as it is: of {many} measured, none gives more samples; {said}"


def _unmeasured(tuning: Tuning, over: str) -> str:
    """What is known of settings of which none was measured.

    Args:
        tuning: it.
        over: words for a time that was over before the loader as it is was measured.
    """
    tried = [row for row in tuning.settings().to_dicts() if row["trial"]]
    known = [row for row in tried if row["predicted_gain"]]
    likely = max(known, key=lambda row: float(row["predicted_gain"]), default=None)
    why = f"{over or 'none was'} measured: allow more time (budget_s)"
    if not over and any(row["status"] == FAILED for row in tried):
        return "Leave it as it is: the other settings that were tried fail"
    if likely is None:
        return f"Nothing is known of other settings: {why}"
    if likely["predicted_gain_low"] > 1:  # else it promises nothing
        return f"{_may_give(likely)}, and {why}"
    if tuning.circumstances.full_cores:
        return (
            f"Leave it as it is: workers and loop keep all {tuning.circumstances.cores:g} cores "
            "busy, so only less work on each sample would give more (06_transform_orders)"
        )
    if over:
        return f"Leave it as it is: no other setting should be faster; {why}"
    return "Leave it as it is: no other setting is predicted to be faster, none was measured"


def _may_give(row: dict[str, Any]) -> str:
    """What a prediction promises."""
    ends = f"{row['predicted_gain_low']:.2f} to {row['predicted_gain_high']:.2f}"
    gain = speedup(row["predicted_gain"])
    return f"{row['setting']} may give {gain} as many samples (predicted {ends})"


def interval_text(low: float | None, high: float | None) -> str:
    """The ends of a factor's interval in brackets; nothing where there are none."""
    return "" if low is None or high is None else f", {INTERVAL} {low:.2f} to {high:.2f}"


def errors(tuning: Tuning) -> list[float]:
    """How far each predicted rate lies from the measured one, as a share of that; ascending."""
    rows = tuning.settings().drop_nulls(["predicted_per_s", "measured_per_s"]).to_dicts()
    return sorted(abs(row["predicted_per_s"] / row["measured_per_s"] - 1) for row in rows)


def fit(tuning: Tuning) -> str:
    """How well what was measured had been predicted."""
    found = errors(tuning)
    if not found:
        return "Nothing was measured that puts the prediction to the test"
    if kept := _kept(tuning):
        return kept
    if len(found) == 1:
        return f"The predicted rate of the one measured setting is {share(found[0])} off"
    middle = found[len(found) // 2]
    return (
        f"Predicted rates are {share(middle)} off in the median, {share(found[-1])} at most, over "
        f"{count(len(found), 'measured setting')}"
    )


def _kept(tuning: Tuning) -> str:
    """Whether the one change that was measured gives what was predicted; empty of several."""
    rows = [row for row in tuning.settings().to_dicts() if row["trial"] and row["gain"]]
    if len(rows) != 1 or rows[0]["predicted_gain"] is None:
        return ""
    row = rows[0]
    low, high = row["predicted_gain_low"], row["predicted_gain_high"]
    told = "as predicted"
    if (row["gain_high"] or row["gain"]) < low:
        told = "less than predicted"
    elif (row["gain_low"] or row["gain"]) > high:
        told = "more than predicted"
    return (
        f"Predicted {row['predicted_gain']:.2f}× ({low:.2f} to {high:.2f}), measured "
        f"{row['gain']:.2f}×: {told}"
    )


def notes_of(tuning: Tuning) -> list[str]:
    """What a reader has to know, a sentence each."""
    told, best = tuning.circumstances, tuning.best
    said = [f"write: {line}" for line in tuning.code.splitlines()[-1:]]
    if told.simulated_step_s is not None:
        said.append(
            f"the step is simulated: a timer of {seconds(told.simulated_step_s)}, no device"
        )
    elif not told.has_step:
        said.append("no step was given: this is the loader alone, and a training may not need more")
    if best["trial"]:
        said += order_notes(tuning.setting(0), tuning.setting(best["trial"]))
        if best["memory_bytes"] is not None:
            said.append(f"memory of workers and batches: about {size(best['memory_bytes'])}")
    passing = [
        row for row in tuning.settings().to_dicts() if row["gain_low"] and not row["in_order"]
    ]
    if passing and tuning.setting(0).in_order:
        first = max(passing, key=lambda row: row["gain"])
        ends = interval_text(first["gain_low"], first["gain_high"])
        said.append(
            f"{first['setting']}: {first['gain']:.2f}×{ends}; it is never recommended, as batches "
            "come in another order each time"
        )
    said += [fit(tuning)] if errors(tuning) else []
    said.append(
        f"{count(told.num_workers, 'worker') if told.num_workers else 'no worker'} as it is · "
        f"{told.cores:g} cores · {seconds(told.took_s)} of at most {seconds(told.budget_s)}"
    )
    return [printable(note, 600) for note in (*said, *tuning.notes)]


def order_notes(now: Setting, setting: Setting) -> list[str]:
    """Where a setting does not give the same batches as another one."""
    said = []
    if setting.in_order != now.in_order and not setting.in_order:
        said.append("in_order=False: batches come as they are made, in another order each time")
    if setting.num_workers != now.num_workers:
        said.append(
            "the same samples in the same order; what the dataset draws at random is drawn by "
            "other workers, from other seeds"
        )
    return said
