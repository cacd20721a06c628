"""Bars under their code: the hottest lines of a dataset, and what changes to a step gain.

A line's bar is the share of a sample's time that is its own, in the colour of its stage's kind. A
change's bar is how many times as fast the step is with it, beside the step as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import FASTER, SLOWER
from stallscope.charts.bars import LabelledBar, bars_height, draw_bars
from stallscope.charts.sheet import FAINT, INK, Sheet, styled
from stallscope.experiments import result as experiments
from stallscope.lines import result as lines_result
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds, share, times

if TYPE_CHECKING:
    from stallscope.experiments.result import Experiments
    from stallscope.lines.result import Lines


_LONGEST_CODE: Final = 82
_LONGEST_NAME: Final = 29
_MOST_LINES: Final = 8
_LEAST_SHARE: Final = 0.005
_AT_LEAST: Final = 1.05
"""How far the axis reaches, so that the step as it is can be seen."""
_UNCLEAR: Final = "#B9C0C5"


@styled
def lines_figure(lines: Lines) -> Sheet:
    """The lines as a picture."""
    rows = lines.table().head(_MOST_LINES).to_dicts()
    if not rows:
        return Sheet(lines_result.title(lines), lines_result.notes_of(lines))
    rows = rows[:1] + [row for row in rows[1:] if (row["own_share"] or 0.0) >= _LEAST_SHARE]
    bars = [_line_bar(row) for row in rows]
    made = Sheet(lines_result.title(lines), _lines_notes(lines, len(rows)), [bars_height(bars)])
    (ax,) = made.parts
    draw_bars(ax, bars, _percent, font="monospace")
    ax.set_xlabel(f"share of a {lines.circumstances.unit}'s time")
    return made


def _lines_notes(lines: Lines, drawn: int) -> list[str]:
    population, _, *others = lines_result.notes_of(lines)
    what = "bars: a line's own time, without the other listed functions that it calls"
    hidden = lines.table().height - drawn
    left_out = f" · {count(hidden, 'more line')} took less" if hidden > 0 else ""
    return [population, f"{what}{left_out}", *others]


def _line_bar(row: dict[str, Any]) -> LabelledBar:
    value = row["own_share"] or 0.0
    return LabelledBar(
        name=printable(row["function"], _LONGEST_NAME),
        where=f"line {row['line']}",
        text=printable((row["source"] or "no source").strip(), _LONGEST_CODE),
        value=value,
        label=share(value),
        colour=COLOURS.get(row["kind"] or "other", COLOURS["other"]),
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


@styled
def gains_figure(found: Experiments) -> Sheet:
    """The gains as a picture."""
    rows = found.table().filter(pl.col("factor").is_not_null()).to_dicts()
    notes = [*experiments.findings_of(found), *experiments.notes_of(found)]
    if not rows:
        return Sheet(experiments.sentence(found), notes)
    pairs = min(row["pairs"] for row in rows)
    shown = f"bars: times as fast as the step as it is, {count(pairs, 'pair')} of laps each or more"
    bars = [_gain_bar(row) for row in rows]
    made = Sheet(
        experiments.sentence(found), [f"{shown} · lines: {INTERVAL}", *notes], [bars_height(bars)]
    )
    (ax,) = made.parts
    draw_bars(ax, bars, _factor, font="monospace")
    ax.set_xlim(right=max(ax.get_xlim()[1], _AT_LEAST))
    ax.axvline(1.0, color=INK, lw=1.0, ls=":")
    ax.set_xlabel("times as fast", color=FAINT)
    return made


def _gain_bar(row: dict[str, Any]) -> LabelledBar:
    clear, gains = row["says"] in (FASTER, SLOWER), row["factor"] > 1
    return LabelledBar(
        name=row["experiment"],
        where=f"{seconds(row['before_s'])} → {seconds(row['after_s'])}",
        text=printable(row["code"], _LONGEST_CODE),
        value=row["factor"],
        label=times(row["factor"]) if clear else row["says"],
        colour=(COLOURS["step"] if gains else STALL_COLOUR) if clear else _UNCLEAR,
        interval=(row["factor_low"], row["factor_high"]),
        beyond=1.0,
    )


def _factor(value: float) -> str:
    return f"{value:g}×"
