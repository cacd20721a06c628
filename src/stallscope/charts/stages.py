"""The default picture of a run: one sample as a bar, and beneath it the spread of each stage.

The bar has each stage's mean time, in the order in which a sample meets them. Beneath it, single
samples are dots, with the median and the 95th percentile marked: a mean hides whether a stage is
always slow or sometimes very slow, and those have different causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    TEXT_SIZE,
    SheetPart,
    linear_time,
    name_rows,
    sheet,
    spans_decades,
    styled,
    text_width,
    time_axis,
    write_right,
)
from stallscope.charts.strip import Strip, StripPiece
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import headline, profile, remarks, stage_name
from stallscope.stages import COLOURS
from stallscope.units import count, printable, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile, StageTimes


SMALLEST: Final = 0.02
"""Stages with a smaller share of the bar are put together, where there are several."""
NAMED: Final = 0.01
"""A piece with a smaller share of the bar has no name there."""
WAITING_SHOWN: Final = 0.1
"""Waiting is drawn from this share of a stage on: less is lost in the clocks."""
KEY: Final = "light and hatched: waiting, not on a CPU (disk, network, a busy machine)"
_RIGHT: Final = 0.3
_DARK_KINDS: Final = ("fetch", "step")
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


def figure(run: Run) -> Sheet:
    """Where a sample's time goes, and below it how that is spread."""
    return _figure(run, bar=True, spread=True)


def sample_figure(run: Run) -> Sheet:
    """The bar as a picture of its own."""
    return _figure(run, bar=True)


def spread_figure(run: Run) -> Sheet:
    """The spread as a picture of its own."""
    return _figure(run, spread=True)


def _figure(run: Run, *, bar: bool = False, spread: bool = False) -> Sheet:
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, printable), nothing(run), [])[0]
    strip = Strip(pieces_of(found), SheetPart(0.0, left=0.0, right=_RIGHT).width, _RIGHT)
    upper = SheetPart(strip.height, axis=_axis_name(found), left=0.0, right=_RIGHT)
    parts = [upper] * bar + [_spread_part(found)] * spread
    notes = [population(run, found), *(remarks(found) if bar else ())]
    notes += run.notes if bar and spread else ()
    made, axes = sheet(headline(found, printable) if bar else title(found), notes, parts)
    with styled():
        if bar:
            linear_time(axes[0], strip.total)
            strip.fill(axes[0])
        if spread:
            _draw_spread(axes[-1], found)
    return made


def pieces_of(found: Profile) -> list[StripPiece]:
    """The pieces from left to right; small ones together, what is per batch last."""
    inside = [stage for stage in found.stages if stage.per == found.unit]
    small = [stage for stage in inside if stage.share < SMALLEST]
    small = small if len(small) > 1 else []
    # What no hook can name is all over the sample: it comes after what has a place in it
    drawn = [stage for stage in inside if not any(stage is one for one in small)]
    drawn.sort(key=lambda stage: (stage.kind == "other", stage.place))
    beside = [stage for stage in found.stages if stage.per != found.unit]
    pieces = [_piece(stage) for stage in drawn]
    if small:
        together = sum(stage.mean_s for stage in small), sum(stage.share for stage in small)
        pieces.append(_named_piece(f"{len(small)} more", "other", *together))
    return pieces + [_piece(stage) for stage in beside if stage.share >= SMALLEST]


def _piece(stage: StageTimes) -> StripPiece:
    waiting = stage.waiting_share or 0.0
    name = printable(stage.stage, 24)
    return _named_piece(
        name, stage.kind, stage.mean_s, stage.share, waiting if waiting >= WAITING_SHOWN else 0.0
    )


def _named_piece(
    name: str, kind: str, mean_s: float, part: float, waiting: float = 0.0
) -> StripPiece:
    return StripPiece(
        name,
        mean_s,
        f"{share(part)} · {seconds(mean_s)}",
        COLOURS[kind],
        dark=kind in _DARK_KINDS,
        outside=f"{name} {share(part)}" if part >= NAMED else "",
        waiting=waiting,
    )


def _axis_name(found: Profile) -> str:
    unread = sum(stage.cpu_share is None for stage in found.stages)
    parts = [f"mean time of a worker per {found.unit}"]
    if any(stage.per != found.unit for stage in found.stages):
        parts[0] += ", with its part of the batch's collate"
    if any(piece.waiting for piece in pieces_of(found)):
        parts.append(KEY)
    if unread == len(found.stages):
        parts.append("computing and waiting are not distinguished")
    elif unread:
        parts.append(f"not distinguished from waiting: {count(unread, 'stage')}")
    return " · ".join(parts)


def title(found: Profile) -> str:
    """The stage whose slow samples stand out most, among those that matter."""
    enough = [stage for stage in found.stages if stage.times_s.size >= FEWEST]
    if not enough:
        return f"{count(found.units, found.unit)}: too few to say how even the stages are"
    noticed = [stage for stage in enough if stage.share >= NOTICED] or enough[:1]
    stage = max(noticed, key=_unevenness)
    if _unevenness(stage) < STEADY:
        return (
            f"Every stage that matters is even: 95% of its times are under {STEADY:g}× its median"
        )
    return (
        f"{printable(stage.stage)} is the most uneven: its slowest 5% take over "
        f"{_unevenness(stage):.1f}× its median"
    )


def _unevenness(stage: StageTimes) -> float:
    median = stage.quantile_s(0.5)
    return stage.quantile_s(0.95) / median if median else 0.0


def _spread_part(found: Profile) -> SheetPart:
    names = _names(found)
    widest = max(text_width(name, TEXT_SIZE) for name in names)
    return SheetPart(
        _ROW * (len(names) + 0.2),
        above=0.3,
        axis=_spread_axis_name(found),
        left=widest + 0.1,
        right=_COLUMNS[-1][1] + 0.1,
    )


def _names(found: Profile) -> list[str]:
    return [stage_name(stage, found.unit) for stage in found.stages[:MOST_ROWS]]


def _draw_spread(ax: Axes, found: Profile) -> None:
    """Draw the dots, the marks and the columns of numbers."""
    low, high = _ends(found)
    time_axis(ax, low, high)
    name_rows(ax, _names(found))
    for height, stage in enumerate(found.stages[:MOST_ROWS]):
        ax.axhline(height, color=RULE, linewidth=0.6, zorder=0)
        _draw_row(ax, stage, height, low)
        cells = (
            share(stage.share),
            seconds(stage.quantile_s(0.5)),
            seconds(stage.quantile_s(0.95)),
            share(stage.waiting_share),
        )
        for text, (_, end) in zip(cells, _COLUMNS, strict=True):
            write_right(ax, end, height, text, INK)
    for text, end in _COLUMNS:
        write_right(ax, end, -0.95, text, FAINT)


def _ends(found: Profile) -> tuple[float, float]:
    positive = [stage.times_s[stage.times_s > 0] for stage in found.stages[:MOST_ROWS]]
    every = np.concatenate(positive)
    return (float(every.min()), float(every.max())) if every.size else (1e-6, 1e-3)


def _spread_axis_name(found: Profile) -> str:
    log = spans_decades(*_ends(found))
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
