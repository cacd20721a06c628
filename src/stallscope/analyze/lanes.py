"""What each worker did over a few seconds: batch by batch, the time of its samples by kind.

A batch has hundreds of spans, far more than a picture can show, so within a batch the spans of one
kind are put together. A batch's begin, end and totals are as measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from stallscope.analyze.profile import WORK_KINDS

BATCHES_SHOWN: Final = 5
"""Batches of each worker that fit beside each other."""
LONGEST_S: Final = 5.0
"""A window is no longer, unless two batches of a worker are."""

_BATCH: Final = ["rank", "pid", "worker", "epoch", "batch"]


@dataclass(frozen=True)
class Lanes:
    """A few seconds of the steady state."""

    blocks: pl.DataFrame
    """One row a batch: `rank, pid, worker, epoch, batch, start_s, end_s`, and a column of seconds
    for each of `WORK_KINDS`. Times count from the window's beginning; blocks may reach over its
    ends."""
    length_s: float
    """Length of the window, seconds."""
    busy_share: float
    """Share (0 to 1) of the window in which the workers were inside of a batch."""


def lanes(spans: pl.DataFrame) -> Lanes:
    """The first seconds of the longest epoch in which all workers are at work.

    Args:
        spans: columns of `analyze.spans.SPANS`, of the steady state.
    """
    blocks = _blocks(spans)
    if blocks.is_empty():
        return Lanes(blocks, 0.0, 0.0)
    longest = blocks["epoch"].value_counts().sort("count", "epoch", descending=[True, False])
    blocks = blocks.filter(pl.col("epoch") == longest["epoch"][0])  # another may have other workers
    per_process = blocks.group_by("rank", "pid").agg(
        first=pl.col("start_s").min(), last=pl.col("end_s").max()
    )
    begin = float(per_process["first"].max())  # type: ignore[arg-type]  # a float column
    end = float(per_process["last"].min())  # type: ignore[arg-type]  # a float column
    if end <= begin:  # the processes worked one after the other
        begin, end = float(blocks["start_s"].min()), float(blocks["end_s"].max())  # type: ignore[arg-type]
    length_s = min(end - begin, _length_s(blocks))
    seen = blocks.filter(pl.col("end_s") > begin, pl.col("start_s") < begin + length_s)
    seen = seen.with_columns(pl.col("start_s", "end_s") - begin).sort("worker", "pid", "start_s")
    inside_s = seen["end_s"].clip(upper_bound=length_s) - seen["start_s"].clip(lower_bound=0)
    processes = per_process.height
    return Lanes(seen, length_s, float(inside_s.sum()) / (length_s * processes))


def _length_s(blocks: pl.DataFrame) -> float:
    """Room for a few typical batches, from the begin of one to the begin of the next."""
    starts = blocks.sort("start_s").select(
        (pl.col("start_s").diff().over("rank", "pid")).alias("period_s")
    )
    typical = starts["period_s"].drop_nulls().median()
    if not isinstance(typical, float) or typical <= 0:
        return float((blocks["end_s"] - blocks["start_s"]).max())  # type: ignore[arg-type]
    return max(min(typical * BATCHES_SHOWN, LONGEST_S), typical * 2)


def _blocks(spans: pl.DataFrame) -> pl.DataFrame:
    wall_s = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
    work = spans.with_columns(pl.col("kind").cast(pl.String))
    return (
        work.filter(pl.col("kind").is_in(WORK_KINDS))
        .group_by(_BATCH, maintain_order=True)
        .agg(
            start_s=pl.col("start_ns").min() / 1e9,
            end_s=pl.col("end_ns").max() / 1e9,
            **{kind: wall_s.filter(pl.col("kind") == kind).sum() for kind in WORK_KINDS},
        )
    )
