"""The training loop's time as a bar: standing still, copying, using batches, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.patches import Rectangle

from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import seconds, share
from stallscope.views.charts.labels import place
from stallscope.views.charts.style import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    SMALL_SIZE,
    WIDTH,
    Part,
    text_width,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.looptime import LoopTime
    from stallscope.views.charts.labels import Placed

_COLOURS: Final = COLOURS | {"stall": STALL_COLOUR, "wait": "#F3C6A5"}
"""Waits that are too short to be stalls are a pale stall."""
_DARK: Final = ("stall", "step")
_BAR: Final = 0.5
_LABEL: Final = 0.19
_CAPTION: Final = 0.32
"""Free space over the bar, inches, for the line that says what it is."""
_RIGHT: Final = 0.1
_WIDTH: Final = WIDTH - 2 * MARGIN - _RIGHT


@dataclass(frozen=True)
class Piece:
    """A piece of the loop's time."""

    name: str
    kind: str
    start: float
    """Inches from the bar's begin."""
    length: float
    """Inches."""
    numbers: str
    """Its share, and its seconds a step."""

    @property
    def inside(self) -> bool:
        """Whether its name and numbers fit into it."""
        widest = max(
            text_width(self.name, SMALL_SIZE, bold=True), text_width(self.numbers, SMALL_SIZE)
        )
        return widest + 0.12 <= self.length


def pieces_of(time: LoopTime) -> list[Piece]:
    """What the loop's time consists of, in the order of a step."""
    pieces, start = [], 0.0
    for name, kind, sum_s in time.pieces():
        length = _WIDTH * time.share(sum_s)
        numbers = f"{share(time.share(sum_s))} · {seconds(sum_s / time.steps)}"
        pieces.append(Piece(name, kind, start, length, numbers))
        start += length
    return pieces


def part(time: LoopTime) -> Part:
    """How much of a sheet the bar needs."""
    rows = max((label.row + 1 for _, label in _labels(time) if label), default=0)
    return Part(_BAR + rows * _LABEL + 0.05, above=_CAPTION, left=0.0, right=_RIGHT)


def _labels(time: LoopTime) -> list[tuple[Piece, Placed | None]]:
    """Where the names of narrow pieces stand over the bar."""
    narrow = [piece for piece in pieces_of(time) if not piece.inside]
    narrow.sort(key=lambda piece: (piece.kind != "stall", -piece.length))
    wanted = [
        (piece.start + piece.length / 2, text_width(_label(piece), SMALL_SIZE)) for piece in narrow
    ]
    room = (-0.06, _WIDTH + _RIGHT)
    return list(zip(narrow, place(wanted, room, rows=3, gap=0.12), strict=True))


def _label(piece: Piece) -> str:
    return f"{piece.name} {piece.numbers}"


def draw(ax: Axes, time: LoopTime) -> Axes:
    """Draw what the loop's time consists of; the axis is in inches."""
    ax.set_axis_off()
    ax.set_xlim(0, _WIDTH)
    ax.set_ylim(0, part(time).height)
    for piece in pieces_of(time):
        box = Rectangle((piece.start, 0), piece.length, _BAR, color=_COLOURS[piece.kind], lw=0)
        ax.add_patch(box)
        ax.plot([piece.start] * 2, [0, _BAR], color=PAPER, linewidth=1.2, solid_capstyle="butt")
        if piece.inside:
            look: dict[str, Any] = {"ha": "center", "va": "center", "size": SMALL_SIZE}
            look["color"] = PAPER if piece.kind in _DARK else INK
            middle = piece.start + piece.length / 2
            ax.text(middle, _BAR / 2 + 0.1, piece.name, weight="bold", **look)
            ax.text(middle, _BAR / 2 - 0.1, piece.numbers, **look)
    for piece, label in _labels(time):
        if label:
            bottom = _BAR + 0.05 + label.row * _LABEL
            ax.plot([label.at] * 2, [_BAR, bottom + 0.02], color=FAINT, linewidth=0.7)
            ax.text(label.left, bottom + 0.02, _label(piece), size=SMALL_SIZE, va="bottom")
    caption = f"the loop's time: {seconds(time.total_s / time.steps)} a step on average"
    top = part(time).height + 0.06
    ax.text(0, top, caption, size=SMALL_SIZE, color=FAINT, va="bottom")
    return ax
