"""What it costs to start workers, and how often that happens: once, or at every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stallscope.stages import END_OF_EPOCH

if TYPE_CHECKING:
    from stallscope.analyze.verdict.setup import Setup
    from stallscope.run import Run


@dataclass(frozen=True)
class Starts:
    """The begin of epochs, beside the time that their batches take anyhow."""

    extra_s: float = 0.0
    """What an epoch's begin takes longer than its other steps (`iter(loader)` and the first batch
    of each worker), and its end, where workers end; medians over `epochs`, seconds."""
    epoch_s: float | None = None
    """What a whole epoch takes otherwise, seconds; None where its length is not known."""
    epochs: int = 0
    """Begins that were seen; the first one of all counts only where there is no other."""
    again: bool = False
    """Whether it happens at every epoch: workers that do not live on."""

    @property
    def share(self) -> float:
        """Share (0 to 1) of an epoch; 0 where it happens once, or nothing is known of it."""
        if not self.again or self.epoch_s is None or self.extra_s <= 0:
            return 0.0
        return self.extra_s / (self.extra_s + self.epoch_s)


def starts(run: Run, setup: Setup) -> Starts:
    """What starting workers costs.

    Args:
        run: the loop as it is.
        setup: what is known of the loader.
    """
    waited_s = pl.sum_horizontal("wait_s", "restart_s")
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    steps = (
        run.all_steps.drop_nulls("wait_s")
        .with_columns(waited_s=waited_s, period_s=period_s)
        .with_columns(place=pl.int_range(pl.len()).over("rank", "epoch"))
    )
    if steps.is_empty():
        return Starts()
    begin = pl.col("place") < max(setup.num_workers, 1)
    later = steps.filter(~begin)
    usual_s, mean_s = (
        (later if later.height else steps)
        .select(pl.col("waited_s").mean(), pl.col("period_s").mean())
        .row(0)
    )
    # A round of the workers at once: that they all finish together is no extra cost
    each = (
        steps.filter(begin)
        .group_by("epoch", maintain_order=True)
        .agg(extra_s=(pl.col("waited_s").sum() - usual_s * pl.len()).clip(0))
    )
    ends = run.side_spans.filter(pl.col("stage").cast(pl.String) == END_OF_EPOCH.name)
    end_s = ends.select(((pl.col("end_ns") - pl.col("start_ns")) / 1e9).median()).item() or 0.0
    seen = each.filter(pl.col("epoch") > pl.col("epoch").min()) if each.height > 1 else each
    length = setup.epoch_batches
    return Starts(
        extra_s=float(seen["extra_s"].median() or 0.0) + float(end_s),  # type: ignore[arg-type]  # a float column
        epoch_s=None if length is None else length * mean_s,
        epochs=seen.height,
        again=bool(setup.num_workers) and not setup.persistent and not _goes_on(steps, length),
    )


def _goes_on(steps: pl.DataFrame, length: int | None) -> bool:
    """Whether one iteration is longer than an epoch: a loader that never ends its workers."""
    return length is not None and bool((steps["place"] >= length).any())
