"""What the batches of a recorded loop cost, taken out of a run for the simulator.

What a worker waited for a core is no cost of a batch: it depends on who else computes, which
another setting changes. It is told from waiting as the verdict tells it (`diagnose.exposure`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.diagnose.exposure import waiting_share
from stallscope.diagnose.machine_use import use
from stallscope.errors import StallscopeError
from stallscope.run.saturation import find_saturated
from stallscope.stages import BATCH, WORK_KINDS
from stallscope.stalls.thresholds import HARDLY
from stallscope.tune.simulator import LoaderCosts, predict

if TYPE_CHECKING:
    from stallscope.diagnose.machine_use import MachineUse
    from stallscope.run.result import Run
    from stallscope.tune.settings import Setting


_BATCH: Final = ["rank", "epoch", "batch"]
_QUICK: Final = 0.25
"""Quantile of what handing a batch over takes: what it takes while nothing else has the cores."""
_FEWEST: Final = 3
"""Batches below which nothing is taken from them."""
_LEAST_OWN: Final = 0.5
"""Of what the loop does with a batch that is its own, however long it waits for a core."""
_LEAST_CORES: Final = 0.5
"""That are left to the loop, whatever others had."""
_UNSURE: Final = 0.05
"""Share of the waiting for a core that is not told from other waiting."""
_START_S: Final = 0.03
"""About what starting a worker takes, where none was started."""
_SEND_BYTES_PER_S: Final = 2e9
"""About what is copied to shared memory a second, where no batch was sent ..."""
_SEND_S: Final = 3e-4
"""... and what sending takes besides."""
_LEAST_FIT, _MOST_FIT = 0.7, 1.5
"""How far the replay of a recording may be corrected."""
_FITS: Final = 3
"""Times that it is corrected."""


def costs_of(
    run: Run, now: Setting, *, epoch_batches: int | None, batch_bytes: int | None, cores: float
) -> LoaderCosts:
    """Take what batches cost out of a run.

    Args:
        run: of the loop as it is.
        now: the setting as it is.
        epoch_batches: of an epoch; None where it has no length.
        batch_bytes: of a batch; None where that is not known.
        cores: that the processes of the loop may use.

    Raises:
        StallscopeError: too little was recorded.
    """
    many = now.num_workers
    used = use(run, many)
    steps = run.steps().drop_nulls("wait_s")
    stages, computing_s, waiting_s, samples = _batches(run, used)
    if steps.is_empty() or not len(samples) or not (computing_s + waiting_s).any():
        raise StallscopeError(
            "no batch was recorded from beginning to end: there is nothing to predict from. Allow "
            "more time (budget_s), or give a loader with more batches"
        )
    if many:
        waiting_s = waiting_s * _waiting_part(run, used, computing_s, waiting_s)
    covered_s = float((computing_s + waiting_s).sum(axis=1).mean())
    send_s, receive_s = _handover(run, steps) if many else (0.0, 0.0)
    if not many and batch_bytes is not None:
        send_s = receive_s = _SEND_S
        send_s += batch_bytes / _SEND_BYTES_PER_S
    others = _others(run, cores)
    use_s, use_cores = _using(steps, used, 0.0 if many else covered_s, cores)
    found = LoaderCosts(
        stages=stages,
        computing_s=computing_s,
        waiting_s=waiting_s,
        samples=samples,
        use_s=use_s,
        use_cores=use_cores,
        send_s=send_s,
        receive_s=receive_s,
        cores=max(cores - others, _LEAST_CORES),
        others_cores=others,
        workers=many,
        epoch_batches=epoch_batches,
        batch_bytes=batch_bytes,
        worker_bytes=_private_bytes(run),
        **_start(run, many, covered_s + send_s),
    )
    return _fitted(found, now, run)


def recorded_per_s(run: Run) -> float | None:
    """Samples a second of the recorded loop in its steady state; None where no step was timed."""
    steps = run.steps().drop_nulls("wait_s")
    each = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
    period_s = steps.select(each.mean()).item()
    return _samples(run) / period_s if period_s else None


def _samples(run: Run) -> float:
    """In a batch, on average."""
    known = run.samples()
    if known.is_empty():
        return float(run.settings.batch_size or 1)
    return known.height / float(known.select(_BATCH).n_unique())


def _batches(run: Run, used: MachineUse) -> tuple[Any, ...]:
    """Stages, computing and waiting of each recorded batch, and its samples."""
    kind = pl.col("kind").cast(pl.String)
    spans = run.work.with_columns(kind=kind, stage=pl.col("stage").cast(pl.String))
    spans = spans.filter(pl.col("kind").is_in(WORK_KINDS))
    wall_ns = pl.col("end_ns") - pl.col("start_ns")
    read = pl.col("cpu_ns").is_not_null()
    told = spans.group_by("stage", "kind", maintain_order=True).agg(
        cpu_share=pl.col("cpu_ns").sum() / wall_ns.filter(read).sum()
    )
    stages = tuple(told.select("stage", "kind").iter_rows())
    # A stage whose CPU time was never read is as the others are: crowded, it may all be queueing
    known = spans.filter(read).select(pl.col("cpu_ns").sum() / wall_ns.sum()).item()
    shares = [
        _shares(stage, cpu if cpu is not None and np.isfinite(cpu) else known, used)
        for stage, _, cpu in told.iter_rows()
    ]
    if not stages:
        return (), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0)
    places = pl.DataFrame(
        {"stage": [name for name, _ in stages], "kind": [kind for _, kind in stages]}
    ).with_row_index("place")
    each = (
        spans.group_by(*_BATCH, "stage", "kind")
        .agg(wall_s=wall_ns.sum() / 1e9, begin_ns=pl.col("start_ns").min())
        .join(places, on=["stage", "kind"])
    )
    order = each.group_by(*_BATCH).agg(pl.col("begin_ns").min()).sort("rank", "epoch", "batch")
    order = order.drop("begin_ns").with_row_index("row")
    each = each.join(order, on=_BATCH)
    wall_s = np.zeros((order.height, len(stages)))
    wall_s[each["row"].to_numpy(), each["place"].to_numpy()] = each["wall_s"].to_numpy()
    made_s = _made_s(run)
    if made_s and wall_s.sum():  # what no span covers, and batches that were not recorded
        wall_s *= max(made_s / float(wall_s.sum(axis=1).mean()), 1.0)
    counts = order.join(
        run.samples().group_by(*_BATCH).agg(samples=pl.len()), on=_BATCH, how="left"
    )
    usual = float(run.settings.batch_size or 1)
    samples = counts.sort("row")["samples"].fill_null(usual).to_numpy().astype(float)
    computing, waiting = np.array(shares).T
    return stages, wall_s * computing, wall_s * waiting, samples


def _shares(stage: str, cpu_share: float | None, used: MachineUse) -> tuple[float, float]:
    """Of a stage's time, what it computes and what it waits for anything but a core."""
    if cpu_share is None or not np.isfinite(cpu_share):
        return 1.0, 0.0
    computing = min(float(cpu_share), 1.0)
    # Nothing of the user's runs between samples: what is not computing there had no core
    waiting = 0.0 if stage == BATCH.name else waiting_share(computing, used)
    return computing, min(waiting, 1 - computing)


def _waiting_part(run: Run, used: MachineUse, computing_s: Any, waiting_s: Any) -> float:
    """How much of what seems to be waiting is left, without all that a worker waited for a core.

    A worker's other threads compute, too, which makes it seem to have waited less for a core.
    """
    made_s, steps = _made_s(run), run.steps().drop_nulls("wait_s")
    each = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
    active = max(run.deliveries["worker"].drop_nulls().n_unique(), 1)
    waited_s = float(waiting_s.sum(axis=1).mean())
    if not made_s or not waited_s or used.queued_share is None:
        return 1.0
    queued_s = used.queued_share * active * float(steps.select(each.mean()).item())
    left_s = made_s - float(computing_s.sum(axis=1).mean()) - (1 + _UNSURE) * queued_s
    return min(max(left_s / waited_s, 0.0), 1.0)


def _made_s(run: Run) -> float | None:
    """Mean time that making a batch takes, of all whose making was seen."""
    steady = run.steps().select(_BATCH).unique()
    known = run.deliveries.join(steady, on=_BATCH, how="semi")
    found = known.select(((pl.col("made_ns") - pl.col("taken_ns")) / 1e9).mean()).item()
    return None if found is None else float(found)


def _handover(run: Run, steps: pl.DataFrame) -> tuple[float, float]:
    """What sending a batch takes, and what receiving it takes the loop."""
    known = steps.join(run.deliveries, on=_BATCH)
    sent_s = ((known["sent_ns"] - known["made_ns"]) / 1e9).drop_nulls().to_numpy()
    send_s = float(np.quantile(sent_s, _QUICK)) if sent_s.size >= _FEWEST else _SEND_S
    lay_there = known.filter(pl.col("sent_ns") < pl.col("start_ns"))
    received_s = lay_there["wait_s"].to_numpy()
    if received_s.size < _FEWEST:  # the loop waits for each: from where it was sent
        late = known.drop_nulls(["sent_ns", "arrived_ns"])
        received_s = ((late["arrived_ns"] - late["sent_ns"]) / 1e9).clip(0).to_numpy()
    receive_s = float(np.quantile(received_s, _QUICK)) if received_s.size else 0.0
    return max(send_s, 0.0), max(receive_s, 0.0)


def _using(
    steps: pl.DataFrame, used: MachineUse, made_here_s: float, cores: float
) -> tuple[Any, float]:
    """What the loop does with each batch, seconds, and the cores that it wants meanwhile."""
    each = pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s")
    use_s = steps.select(each).to_series().to_numpy().astype(float)
    period_s = steps.select((each + pl.col("wait_s") - pl.col("hidden_s").fill_null(0.0)).mean())
    mean_s, queued_s = float(use_s.mean()), (used.loop_queued_share or 0.0) * period_s.item()
    if mean_s <= 0:
        return np.zeros(max(len(use_s), 1)), 0.0
    own_s = use_s * max(1 - queued_s / mean_s, _LEAST_OWN)
    computed_s = (used.loop_cpu or 0.0) * period_s.item() - made_here_s
    return own_s, min(max(computed_s / max(float(own_s.mean()), 1e-9), 0.0), cores)


def _others(run: Run, cores: float) -> float:
    """Cores that other processes had. More workers would take some of them: that is no gain."""
    return (find_saturated(run).others_share or 0.0) * cores


def _start(run: Run, many: int, batch_s: float) -> dict[str, float]:
    """Until workers are ready, and what the first batch takes longer."""
    if not many or run.first_batch_s is None:
        return {"start_s": _START_S}
    own = run.startup.filter(pl.col("epoch") == pl.col("epoch").min())
    extra = own.select((pl.col("first_sample_s") - pl.col("typical_sample_s")).median()).item()
    first_s = max(float(extra or 0.0), 0.0)
    return {"first_s": first_s, "start_s": max(run.first_batch_s - batch_s - first_s, 0.0)}


def _private_bytes(run: Run) -> int | None:
    known = run.memory()["private_bytes"].drop_nulls()
    return int(known.to_numpy().mean()) if known.len() else None


def _fitted(costs: LoaderCosts, now: Setting, run: Run) -> LoaderCosts:
    """The costs with which a replay of the setting as it is takes as long as what was recorded.

    Only where the loop waits for its batches: else nothing is known of what is wrong.
    """
    wanted = recorded_per_s(run)
    factor = 1.0
    for _ in range(_FITS if wanted else 0):
        found = predict(replace(costs.slower(factor), epoch_batches=None), now)
        if found.stall_share.value < HARDLY:
            break
        factor *= found.samples_per_s.value / (wanted or 1.0)
        factor = min(max(factor, _LEAST_FIT), _MOST_FIT)
    return costs.slower(factor)
