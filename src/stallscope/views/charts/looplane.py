"""The loop's lane of a timeline: what it does when, what that is called, and its steps' numbers.

A part that is too narrow for its name has it below, once, at the end of a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.patheffects import withStroke

from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import seconds
from stallscope.views.charts.style import FAINT, INK, PAPER, SMALL_SIZE, text_width
from stallscope.views.charts.timelayout import BELOW, LOOP_HALF, NAME_ROW, box, fits, seen
from stallscope.views.names import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.timeline import Timeline
    from stallscope.views.charts.timelayout import Layout

    Span = tuple[float, float]

HALO: Final = withStroke(linewidth=3.0, foreground=PAPER)
"""A line that leads to a name may pass under a text."""


def draw(ax: Axes, found: Timeline, layout: Layout) -> None:
    """Draw the loop's lane, and what is written below it."""
    for use in found.uses.iter_rows(named=True):
        span, colour = (use["start_s"], use["end_s"]), COLOURS[use["kind"]]
        box(ax, span, layout.loop, LOOP_HALF, color=colour, lw=0)
        if use["kind"] == "other":
            _write_if_room(ax, seen(found, span), shown(use["stage"]), layout, INK)
    row = (layout.loop - LOOP_HALF, layout.loop + LOOP_HALF)
    for begin in found.begins_s:
        ax.plot([begin] * 2, row, color=PAPER, linewidth=0.8, solid_capstyle="butt")
    for stall in found.stalls.iter_rows(named=True):
        span = (stall["start_s"], stall["end_s"])
        box(ax, span, layout.loop, LOOP_HALF, color=STALL_COLOUR, lw=0)
        _write_if_room(ax, seen(found, span), seconds(stall["stall_s"]), layout, PAPER)
    _number_steps(ax, found, layout)
    _call(ax, layout)


def _write_if_room(ax: Axes, span: Span, text: str, layout: Layout, colour: str) -> None:
    if fits(text, span, layout.inch):
        look: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold"}
        ax.text(sum(span) / 2, layout.loop, text, size=SMALL_SIZE, color=colour, **look)


def _number_steps(ax: Axes, found: Timeline, layout: Layout) -> None:
    """Under the loop, at the begin of each use; those that were waited for go first."""
    steps = found.window.steps.select("step", "batch", *found.window.since("end_ns")).rows()
    begins = [(batch, begin, layout.awaits({"step": step})) for step, batch, begin in steps]
    taken: list[Span] = []
    lines = [(one.placed.at, one.placed.at) for one in layout.called]
    for batch, begin, marked in sorted(begins, key=lambda each: not each[2]):
        text = str(batch)
        half = (text_width(text, SMALL_SIZE, bold=True) / 2 + 0.05) * layout.inch
        middle = min(max(begin + half, half), found.length_s - half)
        others = taken if marked else [*taken, *lines]
        if all(middle + half <= left or right <= middle - half for left, right in others):
            taken.append((middle - half, middle + half))
            look: dict[str, Any] = {"ha": "center", "va": "center", "size": SMALL_SIZE}
            look |= {"color": FAINT, "weight": "normal"}
            if marked:
                look |= {"color": STALL_COLOUR, "weight": "bold", "path_effects": [HALO]}
            ax.text(middle, layout.loop + 0.76, text, **look)


def _call(ax: Axes, layout: Layout) -> None:
    """The names that have no room in the lane, each with a line to what it names."""
    for one in layout.called:
        down = layout.loop + BELOW + NAME_ROW * one.placed.row
        line = (layout.loop + LOOP_HALF, down + NAME_ROW * 0.8)
        ax.plot([one.placed.at] * 2, line, color=FAINT, linewidth=0.7, zorder=0.5)
        look: dict[str, Any] = {"va": "center", "size": SMALL_SIZE, "color": INK}
        ax.text(one.placed.left, down + NAME_ROW / 2, one.name, path_effects=[HALO], **look)
