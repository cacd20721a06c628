"""Times of batches in the workers and use of the machine, compared with the step's use of batches.

Times of a worker are wall times. Waiting for a core is measured per worker, and is divided among
the stages that compute. So a busy machine makes times longer, but does not turn computing into
waiting.
"""
# ruff: noqa: D102 - `RunTables` has its documentation in `run.result.Run`

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import polars as pl

from stallscope import stages
from stallscope.model.thresholds import SLOW_WORKER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray
    from polars._typing import IntoExprColumn

    Floats = NDArray[np.float64]

_LEAST_OWN: Final = 0.1
"""Least share of a worker's time for a batch that is not waiting for a core."""
_FEWEST_BATCHES: Final = 4
"""Least batches of a worker for its quartiles."""
_QUARTILES: Final = {"low_s": 0.25, "median_s": 0.5, "high_s": 0.75}
BATCH_KEY: Final = ["rank", "epoch", "batch"]
WAITED_S: Final = pl.sum_horizontal("wait_s", "restart_s") - pl.col("hidden_s").fill_null(0.0)
"""Upper limit of the cost of a step's wait, seconds."""
PERIOD_S: Final = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
"""Seconds from one step to the next, without the restart of an epoch."""


class RunTables(Protocol):
    """Tables of a run that the model reads; `run.result.Run` documents them."""

    @property
    def settings(self) -> Any: ...
    @property
    def machine(self) -> dict[str, Any]: ...
    @property
    def batches(self) -> pl.DataFrame: ...
    @property
    def waits(self) -> pl.DataFrame: ...
    @property
    def deliveries(self) -> pl.DataFrame: ...
    @property
    def side_spans(self) -> pl.DataFrame: ...
    @property
    def all_stacks(self) -> pl.DataFrame: ...
    @property
    def startup(self) -> pl.DataFrame: ...
    @property
    def work_stages(self) -> pl.DataFrame: ...
    def steps(self, *, steady: bool = True) -> pl.DataFrame: ...
    def parts(self) -> pl.DataFrame: ...
    def resources(self, *, steady: bool = True) -> pl.DataFrame: ...


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


class Quartiles(NamedTuple):
    """Quartiles of a worker's seconds for a batch."""

    low_s: float
    median_s: float
    high_s: float


class HandoverTimes(NamedTuple):
    """Lower quartiles, seconds: of batches without competition for cores."""

    made_s: float
    """Seconds of a worker for a batch."""
    received_s: float
    """Seconds of sending and receiving in which the loop waits."""
    period_s: float
    """Seconds from one step to the next."""


@dataclass(frozen=True)
class BatchTimes:
    """Times of the batches of the steady state."""

    batch_s: float
    """Mean seconds of a worker for a batch."""
    usual_s: float
    """Median seconds of a worker for a batch."""
    use_s: float
    """Mean seconds of the loop for a batch, without any wait."""
    period_s: float
    """Mean seconds from one step to the next."""
    workers: int
    """Workers that make batches, at least 1; other workers may be idle."""
    handover: HandoverTimes | None = None
    """None without workers."""
    by_worker: dict[int, Quartiles] = field(default_factory=dict)
    """Quartiles of each worker with enough batches, without waiting for a core: competition for
    cores makes no worker slow."""

    @property
    def load(self) -> float:
        """Ratio of the workers' time for a batch to the loop's; above 1 the workers lag."""
        return self.batch_s / (self.workers * self.use_s) if self.use_s else float("inf")

    @property
    def busy_share(self) -> float:
        """Share (0 to 1) of the workers' time in which they make batches."""
        return min(self.batch_s / (self.workers * self.period_s), 1.0) if self.period_s else 0.0


def making(run: RunTables, workers: int) -> BatchTimes | None:
    """Return the times of the batches; None where no batch was observed."""
    steps = run.steps().drop_nulls("wait_s")
    if steps.is_empty():
        return None
    awaited = awaited_batches(run)
    used = run.deliveries.join(awaited, on=BATCH_KEY, how="semi")
    made_s = (pl.col("made_ns") - pl.col("taken_ns")) / 1e9 * awaited.height / steps.height
    batches = used.with_columns(made_s=made_s).drop_nulls("made_s")
    if batches.is_empty():
        return None
    # While a device that works behind the host has work, the loop's wait is the batch's use
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s").mean()
    use_s, waited_s = steps.select(used_s.alias("use_s"), WAITED_S.mean().alias("waited_s")).row(0)
    took_s = batches["made_s"].to_numpy()
    # Workers of a stream end one by one
    seen = batches["worker"].drop_nulls().n_unique() if batches.height >= 2 * workers else workers
    return BatchTimes(
        batch_s=float(took_s.mean()),
        usual_s=float(np.median(took_s)),
        use_s=float(use_s),
        period_s=float(use_s + waited_s),
        workers=max(seen, 1),
        handover=_handover(steps, batches) if workers else None,
        by_worker=_by_worker(run, batches),
    )


def awaited_batches(run: RunTables) -> pl.DataFrame:
    """Return the keys of the batches that the steady steps waited for.

    A loop may join several batches, or divide one.
    """
    steps = run.steps().drop_nulls("wait_s")
    waits = run.waits.join(steps.select("rank", "step"), on=["rank", "step"], how="semi")
    return pl.concat([table.select(BATCH_KEY) for table in (steps, waits)]).unique()


def _by_worker(run: RunTables, batches: pl.DataFrame) -> dict[int, Quartiles]:
    from_workers = batches.drop_nulls("worker")
    if from_workers.is_empty():
        return {}
    length_s = (pl.col("made_ns").max() - pl.col("taken_ns").min()) / 1e9
    waited = resource_means(run).filter(resource=stages.QUEUED)
    # A worker is another process in each epoch, which waits for a core as long as it lives
    queued = (
        from_workers.group_by("worker", pl.col("pid").cast(pl.String))
        .agg(length_s=length_s, count=pl.len())
        .join(waited, left_on="pid", right_on="device", how="left")
        .group_by("worker")
        .agg(queued_s=(pl.col("length_s") * pl.col("value")).sum() / pl.col("count").sum())
    )
    own_s = [
        (pl.col(name) - pl.col("queued_s")).clip(_LEAST_OWN * pl.col(name)) for name in _QUARTILES
    ]
    rows = worker_quartiles(from_workers).join(queued, on="worker").select("worker", *own_s)
    return {worker: Quartiles(*times) for worker, *times in rows.iter_rows()}


def worker_quartiles(batches: pl.DataFrame) -> pl.DataFrame:
    """Return the quartiles of `made_s` of each `worker` with enough batches, by worker."""
    taken = {name: pl.col("made_s").quantile(at) for name, at in _QUARTILES.items()}
    # The last batch of an epoch may be smaller, and is the same worker's in every epoch
    each = batches.filter(pl.col("batch") < pl.col("batch").max()).group_by("worker")
    enough = pl.col("worker").len() >= _FEWEST_BATCHES
    return each.agg(enough=enough, **taken).filter("enough").drop("enough").sort("worker")


class WorkerSpeed(NamedTuple):
    """Speed of a worker beside that of the others."""

    worker: int
    batch_s: float
    """Its median seconds for a batch."""
    others_s: float
    """Median of the other workers' medians."""
    differs: bool
    """False where batches differ more than workers do: it may only have met the longer ones."""

    def slowness(self, least: float = SLOW_WORKER) -> float:
        """Return its ratio to the others, as a multiple of the least of a slow worker; else 0."""
        return self.batch_s / self.others_s / least if self.differs and self.others_s else 0.0


def compare_workers(by_worker: Mapping[int, Quartiles]) -> list[WorkerSpeed]:
    """Compare each of several workers with the others, the slowest first."""
    speeds = []
    for worker in sorted(by_worker) if len(by_worker) > 1 else ():
        own, rest = by_worker[worker], [by_worker[each] for each in by_worker if each != worker]
        differs = own.low_s > float(np.median([each.high_s for each in rest]))
        others_s = float(np.median([each.median_s for each in rest]))
        speeds.append(WorkerSpeed(worker, own.median_s, others_s, differs))
    return sorted(speeds, key=lambda speed: -speed.batch_s)


def _handover(steps: pl.DataFrame, batches: pl.DataFrame) -> HandoverTimes | None:
    """Return the times of batches on their way to the loop; None where no arrival was observed."""
    arrived = steps.join(batches.drop_nulls("arrived_ns"), on=BATCH_KEY)
    idle_ns = pl.col("start_ns") + (pl.col("hidden_s").fill_null(0.0) * 1e9).cast(pl.Int64)
    begins_ns = pl.max_horizontal(idle_ns, "made_ns")
    waited_ns = (pl.min_horizontal("arrived_ns", "end_ns") - begins_ns).clip(0)
    low = arrived.select(pl.col("made_s"), waited_ns / 1e9, PERIOD_S).quantile(_QUARTILES["low_s"])
    return None if arrived.is_empty() else HandoverTimes(*low.row(0))


@dataclass(frozen=True)
class Pace:
    """Comparison of the workers' speed with the loop's."""

    making: BatchTimes | None
    use: MachineUse
    num_workers: int
    cores: float

    @property
    def queue_free(self) -> float:
        """Share of a worker's busy time without waiting for a core."""
        queued, busy = self.use.queued_share, self.making.busy_share if self.making else 0.0
        return 1 - min(queued / busy, 0.95) if queued and busy else 1.0

    @property
    def free_use_s(self) -> float:
        """`BatchTimes.use_s` without waiting for a core; 0 where unknown.

        The loop wakes up twice per step, for its batch and for its device, and may wait for a core
        each time. So at least half of this waiting belongs to the step.
        """
        times, queued = self.making, self.use.loop_queued_share or 0.0
        if times is None:
            return 0.0
        return max(times.use_s - queued * max(times.use_s, times.period_s / 2), 0.1 * times.use_s)

    @property
    def free_load(self) -> float:
        """`BatchTimes.load` if each worker, and the loop, had a core for itself."""
        if self.making is None or not self.free_use_s:
            return float("inf")
        return self.making.load * self.queue_free * self.making.use_s / self.free_use_s

    @property
    def cpu_load(self) -> float:
        """Ratio of the CPU time of workers and loop for a batch to that of all cores in a step.

        Above 1 no number of workers keeps up, even on an otherwise idle machine; infinite without a
        step, 0 where unknown.
        """
        own = self.use.own_cores(self.num_workers)
        if self.making is None or own is None:
            return 0.0
        step_s = self.free_use_s
        return own * self.making.period_s / (self.cores * step_s) if step_s else float("inf")

    @property
    def own_batch_s(self) -> float:
        """Seconds for a batch of a worker with a core for itself; 0 where unknown."""
        times = self.making
        if times is None or times.handover is None:
            return 0.0
        return max(times.handover.made_s, times.batch_s * self.queue_free)


@dataclass(frozen=True, eq=False)
class LoaderCosts:
    """Costs of the batches of a loop, without waiting for a core, and its cores."""

    stages: tuple[tuple[str, str], ...]
    """Name and kind of each stage that makes a batch."""
    computing_s: Floats
    """CPU time of each batch in each stage, shape (batches, stages)."""
    waiting_s: Floats
    """Time of waiting for anything but a core, same shape."""
    samples: Floats
    """Samples of each batch, shape (batches,)."""
    use_s: Floats
    """Seconds of the loop for each batch (copy, step, rest), shape (steps,)."""
    use_cores: float = 0.0
    """Cores that the loop's process wants meanwhile."""
    send_s: float = 0.0
    """Seconds from a finished batch to a sent one."""
    receive_s: float = 0.0
    """Seconds of the loop to receive a batch."""
    draw_s: float = 0.0
    """Seconds of the sampler to draw the indices of a batch."""
    start_s: float = 0.0
    """Seconds until a started worker is ready for its first batch."""
    first_s: float = 0.0
    """Extra seconds of a worker's first batch."""
    end_s: float = 0.0
    """Seconds to shut down the recorded workers after an epoch."""
    cores: float = 1.0
    others_cores: float = 0.0
    """Cores that other processes used during the recording."""
    worker_cores: float = math.inf
    """Cores available to all workers together, where their affinity is limited."""
    threads: float = 1.0
    """Cores that a computing worker wants: libraries have threads."""
    workers: int = 0
    """Recorded workers; 0: the main process made the batches."""
    epoch_batches: int | None = None
    """Batches of an epoch; None for a loader without length."""
    batch_bytes: int | None = None
    worker_bytes: int | None = None

    @cached_property
    def batch_s(self) -> Floats:
        """Seconds of each batch in a worker with a core for itself."""
        whole: Floats = (self.computing_s + self.waiting_s).sum(axis=1)
        return whole

    @cached_property
    def compute_s(self) -> float:
        """Mean CPU time of a batch."""
        return float(self.computing_s.sum(axis=1).mean())

    @cached_property
    def wait_s(self) -> float:
        """Mean time of a batch spent waiting for anything but a core."""
        return float(self.waiting_s.sum(axis=1).mean())

    def faster(self, factor: float, kinds: Collection[str] = (), stage: str = "") -> LoaderCosts:
        """Return the costs with a speedup of stages of these kinds, or of this name."""
        chosen = np.array([kind in kinds or name == stage for name, kind in self.stages], bool)
        return self.slower(np.where(chosen, 1 / factor, 1.0))

    def slower(self, by: Any) -> LoaderCosts:
        """Return the costs with times of `by` times the length; of each stage, or of all."""
        return replace(self, computing_s=self.computing_s * by, waiting_s=self.waiting_s * by)

    def with_step(self, step_s: float) -> LoaderCosts:
        """Return the costs with a constant step that needs no core."""
        return replace(self, use_s=np.full(1, step_s), use_cores=0.0)
