"""One sample as a bar: each stage's mean time, in the order in which a sample meets them.

The light, hatched end of a stage is waiting (not on a CPU). What a worker does once for a whole
batch stands at the right, as one sample's part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from stallscope.analyze.headline import headline, remarks
from stallscope.analyze.profile import profile
from stallscope.stages import COLOURS
from stallscope.units import count, seconds, share
from stallscope.views.charts.axes import linear_time
from stallscope.views.charts.captions import nothing, population
from stallscope.views.charts.labels import place
from stallscope.views.charts.style import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    SMALL_SIZE,
    WIDTH,
    Part,
    sheet,
    styled,
    text_width,
)
from stallscope.views.names import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.profile import Profile, StageTimes
    from stallscope.run import Run
    from stallscope.views.charts.labels import Placed
    from stallscope.views.charts.style import Sheet

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
class Piece:
    """A piece of the bar."""

    name: str
    kind: str
    seconds: float
    share: float
    waiting: float
    """Share of it that is drawn as waiting."""
    per: str


def figure(run: Run) -> Sheet:
    """The bar as a picture of its own."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, shown), nothing(run), [])[0]
    notes = (population(run, found), *remarks(found))
    made, (ax,) = sheet(headline(found, shown), notes, [part(found)])
    with styled():
        draw(ax, found)
    return made


def part(found: Profile) -> Part:
    """How much of a sheet the bar needs."""
    rows = max((label.row + 1 for _, label in _layout(found)[1] if label), default=0)
    height = _BAR + rows * _ROW + 0.08
    return Part(height, axis=_axis_name(found), left=0.0, right=_RIGHT)


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


def pieces_of(found: Profile) -> list[Piece]:
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
        pieces.append(Piece(f"{len(small)} more", "other", *together, 0.0, found.unit))
    beside = [stage for stage in found.stages if stage.per != found.unit]
    return pieces + [_piece(stage) for stage in beside if stage.share >= SMALLEST]


def _piece(stage: StageTimes) -> Piece:
    waiting = stage.waiting_share or 0.0
    drawn = waiting if waiting >= WAITING_SHOWN else 0.0
    return Piece(shown(stage.stage, 24), stage.kind, stage.mean_s, stage.share, drawn, stage.per)


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


def _draw_piece(ax: Axes, piece: Piece, start: float) -> None:
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


def _layout(found: Profile) -> tuple[list[Piece], list[tuple[Piece, Placed | None]]]:
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


def _short(piece: Piece) -> str:
    return f"{piece.name} {share(piece.share)}"


def _numbers(piece: Piece) -> str:
    return f"{share(piece.share)} · {seconds(piece.seconds)}"


def _larger_half(piece: Piece) -> tuple[float, float, bool]:
    """Where it begins in its piece, its length in seconds, and whether it is the waiting one."""
    waiting = piece.seconds * piece.waiting
    computing = piece.seconds - waiting
    return (computing, waiting, True) if waiting > computing else (0.0, computing, False)


def _fits(piece: Piece, inch: float) -> bool:
    name = text_width(piece.name, SMALL_SIZE, bold=True)
    widest = max(name, text_width(_numbers(piece), SMALL_SIZE))
    return widest + 2 * _PAD <= _larger_half(piece)[1] / inch


def _write_inside(ax: Axes, piece: Piece, start: float) -> None:
    begins, length, waits = _larger_half(piece)
    at = start + begins + length / 2
    colour = PAPER if piece.kind in _DARK_KINDS and not waits else INK
    # Over hatching, a text needs a quiet ground
    ground = {"boxstyle": "square,pad=0.1", "facecolor": _lighter(COLOURS[piece.kind]), "lw": 0}
    look: dict[str, Any] = {"bbox": ground} if waits else {}
    look |= {"ha": "center", "va": "center", "size": SMALL_SIZE, "color": colour}
    ax.text(at, _BAR / 2 + 0.11, piece.name, weight="bold", **look)
    ax.text(at, _BAR / 2 - 0.11, _numbers(piece), **look)


def _write_outside(ax: Axes, piece: Piece, label: Placed, inch: float) -> None:
    bottom = _BAR + 0.06 + label.row * _ROW
    at = label.at * inch
    ax.plot([at, at], [_BAR, bottom + 0.02], color=FAINT, linewidth=0.7)
    ax.text(label.left * inch, bottom + 0.02, _short(piece), size=SMALL_SIZE, va="bottom")
