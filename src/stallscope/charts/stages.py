"""The default picture of a run: one sample as a bar, and beneath it the spread of each stage.

One sample as a bar: each stage's mean time, in the order in which a sample meets them.

The light, hatched end of a stage is waiting (not on a CPU). What a worker does once for a whole
batch stands at the right, as one sample's part of it.

The spread of each stage: single samples as dots, the median and the 95th percentile marked.

A mean hides whether a stage is always slow or sometimes very slow; those have different causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    SheetPart,
    linear_time,
    name_rows,
    place,
    sheet,
    spans_decades,
    styled,
    text_width,
    time_axis,
    write_right,
)
from stallscope.names import counted, printable
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import headline, profile, remarks, stage_name
from stallscope.stages import COLOURS
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Placed, Sheet
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile, StageTimes


SMALLEST: Final = 0.02
"""Stages with a smaller share of the bar are put together, where there are several."""
NAMED: Final = 0.01
"""A piece with a smaller share of the bar has no name there."""
WAITING_SHOWN: Final = 0.1
"""Waiting is drawn from this share of a stage on: less is lost in the clocks."""
ROWS: Final = 4
_ROW: Final = 0.19
_BAR: Final = 0.72
_PAD: Final = 0.05
_RIGHT: Final = 0.3
_ROOM: Final = WIDTH - 2 * MARGIN - _RIGHT
"""Length of the bar, inches."""
_LIGHT: Final = 0.7
_DARK_KINDS: Final = ("fetch", "step")
KEY: Final = "light and hatched: waiting, not on a CPU (disk, network, a busy machine)"


@dataclass(frozen=True)
class SamplePiece:
    """A piece of the bar."""

    name: str
    kind: str
    seconds: float
    share: float
    waiting: float
    """Share of it that is drawn as waiting."""
    per: str


def sample_figure(run: Run) -> Sheet:
    """The bar as a picture of its own."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, printable), nothing(run), [])[0]
    notes = (population(run, found), *remarks(found))
    made, (ax,) = sheet(headline(found, printable), notes, [part(found)])
    with styled():
        draw(ax, found)
    return made


def part(found: Profile) -> SheetPart:
    """How much of a sheet the bar needs."""
    rows = max((label.row + 1 for _, label in _layout(found)[1] if label), default=0)
    height = _BAR + rows * _ROW + 0.08
    return SheetPart(height, axis=_axis_name(found), left=0.0, right=_RIGHT)


def draw(ax: Axes, found: Profile) -> Axes:
    """Draw the bar on an `ax` that is as `part` says."""
    total = sum(piece.seconds for piece in pieces_of(found))
    linear_time(ax, total)
    ax.set_ylim(0, part(found).height)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    inside, outside = _layout(found)
    inch, start = total / _ROOM, 0.0
    for piece in pieces_of(found):
        _draw_piece(ax, piece, start)
        if piece in inside:
            _write_inside(ax, piece, start)
        start += piece.seconds
    for piece, label in outside:
        if label:
            _write_outside(ax, piece, label, inch)
    return ax


def pieces_of(found: Profile) -> list[SamplePiece]:
    """The pieces from left to right; small ones together, what is per batch last."""
    inside = [stage for stage in found.stages if stage.per == found.unit]
    small = [stage for stage in inside if stage.share < SMALLEST]
    small = small if len(small) > 1 else []
    # What no hook can name is all over the sample: it comes after what has a place in it
    drawn = [stage for stage in inside if not any(stage is one for one in small)]
    drawn.sort(key=lambda stage: (stage.kind == "other", stage.place))
    pieces = [_piece(stage) for stage in drawn]
    if small:
        together = sum(stage.mean_s for stage in small), sum(stage.share for stage in small)
        pieces.append(SamplePiece(f"{len(small)} more", "other", *together, 0.0, found.unit))
    beside = [stage for stage in found.stages if stage.per != found.unit]
    return pieces + [_piece(stage) for stage in beside if stage.share >= SMALLEST]


def _piece(stage: StageTimes) -> SamplePiece:
    waiting = stage.waiting_share or 0.0
    drawn = waiting if waiting >= WAITING_SHOWN else 0.0
    return SamplePiece(
        printable(stage.stage, 24), stage.kind, stage.mean_s, stage.share, drawn, stage.per
    )


def _axis_name(found: Profile) -> str:
    unread = sum(stage.cpu_share is None for stage in found.stages)
    waits = any(piece.waiting for piece in pieces_of(found))
    parts = [f"mean time of a worker per {found.unit}"]
    if any(stage.per != found.unit for stage in found.stages):
        parts[0] += ", with its part of the batch's collate"
    if waits:
        parts.append(KEY)
    if unread == len(found.stages):
        parts.append("computing and waiting are not told apart")
    elif unread:
        parts.append(f"not told apart from waiting: {count(unread, 'stage')}")
    return " · ".join(parts)


def _draw_piece(ax: Axes, piece: SamplePiece, start: float) -> None:
    colour = COLOURS[piece.kind]
    computing = piece.seconds * (1 - piece.waiting)
    ax.add_patch(Rectangle((start, 0), computing, _BAR, facecolor=colour, linewidth=0))
    if piece.waiting:
        light = _lighter(colour)
        ax.add_patch(
            Rectangle(
                (start + computing, 0),
                piece.seconds - computing,
                _BAR,
                facecolor=light,
                edgecolor=colour,
                hatch="////",
                linewidth=0,
            )
        )
    ax.plot([start, start], [0, _BAR], color=PAPER, linewidth=1.2, solid_capstyle="butt")


def _lighter(colour: str) -> tuple[float, float, float]:
    red, green, blue = to_rgb(colour)
    return (
        red + (1 - red) * _LIGHT,
        green + (1 - green) * _LIGHT,
        blue + (1 - blue) * _LIGHT,
    )


def _layout(found: Profile) -> tuple[list[SamplePiece], list[tuple[SamplePiece, Placed | None]]]:
    """Which pieces have their name inside, and where the others' names stand over the bar."""
    pieces = pieces_of(found)
    inch = sum(piece.seconds for piece in pieces) / _ROOM
    inside = [piece for piece in pieces if _fits(piece, inch)]
    middles, start = [], 0.0
    for piece in pieces:
        middles.append((piece, (start + piece.seconds / 2) / inch))
        start += piece.seconds
    outside = [(piece, at) for piece, at in middles if piece not in inside and piece.share >= NAMED]
    outside.sort(key=lambda pair: -pair[0].share)
    wanted = [(at, text_width(_short(piece), SMALL_SIZE)) for piece, at in outside]
    labels = place(wanted, (0.0, _ROOM + _RIGHT), rows=ROWS, gap=0.12)
    return inside, [(piece, label) for (piece, _), label in zip(outside, labels, strict=True)]


def _short(piece: SamplePiece) -> str:
    return f"{piece.name} {share(piece.share)}"


def _numbers(piece: SamplePiece) -> str:
    return f"{share(piece.share)} · {seconds(piece.seconds)}"


def _larger_half(piece: SamplePiece) -> tuple[float, float, bool]:
    """Where it begins in its piece, its length in seconds, and whether it is the waiting one."""
    waiting = piece.seconds * piece.waiting
    computing = piece.seconds - waiting
    return (computing, waiting, True) if waiting > computing else (0.0, computing, False)


def _fits(piece: SamplePiece, inch: float) -> bool:
    name = text_width(piece.name, SMALL_SIZE, bold=True)
    widest = max(name, text_width(_numbers(piece), SMALL_SIZE))
    return widest + 2 * _PAD <= _larger_half(piece)[1] / inch


def _write_inside(ax: Axes, piece: SamplePiece, start: float) -> None:
    begins, length, waits = _larger_half(piece)
    at = start + begins + length / 2
    colour = PAPER if piece.kind in _DARK_KINDS and not waits else INK
    # Over hatching, a text needs a quiet ground
    ground = {"boxstyle": "square,pad=0.1", "facecolor": _lighter(COLOURS[piece.kind]), "lw": 0}
    look: dict[str, Any] = {"bbox": ground} if waits else {}
    look |= {"ha": "center", "va": "center", "size": SMALL_SIZE, "color": colour}
    ax.text(at, _BAR / 2 + 0.11, piece.name, weight="bold", **look)
    ax.text(at, _BAR / 2 - 0.11, _numbers(piece), **look)


def _write_outside(ax: Axes, piece: SamplePiece, label: Placed, inch: float) -> None:
    bottom = _BAR + 0.06 + label.row * _ROW
    at = label.at * inch
    ax.plot([at, at], [_BAR, bottom + 0.02], color=FAINT, linewidth=0.7)
    ax.text(label.left * inch, bottom + 0.02, _short(piece), size=SMALL_SIZE, va="bottom")


MOST_ROWS: Final = 12
MOST_DOTS: Final = 250
NOTICED: Final = 0.05
"""Share of a sample's time from which on a stage's spread matters for the title."""
FEWEST: Final = 40
"""With fewer times, a 95th percentile is one outlier."""
STEADY: Final = 1.5
"""Below this many times the median, a 95th percentile is not worth a title."""
_SPREAD_ROW: Final = 0.27
_COLUMNS: Final = (("share", 0.55), ("p50", 1.2), ("p95", 1.85), ("waiting", 2.5))
"""Names of the columns at the right, and where each ends, in inches from the dots."""


@dataclass(frozen=True)
class SpreadRow:
    """A row of the chart."""

    name: str
    stage: StageTimes


def spread_figure(run: Run) -> Sheet:
    """The spread as a picture of its own."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, printable), nothing(run), [])[0]
    made, (ax,) = sheet(title(found), (population(run, found),), [spread_sheet_part(found)])
    with styled():
        draw_spread(ax, found)
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
        f"{printable(stage.stage)} is the most uneven: its slowest 5% take over "
        f"{_unevenness(stage):.1f}× its median"
    )


def _unevenness(stage: StageTimes) -> float:
    median = stage.quantile_s(0.5)
    return stage.quantile_s(0.95) / median if median else 0.0


def rows_of(found: Profile) -> list[SpreadRow]:
    """The rows from the top: the longest stage first."""
    return [SpreadRow(stage_name(stage, found.unit), stage) for stage in found.stages[:MOST_ROWS]]


def spread_sheet_part(found: Profile) -> SheetPart:
    """How much of a sheet the chart needs."""
    rows = rows_of(found)
    widest = max(text_width(row.name, TEXT_SIZE) for row in rows)
    right = _COLUMNS[-1][1] + 0.1
    height = _SPREAD_ROW * (len(rows) + 0.2)
    return SheetPart(
        height, above=0.3, axis=_spread_axis_name(found), left=widest + 0.1, right=right
    )


def draw_spread(ax: Axes, found: Profile) -> Axes:
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


def _ends(rows: list[SpreadRow]) -> tuple[float, float]:
    positive = [row.stage.times_s[row.stage.times_s > 0] for row in rows]
    every = np.concatenate([*positive, np.array([], dtype=float)])
    return (float(every.min()), float(every.max())) if every.size else (1e-6, 1e-3)


def _spread_axis_name(found: Profile) -> str:
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


def figure(run: Run) -> Sheet:
    """Where a sample's time goes."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, printable), nothing(run), [])[0]
    notes = (population(run, found), *remarks(found), *run.notes)
    made, (upper, lower) = sheet(
        headline(found, printable), notes, [part(found), spread_sheet_part(found)]
    )
    with styled():
        draw(upper, found)
        draw_spread(lower, found)
    return made
