"""A stall cut into sections by the way of its batch, and whose time each of them is.

Before its worker took the task up, the worker was on an earlier batch, or not ready yet, or the
task lay in a queue. While the batch was being made, its spans say at which stage. Then it lay in
the worker's queue, was pickled and sent, received, pinned and handed out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.stalls import milestones as at
from stallscope.analyze.stalls.covered import Covered, Line, apart
from stallscope.stages import KINDS

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    from stallscope.analyze.stalls.milestones import Way

    Schema = dict[str, PolarsDataType]
    _Names = dict[int, np.ndarray | str]  # of a section; one for all stalls, or one for each

EARLIER: Final = "earlier batch"
"""The worker that owed the batch was still on an earlier one."""
START: Final = "start workers"
"""The worker was being started, or was getting ready for its first batch."""
QUEUED: Final = "queued"
"""The task, or the batch, lay in a queue: nobody was at work on it."""
SEND: Final = "send"
"""The worker's feeder thread pickled the batch and wrote it into the pipe."""
UNPICKLE: Final = "unpickle"
"""It had been sent and was not yet received."""
PIN: Final = "pin"
"""It was being copied to pinned memory."""
MAIN: Final = "main process"
"""The loader's own work in the training loop's process: sampler, bookkeeping."""
GARBAGE: Final = "garbage collection"
"""The main process collected garbage when it should have received or handed out the batch."""
NOT_RECORDED: Final = "not recorded"
"""It was being made, but the recorder had left it out."""
UNATTRIBUTED: Final = "unattributed"
"""Nothing that was recorded explains it."""

KIND_OF: Final = {
    **dict.fromkeys((EARLIER, START, MAIN, GARBAGE, NOT_RECORDED), "other"),
    **dict.fromkeys((QUEUED, SEND, UNPICKLE), "send"),
    PIN: "pin",
    UNATTRIBUTED: None,
}
"""Every part that is no worker's stage, with its kind."""

_ROW: Final[Schema] = {
    "stall": pl.Int64,
    "section": pl.Int64,
    "part": pl.String,
    "kind": pl.Enum(KINDS),
    "ns": pl.Int64,
}
"""One piece of a stall; `stall` is its row number."""


def pieces(
    way: Way, deliveries: pl.DataFrame, spans: pl.DataFrame, side_spans: pl.DataFrame
) -> pl.DataFrame:
    """Cut the stalls up; the pieces of each stall add up to it exactly.

    Args:
        way: the milestones of the batches waited for.
        deliveries: columns of `run.DELIVERIES`.
        spans: columns of `analyze.spans.SPANS`, the workers'.
        side_spans: the same columns; garbage collections of the main process are used.

    Returns:
        `stall` (its row number), `section`, `part`, `kind`, `ns`, in the order of the way.
    """
    work, rest = _making(way, spans)
    around = _around(way, _earlier(deliveries), _collecting(side_spans))
    return (
        pl.concat([*around, work, rest])
        .filter(pl.col("ns") > 0)
        .sort("stall", "section", maintain_order=True)
    )


def _making(way: Way, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The stages of each batch while it was being made in the stall, and what they leave over."""
    own = spans.join(way.batches, on=["rank", "pid", "epoch", "batch"])
    stall = own["stall"].to_numpy()
    recorded = np.zeros(way.batches.height, dtype=bool)
    recorded[stall] = True
    taken_ns, made_ns = way.moments_ns[:, at.TAKEN], way.moments_ns[:, at.TAKEN + 1]
    longest_ns = made_ns[stall] - taken_ns[stall]
    starts_ns = np.clip(own["start_ns"].to_numpy() - taken_ns[stall], 0, longest_ns)
    ends_ns = np.clip(own["end_ns"].to_numpy() - taken_ns[stall], 0, longest_ns)
    inside = np.flatnonzero(ends_ns > starts_ns)
    line = Line.over(starts_ns[inside], ends_ns[inside])
    starts = line.place(stall[inside], starts_ns[inside])
    order = np.argsort(starts, kind="stable")
    # Where two threads of a worker were on the same batch, a moment counts for one of them
    starts, ends = apart(starts[order], line.place(stall[inside], ends_ns[inside])[order])
    work = (
        own.select("stall", section=at.TAKEN, part="stage", kind="kind")[inside[order]]
        .with_columns(ns=pl.Series(ends - starts))
        .group_by("stall", "section", "part", "kind", maintain_order=True)
        .agg(pl.col("ns").sum())
    )
    rest_ns = made_ns - taken_ns
    np.subtract.at(rest_ns, work["stall"].to_numpy(), work["ns"].to_numpy())
    rest = _rows(at.TAKEN, np.where(recorded, UNATTRIBUTED, NOT_RECORDED), rest_ns)
    return _as_rows(work), rest


def _around(way: Way, earlier: Covered, collecting: Covered) -> list[pl.DataFrame]:
    """Everything before and after the making."""
    first = np.where(way.known, np.where(way.opening, START, MAIN), UNATTRIBUTED)
    waits = np.where(way.in_process, MAIN, np.where(way.first, START, QUEUED))
    held = np.where(way.in_process, MAIN, QUEUED)
    before: _Names = {0: first, at.ASKED: waits}
    sent: _Names = {at.MADE: QUEUED, at.PICKLED: SEND, at.SENT: UNPICKLE}
    received: _Names = {at.ARRIVED: held, at.PINNING: PIN, at.PINNED: MAIN}
    process, rank = _processes(way.batches), _ranks(way.batches)
    rows = []
    for section, name in (before | sent | received).items():
        begin_ns, end_ns = way.moments_ns[:, section], way.moments_ns[:, section + 1]
        earlier_ns = earlier.within(process, begin_ns, end_ns) * (section in before)
        left_ns = end_ns - begin_ns - earlier_ns
        of_main = (np.asarray(name) == MAIN) | (section in {at.SENT, at.ARRIVED})
        garbage_ns = np.minimum(collecting.within(rank, begin_ns, end_ns), left_ns) * of_main
        rows.append(_rows(section, EARLIER, earlier_ns))
        rows.append(_rows(section, GARBAGE, garbage_ns))
        rows.append(_rows(section, name, left_ns - garbage_ns))
    return rows


def _rows(section: int, part: np.ndarray | str, ns: np.ndarray) -> pl.DataFrame:
    """The same piece of every stall."""
    frame = pl.DataFrame({"stall": np.arange(ns.size), "ns": ns})
    name = pl.lit(part) if isinstance(part, str) else pl.Series(part, dtype=pl.String)
    frame = frame.with_columns(section=section, part=name)
    return _as_rows(frame.with_columns(kind=pl.col("part").replace_strict(KIND_OF)))


def _as_rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in _ROW.items())


def _earlier(deliveries: pl.DataFrame) -> Covered:
    """When each process was making a batch."""
    made = deliveries.drop_nulls(["taken_ns", "made_ns"])
    return Covered(_processes(made), made["taken_ns"].to_numpy(), made["made_ns"].to_numpy())


def _collecting(side_spans: pl.DataFrame) -> Covered:
    """When the main process of each rank collected garbage."""
    main = pl.col("worker").is_null() & (pl.col("stage").cast(pl.String) == GARBAGE)
    spans = side_spans.filter(main)
    return Covered(_ranks(spans), spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def _processes(frame: pl.DataFrame) -> np.ndarray:
    """A number for each process; -1 where it is not known."""
    process = pl.col("rank").cast(pl.Int64) * 2**32 + pl.col("pid").cast(pl.Int64)
    return frame.select(process.fill_null(-1)).to_series().to_numpy()


def _ranks(frame: pl.DataFrame) -> np.ndarray:
    return frame["rank"].cast(pl.Int64).to_numpy()
