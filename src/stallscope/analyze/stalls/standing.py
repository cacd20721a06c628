"""What the loop stood still for, wherever its waits come from.

The loop may iterate a DataLoader, or something around one that takes several of its batches for one
of its own, or none. So each `next` of the DataLoader inside of a stall is explained by the batch
that it waited for; the rest of the stall is the main process's own work.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stallscope.analyze.stalls import exposed
from stallscope.analyze.stalls.sections import KIND_OF, MAIN

_STEP = ["rank", "step"]


@dataclass(frozen=True)
class Standing:
    """Stalls and what they consist of."""

    stalls: pl.DataFrame
    """Columns of `exposed.STALLS`."""
    parts: pl.DataFrame
    """Columns of `exposed.PARTS`, with the batches that were not recorded spread."""
    not_recorded_share: float
    """Share (0 to 1) of the stalled time that was spread so."""


def standing(
    steps: pl.DataFrame,
    waits: pl.DataFrame,
    deliveries: pl.DataFrame,
    spans: pl.DataFrame,
    side_spans: pl.DataFrame,
) -> Standing:
    """What the loop stood still for in these steps.

    Args:
        steps: columns of `run.STEPS`; those that count.
        waits: columns of `run.WAITS`.
        deliveries: columns of `run.DELIVERIES`, of the whole run.
        spans: columns of `analyze.spans.SPANS`, of the whole run.
        side_spans: the same columns, of the whole run.
    """
    stalls = exposed.stalls(steps)
    found = exposed.parts(_windows(stalls, steps, waits), deliveries, spans, side_spans)
    merged = found.group_by("rank", "step", "part", "kind", maintain_order=True).agg(
        pl.col("exposed_s").sum()
    )
    parts = pl.concat([merged, _rest(stalls, merged)])
    return Standing(stalls, exposed.spread(parts), exposed.not_recorded_share(parts))


def _windows(stalls: pl.DataFrame, steps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """The DataLoader's own waits inside of the stalls; making an iterator belongs to the first."""
    restarted = pl.col("restart_s").is_not_null() & pl.int_range(pl.len()).over(_STEP).eq(0)
    stall = stalls.select(*_STEP, "worker", stalled_ns="start_ns")
    return (
        waits.join(stall, on=_STEP, how="inner", maintain_order="left")
        .join(steps.select(*_STEP, "restart_s"), on=_STEP, how="left", maintain_order="left")
        .with_columns(start_ns=pl.when(restarted).then("stalled_ns").otherwise("start_ns"))
        .with_columns(stall_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9)
        .select(pl.col(name).cast(kind) for name, kind in exposed.STALLS.items())
    )


def _rest(stalls: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """What lies outside of the DataLoader's own waits."""
    known = parts.group_by(_STEP).agg(known_s=pl.col("exposed_s").sum())
    rest_s = pl.col("stall_s") - pl.col("known_s").fill_null(0.0)
    return (
        stalls.join(known, on=_STEP, how="left", maintain_order="left")
        .select(*_STEP, part=pl.lit(MAIN), kind=pl.lit(KIND_OF[MAIN]), exposed_s=rest_s)
        .filter(pl.col("exposed_s") > 1e-9)  # noqa: PLR2004 - a nanosecond
        .select(pl.col(name).cast(kind) for name, kind in exposed.PARTS.items())
    )
