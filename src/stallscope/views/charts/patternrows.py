"""Patterns as lines over a chart of steps: what each one is, and marks at the steps it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count
from stallscope.views.charts.style import INK, RULE, SMALL_SIZE, Part, balanced
from stallscope.views.loop import explained, pattern_title

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from matplotlib.axes import Axes

MARKERS: Final = ("D", "s", "^", "v")
"""One for each pattern that is shown."""
_LINE, _TICKS, _SPACE = 0.17, 0.16, 0.1
"""Heights of a line of text, of the marks, and of what is free below them, inches."""


@dataclass(frozen=True)
class Marked:
    """A pattern as a line over the waits."""

    lines: tuple[str, ...]
    """What it is, as lines of text."""
    steps: tuple[int, ...]
    """Those that its sentence names."""
    more: bool
    """Whether it explains others beside these."""
    waits: bool
    """Whether they wait; else they are long."""
    marker: str

    @property
    def height(self) -> float:
        """Of its text and its marks, inches."""
        return _LINE * len(self.lines) + _TICKS + _SPACE


def marked(
    patterns: pl.DataFrame, title: dict[str, Any] | None, width: float
) -> tuple[Marked, ...]:
    """The lines of the first patterns.

    Args:
        patterns: columns of `analyze.patterns.PATTERNS`.
        title: the one whose sentence is the title already.
        width: of the chart, inches.
    """
    rows = patterns.head(len(MARKERS)).to_dicts()
    return tuple(
        _marked(_text(row, in_title=row == title), row, marker, width)
        for row, marker in zip(rows, MARKERS, strict=False)
    )


def _text(pattern: dict[str, Any], *, in_title: bool) -> str:
    if not in_title:
        return f"{pattern_title(pattern)} ({explained(pattern)})"
    noun = "long step" if pattern["side"] == "step" else "stall"
    return f"{count(pattern['stalls'], noun)}, {explained(pattern)}"


def _marked(text: str, pattern: dict[str, Any], marker: str, width: float) -> Marked:
    return Marked(
        tuple(balanced(text, width, SMALL_SIZE)),
        tuple(pattern["named"]),
        len(pattern["steps"]) > len(pattern["named"]),
        pattern["side"] == "wait",
        marker,
    )


def part(rows: Sequence[Marked], below: Part) -> Part:
    """How much of a sheet the lines need, over the chart `below`."""
    height = sum(row.height for row in rows)
    return Part(height, above=0.1, left=below.left, right=below.right)


def draw(ax: Axes, rows: Sequence[Marked], ends: tuple[float, float]) -> Axes:
    """Draw a line for each pattern.

    Args:
        ax: the chart.
        rows: the patterns.
        ends: of the axis of steps.
    """
    ax.set_axis_off()
    ax.set_xlim(*ends)
    ax.set_ylim(sum(row.height for row in rows), 0)
    down = 0.0
    for row in rows:
        for line in row.lines:
            ax.text(ends[0], down, line, size=SMALL_SIZE, color=INK, va="top")
            down += _LINE
        look: dict[str, Any] = {
            "color": STALL_COLOUR if row.waits else COLOURS["step"],
            "linewidth": 0,
            "marker": row.marker,
        }
        middle = down + _TICKS / 2
        ax.axhline(middle, color=RULE, linewidth=0.6, zorder=0)
        ax.plot(row.steps, [middle] * len(row.steps), markersize=4, clip_on=False, **look)
        down += _TICKS + _SPACE
    return ax
