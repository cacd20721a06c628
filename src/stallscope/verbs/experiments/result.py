"""Result of `ss.experiments`: speedup of each change, waiting lines and times of copies.

A gain is the mean over pairs of laps, one of the step as it is and one of the changed step. The two
follow each other, from the same state of models, optimizers and generators, over the same batches.
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
    gain_text,
    of_samples,
    of_starts,
    open_title,
)
from stallscope.columns import CODE, CODE_FILE, NAME, Column, Schema, interval
from stallscope.model.thresholds import WELL_USED
from stallscope.result import LoopConditions, SavedResult
from stallscope.store import stored
from stallscope.units import MOST_NAMED, capital, count, seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


AS_IT_IS: Final = "as it is"

TRIALS: Final = Schema(
    "One row per experiment; the first is the unchanged step, twice.",
    Column("experiment", pl.String, secret=NAME),
    Column("code", pl.String),
    Column("loss_difference", pl.Float64, "largest difference of a step's loss"),
    Column("why_not", pl.String, "why it was not tried"),
    nullable="loss_difference why_not",
)

PAIRS: Final = Schema(
    "One row per pair of laps: the median unchanged step, and the median changed step.",
    Column("experiment", pl.String, secret=NAME),
    Column("before_s", pl.Float64, is_divisor=True),
    Column("after_s", pl.Float64, is_divisor=True),
)

WAITS: Final = Schema(
    "One row per line that makes the host wait for the device (on a CPU: would on a GPU).",
    Column("what", pl.String, "kind of wait", "waits for the device"),
    Column("function", pl.String, secret=NAME),
    Column("file", pl.String, secret=CODE_FILE),
    Column("line", pl.Int32),
    Column("source", pl.String, secret=CODE),
    Column("calls_per_step", pl.Float64, "", "calls per step", "{:.3g}".format),
    Column("wait_s", pl.Float64, "time of the host per step", "time per step"),
)

COPY_TIMES: Final = Schema(
    "One row per copy of a batch to the device.",
    Column("way", pl.String, "", "copy of a batch", secret=NAME),
    Column("bytes", pl.Int64, "size of the batch", "bytes"),
    Column("copy_s", pl.Float64, "time until the batch is on the device", "copy"),
    Column("host_s", pl.Float64, "time that the copy blocks the host", "host blocked"),
)


@dataclass(frozen=True)
class ExperimentsConditions(LoopConditions):
    """Target, step and machine of the measurement."""

    step_s: float | None = None
    """Median seconds of the step as it is; None where it was not measured."""
    loss: float | None = None
    """Mean absolute loss of the step as it is; None without a loss."""
    loss_steps: int = 0
    """Steps with compared losses."""
    kernels_per_step: float | None = None
    """Kernels of the device in a step; None without a device."""
    kernel_s: float | None = None
    """Median seconds of a kernel."""
    gap_s: float | None = None
    """Median seconds between two kernels."""
    took_s: float = 0.0
    """Seconds that the measurement took."""
    device_busy_share: float | None = None
    """Share (0 to 1) of the time in which the device computes; None without one."""


@dataclass(frozen=True, eq=False)
class Experiments(SavedResult):
    """Changes that speed a training step up, waiting lines and times of copies."""

    _view: ClassVar[str] = "results.EXPERIMENTS"
    _noun: ClassVar[str] = "set of experiments"

    trials: pl.DataFrame = stored(TRIALS)
    pairs: pl.DataFrame = stored(PAIRS)
    waits: pl.DataFrame = stored(WAITS)
    copy_times: pl.DataFrame = stored(COPY_TIMES)
    circumstances: ExperimentsConditions = field(default_factory=ExperimentsConditions)
    """Target, step and machine of the measurement."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""

    @computed_apart
    def table(self) -> pl.DataFrame:
        """Return a row for each experiment, columns of `experiments.result.TABLE`."""
        return pl.DataFrame([self._row(trial) for trial in self.trials.to_dicts()], TABLE)

    def _row(self, trial: dict[str, Any]) -> dict[str, Any]:
        laps = self.pairs.filter(experiment=trial["experiment"])
        row = dict.fromkeys(TABLE) | trial | {"pairs": laps.height}
        if laps.height:
            row |= laps.select("before_s", "after_s").median().row(0, named=True)
            factor = of_laps(laps.select("before_s", "after_s").rows())
            row |= zip(_FACTOR, factor, strict=True)
        return row

    @computed_apart
    def copies(self) -> pl.DataFrame:
        """Return a row for each way to copy a batch to the device; columns of `COPIES`."""
        step_s = self.circumstances.step_s
        methods = self.copy_times.partition_by("way", maintain_order=True)
        rows = []
        for method in methods:
            pairs = zip(methods[0]["copy_s"], method["copy_s"], strict=False)
            factor = of_samples(*zip(*pairs, strict=True))
            row = method.row(0, named=True)
            row |= method.select("copy_s", "host_s").median().row(0, named=True)
            row |= zip(_FACTOR[:3], factor[:3], strict=True)
            rows.append(row | {"step_share": row["copy_s"] / step_s if step_s else None})
        return pl.DataFrame(rows, COPIES)


_FACTOR: Final = ("factor", "factor_low", "factor_high", "says")


def of_laps(pairs: Iterable[tuple[float, float]]) -> Factor:
    """Compare median steps of laps as it is and changed; each pair counts as a start."""
    return of_starts([math.log(before_s / after_s)] for before_s, after_s in pairs)


TABLE: Final = Schema(
    "One row per experiment, the unchanged step first; null: not tried.",
    Column("experiment", pl.String, "name of the change", "experiment"),
    Column("code", pl.String),
    Column("before_s", pl.Float64, "median unchanged step", "as it is"),
    Column("after_s", pl.Float64, "median step with the change", "changed"),
    Column("factor", pl.Float64, "speedup of the step", "speedup", "{:.2f}×".format),
    *interval("factor_low", "{:.2f}".format),
    Column("says", pl.String, "word of `bench.comparison`"),
    Column("loss_difference", pl.Float64, "largest", "loss difference", "{:.2g}".format),
    Column("pairs", pl.Int32, "pairs of laps"),
    Column("why_not", pl.String, "why it was not tried"),
)

COPIES: Final = Schema(
    "One row per kind of copy of a batch to the device; times are medians.",
    *COPY_TIMES.columns,
    Column("factor", pl.Float64, "speedup over the first kind of copy"),
    *interval("factor_low"),
    Column(
        "step_share", pl.Float64, "share of a step, if nothing overlaps with the copy", "of a step"
    ),
)

_NO_TIME: Final = "the budget of"
"""Start of `Measurement.was_over`."""
_SEVERAL: Final = 10
"""Least kernels in a step that is bound by launches."""


def sentence(result: Experiments) -> str:
    """Return the title: the change with the largest speedup."""
    rows = result.table().drop_nulls("factor").sort("factor", descending=True)
    about = result.circumstances
    faster, unsettled = (rows.filter(says=word).to_dicts() for word in (FASTER, OPEN))
    if faster:
        gain = gain_text(*(faster[0][name] for name in _FACTOR[:3]))
        return f"{faster[0]['experiment']} speeds the step up {gain}{_loss_text(about, faster[0])}"
    if about.step_s is None:
        return "The step was not measured"
    if rows.is_empty() and (copies := next(_copies(result), "")):
        return capital(copies)
    if rows.is_empty():
        no_time = result.trials["why_not"].str.starts_with(_NO_TIME).any()
        return f"No change could be tried {'in this time' if no_time else 'on this step'}"
    if unsettled:
        factor = Factor(*(unsettled[0][name] for name in _FACTOR))
        name = unsettled[0]["experiment"]
        return open_title("change", name, factor, rows["factor_high"], about.took_s)
    return f"No change makes the step faster ({count(rows.height, 'change')} tried)"


def _loss_text(about: ExperimentsConditions, row: dict[str, Any]) -> str:
    if row["loss_difference"] is None or about.loss is None:
        return "; the step has no loss to compare"
    over = f"over {count(about.loss_steps, 'step')}"
    if not row["loss_difference"]:
        return f"; same losses {over}"
    return f"; loss differs by at most {row['loss_difference']:.2g} of {about.loss:.3g} {over}"


def findings_of(result: Experiments) -> list[str]:
    """Return findings besides the experiments, a sentence each."""
    title = sentence(result)
    findings = [*_launches(result), *_lines(result), *_copies(result)]
    return [finding for finding in findings if capital(finding) != title]


def _launches(result: Experiments) -> Iterator[str]:
    about = result.circumstances
    kernels, each_s, busy = about.kernels_per_step, about.kernel_s, about.device_busy_share
    if kernels is None or each_s is None or busy is None or about.step_s is None:
        return
    seen = f"device busy {share(busy)} of the step, {count(round(kernels), 'kernel')} of "
    seen += f"{seconds(each_s)} (median)"
    if busy >= WELL_USED:
        yield f"{seen}: well used"
    elif kernels >= _SEVERAL and about.gap_s is not None and about.gap_s > each_s:
        yield (
            f"{seen}: bound by launches, as each kernel ends before the next is launched; "
            "torch.compile, larger batches or CUDA graphs launch fewer"
        )
    else:
        why = (
            ", which itself waits for the device (see below)"
            if result.waits["wait_s"].sum() > 0
            else ""
        )
        yield f"{seen}; otherwise the device waits for its host{why}"


def _lines(result: Experiments) -> Iterator[str]:
    real = result.circumstances.kernels_per_step is not None
    for row in result.waits.head(MOST_NAMED).iter_rows(named=True):
        where = f"line {row['line']} of `{row['function']}`" if row["line"] else row["function"]
        often = f"{row['calls_per_step']:.3g}× per step"
        takes = f"waits for the device {often}, {seconds(row['wait_s'])} in all"
        takes = takes if real else f"would wait for a GPU {often}"
        yield f"{where} {takes}: {row['source'] or row['what']} ({row['what']})"


def _copies(result: Experiments) -> Iterator[str]:
    rows = result.copies()
    if rows.height < 2:  # noqa: PLR2004 - one to compare with
        return
    first, best = rows.row(0, named=True), rows.sort("copy_s").row(0, named=True)
    seen = f"copying a batch ({first['way']}) takes {seconds(first['copy_s'])}"
    if first["step_share"] is not None:
        seen = f"{seen}, {share(first['step_share'])} of a step"
    yield f"{seen}; {best['way']}: {seconds(best['copy_s'])}"


def notes_of(result: Experiments) -> list[str]:
    """Return the notes below the picture, a sentence each."""
    about = result.circumstances
    computed = f"computed by: {about.device}; an unchanged step takes {seconds(about.step_s)}"
    return [*(about.step_notes("") or [computed]), *result.notes]
