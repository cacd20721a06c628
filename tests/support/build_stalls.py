"""Loops that stand still for a reason that is known: tables of steps, and what happened meanwhile.

All times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stallscope.model.attribution import PARTS, find_stalls
from stallscope.model.step_series import Evidence
from stallscope.run.decode import SPANS
from stallscope.run.result import DELIVERIES, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLES = {
    "epoch": pl.Int32,
    "batch": pl.Int32,
    "worker": pl.Int16,
    "index": pl.Int64,
    "start_ns": pl.Int64,
    "total_s": pl.Float64,
    "sample": pl.Int32,
    "path": pl.String,
    "rank": pl.Int16,
}


@dataclass
class Stopped:
    """A loop: what each step waited and took; a number stands for all steps."""

    waits: Sequence[float] | np.ndarray
    busy: float | Sequence[float] | np.ndarray = 20.0
    per_epoch: int = 1 << 30
    """Batches in an epoch."""
    workers: int = 4
    """0: the main process."""
    restart: float = 0.0
    """What `iter(loader)` takes."""
    rank: int = 0
    makes: Sequence[float] | np.ndarray | None = None
    """What making each batch took; its worker is then ready when the wait ends."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """What the first sample of some batches takes, by step; samples take 1 ms."""
    files: int = 0
    """Batches in a file (shard) of each worker; 0: every sample is a file."""
    garbage: Mapping[int, float] = field(default_factory=dict)
    """Collections of the main process at the beginning of some waits, by step."""
    parts: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Named parts of some steps, by name and step."""
    exposed: Mapping[int, float] = field(default_factory=dict)
    """Garbage collections of the workers: their part of some stalls, by step."""


def stopped(waits, **how) -> Evidence:
    """What is known about a loop, as `Stopped` describes it."""
    loop = Stopped(waits, **how)
    steps = steps_of(loop)
    return Evidence(
        steps=steps,
        parts=_parts(loop, steps),
        samples=_samples(loop, steps),
        deliveries=_deliveries(loop, steps),
        side_spans=_side_spans(loop, steps),
        num_workers=loop.workers,
    )


def steps_of(loop: Stopped) -> pl.DataFrame:
    """The steps, one after the other from the beginning of the run."""
    waits = np.asarray(loop.waits, dtype=float)
    number = np.arange(waits.size)
    busy = np.broadcast_to(np.asarray(loop.busy, dtype=float), waits.shape)
    batch = number % loop.per_epoch
    restart = np.where(batch == 0, loop.restart, 0.0)
    ends = np.cumsum(waits + busy + restart) - busy
    return _table(
        STEPS,
        waits.size,
        step=number,
        epoch=number // loop.per_epoch,
        batch=batch,
        worker=batch % loop.workers if loop.workers else [None] * waits.size,
        wait_s=waits / 1e3,
        step_s=busy / 1e3,
        other_s=np.zeros(waits.size),
        rank=np.full(waits.size, loop.rank),
        start_ns=_ns(ends - waits),
        end_ns=_ns(ends),
        restart_s=[None if place else loop.restart / 1e3 for place in batch],
        steady=np.ones(waits.size, dtype=bool),
    )


def _parts(loop: Stopped, steps: pl.DataFrame) -> pl.DataFrame:
    found = find_stalls(steps).select("rank", "step", "stall_s")
    garbage = pl.Series([loop.exposed.get(step, 0.0) / 1e3 for step in found["step"]], dtype=float)
    rest = found.select("rank", "step", part=pl.lit("decode"), kind=pl.lit("decode"))
    rest = rest.with_columns(exposed_s=found["stall_s"] - garbage)
    own = found.select("rank", "step", part=pl.lit("garbage collection"), kind=pl.lit("other"))
    both = pl.concat([rest, own.with_columns(exposed_s=garbage)])
    return both.filter(pl.col("exposed_s") > 0).cast(PARTS)


def _samples(loop: Stopped, steps: pl.DataFrame, size: int = 4) -> pl.DataFrame:
    rows = []
    if not loop.slow and not loop.files:
        return pl.DataFrame(rows, SAMPLES, orient="row")
    for step, epoch, batch, worker, end_ns in steps.select(
        "step", "epoch", "batch", "worker", "end_ns"
    ).iter_rows():
        for place in range(size):
            index = batch * size + place
            took = loop.slow.get(step, 1.0) if place == 0 else 1.0 + 0.01 * (index % 7)
            shard = batch // max(loop.workers, 1) // loop.files if loop.files else 0
            path = f"data/{worker}-{shard}.tar" if loop.files else f"data/{index}.jpg"
            about = (end_ns + place, took / 1e3, place, path, loop.rank)
            rows.append((epoch, batch, worker, index, *about))
    return pl.DataFrame(rows, SAMPLES, orient="row")


def _deliveries(loop: Stopped, steps: pl.DataFrame) -> pl.DataFrame:
    if loop.makes is None:
        return _table(DELIVERIES, 0)
    ready_ns = steps["end_ns"].to_numpy()
    return _table(
        DELIVERIES,
        steps.height,
        **{name: steps[name] for name in ("rank", "worker", "epoch", "batch")},
        taken_ns=ready_ns - _ns(np.asarray(loop.makes, dtype=float)),
        made_ns=ready_ns,
        arrived_ns=ready_ns,
    )


def _side_spans(loop: Stopped, steps: pl.DataFrame) -> pl.DataFrame:
    rows = [
        ("garbage collection", step, int(steps["start_ns"][step]), ms)
        for step, ms in loop.garbage.items()
    ] + [
        (name, step, int(steps["end_ns"][step]) + 1000, ms)
        for name, at in loop.parts.items()
        for step, ms in at.items()
    ]
    return _table(
        SPANS,
        len(rows),
        rank=[loop.rank] * len(rows),
        epoch=[steps["epoch"][row[1]] for row in rows],
        batch=[steps["batch"][row[1]] for row in rows],
        stage=[row[0] for row in rows],
        kind=["step" if row[0] in ("forward", "backward") else "other" for row in rows],
        start_ns=[row[2] for row in rows],
        end_ns=[row[2] + round(row[3] * 1e6) for row in rows],
    )


def looped(makes, busy=5.0, *, workers=4, per_epoch=1 << 30, ahead=2, restart=0.0) -> Evidence:
    """A loop that waits because its workers take so long for each batch, as torch's loader does.

    Args:
        makes: what making each batch takes.
        busy: what the loop takes to use one; a number stands for all.
        workers: worker processes.
        per_epoch: batches in an epoch.
        ahead: batches that each worker is asked for in advance.
        restart: what `iter(loader)` takes.
    """
    busy = np.broadcast_to(np.asarray(busy, dtype=float), np.shape(makes))
    now, waits, taken, made = 0.0, [], [], []
    for first in range(0, len(makes), per_epoch):
        takes = makes[first : first + per_epoch]
        now += restart
        asked = [now] * (ahead * workers)
        free = [now] * workers
        for number, took in enumerate(takes):
            lane = number % workers
            begun = max(free[lane], asked[number])
            taken.append(begun)
            free[lane] = begun + took
            made.append(free[lane])
            waits.append(max(free[lane] - now, 0.0))
            now += waits[-1]
            asked.append(now)
            now += busy[len(waits) - 1]
    loop = Stopped(waits, busy, per_epoch, workers, restart)
    steps = steps_of(loop)
    deliveries = _table(
        DELIVERIES,
        steps.height,
        **{name: steps[name] for name in ("rank", "worker", "epoch", "batch")},
        taken_ns=_ns(np.array(taken)),
        made_ns=_ns(np.array(made)),
        arrived_ns=_ns(np.array(made)),
    )
    empty = stopped([], workers=workers)
    return Evidence(
        steps, _parts(loop, steps), empty.samples, deliveries, empty.side_spans, workers
    )


def together(*ranks: Evidence) -> Evidence:
    """Several ranks as one."""
    tables = ("steps", "parts", "samples", "deliveries", "side_spans")
    joined = {name: pl.concat([getattr(rank, name) for rank in ranks]) for name in tables}
    return Evidence(**joined, num_workers=ranks[0].num_workers)


def _table(schema, height: int, **columns) -> pl.DataFrame:
    known = {name: pl.Series(name, values) for name, values in columns.items()}
    nulls = {name: pl.Series(name, [None] * height) for name in schema if name not in known}
    return pl.DataFrame(nulls | known).select(
        pl.col(name).cast(kind) for name, kind in schema.items()
    )


def _ns(times: np.ndarray) -> np.ndarray:
    return np.rint(times * 1e6).astype(np.int64)
