"""Every step's wait, over the steps: when the loop stalls, and which patterns that follows.

Over the waits each pattern has a line of its own that says what it is and marks its steps, so that
a rhythm is seen as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    ROOM,
    RULE,
    Sheet,
    spans_decades,
    styled,
    text_width,
    time_axis,
    wrapped,
)
from stallscope.model.loop_time import NO_LOOP, leading
from stallscope.model.thresholds import STALL_RULE
from stallscope.run.stall_text import (
    answer,
    explained,
    nothing,
    pattern_or_title,
    pattern_title,
    small_print,
)
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.run.result import Run


MARKERS: Final = ("D", "s", "^", "v")
"""One for each pattern that is shown."""
_LINE, _TICKS, _SPACE = 0.17, 0.16, 0.1
"""Heights of a line of text, of the marks, and of what is free below them, inches."""
_LETTERS: Final = 108
"""In a line of text."""
SMALLEST: Final = 1e-5
"""Waits that are shorter than this share of the longest one are drawn at the axis' end."""
FEW: Final = 400
"""With fewer steps, each stall has a stem."""
FEW_TICKS: Final = 8
"""With fewer steps, each has its number on the axis."""
_SHORT: Final = "#777777"
_WIDTH: Final = ROOM - 0.8
"""Of the chart, about so many inches."""


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


def _marked(pattern: dict[str, Any], title: dict[str, Any] | None, marker: str) -> Marked:
    text = f"{pattern_title(pattern)} ({explained(pattern)})"
    if pattern == title:
        noun = "long step" if pattern["side"] == "step" else "stall"
        text = f"{count(pattern['stalls'], noun)}, {explained(pattern)}"
    return Marked(
        tuple(wrapped(text, _LETTERS)),
        tuple(pattern["named"]),
        len(pattern["steps"]) > len(pattern["named"]),
        pattern["side"] == "wait",
        marker,
    )


@styled
def figure(run: Run) -> Sheet:
    """The waits as a picture, of the rank in which the leading pattern is strongest."""
    pattern = leading(run.patterns())
    ranks: list[int] = [pattern["rank"]] if pattern else run.all_steps["rank"].to_list()
    rank = min(ranks, default=0)
    steps = _steps(run, rank)
    if steps.is_empty():
        return Sheet(NO_LOOP, nothing(run))
    patterns = run.patterns().filter(pl.col("rank") == rank).head(len(MARKERS)).to_dicts()
    title = answer(run)
    rows = [_marked(row, title, mark) for row, mark in zip(patterns, MARKERS, strict=False)]
    heights = [*([sum(row.height for row in rows)] if rows else []), 2.1]
    made = Sheet(pattern_or_title(run), _notes(run, steps, rows, rank), heights, aligned=True)
    ax = made.parts[-1]
    ax.set_xlim(float(steps["step"][0]) - 0.7, float(steps["step"][-1]) + 0.7)
    if rows:
        made.parts[0].set_xlim(ax.get_xlim())
        _draw_patterns(made.parts[0], rows)
    _draw(ax, steps, rows)
    return made


def _steps(run: Run, rank: int) -> pl.DataFrame:
    """The steps whose waits were recorded: `step, epoch, steady, wait_s, stall`.

    The wait of an epoch's first step is with `iter(loader)`.
    """
    stalls = run.stalls().filter(pl.col("rank") == rank)["step"]
    known = run.all_steps.drop_nulls(["wait_s", "start_ns"]).filter(pl.col("rank") == rank)
    return known.select(
        "step",
        "epoch",
        "steady",
        pl.sum_horizontal("wait_s", "restart_s").alias("wait_s"),
        stall=pl.col("step").is_in(stalls.implode()),
    )


def _notes(run: Run, steps: pl.DataFrame, rows: list[Marked], rank: int) -> list[str]:
    stalls = int(steps["stall"].sum())
    lines = [f"{count(steps.height, 'step')}, {count(stalls, 'stall')} ({STALL_RULE})"]
    early = int((~steps["steady"]).sum())
    if early:
        lines[0] += f" · hollow: {count(early, 'step')} of start-up and warm-up, no stalls"
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {rank} of {ranks}; what a pattern explains is of all ranks")
    hidden = run.patterns().height - len(rows)
    if hidden:
        lines.append(f"not shown: {count(hidden, 'more pattern')}")
    if any(row.more for row in rows):
        lines.append(
            "marks: the steps that a sentence names; what it explains beside them has none"
        )
    return [*lines, *small_print(run)]


def _draw_patterns(ax: Axes, rows: list[Marked]) -> None:
    """Draw a line for each pattern; one unit of the vertical axis is an inch."""
    ax.set_axis_off()
    ax.set_ylim(sum(row.height for row in rows), 0)
    down = 0.0
    for row in rows:
        for line in row.lines:
            ax.text(ax.get_xlim()[0], down, line, va="top")
            down += _LINE
        colour = STALL_COLOUR if row.waits else COLOURS["step"]
        middle = down + _TICKS / 2
        ax.axhline(middle, color=RULE, linewidth=0.6, zorder=0)
        look: dict[str, Any] = {"linewidth": 0, "marker": row.marker, "markersize": 4}
        ax.plot(row.steps, [middle] * len(row.steps), color=colour, clip_on=False, **look)
        down += _TICKS + _SPACE


def _draw(ax: Axes, steps: pl.DataFrame, rows: list[Marked]) -> None:
    """Draw the waits, the longest over the others, and where epochs begin."""
    waits_s = steps["wait_s"].to_numpy()
    high = max(float(waits_s.max()), 1e-6)
    low = float(waits_s[waits_s >= high * SMALLEST].min())
    if steps.height <= FEW_TICKS:
        ax.set_xticks(steps["step"].to_list())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    time_axis(ax, low, high, vertical=True)
    ax.grid(axis="y")
    ax.set_ylabel("wait")
    axis = "step"
    if spans_decades(low, high):
        axis += " · log scale of time"
    if steps["epoch"].n_unique() > 1:
        axis += " · lines: an epoch begins"
        _mark_epochs(ax, steps)
    ax.set_xlabel(axis)
    low = low if spans_decades(low, high) else 0.0
    steady, stall = pl.col("steady"), pl.col("stall")
    if steps.height <= FEW:
        stalls = steps.filter(stall)
        look: dict[str, Any] = {"color": STALL_COLOUR, "linewidth": 1.0, "alpha": 0.45}
        ax.vlines(stalls["step"], ax.get_ylim()[0], stalls["wait_s"], **look)
    _draw_dots(ax, steps.filter(steady & ~stall), low, color=_SHORT, markersize=2.6)
    hollow: dict[str, Any] = {"markerfacecolor": "none", "color": FAINT, "markersize": 3.4}
    _draw_dots(ax, steps.filter(~steady), low, **hollow)
    waiting = [row for row in rows if row.waits]
    named = [step for row in waiting for step in row.steps]
    plain = steps.filter(stall & ~pl.col("step").is_in(named))
    _draw_dots(ax, plain, low, color=STALL_COLOUR, markersize=4.0)
    for row in reversed(waiting):  # the first one is seen where several explain a step
        its = steps.filter(stall & pl.col("step").is_in(row.steps))
        _draw_dots(ax, its, low, color=STALL_COLOUR, markersize=5.0, marker=row.marker)


def _draw_dots(ax: Axes, steps: pl.DataFrame, low: float, **look: Any) -> None:
    if steps.height:  # no dots would have a place, and the layout makes room for it
        style: dict[str, Any] = {"marker": "o", "linewidth": 0, "clip_on": False} | look
        ax.plot(steps["step"], np.maximum(steps["wait_s"].to_numpy(), low), **style)


def _mark_epochs(ax: Axes, steps: pl.DataFrame) -> None:
    """A thin line before each epoch's first step, and its number where there is room."""
    low, high = ax.get_xlim()
    step_width = _WIDTH / (high - low)
    free = -1.0
    begins = steps.unique("epoch", keep="first", maintain_order=True)
    for epoch, step in begins.select("epoch", "step").iter_rows():
        if step - 1 > low:
            ax.axvline(step - 0.5, color="#A6A6A6", linewidth=0.7, zorder=0)
        text = f"epoch {epoch}"
        at = (step - 0.5 - low) * step_width
        if free <= at <= _WIDTH - text_width(text):
            ax.text(step - 0.5, 1.01, text, transform=ax.get_xaxis_transform(), color=FAINT)
            free = at + text_width(text) + 0.1
