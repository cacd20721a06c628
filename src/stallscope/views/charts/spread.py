"""The spread of each stage: single samples as dots, the median and the 95th percentile marked.

A mean hides whether a stage is always slow or sometimes very slow; those have different causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.analyze.headline import headline
from stallscope.analyze.profile import profile
from stallscope.stages import COLOURS
from stallscope.units import seconds, share
from stallscope.views.charts.axes import spans_decades, time_axis
from stallscope.views.charts.captions import nothing, population
from stallscope.views.charts.style import (
    FAINT,
    INK,
    RULE,
    TEXT_SIZE,
    Part,
    name_rows,
    sheet,
    styled,
    text_width,
    write_right,
)
from stallscope.views.names import counted, shown, stage_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.profile import Profile, StageTimes
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

MOST_ROWS: Final = 12
MOST_DOTS: Final = 250
NOTICED: Final = 0.05
"""Share of a sample's time from which on a stage's spread matters for the title."""
FEWEST: Final = 40
"""With fewer times, a 95th percentile is one outlier."""
STEADY: Final = 1.5
"""Below this many times the median, a 95th percentile is not worth a title."""
_ROW: Final = 0.27
_COLUMNS: Final = (("share", 0.55), ("p50", 1.2), ("p95", 1.85), ("waiting", 2.5))
"""Names of the columns at the right, and where each ends, in inches from the dots."""


@dataclass(frozen=True)
class Row:
    """A row of the chart."""

    name: str
    stage: StageTimes


def figure(run: Run) -> Sheet:
    """The spread as a picture of its own."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, shown), nothing(run), [])[0]
    made, (ax,) = sheet(title(found), (population(run, found),), [part(found)])
    with styled():
        draw(ax, found)
    return made


def title(found: Profile) -> str:
    """The stage whose slow samples stand out most, among those that matter."""
    enough = [stage for stage in found.stages if stage.times_s.size >= FEWEST]
    if not enough:
        return f"{counted(found.units, found.unit)}: too few to say how even the stages are"
    noticed = [stage for stage in enough if stage.share >= NOTICED] or enough[:1]
    stage = max(noticed, key=_unevenness)
    if _unevenness(stage) < STEADY:
        return (
            f"Every stage that matters is even: 95% of its times are under {STEADY:g}× its median"
        )
    return (
        f"{shown(stage.stage)} is the most uneven: its slowest 5% take over "
        f"{_unevenness(stage):.1f}× its median"
    )


def _unevenness(stage: StageTimes) -> float:
    median = stage.quantile_s(0.5)
    return stage.quantile_s(0.95) / median if median else 0.0


def rows_of(found: Profile) -> list[Row]:
    """The rows from the top: the longest stage first."""
    return [Row(stage_name(stage, found.unit), stage) for stage in found.stages[:MOST_ROWS]]


def part(found: Profile) -> Part:
    """How much of a sheet the chart needs."""
    rows = rows_of(found)
    widest = max(text_width(row.name, TEXT_SIZE) for row in rows)
    right = _COLUMNS[-1][1] + 0.1
    height = _ROW * (len(rows) + 0.2)
    return Part(height, above=0.3, axis=_axis_name(found), left=widest + 0.1, right=right)


def draw(ax: Axes, found: Profile) -> Axes:
    """Draw the dots, the marks and the columns of numbers."""
    rows = rows_of(found)
    low, high = _ends(rows)
    time_axis(ax, low, high)
    name_rows(ax, [row.name for row in rows])
    for height, row in enumerate(rows):
        ax.axhline(height, color=RULE, linewidth=0.6, zorder=0)
        _draw_row(ax, row.stage, height, low)
        _write_numbers(ax, row.stage, height)
    _write_heads(ax)
    return ax


def _ends(rows: list[Row]) -> tuple[float, float]:
    positive = [row.stage.times_s[row.stage.times_s > 0] for row in rows]
    every = np.concatenate([*positive, np.array([], dtype=float)])
    return (float(every.min()), float(every.max())) if every.size else (1e-6, 1e-3)


def _axis_name(found: Profile) -> str:
    log = spans_decades(*_ends(rows_of(found)))
    parts = [f"time in one {found.unit}{' (log scale)' if log else ''}", "bars: p50 and p95"]
    if any(stage.times_s.size > MOST_DOTS for stage in found.stages):
        parts.append(f"dots: {MOST_DOTS} of {found.units:,}")
    hidden = found.stages[MOST_ROWS:]
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        parts.append(f"not shown: {len(hidden)} more stages, together {taken}")
    return " · ".join(parts)


def thinned(times_s: np.ndarray, most: int = MOST_DOTS) -> np.ndarray:
    """At most so many of the times, evenly over their ranks, with the smallest and the largest."""
    ordered = np.sort(times_s)
    if ordered.size <= most:
        return ordered
    kept: np.ndarray = ordered[np.linspace(0, ordered.size - 1, most).round().astype(int)]
    return kept


def _draw_row(ax: Axes, stage: StageTimes, height: int, low: float) -> None:
    times_s = np.maximum(thinned(stage.times_s), low)
    # The golden ratio's multiples fill a row evenly, the same way each time
    offset = (np.arange(times_s.size) * 0.618034) % 1 - 0.5
    colour = COLOURS[stage.kind]
    ax.scatter(times_s, height + offset * 0.5, s=6, color=colour, alpha=0.55, linewidth=0, zorder=2)
    for quantile, half, width in ((0.5, 0.33, 2.2), (0.95, 0.22, 1.6)):
        at = max(stage.quantile_s(quantile), low)
        ax.plot([at, at], [height - half, height + half], color=INK, linewidth=width, zorder=3)


def _write_numbers(ax: Axes, stage: StageTimes, height: int) -> None:
    texts = (
        share(stage.share),
        seconds(stage.quantile_s(0.5)),
        seconds(stage.quantile_s(0.95)),
        share(stage.waiting_share),
    )
    for text, (_, end) in zip(texts, _COLUMNS, strict=True):
        write_right(ax, end, height, text, color=INK)


def _write_heads(ax: Axes) -> None:
    for text, end in _COLUMNS:
        write_right(ax, end, -0.95, text, color=FAINT)
