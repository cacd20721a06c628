"""Every step's wait, over the steps: when the loop stalls, and which patterns that follows.

Over the waits each pattern has a line of its own that says what it is and marks its steps, so that
a rhythm is seen as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    SheetPart,
    balanced,
    log_time,
    sheet,
    spans_decades,
    styled,
    text_width,
    time_label,
)
from stallscope.run.stall_text import (
    answer,
    explained,
    nothing,
    pattern_or_title,
    pattern_title,
    small_print,
)
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.stalls.loop_time import NO_LOOP, leading
from stallscope.stalls.thresholds import STALL_RULE
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


MARKERS: Final = ("D", "s", "^", "v")
"""One for each pattern that is shown."""
_LINE, _TICKS, _SPACE = 0.17, 0.16, 0.1
"""Heights of a line of text, of the marks, and of what is free below them, inches."""
SMALLEST: Final = 1e-5
"""Waits that are shorter than this share of the longest one are drawn at the axis' end."""
FEW: Final = 400
"""With fewer steps, each stall has a stem."""
FEW_TICKS: Final = 8
"""With fewer steps, each has its number on the axis."""
_LEFT, _RIGHT, _HEIGHT = 0.75, 0.3, 1.9
_SHORT: Final = "#777777"
_WIDTH: Final = SheetPart(1.0, left=_LEFT, right=_RIGHT).width


@dataclass(frozen=True)
class Marked:
    """A pattern as a line over the waits."""

    lines: tuple[str, ...]
    """What it is, as lines of text."""
    steps: tuple[int, ...]
    """Those that its sentence names."""
    more: bool
    """Whether it explains others beside these."""
    waits: bool
    """Whether they wait; else they are long."""
    marker: str

    @property
    def height(self) -> float:
        """Of its text and its marks, inches."""
        return _LINE * len(self.lines) + _TICKS + _SPACE


def marked(
    patterns: pl.DataFrame, title: dict[str, Any] | None, width: float
) -> tuple[Marked, ...]:
    """The lines of the first patterns.

    Args:
        patterns: columns of `stalls.patterns.PATTERNS`.
        title: the one whose sentence is the title already.
        width: of the chart, inches.
    """
    rows = patterns.head(len(MARKERS)).to_dicts()
    return tuple(
        _marked(_text(row, in_title=row == title), row, marker, width)
        for row, marker in zip(rows, MARKERS, strict=False)
    )


def _text(pattern: dict[str, Any], *, in_title: bool) -> str:
    if not in_title:
        return f"{pattern_title(pattern)} ({explained(pattern)})"
    noun = "long step" if pattern["side"] == "step" else "stall"
    return f"{count(pattern['stalls'], noun)}, {explained(pattern)}"


def _marked(text: str, pattern: dict[str, Any], marker: str, width: float) -> Marked:
    return Marked(
        tuple(balanced(text, width, SMALL_SIZE)),
        tuple(pattern["named"]),
        len(pattern["steps"]) > len(pattern["named"]),
        pattern["side"] == "wait",
        marker,
    )


def part(rows: Sequence[Marked], below: SheetPart) -> SheetPart:
    """How much of a sheet the lines need, over the chart `below`."""
    height = sum(row.height for row in rows)
    return SheetPart(height, above=0.1, left=below.left, right=below.right)


def draw_patterns(ax: Axes, rows: Sequence[Marked], ends: tuple[float, float]) -> Axes:
    """Draw a line for each pattern.

    Args:
        ax: the chart.
        rows: the patterns.
        ends: of the axis of steps.
    """
    ax.set_axis_off()
    ax.set_xlim(*ends)
    ax.set_ylim(sum(row.height for row in rows), 0)
    down = 0.0
    for row in rows:
        for line in row.lines:
            ax.text(ends[0], down, line, size=SMALL_SIZE, color=INK, va="top")
            down += _LINE
        look: dict[str, Any] = {
            "color": STALL_COLOUR if row.waits else COLOURS["step"],
            "linewidth": 0,
            "marker": row.marker,
        }
        middle = down + _TICKS / 2
        ax.axhline(middle, color=RULE, linewidth=0.6, zorder=0)
        ax.plot(row.steps, [middle] * len(row.steps), markersize=4, clip_on=False, **look)
        down += _TICKS + _SPACE
    return ax


@dataclass(frozen=True)
class Waits:
    """The waits of one rank."""

    steps: pl.DataFrame
    """`step, epoch, steady, wait_s` (with `iter(loader)` on an epoch's first step), `stall`."""
    patterns: tuple[Marked, ...]

    @property
    def ends_s(self) -> tuple[float, float]:
        """Of the axis of time."""
        waits_s = self.steps["wait_s"].to_numpy()
        high = max(float(waits_s.max()), 1e-6)
        above = waits_s[waits_s >= high * SMALLEST]
        return float(above.min()), high


def figure(run: Run) -> Sheet:
    """The waits as a picture."""
    rank = _rank(run)
    found = waits(run, rank)
    if found is None:
        return sheet(NO_LOOP, nothing(run), [])[0]
    chart = _part(found)
    parts = [part(found.patterns, chart), chart] if found.patterns else [chart]
    made, axes = sheet(pattern_or_title(run), _notes(run, found, rank), parts)
    with styled():
        if found.patterns:
            draw_patterns(axes[0], found.patterns, _step_ends(found))
        draw(axes[-1], found)
    return made


def _rank(run: Run) -> int:
    """The rank in which the leading pattern is strongest; else the first one."""
    pattern = leading(run.patterns())
    ranks: list[int] = [pattern["rank"]] if pattern else run.all_steps["rank"].to_list()
    return min(ranks, default=0)


def waits(run: Run, rank: int) -> Waits | None:
    """What to draw; None where no wait was recorded."""
    known = run.all_steps.drop_nulls(["wait_s", "start_ns"]).filter(pl.col("rank") == rank)
    if known.is_empty():
        return None
    stalls = run.stalls().filter(pl.col("rank") == rank)["step"]
    steps = known.select(
        "step",
        "epoch",
        "steady",
        pl.sum_horizontal("wait_s", "restart_s").alias("wait_s"),
        stall=pl.col("step").is_in(stalls.implode()),
    )
    patterns = run.patterns().filter(pl.col("rank") == rank)
    return Waits(steps, marked(patterns, answer(run), _WIDTH))


def _notes(run: Run, found: Waits, rank: int) -> list[str]:
    stalls = int(found.steps["stall"].sum())
    about = f"{count(found.steps.height, 'step')}, {count(stalls, 'stall')}"
    lines = [f"{about} ({STALL_RULE})"]
    early = int((~found.steps["steady"]).sum())
    if early:
        lines[0] += f" · hollow: {count(early, 'step')} of start-up and warm-up, no stalls"
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {rank} of {ranks}; what a pattern explains is of all ranks")
    hidden = run.patterns().height - len(found.patterns)
    if hidden:
        lines.append(f"not shown: {count(hidden, 'more pattern')}")
    if any(row.more for row in found.patterns):
        lines.append(
            "marks: the steps that a sentence names; what it explains beside them has none"
        )
    return [*lines, *small_print(run)]


def _part(found: Waits) -> SheetPart:
    axis = "step"
    if spans_decades(*found.ends_s):
        axis += " · log scale of time"
    if found.steps["epoch"].n_unique() > 1:
        axis += " · lines: an epoch begins"
    above = 0.22 if "epoch" in axis or not found.patterns else 0.08
    return SheetPart(_HEIGHT, above=above, axis=axis, left=_LEFT, right=_RIGHT)


def draw(ax: Axes, found: Waits) -> Axes:
    """Draw the waits, the longest over the others, and where epochs begin."""
    low, high = found.ends_s
    ax.set_xlim(*_step_ends(found))
    if found.steps.height <= FEW_TICKS:
        ax.set_xticks(found.steps["step"].to_list())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    _time_axis(ax, low, high)
    _mark_epochs(ax, found.steps)
    bottom = ax.get_ylim()[0]
    low = low if spans_decades(low, high) else 0.0
    _draw_stems(ax, found.steps, bottom)
    steady, stall = pl.col("steady"), pl.col("stall")
    _draw_dots(ax, found.steps.filter(steady & ~stall), low, color=_SHORT, markersize=2.6)
    hollow: dict[str, Any] = {"markerfacecolor": "none", "color": FAINT, "markersize": 3.4}
    _draw_dots(ax, found.steps.filter(~steady), low, **hollow)
    rows = [row for row in found.patterns if row.waits]
    told = [step for row in rows for step in row.steps]
    plain = found.steps.filter(stall & ~pl.col("step").is_in(told))
    _draw_dots(ax, plain, low, color=STALL_COLOUR, markersize=4.0)
    for row in reversed(rows):  # the first one is seen where several explain a step
        its = found.steps.filter(stall & pl.col("step").is_in(row.steps))
        _draw_dots(ax, its, low, color=STALL_COLOUR, markersize=5.0, marker=row.marker)
    return ax


def _step_ends(found: Waits) -> tuple[float, float]:
    first, last = found.steps["step"].min(), found.steps["step"].max()
    return float(first) - 0.7, float(last) + 0.7  # type: ignore[arg-type]  # an integer column


def _time_axis(ax: Axes, low: float, high: float) -> None:
    if spans_decades(low, high):
        log_time(ax, low, high, vertical=True)
    else:
        ax.set_ylim(0, high * 1.08)
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(FuncFormatter(time_label))
    ax.grid(axis="y", color=RULE, linewidth=0.6)
    ax.set_ylabel("wait", size=SMALL_SIZE, color=FAINT)


def _mark_epochs(ax: Axes, steps: pl.DataFrame) -> None:
    """A thin line before each epoch's first step, and its number where there is room."""
    begins = steps.group_by("epoch", maintain_order=True).agg(pl.col("step").first())
    if begins.height < 2:  # noqa: PLR2004 - one epoch has no boundary
        return
    low, high = ax.get_xlim()
    free = -1.0
    for epoch, step in begins.iter_rows():
        if step - 1 > low:
            ax.axvline(step - 0.5, color="#A6A6A6", linewidth=0.7, zorder=0)
        text = f"epoch {epoch}"
        at = (step - 0.5 - low) / (high - low)
        if at >= free and at + text_width(text, SMALL_SIZE) / _WIDTH <= 1:
            look: dict[str, Any] = {"size": SMALL_SIZE, "color": FAINT, "va": "bottom"}
            ax.text(at, 1.01, text, transform=ax.transAxes, **look)
            free = at + (text_width(text, SMALL_SIZE) + 0.1) / _WIDTH


def _draw_stems(ax: Axes, steps: pl.DataFrame, bottom: float) -> None:
    if steps.height <= FEW:
        stalls = steps.filter("stall")
        look: dict[str, Any] = {"color": STALL_COLOUR, "linewidth": 1.0, "alpha": 0.45}
        ax.vlines(stalls["step"].to_numpy(), bottom, stalls["wait_s"].to_numpy(), **look)


def _draw_dots(ax: Axes, steps: pl.DataFrame, low: float, **look: Any) -> None:
    waits_s = np.maximum(steps["wait_s"].to_numpy(), low)
    style: dict[str, Any] = {"marker": "o", "linewidth": 0, "clip_on": False} | look
    ax.plot(steps["step"].to_numpy(), waits_s, **style)
