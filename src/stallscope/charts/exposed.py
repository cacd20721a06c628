"""What the loop stalls for: its time as a bar, and below it the stall taken apart.

Each part begins where the one before it ends, so that the eye sees them add up to the stall. Beside
each stage stands its share of the workers' own time: a stage may keep the workers busy and cost
the loop nothing, because prefetching hides it.

A panel shows the same of a single stall: the timeline around it, with an arrow from the batch that
was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    FAINT,
    INK,
    MARGIN,
    PAPER,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    SheetPart,
    linear_time,
    name_rows,
    sheet,
    styled,
    text_width,
    write_right,
)
from stallscope.charts.strip import Strip, StripPiece
from stallscope.charts.timeline import drawn, layout_of, small_notes
from stallscope.run.stall_text import nothing, rows_of, small_print
from stallscope.run.stall_text import title as stall_text_title
from stallscope.run.timeline import around
from stallscope.stages import COLOURS, FETCH, STALL_COLOUR
from stallscope.stalls.loop_time import OWN_WORDS, is_own, loop_breakdown
from stallscope.stalls.thresholds import STALL_RULE
from stallscope.units import count, printable, seconds, share, worker_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.charts.timeline import Layout
    from stallscope.run.result import Run
    from stallscope.run.stall_text import StallRow
    from stallscope.run.timeline import Timeline
    from stallscope.stalls.loop_time import LoopBreakdown


_COLOURS: Final = COLOURS | {"stall": STALL_COLOUR, "wait": "#F3C6A5"}
"""Waits that are too short to be stalls are a pale stall."""
_CAPTION: Final = 0.32
"""Free space over the bar, inches, for the line that says what it is."""
_RIGHT: Final = 0.1


@dataclass(frozen=True)
class LoopBar:
    """The training loop's time as a bar: stalls, copying, using batches, and the rest."""

    time: LoopBreakdown

    @cached_property
    def strip(self) -> Strip:
        """Its pieces, in the order of a step."""
        time = self.time
        pieces = []
        for name, kind, sum_s in time.pieces():
            numbers = f"{share(time.share(sum_s))} · {seconds(sum_s / time.steps)}"
            pieces.append(
                StripPiece(
                    name,
                    time.share(sum_s),
                    numbers,
                    _COLOURS[kind],
                    dark=kind in ("stall", "step"),
                    outside=f"{name} {numbers}",
                    first=kind == "stall",
                )
            )
        return Strip(pieces, SheetPart(0.0, left=0.0, right=_RIGHT).width, _RIGHT)

    @property
    def part(self) -> SheetPart:
        """How much of a sheet it needs."""
        return SheetPart(self.strip.height, above=_CAPTION, left=0.0, right=_RIGHT)

    def draw(self, ax: Axes) -> None:
        """Draw it; the axis is the share of the loop's time."""
        ax.set_axis_off()
        ax.set_xlim(0, self.strip.total)
        self.strip.fill(ax)
        caption = f"the loop's time: {seconds(self.time.total_s / self.time.steps)} per step, mean"
        top = self.strip.height + 0.06
        ax.text(0, top, caption, size=SMALL_SIZE, color=FAINT, va="bottom")


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
_COLUMNS: Final = (("of stalls", 0.75), ("per step", 1.5), ("busy share", 2.35))
"""Names of the columns at the right, and where each ends, in inches from the bars."""


def figure(run: Run) -> Sheet:
    """The loop's time and the stall's parts as a picture."""
    time = loop_breakdown(run.steps(), run.stalls())
    if time is None:
        return sheet(stall_text_title(run), nothing(run), [])[0]
    rows = rows_of(run, time, MOST_ROWS)
    bar = LoopBar(time)
    parts = [bar.part, *([_stall_part(rows)] if rows else [])]
    made, axes = sheet(stall_text_title(run), _notes(run, time, rows), parts)
    with styled():
        bar.draw(axes[0])
        if rows:
            draw(axes[1], rows)
            _open(made, time, parts)
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


def _stall_part(rows: list[StallRow]) -> SheetPart:
    widest = max(text_width(row.name, TEXT_SIZE) for row in rows)
    axis = "the stalls per step, mean · each part begins where the one before it ends"
    height = _ROW * (len(rows) + 0.2)
    return SheetPart(
        height, above=_OPENING, axis=axis, left=widest + 0.1, right=_COLUMNS[-1][1] + 0.1
    )


def draw(ax: Axes, rows: list[StallRow]) -> Axes:
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


def _write_numbers(ax: Axes, row: StallRow, height: int) -> None:
    for text, (_, end) in zip(row.cells, _COLUMNS, strict=True):
        write_right(ax, end, height, text, INK)


def _open(made: Sheet, time: LoopBreakdown, parts: list[SheetPart]) -> None:
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


def picture(run: Run, stall: dict[str, Any]) -> Sheet:
    """The workers and the loop around a stall.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.
    """
    found = around(run, stall["rank"], stall["step"])
    chosen = replace(found, stalls=found.stalls.filter(pl.col("step") == stall["step"]))
    room = layout_of(chosen)
    return drawn(found, room, title(run, chosen, stall), _stall_notes(run, found, room[1]))


def parts_of(run: Run, stall: dict[str, Any]) -> pl.DataFrame:
    """What a stall consists of, the longest part first.

    Args:
        run: what was measured.
        stall: a row of `Run.stalls`.

    Returns:
        Columns of `stalls.attribution.PARTS`, and `share` (0 to 1) of the stall.
    """
    its = (pl.col("rank") == stall["rank"]) & (pl.col("step") == stall["step"])
    found = run.parts().filter(its).sort("exposed_s", descending=True, maintain_order=True)
    return found.with_columns(share=pl.col("exposed_s") / stall["stall_s"])


def was_recorded(run: Run, stall: dict[str, Any]) -> bool:
    """Whether the stages of the stall's own batch are known; else they are those of the others."""
    same = [pl.col(name) == stall[name] for name in ("rank", "epoch", "batch")]
    return not run.batches.filter(*same).is_empty()


def title(run: Run, chosen: Timeline, stall: dict[str, Any]) -> str:
    """How long which step waits for which batch, and mostly why."""
    awaited = chosen.stalls.row(0, named=True)
    maker = awaited["worker"]
    whose = "that the main process makes" if maker is None else f"of {worker_name(maker)}"
    waits = f"Step {stall['step']} waits {seconds(stall['stall_s'])}"
    told = f"{waits} for batch {awaited['batch']} {whose}"
    parts = parts_of(run, stall)
    if parts.is_empty():
        return told
    longest = parts.row(0, named=True)
    if not (was_recorded(run, stall) or is_own(longest["part"], longest["kind"])):
        return f"{told}, which was not recorded"
    return f"{told}; {share(longest['share'])} of that is {_word(longest)}"


def _word(part: dict[str, Any]) -> str:
    name: str = part["part"]
    if is_own(name, part["kind"]):
        return OWN_WORDS.get(name, name)
    return "reading" if name == FETCH.name else printable(name)


def _stall_notes(run: Run, found: Timeline, layout: Layout) -> list[str]:
    steps = count(found.window.steps.height, "step")
    window = f"{seconds(found.length_s)} around the stall, {steps}"
    batch = "white: no batch in hand · within a batch, its samples' times are put together by kind"
    _, *others = small_notes(run, found, layout)
    return [f"{window} · {batch}", *others]
