"""What the loop used of the machine in its steady state, as means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stallscope.stages import (
    DISK_BUSY,
    FILE_LOCK,
    GPU,
    LOOP,
    QUEUED,
    THREADS,
    WORKER,
    WORKER_CORES,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.model.tables import RunTables


@dataclass(frozen=True)
class MachineUse:
    """Means over the steady state; None where it was not read."""

    worker_cpu: float | None = None
    """Cores that one worker keeps busy, all its threads together."""
    loop_cpu: float | None = None
    """The same of the process that trains."""
    loop_queued_share: float | None = None
    """Share (0 to 1) of its time in which the process that trains could run and had no core."""
    queued_share: float | None = None
    """Share (0 to 1) of its time in which a worker could run and had no core."""
    threads: float | None = None
    """Threads of one worker."""
    disk_busy_share: float | None = None
    """Of the busiest disk."""
    worker_cores: float | None = None
    """That one worker may run on; the smallest number."""
    file_lock_share: float | None = None
    """Share (0 to 1) of the samples in which a worker waits for a lock of a file."""
    gpu_busy_share: float | None = None
    """Of the busiest GPU, as its driver has it."""

    def own_cores(self, workers: int) -> float | None:
        """Cores that workers and loop keep busy together."""
        if self.loop_cpu is None or (workers and self.worker_cpu is None):
            return None
        return self.loop_cpu + workers * (self.worker_cpu or 0.0)


def use(run: RunTables, workers: int) -> MachineUse:
    """What a run used.

    Args:
        run: the loop as it is.
        workers: worker processes of the loader; 0: the main process loads.
    """
    each = _means(run)
    makers = each.filter(pl.col("resource") == (WORKER if workers else LOOP))["device"]

    def values(name: str) -> np.ndarray | None:
        rows = each.filter(pl.col("resource") == name)
        if name == QUEUED:  # the loop's own queueing is another matter
            rows = rows.filter(pl.col("device").is_in(makers.implode()))
        return rows["value"].to_numpy() if rows.height else None

    def of(name: str, how: Callable[[np.ndarray], float]) -> float | None:
        found = values(name)
        return None if found is None else float(how(found))

    return MachineUse(
        worker_cpu=of(WORKER, np.mean),
        loop_cpu=of(LOOP, np.mean),
        loop_queued_share=_of_loop(each),
        queued_share=of(QUEUED, np.mean),
        threads=of(THREADS, np.mean),
        disk_busy_share=of(DISK_BUSY, np.max),
        worker_cores=of(WORKER_CORES, np.min),
        file_lock_share=of(FILE_LOCK, np.mean),
        gpu_busy_share=of(GPU, np.max),
    )


def _of_loop(each: pl.DataFrame) -> float | None:
    """What the process that trains waited for a core."""
    loops = each.filter(pl.col("resource") == LOOP)["device"]
    mine = pl.col("device").is_in(loops.implode())
    found = each.filter(pl.col("resource") == QUEUED, mine)["value"]
    return float(found.to_numpy().mean()) if found.len() else None


def queued_shares(run: RunTables) -> pl.DataFrame:
    """Share of its time in which each process had no core: columns `device, queued_share`."""
    queued = _means(run).filter(pl.col("resource") == QUEUED)
    return queued.select("device", queued_share="value")


def _samples(run: RunTables) -> pl.DataFrame:
    """What was read of the steady state, with names as text."""
    named = pl.col("resource", "device").cast(pl.String)
    return run.resources().drop_nulls("value").with_columns(named)


def _means(run: RunTables) -> pl.DataFrame:
    """The mean of each resource and device, by the length of each sample."""
    length = (pl.col("end_ns") - pl.col("start_ns")).clip(1)
    mean = (pl.col("value") * length).sum() / length.sum()
    return _samples(run).group_by("resource", "device").agg(value=mean)
