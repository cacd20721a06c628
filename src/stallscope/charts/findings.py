"""The verdict as a picture: the loop's time on top, and under it what each finding costs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle

from stallscope.charts.bars import FitRow, Strip, StripPiece, fit_figure
from stallscope.charts.sheet import FAINT, ROOM, RULE, TEXT_SIZE, Sheet, styled, wrapped
from stallscope.diagnose.accounting import STALL
from stallscope.diagnose.causes import INCONCLUSIVE
from stallscope.diagnose.text import (
    NOT_TESTED,
    all_words,
    ended,
    fix_rows,
    headline,
    measured,
)
from stallscope.stages import STALL_COLOUR, colour_of
from stallscope.units import printable, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.diagnose.result import Diagnosis
    from stallscope.diagnose.text import FindingText


MOST: Final = 6
"""Findings that are drawn; a table has all of them."""
_BAR, _LINE, _SPACE = 0.2, 0.17, 0.22
"""Heights of a bar, of a line of text, and of what is free below a finding, inches."""


@styled
def figure(diagnosis: Diagnosis) -> Sheet:
    """The findings as a picture."""
    findings, pieces = all_words(diagnosis), _pieces(diagnosis.accounts)
    bars = [Strip(pieces, ROOM)] if pieces else []
    texts = [_texts(found, place) for place, found in enumerate(findings[:MOST])]
    height = sum(_height(*lines) for lines in texts)
    hidden = len(findings) - MOST
    more = [f"not drawn: {hidden} more findings"] if hidden > 0 else []
    made = Sheet(
        headline(diagnosis),
        [measured(diagnosis), *more],
        [*(bar.height + 0.2 for bar in bars), height],
    )
    for bar in bars:
        bar.fill(made.parts[0])
        made.parts[0].set_axis_off()
        made.parts[0].set_xlim(0, bar.total)
    ax = made.parts[-1]
    ax.set_axis_off()
    ax.set_ylim(height, 0)  # inches
    down = 0.0
    for found, (title, because) in zip(findings, texts, strict=False):
        _draw(ax, down, found, title, because)
        down += _height(title, because)
    return made


def _pieces(accounts: pl.DataFrame) -> list[StripPiece]:
    found = []
    for row in accounts.filter(pl.col("loop_share") > 0).iter_rows(named=True):
        part = row["loop_share"]
        name = f"stall: {row['part']}" if row["stalled"] else row["part"]
        is_stall = row["kind"] == STALL
        colour = STALL_COLOUR if is_stall else colour_of(row["part"], row["kind"])
        found.append(StripPiece(name, part, share(part), colour, f"{name} {share(part)}"))
    return found


def missing(diagnosis: Diagnosis, part: str) -> Sheet:
    """A sheet in place of a picture of what was not measured: why it was not."""
    why = ended(diagnosis)
    notes = [f"the measurement ended: {why}"] if why else []
    names = {"run": "The loop was not recorded", "ladder": "No ladder was measured"}
    stands = "" if diagnosis.verdict.code == INCONCLUSIVE.code else ": the verdict stands without"
    title = f"{names.get(part, 'No stacks were sampled')}{stands}"
    return Sheet(title, [*notes, measured(diagnosis)])


def _texts(found: FindingText, place: int) -> tuple[list[str], list[str]]:
    because = [f"because: {found.because}"] if found.because else []
    because += [] if found.tested else [NOT_TESTED]
    title = found.title if place else f"verdict: {found.code}"
    return wrapped(title, 105), wrapped(" · ".join(because), 140)


def _height(title: list[str], because: list[str]) -> float:
    return _LINE * (len(title) + 1 + len(because)) + _BAR + 0.1 + _SPACE


def _draw(ax: Axes, down: float, found: FindingText, title: list[str], because: list[str]) -> None:
    """A sentence, a bar that is as long as the loop's time above, and the numbers."""
    look: dict[str, Any] = {"va": "top"}
    ax.text(0, down, "\n".join(title), size=TEXT_SIZE, weight="bold", **look)
    down += _LINE * len(title) + 0.04
    ax.add_patch(Rectangle((0, down), 1, _BAR, color=RULE, lw=0))
    ax.add_patch(Rectangle((0, down), found.severity, _BAR, color=found.colour, lw=0))
    sure = f"how sure: {found.sure}" if found.sure else ""
    down += _BAR + 0.06
    ax.text(0, down, " · ".join(part for part in (found.costs, sure) if part), **look)
    ax.text(0, down + _LINE, "\n".join(because), color=FAINT, **look)


def fixes_figure(diagnosis: Diagnosis) -> Sheet:
    """Draw what would help: predicted, and measured where it was tried."""
    rows = [row for row in fix_rows(diagnosis) if row["predicted_gain"] or row["gain"]]
    if not rows:
        return Sheet("Nothing is known of what would help", [measured(diagnosis)])
    first = max(rows, key=lambda row: row["gain"] or row["predicted_gain"])
    how = "gives" if first["gain"] is not None else "should give"
    factor = first["gain"] or first["predicted_gain"]
    title = f"{printable(first['fix'], 80)} {how} {factor:.2f}× as many samples a second"
    fits = [
        FitRow(
            row["fix"] if row["measurable"] else f"{row['fix']} (yours)",
            row["predicted_gain"],
            row["gain"],
            (row["gain_low"], row["gain_high"]),
            (row["predicted_gain_low"], row["predicted_gain_high"]),
        )
        for row in rows[:_MOST_FIXES]
    ]
    tried = sum(row["gain"] is not None for row in rows)
    note = f"replayed from the recording · {tried} of {len(rows)} measured (try_fix)"
    return fit_figure(title, note, fits, "times as many samples a second as with the loop as it is")


_MOST_FIXES: Final = 12
