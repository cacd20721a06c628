"""Where things stand in a timeline: the lanes, the loop below them, and the names of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle

from stallscope.stages import OTHER
from stallscope.views.charts.labels import place
from stallscope.views.charts.style import SMALL_SIZE, text_width
from stallscope.views.names import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.timeline import Timeline
    from stallscope.views.charts.labels import Placed

MOST_ARROWS: Final = 12
"""To so many stalls, the longest first, an arrow leads."""
LONG: Final = 0.3
"""A stall that takes less of the longest one in the window has no arrow."""
GAP: Final = 0.55
"""Between the workers and the loop, in lanes."""
LOOP_HALF: Final = 0.5
"""Of the loop's boxes, in lanes."""
BELOW: Final = 0.95
"""From the middle of the loop to what is below its steps' numbers, in lanes."""
NAME_ROW: Final = 0.5
"""Height of a row of names below that, in lanes."""
_NAME_ROWS: Final = 3
_SEEN: Final = 0.02
"""What is narrower than so many inches is no more than a hair, and has no name."""
_MARGIN: Final = 0.08
_APART: Final = 0.06
"""Between a text and the ends of its part, and between two names, inches."""


@dataclass(frozen=True)
class Called:
    """The name of a part of the loop that is too narrow for it, below a line that leads to it."""

    name: str
    placed: Placed
    """In seconds from the window's begin."""


@dataclass(frozen=True)
class Layout:
    """Where things stand."""

    lanes: dict[int | None, int]
    """Row of each worker that is shown."""
    inch: float
    """Seconds in an inch of the axis."""
    long: list[dict[str, Any]]
    """The stalls to which an arrow leads; rows of `Timeline.stalls`."""
    called: tuple[Called, ...] = ()

    @property
    def loop(self) -> float:
        """Row of the training loop."""
        return len(self.lanes) + GAP

    @property
    def bottom(self) -> float:
        """Where everything ends, in lanes."""
        rows = max((one.placed.row + 1 for one in self.called), default=0)
        return self.loop + BELOW + NAME_ROW * rows

    @property
    def arrows(self) -> list[dict[str, Any]]:
        """The stalls whose worker is shown, so that an arrow can lead to them."""
        return [stall for stall in self.long if stall["worker"] in self.lanes]

    def awaits(self, place: dict[str, Any]) -> bool:
        """Whether what has these values (of the batch, or of the step) is of a long stall."""
        return any(place.items() <= stall.items() for stall in self.long)


def long_stalls(found: Timeline) -> list[dict[str, Any]]:
    """The stalls to which an arrow leads, the longest first."""
    matters = pl.col("stall_s") >= LONG * pl.col("stall_s").max()
    long = found.stalls.filter(matters, pl.col("left_s") >= 0)
    return long.sort("stall_s", descending=True).head(MOST_ARROWS).to_dicts()


def called(found: Timeline, inch: float) -> tuple[Called, ...]:
    """The names that fit into none of their parts: each once, at the widest of them.

    Args:
        found: what is shown.
        inch: seconds in an inch of the axis.
    """
    widest: dict[str, tuple[float, float]] = {}
    for use in found.uses.filter(kind="other").iter_rows(named=True):
        span = seen(found, (use["start_s"], use["end_s"]))
        known = widest.setdefault(use["stage"], span)
        if span[1] - span[0] > known[1] - known[0]:
            widest[use["stage"]] = span
    narrow = [
        (shown(stage), span)
        for stage, span in widest.items()
        if stage != OTHER.name
        and _SEEN * inch <= span[1] - span[0]
        and not fits(shown(stage), span, inch)
    ]
    narrow.sort(key=lambda each: each[1][0] - each[1][1])
    wanted = [(sum(span) / 2, text_width(name, SMALL_SIZE) * inch) for name, span in narrow]
    places = place(wanted, (0.0, found.length_s), rows=_NAME_ROWS, gap=_APART * inch)
    return tuple(
        Called(name, placed)
        for (name, _), placed in zip(narrow, places, strict=True)
        if placed is not None
    )


def seen(found: Timeline, span: tuple[float, float]) -> tuple[float, float]:
    """What is inside of the window of a piece of time."""
    return max(span[0], 0.0), min(span[1], found.length_s)


def fits(text: str, span: tuple[float, float], inch: float) -> bool:
    """Whether a text has room in a piece of time."""
    return (text_width(text, SMALL_SIZE, bold=True) + _MARGIN) * inch <= span[1] - span[0]


def box(ax: Axes, span: tuple[float, float], row: float, half: float, **look: Any) -> None:
    """Draw a piece of time in a row."""
    start, end = span
    # The limits are known; `add_patch` would work them out from every box
    ax.add_artist(Rectangle((start, row - half), end - start, 2 * half, **look))
