"""What single samples can do to the loop: one that takes long, and one that opens a new file."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.patterns.causes import Cause
from stallscope.units import seconds

if TYPE_CHECKING:
    from stallscope.analyze.patterns.causes import Stops
    from stallscope.analyze.patterns.standstill import Loop

OUTLIER: Final = 3.0
"""A slow sample takes more than so many times the median, and lies so many times as far above it
as the one that nine in ten do not exceed."""
USUAL: Final = 0.9
SHARD: Final = 4.0
"""A file is a shard when it gives so many samples in a row, on average."""
CLEARLY: Final = 2.0
"""From this ratio on, what a file's first sample takes is said beside what the others take."""
NAMED: Final = 3
"""So many samples are named in a sentence."""

_BATCH: Final = ("epoch", "batch")


def slow_samples(loop: Loop, samples: pl.DataFrame) -> list[Cause]:
    """Batches with a sample that takes far longer than samples do.

    Args:
        loop: the steps of one rank.
        samples: what `Run.samples` gives, of this rank.
    """
    if samples.is_empty():
        return []
    took_s = samples["total_s"].to_numpy()
    median_s, usual_s = (float(np.quantile(took_s, share)) for share in (0.5, USUAL))
    limit_s = max(OUTLIER * median_s, median_s + OUTLIER * (usual_s - median_s))
    slow = samples.filter(pl.col("total_s") > limit_s)
    excess = pl.col("total_s").filter(pl.col("total_s") > limit_s) - median_s
    per_batch = samples.group_by(_BATCH).agg(excess_s=excess.sum())
    [excess_s] = loop.of_batches(per_batch, "excess_s")

    def title(stops: Stops) -> str:
        batches = loop.keys.filter(pl.Series(stops.named))
        these = slow.join(batches, on=_BATCH, how="semi").sort("total_s", descending=True)
        waits = f"{stops.subject('waits', 'wait')} {stops.typical} for a single slow sample"
        longer = seconds(float(np.median(these["total_s"].to_numpy())))
        return f"{waits} ({longer}; usual is {seconds(median_s)}): {_names(these)}"

    return [
        Cause(
            code="slow_samples",
            marked=excess_s > 0,
            title=title,
            known=np.isfinite(excess_s),
            enough_s=excess_s,
            fewest=2,
        )
    ]


def _names(samples: pl.DataFrame) -> str:
    """The first few of them: index and file."""
    about = samples.select("index", "path", *_BATCH, "sample").unique(
        ["index", "path"] if samples["index"].null_count() == 0 else [*_BATCH, "sample"],
        keep="first",
        maintain_order=True,
    )
    named = [_name(row) for row in about.head(NAMED).iter_rows(named=True)]
    more = about.height - len(named)
    if more:
        return f"{', '.join(named)} and {more} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _name(row: dict[str, object]) -> str:
    index, path = row["index"], row["path"]
    place = f"sample {row['sample']} of batch {row['batch']}"
    name = place if index is None else f"index {index}"
    return name if path is None else f"{name} ({PurePath(str(path)).name})"


def new_files(loop: Loop, samples: pl.DataFrame) -> list[Cause]:
    """Batches in which a worker comes to a new file that holds many samples (a shard).

    Args:
        loop: the steps of one rank.
        samples: what `Run.samples` gives, of this rank.
    """
    # Where a file is opened once for many samples, the first of them alone carries its name.
    inherited = pl.col("path").forward_fill().over("epoch", "worker")
    ordered = samples.sort("epoch", "worker", "start_ns", maintain_order=True)
    known = ordered.with_columns(path=inherited).drop_nulls("path")
    changes = pl.col("path") != pl.col("path").shift(1)
    told = known.with_columns(new=changes.over("epoch", "worker", mapping_strategy="group_to_rows"))
    opened = int(told["new"].sum())
    if not opened or told.height < SHARD * opened:
        return []
    per_batch = told.group_by(_BATCH).agg(pl.col("new").any(), pl.col("new").count().alias("seen"))
    marked, seen = loop.of_batches(per_batch, "new", "seen")

    def title(stops: Stops) -> str:
        waits = f"{stops.subject('waits', 'wait')} {stops.typical} where a worker opens a new file"
        return f"{waits} of about {told.height / (opened + 1):.0f} samples{_first_takes(told)}"

    return [Cause("shard_boundary", marked > 0, title, known=seen > 0)]


def _first_takes(told: pl.DataFrame) -> str:
    first_s, other_s = (
        float(told.filter(which)["total_s"].median() or 0.0)  # type: ignore[arg-type]  # floats
        for which in (pl.col("new"), ~pl.col("new"))
    )
    if first_s < CLEARLY * other_s:
        return ""
    return f": its first one takes {seconds(first_s)}, the others {seconds(other_s)}"
