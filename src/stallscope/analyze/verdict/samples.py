"""What single samples say: which take far longer than the others, and whether size decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.patterns.sample_causes import OUTLIER, USUAL

if TYPE_CHECKING:
    from stallscope.run import Run

_FEWEST: Final = 10
"""Samples below which no share of the differences is told."""
_SEVERAL: Final = 3
"""Samples of a batch of which one can stand out."""


@dataclass(frozen=True)
class Spikes:
    """Samples that take far longer than the usual one (the limit is that of the patterns)."""

    count: int = 0
    """How many."""
    one_in: float = float("inf")
    """Of so many samples, one is."""
    share: float = 0.0
    """Share (0 to 1) of all samples' time that they take beyond the usual one."""
    typical_s: float = 0.0
    """Median of them, seconds."""
    usual_s: float = 0.0
    """Median of all samples, seconds."""


@dataclass(frozen=True)
class Reading:
    """The samples' fetch."""

    sample_s: float | None = None
    """Median, seconds a sample."""
    bytes_per_s: float | None = None
    """Bytes of the files that were read over the time of the loop; None where sizes are unknown."""
    by_size: float | None = None
    """Share (0 to 1) of the differences between samples that goes with their size."""


def spikes(run: Run) -> Spikes:
    """The samples of the steady state that stand out, of all and of their own batch.

    Where all samples of a batch are slow together, it is the batch that is.
    """
    samples = run.samples().drop_nulls("total_s")
    took_s = samples["total_s"].to_numpy()
    if took_s.size < _FEWEST:
        return Spikes()
    median_s, usual_s = (float(np.quantile(took_s, share)) for share in (0.5, USUAL))
    limit_s = max(OUTLIER * median_s, median_s + OUTLIER * (usual_s - median_s))
    together = pl.col("total_s").median().over("rank", "epoch", "batch")
    alone = pl.len().over("rank", "epoch", "batch") < _SEVERAL
    outside = alone | (pl.col("total_s") > OUTLIER * together)
    slow = samples.filter((pl.col("total_s") > limit_s) & outside)["total_s"].to_numpy()
    if not slow.size:
        return Spikes(usual_s=median_s)
    return Spikes(
        count=int(slow.size),
        one_in=took_s.size / slow.size,
        share=float((slow - median_s).sum() / took_s.sum()),
        typical_s=float(np.median(slow)),
        usual_s=median_s,
    )


def reading(run: Run) -> Reading:
    """What fetching the samples of the steady state took."""
    samples = run.samples()
    fetched = samples.filter(pl.col("fetch_s") > 0)
    if fetched.is_empty():
        return Reading()
    known = fetched.drop_nulls("bytes")
    steps, recorded = run.steps(), samples.select("rank", "epoch", "batch").n_unique()
    length_s = steps.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item()
    rate = by_size = None
    if known.height >= _FEWEST and length_s:
        of_each = max(steps.height / max(recorded, 1), 1.0)  # not every batch is recorded
        rate = float(known["bytes"].sum()) * of_each / length_s
        sizes, took_s = known["bytes"].to_numpy().astype(float), known["fetch_s"].to_numpy()
        if sizes.std() and took_s.std():
            by_size = float(np.corrcoef(sizes, took_s)[0, 1] ** 2)
    return Reading(float(np.median(fetched["fetch_s"].to_numpy())), rate, by_size)
