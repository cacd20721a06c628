"""When the training loop of one rank stands still, as arrays with one value a step.

There are two ways of standing still: the loop waits for data (a stall), or a step takes far longer
than the others do (a long step: a checkpoint, logging, validation, garbage collection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.analyze.stalls.covered import Covered
from stallscope.analyze.stalls.exposed import stalls

if TYPE_CHECKING:
    from stallscope.analyze.patterns.evidence import Evidence

LONG: Final = 3.0
"""A long step takes more than so many times the median step ..."""
LONGER_S: Final = 0.001
"""... and so much more than it, seconds."""

_BATCH: Final = ("epoch", "batch")


@dataclass(frozen=True, eq=False)
class Loop:
    """One rank's steps; every array has one value a step."""

    keys: pl.DataFrame
    """`step, epoch, batch` of each step."""
    epoch: np.ndarray
    """Number of the epoch."""
    batch: np.ndarray
    """Number of the batch in its epoch."""
    worker: np.ndarray
    """The worker that made the batch; -1 where the main process did."""
    waits_from_ns: np.ndarray
    """When the wait began, with the loader's restart before it; 0 where that is not known."""
    has_batch_ns: np.ndarray
    """When the wait ended; 0 where that is not known."""
    uses_until_ns: np.ndarray
    """When the step was over."""
    restart_s: np.ndarray
    """What the loader's restart took; 0 but for an epoch's first step."""
    stall_s: np.ndarray
    """Length of the stall; 0 where the loop did not stall."""
    busy_s: np.ndarray
    """What using the batch took, and all else until the next wait."""
    made_s: np.ndarray
    """What making the batch took in its worker; NaN where that was not seen."""
    sent_s: np.ndarray
    """What sending it took, in a thread of the worker's; NaN where that was not seen."""
    ready_ns: np.ndarray
    """When it had been sent, or made where that was not seen; NaN where neither was."""
    num_workers: int
    """Worker processes; 0: the main process loads."""

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.keys.height

    @property
    def typical_s(self) -> float:
        """What using a batch takes: the median."""
        return float(np.median(self.busy_s)) if self.size else 0.0

    @property
    def long_s(self) -> np.ndarray:
        """How much longer than usual the long steps took; 0 where the step was not long."""
        excess_s = self.busy_s - self.typical_s
        is_long = (self.busy_s > LONG * self.typical_s) & (excess_s > LONGER_S)
        return np.where(is_long, excess_s, 0.0)

    @property
    def still_s(self) -> float:
        """For how long it stood still in all, both ways."""
        return float(self.stall_s.sum() + self.long_s.sum())

    def of_batches(self, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
        """Columns of a table with one row a batch, at each batch's step; NaN where there is none.

        Args:
            table: `epoch, batch` and the columns.
            columns: names of columns that hold numbers.
        """
        return _of_batches(self.keys, table, *columns)


def _of_batches(keys: pl.DataFrame, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
    rows = table.unique(_BATCH, keep="first", maintain_order=True)
    found = keys.join(rows, on=_BATCH, how="left", maintain_order="left")
    return [found[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]


def loop_of(evidence: Evidence) -> Loop:
    """The steps of one rank, as arrays."""
    waits = stalls(evidence.steps).select("step", "stall_s").unique("step", keep="first")
    steps = evidence.steps.join(waits, on="step", how="left", maintain_order="left").with_columns(
        pl.col("restart_s", "stall_s", "h2d_s").fill_null(0.0),
        pl.col("start_ns", "end_ns").fill_null(0),
        pl.col("worker").fill_null(-1),
    )
    keys = steps.select("step", *_BATCH)
    made = evidence.deliveries.select(
        *_BATCH,
        made_s=(pl.col("made_ns") - pl.col("taken_ns")) / 1e9,
        sent_s=(pl.col("sent_ns") - pl.col("pickle_ns")) / 1e9,
        ready_ns=pl.coalesce("sent_ns", "made_ns"),
    )
    made_s, sent_s, ready_ns = _of_batches(keys, made, "made_s", "sent_s", "ready_ns")
    restart_s, h2d_s, stall_s = (
        steps[name].to_numpy() for name in ("restart_s", "h2d_s", "stall_s")
    )
    busy_s = steps.select(pl.sum_horizontal("step_s", "other_s")).to_series().to_numpy()
    has_batch_ns = steps["end_ns"].to_numpy()
    return Loop(
        keys=keys,
        epoch=steps["epoch"].to_numpy(),
        batch=steps["batch"].to_numpy(),
        worker=steps["worker"].to_numpy(),
        waits_from_ns=steps["start_ns"].to_numpy() - _whole_ns(restart_s),
        has_batch_ns=has_batch_ns,
        uses_until_ns=has_batch_ns + _whole_ns(busy_s + h2d_s),
        restart_s=restart_s,
        stall_s=stall_s,
        busy_s=busy_s,
        made_s=made_s,
        sent_s=sent_s,
        ready_ns=ready_ns,
        num_workers=evidence.num_workers,
    )


def _whole_ns(durations_s: np.ndarray) -> np.ndarray:
    return np.rint(durations_s * 1e9).astype(np.int64)


def covered_s(
    spans: pl.DataFrame, stage: str, starts_ns: np.ndarray, ends_ns: np.ndarray
) -> np.ndarray:
    """How much of each window of time the training loop spent in a stage, seconds.

    Args:
        spans: columns of `analyze.spans.SPANS`, of one rank.
        stage: its name.
        starts_ns: when each window begins.
        ends_ns: when it ends.
    """
    these = spans.filter(pl.col("stage").cast(pl.String) == stage, pl.col("worker").is_null())
    nobody = np.zeros(these.height, dtype=np.int64)
    covered = Covered(nobody, these["start_ns"].to_numpy(), these["end_ns"].to_numpy())
    within_ns = covered.within(np.zeros(starts_ns.size, dtype=np.int64), starts_ns, ends_ns)
    inside_s: np.ndarray = within_ns / 1e9
    return inside_s
