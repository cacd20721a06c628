"""Bars with words: a bar in parts, rows of named bars, predicted and measured values.

A part has its name and its numbers inside; those of a narrow part are above the bar, connected by a
line.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from stallscope.charts import sheet
from stallscope.charts.sheet import GAP, PAD, ROW, Sheet, styled
from stallscope.model.thresholds import SMALL
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

Ends = tuple[float | None, float | None]

BAR: Final = 0.6
"""Height of a bar in parts, inches."""
_LIGHT: Final = 0.7


class Label(NamedTuple):
    """A text beside a narrow part of a bar, connected with its part by a line."""

    text: str
    at: float
    """Middle of its part, inches."""
    left: float = 0.0
    """Begin of the text, inches."""

    @property
    def end(self) -> float:
        """End of the line, under or over the text: as near to the part as the text reaches."""
        return min(max(self.at, self.left + 0.05), self.left + sheet.text_width(self.text) - 0.05)


def in_a_row(labels: Sequence[tuple[Label, float]], room: float) -> list[Label]:
    """Place labels, each with the length of its part, in a row of `room` inches.

    Each is as near to its part as its neighbours allow. Without room for all, those of the shortest
    parts go.
    """
    lefts = []
    free = 0.0
    for label, _ in labels:
        lefts.append(max(free, label.at - sheet.text_width(label.text) / 2))
        free = lefts[-1] + sheet.text_width(label.text) + GAP
    end = room
    for place in reversed(range(len(labels))):
        width = sheet.text_width(labels[place][0].text)
        lefts[place] = min(lefts[place], end - width)
        end = lefts[place] - GAP
    if lefts and lefts[0] < 0:
        shortest = min(labels, key=lambda each: each[1])
        return in_a_row([each for each in labels if each is not shortest], room)
    return [label._replace(left=left) for (label, _), left in zip(labels, lefts, strict=True)]


class StripPiece(NamedTuple):
    """A part of a bar."""

    name: str
    length: float
    """In the unit of the axis."""
    numbers: str
    colour: str
    waiting: float = 0.0
    """Light and hatched share (0 to 1) at its end."""
    short: str = ""
    """Numbers over a narrow part, behind its name."""

    @property
    def outside(self) -> str:
        """Text over the bar if the part is too narrow."""
        return f"{self.name} {self.short}".rstrip()


class Strip:
    """A bar in parts with their names; one unit of the vertical axis is an inch.

    Args:
        pieces: parts from left to right.
        width: approximate width of its axis, inches.
        end: end of its axis; None: the end of the bar.

    Attributes:
        total: end of the bar.
        height: height of the bar and the names above it, inches.
    """

    def __init__(
        self, pieces: Sequence[StripPiece], width: float = sheet.ROOM, end: float | None = None
    ) -> None:
        self.total = sum(piece.length for piece in pieces)
        self._end = end or self.total
        self._inch = self._end / width
        starts = [sum(piece.length for piece in pieces[:number]) for number in range(len(pieces))]
        self._pieces = list(zip(pieces, starts, strict=True))
        narrow = [
            (Label(piece.outside, (start + piece.length / 2) / self._inch), piece.length)
            for piece, start in self._pieces
            if not self._fits(piece) and piece.length >= SMALL * self.total
        ]
        self._outside = in_a_row(narrow, width)
        self.height = BAR + ROW * bool(self._outside)

    def _fits(self, piece: StripPiece) -> bool:
        widest = max(sheet.text_width(piece.name, bold=True), sheet.text_width(piece.numbers))
        larger = piece.length * max(piece.waiting, 1 - piece.waiting)
        return widest + 2 * PAD <= larger / self._inch

    def draw(self, ax: Axes, base: float = 0.0) -> None:
        """Draw the bar from `base` up."""
        for piece, start in self._pieces:
            self._draw_piece(ax, piece, start, base)
        for label in self._outside:
            top, xs = base + BAR, [label.at * self._inch, label.end * self._inch]
            ax.plot(xs, [top, top + 0.12], color=sheet.FAINT, linewidth=0.7)
            ax.text(label.left * self._inch, top + 0.13, label.text, va="bottom")

    def fill(self, ax: Axes) -> None:
        """Draw the bar alone on its axes."""
        ax.set_ylim(0, self.height)
        ax.set_xlim(0, self._end)
        ax.set_axis_off()
        self.draw(ax)

    def _draw_piece(self, ax: Axes, piece: StripPiece, start: float, base: float) -> None:
        waiting = piece.length * piece.waiting
        middle = start + piece.length - waiting
        pale = tuple(part + (1 - part) * _LIGHT for part in to_rgb(piece.colour))
        ax.add_patch(Rectangle((start, base), middle - start, BAR, fc=piece.colour, lw=0))
        hatched: dict[str, Any] = {"fc": pale, "ec": piece.colour, "hatch": "////", "lw": 0}
        ax.add_patch(Rectangle((middle, base), waiting, BAR, **hatched))
        ax.vlines(start, base, base + BAR, color=sheet.PAPER, lw=1.2)
        if not self._fits(piece):
            return
        look: dict[str, Any] = {"color": sheet.ink_on(piece.colour)}
        at = (start + middle) / 2
        if waiting > middle - start:  # text on hatching needs a plain background
            at = middle + waiting / 2
            box = {"boxstyle": "square,pad=0.1", "fc": pale, "lw": 0}
            look = {"bbox": box, "color": sheet.INK}
        sheet.write_centred(ax, at, base + BAR / 2 + 0.1, piece.name, weight="bold", **look)
        sheet.write_centred(ax, at, base + BAR / 2 - 0.1, piece.numbers, **look)


class LabelledBar(NamedTuple):
    """A bar with its name at the left, a line of text above it and its value."""

    name: str
    where: str
    text: str
    value: float
    label: str
    """Formatted value at the bar's end."""
    colour: str
    interval: Ends = (None, None)

    @property
    def end(self) -> float:
        """Right end of the bar or its interval."""
        return max(self.value, self.interval[1] or 0.0)


def bars_height(bars: Sequence[LabelledBar]) -> float:
    """Return the height of bars under each other with their axis, inches."""
    return 0.58 * len(bars) + sheet.AXIS


def draw_bars(
    ax: Axes,
    bars: Sequence[LabelledBar],
    tick: Callable[[float], str],
    font: str = "sans-serif",
    *,
    beyond: float = 0.0,
) -> None:
    """Draw bars from the top; labels begin at `beyond` or farther right."""
    sheet.value_axis(ax, 0.0, max(bar.end for bar in bars) * 1.02 or 1e-3, tick)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    sheet.name_heights(ax, {})
    write, size = partial(sheet.write_beside, ax), sheet.TEXT_SIZE
    for at, bar in enumerate(bars):
        above, down = at - 0.17, at + 0.2
        ax.barh(down, bar.value, 0.34, color=bar.colour)
        sheet.draw_interval(ax, bar.value, down, bar.interval)
        write(bar.name, (0, above), (-8, 0), ha="right", size=size)
        write(bar.where, (0, down), (-8, 0), ha="right", color=sheet.FAINT)
        write(bar.text, (0, above), (2, 0), family=font, in_layout=False)
        write(bar.label, (max(bar.end, beyond), down), (5, 0), size=size, weight="bold")


@styled
def bars_figure(  # noqa: PLR0913 - a chart
    title: str,
    notes: Sequence[str],
    bars: Sequence[LabelledBar],
    tick: Callable[[float], str],
    axis: str = "",
    *,
    is_code: bool = False,
    mark: float = 0.0,
) -> Sheet:
    """Draw a sheet with rows of bars; without bars, only the sentences.

    The texts over the bars may be code; at `mark` is a dotted line (0: none).
    """
    if not bars:
        return Sheet(title, notes)
    page = Sheet(title, notes, [bars_height(bars)])
    (ax,) = page.parts
    draw_bars(ax, bars, tick, "monospace" if is_code else "sans-serif", beyond=mark)
    if mark:
        ax.set_xlim(right=max(ax.get_xlim()[1], 1.05 * mark))
        ax.axvline(mark, color=sheet.INK, lw=1.0, ls=":")
    ax.set_xlabel(axis)
    return page


_FIT_KEY: Final = (
    f"filled dot and line: measured, with its {INTERVAL} · open diamond: predicted, thin line: its "
    "interval"
)


@styled
def fit_figure(title: str, note: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Sheet:
    """Draw the predicted and the measured gains of named rows; each row has one of them."""
    page = Sheet(title, [_FIT_KEY, note], [0.36 * len(rows) + 0.15 + sheet.AXIS])
    (ax,) = page.parts
    sheet.name_rows(ax, [sheet.fitting(name, 3.4, sheet.TEXT_SIZE) for name, _ in rows])
    gains = [
        [[row[f"{how}{name}"] for name in ("gain", "gain_low", "gain_high")] for _, row in rows]
        for how in ("", "predicted_")
    ]
    values = [end for how in gains for row in how for end in row if end is not None]
    low, high = min(1.0, *values), max(1.0, *values)
    room = 0.06 * ((high - low) or 1.0)
    sheet.value_axis(ax, low - room, high + room, "{:.4g}×".format)
    ax.set_xlabel("speedup over the current loader")
    ax.axvline(1.0, color=sheet.FAINT, linewidth=1.2, linestyle="--")
    for at, ((gain, *ends), (foretold, *limits)) in enumerate(zip(*gains, strict=True)):
        if None not in limits:
            ax.hlines(at, *limits, color=sheet.FAINT, linewidth=0.8, zorder=2)
        if gain is not None:
            sheet.draw_interval(ax, gain, at, (ends[0], ends[1]), cap=4.0)
            full: dict[str, Any] = {"color": COLOURS["transform"], "mec": sheet.INK, "mew": 0.8}
            ax.plot([gain], [at], "o", ms=7, zorder=4, **full)
        if foretold is not None:
            ax.plot([foretold], [at], "D", ms=9, mfc="none", mec=sheet.INK, mew=1.2, zorder=5)
    return page
