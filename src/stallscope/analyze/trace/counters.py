"""The counter tracks of a trace: a line below the processes, one value at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze.trace.phases import counter
from stallscope.resources import NAMES, SAMPLER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.analyze.trace.phases import Event
    from stallscope.analyze.trace.tracks import Tracks

READY: Final = "batches ready"


def used(resources: pl.DataFrame, tracks: Tracks) -> Iterator[Event]:
    """What the machine did meanwhile: a counter for each resource and device.

    Args:
        resources: what `Run.resources` gives, of the whole run.
        tracks: where to draw it.
    """
    for row in resources.drop_nulls("value").iter_rows(named=True):
        if row["resource"] == SAMPLER:  # which is about the measurement, not about the machine
            continue
        name = " ".join(filter(None, (NAMES[row["resource"]], row["device"])))
        unit = row["resource"].partition("_")[2]
        pid = tracks.pid(row["rank"], None, None)
        yield counter(pid, name, row["start_ns"], {unit: row["value"]})


def ready(flows: pl.DataFrame, tracks: Tracks, name: str = READY) -> Iterator[Event]:
    """How many batches have left their workers and wait for the loop: at 0, the loop waits.

    Args:
        flows: what `flows.flows` gives.
        tracks: where to draw it.
        name: of the counter.
    """
    come = flows.select("rank", ns="left_ns", change=pl.lit(1))
    gone = flows.select("rank", ns="got_ns", change=pl.lit(-1))
    both = pl.concat([come, gone]).sort("rank", "ns", pl.col("change") < 0)
    each = both.with_columns(batches=pl.col("change").cum_sum().over("rank"))
    for rank, ns, _, batches in each.iter_rows():
        yield counter(tracks.pid(rank, None, None), name, ns, {"batches": batches})
