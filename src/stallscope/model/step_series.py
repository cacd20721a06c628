"""Steps of one rank as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.attribution import find_stalls, hidden_known

if TYPE_CHECKING:
    from collections.abc import Iterator


BATCH: Final = ("epoch", "batch")
_TABLES: Final = ("steps", "parts", "samples", "deliveries", "side_spans")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tables about the steps of one rank or of several, named by their columns.

    The steps are those after the warm-up, in order; the spans are the training loops'.
    """

    steps: pl.DataFrame
    parts: pl.DataFrame
    samples: pl.DataFrame
    deliveries: pl.DataFrame
    side_spans: pl.DataFrame
    num_workers: int = 0
    """Worker processes of each rank's loader; 0: the main process loads."""

    def by_rank(self) -> Iterator[tuple[int, Evidence]]:
        """Yield each rank with its own rows."""
        for rank in self.steps["rank"].unique().sort():
            own = {name: getattr(self, name).filter(rank=rank) for name in _TABLES}
            yield rank, replace(self, **own)


class StepSeries:
    """Steps of one rank; arrays have a value per step, NaN where it was not observed.

    Attributes:
        keys: `step, epoch, batch` of each step.
        epoch: its epoch.
        batch: its batch.
        worker: worker that made the batch; -1 for the main process.
        waits_from_ns: begin of the wait, with the loader's restart before it; 0 where unknown.
        has_batch_ns: end of the wait; 0 where unknown.
        restart_s: restart of the loader before an epoch's first step; 0 for other steps.
        stall_s: length of the stall; 0 where the loop did not stall.
        busy_s: time until the next wait; plus, for a device that works behind the host, the part of
            the wait in which the device had work.
        made_s: time to make the batch in its worker.
        sent_s: time to send the batch, in a thread of the worker's.
        ready_ns: time when the batch was sent; when it was made, where sending was not recorded.
        num_workers: worker processes; 0: the main process loads.
    """

    def __init__(self, evidence: Evidence) -> None:
        waits = find_stalls(evidence.steps).select("step", "stall_s").unique("step", keep="first")
        steps = evidence.steps.join(waits, on="step", how="left", maintain_order="left")
        steps = hidden_known(steps).with_columns(
            pl.col("restart_s", "stall_s", "hidden_s").fill_null(0.0),
            pl.col("start_ns", "end_ns").fill_null(0),
            pl.col("worker").fill_null(-1),
            used_s=pl.sum_horizontal("step_s", "other_s"),
        )
        column = {name: steps[name].to_numpy() for name in steps.columns}
        self.keys = steps.select("step", *BATCH)
        self.epoch, self.batch, self.worker = (column[name] for name in (*BATCH, "worker"))
        self.restart_s, self.stall_s = column["restart_s"], column["stall_s"]
        restart_ns = np.rint(self.restart_s * 1e9).astype(np.int64)
        self.waits_from_ns = column["start_ns"] - restart_ns
        self.has_batch_ns = column["end_ns"]
        self.busy_s = column["used_s"] + column["hidden_s"]
        times = evidence.deliveries.select(
            *BATCH,
            made_s=(pl.col("made_ns") - pl.col("taken_ns")) / 1e9,
            sent_s=(pl.col("sent_ns") - pl.col("pickle_ns")) / 1e9,
            ready_ns=pl.coalesce("sent_ns", "made_ns"),
        )
        names = ("made_s", "sent_s", "ready_ns")
        self.made_s, self.sent_s, self.ready_ns = of_batches(self.keys, times, *names)
        self.num_workers = evidence.num_workers

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.keys.height

    @property
    def is_whole(self) -> np.ndarray:
        """Mask of batches that characterise their worker: recorded, and not an epoch's last.

        The last batch may have fewer samples, and is the same worker's in every epoch.
        """
        whole: np.ndarray = np.isfinite(self.made_s) & (self.batch < self.batch.max(initial=0))
        return whole

    @property
    def typical_s(self) -> float:
        """Median time to use a batch."""
        return float(np.median(self.busy_s)) if self.size else 0.0


def of_batches(keys: pl.DataFrame, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
    """Return columns of a table of batches, at each batch's step."""
    rows = table.unique(BATCH, keep="first", maintain_order=True)
    joined = keys.join(rows, on=BATCH, how="left", maintain_order="left")
    return [joined[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]
