"""Loops that stand still for a reason that is known: tables of steps, and what happened meanwhile.

All times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stallscope.model.attribution import PARTS, find_stalls
from stallscope.model.reasons import Evidence
from stallscope.stages import GARBAGE
from support.build_run import deliveries_of, spans_of, steps_of

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
    exposed: Mapping[int, float] = field(default_factory=dict)
    """Garbage collections of the workers: their part of some stalls, by step."""


def stopped(waits, **how) -> Evidence:
    """What is known about a loop, as `Stopped` describes it."""
    loop = Stopped(waits, **how)
    steps = _steps(loop)
    ready_ns = steps["end_ns"].to_numpy()
    taken_ns = None if loop.makes is None else ready_ns - _ns(loop.makes)
    return Evidence(
        steps=steps,
        parts=_parts(loop, steps),
        samples=_samples(loop, steps),
        deliveries=deliveries_of() if taken_ns is None else _deliveries(steps, taken_ns, ready_ns),
        side_spans=_collections(loop, steps),
        num_workers=loop.workers,
    )


def _steps(loop: Stopped) -> pl.DataFrame:
    """The steps, one after the other from the beginning of the run."""
    number = np.arange(len(loop.waits))
    batch = number % loop.per_epoch
    return steps_of(
        (np.asarray(loop.waits, dtype=float) / 1e3).tolist(),
        epoch=(number // loop.per_epoch).tolist(),
        batch=batch.tolist(),
        worker=(batch % loop.workers).tolist() if loop.workers else None,
        step_s=(np.broadcast_to(loop.busy, number.shape) / 1e3).tolist(),
        other_s=0.0,
        rank=loop.rank,
        restart_s=[None if place else loop.restart / 1e3 for place in batch],
    )


def _parts(loop: Stopped, steps: pl.DataFrame) -> pl.DataFrame:
    found = find_stalls(steps).select("rank", "step", "stall_s")
    garbage = pl.Series([loop.exposed.get(step, 0.0) / 1e3 for step in found["step"]], dtype=float)
    rest = found.select("rank", "step", part=pl.lit("decode"), kind=pl.lit("decode"))
    rest = rest.with_columns(exposed_s=found["stall_s"] - garbage)
    own = found.select("rank", "step", part=pl.lit(GARBAGE.name), kind=pl.lit("other"))
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


def _deliveries(steps: pl.DataFrame, taken_ns: np.ndarray, made_ns: np.ndarray) -> pl.DataFrame:
    about = steps.select("rank", "worker", "epoch", "batch").to_dicts()
    times = zip(taken_ns.tolist(), made_ns.tolist(), strict=True)
    return deliveries_of(
        *(
            row | {"taken_ns": taken, "made_ns": made, "arrived_ns": made}
            for row, (taken, made) in zip(about, times, strict=True)
        )
    )


def _collections(loop: Stopped, steps: pl.DataFrame) -> pl.DataFrame:
    rows = steps.select("rank", "epoch", "batch", "start_ns").rows(named=True)
    return spans_of(
        *(
            rows[step]
            | {"stage": GARBAGE.name, "worker": None}
            | {"end_ns": rows[step]["start_ns"] + round(ms * 1e6)}
            for step, ms in loop.garbage.items()
        )
    )


def looped(makes, busy=5.0, *, workers=4, per_epoch=1 << 30, ahead=2, restart=0.0) -> Evidence:
    """Make a loop that waits for each batch as long as its workers take, as torch's does."""
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
    found = stopped(waits, busy=busy, per_epoch=per_epoch, workers=workers, restart=restart)
    return replace(found, deliveries=_deliveries(found.steps, _ns(taken), _ns(made)))


def together(*ranks: Evidence) -> Evidence:
    """Several ranks as one."""
    tables = ("steps", "parts", "samples", "deliveries", "side_spans")
    joined = {name: pl.concat([getattr(rank, name) for rank in ranks]) for name in tables}
    return Evidence(**joined, num_workers=ranks[0].num_workers)


def _ns(times: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.rint(np.asarray(times, dtype=float) * 1e6).astype(np.int64)
