"""The way of a batch through a stall: which milestone was passed when, inside of the window.

Between two milestones one party has the batch: the queue to its worker, the worker, the worker's
feeder thread, the pipe, the pin thread, the training loop. So the milestones cut the window of a
stall into sections that add up to it, to the nanosecond, whatever was seen and whatever was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

BATCH: Final = ("rank", "epoch", "batch")
"""What names a batch, together with the process that made it."""

ASKED, TAKEN, MADE, PICKLED, SENT, ARRIVED, PINNING, PINNED = range(1, 9)
"""Columns of `Way.moments_ns`: the task was put into the worker's queue, taken up, made; the
feeder thread began to pickle it, had sent it; it was received, began to be pinned, was pinned."""

_SENT: Final = ["asked_ns", "taken_ns", "made_ns", "pickle_ns", "sent_ns"]
_RECEIVED: Final = ["arrived_ns", "pinning_ns", "pinned_ns"]


@dataclass(frozen=True)
class Way:
    """The batches that stalls waited for; every array has a row for each stall, in their order."""

    batches: pl.DataFrame
    """`stall` (row number), `rank, pid, epoch, batch`; `pid` is null where nothing was seen."""
    moments_ns: np.ndarray
    """Shape (stalls, 10): begin of the window, the milestones in their order, end of the window;
    none smaller than the one before, none outside of the window."""
    known: np.ndarray
    """Whether anything was seen of the batch; if not, its first section is the whole window."""
    in_process: np.ndarray
    """Whether the main process made the batch itself: there are no queues."""
    opening: np.ndarray
    """Whether the window begins before the first batch of the epoch had been asked for."""
    first: np.ndarray
    """Whether it is the first batch of its process, which had to get ready before."""


def way(stalls: pl.DataFrame, deliveries: pl.DataFrame, side_spans: pl.DataFrame) -> Way:
    """Find the milestones of the batch that each stall waited for.

    A milestone that was not seen falls together with a neighbour, so that the section that is
    known takes the time. What comes later in the way bounds what comes before it: a process reads
    the clock after the fact, and where another one was quicker, the other one's clock is right.

    Args:
        stalls: columns of `analyze.stalls.exposed.STALLS`.
        deliveries: columns of `run.DELIVERIES`, of the whole run.
        side_spans: columns of `analyze.spans.SPANS`; those of pinning are used.
    """
    seen = (
        stalls.select(*BATCH, begin_ns="start_ns", finish_ns="end_ns")
        .with_row_index("stall")
        .join(_delivered(deliveries), on=BATCH, how="left", maintain_order="left")
        .join(_pinned(side_spans), on=BATCH, how="left", maintain_order="left")
        .with_columns(in_process=pl.col("known") & pl.col("worker").is_null())
        .with_columns(pl.col("known", "in_process", "first").fill_null(value=False))
    )
    opening = pl.col("begin_ns") < pl.col("began_ns")
    seen = _with_unseen(seen).with_columns(opening=opening.fill_null(value=False))
    moments = seen.select("begin_ns", *_SENT, *_RECEIVED, "finish_ns").to_numpy()
    moments_ns = np.minimum.accumulate(moments[:, ::-1], axis=1)[:, ::-1]
    return Way(
        seen.select(pl.col("stall").cast(pl.Int64), "rank", "pid", "epoch", "batch"),
        np.maximum(moments_ns, seen["begin_ns"].to_numpy()[:, None]),
        *(seen[name].to_numpy() for name in ("known", "in_process", "opening", "first")),
    )


def _delivered(deliveries: pl.DataFrame) -> pl.DataFrame:
    """Each batch once, with what only the whole run says about it."""
    return deliveries.with_columns(
        known=pl.lit(value=True),
        began_ns=pl.col("asked_ns").min().over("rank", "epoch"),
        first=pl.col("taken_ns") == pl.col("taken_ns").min().over("rank", "pid"),
    ).unique(BATCH, keep="last", maintain_order=True)


def _pinned(side_spans: pl.DataFrame) -> pl.DataFrame:
    pins = side_spans.filter(pl.col("kind") == "pin", pl.col("stage").cast(pl.String) == "pin")
    return pins.group_by(BATCH).agg(
        pinning_ns=pl.col("start_ns").min(), pinned_ns=pl.col("end_ns").max()
    )


def _with_unseen(seen: pl.DataFrame) -> pl.DataFrame:
    """Put each milestone that was not seen beside one that was."""
    here_ns = pl.when("in_process").then("made_ns")
    before_ns = pl.when("known").then("begin_ns").otherwise("finish_ns")
    return (
        seen.with_columns(
            asked_ns=pl.coalesce("asked_ns", before_ns),
            arrived_ns=pl.coalesce("arrived_ns", here_ns, "pinning_ns", "finish_ns"),
        )
        .with_columns(taken_ns=pl.coalesce("taken_ns", "asked_ns"))
        .with_columns(made_ns=pl.coalesce("made_ns", "pickle_ns", "sent_ns", "arrived_ns"))
        .with_columns(
            pickle_ns=pl.coalesce("pickle_ns", "made_ns"),
            sent_ns=pl.coalesce("sent_ns", "arrived_ns"),
            pinning_ns=pl.coalesce("pinning_ns", "arrived_ns"),
            pinned_ns=pl.coalesce("pinned_ns", "arrived_ns"),
        )
    )
