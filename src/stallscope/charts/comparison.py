"""Two runs as bars on one scale, and under them what changed, with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.charts.bars import Strip, StripPiece
from stallscope.charts.sheet import (
    AXIS,
    FAINT,
    ROOM,
    RULE,
    TEXT_SIZE,
    Sheet,
    draw_interval,
    name_rows,
    styled,
    value_axis,
)
from stallscope.compare.compare import LOOP, SPEED, STALLS
from stallscope.stages import COLOURS, STALL_COLOUR, colour_of
from stallscope.units import printable, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.compare.compare import Comparison

_MOST: Final = 10
"""Changes that are drawn, the largest; a table has all of them."""
_ROW, _NAME = 0.3, 0.3
"""Heights of a row of the changes and of a run's name, inches."""


@styled
def figure(comparison: Comparison, title: str) -> Sheet:
    """Draw the first run and the last one.

    Args:
        comparison: of the runs.
        title: the answer.
    """
    loops = comparison.loops[0], comparison.loops[-1]
    names = comparison.names[0], comparison.names[-1]
    longest = max(sum(loop.values()) for loop in loops)
    bars = [Strip(_pieces(loop), ROOM * sum(loop.values()) / longest) for loop in loops]
    rows = _drawn(comparison)
    differs = [f"differs: {told}" for told in comparison.differs]
    heights = [*(bar.height + _NAME for bar in bars), _ROW * len(rows) + AXIS + _NAME]
    made = Sheet(title, [*differs, *comparison.notes], heights[: 2 + bool(rows)])
    for ax, bar, name, loop in zip(made.parts, bars, names, loops, strict=False):
        bar.fill(ax)
        ax.set_axis_off()
        ax.set_xlim(0, longest)
        took = seconds(sum(loop.values()))
        look: dict[str, Any] = {"loc": "left", "size": TEXT_SIZE, "weight": "bold"}
        ax.set_title(f"{printable(name)}: a sample takes the loop {took}", **look)
    if rows:
        _draw_changes(made.parts[2], rows)
    return made


def _pieces(loop: dict[tuple[str, str], float]) -> list[StripPiece]:
    """The parts of the loop's time a sample; waits look like stalls that do not matter."""
    waits = {"stall": STALL_COLOUR, "wait": RULE}
    found = []
    for (raw, kind), part_s in loop.items():
        name, took, colour = printable(raw), seconds(part_s), waits.get(kind)
        colour = colour or colour_of(raw, kind)
        if part_s > 0:
            found.append(StripPiece(name, part_s, took, colour, f"{name} {took}"))
    return found


def _drawn(comparison: Comparison) -> list[dict[str, Any]]:
    """The changes in seconds a sample, the largest first."""
    rows = comparison.changes.filter(
        pl.col("run") == pl.col("run").max(),
        ~pl.col("measure").is_in([SPEED, STALLS]),
        pl.col("change_low").is_not_null(),
    )
    return rows.sort(pl.col("change").abs(), descending=True).head(_MOST).to_dicts()


def _draw_changes(ax: Axes, rows: list[dict[str, Any]]) -> None:
    colours = {**COLOURS, "stall": STALL_COLOUR, "wait": RULE, "loop": FAINT}
    names = [
        "loop" if row["measure"] == LOOP else printable(row["measure"].removesuffix("_s"), 40)
        for row in rows
    ]
    name_rows(ax, [name.replace("/", ": ") for name in names])
    for at, row in enumerate(rows):
        colour = colours[row["kind"]] if row["distinguishable"] else RULE
        ax.barh(at, row["change"], height=0.6, color=colour, lw=0)
        draw_interval(ax, row["change"], at, (row["change_low"], row["change_high"]))
    ends = [row[end] for row in rows for end in ("change_low", "change_high", "change")]
    value_axis(ax, min(*ends, 0.0) * 1.05, max(*ends, 0.0) * 1.05, _signed)
    ax.axvline(0, color=FAINT, lw=0.8)
    ax.set_xlabel("change a sample; grey is not distinguishable from none")


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+' if value > 0 else ''}{seconds(abs(value))}"
