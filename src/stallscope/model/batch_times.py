"""Seconds in which batches are made, and whether workers and cores keep up with the step.

Times of a worker are wall times. Its waiting for a core is known of the worker as a whole, and is
shared out over what computes. So a machine that is busy with something else makes times longer, but
does not turn computing into waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.model import thresholds
from stallscope.model.machine_use import queued_shares, use

if TYPE_CHECKING:
    from stallscope.model.machine_use import MachineUse, RunTables

_LEAST_OWN: Final = 0.1
"""Least share of a worker's time for a batch that is its own, however long it waits for a core."""
_FEWEST_BATCHES: Final = 4
"""Batches of a worker below which nothing is said about it."""
_QUARTILES: Final = {"low_s": 0.25, "median_s": 0.5, "high_s": 0.75}
BATCH_KEY: Final = ["rank", "epoch", "batch"]
"""Columns that name a batch."""
WAITED_S: Final = pl.sum_horizontal("wait_s", "restart_s") - pl.col("hidden_s").fill_null(0.0)
"""Most that a step's wait can cost, seconds."""
PERIOD_S: Final = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
"""Seconds from one step to the next, without the restart of an epoch."""


class Quartiles(NamedTuple):
    """Quartiles of a worker's seconds for a batch."""

    low_s: float
    median_s: float
    high_s: float


class HandoverTimes(NamedTuple):
    """Lower quartiles, seconds: those of batches during which nothing else had the cores."""

    made_s: float
    """To make a batch."""
    received_s: float
    """In which the loop waits though the batch is made: it is sent and received."""
    period_s: float
    """From one step to the next."""


@dataclass(frozen=True)
class BatchTimes:
    """Batches of the steady state, from where a worker takes them up to where they are made."""

    batch_s: float
    """Mean seconds of a worker for a batch."""
    usual_s: float
    """Median of the same."""
    use_s: float
    """Mean seconds in which the loop uses a batch, without any wait."""
    period_s: float
    """Mean seconds from one step to the next."""
    workers: int
    """Workers that make batches, at least 1; some that were started may have nothing to do."""
    handover: HandoverTimes | None = None
    """None without workers."""
    by_worker: dict[int, Quartiles] = field(default_factory=dict)
    """Of each worker that made enough batches, without its waiting for a core: a neighbour that has
    a core makes no worker slow."""

    @property
    def load(self) -> float:
        """Time that the workers need over the time that the step leaves; above 1 they lag."""
        return self.batch_s / (self.workers * self.use_s) if self.use_s else float("inf")

    @property
    def busy_share(self) -> float:
        """Share (0 to 1) of their time in which workers make batches."""
        return min(self.batch_s / (self.workers * self.period_s), 1.0) if self.period_s else 0.0


def making(run: RunTables, workers: int) -> BatchTimes | None:
    """Return the times of the batches; None where no batch was seen on its way.

    Args:
        run: of the loop.
        workers: worker processes; 0: the main process makes the batches.
    """
    made_s = (pl.col("made_ns") - pl.col("taken_ns")) / 1e9
    steps = run.steps().drop_nulls("wait_s")
    known = run.deliveries.join(steps.select(BATCH_KEY).unique(), on=BATCH_KEY, how="semi")
    made = known.with_columns(made_s=made_s).drop_nulls("made_s")
    if made.is_empty() or steps.is_empty():
        return None
    # While a device that works behind the host has work, the loop's wait is the batch's use
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s").mean()
    length_s = (pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9
    use_s, waited_s, whole_s = steps.select(
        used_s.alias("use_s"), WAITED_S.mean().alias("waited_s"), length_s.alias("whole_s")
    ).row(0)
    took_s = made["made_s"].to_numpy()
    # Workers of a stream end one by one
    seen = made["worker"].drop_nulls().n_unique() if made.height >= 2 * workers else workers
    return BatchTimes(
        batch_s=float(took_s.mean()),
        usual_s=float(np.median(took_s)),
        use_s=float(use_s),
        period_s=float(use_s + waited_s),
        workers=max(seen, 1),
        handover=_handover(steps, made) if workers else None,
        by_worker=_by_worker(run, made, whole_s),
    )


def _by_worker(run: RunTables, made: pl.DataFrame, length_s: float) -> dict[int, Quartiles]:
    queued_s = length_s * pl.col("queued_share").fill_null(0.0) / pl.col("many")
    own_s = [(pl.col(name) - queued_s).clip(_LEAST_OWN * pl.col(name)) for name in _QUARTILES]
    taken = {name: pl.col("made_s").quantile(at) for name, at in _QUARTILES.items()}
    # The last batch of an epoch may have fewer samples, and is the same worker's in every epoch
    whole = made.drop_nulls("worker").filter(pl.col("batch") < made["batch"].max())
    each = whole.group_by("worker").agg(
        pl.col("pid").cast(pl.String).first(), many=pl.len(), **taken
    )
    enough = (
        each.filter(pl.col("many") >= _FEWEST_BATCHES)
        .join(queued_shares(run), left_on="pid", right_on="device", how="left")
        .select("worker", *own_s)
    )
    return {worker: Quartiles(*times) for worker, *times in enough.iter_rows()}


def _handover(steps: pl.DataFrame, made: pl.DataFrame) -> HandoverTimes | None:
    """Return the times of batches from workers to loop; None where none was seen to arrive."""
    known = steps.join(made.drop_nulls("arrived_ns"), on=BATCH_KEY)
    idle_ns = pl.col("start_ns") + (pl.col("hidden_s").fill_null(0.0) * 1e9).cast(pl.Int64)
    begins_ns = pl.max_horizontal(idle_ns, "made_ns")
    waited_ns = (pl.min_horizontal("arrived_ns", "end_ns") - begins_ns).clip(0)
    low = known.select(pl.col("made_s"), waited_ns / 1e9, PERIOD_S).quantile(_QUARTILES["low_s"])
    return None if known.is_empty() else HandoverTimes(*low.row(0))


@dataclass(frozen=True)
class Pace:
    """Comparison of the speed at which batches are made with that at which the loop uses them."""

    making: BatchTimes | None
    """None where no batch was seen on its way."""
    use: MachineUse
    """Use of the machine."""
    num_workers: int
    """Worker processes; 0: the main process makes the batches."""
    cores: float
    """Cores available to all of them."""

    @property
    def queue_free(self) -> float:
        """Share of a worker's busy time that is left when it never waits for a core."""
        queued, busy = self.use.queued_share, self.making.busy_share if self.making else 0.0
        return 1 - min(queued / busy, 0.95) if queued and busy else 1.0

    @property
    def free_use_s(self) -> float:
        """`BatchTimes.use_s` if the loop never waited for a core; 0 where unknown.

        It wakes up twice in a step, for its batch and for its device, and waits for a core then: at
        least half of that lies in the step.
        """
        made, queued = self.making, self.use.loop_queued_share or 0.0
        if made is None:
            return 0.0
        return max(made.use_s - queued * max(made.use_s, made.period_s / 2), 0.1 * made.use_s)

    @property
    def free_load(self) -> float:
        """`BatchTimes.load` if each worker had a core for itself, and the loop another one."""
        if self.making is None or not self.free_use_s:
            return float("inf")
        return self.making.load * self.queue_free * self.making.use_s / self.free_use_s

    @property
    def cpu_load(self) -> float:
        """CPU time that workers and loop need for a batch over what the cores give in a step.

        Above 1 no number of workers keeps up, whatever else the machine does; infinite without a
        step, 0 where unknown.
        """
        own = self.use.own_cores(self.num_workers)
        if self.making is None or own is None:
            return 0.0
        step_s = self.free_use_s
        return own * self.making.period_s / (self.cores * step_s) if step_s else float("inf")

    @property
    def is_behind(self) -> bool:
        """Whether workers do not keep up with the step, or the cores do not with both."""
        if not self.num_workers or self.making is None:
            return False
        return max(self.making.load, self.cpu_load) > thresholds.KEEPS_UP

    @property
    def own_batch_s(self) -> float:
        """Seconds of a worker with a core for itself for a batch; 0 where unknown."""
        made = self.making
        if made is None or made.handover is None:
            return 0.0
        return max(made.handover.made_s, made.batch_s * self.queue_free)


def pace(run: RunTables) -> Pace:
    """Compare the speed at which a run's batches are made with that of its loop."""
    workers, cores = run.settings.num_workers, float(run.machine.get("cores") or 1)
    return Pace(making(run, workers), use(run, workers), workers, cores)
