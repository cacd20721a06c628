"""A piece of the steady state for the timeline: what each worker and the training loop did when.

The window holds a stall of typical length, not the worst one: what is drawn should be what happens
again and again. Of several ranks one is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.looptime import leading
from stallscope.analyze.profile import WORK_KINDS
from stallscope.analyze.window import steps_in, window

if TYPE_CHECKING:
    from stallscope.analyze.window import Window
    from stallscope.run import Run

_LOOP_KINDS: Final = ("h2d", "step", "other")
_BATCH: Final = ("epoch", "batch")
_ONE_BATCH: Final = ("rank", "pid", "worker", "epoch", "batch")


@dataclass(frozen=True)
class Timeline:
    """What happened in a window; times in seconds from its begin, reaching over its ends."""

    window: Window
    workers: tuple[int | None, ...]
    """Everyone who makes batches, in order; None is the main process."""
    blocks: pl.DataFrame
    """One row a batch: `worker, epoch, batch, start_s, end_s, recorded` and a column of seconds for
    each of `WORK_KINDS`, zero in a batch that was not recorded."""
    sends: pl.DataFrame
    """`worker, kind, start_s, end_s`: sending (with its worker) and pinning (without)."""
    uses: pl.DataFrame
    """What the loop did with its batches: `epoch, batch, stage, kind, start_s, end_s`."""
    stalls: pl.DataFrame
    """`step, worker, epoch, batch, start_s, end_s, stall_s, left_s`, of the batch that was waited
    for: when it had left its worker; null where that was not seen."""

    @property
    def begins_s(self) -> list[float]:
        """When the loop began to use each of its batches."""
        ends_s = self.window.steps.select(*self.window.since("end_ns"))
        return ends_s.to_series().to_list()

    @property
    def length_s(self) -> float:
        """Length of the window."""
        return (self.window.end_ns - self.window.begin_ns) / 1e9


def timeline(run: Run) -> Timeline | None:
    """A typical piece of a run; None where no loop was recorded."""
    steps = run.steps().drop_nulls(["start_ns", "end_ns"])
    if steps.is_empty():
        return None
    rank, favoured, period = _looked_for(run, steps)
    first = pl.col("rank") == rank
    found = window(
        steps.filter(first),
        run.stalls().filter(first),
        many=steps_in(len(makers(run, rank)), period),
        favoured=favoured,
        recorded=run.batches.filter(first),
    )
    return in_window(run, rank, found)


def in_window(run: Run, rank: int, found: Window) -> Timeline:
    """What the processes of a rank did in a window."""
    first = pl.col("rank") == rank
    side_spans = run.side_spans.filter(first)
    return Timeline(
        window=found,
        workers=makers(run, rank),
        blocks=blocks_in(run, first, found),
        sends=sends_in(side_spans, found),
        uses=uses_in(side_spans, found),
        stalls=stalls_in(run.stalls().filter(first), run, found),
    )


def makers(run: Run, rank: int) -> tuple[int | None, ...]:
    """Everyone who makes batches in a rank, in order; None is the main process."""
    known = [table.filter(rank=rank)["worker"].unique() for table in (run.deliveries, run.batches)]
    return tuple(pl.concat(known).unique().sort(nulls_last=True))


def _looked_for(run: Run, steps: pl.DataFrame) -> tuple[int, list[int], int | None]:
    """Rank, steps and period of the leading pattern; without one, any stall of the first rank."""
    ranks = steps["rank"].unique().sort().to_list()
    pattern = leading(run.patterns().filter(pl.col("rank").is_in(ranks)))
    return (
        (pattern["rank"], pattern["steps"], pattern["period"]) if pattern else (ranks[0], [], None)
    )


def blocks_in(run: Run, first: pl.Expr, found: Window) -> pl.DataFrame:
    """The batches that were being made: out of what, where that was recorded."""
    known = run.all_spans.filter(first, found.holds()).select(_ONE_BATCH).unique()
    wall_s = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
    made = (
        run.all_spans.join(known, on=_ONE_BATCH, how="semi", nulls_equal=True)
        .group_by(_ONE_BATCH)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            **{kind: wall_s.filter(pl.col("kind") == kind).sum() for kind in WORK_KINDS},
        )
        .with_columns(recorded=True)
    )
    unknown = (
        run.deliveries.filter(first)
        .drop_nulls(["taken_ns", "made_ns"])
        .join(run.batches.filter(first), on=_ONE_BATCH, how="anti", nulls_equal=True)
        .select(
            *_ONE_BATCH,
            start_ns="taken_ns",
            end_ns="made_ns",
            **{kind: pl.lit(0.0) for kind in WORK_KINDS},
            recorded=False,
        )
        .filter(found.holds())
    )
    columns = ("worker", *_BATCH, "start_ns", "end_ns", "recorded", *WORK_KINDS)
    both = pl.concat([made.select(columns), unknown.select(columns)])
    return both.with_columns(found.since("start_ns", "end_ns")).sort("worker", "start_ns")


def sends_in(side_spans: pl.DataFrame, found: Window) -> pl.DataFrame:
    """When batches were being sent and pinned."""
    sent = side_spans.filter(pl.col("kind").is_in(["send", "pin"]), found.holds())
    return sent.select("worker", "kind", *found.since("start_ns", "end_ns"))


def uses_in(side_spans: pl.DataFrame, found: Window) -> pl.DataFrame:
    """As the spans have it; where a step has none, its parts in their usual order."""
    of_loop = pl.col("worker").is_null() & pl.col("kind").is_in(_LOOP_KINDS)
    spans = side_spans.filter(of_loop, found.holds()).sort("start_ns")
    columns = (*_BATCH, "stage", "kind", "start_ns", "end_ns")
    told = spans.select(columns).with_columns(pl.col("stage", "kind").cast(pl.String))
    rows = [told]
    for kind in _LOOP_KINDS:
        before = [f"{other}_s" for other in _LOOP_KINDS[: _LOOP_KINDS.index(kind)]]
        start_ns = pl.col("end_ns") + _ns(pl.sum_horizontal(pl.lit(0.0), *before))
        part = found.steps.join(told, on=_BATCH, how="anti").with_columns(
            start_ns=start_ns, stage=pl.lit(kind), kind=pl.lit(kind)
        )
        part = part.with_columns(
            end_ns=pl.col("start_ns") + _ns(pl.col(f"{kind}_s").fill_null(0.0))
        )
        rows.append(part.select(columns).filter(pl.col("end_ns") > pl.col("start_ns")))
    return _joined(pl.concat(rows).sort("start_ns")).with_columns(found.since("start_ns", "end_ns"))


def _ns(seconds: pl.Expr) -> pl.Expr:
    return (seconds * 1e9).round().cast(pl.Int64)


def _joined(uses: pl.DataFrame) -> pl.DataFrame:
    """Neighbours of one kind as one: a picture does not tell forward from backward."""
    named = pl.when(pl.col("kind") == "other").then("stage").otherwise("kind")
    same = pl.struct(*_BATCH, "kind", named.alias("named")).rle_id()
    return (
        uses.group_by(same.alias("run"), maintain_order=True)
        .agg(
            pl.col(*_BATCH, "kind").first(),
            named.first().alias("stage"),
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
        )
        .drop("run")
    )


def stalls_in(stalls: pl.DataFrame, run: Run, found: Window) -> pl.DataFrame:
    """With the batch that was waited for: usually the step's own."""
    who = ("rank", "step")
    awaited = (
        run.waits.sort("end_ns").group_by(who).agg(pl.col(*_BATCH).last().name.suffix("_awaited"))
    )
    batches = run.deliveries.select(
        "rank", *_BATCH, maker="worker", left_ns=pl.coalesce("sent_ns", "made_ns")
    )
    batches = batches.unique(["rank", *_BATCH])
    names = [pl.coalesce(f"{name}_awaited", name).alias(name) for name in _BATCH]
    return (
        stalls.filter(found.holds())
        .join(awaited, on=who, how="left")
        .with_columns(names)
        .join(batches, on=["rank", *_BATCH], how="left", maintain_order="left")
        .select(
            "step",
            pl.coalesce("maker", "worker").alias("worker"),
            *_BATCH,
            "stall_s",
            *found.since("start_ns", "end_ns", "left_ns"),
        )
    )
