"""What is known about a loop's steps, and about what happened meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about the steps of one rank or of several."""

    steps: pl.DataFrame
    """Columns of `run.STEPS`, after the warm-up, in order."""
    parts: pl.DataFrame
    """Columns of `analyze.stalls.exposed.PARTS`."""
    samples: pl.DataFrame
    """What `Run.samples` gives; `rank` too where there are several ranks, else it goes unused."""
    deliveries: pl.DataFrame
    """Columns of `run.DELIVERIES`."""
    side_spans: pl.DataFrame
    """Columns of `analyze.spans.SPANS`: those of the training loops."""
    num_workers: int = 0
    """Worker processes of each rank's loader; 0: the main process loads."""

    def by_rank(self) -> Iterator[tuple[int, Evidence]]:
        """Each rank and what is known about it alone."""
        ranks = self.steps["rank"].fill_null(0).unique().sort().to_list()
        for rank in ranks:
            samples = self.samples
            if "rank" not in samples.columns and len(ranks) > 1:
                samples = samples.clear()  # nobody knows whose they are
            yield (
                rank,
                replace(
                    self,
                    steps=_of_rank(self.steps, rank),
                    parts=_of_rank(self.parts, rank),
                    samples=_of_rank(samples, rank),
                    deliveries=_of_rank(self.deliveries, rank),
                    side_spans=_of_rank(self.side_spans, rank),
                ),
            )


def _of_rank(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    if "rank" not in table.columns:
        return table
    return table.filter(pl.col("rank").fill_null(0) == rank)
