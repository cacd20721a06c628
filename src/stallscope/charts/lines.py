"""The hottest lines as bars, each under its own source.

A bar is the share of a sample's time that is the line's own, in the colour of its stage's kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.labelled_bars import LabelledBar, bars_part, draw_bars
from stallscope.charts.sheet import sheet, styled
from stallscope.lines.result import notes_of, title
from stallscope.stages import COLOURS
from stallscope.units import count, printable, share

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.lines.result import Lines


_MOST: Final = 8
_LEAST: Final = 0.005
_LONGEST_SOURCE: Final = 82
_LONGEST_NAME: Final = 29


def figure(lines: Lines) -> Sheet:
    """The lines as a picture."""
    rows = _rows(lines)
    if not rows:
        return sheet(title(lines), notes_of(lines), [])[0]
    axis = f"share of a {lines.circumstances.unit}'s time"
    bars = [_bar(row) for row in rows]
    made, (ax,) = sheet(title(lines), _notes(lines, len(rows)), [bars_part(bars, axis)])
    with styled():
        draw_bars(ax, bars, lambda value: f"{100 * value:.3g}%", font="monospace")
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


def _bar(row: dict[str, Any]) -> LabelledBar:
    value = row["own_share"] or 0.0
    return LabelledBar(
        name=printable(row["function"], _LONGEST_NAME),
        where=f"line {row['line']}",
        text=printable((row["source"] or "no source").strip(), _LONGEST_SOURCE),
        value=value,
        label=share(value),
        colour=COLOURS.get(row["kind"] or "other", COLOURS["other"]),
    )
