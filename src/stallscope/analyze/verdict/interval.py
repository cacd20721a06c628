"""How sure the share of the stalls is."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

_DRAWS: Final = 1000
_SEED: Final = 20_260_101
_FEWEST_BLOCKS: Final = 4
_ENDS: Final = (2.5, 97.5)


def stall_interval(steps: pl.DataFrame, stalls: pl.DataFrame, block: int) -> tuple[float, float]:
    """The 95% interval of the share of stalls, by resampling blocks of steps.

    (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 8.) From 0 to 1 where
    there are too few blocks to tell.

    Args:
        steps: columns of `run.STEPS`.
        stalls: columns of `analyze.stalls.exposed.STALLS`, of these steps.
        block: steps that depend on each other: a round of the workers.
    """
    known = steps.drop_nulls(["wait_s", "start_ns"]).join(
        stalls.select("rank", "step", "stall_s"), on=["rank", "step"], how="left"
    )
    blocks = known.height // max(block, 1)
    if blocks < _FEWEST_BLOCKS:
        return 0.0, 1.0
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    pairs = known.select(pl.col("stall_s").fill_null(0.0), period_s.alias("period_s")).to_numpy()
    sums = pairs[: blocks * block].reshape(blocks, block, 2).sum(axis=1)
    drawn = np.random.default_rng(_SEED).integers(blocks, size=(_DRAWS, blocks))
    totals = sums[drawn].sum(axis=1)
    shares = totals[:, 0] / np.maximum(totals[:, 1], 1e-12)
    low, high = np.percentile(shares, _ENDS)
    return float(low), float(min(high, 1.0))
