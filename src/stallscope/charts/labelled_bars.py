"""Bars under each other, each with its name at the left, a line of text over it and its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.sheet import (
    FAINT,
    INK,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    draw_interval,
    value_axis,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes


_ROW: Final = 0.58
_BAR: Final = 0.2
_LEFT: Final = 2.35
_RIGHT: Final = 0.7


@dataclass(frozen=True)
class LabelledBar:
    """One bar."""

    name: str
    where: str
    """Under the name, small."""
    text: str
    """Over the bar."""
    value: float
    label: str
    """The value in words, at the bar's end."""
    colour: str
    interval: tuple[float | None, float | None] = (None, None)

    @property
    def end(self) -> float:
        """How far it reaches."""
        return max(self.value, self.interval[1] or 0.0)


def bars_part(bars: Sequence[LabelledBar], axis: str) -> SheetPart:
    """How much of a sheet the bars need.

    Args:
        bars: from the top.
        axis: what their length is.
    """
    return SheetPart(_ROW * len(bars), above=0.12, axis=axis, left=_LEFT, right=_RIGHT)


def draw_bars(
    ax: Axes, bars: Sequence[LabelledBar], tick: Callable[[float], str], font: str = "sans-serif"
) -> None:
    """Draw the bars on axes that are as `bars_part` says.

    Args:
        ax: the chart.
        bars: from the top.
        tick: a value of the axis in words.
        font: of the texts over the bars.
    """
    value_axis(ax, 0.0, max(bar.end for bar in bars) * 1.02 or 1e-3, tick)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    left = look | {"xytext": (-8, 0), "ha": "right"}
    over = look | {"xytext": (2, 0), "size": SMALL_SIZE, "family": font}
    for place, bar in enumerate(bars):
        above, down = place - 0.17, place + 0.2
        ax.barh(down, bar.value, _BAR / _ROW, color=bar.colour)
        draw_interval(ax, (bar.value, down), bar.interval)
        ax.annotate(bar.name, (0, above), size=TEXT_SIZE, color=INK, **left)
        ax.annotate(bar.where, (0, down), size=SMALL_SIZE, color=FAINT, **left)
        ax.annotate(bar.text, (0, above), color=INK, **over)
        value = look | {"xytext": (5, 0), "size": TEXT_SIZE, "weight": "bold"}
        ax.annotate(bar.label, (bar.end, down), color=INK, **value)
