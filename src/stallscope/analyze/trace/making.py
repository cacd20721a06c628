"""The making of batches as tables: each batch a slice, in it its samples, in those their stages.

The spans of a process come in the order in which they were recorded, so whatever belongs together
stands together: a batch, and in it a sample, is a stretch of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.trace.flows import KEY, of_batches
from stallscope.analyze.trace.phases import BATCH
from stallscope.analyze.trace.tracks import MAIN

if TYPE_CHECKING:
    from stallscope.run import Run

_WHO: Final = ("rank", "worker", "pid", "epoch", "batch")
_ABOUT: Final = ("index", "path", "bytes", "width", "height")


@dataclass(frozen=True)
class Making:
    """How batches were made; times in ns from the start of the run."""

    batches: pl.DataFrame
    """Columns as of `loop.slices`, with `recorded`, and `stretch`: the batch's number among those
    that were recorded."""
    samples: pl.DataFrame
    """`stretch, epoch, batch, sample, start_ns, end_ns, index, path, bytes, width, height`."""
    spans: pl.DataFrame
    """`stretch, epoch, batch, sample, stage, kind, start_ns, end_ns, cpu_ns`."""


def making(run: Run, flows: pl.DataFrame, thread: str = MAIN) -> Making:
    """How the batches of a run were made.

    Args:
        run: what was measured.
        flows: what `flows.flows` gives of it; an arrow begins at the end of its batch.
        thread: of the loop's process, for what that makes itself.
    """
    spans = run.all_spans.with_columns(stretch=_changes("rank", "pid", "epoch", "batch") - 1)
    return Making(
        batches=_batches(run, spans, flows).with_columns(
            thread=pl.when(pl.col("worker").is_null()).then(pl.lit(thread)).otherwise(pl.lit(MAIN))
        ),
        samples=_samples(run, spans),
        spans=spans.select("stretch", pl.exclude("stretch", "rank", "pid", "worker")),
    )


def _changes(*columns: str) -> pl.Expr:
    """The number, from 1, of the stretch of rows that are alike in these columns."""
    return pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(name).shift()) | (pl.int_range(pl.len()) == 0)
        for name in columns
    ).cum_sum()


def _batches(run: Run, spans: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Every batch, from when its worker took the task up until it was made."""
    times = run.deliveries.select(*_WHO, "taken_ns", "made_ns").drop_nulls(["taken_ns", "made_ns"])
    recorded = (
        spans.group_by("stretch", maintain_order=True)
        .agg(pl.col(_WHO).first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(times, on=_WHO, how="full", nulls_equal=True, coalesce=True)
    )
    steady = run.batches.select(*_WHO, "steady").unique(_WHO)
    return (
        recorded.join(steady, on=_WHO, how="left", nulls_equal=True)
        .join(of_batches(flows), on=KEY, how="left")
        .select(
            *_WHO,
            pl.min_horizontal("start_ns", "taken_ns").alias("start_ns"),
            pl.max_horizontal("end_ns", "made_ns").alias("end_ns"),
            pl.when(pl.col("worker").is_not_null() & pl.struct(KEY).is_first_distinct()).then(
                "arrows"
            ),
            "steady",
            "stretch",
            name=pl.format("batch {}", "batch"),
            cat=pl.lit(BATCH),
            depth=pl.lit(4),
            recorded=pl.col("stretch").is_not_null(),
        )
    )


def _samples(run: Run, spans: pl.DataFrame) -> pl.DataFrame:
    """Every sample that can be told apart, with what it was."""
    keys = (*KEY, "sample")
    about = run.all_samples.select(*keys, *_ABOUT).unique(keys, keep="first")
    return (
        spans.lazy()
        .select(
            *KEY, "sample", "stretch", "start_ns", "end_ns", piece=_changes("stretch", "sample")
        )
        .drop_nulls("sample")
        .group_by("piece", maintain_order=True)
        .agg(
            pl.col(*keys, "stretch").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
        )
        .join(about.lazy(), on=keys, how="left", maintain_order="left")
        .select("stretch", "epoch", "batch", "sample", "start_ns", "end_ns", *_ABOUT)
        .collect()
    )
