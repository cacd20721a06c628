"""Lifecycle of a batch through a stall: which process held the batch in each section.

Before its worker took the task up, the worker was on an earlier batch, or not ready yet, or the
task lay in a queue. While the batch was being made, its spans say at which stage. Then it lay in
the worker's queue, was pickled and sent, received, pinned and handed out. The sections of a stall
add up to it, to the nanosecond, whatever was seen and whatever was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.stages import GARBAGE, KINDS

if TYPE_CHECKING:
    from stallscope.store import Schema

    _Names = dict[int, np.ndarray | str]  # of a section; one for all stalls, or one for each


BATCH: Final = ("rank", "epoch", "batch")
"""Key of a batch, together with the process that made it."""

ASKED, TAKEN, MADE, PICKLED, SENT, ARRIVED, PINNING, PINNED = range(1, 9)
"""Columns of `BatchLifecycle.moments_ns`: the task was put into the worker's queue, taken up, made;
the feeder thread began to pickle it, had sent it; it was received, began pinning, was pinned."""

_SENT: Final = ["asked_ns", "taken_ns", "made_ns", "pickle_ns", "sent_ns"]
_RECEIVED: Final = ["arrived_ns", "pinning_ns", "pinned_ns"]

EARLIER: Final = "earlier batch"
"""Work of the batch's worker on an earlier batch."""
START: Final = "start workers"
"""The worker was starting, or getting ready for its first batch."""
QUEUED: Final = "queued"
"""The task, or the batch, was in a queue without any work on it."""
SEND: Final = "send"
"""The worker's feeder thread pickled the batch and wrote it into the pipe."""
UNPICKLE: Final = "unpickle"
"""Batch between sending and receiving."""
PIN: Final = "pin"
"""Copy of the batch to pinned memory."""
MAIN: Final = "main process"
"""The loader's own work in the training loop's process: sampler, bookkeeping."""
MAIN_GARBAGE: Final = "garbage in the main process"
"""Garbage collection that delays receiving or handing out the batch; a worker's own collections
are a stage like any other."""
NOT_RECORDED: Final = "not recorded"
"""Making of a batch that the recorder had left out."""
NO_CORE: Final = "waiting for a core"
"""Wait of a sending or receiving thread for a core."""
UNATTRIBUTED: Final = "unattributed"
"""Time that no record explains."""
KIND_OF: Final = {
    **dict.fromkeys((EARLIER, START, MAIN, MAIN_GARBAGE, NOT_RECORDED, NO_CORE), "other"),
    **dict.fromkeys((QUEUED, SEND, UNPICKLE), "send"),
    PIN: "pin",
    UNATTRIBUTED: None,
}
"""Kinds of all parts that are no stages of a worker."""
_ROW: Final[Schema] = {
    "stall": pl.Int64,
    "section": pl.Int64,
    "part": pl.String,
    "kind": pl.Enum(KINDS),
    "ns": pl.Int64,
}
"""Schema of the pieces of stalls; `stall` is a row number."""


@dataclass(frozen=True)
class BatchLifecycle:
    """Batches that stalls waited for; arrays have a row for each stall, in order."""

    batches: pl.DataFrame
    """`stall` (row number), `rank, pid, epoch, batch`; `pid` is null for unobserved batches."""
    moments_ns: np.ndarray
    """Shape (stalls, 10): begin of the window, the milestones in their order, end of the window;
    none smaller than the one before, none outside of the window."""
    has_record: np.ndarray
    """True: the batch was recorded; False: its first section is the whole window."""
    in_process: np.ndarray
    """True: the main process made the batch itself, without queues."""
    opening: np.ndarray
    """True: the window begins before the request of the epoch's first batch."""
    first: np.ndarray
    """True: the batch is the first of its process, which had to start up before."""


def lifecycle_of(
    stalls: pl.DataFrame, deliveries: pl.DataFrame, side_spans: pl.DataFrame
) -> BatchLifecycle:
    """Find the milestones of the batch that each stall waited for.

    A milestone that was not observed gets the time of a neighbour, so that the observed section has
    the time. Later milestones limit earlier ones: a process reads the clock after the event, so the
    earlier of two readings is right.
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
    return BatchLifecycle(
        seen.select(pl.col("stall").cast(pl.Int64), "rank", "pid", "epoch", "batch"),
        np.maximum(moments_ns, seen["begin_ns"].to_numpy()[:, None]),
        *(seen[name].to_numpy() for name in ("known", "in_process", "opening", "first")),
    )


def _delivered(deliveries: pl.DataFrame) -> pl.DataFrame:
    """Return each batch once, with its place in the whole run."""
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
    """Give each milestone that was not observed the time of an observed neighbour."""
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


def make_disjoint(starts_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make sorted intervals disjoint: each begins after the end of all before it, or is empty."""
    before_ns = np.maximum.accumulate(ends_ns)[:-1]
    starts_ns = np.append(starts_ns[:1], np.maximum(starts_ns[1:], before_ns))
    return starts_ns, np.maximum(starts_ns, ends_ns)


@dataclass(frozen=True)
class GroupAxis:
    """Axis with the times of all groups end to end, so that one sort serves all groups."""

    low_ns: int
    """Earliest time of any group."""
    width_ns: int
    """Distance from the earliest to the latest time."""

    @classmethod
    def over(cls, starts_ns: np.ndarray, ends_ns: np.ndarray) -> GroupAxis:
        """Return a line that is long enough for these intervals."""
        if not starts_ns.size:
            return cls(0, 0)
        low_ns = int(starts_ns.min())
        return cls(low_ns, max(int(ends_ns.max()) - low_ns, 0))

    def place(self, group: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """Return the place on the line of a group's (0, 1, 2...) time."""
        along_ns = np.clip(time_ns - self.low_ns, 0, self.width_ns)
        place: np.ndarray = group * (self.width_ns + 1) + along_ns
        return place


class IntervalUnion:
    """Union of the intervals of each group; groups are numbers."""

    def __init__(self, group: np.ndarray, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        self._groups = np.unique(group)
        self._line = GroupAxis.over(starts_ns, ends_ns)
        number = np.searchsorted(self._groups, group)
        starts, ends = self._line.place(number, starts_ns), self._line.place(number, ends_ns)
        order = np.argsort(starts, kind="stable")
        self._starts, self._ends = make_disjoint(starts[order], ends[order])
        self._before_ns = np.cumsum(self._ends - self._starts) - (self._ends - self._starts)

    def within(self, group: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Return the time of each stretch that its group's intervals cover, ns."""
        if not self._groups.size:
            return np.zeros(group.size, dtype=np.int64)
        number = np.minimum(np.searchsorted(self._groups, group), self._groups.size - 1)
        covered_ns = self._until(self._line.place(number, end_ns))
        covered_ns -= self._until(self._line.place(number, begin_ns))
        return np.where(self._groups[number] == group, covered_ns, 0)

    def _until(self, place: np.ndarray) -> np.ndarray:
        """Return the covered time from the start of the line to a place."""
        last = np.searchsorted(self._starts, place, side="right") - 1
        inside = np.minimum(place, self._ends[last]) - self._starts[last]
        return np.where(last >= 0, self._before_ns[last] + inside, 0)


def covered_ns(stretches: pl.DataFrame, by: pl.DataFrame) -> np.ndarray:
    """Return the time of each stretch that its rank's rows in another table cover, ns.

    Args:
        stretches: columns `rank`, `start_ns`, `end_ns`.
        by: the same columns.
    """
    stretch_columns, whole = (
        [table[name].cast(pl.Int64).to_numpy() for name in ("rank", "start_ns", "end_ns")]
        for table in (stretches, by)
    )
    return IntervalUnion(*whole).within(*stretch_columns)


def covered_s(spans: pl.DataFrame, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Return the time of each window that spans of any rank cover, seconds."""
    alone, ours = (np.zeros(size, dtype=np.int64) for size in (starts_ns.size, spans.height))
    union = IntervalUnion(ours, spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
    return np.asarray(union.within(alone, starts_ns, ends_ns) / 1e9)


def attribute_sections(
    lifecycle: BatchLifecycle,
    deliveries: pl.DataFrame,
    spans: pl.DataFrame,
    side_spans: pl.DataFrame,
) -> pl.DataFrame:
    """Cut the stalls up, columns of `_ROW` in the lifecycle's order; the pieces add up exactly."""
    work, rest = _making(lifecycle, spans)
    finished = deliveries.drop_nulls(["taken_ns", "made_ns"])
    collected = side_spans.filter(
        pl.col("worker").is_null(), pl.col("stage").cast(pl.String) == GARBAGE.name
    )
    earlier = IntervalUnion(
        _processes(finished), finished["taken_ns"].to_numpy(), finished["made_ns"].to_numpy()
    )
    collecting = IntervalUnion(
        _ranks(collected), collected["start_ns"].to_numpy(), collected["end_ns"].to_numpy()
    )
    around = _around(lifecycle, earlier, collecting)
    return (
        pl.concat([*around, work, rest])
        .filter(pl.col("ns") > 0)
        .sort("stall", "section", maintain_order=True)
    )


def _making(lifecycle: BatchLifecycle, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the stages of each batch's making in the stall, and the rest of that time."""
    own = spans.join(lifecycle.batches, on=["rank", "pid", "epoch", "batch"])
    stall = own["stall"].to_numpy()
    recorded = np.zeros(lifecycle.batches.height, dtype=bool)
    recorded[stall] = True
    taken_ns, made_ns = lifecycle.moments_ns[:, TAKEN], lifecycle.moments_ns[:, TAKEN + 1]
    longest_ns = made_ns[stall] - taken_ns[stall]
    starts_ns = np.clip(own["start_ns"].to_numpy() - taken_ns[stall], 0, longest_ns)
    ends_ns = np.clip(own["end_ns"].to_numpy() - taken_ns[stall], 0, longest_ns)
    inside = np.flatnonzero(ends_ns > starts_ns)
    line = GroupAxis.over(starts_ns[inside], ends_ns[inside])
    starts = line.place(stall[inside], starts_ns[inside])
    order = np.argsort(starts, kind="stable")
    # A moment counts once where two threads of a worker were on the same batch
    starts, ends = make_disjoint(starts[order], line.place(stall[inside], ends_ns[inside])[order])
    work = (
        own.select("stall", section=TAKEN, part="stage", kind="kind")[inside[order]]
        .with_columns(ns=pl.Series(ends - starts))
        .group_by("stall", "section", "part", "kind", maintain_order=True)
        .agg(pl.col("ns").sum())
    )
    rest_ns = made_ns - taken_ns
    np.subtract.at(rest_ns, work["stall"].to_numpy(), work["ns"].to_numpy())
    rest = _rows(TAKEN, np.where(recorded, UNATTRIBUTED, NOT_RECORDED), rest_ns)
    return _as_rows(work), rest


def _around(
    lifecycle: BatchLifecycle, earlier: IntervalUnion, collecting: IntervalUnion
) -> list[pl.DataFrame]:
    """Return the sections before and after the making."""
    first = np.where(lifecycle.has_record, np.where(lifecycle.opening, START, MAIN), UNATTRIBUTED)
    waits = np.where(lifecycle.in_process, MAIN, np.where(lifecycle.first, START, QUEUED))
    held = np.where(lifecycle.in_process, MAIN, QUEUED)
    before: _Names = {0: first, ASKED: waits}
    sent: _Names = {MADE: QUEUED, PICKLED: SEND, SENT: UNPICKLE}
    received: _Names = {ARRIVED: held, PINNING: PIN, PINNED: MAIN}
    process, rank = _processes(lifecycle.batches), _ranks(lifecycle.batches)
    rows = []
    for section, name in (before | sent | received).items():
        begin_ns, end_ns = lifecycle.moments_ns[:, section], lifecycle.moments_ns[:, section + 1]
        earlier_ns = earlier.within(process, begin_ns, end_ns) * (section in before)
        left_ns = end_ns - begin_ns - earlier_ns
        of_main = (np.asarray(name) == MAIN) | (section in {SENT, ARRIVED})
        garbage_ns = np.minimum(collecting.within(rank, begin_ns, end_ns), left_ns) * of_main
        rows.append(_rows(section, EARLIER, earlier_ns))
        rows.append(_rows(section, MAIN_GARBAGE, garbage_ns))
        rows.append(_rows(section, name, left_ns - garbage_ns))
    return rows


def _rows(section: int, part: np.ndarray | str, ns: np.ndarray) -> pl.DataFrame:
    """Return the same piece of every stall."""
    frame = pl.DataFrame({"stall": np.arange(ns.size), "ns": ns})
    name = pl.lit(part) if isinstance(part, str) else pl.Series(part, dtype=pl.String)
    frame = frame.with_columns(section=section, part=name)
    return _as_rows(frame.with_columns(kind=pl.col("part").replace_strict(KIND_OF)))


def _as_rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in _ROW.items())


def _processes(frame: pl.DataFrame) -> np.ndarray:
    """Return a number for each process; -1 where unknown."""
    process = pl.col("rank").cast(pl.Int64) * 2**32 + pl.col("pid").cast(pl.Int64)
    return frame.select(process.fill_null(-1)).to_series().to_numpy()


def _ranks(frame: pl.DataFrame) -> np.ndarray:
    return frame["rank"].cast(pl.Int64).to_numpy()
