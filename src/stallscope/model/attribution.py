"""Exposed time: the parts of the workers' and the loop's work for which the training loop stalled.

Busy workers cost no time; a loop that waits for them does. So the work on a batch is laid over the
stall that waited for the batch, and only the overlap counts. Time of a stall outside of the
DataLoader's own `next` is work of the main process. The parts add up to the stall, to the
nanosecond, whatever was seen and whatever was not.

Each section of a stall is of the process that held the batch. Before its worker took the task up,
the worker was on an earlier batch, or not ready yet, or the task lay in a queue. While the batch
was being made, its spans say at which stage. Then it lay in the worker's queue, was pickled and
sent, received, pinned and handed out. These are the observations of each stall; `exposure` divides
all stalls together.

Tables are named by their columns: `steps`, `waits` and `deliveries` as in `run.result`, `spans` (of
workers) and `side_spans` as in `run.decode.SPANS`. Only `steps` are a selection; the others cover
the whole run, with warm-up and all epochs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.columns import Column, Schema
from stallscope.model.thresholds import STALL_S, STALL_SHARE
from stallscope.stages import GARBAGE, KINDS, WORK_KINDS

STALLS: Final = Schema(
    "One row per stall. A device that works behind the host is idle from `start_ns` to `end_ns`.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32, "step that waited"),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("worker", pl.Int16),
    Column("start_ns", pl.Int64, "from the start of the run"),
    Column("end_ns", pl.Int64),
    Column("stall_s", pl.Float64),
    Column("hidden_s", pl.Float64, "earlier part of the wait, while the device still had work"),
)

PARTS: Final = Schema(
    "One row per stall and part, in the order of the batch's path; they add up to its `stall_s`.",
    Column("rank", pl.Int16),
    Column("step", pl.Int32),
    Column("part", pl.String),
    Column("kind", pl.Enum(KINDS), "null: unattributed"),
    Column("exposed_s", pl.Float64),
)

EXPOSED: Final = Schema(
    "One row per part, longest first.",
    Column("part", pl.String),
    Column("kind", pl.Enum(KINDS), "null: unattributed"),
    Column("exposed_s", pl.Float64),
    Column("share", pl.Float64, "share (0 to 1) of all stalled time"),
    Column("stalls", pl.Int64, "stalls in which it occurs"),
)

_PART: Final = ("part", "kind")

_STEP = ["rank", "step"]
_BATCH: Final = ("rank", "epoch", "batch")
"""Key of a batch, together with the process that made it."""
EARLIER: Final = "earlier batch"
START: Final = "start workers"
"""The worker was starting, or getting ready for its first batch."""
QUEUED: Final = "queued"
"""The task, or the batch, was in a queue without any work on it."""
SEND: Final = "send"
"""The worker's feeder thread pickled the batch and wrote it into the pipe."""
UNPICKLE: Final = "unpickle"
"""Batch between sending and receiving."""
PIN: Final = "pin"
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
KIND_OF: Final = {
    **dict.fromkeys((EARLIER, START, MAIN, MAIN_GARBAGE, NOT_RECORDED, NO_CORE), "other"),
    **dict.fromkeys((QUEUED, SEND, UNPICKLE), "send"),
    PIN: "pin",
    UNATTRIBUTED: None,
}
"""Kinds of all parts that are no stages of a worker."""
_IN_PROCESS: Final = pl.when("in_process").then(pl.lit(MAIN))
_OPENING: Final = pl.when("opening").then(pl.lit(START)).otherwise(pl.lit(MAIN))
_SECTIONS: Final = {
    "begin_ns": pl.when("known").then(_OPENING).otherwise(pl.lit(UNATTRIBUTED)),
    "asked_ns": _IN_PROCESS.when("first").then(pl.lit(START)).otherwise(pl.lit(QUEUED)),
    # of the making, what no span explains
    "taken_ns": pl.when("recorded").then(pl.lit(UNATTRIBUTED)).otherwise(pl.lit(NOT_RECORDED)),
    "made_ns": pl.lit(QUEUED),
    "pickle_ns": pl.lit(SEND),
    "sent_ns": pl.lit(UNPICKLE),
    "arrived_ns": _IN_PROCESS.otherwise(pl.lit(QUEUED)),
    "pinning_ns": pl.lit(PIN),
    "pinned_ns": pl.lit(MAIN),
}
"""Milestones of a batch, each with the part that begins there: the stall begins; the task was put
into the worker's queue, taken up, made; the feeder thread began to pickle it, had sent it; it was
received, began pinning, was pinned."""
_MILESTONES: Final = (*_SECTIONS, "finish_ns")
_BEFORE: Final = ("begin_ns", "asked_ns")
"""Begins of the sections in which the worker may be on an earlier batch, ..."""
_RECEIVING: Final = ("sent_ns", "arrived_ns")
"""... and in which a garbage collection of the main process delays the batch, as in its own."""


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


def stall_parts(
    stalls: pl.DataFrame, deliveries: pl.DataFrame, spans: pl.DataFrame, side_spans: pl.DataFrame
) -> pl.DataFrame:
    """Divide each stall; columns of `PARTS`, in the order of the stalls.

    The parts of a stall add up exactly, and are in the order of its batch's way.
    """
    which = stalls.select(_STEP).with_row_index("stall")
    awaited = _milestones(stalls, deliveries, side_spans)
    own = spans.join(awaited, on=["rank", "pid", "epoch", "batch"])
    awaited = awaited.with_columns(recorded=pl.col("stall").is_in(own["stall"].unique().implode()))
    sections = pl.concat(
        awaited.select(
            *("stall", "rank"),
            process=_process(),
            section=pl.lit(begin, pl.Enum(_MILESTONES)),
            part=part,
            start_ns=pl.col(begin),
            end_ns=pl.col(end),
        )
        for (begin, part), end in zip(_SECTIONS.items(), _MILESTONES[1:], strict=True)
    )
    finished = deliveries.drop_nulls(["taken_ns", "made_ns"]).select(
        process=_process(), start_ns="taken_ns", end_ns="made_ns"
    )
    is_garbage = pl.col("stage").cast(pl.String) == GARBAGE.name
    collected = side_spans.filter(pl.col("worker").is_null(), is_garbage)
    may_collect = pl.col("section").is_in(_RECEIVING) | (pl.col("part") == MAIN)
    work = _work(own)
    worked = work.group_by("stall", "section").agg(worked_ns=pl.col("ns").sum())
    left_ns = pl.col("end_ns") - pl.col("start_ns") - pl.col("earlier_ns")
    cut = (
        sections.with_columns(
            earlier_ns=pl.lit(covered_ns(sections, finished, "process"))
            * pl.col("section").is_in(_BEFORE),
            garbage_ns=pl.lit(covered_ns(sections, collected)) * may_collect,
        )
        .with_columns(garbage_ns=pl.min_horizontal("garbage_ns", left_ns))
        .join(worked, on=["stall", "section"], how="left", maintain_order="left")
        .with_columns(ns=left_ns - pl.col("garbage_ns") - pl.col("worked_ns").fill_null(0))
    )
    kind = pl.col("part").replace_strict(KIND_OF).cast(pl.Enum(KINDS))
    pieces = (
        cut.select("stall", "section", part=part, ns=ns).with_columns(kind=kind)
        for part, ns in (
            *((pl.lit(EARLIER), "earlier_ns"), (pl.lit(MAIN_GARBAGE), "garbage_ns")),
            (pl.col("part"), "ns"),
        )
    )
    return (
        pl.concat([work, *(each.select(work.columns) for each in pieces)])
        .filter(pl.col("ns") > 0)
        .sort("stall", "section", maintain_order=True)
        .join(which, on="stall", maintain_order="left")
        .group_by(*_STEP, *_PART, maintain_order=True)
        .agg(exposed_s=pl.col("ns").sum() / 1e9)
        .select(pl.col(name).cast(kind) for name, kind in PARTS.items())
    )


def _work(own: pl.DataFrame) -> pl.DataFrame:
    """Return the stages of each batch's making in the stall.

    A moment counts once where two threads of a worker were on the same batch.
    """
    inside = (pl.col(name).clip("taken_ns", "made_ns") for name in ("start_ns", "end_ns"))
    before_ns = pl.col("end_ns").cum_max().shift(1).over("stall")
    alone_ns = pl.col("end_ns") - pl.max_horizontal("start_ns", before_ns)
    return (
        own.with_columns(inside)
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort("stall", "start_ns", maintain_order=True)
        .with_columns(ns=alone_ns.clip(0), section=pl.lit("taken_ns", pl.Enum(_MILESTONES)))
        .with_columns(part=pl.col("stage").cast(pl.String))
        .group_by("stall", "section", "part", "kind", maintain_order=True)
        .agg(pl.col("ns").sum())
    )


def _process() -> pl.Expr:
    """Return a number for each process; -1 where unknown."""
    return (pl.col("rank").cast(pl.Int64) * 2**32 + pl.col("pid").cast(pl.Int64)).fill_null(-1)


def _milestones(
    stalls: pl.DataFrame, deliveries: pl.DataFrame, side_spans: pl.DataFrame
) -> pl.DataFrame:
    """Find the milestones of the batch that each stall waited for.

    A milestone that was not observed gets the time of a neighbour, so that the observed section has
    the time. Later milestones limit earlier ones: a process reads the clock after the event, so the
    earlier of two readings is right. All lie within the stall.

    Returns:
        Columns `stall`, `rank, pid, epoch, batch`, those of `_MILESTONES`; and `known` (the batch
        was delivered), `in_process` (the main process made it itself, without queues), `opening`
        (the stall begins before the request of the epoch's first batch), `first` (of its process).
    """
    delivered = deliveries.with_columns(
        known=pl.lit(value=True),
        began_ns=pl.col("asked_ns").min().over("rank", "epoch"),
        first=pl.col("taken_ns") == pl.col("taken_ns").min().over("rank", "pid"),
    ).unique(_BATCH, keep="last", maintain_order=True)
    pins = side_spans.filter(pl.col("kind") == "pin", pl.col("stage").cast(pl.String) == "pin")
    pinned = pins.group_by(_BATCH).agg(
        pinning_ns=pl.col("start_ns").min(), pinned_ns=pl.col("end_ns").max()
    )
    opening = pl.col("begin_ns") < pl.col("began_ns")
    here_ns = pl.when("in_process").then("made_ns")
    before_ns = pl.when("known").then("begin_ns").otherwise("finish_ns")
    limited = (
        pl.max_horizontal("begin_ns", pl.min_horizontal(_MILESTONES[place:])).alias(name)
        for place, name in enumerate(_MILESTONES)
    )
    flags = ("known", "in_process", "opening", "first")
    return (
        stalls.select(*_BATCH, begin_ns="start_ns", finish_ns="end_ns")
        .with_row_index("stall")
        .join(delivered, on=_BATCH, how="left", maintain_order="left")
        .join(pinned, on=_BATCH, how="left", maintain_order="left")
        .with_columns(in_process=pl.col("known") & pl.col("worker").is_null(), opening=opening)
        .with_columns(pl.col(flags).fill_null(value=False))
        .with_columns(
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
        .select("stall", "rank", "pid", "epoch", "batch", *flags, *limited)
    )


def covered_ns(stretches: pl.DataFrame, by: pl.DataFrame, group: str = "rank") -> np.ndarray:
    """Return the time of each stretch that its group's rows in another table cover, ns."""
    covered = np.zeros(stretches.height, dtype=np.int64)
    theirs = by.sort("start_ns").partition_by(group, as_dict=True)
    rows = stretches.with_row_index("row").select("row", group, "start_ns", "end_ns")
    for key, own in rows.partition_by(group, as_dict=True).items():
        if key in theirs:
            places = own["row"].to_numpy()
            covered[places] = _covered(own, *theirs[key].select("start_ns", "end_ns"))
    return covered


def _covered(stretches: pl.DataFrame, starts_ns: pl.Series, ends_ns: pl.Series) -> np.ndarray:
    """Return the time of each stretch that sorted intervals cover: they may overlap."""
    latest_ns = ends_ns.cum_max()
    begins_ns = np.maximum(
        starts_ns.to_numpy(), latest_ns.shift(1, fill_value=starts_ns[0]).to_numpy()
    )
    edges_ns = np.column_stack([begins_ns, np.maximum(begins_ns, latest_ns.to_numpy())])
    before_ns = np.cumsum(np.diff(edges_ns, axis=1))
    done_ns = np.column_stack([np.append(0, before_ns[:-1]), before_ns]).ravel()
    until_ns = (
        np.interp(stretches[name].to_numpy(), edges_ns.ravel(), done_ns)
        for name in ("end_ns", "start_ns")
    )
    covered: np.ndarray = np.subtract(*until_ns).astype(np.int64)
    return covered


def covered_s(spans: pl.DataFrame, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
    """Return the time of each window that spans of any rank cover, seconds."""
    alone = pl.lit(0).alias("rank")
    windows = pl.DataFrame({"start_ns": starts_ns, "end_ns": ends_ns}).cast(pl.Int64)
    return covered_ns(windows.with_columns(alone), spans.with_columns(alone)) / 1e9
