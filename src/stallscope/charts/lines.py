"""The hottest lines as bars, each under its own source.

A bar is the share of a sample's time that is the line's own, in the colour of its stage's kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.bars import LabelledBar, bars_height, draw_bars
from stallscope.charts.sheet import Sheet, styled
from stallscope.lines.result import notes_of, title
from stallscope.stages import COLOURS
from stallscope.units import count, printable, share

if TYPE_CHECKING:
    from stallscope.lines.result import Lines


_MOST: Final = 8
_LEAST: Final = 0.005
_LONGEST_SOURCE: Final = 82
_LONGEST_NAME: Final = 29


@styled
def figure(lines: Lines) -> Sheet:
    """The lines as a picture."""
    rows = lines.table().head(_MOST).to_dicts()
    if not rows:
        return Sheet(title(lines), notes_of(lines))
    rows = rows[:1] + [row for row in rows[1:] if (row["own_share"] or 0.0) >= _LEAST]
    bars = [_bar(row) for row in rows]
    made = Sheet(title(lines), _notes(lines, len(rows)), [bars_height(bars)])
    (ax,) = made.parts
    draw_bars(ax, bars, _percent, font="monospace")
    ax.set_xlabel(f"share of a {lines.circumstances.unit}'s time")
    return made


def _notes(lines: Lines, drawn: int) -> list[str]:
    population, _, *others = notes_of(lines)
    what = "bars: a line's own time, without the other listed functions that it calls"
    hidden = lines.table().height - drawn
    left_out = f" · {count(hidden, 'more line')} took less" if hidden > 0 else ""
    return [population, f"{what}{left_out}", *others]


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


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"
