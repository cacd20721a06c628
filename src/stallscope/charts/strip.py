"""One bar of pieces that together are a whole: a sample's stages, the loop's time.

A piece has its name and its numbers inside; where it is too narrow, they stand over the bar at the
end of a line. One unit of the vertical axis is an inch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import FAINT, INK, PAPER, SMALL_SIZE, place, text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Placed


BAR: Final = 0.6
"""Height of a bar, inches."""
_ROW: Final = 0.19
_ROWS: Final = 4
_PAD: Final = 0.06
_LIGHT: Final = 0.7


@dataclass(frozen=True)
class StripPiece:
    """A piece of the bar."""

    name: str
    length: float
    """In the unit of the axis."""
    numbers: str
    """Stand under its name."""
    colour: str
    dark: bool = False
    """Whether a text on it is light."""
    outside: str = ""
    """What stands over the bar where there is no room inside; "": nothing."""
    first: bool = False
    """Whether that is placed before the names of longer pieces."""
    waiting: float = 0.0
    """Share (0 to 1) at its end that is light and hatched."""

    @property
    def larger_half(self) -> tuple[float, float, bool]:
        """Where it begins in the piece, its length, and whether it is the hatched one."""
        waiting = self.length * self.waiting
        computing = self.length - waiting
        return (computing, waiting, True) if waiting > computing else (0.0, computing, False)


class Strip:
    """A bar of pieces with all its names.

    Args:
        pieces: from left to right.
        width: of the bar, inches.
        right: free space beside it, inches.
    """

    def __init__(self, pieces: Sequence[StripPiece], width: float, right: float) -> None:
        self.total = sum(piece.length for piece in pieces)
        """End of the axis."""
        self._inch = self.total / width
        starts = [sum(piece.length for piece in pieces[:number]) for number in range(len(pieces))]
        self._pieces = list(zip(pieces, starts, strict=True))
        self._inside = [pair for pair in self._pieces if self._fits(pair[0])]
        narrow = [
            pair
            for pair in self._pieces
            if pair not in self._inside and pair[0].outside and pair[0].length
        ]
        narrow.sort(key=lambda pair: (not pair[0].first, -pair[0].length))
        wanted = [
            ((start + piece.length / 2) / self._inch, text_width(piece.outside, SMALL_SIZE))
            for piece, start in narrow
        ]
        places = place(wanted, (-_PAD, width + right), rows=_ROWS, gap=0.12)
        self._outside: list[tuple[StripPiece, Placed]] = [
            (piece, label)
            for (piece, _), label in zip(narrow, places, strict=True)
            if label is not None
        ]

    @property
    def height(self) -> float:
        """Of the bar and of the names over it, inches."""
        return BAR + _ROW * max((label.row + 1 for _, label in self._outside), default=0) + 0.06

    def _fits(self, piece: StripPiece) -> bool:
        name = text_width(piece.name, SMALL_SIZE, bold=True)
        widest = max(name, text_width(piece.numbers, SMALL_SIZE))
        return widest + 2 * _PAD <= piece.larger_half[1] / self._inch

    def draw(self, ax: Axes, base: float = 0.0) -> None:
        """Draw the bar on axes that end at `total`, `height` inches from `base` up."""
        for piece, start in self._pieces:
            _draw(ax, piece, (start, base))
        for piece, start in self._inside:
            _write(ax, piece, start, base + BAR / 2)
        for piece, label in self._outside:
            top, at = base + BAR, label.at * self._inch
            bottom = top + 0.08 + label.row * _ROW
            ax.plot([at, at], [top, bottom], color=FAINT, linewidth=0.7)
            ax.text(label.left * self._inch, bottom, piece.outside, size=SMALL_SIZE, va="bottom")

    def fill(self, ax: Axes) -> None:
        """Draw the bar alone on its axes."""
        ax.set_ylim(0, self.height)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        self.draw(ax)


def _draw(ax: Axes, piece: StripPiece, at: tuple[float, float]) -> None:
    start, base = at
    computing = piece.length * (1 - piece.waiting)
    ax.add_patch(Rectangle(at, computing, BAR, facecolor=piece.colour, linewidth=0))
    if piece.waiting:
        look: dict[str, Any] = {"facecolor": _lighter(piece.colour), "edgecolor": piece.colour}
        box = (start + computing, base), piece.length - computing, BAR
        ax.add_patch(Rectangle(*box, hatch="////", linewidth=0, **look))
    ax.plot([start, start], [base, base + BAR], color=PAPER, lw=1.2, solid_capstyle="butt")


def _lighter(colour: str) -> tuple[float, float, float]:
    red, green, blue = (part + (1 - part) * _LIGHT for part in to_rgb(colour))
    return red, green, blue


def _write(ax: Axes, piece: StripPiece, start: float, middle: float) -> None:
    begins, length, waits = piece.larger_half
    at = start + begins + length / 2
    look: dict[str, Any] = {}
    if waits:  # over hatching, a text needs a quiet ground
        ground = {"boxstyle": "square,pad=0.1", "facecolor": _lighter(piece.colour), "lw": 0}
        look = {"bbox": ground}
    look |= {"ha": "center", "va": "center", "size": SMALL_SIZE}
    look |= {"color": PAPER if piece.dark and not waits else INK}
    ax.text(at, middle + 0.1, piece.name, weight="bold", **look)
    ax.text(at, middle - 0.1, piece.numbers, **look)
