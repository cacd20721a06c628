"""Bars with words: one bar of pieces that are a whole, and bars under each other with their names.

A piece has its name and its numbers inside; where it is too narrow, they stand over the bar at the
end of a line. And rows of what was predicted beside what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    AXIS,
    FAINT,
    INK,
    PAPER,
    ROOM,
    TEXT_SIZE,
    Sheet,
    draw_interval,
    fitting,
    hide_rows,
    ink_on,
    name_rows,
    styled,
    text_width,
    value_axis,
)
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes


BAR: Final = 0.6
"""Height of a bar of pieces, inches."""
NAMED: Final = 0.01
"""A piece with a smaller share of the bar has no name over it."""
_LABEL_ROW: Final = 0.19
_LABEL_ROWS: Final = 4
_PAD: Final = 0.06
_LIGHT: Final = 0.7


@dataclass(frozen=True)
class Placed:
    """A label that found a place."""

    at: float
    """What it names, on the axis."""
    left: float
    """Where its text begins."""
    right: float
    """Where its text ends."""
    row: int
    """0 is next to the thing."""

    def is_clear_of(self, other: Placed, gap: float) -> bool:
        """Whether neither lies on the other or on the line that leads to it."""
        lower, upper = sorted((self, other), key=lambda label: label.row)
        if lower.row == upper.row:
            return lower.right + gap <= upper.left or upper.right + gap <= lower.left
        return not lower.left - gap / 2 < upper.at < lower.right + gap / 2


def place(
    wanted: Sequence[tuple[float, float]], end: float, *, rows: int, gap: float
) -> list[Placed | None]:
    """Find places for labels, each connected with its thing by a vertical line.

    No label lies on another one or on another one's line. From the right to the left, each takes
    the lowest row that has room. Where more find a place that way, each begins at its line if it
    can, so that one on the left runs over the lines of those on the right; or each ends there.

    Args:
        wanted: for each label the position of its thing and the width of its text.
        end: of the axis, which begins at 0.
        rows: how many rows there are.
        gap: free space between neighbours.

    Returns:
        For each label its place, or None where there is none.
    """
    low, begin = (_placed(wanted, end, rows, gap, low=low) for low in (True, False))
    turned = _placed([(end - at, width) for at, width in wanted], end, rows, gap, low=False)
    at_end = [
        one and Placed(end - one.at, end - one.right, end - one.left, one.row) for one in turned
    ]
    return min((low, begin, at_end), key=lambda found: found.count(None))


def _placed(
    wanted: Sequence[tuple[float, float]], end: float, rows: int, gap: float, *, low: bool
) -> list[Placed | None]:
    """Find places in the lowest rows, or so that each begins at its line if it can."""
    placed: dict[int, Placed] = {}
    for number in sorted(range(len(wanted)), key=lambda number: -wanted[number][0]):
        at, width = wanted[number]
        lefts = (at - gap / 4, at - width / 2, at + gap / 4 - width)
        tries = [Placed(at, left, left + width, row) for left in lefts for row in range(rows)]
        for label in sorted(tries, key=lambda one: one.row) if low else tries:
            inside = -gap <= label.left and label.right <= end + gap
            if inside and all(label.is_clear_of(other, gap) for other in placed.values()):
                placed[number] = label
                break
    return [placed.get(number) for number in range(len(wanted))]


@dataclass(frozen=True)
class StripPiece:
    """A piece of a bar."""

    name: str
    length: float
    """In the unit of the axis."""
    numbers: str
    """Stand under its name."""
    colour: str
    outside: str = ""
    """What stands over the bar where there is no room inside."""
    waiting: float = 0.0
    """Share (0 to 1) at its end that is light and hatched."""


class Strip:
    """A bar of pieces with all its names; one unit of the vertical axis is an inch.

    Args:
        pieces: from left to right.
        width: of the bar, about so many inches.

    Attributes:
        total: the end of its axis.
    """

    def __init__(self, pieces: Sequence[StripPiece], width: float = ROOM - 0.3) -> None:
        self.total = sum(piece.length for piece in pieces)
        self._inch = self.total / width
        starts = [sum(piece.length for piece in pieces[:number]) for number in range(len(pieces))]
        self._pieces = list(zip(pieces, starts, strict=True))
        narrow = [
            (piece, start)
            for piece, start in self._pieces
            if not self._fits(piece) and piece.length >= NAMED * self.total
        ]
        self._outside = self._names_above(narrow, width)
        rows = max((label.row + 1 for _, label in self._outside), default=0)
        self.height = BAR + _LABEL_ROW * rows + 0.06
        """Of the bar and of the names over it."""

    def _names_above(
        self, narrow: list[tuple[StripPiece, float]], width: float
    ) -> list[tuple[str, Placed]]:
        """Names over the bar; where there is no room for all, the shortest pieces go without."""
        wanted = [
            ((start + piece.length / 2) / self._inch, text_width(piece.outside))
            for piece, start in narrow
        ]
        places = place(wanted, width, rows=_LABEL_ROWS, gap=0.12)
        placed = [
            (piece.outside, label)
            for (piece, _), label in zip(narrow, places, strict=True)
            if label is not None
        ]
        if len(placed) == len(narrow):
            return placed
        shortest = min(narrow, key=lambda one: one[0].length)
        return self._names_above([one for one in narrow if one is not shortest], width)

    def _fits(self, piece: StripPiece) -> bool:
        widest = max(text_width(piece.name, bold=True), text_width(piece.numbers))
        larger = piece.length * max(piece.waiting, 1 - piece.waiting)
        return widest + 2 * _PAD <= larger / self._inch

    def draw(self, ax: Axes, base: float = 0.0) -> None:
        """Draw the bar from `base` up."""
        for piece, start in self._pieces:
            _draw(ax, piece, start, base)
            if self._fits(piece):
                _write(ax, piece, start, base + BAR / 2)
        for text, label in self._outside:
            top, at = base + BAR, label.at * self._inch
            bottom = top + 0.08 + label.row * _LABEL_ROW
            ax.plot([at, at], [top, bottom], color=FAINT, linewidth=0.7)
            ax.text(label.left * self._inch, bottom, text, va="bottom")

    def fill(self, ax: Axes) -> None:
        """Draw the bar alone on its axes."""
        ax.set_ylim(0, self.height)
        hide_rows(ax)
        self.draw(ax)


def _draw(ax: Axes, piece: StripPiece, start: float, base: float) -> None:
    waiting = piece.length * piece.waiting
    computing = piece.length - waiting
    ax.add_patch(Rectangle((start, base), computing, BAR, facecolor=piece.colour, linewidth=0))
    look: dict[str, Any] = {"facecolor": _lighter(piece.colour), "edgecolor": piece.colour}
    ax.add_patch(
        Rectangle((start + computing, base), waiting, BAR, hatch="////", linewidth=0, **look)
    )
    ax.plot([start, start], [base, base + BAR], color=PAPER, lw=1.2, solid_capstyle="butt")


def _write(ax: Axes, piece: StripPiece, start: float, middle: float) -> None:
    """Write into the larger one of its two parts."""
    waiting = piece.length * piece.waiting
    computing = piece.length - waiting
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": ink_on(piece.colour)}
    at = start + computing / 2
    if waiting > computing:  # over hatching, a text needs a quiet ground
        ground = {"boxstyle": "square,pad=0.1", "facecolor": _lighter(piece.colour), "lw": 0}
        look |= {"bbox": ground, "color": INK}
        at = start + computing + waiting / 2
    ax.text(at, middle + 0.1, piece.name, weight="bold", **look)
    ax.text(at, middle - 0.1, piece.numbers, **look)


def _lighter(colour: str) -> tuple[float, float, float]:
    red, green, blue = (part + (1 - part) * _LIGHT for part in to_rgb(colour))
    return red, green, blue


@dataclass(frozen=True)
class LabelledBar:
    """A bar with its name at the left, a line of text over it and its value."""

    name: str
    where: str
    """Under the name, small."""
    text: str
    """Over the bar."""
    value: float
    label: str
    """The value in words, at the bar's end."""
    colour: str
    interval: tuple[float | None, float | None] = (None, None)
    beyond: float = 0.0
    """The label stands at the right of it."""

    @property
    def end(self) -> float:
        """How far it reaches."""
        return max(self.value, self.interval[1] or 0.0)


def bars_height(bars: Sequence[LabelledBar]) -> float:
    """Of bars under each other with their axis, inches."""
    return 0.58 * len(bars) + AXIS


def draw_bars(
    ax: Axes, bars: Sequence[LabelledBar], tick: Callable[[float], str], font: str = "sans-serif"
) -> None:
    """Draw bars under each other.

    Args:
        ax: the chart.
        bars: from the top.
        tick: a value of the axis in words.
        font: of the texts over the bars.
    """
    value_axis(ax, 0.0, max(bar.end for bar in bars) * 1.02 or 1e-3, tick)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    hide_rows(ax)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    left = look | {"xytext": (-8, 0), "ha": "right"}
    for place, bar in enumerate(bars):
        above, down = place - 0.17, place + 0.2
        ax.barh(down, bar.value, 0.34, color=bar.colour)
        draw_interval(ax, bar.value, down, bar.interval)
        ax.annotate(bar.name, (0, above), size=TEXT_SIZE, **left)
        ax.annotate(bar.where, (0, down), color=FAINT, **left)
        ax.annotate(bar.text, (0, above), xytext=(2, 0), family=font, in_layout=False, **look)
        end = max(bar.end, bar.beyond)
        ax.annotate(bar.label, (end, down), xytext=(5, 0), size=TEXT_SIZE, weight="bold", **look)


_FIT_KEY: Final = (
    f"filled dot and line: measured, with its {INTERVAL} · open diamond: predicted, thin line: its "
    "interval"
)


class FitRow(NamedTuple):
    """Something whose gain was predicted, measured, or both."""

    name: str
    predicted: float | None
    """How many times as fast; None where that was not predicted."""
    measured: float | None = None
    """The same; None where it was not measured."""
    measured_ends: tuple[float | None, float | None] = (None, None)
    """Of the interval."""
    predicted_ends: tuple[float | None, float | None] = (None, None)
    """Of the interval."""


@styled
def fit_figure(title: str, note: str, rows: Sequence[FitRow], axis: str) -> Sheet:
    """Predicted against measured gains, a row each.

    Args:
        title: the answer, one sentence.
        note: how they were measured, and what is not shown.
        rows: at least one, each with a gain at least.
        axis: what a gain is.
    """
    made = Sheet(title, [_FIT_KEY, note], [0.36 * len(rows) + 0.15 + AXIS])
    (ax,) = made.parts
    name_rows(ax, [fitting(row.name, 3.4, TEXT_SIZE) for row in rows])
    numbers = (row[1:3] + row.measured_ends + row.predicted_ends for row in rows)
    values = [one for row in numbers for one in row if one is not None]
    low, high = min(1.0, *values), max(1.0, *values)
    room = 0.06 * ((high - low) or 1.0)
    value_axis(ax, low - room, high + room, "{:.4g}×".format)
    ax.set_xlabel(axis)
    ax.axvline(1.0, color=FAINT, linewidth=1.2, linestyle="--")
    open_look: dict[str, Any] = {"color": PAPER, "mec": INK, "mew": 1.2, "fillstyle": "none"}
    full_look: dict[str, Any] = {"color": COLOURS["transform"], "mec": INK, "mew": 0.8}
    for place, row in enumerate(rows):
        low_end, high_end = row.predicted_ends
        if low_end is not None and high_end is not None:
            ax.plot([low_end, high_end], [place] * 2, color=FAINT, linewidth=0.8, zorder=2)
        if row.measured is not None:
            draw_interval(ax, row.measured, place, row.measured_ends, cap=4.0)
            ax.plot([row.measured], [place], "o", ms=7, zorder=4, **full_look)
        if row.predicted is not None:
            ax.plot([row.predicted], [place], "D", ms=9, zorder=5, **open_look)
    return made
