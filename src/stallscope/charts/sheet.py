"""How every picture looks: a white sheet with the answer on top and what is shown beneath it.

Sizes are in inches, so that a picture's parts stand where they are put, whatever is in them.
Nothing here touches pyplot: its settings and its list of open figures are the user's.
"""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from stallscope.units import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase


WIDTH: Final = 9.6
"""Width of a notebook's output at 100 dots an inch."""
MARGIN: Final = 0.18
INK: Final = "#1A1A1A"
FAINT: Final = "#5F5F5F"
RULE: Final = "#D9D9D9"
PAPER: Final = "#FFFFFF"
DOTS: Final = 100
SHARP: Final = 2
"""Pixels that are stored for each one that a notebook shows."""

TITLE_SIZE: Final = 13.0
TEXT_SIZE: Final = 9.5
SMALL_SIZE: Final = 8.8
_TITLE_LINE: Final = 0.245
_SMALL_LINE: Final = 0.172
_TICKS: Final = 0.25

_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
DECADE: Final = 10.0
FEW_DECADES: Final = 100.0
"""An axis that spans less gets labels at 2 and 5, too."""
ATTEMPTS: Final = 6
"""To find places for labels, each time with those first that found none."""

_RC: Final[dict[Any, Any]] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "text.usetex": False,
    "text.parse_math": False,  # names hold dollar signs
    "axes.formatter.use_mathtext": False,
    "text.color": INK,
    "path.simplify": True,
    "hatch.linewidth": 0.8,
}


@dataclass(frozen=True)
class SheetPart:
    """One chart of a sheet, from top to bottom."""

    height: float
    """Of the plotting area, inches."""
    above: float = 0.15
    """Free space over it."""
    axis: str = ""
    """What the horizontal axis shows; stands under it."""
    left: float = 0.4
    """Free space at its left, for the rows' names."""
    right: float = 0.3
    """Free space at its right."""

    @property
    def width(self) -> float:
        """Of the plotting area, inches."""
        return WIDTH - 2 * MARGIN - self.left - self.right

    @property
    def axis_lines(self) -> list[str]:
        """The axis' name as lines that are no wider than the axis."""
        return balanced(self.axis, self.width, SMALL_SIZE)

    @property
    def below(self) -> float:
        """Free space under it, for the axis and its name."""
        return _TICKS + _SMALL_LINE * len(self.axis_lines) + 0.08 if self.axis else 0.0

    @property
    def total(self) -> float:
        """Its height with the space around it."""
        return self.above + self.height + self.below


class Sheet(Figure):
    """A figure that shows itself in a notebook, sharp, opaque, and with its title as text."""

    def __init__(self, title: str, notes: Sequence[str], height: float) -> None:
        super().__init__(figsize=(WIDTH, height), dpi=DOTS, facecolor=PAPER)
        self.title = title
        """The answer."""
        self.notes = tuple(notes)
        """What is shown, and what is not."""
        FigureCanvasAgg(self)

    def png(self) -> bytes:
        """The picture, with `SHARP` times the pixels that are shown."""
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=DOTS * SHARP, facecolor=PAPER)
        return stream.getvalue()

    def draw(self, renderer: RendererBase) -> None:
        """Draw without warning about letters of a file name that the font does not have."""
        with warnings.catch_warnings(), mpl.rc_context(_RC):
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            super().draw(renderer)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        width, height = self.get_size_inches() * DOTS
        data = {
            "image/png": base64.b64encode(self.png()).decode("ascii"),
            "text/plain": "\n".join([self.title, *self.notes]),
        }
        return data, {"image/png": {"width": int(width), "height": int(height)}}


def sheet(title: str, notes: Sequence[str], parts: Sequence[SheetPart]) -> tuple[Sheet, list[Axes]]:
    """A sheet with its title, its notes and empty charts.

    Args:
        title: the answer, one sentence.
        notes: what is shown and what was left out; small, each on lines of its own.
        parts: the charts from top to bottom.
    """
    with mpl.rc_context(_RC):
        titles, smalls = _lines(title, notes)
        head = MARGIN + _TITLE_LINE * len(titles) + _SMALL_LINE * len(smalls) + 0.08
        height = head + sum(part.total for part in parts) + 0.05
        figure = Sheet(title, notes, height)
        _write_head(figure, titles, smalls)
        tops = [head]
        for part in parts:
            tops.append(tops[-1] + part.total)
        return figure, [_axes(figure, part, top) for part, top in zip(parts, tops, strict=False)]


def styled() -> Any:
    """The settings under which everything on a sheet is drawn, for `with`."""
    return mpl.rc_context(_RC)


def _lines(title: str, notes: Sequence[str]) -> tuple[list[str], list[str]]:
    room = WIDTH - 2 * MARGIN
    smalls = [line for note in notes for line in wrapped(note, room, SMALL_SIZE)]
    titles = balanced(title, room, TITLE_SIZE, bold=True)
    return titles, smalls


def _write_head(figure: Sheet, titles: list[str], smalls: list[str]) -> None:
    height, down = figure.get_figheight(), MARGIN
    for line in titles:
        write(figure, (MARGIN, height - down), line, size=TITLE_SIZE, bold=True)
        down += _TITLE_LINE
    for line in smalls:
        write(figure, (MARGIN, height - down - 0.02), line, size=SMALL_SIZE, color=FAINT)
        down += _SMALL_LINE


def write(
    figure: Sheet, at: tuple[float, float], text: str, *, bold: bool = False, **style: Any
) -> None:
    """Write on a sheet, hanging from a point in inches from its lower left corner."""
    width, height = figure.get_size_inches()
    weight = "bold" if bold else "normal"
    figure.text(at[0] / width, at[1] / height, text, weight=weight, va="top", **style)


def _axes(figure: Sheet, part: SheetPart, top: float) -> Axes:
    width, height = figure.get_size_inches()
    bottom = height - top - part.above - part.height
    left = part.left + MARGIN
    box = (left / width, bottom / height, part.width / width, part.height / height)
    ax: Axes = figure.add_axes(box, facecolor=PAPER)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    # Also for ticks that are made later, when the user's own style is in force
    ax.tick_params(colors=INK, labelsize=TEXT_SIZE, labelcolor=INK, which="both", length=3)
    ax.set_axisbelow(True)
    ax.set_xlabel("\n".join(part.axis_lines), size=SMALL_SIZE, color=FAINT, labelpad=3)
    return ax


def write_right(ax: Axes, end: float, height: float, text: str, color: str) -> None:
    """Write at the right of the axes, ending so many inches from them."""
    ax.annotate(
        text,
        xy=(1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(end * 72, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        size=SMALL_SIZE,
        color=color,
        annotation_clip=False,
    )


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart, from the top, at 0, 1, 2 and so on."""
    ax.set_yticks(range(len(names)), list(names), size=TEXT_SIZE, color=INK)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def wrapped(text: str, room: float, size: float, *, bold: bool = False) -> list[str]:
    """The text as lines that are at most `room` inches wide."""
    lines: list[str] = []
    for word in words_of(text):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, bold=bold) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def balanced(text: str, room: float, size: float, *, bold: bool = False) -> list[str]:
    """Like `wrapped`, with lines of about the same length: no single word on the last one."""
    lines = wrapped(text, room, size, bold=bold)
    narrow = room
    while len(lines) > 1 and narrow > room / 2:
        narrow -= 0.2
        narrower = wrapped(text, narrow, size, bold=bold)
        if len(narrower) > len(lines):
            break
        lines = narrower
    return lines


@lru_cache(maxsize=4096)  # laying a text out takes a millisecond, and pictures say much the same
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of one line of text in inches."""
    weight = "bold" if bold else "normal"
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(size, 72)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def time_label(value: float, _: object = None) -> str:
    """A tick's label: `time_label(0.002)` is '2 ms'."""
    if value == 0:
        return "0"
    for step, unit in _UNITS:
        if abs(value) >= step * 0.9995:
            return f"{value / step:.4g} {unit}"
    return f"{value * 1e9:.2g} ns"


def linear_time(ax: Axes, high: float, low: float = 0.0) -> None:
    """A linear horizontal axis of seconds.

    Args:
        ax: the chart.
        high: its right end, seconds.
        low: its left end, seconds.
    """
    ax.set_xlim(low, high if high > low else low + 1e-3)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(time_label))


def log_time(ax: Axes, low: float, high: float, *, vertical: bool = False) -> None:
    """A logarithmic axis of seconds that holds both ends, with at least two labels."""
    low, high = low / 1.25, high * 1.25
    (ax.set_yscale if vertical else ax.set_xscale)("log")
    (ax.set_ylim if vertical else ax.set_xlim)(low, high)
    axis = ax.yaxis if vertical else ax.xaxis
    steps = (1.0,) if high / low > FEW_DECADES else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(FuncFormatter(time_label))
    axis.set_minor_formatter(NullFormatter())


def spans_decades(low: float, high: float) -> bool:
    """Whether values between two ends need a logarithmic axis."""
    return low > 0 and high / low > DECADE


def time_axis(ax: Axes, low: float, high: float) -> bool:
    """An axis for values between two times: logarithmic where they span more than a decade.

    Returns:
        Whether it is logarithmic.
    """
    log = spans_decades(low, high)
    if log:
        log_time(ax, low, high)
    else:
        linear_time(ax, high * 1.05)
    return log


def draw_key(ax: Axes, looks: Mapping[str, str | dict[str, Any]]) -> None:
    """Name the colours over a chart, in one line.

    Args:
        ax: the chart.
        looks: for each name a colour, or all that a patch of it looks like.
    """
    styles = {
        name: {"facecolor": look, "linewidth": 0} if isinstance(look, str) else look
        for name, look in looks.items()
    }
    legend = ax.legend(
        handles=[Patch(label=name, **look) for name, look in styles.items()],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=max(len(styles), 1),
        frameon=False,
        fontsize=TEXT_SIZE,
        borderaxespad=0.0,
        borderpad=0.4,
        handlelength=0.8,
        handleheight=0.8,
        handletextpad=0.5,
        columnspacing=1.7,
    )
    for text in legend.get_texts():  # whatever the user's style says of legends
        text.set_color(INK)


def draw_interval(
    ax: Axes,
    at: tuple[float, float],
    ends: tuple[float | None, float | None],
    *,
    cap: float = 3.0,
    vertical: bool = False,
) -> None:
    """Draw a line from one end of an interval to the other; nothing where an end is not known."""
    low, high = ends
    if low is None or high is None:
        return
    middle = at[1] if vertical else at[0]
    reach = [[max(middle - low, 0.0)], [max(high - middle, 0.0)]]
    errors: dict[str, Any] = {"yerr" if vertical else "xerr": reach}
    look: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.4, "capthick": 1.4, "fmt": "none"}
    ax.errorbar([at[0]], [at[1]], capsize=cap, zorder=3, **errors, **look)


def value_axis(ax: Axes, low: float, high: float, label: Callable[[float], str]) -> None:
    """A linear horizontal axis with a faint line at each of a few round values."""
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    ax.grid(axis="x", color=RULE, linewidth=0.6)


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


def place(
    wanted: Sequence[tuple[float, float]], room: tuple[float, float], *, rows: int, gap: float
) -> list[Placed | None]:
    """Find places for labels, each connected with its thing by a vertical line.

    No label lies on another one or on another one's line.

    Args:
        wanted: for each label the position of its thing and the width of its text; the most
            important one first.
        room: the ends of the axis.
        rows: how many rows there are.
        gap: free space between neighbours.

    Returns:
        For each label its place, or None where there is none.
    """
    order = list(range(len(wanted)))
    best: dict[int, Placed] = {}
    for _ in range(ATTEMPTS):
        found = _greedy([wanted[number] for number in order], room, rows=rows, gap=gap)
        placed = {number: one for number, one in zip(order, found, strict=True) if one}
        best = max(best, placed, key=len)
        order.sort(key=lambda number: number in placed)  # next time, those without a place first
        if len(best) == len(wanted):
            break
    return [best.get(number) for number in range(len(wanted))]


def _greedy(
    wanted: Sequence[tuple[float, float]], room: tuple[float, float], *, rows: int, gap: float
) -> list[Placed | None]:
    placed: list[Placed | None] = []
    for at, width in wanted:
        others = [label for label in placed if label]
        tries = _tries(at, width, rows=rows, gap=gap)
        tries.sort(key=lambda one: sum(one.left < other < one.right for other, _ in wanted))
        inside = (one for one in tries if room[0] <= one.left and one.right <= room[1])
        placed.append(next((one for one in inside if _fits(one, others, gap)), None))
    return placed


def _tries(at: float, width: float, *, rows: int, gap: float) -> list[Placed]:
    """Everywhere the label could be, from the lowest row; first to the right of its line."""
    lefts = (at - gap / 4, at + gap / 4 - width, at - width / 2)
    return [Placed(at, left, left + width, row) for row in range(rows) for left in lefts]


def _fits(one: Placed, others: list[Placed], gap: float) -> bool:
    return not any(_collide(one, other, gap) for other in others)


def _collide(one: Placed, other: Placed, gap: float) -> bool:
    if one.row == other.row:
        return one.left < other.right + gap and other.left < one.right + gap
    lower, upper = (one, other) if one.row < other.row else (other, one)
    return lower.left - gap / 2 < upper.at < lower.right + gap / 2
