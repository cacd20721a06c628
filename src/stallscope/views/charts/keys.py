"""The key of a chart: its colours by name, in one line over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib.patches import Rectangle

from stallscope.views.charts.style import INK, TEXT_SIZE, text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_SQUARE: Final = 0.11
_GAP: Final = 0.22


class Entry(NamedTuple):
    """One colour of a chart."""

    name: str
    look: dict[str, Any]
    """How its patches look: `facecolor`, `hatch` and so on, as matplotlib has them."""


def draw_key(ax: Axes, entries: Sequence[Entry], *, width: float, height: float) -> None:
    """Name the colours over a chart.

    Args:
        ax: the chart.
        entries: its colours, from the left.
        width: of the chart, inches.
        height: of the chart, inches.
    """
    at, up = 0.0, 0.08
    for entry in entries:
        square = Rectangle(
            (at / width, 1 + up / height),
            _SQUARE / width,
            _SQUARE / height,
            transform=ax.transAxes,
            clip_on=False,
            **entry.look,
        )
        ax.add_patch(square)
        at += _SQUARE + 0.06
        ax.text(
            at / width,
            1 + (up + _SQUARE / 2) / height,
            entry.name,
            transform=ax.transAxes,
            size=TEXT_SIZE,
            color=INK,
            va="center_baseline",
        )
        at += text_width(entry.name, TEXT_SIZE) + _GAP
