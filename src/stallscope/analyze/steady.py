"""Which batches and steps belong to the steady state: after the warm-up, and no process's first."""

from __future__ import annotations

from typing import Final

import polars as pl

_BATCH: Final = ["rank", "epoch", "batch"]


def mark_steady(
    batches: pl.DataFrame, steps: pl.DataFrame, deliveries: pl.DataFrame, warmup: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Batches with `first` (of its process) and `steady`, and steps with `steady`.

    What was made ahead and never used is left out, so that the same call gives the same count. A
    recording too short to leave out its start keeps what there is.

    Args:
        batches: columns of `analyze.spans.BATCHES`, the recorded ones.
        steps: columns of `run.STEPS`; a step that waited is one of the loop's.
        deliveries: columns of `run.DELIVERIES`.
        warmup: steps at the start that are left out.
    """
    first = _first(batches, deliveries)
    batches = batches.join(first, on=_BATCH, how="left", maintain_order="left")
    batches = batches.with_columns(pl.col("first").fill_null(value=False))
    if steps.is_empty():  # somebody else's loop, which was not seen: it uses what it gets
        order = pl.struct("epoch", "batch").rank("dense").cast(pl.Int64) - 1
        presumed = batches.select(*_BATCH, step=order)
        return _of_steps(batches, _steady(presumed, batches, first, warmup)), steps
    chosen = _steady(steps, batches, first, warmup)
    return _of_steps(batches, chosen), steps.with_columns(steady=chosen["steady"])


def _first(batches: pl.DataFrame, deliveries: pl.DataFrame) -> pl.DataFrame:
    """The first batch of each process that makes batches."""
    known = deliveries.filter(pl.col("pid").is_not_null(), pl.col("taken_ns").is_not_null())
    made = known.select(*_BATCH, "pid") if known.height else batches.select(*_BATCH, "pid")
    first = made.sort("epoch", "batch").unique(["rank", "pid"], keep="first", maintain_order=True)
    return first.select(*_BATCH, first=pl.lit(value=True)).unique(_BATCH)


def _steady(
    steps: pl.DataFrame, batches: pl.DataFrame, first: pl.DataFrame, warmup: int
) -> pl.DataFrame:
    """The steps with `steady`: the strictest choice that leaves a batch that was recorded whole."""
    whole = batches.filter("complete").select(*_BATCH, whole=pl.lit(value=True)).unique(_BATCH)
    marked = (
        steps.select(*_BATCH, "step")
        .join(first, on=_BATCH, how="left", maintain_order="left")
        .join(whole, on=_BATCH, how="left", maintain_order="left")
        .with_columns(pl.col("first", "whole").fill_null(value=False))
    )
    late, later = pl.col("step") >= warmup, ~pl.col("first")
    for steady in (late & later, later, pl.lit(value=True)):
        chosen = marked.with_columns(steady=steady)
        if whole.is_empty() or chosen.filter("steady", "whole").height:
            break
    return chosen


def _of_steps(batches: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The batches with `steady`: those of a steady step that were recorded whole."""
    steady = steps.filter("steady").select(_BATCH).unique().with_columns(used=pl.lit(value=True))
    joined = batches.join(steady, on=_BATCH, how="left", maintain_order="left")
    used = pl.col("used").fill_null(value=False)
    return joined.with_columns(steady=pl.col("complete") & used).drop("used")
