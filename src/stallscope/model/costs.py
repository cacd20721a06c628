"""Costs of the batches of a recorded loop, for the simulator.

Waiting for a core is no cost of a batch, as another setting changes the competition for cores. It
is separated from other waiting as in the verdict (`model.exposure`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.errors import StallscopeError
from stallscope.model.batch_times import (
    BATCH_KEY,
    PERIOD_S,
    LoaderCosts,
    awaited_batches,
    making,
    use,
)
from stallscope.model.exposure import waiting_share
from stallscope.model.simulator import predict
from stallscope.model.thresholds import HARDLY, MENTIONED, SEVERAL
from stallscope.run.resources import find_saturated
from stallscope.stages import END_OF_EPOCH, WORK_KINDS, WORKER_MEMORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stallscope.loops.training_loop import Handover
    from stallscope.model.settings import Setting
    from stallscope.run.result import Run

    Floats = NDArray[np.float64]


_QUICK: Final = 0.25
"""Quantile of the seconds of a handover: without competition for cores."""
_LEAST_OWN: Final = 0.5
"""Least share of the loop's time for a batch that is not waiting for a core."""
_UNSURE: Final = 0.05
"""Share of the waiting for a core that may be another kind of waiting."""
_START_S: Final = 0.03
"""Guess of the seconds to start a worker, where none was started."""
_SEND_BYTES_PER_S: Final = 2e9
"""Guess of the rate at which batches are copied to shared memory, where none was sent ..."""
_SEND_S: Final = 3e-4
"""... and of the seconds besides."""
_LEAST_FIT, _MOST_FIT = 0.7, 1.5
"""Limits of the correction of a replay."""
_FITS: Final = 3
"""Rounds of the correction."""
_IDLE: Final = 0.4
"""Busy share of the workers up to which the loop does not wait for them."""
MANY_THREADS: Final = 4
"""Threads of a worker, beyond torch's own (making batches, sending, handing out memory)."""


def costs_of(  # noqa: PLR0913 - facts of the loader that a run lacks
    run: Run,
    now: Setting,
    *,
    epoch_batches: int | None,
    batch_bytes: int | None,
    cores: float,
    handover: Handover | None = None,
) -> LoaderCosts:
    """Return the costs of the batches of a run.

    Args:
        run: run of the loop as it is.
        now: current setting.
        epoch_batches: batches of an epoch; None for a loader without length.
        batch_bytes: bytes of a batch; None where unknown.
        cores: cores available to the processes of the loop.
        handover: measured handover, for a loop without workers; None: a guess.

    Raises:
        StallscopeError: too little was recorded.
    """
    record, workers = _Recording(run, now, cores), now.num_workers
    stages, computing_s, waiting_s, samples = record.batches()
    if record.steps.is_empty() or not len(samples) or not (computing_s + waiting_s).any():
        raise StallscopeError(
            "no whole batch was recorded, so nothing can be predicted: allow more time "
            "(budget_s), or give a loader with more batches"
        )
    if workers:
        waiting_s = waiting_s * record.waiting_part(computing_s, waiting_s)
    computed_s, waited_s = (float(each.sum(axis=1).mean()) for each in (computing_s, waiting_s))
    made_s = computed_s + waited_s
    ends_epochs = epoch_batches and workers and not now.persistent_workers
    end_s = record.take_ends_out() if ends_epochs else 0.0
    loop = record.loop(None if workers else made_s)
    first_s, worker_cores = 0.0, math.inf
    if workers:
        send_s, receive_s = record.handover()
        start_s, first_s = record.start(made_s + send_s, loop.draw_s)
        use_cores, threads = loop.cores_wanted(0.0, cores)
        threads = record.threads(loop, computed_s + send_s)
        worker_cores = record.worker_cores()
    else:
        guess_s = _SEND_S + (batch_bytes or 0) / _SEND_BYTES_PER_S
        start_s, send_s, receive_s = handover or (_START_S, guess_s, _SEND_S)
        use_cores, threads = loop.cores_wanted(computed_s, cores)
    own = pl.col("resource") == WORKER_MEMORY
    own_bytes = run.resources(steady=False).filter(own)["value"].drop_nulls()
    costs = LoaderCosts(
        stages=stages,
        computing_s=computing_s,
        waiting_s=waiting_s,
        samples=samples,
        use_s=loop.use_s,
        use_cores=use_cores,
        send_s=send_s,
        receive_s=receive_s,
        draw_s=loop.draw_s,
        start_s=start_s,
        first_s=first_s,
        end_s=end_s,
        cores=cores,
        # More workers would take cores from other processes, which is no gain
        others_cores=(find_saturated(run).others_share or 0.0) * cores,
        worker_cores=worker_cores,
        threads=threads,
        workers=workers,
        epoch_batches=epoch_batches,
        batch_bytes=batch_bytes,
        worker_bytes=int(own_bytes.to_numpy().mean()) if own_bytes.len() else None,
    )
    return record.fitted(costs)


def recorded_per_s(run: Run) -> float | None:
    """Return samples per second of the recorded loop's steady state; None without a timed step.

    The start of epochs counts where it is part of the steady state.
    """
    each = PERIOD_S + pl.col("restart_s").fill_null(0.0) if _has_begins(run) else PERIOD_S
    period_s = run.steps().drop_nulls("wait_s").select(each.mean()).item()
    if not period_s:
        return None
    recorded = run.samples()
    samples = float(run.settings.batch_size or 1)
    if not recorded.is_empty():
        samples = recorded.height / float(recorded.select(BATCH_KEY).n_unique())
    return samples / float(period_s)


def _has_begins(run: Run) -> bool:
    """Return whether epochs with persistent workers start in the steady state."""
    return bool(run.settings.num_workers) and bool(run.steps()["restart_s"].count())


class _LoopCosts(NamedTuple):
    """Work of the loop for a batch; all but the first are means."""

    use_s: Any
    """Seconds of the loop for each batch, without waiting for a core."""
    draw_s: float
    """Seconds to draw the indices of a batch."""
    computed_s: float
    period_s: float

    def cores_wanted(self, made_here_s: float, cores: float) -> tuple[float, float]:
        """Return the cores that the loop needs to use a batch, and to make a batch.

        CPU time of threads counts for the batches that the loop makes, as threads of the step
        cannot be separated from it.
        """
        rest_s = max(self.computed_s - self.draw_s - made_here_s, 0.0)
        use_s = max(float(self.use_s.mean()), 1e-9)
        if not made_here_s:
            return min(rest_s / use_s, cores), 1.0
        beside_s = max(rest_s - use_s, 0.0)
        return min(rest_s / use_s, 1.0), min(1 + beside_s / made_here_s, cores)


class _Recording:
    """Run with the tables for its costs."""

    def __init__(self, run: Run, now: Setting, cores: float) -> None:
        self._run, self._now, self._cores = run, now, cores
        self._used = use(run, now.num_workers)
        self._making = making(run, now.num_workers)
        self.steps = run.steps().drop_nulls("wait_s")
        self._delivered = self.steps.join(run.deliveries, on=BATCH_KEY)

    def batches(self) -> tuple[Any, ...]:
        """Return the stages, and computing, waiting and samples of each recorded batch.

        Time of a batch outside of all spans is divided among its stages.
        """
        kinds = pl.col("kind", "stage").cast(pl.String)
        spans = self._run.work.with_columns(kinds).filter(pl.col("kind").is_in(WORK_KINDS))
        wall_ns, read = pl.col("end_ns") - pl.col("start_ns"), pl.col("cpu_ns").is_not_null()
        cpu_share = pl.col("cpu_ns").sum() / wall_ns.filter(read).sum()
        stages = spans.group_by("stage", "kind", maintain_order=True).agg(cpu_share=cpu_share)
        if stages.is_empty():
            return (), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0)
        # A stage without any CPU time read gets the mean share, as it may wait for a core
        filled = stages["cpu_share"].fill_nan(None).fill_null(spans.select(cpu_share).item())
        computing = filled.fill_null(1.0).fill_nan(1.0).clip(upper_bound=1.0).to_numpy()
        named = zip(computing.tolist(), stages["stage"], strict=True)
        waiting = np.array([waiting_share(cpu, self._used, stage) for cpu, stage in named])
        order = spans.select(BATCH_KEY).unique().sort(BATCH_KEY).with_row_index("row")
        each = (
            spans.group_by(*BATCH_KEY, "stage", "kind")
            .agg(wall_s=wall_ns.sum() / 1e9)
            .join(stages.with_row_index("place"), on=["stage", "kind"])
            .join(order, on=BATCH_KEY)
        )
        wall_s = np.zeros((order.height, stages.height))
        wall_s[each["row"].to_numpy(), each["place"].to_numpy()] = each["wall_s"].to_numpy()
        wall_s *= awaited_batches(self._run).height / max(self.steps.height, 1)
        if self._making and wall_s.sum():
            wall_s *= max(self._making.batch_s / float(wall_s.sum(axis=1).mean()), 1.0)
        counts = self._run.samples().group_by(BATCH_KEY).agg(samples=pl.len())
        sample_counts = order.join(counts, on=BATCH_KEY, how="left").sort("row")["samples"]
        usual = float(self._run.settings.batch_size or 1)
        return (
            tuple(stages.select("stage", "kind").iter_rows()),
            wall_s * computing,
            wall_s * waiting,
            sample_counts.fill_null(usual).to_numpy().astype(float),
        )

    def waiting_part(self, computing_s: Any, waiting_s: Any) -> float:
        """Return the share (0 to 1) of the waits that is not waiting for a core.

        The CPU time of a worker's other threads hides some of its waiting for a core.
        """
        waited_s, queued = float(waiting_s.sum(axis=1).mean()), self._used.queued_share
        if self._making is None or not waited_s or queued is None:
            return 1.0
        queued_s = queued * self._making.workers * float(self.steps.select(PERIOD_S.mean()).item())
        computed_s = float(computing_s.sum(axis=1).mean())
        left_s = self._making.batch_s - computed_s - (1 + _UNSURE) * queued_s
        return min(max(left_s / waited_s, 0.0), 1.0)

    def handover(self) -> tuple[float, float]:
        """Return the seconds to send a batch, and to receive one."""
        batches = self._delivered
        sent_s = ((batches["sent_ns"] - batches["made_ns"]) / 1e9).drop_nulls().to_numpy()
        send_s = float(np.quantile(sent_s, _QUICK)) if sent_s.size >= SEVERAL else _SEND_S
        # A batch that arrived while the loop waited for an earlier one was received then
        here = batches.filter(pl.col("arrived_ns") >= pl.col("start_ns"))
        lay_there = here.filter(pl.col("sent_ns") < pl.col("start_ns"))
        is_usual = lay_there.height >= SEVERAL
        here = lay_there if is_usual else here.drop_nulls("sent_ns")
        begin_ns = pl.max_horizontal("sent_ns", "start_ns")
        took = here.select((pl.col("arrived_ns") - begin_ns) / 1e9).to_series()
        received_s = took.clip(0).to_numpy()
        if not received_s.size:
            return max(send_s, 0.0), 0.0
        # A worker's thread sends: where threads wait for cores, only the quickest had a core
        is_usual = is_usual and (self._used.queued_share or 0.0) < MENTIONED
        return max(send_s, 0.0), float(np.quantile(received_s, _QUICK if is_usual else 0.0))

    def take_ends_out(self) -> float:
        """Subtract the shutdown of workers from the steps; return its seconds."""
        ends = self._run.side_spans.filter(pl.col("stage").cast(pl.String) == END_OF_EPOCH.name)
        ends = ends.with_columns(took_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        each = ends.group_by(BATCH_KEY).agg(pl.col("took_s").sum())
        steps = self.steps.join(each, on=BATCH_KEY, how="left", maintain_order="left")
        own_s = (pl.col("other_s") - pl.col("took_s").fill_null(0.0)).clip(0)
        self.steps = steps.with_columns(other_s=own_s).drop("took_s")
        return float(ends["took_s"].median() or 0.0)  # type: ignore[arg-type]  # a float column

    def loop(self, made_s: float | None) -> _LoopCosts:
        """Return the loop's own costs.

        Seconds of a batch with a core for itself are given where the loop makes it, else None.
        """
        used, each = self._used, pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s")
        use_s = self.steps.select(each).to_series().to_numpy().astype(float)
        waited_s = pl.col("wait_s") - pl.col("hidden_s").fill_null(0.0)
        period_s = float(self.steps.select((each + waited_s).mean()).item())
        queued_s, mean_s = (used.loop_queued_share or 0.0) * period_s, float(use_s.mean())
        computed_s = (used.loop_cpu or 0.0) * period_s
        draw_s = self._draw_s(here=made_s is not None)
        if made_s is None:
            draw_s *= computed_s / (computed_s + queued_s) if computed_s else 1.0
        else:  # the part of the waiting for a core that lies in making batches is subtracted
            wall_s = self._making.batch_s if self._making else 0.0
            queued_s = max(queued_s - max(wall_s - made_s, 0.0), 0.0)
        if mean_s <= 0:
            return _LoopCosts(np.zeros(max(len(use_s), 1)), draw_s, computed_s, period_s)
        own_s = use_s * max(1 - queued_s / mean_s, _LEAST_OWN)
        return _LoopCosts(own_s, draw_s, computed_s, period_s)

    def _draw_s(self, *, here: bool) -> float:
        """Return the mean seconds of a wait outside of making and receiving a batch."""
        batches = self._delivered
        waited_ns = pl.col("wait_s") * 1e9
        if here:
            drawn_ns = waited_ns - (pl.col("made_ns") - pl.col("taken_ns"))
        else:
            batches = batches.drop_nulls("arrived_ns").filter(pl.col("pin_s").fill_null(0.0) == 0)
            got_ns = pl.max_horizontal("arrived_ns", "start_ns")
            drawn_ns = pl.col("start_ns") + waited_ns - got_ns
        drawn_s = batches.select(drawn_ns / 1e9).to_series().drop_nulls().clip(0).to_numpy()
        return float(drawn_s.mean()) if drawn_s.size else 0.0

    def threads(self, loop: _LoopCosts, batch_s: float) -> float:
        """Return the cores that a computing worker needs, with its libraries' threads."""
        if not batch_s or (self._used.threads or 0.0) <= MANY_THREADS or self._making is None:
            return 1.0
        computed_s = (self._used.worker_cpu or 0.0) * self._making.workers * loop.period_s
        return max(computed_s / batch_s, 1.0)

    def worker_cores(self) -> float:
        """Return the cores available to all workers; infinite where they may use the loop's."""
        used, each = self._used, self._used.worker_cores
        if each is None or each >= self._cores:
            return math.inf
        active = self._making.workers if self._making else 1
        if (used.queued_share or 0.0) >= MENTIONED:  # the workers use all their cores
            return max((used.worker_cpu or 0.0) * active, each)
        return min(active * each, self._cores)

    def start(self, batch_s: float, draw_s: float) -> tuple[float, float]:
        """Return the seconds until workers are ready, and the extra seconds of the first batch."""
        run, now = self._run, self._now
        if run.first_batch_s is None:
            return _START_S, 0.0
        own = run.startup.filter(pl.col("epoch") == pl.col("epoch").min())
        extra = own.select((pl.col("first_sample_s") - pl.col("typical_sample_s")).median()).item()
        first_s = max(float(extra or 0.0), 0.0)
        drawn_s = now.num_workers * (now.prefetch_factor or 0) * draw_s
        return max(run.first_batch_s - batch_s - first_s - drawn_s, 0.0), first_s

    def fitted(self, costs: LoaderCosts) -> LoaderCosts:
        """Return the costs with which a replay of the current setting takes as long as recorded.

        The correction needs a loop that waits for busy workers: in other loops, the workers' times
        do not show in the rate.
        """
        wanted, factor = recorded_per_s(self._run), 1.0
        epoch = costs.epoch_batches if _has_begins(self._run) else None
        length_ns = self.steps.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()
        made_ns = (pl.col("made_ns") - pl.col("taken_ns")).sum()
        busy = self._run.deliveries.join(self.steps.select(BATCH_KEY), on=BATCH_KEY, how="semi")
        busiest_ns: Any = busy.group_by("rank", "worker").agg(ns=made_ns)["ns"].max() or 0
        for _ in range(_FITS if wanted and busiest_ns > _IDLE * (length_ns or math.inf) else 0):
            prediction = predict(replace(costs.slower(factor), epoch_batches=epoch), self._now)
            if prediction.stall_share.value < HARDLY:
                break
            factor *= prediction.samples_per_s.value / (wanted or 1.0)
            factor = min(max(factor, _LEAST_FIT), _MOST_FIT)
        return costs.slower(factor)
