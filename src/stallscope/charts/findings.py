"""The verdict as a picture: the loop's time on top, and under it what each finding costs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.patches import Rectangle

from stallscope.charts.exposed import LoopBar
from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    sheet,
    styled,
    wrapped,
)
from stallscope.diagnose.causes import INCONCLUSIVE
from stallscope.diagnose.text import NOT_TESTED, all_words, ended, headline, measured, notes_of
from stallscope.stalls.loop_time import loop_breakdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.diagnose.result import Diagnosis
    from stallscope.diagnose.text import FindingText
    from stallscope.stalls.loop_time import LoopBreakdown


MOST: Final = 6
"""Findings that are drawn; a table has all of them."""
_BAR: Final = 0.2
_LINE: Final = 0.17
_SPACE: Final = 0.2
RIGHT: Final = 0.1
"""As the bar of the loop's time has it: both are as long."""


@dataclass(frozen=True)
class _Row:
    """A finding with its lines of text."""

    found: FindingText
    title: list[str]
    because: list[str]

    @property
    def height(self) -> float:
        """Of everything, inches."""
        lines = len(self.title) + len(self.because)
        return _LINE * (lines + 1) + _BAR + 0.1 + _SPACE


def figure(diagnosis: Diagnosis) -> Sheet:
    """The findings as a picture."""
    findings, time = all_words(diagnosis), _time(diagnosis)
    width = SheetPart(0.0, left=0.0, right=RIGHT).width
    rows = [_row(found, width, place) for place, found in enumerate(findings[:MOST])]
    bar = None if time is None else LoopBar(time)
    charts = [] if bar is None else [bar.part]
    height = sum(row.height for row in rows)
    parts = [*charts, SheetPart(height, above=0.3, left=0.0, right=RIGHT)]
    made, axes = sheet(headline(diagnosis), _notes(diagnosis, len(findings)), parts)
    with styled():
        if bar is not None:
            bar.draw(axes[0])
        _draw(axes[-1], rows, width)
    return made


def missing(diagnosis: Diagnosis, part: str) -> Sheet:
    """A sheet in place of a picture of what was not measured: why it was not."""
    why = ended(diagnosis)
    notes = [f"the measurement ended: {why}"] if why else []
    names = {"run": "The loop was not recorded", "ladder": "No ladder was measured"}
    stands = "" if diagnosis.verdict.code == INCONCLUSIVE.code else ": the verdict stands without"
    title = f"{names.get(part, 'No stacks were sampled')}{stands}"
    return sheet(title, [*notes, measured(diagnosis)], [])[0]


def _time(diagnosis: Diagnosis) -> LoopBreakdown | None:
    run = diagnosis.run
    return None if run is None else loop_breakdown(run.steps(), run.stalls())


def _notes(diagnosis: Diagnosis, found: int) -> list[str]:
    hidden = [f"not drawn: {found - MOST} more findings"] if found > MOST else []
    return [measured(diagnosis), *hidden, *notes_of(diagnosis)]


def _row(found: FindingText, width: float, place: int) -> _Row:
    said = f"verdict: {found.code}" if not place else found.title
    because = f"because: {found.because}" if found.because else ""
    if not found.tested:
        because = f"{because} · {NOT_TESTED}" if because else NOT_TESTED
    title = wrapped(said, width, TEXT_SIZE, bold=True)
    return _Row(found, title, wrapped(because, width, SMALL_SIZE))


def _draw(ax: Axes, rows: list[_Row], width: float) -> None:
    """The rows from top to bottom; the axes are in inches."""
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(sum(row.height for row in rows), 0)
    down = 0.0
    for row in rows:
        _draw_row(ax, row, down, width)
        down += row.height


def _draw_row(ax: Axes, row: _Row, down: float, width: float) -> None:
    """A sentence, a bar that is as long as the loop's time above, and the numbers."""
    look: dict[str, Any] = {"va": "top", "color": INK}
    for line in row.title:
        ax.text(0, down, line, size=TEXT_SIZE, weight="bold", **look)
        down += _LINE
    down += 0.04
    ax.add_patch(Rectangle((0, down), width, _BAR, color=RULE, lw=0))
    ax.add_patch(Rectangle((0, down), width * row.found.severity, _BAR, color=row.found.colour))
    sure = f" · how sure: {row.found.sure}" if row.found.sure else ""
    down += _BAR + 0.06
    ax.text(0, down, f"{row.found.costs}{sure}".removeprefix(" · "), size=SMALL_SIZE, **look)
    down += _LINE
    for line in row.because:
        ax.text(0, down, line, size=SMALL_SIZE, va="top", color=FAINT)
        down += _LINE
