"""Use of the machine by a loop in its steady state, as means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from stallscope import stages

if TYPE_CHECKING:
    from polars._typing import IntoExprColumn


class RunTables(Protocol):
    """Tables of a run that the model reads; `run.result.Run` documents them."""

    @property
    def settings(self) -> Any:
        """Settings of the run."""

    @property
    def machine(self) -> dict[str, Any]:
        """Machine of the run."""

    @property
    def batches(self) -> pl.DataFrame:
        """Recorded batches."""

    @property
    def waits(self) -> pl.DataFrame:
        """Waits of each step for batches."""

    @property
    def deliveries(self) -> pl.DataFrame:
        """Way of each batch."""

    @property
    def side_spans(self) -> pl.DataFrame:
        """Spans beside the workers' own work."""

    @property
    def all_stacks(self) -> pl.DataFrame:
        """Stacks that the processes sampled themselves."""

    @property
    def work_stages(self) -> pl.DataFrame:
        """Time of the workers by stage."""

    def steps(self, *, steady: bool = True) -> pl.DataFrame:
        """Return the steps of the loop."""

    def parts(self) -> pl.DataFrame:
        """Return the parts of each stall."""

    def resources(self, *, steady: bool = True) -> pl.DataFrame:
        """Return the use of the machine."""


@dataclass(frozen=True)
class MachineUse:
    """Means over the steady state; None where unknown."""

    worker_cpu: float | None = None
    """Cores that one worker keeps busy, all its threads together."""
    loop_cpu: float | None = None
    """Cores that the training process keeps busy."""
    loop_queued_share: float | None = None
    """Share (0 to 1) of the training process' time spent waiting for a core."""
    queued_share: float | None = None
    """Share (0 to 1) of a worker's time spent waiting for a core."""
    threads: float | None = None
    """Threads of one worker."""
    disk_busy_share: float | None = None
    """Busy share (0 to 1) of the busiest disk."""
    worker_cores: float | None = None
    """Cores available to the worker with the fewest."""
    file_lock_share: float | None = None
    """Share (0 to 1) of the samples in which a worker waits for a file lock."""
    gpu_busy_share: float | None = None
    """Busy share (0 to 1) of the busiest GPU, by its driver."""
    helper_cores: float = 0.0
    """Cores that processes which the loader started itself keep busy, all together."""

    def own_cores(self, workers: int) -> float | None:
        """Return the cores that workers, loop and what they started keep busy together."""
        if self.loop_cpu is None or (workers and self.worker_cpu is None):
            return None
        return self.loop_cpu + workers * (self.worker_cpu or 0.0) + self.helper_cores


def use(run: RunTables, workers: int) -> MachineUse:
    """Return the use of the machine by a loop with this number of workers."""
    each = resource_means(run)
    loop = each.filter(resource=stages.LOOP)["device"].implode()
    makers = each.filter(resource=stages.WORKER if workers else stages.LOOP)["device"].implode()

    def value(how: str, resource: str, *of: IntoExprColumn) -> float | None:
        summary: float | None = getattr(each.filter(*of, resource=resource)["value"], how)()
        return summary

    read = run.resources().drop_nulls("value")
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    whole_ns = read.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()
    # Processes that live for a part of the time only, as those of a pool
    helpers = read.filter(resource=stages.HELPER)
    helped_ns = helpers.select((pl.col("value") * length_ns).sum()).item()
    threads = value("mean", stages.THREADS)  # one samples stacks, if there are any
    return MachineUse(
        worker_cpu=value("mean", stages.WORKER),
        loop_cpu=value("mean", stages.LOOP),
        loop_queued_share=value("mean", stages.QUEUED, pl.col("device").is_in(loop)),
        queued_share=value("mean", stages.QUEUED, pl.col("device").is_in(makers)),
        threads=None if threads is None else threads - (run.all_stacks.height > 0),
        disk_busy_share=value("max", stages.DISK_BUSY),
        worker_cores=value("min", stages.WORKER_CORES),
        file_lock_share=value("mean", stages.FILE_LOCK),
        gpu_busy_share=value("max", stages.GPU),
        helper_cores=float(helped_ns) / whole_ns if whole_ns else 0.0,
    )


def resource_means(run: RunTables) -> pl.DataFrame:
    """Return the mean of each resource and device, weighted by the length of each sample."""
    length = (pl.col("end_ns") - pl.col("start_ns")).clip(1)
    mean = (pl.col("value") * length).sum() / length.sum()
    read = run.resources().drop_nulls("value")
    return read.group_by(pl.col("resource", "device").cast(pl.String)).agg(value=mean)
