"""The timeline at a place that somebody chose: around a stall, or from a step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stallscope.analyze.timeline import Timeline, in_window, makers
from stallscope.analyze.window import steps_from, steps_in, window

if TYPE_CHECKING:
    from stallscope.run import Run


def around(run: Run, rank: int, step: int) -> Timeline:
    """What the workers and the loop did around a stall.

    Args:
        run: what was measured.
        rank: of the stall.
        step: of the stall, a steady one.
    """
    same = pl.col("rank") == rank
    found = window(
        timed_steps(run, rank),
        run.stalls().filter(same),
        many=steps_in(len(makers(run, rank)), None),
        favoured=[step],
        recorded=run.batches.filter(same),
    )
    return in_window(run, rank, found)


def from_step(run: Run, rank: int, step: int, many: int) -> Timeline:
    """What the workers and the loop did from a step on.

    Args:
        run: what was measured.
        rank: one of the run's.
        step: the first one; where it is not there, or too near to the end, the nearest that is.
        many: steps to show.
    """
    return in_window(run, rank, steps_from(timed_steps(run, rank), step, many))


def timed_steps(run: Run, rank: int) -> pl.DataFrame:
    """The steady steps of a rank whose times are known."""
    return run.steps().drop_nulls(["start_ns", "end_ns"]).filter(rank=rank)
