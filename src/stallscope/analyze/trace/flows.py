"""The way of each batch that a worker made and the loop used, as pairs: an arrow in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from stallscope.run import Run

KEY: Final = ("rank", "epoch", "batch")


def flows(run: Run, first: int) -> pl.DataFrame:
    """One row a batch that left a worker before a wait of the loop got it.

    Args:
        run: what was measured.
        first: number of the first arrow.

    Returns:
        `rank, epoch, batch, step, flow, left_ns, got_ns`: the step that used it, the number of the
        arrow, when the batch had left its worker and when the wait for it ended.
    """
    made = run.deliveries.drop_nulls(["worker", "pid", "taken_ns", "made_ns"])
    left = made.select(*KEY, left_ns=pl.coalesce("sent_ns", "made_ns")).unique(KEY, keep="first")
    steps = run.all_steps.drop_nulls(["start_ns", "end_ns"]).select("rank", "step").unique()
    waits = run.waits.join(steps, on=["rank", "step"], how="semi")
    got = waits.select(*KEY, "step", got_ns="end_ns").unique(KEY, keep="first")
    pairs = left.join(got, on=KEY).filter(pl.col("left_ns") <= pl.col("got_ns")).sort(KEY)
    return pairs.with_row_index("flow", first).select(*KEY, "step", "flow", "left_ns", "got_ns")


def of_batches(flows: pl.DataFrame) -> pl.DataFrame:
    """The arrow of each batch, as `rank, epoch, batch, arrows`: a list, as steps may have more."""
    return flows.select(*KEY, arrows=pl.concat_list("flow"))
