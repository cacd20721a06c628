"""What the loop stood still for: its time as a bar, and below it the stall taken apart.

Each part begins where the one before it ends, so that the eye sees them add up to the stall. Beside
each stage stands its share of the workers' own time: a stage may keep the workers busy and cost
the loop nothing, because prefetching hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from stallscope.analyze.looptime import loop_time
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count
from stallscope.views.charts import loopbar
from stallscope.views.charts.axes import linear_time
from stallscope.views.charts.captions import nothing
from stallscope.views.charts.style import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    RULE,
    TEXT_SIZE,
    WIDTH,
    Part,
    name_rows,
    sheet,
    styled,
    text_width,
    write_right,
)
from stallscope.views.loop import rows_of, small_print, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.looptime import LoopTime
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet
    from stallscope.views.loop import Row

MOST_ROWS: Final = 10
UNATTRIBUTED: Final[dict[str, Any]] = {
    "facecolor": PAPER,
    "edgecolor": STALL_COLOUR,
    "hatch": "////",
    "linewidth": 0.8,
}
"""How the part looks that nothing explains."""
_OPENING: Final = 0.75
"""Free space between the loop's bar and the stall's parts, inches."""
_ROW: Final = 0.3
_COLUMNS: Final = (("of stalls", 0.75), ("a step", 1.45), ("busy", 2.0))
"""Names of the columns at the right, and where each ends, in inches from the bars."""


def figure(run: Run) -> Sheet:
    """The loop's time and the stall's parts as a picture."""
    time = loop_time(run.steps(), run.stalls())
    if time is None:
        return sheet(title(run), nothing(run), [])[0]
    rows = rows_of(run, time, MOST_ROWS)
    parts = [loopbar.part(time), *([_stall_part(rows)] if rows else [])]
    made, axes = sheet(title(run), _notes(run, time, rows), parts)
    with styled():
        loopbar.draw(axes[0], time)
        if rows:
            draw(axes[1], rows)
            _open(made, time, parts)
    return made


def _notes(run: Run, time: LoopTime, rows: list[Row]) -> list[str]:
    ranks = f" of {time.ranks} ranks together" if time.ranks > 1 else ""
    stalls = f"{count(time.stalls, 'stall')} (waits over 1 ms and over 1% of the median step)"
    lines = [f"{count(time.steps, 'step')}{ranks}, {stalls}"]
    hidden = run.all_steps.height - time.steps
    if hidden:
        lines[0] += f" · left out: {count(hidden, 'step')} (start-up, warm-up)"
    if any(row.busy is not None for row in rows):
        whose = "the workers' own" if run.settings.num_workers else "loading"
        lines.append(
            f"busy: the stage's share of {whose} time, which is hidden where the loop does not wait"
        )
    return [*lines, *small_print(run)]


def _stall_part(rows: list[Row]) -> Part:
    widest = max(text_width(row.name, TEXT_SIZE) for row in rows)
    axis = "the stalls, a step on average · each part begins where the one before it ends"
    height = _ROW * (len(rows) + 0.2)
    return Part(height, above=_OPENING, axis=axis, left=widest + 0.1, right=_COLUMNS[-1][1] + 0.1)


def draw(ax: Axes, rows: list[Row]) -> Axes:
    """Draw the parts below each other, and the columns of numbers."""
    linear_time(ax, sum(row.exposed_s for row in rows))
    name_rows(ax, [row.name for row in rows])
    start = 0.0
    for height, row in enumerate(rows):
        look = {"color": COLOURS[row.kind], "lw": 0} if row.kind else UNATTRIBUTED
        ax.add_patch(Rectangle((start, height - 0.36), row.exposed_s, 0.72, **look))
        start += row.exposed_s
        if height + 1 < len(rows):
            ax.plot([start, start], [height - 0.36, height + 1.36], color=RULE, lw=0.8, zorder=0)
        _write_numbers(ax, row, height)
    for text, end in _COLUMNS:
        write_right(ax, end, -0.95, text, FAINT)
    return ax


def _write_numbers(ax: Axes, row: Row, height: int) -> None:
    for text, (_, end) in zip(row.cells, _COLUMNS, strict=True):
        write_right(ax, end, height, text, INK)


def _open(made: Sheet, time: LoopTime, parts: list[Part]) -> None:
    """Two lines from the stall in the bar to the ends of its parts: they are the same time."""
    loop, stall = parts
    high = made.get_figheight()
    bottom = 0.05 + stall.below + stall.height
    top = bottom + stall.above + loop.below
    ends = (
        (MARGIN + loop.left, MARGIN + stall.left),
        (
            MARGIN + loop.left + loop.width * time.stall_share,
            MARGIN + stall.left + stall.width,
        ),
    )
    for above, below in ends:
        line = Line2D(
            [above / WIDTH, below / WIDTH],
            [top / high, bottom / high],
            color=STALL_COLOUR,
            linewidth=0.9,
        )
        made.add_artist(line)
