"""How long workers take for a batch, and how that compares with what the loop needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from stallscope.run import Run

_FEWEST: Final = 4
"""Batches of a worker below which nothing is said about it."""


@dataclass(frozen=True)
class Making:
    """Batches of the steady state, from where a worker takes them up to where they are made."""

    batch_s: float
    """Mean time that a worker takes to make a batch, seconds."""
    usual_s: float
    """Median of the same."""
    use_s: float
    """Mean time in which the loop uses a batch, seconds, without any wait."""
    period_s: float
    """Mean time from one step to the next, seconds."""
    workers: int
    """That make batches; at least 1."""
    by_worker_s: dict[int, float] = field(default_factory=dict)
    """Median time for a batch of each worker that made enough of them."""

    @property
    def load(self) -> float:
        """What the workers need over what the step leaves them; above 1 they cannot keep up."""
        return self.batch_s / (self.workers * self.use_s) if self.use_s else float("inf")

    @property
    def busy_share(self) -> float:
        """Share (0 to 1) of their time in which workers make batches."""
        return min(self.batch_s / (self.workers * self.period_s), 1.0) if self.period_s else 0.0


def making(run: Run, workers: int) -> Making | None:
    """How long batches take to make; None where none was seen on its way.

    Args:
        run: the loop.
        workers: worker processes; 0: the main process makes the batches.
    """
    batch, made_s = ["rank", "epoch", "batch"], (pl.col("made_ns") - pl.col("taken_ns")) / 1e9
    steps = run.steps().drop_nulls("wait_s")
    known = run.deliveries.join(steps.select(batch).unique(), on=batch, how="semi")
    made = known.with_columns(made_s=made_s).drop_nulls("made_s")
    if made.is_empty() or steps.is_empty():
        return None
    used_s = steps.select(pl.sum_horizontal("h2d_s", "step_s", "other_s").mean()).item()
    waited_s = steps.select(pl.sum_horizontal("wait_s", "restart_s").mean()).item()
    each = made.group_by("worker").agg(pl.col("made_s").median(), many=pl.len()).drop_nulls()
    enough = each.filter(pl.col("many") >= _FEWEST).select("worker", "made_s")
    return Making(
        batch_s=float(made["made_s"].to_numpy().mean()),
        usual_s=float(np.median(made["made_s"].to_numpy())),
        use_s=float(used_s),
        period_s=float(used_s + waited_s),
        workers=max(workers, 1),
        by_worker_s=dict(enough.iter_rows()),
    )
