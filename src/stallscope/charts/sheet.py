"""Sheet of every picture: white, with the answer on top and the charts below.

Matplotlib's constrained layout gives the axes their places below. Nothing here touches pyplot: its
settings and its list of open figures are the user's.
"""

from __future__ import annotations

import base64
import io
import textwrap
import warnings
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from stallscope.units import LONGEST_NOTE, LONGEST_TITLE, printable, unbroken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase


WIDTH: Final = 9.6
"""Width of a notebook's output at 100 dots an inch."""
MARGIN: Final = 0.18
ROOM: Final = WIDTH - 2 * MARGIN
"""Width of what is on a sheet."""
AXIS: Final = 0.5
"""Height of a horizontal axis with its labels and its name."""
INK: Final = "#1A1A1A"
FAINT: Final = "#5F5F5F"
MID: Final = "#9A9A9A"
RULE: Final = "#D9D9D9"
PAPER: Final = "#FFFFFF"
PALE: Final = "#B9C0C5"
"""Colour of values that are not significant."""
DOTS: Final = 100
SHARP: Final = 2
"""Stored pixels per displayed pixel, in each direction."""

PAD: Final = 0.05
"""Space around a text in a box, inches."""
GAP: Final = 0.25
"""Space between two texts in a row, inches."""
PICTURE: Final = 1.3
"""Height of a sample's picture, inches."""
ROW: Final = 0.3
"""Height of a row of a chart, and of a line of text between two of its parts, inches."""
MOST_ROWS: Final = 12
"""Most rows of a chart."""
TITLE_SIZE: Final = 13.0
TEXT_SIZE: Final = 9.5
SMALL_SIZE: Final = 8.8
LINE: Final = 1.4 * SMALL_SIZE / 72
"""Height of a line of small print, inches."""
_KEY_NAMES: Final = 9
"""Most names in a row of a key."""
_TITLE_LETTERS, _SMALL_LETTERS = 80, 144
"""Letters in a line of the title and of the notes."""
_TITLE_LINE: Final = 1.4 * TITLE_SIZE / 72

_DECADE: Final = 10.0
_LONG_S: Final = 1000.0
_BRIGHT: Final = 0.47

_RC: Final[dict[Any, Any]] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SMALL_SIZE,
    "text.usetex": False,
    "text.parse_math": False,  # names hold dollar signs
    "text.color": INK,
    "axes.formatter.use_mathtext": False,
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.grid": False,
    "axes.labelcolor": FAINT,
    "axes.labelsize": SMALL_SIZE,
    "axes.spines.right": False,
    "axes.spines.top": False,
    **{f"{axis}tick.color": INK for axis in "xy"},
    **{f"{axis}tick.labelcolor": INK for axis in "xy"},
    **{f"{axis}tick.labelsize": TEXT_SIZE for axis in "xy"},
    **{f"{axis}tick.major.size": 3.0 for axis in "xy"},
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.fontsize": TEXT_SIZE,
    "legend.frameon": False,
    "legend.labelcolor": "None",  # that of texts
    "path.simplify": True,
    "hatch.linewidth": 0.8,
}
styled: Final = mpl.rc_context(_RC)
"""Decorator of drawing functions: uses these settings instead of the user's."""


class Sheet(Figure):
    """A figure that shows itself in a notebook, sharp, opaque, and with its title as text.

    Args:
        title: the answer, one sentence.
        notes: contents and omissions, in small print; each begins a line: the first above the
            charts, the others below.
        heights: heights of the charts from top to bottom with axes and legends, inches.

    Attributes:
        parts: the axes of the charts.
    """

    @styled
    def __init__(
        self, title: str, notes: Sequence[str] = (), heights: Sequence[float] = ()
    ) -> None:
        self.title = printable(title, LONGEST_TITLE)
        self.notes = tuple(printable(note, LONGEST_NOTE) for note in notes)
        titles = wrapped(self.title, _TITLE_LETTERS)
        smalls = [wrapped(note, _SMALL_LETTERS) for note in self.notes]
        above, under = (list(chain(*part)) for part in (smalls[:1], smalls[1:]))
        below = MARGIN + _TITLE_LINE * len(titles)
        head = below + LINE * len(above) + 0.08
        charts_end = head + sum(heights)
        foot = LINE * len(under) + 0.08 * bool(under) + 0.05
        height = charts_end + foot
        super().__init__(figsize=(WIDTH, height), dpi=DOTS, facecolor=PAPER)
        FigureCanvasAgg(self)
        self.parts: list[Axes] = []
        title_look: dict[str, Any] = {"size": TITLE_SIZE, "weight": "bold"}
        lines = [(MARGIN + _TITLE_LINE * at, line, title_look) for at, line in enumerate(titles)]
        for top, small in ((below, above), (charts_end + 0.08, under)):
            look: dict[str, Any] = {"color": FAINT}
            lines += [(top + LINE * at, line, look) for at, line in enumerate(small)]
        for down, line, look in lines:
            self.text(MARGIN / WIDTH, 1 - down / height, line, va="top", **look)
        if heights:
            self.set_layout_engine(
                "constrained",
                rect=(0, foot / height, 1, 1 - (head + foot) / height),
                w_pad=MARGIN,
                h_pad=0.04,
            )
            rows: dict[str, Any] = {"height_ratios": heights, "squeeze": False}
            subfigures = self.subfigures(len(heights), 1, **rows)[:, 0]
            self.parts = [subfigure.subplots() for subfigure in subfigures]

    def png(self) -> bytes:
        """Return the picture with `SHARP` times the displayed resolution."""
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=DOTS * SHARP, facecolor=PAPER)
        return stream.getvalue()

    def png_text(self) -> str:
        """Return the picture in base64, for a page."""
        return base64.b64encode(self.png()).decode("ascii")

    @styled
    def draw(self, renderer: RendererBase) -> None:
        """Draw without warnings about letters missing from the font."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            super().draw(renderer)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        width, height = self.get_size_inches() * DOTS
        data = {
            "image/png": self.png_text(),
            "text/plain": "\n".join([self.title, *self.notes]),
        }
        return data, {"image/png": {"width": int(width), "height": int(height)}}


def wrapped(text: str, letters: int) -> list[str]:
    """Break a text into lines of similar length, without a single word on the last line.

    No line ends between a value and its unit.
    """
    tied = unbroken(text)
    lines = textwrap.wrap(tied, letters)
    if len(lines) > 1:
        tries = (textwrap.wrap(tied, width) for width in range(len(tied) // len(lines), letters))
        lines = next((candidate for candidate in tries if len(candidate) == len(lines)), lines)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


@lru_cache(maxsize=4096)  # laying a text out takes a millisecond, and pictures say much the same
def text_width(text: str, size: float = SMALL_SIZE, *, bold: bool = False) -> float:
    """Return the width of a line of text, inches."""
    weight = "bold" if bold else "normal"
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(size, 72)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def fitting(text: str, room: float, size: float = SMALL_SIZE, *, bold: bool = False) -> str:
    """Shorten a text in the middle to at most `room` inches; "" if nothing fits."""
    for letters in range(min(len(text), 180), 3, -1):
        shorter = printable(text, letters)
        if text_width(shorter, size, bold=bold) <= room:
            return shorter
    return ""


def ink_on(colour: str) -> str:
    """Return the colour of text on this background."""
    red, green, blue = to_rgb(colour)
    return INK if red * 0.299 + green * 0.587 + blue * 0.114 >= _BRIGHT else PAPER


def name_heights(ax: Axes, names: Mapping[float, str]) -> None:
    """Name heights instead of a vertical axis; without names, the axis is just left out."""
    ax.set_yticks([*names], [*names.values()])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart, from the top, at 0, 1, 2 and so on."""
    name_heights(ax, dict(enumerate(names)))
    ax.set_ylim(len(names) - 0.4, -0.6)


def write_centred(ax: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Write a text with its middle at a place."""
    ax.text(x, y, text, ha="center", **{"va": "center"} | look)


def write_beside(ax: Axes, text: str, at: Any, offset: tuple[float, float], **look: Any) -> None:
    """Write a text at an offset, in points, from a place."""
    ax.annotate(text, at, offset, textcoords="offset points", **{"va": "center"} | look)


def beside(names: Iterable[str]) -> float:
    """Return the approximate width of a chart beside the names of its rows, inches."""
    return ROOM - GAP - max(text_width(name, TEXT_SIZE) for name in names)


def write_columns(ax: Axes, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write columns of numbers at the right of the rows, under their heads."""
    head = {"xycoords": "axes fraction", "ha": "right", "va": "bottom", "color": FAINT}
    cell = {"xycoords": ("axes fraction", "data"), "ha": "right", "annotation_clip": False}
    end = 0.0
    for name, *cells in zip(heads, *rows, strict=True):
        end += GAP + max(map(text_width, (name, *cells)))
        write_beside(ax, name, (1, 1), (end * 72, 2), **head)
        for height, text in enumerate(cells):
            write_beside(ax, text, (1, height), (end * 72, 0), **cell)


def linear_time(ax: Axes, high: float, low: float = 0.0, *, vertical: bool = False) -> None:
    """Make an axis of seconds from `low` to `high`."""
    (ax.set_ylim if vertical else ax.set_xlim)(low, high if high > low else low + 1e-3)
    axis = ax.yaxis if vertical else ax.xaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    # nobody counts in kiloseconds
    axis.set_major_formatter(EngFormatter("s") if high < _LONG_S else "{x:g} s")


def spans_decades(low: float, high: float) -> bool:
    """Return whether values between two ends need a logarithmic axis."""
    return low > 0 and high / low > _DECADE


def time_axis(ax: Axes, low: float, high: float, *, vertical: bool = False) -> None:
    """Make an axis of seconds: logarithmic over more than a decade, else from 0."""
    linear_time(ax, high * 1.06, vertical=vertical)
    if not spans_decades(low, high):
        return
    axis = ax.yaxis if vertical else ax.xaxis
    formatter = axis.get_major_formatter()
    (ax.set_yscale if vertical else ax.set_xscale)("log")
    (ax.set_ylim if vertical else ax.set_xlim)(low / 1.25, high * 1.25)
    few = not spans_decades(low, high / _DECADE)  # so that labels at 2 and 5 have room
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(formatter)


def value_axis(ax: Axes, low: float, high: float, label: Callable[[float], str]) -> None:
    """Make a linear horizontal axis with a faint line at each of a few round values.

    The function that formats a value must be picklable, like the sheet.
    """
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(partial(_labelled, label))
    ax.grid(axis="x")


def _labelled(label: Callable[[float], str], value: float, _: int | None) -> str:
    return label(value)


def draw_key(ax: Axes, looks: Mapping[str, str | dict[str, Any]]) -> None:
    """Name the colours over a chart, in rows; a look is a colour or the properties of a patch."""
    patches = [
        Patch(label=name, **({"facecolor": look, "lw": 0} if isinstance(look, str) else look))
        for name, look in looks.items()
    ]
    ax.legend(
        handles=[patch for at in range(_KEY_NAMES) for patch in patches[at::_KEY_NAMES]],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=min(len(patches), _KEY_NAMES),
        borderaxespad=0.0,
        handlelength=0.8,
        handleheight=0.8,
        handletextpad=0.5,
        columnspacing=1.7,
    )


def key_height(names: Collection[str]) -> float:
    """Return the height of all rows of a key except the first, inches."""
    return ROW * ((len(names) - 1) // _KEY_NAMES)


def draw_interval(  # noqa: PLR0913 - an errorbar
    ax: Axes,
    x: float,
    y: float,
    ends: tuple[float | None, float | None],
    *,
    cap: float = 3.0,
    vertical: bool = False,
) -> None:
    """Draw a line between the ends of an interval; nothing if an end is unknown."""
    low, high = ends
    if low is None or high is None:
        return
    middle = y if vertical else x
    reach = [[max(middle - low, 0.0)], [max(high - middle, 0.0)]]
    errors: dict[str, Any] = {"yerr" if vertical else "xerr": reach}
    look: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.4, "capthick": 1.4, "fmt": "none"}
    ax.errorbar([x], [y], capsize=cap, zorder=3, **errors, **look)
