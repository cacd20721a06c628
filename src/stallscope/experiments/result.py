"""Experiments on a step as a value: what each change gains, what waits, what copies take.

A gain is the mean over pairs of laps, one as the step is and one changed, made next to each other,
each from the same state of models, optimizers and generators over the same batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import polars as pl

from stallscope.apart import computed_apart
from stallscope.bench.comparison import (
    FASTER,
    OPEN,
    Factor,
    budget_for,
    of_samples,
    of_starts,
)
from stallscope.columns import CODE, CODE_FILE, NAME, Column, Schema
from stallscope.result import LoopConditions, SavedResult
from stallscope.stats import INTERVAL
from stallscope.store import Contents, StoredTable
from stallscope.units import count, duration, seconds, share, times

if TYPE_CHECKING:
    from collections.abc import Iterable


AS_IT_IS: Final = "as it is"

TRIALS: Final = Schema(
    "One row an experiment; the first is the step as it is, made twice.",
    Column("experiment", pl.String, secret=NAME),
    Column("code", pl.String),
    Column("loss_difference", pl.Float64, "largest of the same steps as it is and changed"),
    Column("why_not", pl.String, "why it was not tried"),
)

PAIRS: Final = Schema(
    "One row a pair of laps: the median step as it is, and changed.",
    Column("experiment", pl.String, secret=NAME),
    Column("before_s", pl.Float64),
    Column("after_s", pl.Float64),
)

WAITS: Final = Schema(
    "One row a line that makes the host wait for the device (on a CPU: would on a GPU).",
    Column("what", pl.String, "kind of wait", "waits for the device"),
    Column("function", pl.String, secret=NAME),
    Column("file", pl.String, secret=CODE_FILE),
    Column("line", pl.Int32),
    Column("source", pl.String, secret=CODE),
    Column("calls_per_step", pl.Float64, "", "calls per step", "{:.3g}".format),
    Column("wait_s", pl.Float64, "time that it takes the host in a step", "time per step"),
)

COPY_TIMES: Final = Schema(
    "One row a copy of a batch to the device.",
    Column("way", pl.String, secret=NAME),
    Column("bytes", pl.Int64),
    Column("copy_s", pl.Float64, "until it was there"),
    Column("host_s", pl.Float64, "that it held the host"),
    Column("difference", pl.Float64, "largest from the batch; null: the same"),
)


@dataclass(frozen=True)
class ExperimentsConditions(LoopConditions):
    """What was measured, and on what."""

    step_s: float | None = None
    """The median step as it is, seconds; None where it was not measured."""
    loss: float | None = None
    """The mean size of the losses as they are; None where the step has none."""
    loss_steps: int = 0
    """Over so many steps losses were compared."""
    rounding: float | None = None
    """How far they come apart where weights differ in their last bits; None where it is unknown."""
    kernels_per_step: float | None = None
    """What the device computes in a step, in so many pieces; None without one."""
    kernel_s: float | None = None
    """The median of these, seconds."""
    gap_s: float | None = None
    """The median time before one of these in which there was none, seconds."""
    took_s: float = 0.0
    """In all, seconds."""
    device_busy_share: float | None = None
    """Share (0 to 1) of the time in which the device computes; None without one."""


@dataclass(frozen=True, eq=False)
class Experiments(SavedResult):
    """What would make a training step faster."""

    _view: ClassVar[str] = "results.EXPERIMENTS"
    _contents: ClassVar = Contents(
        kind="experiments",
        noun="set of experiments",
        tables=(
            StoredTable("trials", TRIALS, {"experiment", "code"}),
            StoredTable("pairs", PAIRS, PAIRS.keys(), positive={"before_s", "after_s"}),
            StoredTable("waits", WAITS, WAITS.keys()),
            StoredTable("copy_times", COPY_TIMES, COPY_TIMES.keys() - {"difference"}),
        ),
        values={"circumstances": ExperimentsConditions, "notes": tuple[str, ...]},
    )

    trials: pl.DataFrame
    """Columns of `TRIALS`."""
    pairs: pl.DataFrame
    """Columns of `PAIRS`."""
    waits: pl.DataFrame
    """Columns of `WAITS`."""
    copy_times: pl.DataFrame
    """Columns of `COPY_TIMES`."""
    circumstances: ExperimentsConditions = field(default_factory=ExperimentsConditions)
    """What was measured."""
    notes: tuple[str, ...] = ()
    """What was left out or has to be known, in sentences."""

    @computed_apart
    def table(self) -> pl.DataFrame:
        """One row an experiment, columns of `experiments.result.TABLE`."""
        return pl.DataFrame([self._row(one) for one in self.trials.to_dicts()], TABLE)

    def _row(self, trial: dict[str, Any]) -> dict[str, Any]:
        laps = self.pairs.filter(pl.col("experiment") == trial["experiment"])
        row = {**trial, "pairs": laps.height, "before_s": None, "after_s": None, "factor": None}
        row |= {"factor_low": None, "factor_high": None, "says": None}
        if laps.height:
            row |= {"before_s": laps["before_s"].median(), "after_s": laps["after_s"].median()}
            found = of_laps(laps.select("before_s", "after_s").rows())
            row |= zip(("factor", "factor_low", "factor_high", "says"), found, strict=True)
        return row

    @computed_apart
    def copies(self) -> pl.DataFrame:
        """One row for each way to copy a batch to the device; columns of `COPIES`."""
        step_s = self.circumstances.step_s
        ways = self.copy_times["way"].unique(maintain_order=True).to_list()
        rows = []
        for way in ways:
            mine = self.copy_times.filter(pl.col("way") == way)
            first = self.copy_times.filter(pl.col("way") == ways[0])
            pairs = min(mine.height, first.height)
            factor, low, high, _ = of_samples(
                first["copy_s"].to_list()[:pairs], mine["copy_s"].to_list()[:pairs]
            )
            copy_s, host_s = mine["copy_s"].median(), mine["host_s"].median()
            rows.append(
                {
                    **mine.row(0, named=True),
                    "copy_s": copy_s,
                    "host_s": host_s,
                    "factor": factor,
                    "factor_low": low,
                    "factor_high": high,
                    "step_share": copy_s / step_s if step_s else None,  # type: ignore[operator]
                }
            )
        return pl.DataFrame(rows, COPIES)


def of_laps(pairs: Iterable[tuple[float, float]]) -> Factor:
    """How many times as fast a change makes the step.

    Args:
        pairs: seconds of the median step as it is, and changed; each lap begins anew, as a start.
    """
    return of_starts([math.log(before_s / after_s)] for before_s, after_s in pairs)


TABLE: Final = Schema(
    "One row an experiment, the step as it is first; null: not tried.",
    Column("experiment", pl.String, "name of the change", "experiment"),
    Column("code", pl.String),
    Column("before_s", pl.Float64, "median step as it is", "as it is"),
    Column("after_s", pl.Float64, "median step with the change", "changed"),
    Column("factor", pl.Float64, "speedup of the step", "speedup", "{:.2f}×".format),
    Column("factor_low", pl.Float64, "its 95% CI", INTERVAL, "{:.2f}".format),
    Column("factor_high", pl.Float64),
    Column("says", pl.String, "word of `bench.comparison`"),
    Column("loss_difference", pl.Float64, "largest", "loss difference", "{:.2g}".format),
    Column("pairs", pl.Int32, "pairs of laps"),
    Column("why_not", pl.String, "why it was not tried"),
)

COPIES: Final = Schema(
    "One row a way to copy a batch to the device; times are medians.",
    Column("way", pl.String, "", "copy of a batch"),
    Column("bytes", pl.Int64, "size of the batch", "bytes"),
    Column("copy_s", pl.Float64, "until it is there", "copy"),
    Column("host_s", pl.Float64, "that it holds the host", "host blocked"),
    Column("factor", pl.Float64, "speedup over the first way"),
    Column("factor_low", pl.Float64, "its 95% CI"),
    Column("factor_high", pl.Float64),
    Column("step_share", pl.Float64, "of a step, if nothing runs beside it", "of a step"),
    Column("difference", pl.Float64, "largest; null: none", "difference", "{:.2g}".format),
)

_NO_TIME: Final = "the budget of"
"""How the reason of a `Measurement` begins for what was not tried."""
_LIKE_ROUNDING: Final = 3.0
"""Times as far apart as by rounding: such differences grow from step to step, and vary."""
WELL_USED: Final = 0.8
"""A device that computes for less of a step than this waits for its host."""
SEVERAL: Final = 10
"""Fewer kernels in a step are no stream of launches."""


def sentence(found: Experiments) -> str:
    """The answer: what gains most."""
    rows = found.table().drop_nulls("factor").sort("factor", descending=True)
    faster = rows.filter(says=FASTER)
    if faster.height:
        best = faster.row(0, named=True)
        gain = f"'{best['experiment']}' makes the step {times(best['factor'])} as fast"
        return f"{gain}{_loss_text(found, best)}"
    if found.circumstances.step_s is None:
        return "The step was not measured"
    if not rows.height:
        no_time = found.trials["why_not"].str.starts_with(_NO_TIME).any()
        return f"No experiment could be tried {'in this time' if no_time else 'on this step'}"
    left_open = rows.filter(says=OPEN)
    if left_open.height:
        first = left_open.row(0, named=True)
        factor = Factor(*(first[name] for name in ("factor", "factor_low", "factor_high", "says")))
        more = duration(budget_for(factor, found.circumstances.took_s))
        return f"Not settled whether '{first['experiment']}' makes the step faster: allow {more}"
    return f"No change makes the step faster ({count(rows.height, 'experiment')})"


def _loss_text(found: Experiments, row: dict[str, Any]) -> str:
    """How far the losses come apart."""
    told = found.circumstances
    if row["loss_difference"] is None or told.loss is None:
        return "; it has no loss that could be compared"
    over = f"over {count(told.loss_steps, 'step')}"
    if not row["loss_difference"]:
        return f", with the same losses {over}"
    difference = f"{row['loss_difference']:.2g} of {told.loss:.3g}"
    if told.rounding and row["loss_difference"] <= _LIKE_ROUNDING * told.rounding:
        return (
            f"; its loss differs no more than rounding makes it: by at most {difference} {over}, "
            f"where weights differ in their last bits by {told.rounding:.2g}"
        )
    return f"; its loss differs by at most {difference} {over}"


def findings_of(found: Experiments) -> list[str]:
    """What was seen beside the experiments, a sentence each."""
    return [*filter(None, [_launches(found), *_lines(found), _copies(found)])]


def _launches(found: Experiments) -> str:
    told = found.circumstances
    many, each_s, busy = told.kernels_per_step, told.kernel_s, told.device_busy_share
    if many is None or each_s is None or busy is None or told.step_s is None:
        return ""
    said = f"the device computes for {share(busy)} of the step, in {count(round(many), 'kernel')}"
    said = f"{said} of {seconds(each_s)} (median)"
    if busy >= WELL_USED:
        return f"{said}: it is well used"
    if many >= SEVERAL and told.gap_s is not None and told.gap_s > each_s:
        return (
            f"{said}: it is bound by launches, each kernel ends before the next is given; "
            "torch.compile, larger batches or CUDA graphs make fewer of them"
        )
    waited_s = float(found.waits["wait_s"].sum())
    why = ", which waits for it in turn (see below)" if waited_s > 0 else ""
    return f"{said}; the rest of the time it waits for its host{why}"


MOST_LINES: Final = 3
"""Lines that wait in sentences; a table has all."""


def _lines(found: Experiments) -> list[str]:
    real = found.circumstances.kernels_per_step is not None
    said = []
    for row in found.waits.head(MOST_LINES).iter_rows(named=True):
        where = f"line {row['line']} of `{row['function']}`" if row["line"] else row["function"]
        often = f"{row['calls_per_step']:.3g}× a step"
        takes = f"waits for the device {often}, {seconds(row['wait_s'])} in all"
        takes = takes if real else f"would wait for a GPU {often}"
        said.append(f"{where} {takes}: {row['source'] or row['what']} ({row['what']})")
    return said


def _copies(found: Experiments) -> str:
    rows = found.copies()
    if rows.height < 2:  # noqa: PLR2004 - one to compare with
        return ""
    first, best = rows.row(0, named=True), rows.sort("copy_s").row(0, named=True)
    said = f"copying a batch ({first['way']}) takes {seconds(first['copy_s'])}"
    if first["step_share"] is not None:
        said = f"{said}, as long as {share(first['step_share'])} of a step"
    return f"{said}; {best['way']}: {seconds(best['copy_s'])}"


def notes_of(found: Experiments) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = found.circumstances
    said = [f"computed by: {told.device}; a step as it is takes {seconds(told.step_s)}"]
    if told.simulated_step_s is not None:
        said = [f"the step is simulated: a timer of {seconds(told.simulated_step_s)}"]
    return [*said, *found.notes]
