"""The hottest lines as bars, each under its own source.

A bar is the share of a sample's time that is the line's own, in the colour of its stage's kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    sheet,
    styled,
)
from stallscope.lines.result import notes_of, title
from stallscope.names import printable
from stallscope.stages import COLOURS
from stallscope.units import count, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.lines.result import Lines


_MOST: Final = 8
_LEAST: Final = 0.005
_ROW: Final = 0.56
_BAR: Final = 0.2
_LEFT: Final = 2.35
_LONGEST_SOURCE: Final = 82
_LONGEST_NAME: Final = 29


def figure(lines: Lines) -> Sheet:
    """The lines as a picture."""
    rows = _rows(lines)
    if not rows:
        return sheet(title(lines), notes_of(lines), [])[0]
    axis = f"share of a {lines.circumstances.unit}'s time"
    part = SheetPart(_ROW * len(rows), above=0.12, axis=axis, left=_LEFT, right=0.55)
    made, (ax,) = sheet(title(lines), _notes(lines, len(rows)), [part])
    with styled():
        _draw(ax, rows)
    return made


def _rows(lines: Lines) -> list[dict[str, Any]]:
    """The hottest lines; of those that take next to nothing none but the first."""
    rows = lines.table().head(_MOST).to_dicts()
    return rows[:1] + [row for row in rows[1:] if (row["own_share"] or 0.0) >= _LEAST]


def _notes(lines: Lines, drawn: int) -> list[str]:
    population, _, *others = notes_of(lines)
    what = "bars: a line's own time, without the other listed functions that it calls"
    hidden = lines.table().height - drawn
    left_out = [f"{count(hidden, 'more line')} took less"] if hidden > 0 else []
    return [population, " · ".join([what, *left_out]), *others]


def _draw(ax: Axes, rows: list[dict[str, Any]]) -> None:
    longest = max(row["own_share"] or 0.0 for row in rows)
    ax.set_xlim(0, longest * 1.02 or 1.0)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
    ax.grid(axis="x", color=RULE, linewidth=0.6)
    for place, row in enumerate(rows):
        value = row["own_share"] or 0.0
        colour = COLOURS.get(row["kind"] or "other", COLOURS["other"])
        ax.barh(place + 0.2, value, _BAR / _ROW, color=colour)
        ax.annotate(
            share(value),
            (value, place + 0.2),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=TEXT_SIZE,
            weight="bold",
        )
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
        name, line = printable(row["function"], _LONGEST_NAME), f"line {row['line']}"
        ax.annotate(
            name, (0, place - 0.17), xytext=(-8, 0), ha="right", size=TEXT_SIZE, color=INK, **look
        )
        ax.annotate(
            line, (0, place + 0.2), xytext=(-8, 0), ha="right", size=SMALL_SIZE, color=FAINT, **look
        )
        source = printable((row["source"] or "no source").strip(), _LONGEST_SOURCE)
        ax.annotate(
            source,
            (0, place - 0.17),
            xytext=(2, 0),
            size=SMALL_SIZE,
            family="monospace",
            color=INK,
            **look,
        )
