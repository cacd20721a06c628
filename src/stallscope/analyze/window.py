"""A window of the steady state to look at: around something typical.

What is drawn should be what happens again and again, so the window holds a stall of about the
median length, not the worst one, and is itself of about the usual length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection

FEWEST_STEPS: Final = 12
MOST_STEPS: Final = 36
"""More steps beside each other cannot be told apart."""
ROUNDS: Final = 4
"""Batches of each worker that a window has room for, where that is not too many steps."""
BEFORE: Final = 0.55
"""Share of the window's steps that stand before the chosen one."""
NEAR: Final = 1.5
"""A stall within this factor of the median is a typical one."""
SMALL: Final = 0.2
"""The shortest stalls that together are this share of the time in stalls are not looked for."""
_BATCH: Final = ("epoch", "batch")
_LENGTHS: Final = ("length_s", "length_ns")


@dataclass(frozen=True)
class Window:
    """A piece of the run, from the begin of a step to the end of one."""

    begin_ns: int
    """From the start of the run."""
    end_ns: int
    steps: pl.DataFrame
    """The steps in it, columns of `run.STEPS`."""

    def holds(self, start: str = "start_ns", end: str = "end_ns") -> pl.Expr:
        """Whether something from `start` to `end` reaches into it."""
        return (pl.col(end) > self.begin_ns) & (pl.col(start) < self.end_ns)

    def since(self, *columns: str) -> list[pl.Expr]:
        """Columns of times as seconds from the window's begin, named `_s`."""
        return [
            ((pl.col(name) - self.begin_ns) / 1e9).alias(name.replace("_ns", "_s"))
            for name in columns
        ]


def steps_in(workers: int, period: int | None) -> int:
    """How many steps fit: some rounds of the workers, and two periods of a pattern if possible.

    Args:
        workers: who make batches.
        period: of the pattern that is looked for, in steps.
    """
    fitting = min(max(ROUNDS * workers, FEWEST_STEPS), MOST_STEPS)
    twice = 2 * period + 2 if period else 0
    return max(fitting, twice) if twice <= MOST_STEPS else fitting


def window(
    steps: pl.DataFrame,
    stalls: pl.DataFrame,
    *,
    many: int,
    favoured: Collection[int] = (),
    recorded: pl.DataFrame | None = None,
) -> Window:
    """So many steps around a stall of typical length.

    Args:
        steps: columns of `run.STEPS`, of one rank, in order, with their times.
        stalls: columns of `analyze.stalls.exposed.STALLS`, of these steps.
        many: steps in the window.
        favoured: numbers of the steps to choose among; any stall where it is empty.
        recorded: columns of `run.batches`; a step whose batch is one of them is preferred.
    """
    many = min(many, steps.height)
    first = (pl.col("place") - round(BEFORE * many)).clip(0, steps.height - many)
    ends = _with_ends(steps, stalls).with_columns(first=first, known=_known(recorded))
    last = pl.col("first") + many - 1
    tries = ends.with_columns(
        gap=pl.col("step").gather(last) - pl.col("step").gather("first") >= many,
        length_ns=pl.col("last_ns").gather(last) - pl.col("first_ns").gather("first"),
    )
    chosen = _typical(tries, favoured)
    begin = int(chosen["first"])
    shown = ends[begin : begin + many]
    return Window(shown["first_ns"][0], shown["last_ns"][-1], steps[begin : begin + many])


def steps_from(steps: pl.DataFrame, step: int, many: int) -> Window:
    """So many steps from a certain one on, or the last ones.

    Args:
        steps: columns of `run.STEPS`, of one rank, in order, with their times.
        step: number of the first one.
        many: steps in the window.
    """
    begin = int(min((steps["step"] < step).sum(), max(steps.height - many, 0)))
    shown = _ends(steps[begin : begin + many])
    return Window(shown["first_ns"][0], shown["last_ns"][-1], steps[begin : begin + many])


def _with_ends(steps: pl.DataFrame, stalls: pl.DataFrame) -> pl.DataFrame:
    """Each step's place, its ends and its stall, if any."""
    stalled = stalls.select("step", "stall_s")
    return (
        _ends(steps)
        .join(stalled, on="step", how="left", maintain_order="left")
        .with_columns(place=pl.int_range(pl.len()))
    )


def _ends(steps: pl.DataFrame) -> pl.DataFrame:
    """Each step's ends, with an `iter(loader)` before it."""
    restart_ns = (pl.col("restart_s").fill_null(0.0) * 1e9).round().cast(pl.Int64)
    used_ns = (pl.sum_horizontal("h2d_s", "step_s", "other_s") * 1e9).round().cast(pl.Int64)
    return steps.with_columns(
        first_ns=pl.col("start_ns") - restart_ns, last_ns=pl.col("end_ns") + used_ns
    )


def _known(recorded: pl.DataFrame | None) -> pl.Expr:
    """Whether a step's batch was recorded."""
    if recorded is None:
        return pl.lit(value=True)
    batches = recorded.select(pl.struct(_BATCH).alias("batch"))["batch"].unique()
    return pl.struct(_BATCH).is_in(batches.implode())


def _typical(tries: pl.DataFrame, favoured: Collection[int]) -> dict[str, Any]:
    """The try whose stall, and then whose whole window, is nearest to the median one.

    Where the favoured steps do not stall (a checkpoint), their own length counts; where no step
    stalls, it is a typical piece of the middle.
    """
    length_s = pl.coalesce("stall_s", (pl.col("last_ns") - pl.col("first_ns")) / 1e9)
    lengths = tries.with_columns(length_s=length_s.clip(1e-9))
    asked = [
        lengths.filter(pl.col("step").is_in(list(favoured))),
        lengths.filter(pl.col("stall_s").is_not_null()),
        lengths[lengths.height // 2 : lengths.height // 2 + 1],
    ]
    among = next(some for some in asked if some.height)
    so_far = pl.col("length_s").cum_sum() / pl.col("length_s").sum()
    among = among.sort("length_s", maintain_order=True).filter(so_far > SMALL).sort("step")
    off = {name: (pl.col(name) / pl.col(name).median()).log().abs() for name in _LENGTHS}
    far = off["length_s"] > math.log(NEAR)
    ordered = among.sort("gap", far, ~pl.col("known"), off["length_ns"], maintain_order=True)
    return ordered.row(0, named=True)
