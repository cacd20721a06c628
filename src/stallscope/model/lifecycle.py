"""Lifecycle of a batch through a stall: which process held the batch in each section.

Before its worker took the task up, the worker was on an earlier batch, or not ready yet, or the
task lay in a queue. While the batch was being made, its spans say at which stage. Then it lay in
the worker's queue, was pickled and sent, received, pinned and handed out. The sections of a stall
add up to it, to the nanosecond, whatever was seen and whatever was not.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from stallscope.stages import GARBAGE, KINDS

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


def attribute_sections(
    stalls: pl.DataFrame,
    deliveries: pl.DataFrame,
    spans: pl.DataFrame,
    side_spans: pl.DataFrame,
) -> pl.DataFrame:
    """Cut the stalls up: columns `stall` (row number), `part`, `kind`, `ns`.

    The pieces of a stall add up exactly, and are in the order of its batch's way.
    """
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
        .drop("section")
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
