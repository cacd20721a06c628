"""The best orders: what a sample costs in each, part by part, and what was measured.

A row is a pipeline: its name and what is to be said of it, its bar, a line with the measured
interval under the bar, and the ops in their order. The pipeline as it is always stands among them.
One unit of the vertical axis is one inch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    SheetPart,
    draw_interval,
    draw_key,
    linear_time,
    sheet,
    styled,
    text_width,
)
from stallscope.orders.result import CLOSE, IDENTICAL, NOT_DISTINGUISHED, parts_of
from stallscope.orders.text import TITLE, factor_text, notes_of, sentence
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stats import INTERVAL
from stallscope.units import printable, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import CostPart, Orders


AXIS: Final = "seconds of one worker per sample"
KEY: Final = f"bar: predicted, part by part · line under it: measured, with its {INTERVAL}"
_UNSPLIT: Final = "#C9CED2"
_LEFT: Final = 0.05
_RIGHT: Final = 0.35
ROOM: Final = WIDTH - 2 * MARGIN - _LEFT - _RIGHT
"""Length of the longest bar, inches."""
_NAME: Final = 0.22
_BAR: Final = 0.34
_LINE: Final = 0.15
_ORDER: Final = 0.22
_GAP: Final = 0.2
_KEY: Final = 0.34
_TOP: Final = 0.1
_BETWEEN: Final = 0.3
MOST: Final = 6
_USABLE: Final = (IDENTICAL, CLOSE, NOT_DISTINGUISHED)
_DARK: Final = ("fetch",)
_LONGEST_NAME: Final = 90
_LABELS: Final = {
    "fetch": "dataset (reading, and all else that it does itself)",
    "decode": "decode",
    "transform": "ops",
    "collate": "collate and send",
}


@dataclass(frozen=True)
class PipelineRow:
    """One pipeline."""

    name: str
    """What it changes."""
    said: str = ""
    """Stands at the right of the name: whether the data is the same, and how fast it is."""
    parts: tuple[CostPart, ...] = ()
    """Of its predicted time; none where that is known as a whole only."""
    predicted_s: float | None = None
    """Per sample; None where it fails."""
    measured_s: tuple[float, float | None, float | None] | None = None
    """Per sample, with the ends of the interval."""
    order: str = ""
    """Its ops in their order; small, under the bar."""
    failed: str = ""
    """The op that raises, if one does."""
    strong: bool = False
    """Whether the name is bold."""

    @property
    def height(self) -> float:
        """Inches, without the gap to the next one."""
        return _NAME + _BAR + _LINE * bool(self.measured_s) + _ORDER * bool(self.order)

    @property
    def longest_s(self) -> float:
        """How far it reaches to the right, seconds."""
        ends = [one for one in self.measured_s or () if one is not None]
        return max([sum(part.seconds for part in self.parts), self.predicted_s or 0.0, *ends])


def part(rows: Sequence[PipelineRow]) -> SheetPart:
    """How much of a sheet the rows need."""
    height = _TOP + sum(row.height + _GAP for row in rows)
    return SheetPart(height, above=_KEY, axis=AXIS, left=_LEFT, right=_RIGHT)


def draw(ax: Axes, rows: Sequence[PipelineRow]) -> Axes:
    """Draw the rows on an `ax` that is as `part` says."""
    height = part(rows).height
    linear_time(ax, 1.01 * max((row.longest_s for row in rows), default=0.0) or 1e-3)
    ax.set_ylim(height, 0)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    inch, top = ax.get_xlim()[1] / ROOM, _TOP
    for row in rows:
        _draw_row(ax, row, top, inch)
        top += row.height + _GAP
    draw_key(ax, _entries(rows))
    return ax


def _entries(rows: Sequence[PipelineRow]) -> dict[str, str]:
    """The colours that are there, in the order of a sample's way."""
    kinds = {part.kind for row in rows for part in row.parts}
    found = {label: COLOURS[kind] for kind, label in _LABELS.items() if kind in kinds}
    if any(row.predicted_s and not row.parts for row in rows):
        found["not told apart"] = _UNSPLIT
    return found


def _draw_row(ax: Axes, row: PipelineRow, top: float, inch: float) -> None:
    _head(ax, row, top, inch)
    top += _NAME
    start = 0.0
    for one in row.parts:
        _piece(ax, one, (start, top), inch)
        start += one.seconds
    if row.predicted_s and not row.parts:
        ax.add_patch(Rectangle((0, top), row.predicted_s, _BAR, facecolor=_UNSPLIT, linewidth=0))
    if row.failed:
        said = f"{printable(row.failed, 40)} fails here"
        ax.text(
            start + 0.08 * inch,
            top + _BAR / 2,
            said,
            size=SMALL_SIZE,
            va="center",
            weight="bold",
            color=STALL_COLOUR,
        )
    top += _BAR
    if row.measured_s:
        _measured(ax, row.measured_s, top + _LINE / 2 + 0.02)
        top += _LINE
    if row.order:
        order = fitting(row.order, ROOM, size=SMALL_SIZE)
        ax.text(0, top + 0.07, order, size=SMALL_SIZE, va="top", color=FAINT)


def _head(ax: Axes, row: PipelineRow, top: float, inch: float) -> None:
    """The name at the left, what is said of it at the right; the name gives way."""
    look: dict[str, Any] = {"size": TEXT_SIZE, "va": "top", "color": INK}
    room = ROOM - _BETWEEN - (text_width(row.said, TEXT_SIZE) if row.said else 0.0)
    name = fitting(row.name, room, bold=row.strong)
    ax.text(0, top, name, weight="bold" if row.strong else "normal", **look)
    ax.text(ROOM * inch, top, row.said, ha="right", **look)


def fitting(text: str, room: float, *, size: float = TEXT_SIZE, bold: bool = False) -> str:
    """The text, shortened in the middle until it is no wider than `room` inches."""
    longest = min(len(text), 2 * _LONGEST_NAME)
    while longest > 8 and text_width(printable(text, longest), size, bold=bold) > room:  # noqa: PLR2004
        longest -= 2
    return printable(text, longest)


def _piece(ax: Axes, one: CostPart, at: tuple[float, float], inch: float) -> None:
    start, top = at
    ax.add_patch(Rectangle(at, one.seconds, _BAR, facecolor=COLOURS[one.kind], linewidth=0))
    ax.plot([start, start], [top, top + _BAR], color=PAPER, linewidth=1.2, solid_capstyle="butt")
    room = one.seconds / inch - 0.08
    name = "dataset" if one.kind == "fetch" else printable(one.name, 30)
    took = seconds(one.seconds)
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "size": SMALL_SIZE - 0.6}
    look["color"] = PAPER if one.kind in _DARK else INK
    middle = start + one.seconds / 2
    lines = [name, took] if text_width(took, SMALL_SIZE - 0.6) <= room else [name]
    if text_width(name, SMALL_SIZE - 0.6) <= room:
        for place, line in enumerate(lines):
            down = top + _BAR / 2 + 0.15 * (place - (len(lines) - 1) / 2)
            ax.text(middle, down, line, **look)


def _measured(ax: Axes, measured: tuple[float, float | None, float | None], down: float) -> None:
    middle, *ends = measured
    draw_interval(ax, (middle, down), (ends[0], ends[1]))
    ax.plot([middle], [down], "o", ms=4, color=PAPER, mec=INK, mew=1.0, zorder=4)


def figure(orders: Orders) -> Sheet:
    """The best orders as a picture."""
    rows = [row_of(orders, row) for row in chosen(orders)]
    title = printable(sentence(orders), TITLE)
    if not rows:
        return sheet(title, notes_of(orders), [])[0]
    made, (ax,) = sheet(title, [KEY, *notes_of(orders)], [part(rows)])
    with styled():
        draw(ax, rows)
    return made


def chosen(orders: Orders) -> list[dict[str, Any]]:
    """Rows of the table whose data can be used, the best first; the original among them."""
    rows = [row for row in orders.table().to_dicts() if row["equivalence"] in _USABLE]
    others = [row for row in rows if row["trial"] != 0]
    # what is worth a look: what is faster, or was measured at all, before what is merely the same
    others.sort(key=lambda row: (not row["recommended"], row["speedup"] is None, -_factor(row)))
    kept = {row["trial"] for row in others[: MOST - 1]} | {0}
    return [row for row in rows if row["trial"] in kept]


def _factor(row: Mapping[str, Any]) -> float:
    factor = row["speedup"] if row["speedup"] is not None else row["predicted_speedup"]
    return float(factor or 0.0)


def row_of(orders: Orders, row: dict[str, Any]) -> PipelineRow:
    """A row of the table as a row of the picture."""
    measured = None
    if row["measured_s"] is not None:
        measured = (row["measured_s"], row["measured_low_s"], row["measured_high_s"])
    return PipelineRow(
        name=printable(row["change"] if row["trial"] else "as it is", 150),
        said=said(row),
        parts=parts_of(orders, row["trial"]),
        predicted_s=row["predicted_s"],
        measured_s=measured,
        order=printable(row["order"], 160) if row["kind"] == "order" else "",
        strong=bool(row["recommended"]),
    )


def said(row: Mapping[str, Any]) -> str:
    """What stands at the right of a name: the data, and how many times as fast."""
    if row["trial"] == 0:
        return "the original"
    return f"{row['equivalence']} · {speed(row)}"


def speed(row: Mapping[str, Any]) -> str:
    """How many times as fast, measured where it was measured."""
    if row["speedup"] is None:
        factor = row["predicted_speedup"]
        return "—" if factor is None else f"{factor_text(factor)} predicted"
    low, high = row["speedup_low"], row["speedup_high"]
    ends = ", measured once" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{factor_text(row['speedup'])}{ends}"
