"""What the loop stalls for: its time as a bar, and below it the stall taken apart.

Each part begins where the one before it ends, so that the eye sees them add up to the stall. Beside
each stage stands its share of the workers' own time: a stage may keep the workers busy and cost
the loop nothing, because prefetching hides it.

A panel shows the same of a single stall: the timeline around it, with an arrow from the batch that
was waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle

from stallscope.charts import timeline
from stallscope.charts.bars import Strip, StripPiece
from stallscope.charts.sheet import (
    AXIS,
    FAINT,
    PAPER,
    ROOM,
    RULE,
    Sheet,
    linear_time,
    name_rows,
    styled,
    write_columns,
)
from stallscope.model.loop_time import NOTHING, OWN_WORDS, is_own, loop_breakdown
from stallscope.model.thresholds import STALL_RULE
from stallscope.run.stall_text import nothing, rows_of, small_print
from stallscope.run.stall_text import title as stall_text_title
from stallscope.run.timeline import around
from stallscope.stages import COLOURS, FETCH, STALL_COLOUR, colour_of
from stallscope.units import count, printable, seconds, share, worker_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.model.loop_time import LoopBreakdown
    from stallscope.run.result import Run
    from stallscope.run.stall_text import StallRow


MOST_ROWS: Final = 10
UNATTRIBUTED: Final[dict[str, Any]] = {
    "facecolor": PAPER,
    "edgecolor": STALL_COLOUR,
    "hatch": "////",
    "linewidth": 0.8,
}
"""How the part looks that nothing explains."""
_WAITS: Final = {"stall": STALL_COLOUR, "wait": "#F3C6A5"}
"""Waits that are too short to be stalls are a pale stall."""
_CAPTION: Final = 0.25
"""Height over the loop's bar, inches, for the line that says what it is."""
_OPENING: Final = 0.35
"""Height under it, inches, for the lines from the stall to its parts."""
_COLUMNS: Final = {"of stalls": 0.75, "per step": 1.5, "busy share": 2.35}
"""Where each column ends at the right, inches from the bars."""


class LoopBar:
    """The training loop's time as a bar: stalls, copying, using batches, and the rest."""

    def __init__(self, time: LoopBreakdown) -> None:
        self._time = time
        pieces = []
        for raw, kind, sum_s in time.pieces(NOTHING):
            part, name = time.share(sum_s), printable(raw)
            numbers = f"{share(part)} · {seconds(sum_s / time.steps)}"
            colour = _WAITS.get(kind) or colour_of(raw, kind)
            pieces.append(StripPiece(name, part, numbers, colour, f"{name} {numbers}"))
        self._strip = Strip(pieces, ROOM)
        self.height = self._strip.height + _CAPTION + 0.08
        """On a sheet, inches."""

    def draw(self, ax: Axes) -> None:
        """Draw it; the axis is the share of the loop's time."""
        time, top = self._time, self._strip.height
        self._strip.fill(ax)
        ax.set_axis_off()
        ax.set_xlim(0, self._strip.total)
        ax.set_ylim(0, top + _CAPTION)
        caption = f"the loop's time: {seconds(time.total_s / time.steps)} per step, mean"
        ax.text(0, top + 0.04, caption, color=FAINT, va="bottom")


@styled
def figure(run: Run) -> Sheet:
    """The loop's time and the stall's parts as a picture."""
    time = loop_breakdown(run.steps(), run.stalls(), run.side_spans)
    if time is None:
        return Sheet(stall_text_title(run), nothing(run))
    rows, bar = rows_of(run, time, MOST_ROWS), LoopBar(time)
    heights = [bar.height]
    if rows:
        heights = [bar.height + _OPENING, 0.3 * (len(rows) + 1) + AXIS]
    made = Sheet(stall_text_title(run), _notes(run, time, rows), heights)
    bar.draw(made.parts[0])
    if rows:
        _open(made.parts[0], time.stall_share)
        _draw(made.parts[1], rows)
    return made


def _notes(run: Run, time: LoopBreakdown, rows: list[StallRow]) -> list[str]:
    ranks = f" of {time.ranks} ranks together" if time.ranks > 1 else ""
    stalls = f"{count(time.stalls, 'stall')} ({STALL_RULE})"
    lines = [f"{count(time.steps, 'step')}{ranks}, {stalls}"]
    hidden = run.all_steps.height - time.steps
    if hidden:
        lines[0] += f" · left out: {count(hidden, 'step')} (start-up, warm-up)"
    if any(row.busy is not None for row in rows):
        whose = "the workers' own" if run.settings.num_workers else "loading"
        lines.append(f"busy share: of {whose} time; it is hidden where the loop does not wait")
    return [*lines, *small_print(run)]


def _open(ax: Axes, stall: float) -> None:
    """Open the stall in the bar to the width of the sheet: all that is below is the same time."""
    ax.set_ylim(-_OPENING, ax.get_ylim()[1])
    end = ax.get_xlim()[1]
    xs, ys = [0, 0, end, stall], [0, -_OPENING, -_OPENING, 0]
    ax.plot(xs, ys, color=STALL_COLOUR, linewidth=0.9, clip_on=False)


def _draw(ax: Axes, rows: list[StallRow]) -> None:
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
    write_columns(ax, _COLUMNS, [row.cells for row in rows])
    ax.set_xlabel("the stalls per step, mean · each part begins where the one before it ends")


def picture(run: Run, stall: dict[str, Any]) -> Sheet:
    """The workers and the loop around a stall.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.
    """
    found, step = around(run, stall["rank"], stall["step"]), stall["step"]
    awaited = found.stalls.filter(pl.col("step") == step).row(0, named=True)
    title = _stall_title(run, awaited, stall)
    return timeline.picture(run, found, title, where="around the stall", step=step)


def parts_of(run: Run, stall: dict[str, Any]) -> pl.DataFrame:
    """What a stall consists of, the longest part first.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.

    Returns:
        Columns of `model.attribution.PARTS`, and `share` (0 to 1) of the stall.
    """
    its = (pl.col("rank") == stall["rank"]) & (pl.col("step") == stall["step"])
    found = run.parts().filter(its).sort("exposed_s", descending=True, maintain_order=True)
    return found.with_columns(share=pl.col("exposed_s") / stall["stall_s"])


def _stall_title(run: Run, awaited: dict[str, Any], stall: dict[str, Any]) -> str:
    """How long which step waits for which batch, and mostly why."""
    maker = awaited["worker"]
    whose = "that the main process makes" if maker is None else f"of {worker_name(maker)}"
    waits = f"Step {stall['step']} waits {seconds(stall['stall_s'])}"
    told = f"{waits} for batch {awaited['batch']} {whose}"
    parts = parts_of(run, stall)
    if parts.is_empty():
        return told
    longest = parts.row(0, named=True)
    name, own = longest["part"], is_own(longest["part"], longest["kind"])
    if own:
        word = OWN_WORDS.get(name, name)
    else:
        word = "reading" if name == FETCH.name else printable(name)
    return f"{told}; {share(longest['share'])} of that is {word}"
