"""The slowest samples, and the stage that made each of them slow.

That is not the longest stage, which may be as long in every sample, but the one that took the most
beyond its own median.
"""

from __future__ import annotations

import polars as pl

_SAMPLE = ["rank", "epoch", "batch", "sample"]


def slowest(samples: pl.DataFrame, times: pl.DataFrame, most: int) -> pl.DataFrame:
    """The slowest samples, the slowest first.

    Args:
        samples: as `Run.samples` gives them.
        times: as `analyze.profile.unit_times` gives them, of the same samples.
        most: how many.

    Returns:
        The rows of `samples`, with `cause` (a stage) and `excess_s` (what that stage took beyond
        its median over all samples).
    """
    excess = (
        times.filter(pl.col("sample").is_not_null())
        .with_columns(excess_s=pl.col("wall_s") - pl.col("wall_s").median().over("stage", "kind"))
        .sort("excess_s", descending=True, maintain_order=True)
        .unique(_SAMPLE, keep="first", maintain_order=True)
        .select(*_SAMPLE, pl.col("stage").alias("cause"), "excess_s")
    )
    top = samples.sort("total_s", descending=True, maintain_order=True).head(most)
    return top.join(excess, on=_SAMPLE, how="left", maintain_order="left")
