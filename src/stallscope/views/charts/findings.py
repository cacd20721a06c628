"""The verdict as a picture: the loop's time on top, and under it what each finding costs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.patches import Rectangle

from stallscope.analyze.looptime import loop_time
from stallscope.diagnoses import INCONCLUSIVE
from stallscope.views.charts import loopbar
from stallscope.views.charts.style import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    Part,
    sheet,
    styled,
    wrapped,
)
from stallscope.views.findings import NOT_TESTED, all_words, ended, headline, measured, notes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.looptime import LoopTime
    from stallscope.diagnoses import Diagnosis
    from stallscope.views.charts.style import Sheet
    from stallscope.views.findings import Words

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

    found: Words
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
    width = Part(0.0, left=0.0, right=RIGHT).width
    rows = [_row(found, width, place) for place, found in enumerate(findings[:MOST])]
    charts = [] if time is None else [loopbar.part(time)]
    height = sum(row.height for row in rows)
    parts = [*charts, Part(height, above=0.3, left=0.0, right=RIGHT)]
    made, axes = sheet(headline(diagnosis), _notes(diagnosis, len(findings)), parts)
    with styled():
        if time is not None:
            loopbar.draw(axes[0], time)
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


def _time(diagnosis: Diagnosis) -> LoopTime | None:
    run = diagnosis.run
    return None if run is None else loop_time(run.steps(), run.stalls())


def _notes(diagnosis: Diagnosis, found: int) -> list[str]:
    hidden = [f"not drawn: {found - MOST} more findings"] if found > MOST else []
    return [measured(diagnosis), *hidden, *notes_of(diagnosis)]


def _row(found: Words, width: float, place: int) -> _Row:
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
