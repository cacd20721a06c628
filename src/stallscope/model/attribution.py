"""Exposed time: the parts of the workers' and the loop's work for which the training loop stalled.

Busy workers cost no time; a loop that waits for them does. So the work on a batch is laid over the
stall that waited for the batch, and only the overlap counts (see `lifecycle`). Time of a stall
outside of the DataLoader's own `next` is work of the main process. The parts add up to the stall.
These are the observations of each stall; `exposure` divides all stalls together.

Here and in `lifecycle`, tables are named by their columns: `steps`, `waits` and `deliveries` as in
`run.result`, `spans` (of workers) and `side_spans` as in `run.decode.SPANS`. Only `steps` are a
selection; the others cover the whole run, with warm-up and all epochs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from stallscope.columns import Column, Schema
from stallscope.model.lifecycle import (
    KIND_OF,
    MAIN,
    NOT_RECORDED,
    attribute_sections,
    covered_ns,
)
from stallscope.model.thresholds import STALL_S, STALL_SHARE
from stallscope.stages import KINDS, WORK_KINDS

STALLS: Final = Schema(
    "One row a stall. A device that works behind the host is idle from `start_ns` to `end_ns`.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32, "step that waited"),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("worker", pl.Int16),
    Column("start_ns", pl.Int64, "from the start of the run"),
    Column("end_ns", pl.Int64),
    Column("stall_s", pl.Float64),
    Column("hidden_s", pl.Float64, "part of the wait before, while the device still had work"),
)

PARTS: Final = Schema(
    "One row a stall and part, in the order of the batch's way; they add up to its `stall_s`.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32),
    Column("part", pl.String),
    Column("kind", pl.Enum(KINDS), "null: unattributed"),
    Column("exposed_s", pl.Float64),
)

EXPOSED: Final = Schema(
    "One row a part, the longest first.",
    Column("part", pl.String),
    Column("kind", pl.Enum(KINDS), "null: unattributed"),
    Column("exposed_s", pl.Float64),
    Column("share", pl.Float64, "share (0 to 1) of all stalled time"),
    Column("stalls", pl.Int64, "stalls in which it occurs"),
)

_PART: Final = ("part", "kind")

_STEP = ["rank", "step"]


def with_hidden(steps: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """Add the seconds of each wait in which the device still had work (`hidden_s`)."""
    if device_work.is_empty():
        return hidden_known(steps)
    waits = steps.select("rank", "end_ns", start_ns=begin_ns()).fill_null(0)
    seen = pl.col("kind").is_not_null()
    hidden_ns = covered_ns(waits, device_work.filter(seen))
    unseen_ns = covered_ns(waits, device_work.filter(~seen))
    hidden_s = pl.Series("hidden_s", hidden_ns / 1e9)
    return steps.with_columns(hidden_s.set(pl.Series(unseen_ns > 0), None))


def hidden_known(steps: pl.DataFrame) -> pl.DataFrame:
    """Add `hidden_s` to the steps where it is missing: 0, as the host computes the steps itself."""
    return steps if "hidden_s" in steps.columns else steps.with_columns(hidden_s=pl.lit(0.0))


def begin_ns() -> pl.Expr:
    """Return the begin of a step's wait: on an epoch's first step, of `iter(loader)`."""
    restart_s = pl.col("restart_s").fill_null(0.0)
    return pl.col("start_ns") - (restart_s * 1e9).round().cast(pl.Int64)


def find_stalls(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the significant waits, by the median of these steps; columns of `STALLS`.

    On an epoch's first step, `iter(loader)` is part of the wait. For a device that works behind the
    host, only the idle end of the wait counts, or nothing where it is unknown.
    """
    steps = hidden_known(steps)
    restart_s = pl.col("restart_s").fill_null(0.0)
    used_s = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")  # null counts as 0
    start_ns = begin_ns() + (pl.col("hidden_s") * 1e9).round().cast(pl.Int64)
    waits = (
        steps.drop_nulls(["start_ns", "end_ns"])
        .with_columns(period_s=used_s + restart_s, start_ns=start_ns)
        .with_columns(stall_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
    )
    return waits.filter(
        pl.col("stall_s") > STALL_S,
        pl.col("stall_s") > STALL_SHARE * pl.col("period_s").median(),
    ).select(pl.col(name).cast(kind) for name, kind in STALLS.items())


def stall_parts(
    stalls: pl.DataFrame,
    deliveries: pl.DataFrame,
    spans: pl.DataFrame,
    side_spans: pl.DataFrame,
) -> pl.DataFrame:
    """Divide each stall; columns of `PARTS`, in the order of the stalls."""
    which = stalls.select(_STEP).with_row_index("stall")
    return (
        attribute_sections(stalls, deliveries, spans, side_spans)
        .join(which, on="stall", maintain_order="left")
        .group_by(*_STEP, *_PART, maintain_order=True)
        .agg(exposed_s=pl.col("ns").sum() / 1e9)
        .select(pl.col(name).cast(kind) for name, kind in PARTS.items())
    )


def table(parts: pl.DataFrame) -> pl.DataFrame:
    """Sum the parts of all stalls; columns of `EXPOSED`.

    Recorded batches represent the others: the time of batches that were not recorded is divided
    among the stages in proportion. Without any stage, it stays a part of its own.
    """
    is_own = pl.any_horizontal(map(_is_own, KIND_OF))
    not_recorded_s = pl.col("exposed_s").filter(_is_own(NOT_RECORDED)).sum()
    is_work = pl.col("kind").is_in(WORK_KINDS) & ~is_own
    work_s = pl.col("exposed_s").filter(is_work).sum()
    stands_for = pl.when(is_work).then(1 + not_recorded_s / work_s).otherwise(1.0)
    return (
        parts.group_by(_PART, maintain_order=True)
        .agg(pl.col("exposed_s").sum(), stalls=pl.struct("rank", "step").n_unique())
        .with_columns(exposed_s=pl.col("exposed_s") * stands_for, work_s=work_s)
        .filter(~_is_own(NOT_RECORDED) | (pl.col("work_s") == 0))
        .with_columns(share=pl.col("exposed_s") / pl.col("exposed_s").sum())
        .sort("exposed_s", descending=True, maintain_order=True)
        .select(pl.col(name).cast(kind) for name, kind in EXPOSED.items())
    )


def _is_own(part: str) -> pl.Expr:
    """Return whether a row is this part, not a stage of the user's with the same name."""
    return (pl.col("part") == part) & pl.col("kind").eq_missing(
        pl.lit(KIND_OF[part], PARTS["kind"])
    )


class StallBreakdown(NamedTuple):
    """Stalls, columns of `STALLS`, and their parts, columns of `PARTS`."""

    stalls: pl.DataFrame
    parts: pl.DataFrame


def break_down_stalls(
    steps: pl.DataFrame,
    waits: pl.DataFrame,
    deliveries: pl.DataFrame,
    spans: pl.DataFrame,
    side_spans: pl.DataFrame,
) -> StallBreakdown:
    """Divide the stalls of these steps."""
    stalls = find_stalls(steps)
    parts = stall_parts(_windows(stalls, steps, waits), deliveries, spans, side_spans)
    sums = parts.group_by(_STEP).agg(known_s=pl.col("exposed_s").sum())
    rest_s = pl.col("stall_s") - pl.col("known_s").fill_null(0.0)
    # Time outside of the DataLoader's own waits
    rest = (
        stalls.join(sums, on=_STEP, how="left", maintain_order="left")
        .select(*_STEP, part=pl.lit(MAIN), kind=pl.lit(KIND_OF[MAIN]), exposed_s=rest_s)
        .filter(pl.col("exposed_s") > 1e-9)  # noqa: PLR2004 - a nanosecond
        .select(pl.col(name).cast(kind) for name, kind in PARTS.items())
    )
    return StallBreakdown(stalls, pl.concat([parts, rest]))


def _windows(stalls: pl.DataFrame, steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the DataLoader's own waits in the stalls; the first includes `iter(loader)`."""
    restarted = pl.col("restart_s").is_not_null() & pl.int_range(pl.len()).over(_STEP).eq(0)
    stall = stalls.select(*_STEP, "worker", "hidden_s", stalled_ns="start_ns")
    return (
        waits.join(stall, on=_STEP, how="inner", maintain_order="left")
        .join(steps.select(*_STEP, "restart_s"), on=_STEP, how="left", maintain_order="left")
        .with_columns(start_ns=pl.when(restarted).then("stalled_ns").otherwise("start_ns"))
        .with_columns(start_ns=pl.max_horizontal("start_ns", "stalled_ns"))
        .filter(pl.col("end_ns") >= pl.col("start_ns"))
        .with_columns(stall_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        .select(pl.col(name).cast(kind) for name, kind in STALLS.items())
    )
