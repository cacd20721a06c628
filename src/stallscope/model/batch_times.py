"""How long batches take to make, and whether workers and cores keep up with the step.

Times of a worker are wall times; what of them it spent waiting for a core is known of the worker as
a whole, and is shared out over what computes. So a machine that is busy with something else makes
times longer, but not waiting out of computing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.model import thresholds
from stallscope.model.machine_use import queued_shares, use

if TYPE_CHECKING:
    from stallscope.model.machine_use import MachineUse
    from stallscope.model.tables import RunTables

_LEAST_OWN: Final = 0.1
"""Of a worker's time for a batch that is its own, whatever is said of its waiting for a core."""
_FEWEST_BATCHES: Final = 4
"""Batches of a worker below which nothing is said about it."""
_QUARTILES: Final = {"low_s": 0.25, "median_s": 0.5, "high_s": 0.75}
WAITED_S: Final = pl.sum_horizontal("wait_s", "restart_s") - pl.col("hidden_s").fill_null(0.0)
"""What a step's wait costs at most."""


class Quartiles(NamedTuple):
    """Of the times that a worker takes for a batch, seconds."""

    low_s: float
    median_s: float
    high_s: float


class HandoverTimes(NamedTuple):
    """Lower quartiles, seconds: what a batch takes while nothing else has the cores."""

    made_s: float
    """To be made."""
    received_s: float
    """While the loop waits for it though it is made: to be sent and received."""
    period_s: float
    """From one step to the next."""


@dataclass(frozen=True)
class BatchTimes:
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
    """That make batches; at least 1. Of those that were started, some may have nothing to do."""
    handover: HandoverTimes | None = None
    """None without workers."""
    by_worker: dict[int, Quartiles] = field(default_factory=dict)
    """Of each worker that made enough batches, without what it waited for a core: a neighbour that
    has a core makes no worker slow."""

    @property
    def load(self) -> float:
        """What the workers need over what the step leaves them; above 1 they cannot keep up."""
        return self.batch_s / (self.workers * self.use_s) if self.use_s else float("inf")

    @property
    def busy_share(self) -> float:
        """Share (0 to 1) of their time in which workers make batches."""
        return min(self.batch_s / (self.workers * self.period_s), 1.0) if self.period_s else 0.0


def making(run: RunTables, workers: int) -> BatchTimes | None:
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
    # While a device that works behind the host has work, the loop's wait is the batch's use
    used_s = steps.select(pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s").mean()).item()
    waited_s = steps.select(WAITED_S.mean()).item()
    length_s = steps.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item()
    queued_s = length_s * pl.col("queued_share").fill_null(0.0) / pl.col("many")
    taken = {name: pl.col("made_s").quantile(at) for name, at in _QUARTILES.items()}
    # The last batch of an epoch may have fewer samples, and is the same worker's in every epoch
    whole = made.filter(pl.col("batch") < pl.col("batch").max())
    each = whole.group_by("worker").agg(
        pl.col("pid").cast(pl.String).first(), many=pl.len(), **taken
    )
    own_s = [(pl.col(name) - queued_s).clip(_LEAST_OWN * pl.col(name)) for name in _QUARTILES]
    enough = (
        each.drop_nulls("worker")
        .filter(pl.col("many") >= _FEWEST_BATCHES)
        .join(queued_shares(run), left_on="pid", right_on="device", how="left")
        .select("worker", *own_s)
    )
    return BatchTimes(
        batch_s=float(made["made_s"].to_numpy().mean()),
        usual_s=float(np.median(made["made_s"].to_numpy())),
        use_s=float(used_s),
        period_s=float(used_s + waited_s),
        workers=_active(made, workers),
        handover=_handover(steps, made) if workers else None,
        by_worker={worker: Quartiles(*times) for worker, *times in enough.iter_rows()},
    )


def _handover(steps: pl.DataFrame, made: pl.DataFrame) -> HandoverTimes | None:
    """What batches take from their workers to the loop; None where none was seen to arrive."""
    known = steps.join(made.drop_nulls("arrived_ns"), on=["rank", "epoch", "batch"])
    idle_ns = pl.col("start_ns") + (pl.col("hidden_s").fill_null(0.0) * 1e9).cast(pl.Int64)
    begins_ns = pl.max_horizontal(idle_ns, "made_ns")
    waited_ns = (pl.min_horizontal("arrived_ns", "end_ns") - begins_ns).clip(0)
    period_s = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
    low = known.select(pl.col("made_s"), waited_ns / 1e9, period_s).quantile(_QUARTILES["low_s"])
    return None if known.is_empty() else HandoverTimes(*low.row(0))


def _active(made: pl.DataFrame, workers: int) -> int:
    """How many workers make batches: those of a stream end one by one."""
    seen = made["worker"].drop_nulls().n_unique()
    return max(seen if made.height >= 2 * workers else workers, 1)


@dataclass(frozen=True)
class Pace:
    """Whether batches are made as quickly as the loop uses them."""

    making: BatchTimes | None
    """None where no batch was seen on its way."""
    use: MachineUse
    """What was used of the machine."""
    num_workers: int
    """Worker processes; 0: the main process makes the batches."""
    cores: float
    """That all of them may use."""

    @property
    def queue_free(self) -> float:
        """Share of a worker's busy time that is left when it never has to wait for a core."""
        queued, busy = self.use.queued_share, self.making.busy_share if self.making else 0.0
        return 1 - min(queued / busy, 0.95) if queued and busy else 1.0

    @property
    def free_use_s(self) -> float:
        """As `BatchTimes.use_s`, if the loop never waited for a core; 0 where it is not known.

        It wakes up twice in a step, for its batch and for its device, and waits for a core then: at
        least half of that lies in the step.
        """
        made, queued = self.making, self.use.loop_queued_share or 0.0
        if made is None:
            return 0.0
        return max(made.use_s - queued * max(made.use_s, made.period_s / 2), 0.1 * made.use_s)

    @property
    def free_load(self) -> float:
        """As `BatchTimes.load`, if each worker had a core for itself, and the loop another one."""
        if self.making is None or not self.free_use_s:
            return float("inf")
        return self.making.load * self.queue_free * self.making.use_s / self.free_use_s

    @property
    def cpu_load(self) -> float:
        """CPU time that workers and loop need for a batch over what the cores give in a step.

        Above 1 no number of workers keeps up, whatever else the machine does; infinite without a
        step, 0 where it was not read.
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
        """What a batch would take a worker with a core for itself; 0 where it is not known."""
        made = self.making
        if made is None or made.handover is None:
            return 0.0
        return max(made.handover.made_s, made.batch_s * self.queue_free)


def pace(run: RunTables) -> Pace:
    """Whether a run's batches are made as quickly as its loop uses them."""
    workers, cores = run.settings.num_workers, float(run.machine.get("cores") or 1)
    return Pace(making(run, workers), use(run, workers), workers, cores)
