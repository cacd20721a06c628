"""What was used over the steady state, and when the loop stood still, on one time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.saturation import saturation, stalled_s
from stallscope.resources import SAMPLER

if TYPE_CHECKING:
    from stallscope.analyze.saturation import Saturation
    from stallscope.run import Run

MOST_BINS: Final = 300
"""More cannot be told apart at a notebook's width."""
SHORTEST_S: Final = 0.2
"""Of a bin: below it, CPU time that is counted in steps of 10 ms is more step than time."""


@dataclass(frozen=True)
class Usage:
    """The resources of one rank, in bins of the same length."""

    values: pl.DataFrame
    """`resource, device, at_s, value, limit`: the mean of a bin, at its middle; seconds from the
    start of the run."""
    stalled: np.ndarray
    """Of each bin, the share (0 to 1) in which the loop stood still."""
    begin_s: float
    """Of the first bin, seconds from the start of the run."""
    bin_s: float
    """Length of a bin, seconds."""
    samples: int
    """How often it was sampled."""
    cost_share: float | None
    """What sampling took, as a share of one core."""
    missing: tuple[str, ...]
    """Resources that are not there, or were not read."""
    judged: Saturation
    """What of it was used up."""

    @property
    def end_s(self) -> float:
        """Of the last bin, seconds from the start of the run."""
        return self.begin_s + self.bin_s * len(self.stalled)


def judged(run: Run) -> Saturation:
    """Which resource was used up in the steady state of a run."""
    workers = run.settings.num_workers
    return saturation(run.resources(), run.steps(), run.stalls(), workers=workers)


def usage(run: Run) -> Usage | None:
    """What a run used in its steady state; None where nothing was sampled, or no loop was seen."""
    sampled, stalls, found = run.resources(), run.stalls(), judged(run)
    if found.stood is None:
        return None
    mine = pl.col("rank") == found.stood.rank
    names = pl.col("resource", "device").cast(pl.String)
    own = sampled.filter(mine).with_columns(names)
    there = own.drop_nulls("value")
    if there.is_empty():
        return None
    begin_ns, end_ns = (
        float(there["start_ns"].to_numpy().min()),
        float(there["end_ns"].to_numpy().max()),
    )
    length_ns = max((end_ns - begin_ns) / MOST_BINS, SHORTEST_S * 1e9)
    number = max(int((end_ns - begin_ns) / length_ns), 1)
    length_ns = (end_ns - begin_ns) / number
    edges_ns = begin_ns + np.arange(number + 1) * length_ns
    stood_s = stalled_s(edges_ns[:-1], edges_ns[1:], stalls.filter(mine))
    cost = there.filter(pl.col("resource") == SAMPLER)
    return Usage(
        values=_binned(there, begin_ns, length_ns, number),
        stalled=np.clip(stood_s * 1e9 / length_ns, 0.0, 1.0),
        begin_s=begin_ns / 1e9,
        bin_s=length_ns / 1e9,
        samples=cost.height,
        cost_share=_mean(cost),
        missing=tuple(own.filter(pl.col("value").is_null())["resource"].unique().sort()),
        judged=found,
    )


def _binned(there: pl.DataFrame, begin_ns: float, length_ns: float, number: int) -> pl.DataFrame:
    place = ((pl.col("end_ns") - begin_ns) / length_ns).floor().clip(0, number - 1)
    return (
        there.group_by("resource", "device", at_s=(begin_ns + (place + 0.5) * length_ns) / 1e9)
        .agg(pl.col("value").mean(), pl.col("limit").max())
        .sort("resource", "device", "at_s")
    )


def _mean(cost: pl.DataFrame) -> float | None:
    """By the length of each sample."""
    length_ns = (cost["end_ns"] - cost["start_ns"]).to_numpy()
    return float(np.average(cost["value"].to_numpy(), weights=length_ns)) if cost.height else None
