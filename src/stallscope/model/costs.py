"""What the batches of a recorded loop cost, taken out of a run for the simulator.

What a worker waited for a core is no cost of a batch: it depends on who else computes, which
another setting changes. It is told from waiting as the verdict tells it (`model.exposure`).
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import polars as pl
import torch
from torch.utils.data import DataLoader

from stallscope.errors import StallscopeError
from stallscope.model.exposure import waiting_share
from stallscope.model.machine_use import use
from stallscope.model.simulator import LoaderCosts, predict
from stallscope.model.thresholds import HARDLY, SLOW_WORKER
from stallscope.run.saturation import find_saturated
from stallscope.stages import BATCH, END_OF_EPOCH, WORK_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.model.machine_use import MachineUse
    from stallscope.model.settings import Setting
    from stallscope.run.result import Run


_BATCH: Final = ["rank", "epoch", "batch"]
_QUICK: Final = 0.25
"""Quantile of what handing a batch over takes: what it takes while nothing else has the cores."""
_FEWEST: Final = 3
"""Batches below which nothing is taken from them."""
_LEAST_OWN: Final = 0.5
"""Of what the loop does with a batch that is its own, however long it waits for a core."""
_CROWDED: Final = 0.1
"""Share of its time that a worker waits for a core, from which on all those it may use are used."""
_UNSURE: Final = 0.05
"""Share of the waiting for a core that is not told from other waiting."""
_START_S: Final = 0.03
"""About what starting a worker takes, where none was started."""
_SEND_BYTES_PER_S: Final = 2e9
"""About what is copied to shared memory a second, where no batch was sent ..."""
_SEND_S: Final = 3e-4
"""... and what sending takes besides."""
_HANDED: Final = 12
"""Batches that are handed over to see what that takes."""
_HANDED_WITHIN_S: Final = 5.0
_REST_S: Final = 0.002
_LEAST_FIT, _MOST_FIT = 0.7, 1.5
"""How far the replay of a recording may be corrected."""
_IDLE: Final = 0.4
"""Share of their time in which workers make batches, up to which the loop waits for none."""
MANY_THREADS: Final = 4
"""Of a worker: more than those of torch (one makes batches, one sends, one hands out memory)."""
_FITS: Final = 3
"""Times that it is corrected."""


class Handover(NamedTuple):
    """What handing batches over to the loop takes, seconds."""

    start_s: float
    """Until a worker that is started is ready for its first batch."""
    send_s: float
    """From where a batch is made to where it is sent."""
    receive_s: float
    """What receiving it takes the loop."""


def costs_of(  # noqa: PLR0913 - what a run does not know of its loader
    run: Run,
    now: Setting,
    *,
    epoch_batches: int | None,
    batch_bytes: int | None,
    cores: float,
    handover: Handover | None = None,
) -> LoaderCosts:
    """Take what batches cost out of a run.

    Args:
        run: of the loop as it is.
        now: the setting as it is.
        epoch_batches: of an epoch; None where it has no length.
        batch_bytes: of a batch; None where that is not known.
        cores: that the processes of the loop may use.
        handover: what it takes, where the loop makes its batches itself; None: a guess.

    Raises:
        StallscopeError: too little was recorded.
    """
    many = now.num_workers
    used = use(run, many)
    steps = run.steps().drop_nulls("wait_s")
    stages, computing_s, waiting_s, samples, makers = _batches(run, used)
    if steps.is_empty() or not len(samples) or not (computing_s + waiting_s).any():
        raise StallscopeError(
            "no batch was recorded from beginning to end: there is nothing to predict from. Allow "
            "more time (budget_s), or give a loader with more batches"
        )
    slower = _slower(makers, (computing_s + waiting_s).sum(axis=1))
    for worker, factor in slower.items():
        scale = np.where(makers == worker, 1 / factor, 1.0)[:, None]
        computing_s, waiting_s = computing_s * scale, waiting_s * scale
    if many:
        waiting_s = waiting_s * _waiting_part(run, used, computing_s, waiting_s)
    covered_s = float((computing_s + waiting_s).sum(axis=1).mean())
    end_s = 0.0
    if epoch_batches and many and not now.persistent_workers:
        steps, end_s = _without_ends(run, steps)
    loop = _loop(run, steps, used, covered_s if not many else None)
    if many:
        send_s, receive_s = _handover(run, steps, used)
        start = _start(run, now, covered_s + send_s, loop.draw_s)
    else:
        send_s = _SEND_S + (batch_bytes or 0) / _SEND_BYTES_PER_S
        start_s, send_s, receive_s = handover or (_START_S, send_s, _SEND_S)
        start = {"start_s": start_s}
    made_here_s = 0.0 if many else float(computing_s.sum(axis=1).mean())
    use_cores, threads = _cores_wanted(loop, made_here_s, cores)
    if many:
        threads = _threads(run, used, loop, float(computing_s.sum(axis=1).mean()) + send_s)
    found = LoaderCosts(
        stages=stages,
        computing_s=computing_s,
        waiting_s=waiting_s,
        samples=samples,
        use_s=loop.use_s,
        use_cores=use_cores,
        send_s=send_s,
        receive_s=receive_s,
        draw_s=loop.draw_s,
        cores=cores,
        others_cores=_others(run, cores),
        worker_cores=_worker_cores(run, used, cores) if many else math.inf,
        threads=threads,
        workers=many,
        slower_workers=slower,
        end_s=end_s,
        epoch_batches=epoch_batches,
        batch_bytes=batch_bytes,
        worker_bytes=_private_bytes(run),
        **start,
    )
    return _fitted(found, now, run)


class _OneBatch:
    """A dataset that has one batch, again and again; each is a copy, as one that is made is."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _HANDED

    def __getitem__(self, _: int) -> Any:
        return copy.deepcopy(self._batch)


def _as_it_is(batch: Any) -> Any:
    return batch


def handing_over(batch: Any) -> DataLoader[Any]:
    """A loader whose one worker does nothing but hand the same batch over; see `handed_over`."""
    return DataLoader(
        cast("Any", _OneBatch(batch)),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=1,
        prefetch_factor=1,
        timeout=_HANDED_WITHIN_S,
        generator=torch.Generator(),  # the user's would give a seed to the worker
    )


def handed_over(batches: Iterator[Any], batch: Any, began_s: float) -> Handover | None:
    """What handing a batch over takes; None where the worker gave too few.

    It is asked for a batch when the one before is received: at once that takes the whole round, and
    after a rest it lies there.

    Args:
        batches: of `handing_over`.
        batch: the same one.
        began_s: when its worker was started (`perf_counter`).
    """
    copied_s = _took_s(lambda: copy.deepcopy(batch))
    if next(batches, None) is None:
        return None
    ready_s, last_s = time.perf_counter() - began_s, 0.0
    rounds: list[float] = []
    received: list[float] = []
    for number in range(_HANDED - 1):
        if number % 2:
            time.sleep(2 * last_s + _REST_S)
        last_s = _took_s(lambda: next(batches, None))
        (received if number % 2 else rounds).append(last_s)
    round_s, receive_s = float(np.median(rounds)), float(np.median(received))
    sent_s = max(round_s - receive_s - copied_s, 0.0)
    return Handover(max(ready_s - round_s, 0.0), sent_s, receive_s)


def _took_s(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def recorded_per_s(run: Run) -> float | None:
    """Samples a second of the recorded loop in its steady state; None where no step was timed.

    With the begins of epochs that are part of it.
    """
    steps = run.steps().drop_nulls("wait_s")
    each = pl.sum_horizontal("wait_s", "h2d_s", "step_s", "other_s")
    if _has_begins(run):
        each += pl.col("restart_s").fill_null(0.0)
    period_s = steps.select(each.mean()).item()
    return _samples(run) / period_s if period_s else None


def _has_begins(run: Run) -> bool:
    """Whether epochs begin in the steady state: where workers live on, or there is nothing else."""
    return bool(run.settings.num_workers) and bool(run.steps()["restart_s"].count())


def _samples(run: Run) -> float:
    """In a batch, on average."""
    known = run.samples()
    if known.is_empty():
        return float(run.settings.batch_size or 1)
    return known.height / float(known.select(_BATCH).n_unique())


def _batches(run: Run, used: MachineUse) -> tuple[Any, ...]:
    """Stages, computing and waiting of each recorded batch, its samples, and its worker, or -1."""
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
        return (), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), np.zeros(0)
    places = pl.DataFrame(
        {"stage": [name for name, _ in stages], "kind": [kind for _, kind in stages]}
    ).with_row_index("place")
    each = (
        spans.group_by(*_BATCH, "stage", "kind")
        .agg(
            wall_s=wall_ns.sum() / 1e9,
            begin_ns=pl.col("start_ns").min(),
            worker=pl.col("worker").first(),
        )
        .join(places, on=["stage", "kind"])
    )
    first = pl.col("begin_ns").min(), pl.col("worker").first()
    order = each.group_by(*_BATCH).agg(*first).sort("rank", "epoch", "batch")
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
    is_whole = pl.col("batch") < pl.col("batch").max()  # an epoch's last may have fewer samples
    makers = order.select(pl.when(is_whole).then("worker").fill_null(-1)).to_series().to_numpy()
    return stages, wall_s * computing, wall_s * waiting, samples, makers


def _slower(makers: Any, made_s: Any) -> dict[int, float]:
    """The worker that takes longer than the others, nearly always, and how many times as long.

    Args:
        makers: number of each batch's worker; -1 where that says nothing.
        made_s: what each batch took.
    """
    numbers = [
        one for one in np.unique(makers[makers >= 0]) if np.count_nonzero(makers == one) >= _FEWEST
    ]
    medians = {one: float(np.median(made_s[makers == one])) for one in numbers}
    if len(numbers) < 2:  # noqa: PLR2004 - one and the others
        return {}
    slow = max(numbers, key=medians.__getitem__)
    rest_s = made_s[np.isin(makers, [one for one in numbers if one != slow])]
    factor = medians[slow] / max(float(np.median(rest_s)), 1e-12)
    apart = np.quantile(made_s[makers == slow], 0.25) > np.quantile(rest_s, 0.75)
    return {int(slow): factor} if factor >= SLOW_WORKER and apart else {}


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
    active = _active(run)
    waited_s = float(waiting_s.sum(axis=1).mean())
    if not made_s or not waited_s or used.queued_share is None:
        return 1.0
    queued_s = used.queued_share * active * float(steps.select(each.mean()).item())
    left_s = made_s - float(computing_s.sum(axis=1).mean()) - (1 + _UNSURE) * queued_s
    return min(max(left_s / waited_s, 0.0), 1.0)


def _active(run: Run) -> int:
    return max(run.deliveries["worker"].drop_nulls().n_unique(), 1)


def _busy_share(run: Run) -> float:
    """Share (0 to 1) of its time in which the busiest of those that make batches makes some."""
    steps = run.steps().drop_nulls("wait_s")
    length_ns = steps.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()
    making = run.deliveries.join(steps.select(_BATCH).unique(), on=_BATCH, how="semi")
    making_ns = (pl.col("made_ns") - pl.col("taken_ns")).sum()
    busiest_ns = making.group_by("rank", "worker").agg(ns=making_ns)["ns"].max()
    return float(busiest_ns or 0) / length_ns if length_ns else 0.0  # type: ignore[arg-type]


def _made_s(run: Run) -> float | None:
    """Mean time that making a batch takes, of all whose making was seen."""
    steady = run.steps().select(_BATCH).unique()
    known = run.deliveries.join(steady, on=_BATCH, how="semi")
    found = known.select(((pl.col("made_ns") - pl.col("taken_ns")) / 1e9).mean()).item()
    return None if found is None else float(found)


def _handover(run: Run, steps: pl.DataFrame, used: MachineUse) -> tuple[float, float]:
    """What sending a batch takes, and what receiving it takes the loop."""
    known = steps.join(run.deliveries, on=_BATCH)
    sent_s = ((known["sent_ns"] - known["made_ns"]) / 1e9).drop_nulls().to_numpy()
    send_s = float(np.quantile(sent_s, _QUICK)) if sent_s.size >= _FEWEST else _SEND_S
    # What came while another one was waited for was received then
    here = known.filter(pl.col("arrived_ns") >= pl.col("start_ns"))
    lay_there = here.filter(pl.col("sent_ns") < pl.col("start_ns"))
    is_usual = lay_there.height >= _FEWEST
    here = lay_there if is_usual else here.drop_nulls("sent_ns")
    begin_ns = pl.max_horizontal("sent_ns", "start_ns")
    took = here.select((pl.col("arrived_ns") - begin_ns) / 1e9).to_series()
    received_s = took.clip(0).to_numpy()
    if not received_s.size:
        return max(send_s, 0.0), 0.0
    # A thread of the worker's hands it out: where it has to wait for a core, the quickest had one
    is_usual = is_usual and (used.queued_share or 0.0) < _CROWDED
    return max(send_s, 0.0), float(np.quantile(received_s, _QUICK if is_usual else 0.0))


def _without_ends(run: Run, steps: pl.DataFrame) -> tuple[pl.DataFrame, float]:
    """Steps without the ends of epochs, where their workers end, and what such an end takes."""
    ends = run.side_spans.filter(pl.col("stage").cast(pl.String) == END_OF_EPOCH.name)
    ends = ends.with_columns(took_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
    each = ends.group_by(_BATCH).agg(pl.col("took_s").sum())
    known = steps.join(each, on=_BATCH, how="left", maintain_order="left")
    own_s = (pl.col("other_s") - pl.col("took_s").fill_null(0.0)).clip(0)
    end_s = ends["took_s"].median() or 0.0
    return known.with_columns(other_s=own_s).drop("took_s"), float(end_s)  # type: ignore[arg-type]  # a float column


class _LoopCosts(NamedTuple):
    """What the loop does itself for each batch; means but for the first."""

    use_s: Any
    """What it does with each batch, without waiting for a core."""
    draw_s: float
    """Between two of them: it draws the samples of another one."""
    computed_s: float
    """CPU time of its process, whatever for."""
    period_s: float
    """From batch to batch."""


def _loop(run: Run, steps: pl.DataFrame, used: MachineUse, made_s: float | None) -> _LoopCosts:
    """What the loop does itself.

    Args:
        run: of the loop as it is.
        steps: those that were timed.
        used: what the run used of the machine.
        made_s: what making a batch takes the loop with a core for itself; None where workers do.
    """
    each = pl.sum_horizontal("h2d_s", "step_s", "other_s", "hidden_s")
    use_s = steps.select(each).to_series().to_numpy().astype(float)
    period_s = steps.select((each + pl.col("wait_s") - pl.col("hidden_s").fill_null(0.0)).mean())
    length_s = float(period_s.item())
    queued_s, mean_s = (used.loop_queued_share or 0.0) * length_s, float(use_s.mean())
    computed_s = (used.loop_cpu or 0.0) * length_s
    draw_s = _draw_s(run, steps, here=made_s is not None)
    if made_s is None:
        draw_s *= computed_s / (computed_s + queued_s) if computed_s else 1.0
    else:  # it queued as much as making took longer than it would have with a core
        queued_s = max(queued_s - max((_made_s(run) or 0.0) - made_s, 0.0), 0.0)
    if mean_s <= 0:
        return _LoopCosts(np.zeros(max(len(use_s), 1)), draw_s, computed_s, length_s)
    own_s = use_s * max(1 - queued_s / mean_s, _LEAST_OWN)
    return _LoopCosts(own_s, draw_s, computed_s, length_s)


def _draw_s(run: Run, steps: pl.DataFrame, *, here: bool) -> float:
    """What of a wait is neither making a batch nor receiving it, on average.

    Args:
        run: of the loop as it is.
        steps: those that were timed.
        here: whether the loop makes the batches itself.
    """
    known = steps.join(run.deliveries, on=_BATCH)
    end_ns = pl.col("start_ns") + pl.col("wait_s") * 1e9
    got_ns = pl.max_horizontal("arrived_ns", "start_ns")
    if here:
        made_ns = pl.col("made_ns") - pl.col("taken_ns")
        drawn = known.select((pl.col("wait_s") * 1e9 - made_ns) / 1e9)
    else:
        known = known.drop_nulls("arrived_ns").filter(pl.col("pin_s").fill_null(0.0) == 0)
        drawn = known.select((end_ns - got_ns) / 1e9)
    drawn_s = drawn.to_series().drop_nulls().clip(0).to_numpy()
    return float(drawn_s.mean()) if drawn_s.size else 0.0


def _cores_wanted(loop: _LoopCosts, made_here_s: float, cores: float) -> tuple[float, float]:
    """Cores that the loop wants while it uses a batch, and while it makes one itself.

    What its threads computed beside it was for the batches it made, where it made them; a step that
    has threads is not told from that.
    """
    rest_s = max(loop.computed_s - loop.draw_s - made_here_s, 0.0)
    use_s = max(float(loop.use_s.mean()), 1e-9)
    if not made_here_s:
        return min(rest_s / use_s, cores), 1.0
    beside_s = max(rest_s - use_s, 0.0)
    return min(rest_s / use_s, 1.0), min(1 + beside_s / made_here_s, cores)


def _threads(run: Run, used: MachineUse, loop: _LoopCosts, batch_s: float) -> float:
    """Cores that a worker wants while it computes: those of its libraries' threads among them."""
    if not batch_s or (used.threads or 0.0) <= MANY_THREADS:
        return 1.0
    computed_s = (used.worker_cpu or 0.0) * _active(run) * loop.period_s
    return max(computed_s / batch_s, 1.0)


def _worker_cores(run: Run, used: MachineUse, cores: float) -> float:
    """That all workers together may use: known where each has fewer than the loop."""
    if used.worker_cores is None or used.worker_cores >= cores:
        return math.inf
    active = _active(run)
    if (used.queued_share or 0.0) >= _CROWDED:  # then they have all that there is for them
        return max((used.worker_cpu or 0.0) * active, used.worker_cores)
    return min(active * used.worker_cores, cores)


def _others(run: Run, cores: float) -> float:
    """Cores that other processes had. More workers would take some of them: that is no gain."""
    return (find_saturated(run).others_share or 0.0) * cores


def _start(run: Run, now: Setting, batch_s: float, draw_s: float) -> dict[str, float]:
    """Until workers are ready, and what the first batch takes longer."""
    if run.first_batch_s is None:
        return {"start_s": _START_S}
    own = run.startup.filter(pl.col("epoch") == pl.col("epoch").min())
    extra = own.select((pl.col("first_sample_s") - pl.col("typical_sample_s")).median()).item()
    first_s = max(float(extra or 0.0), 0.0)
    drawn_s = now.num_workers * (now.prefetch_factor or 0) * draw_s
    start_s = max(run.first_batch_s - batch_s - first_s - drawn_s, 0.0)
    return {"first_s": first_s, "start_s": start_s}


def _private_bytes(run: Run) -> int | None:
    known = run.memory()["private_bytes"].drop_nulls()
    return int(known.to_numpy().mean()) if known.len() else None


def _fitted(costs: LoaderCosts, now: Setting, run: Run) -> LoaderCosts:
    """The costs with which a replay of the setting as it is takes as long as what was recorded.

    Only where the loop waits for its batches: else nothing is known of what is wrong. Workers that
    have little to do are not what it waits for.
    """
    wanted, factor = recorded_per_s(run), 1.0
    epoch = costs.epoch_batches if _has_begins(run) else None
    for _ in range(_FITS if wanted and _busy_share(run) > _IDLE else 0):
        found = predict(replace(costs.slower(factor), epoch_batches=epoch), now)
        if found.stall_share.value < HARDLY:
            break
        factor *= found.samples_per_s.value / (wanted or 1.0)
        factor = min(max(factor, _LEAST_FIT), _MOST_FIT)
    return costs.slower(factor)
