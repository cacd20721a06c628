"""What each change to a step gains: a bar for each, with its interval, beside the step as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.charts.bars import LabelledBar, bars_height, draw_bars
from stallscope.charts.sheet import FAINT, INK, Sheet, styled
from stallscope.experiments.result import findings_of, notes_of, sentence
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds, times

if TYPE_CHECKING:
    from stallscope.experiments.result import Experiments


_LONGEST: Final = 82
_AT_LEAST: Final = 1.05
"""How far the axis reaches, so that the step as it is can be seen."""
_UNCLEAR: Final = "#B9C0C5"


@styled
def figure(found: Experiments) -> Sheet:
    """The gains as a picture."""
    rows = found.table().filter(pl.col("factor").is_not_null()).to_dicts()
    notes = [*findings_of(found), *notes_of(found)]
    if not rows:
        return Sheet(sentence(found), notes)
    pairs = min(row["pairs"] for row in rows)
    shown = f"bars: times as fast as the step as it is, {count(pairs, 'pair')} of laps each or more"
    bars = [_bar(row) for row in rows]
    made = Sheet(sentence(found), [f"{shown} · lines: {INTERVAL}", *notes], [bars_height(bars)])
    (ax,) = made.parts
    draw_bars(ax, bars, _tick, font="monospace")
    ax.set_xlim(right=max(ax.get_xlim()[1], _AT_LEAST))
    ax.axvline(1.0, color=INK, lw=1.0, ls=":")
    ax.set_xlabel("times as fast", color=FAINT)
    return made


def _bar(row: dict[str, Any]) -> LabelledBar:
    clear, gains = row["distinguishable"], row["factor"] > 1
    return LabelledBar(
        name=row["experiment"],
        where=f"{seconds(row['before_s'])} → {seconds(row['after_s'])}",
        text=printable(row["code"], _LONGEST),
        value=row["factor"],
        label=times(row["factor"]) if clear else "not distinguishable",
        colour=(COLOURS["step"] if gains else STALL_COLOUR) if clear else _UNCLEAR,
        interval=(row["factor_low"], row["factor_high"]),
    )


def _tick(value: float) -> str:
    return f"{value:g}×"
