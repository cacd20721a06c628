"""Parts of the stalls, and the wait of every step.

Each part of the stall begins at the end of the previous part, so that a reader sees them add up.
Each stage has its share of the workers' own time beside it: a stage may keep the workers busy and
cost the loop nothing, because prefetching hides it. Among the waits, each pattern has a mark of its
own, so that a rhythm becomes visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from stallscope.charts import sheet, timeline
from stallscope.charts.bars import Strip, StripPiece
from stallscope.charts.sheet import MOST_ROWS, ROW, Sheet, styled
from stallscope.model.loop_time import NO_LOOP, OWN_WORDS, is_own, leading, loop_breakdown
from stallscope.model.thresholds import SMALL, STALL_RULE
from stallscope.run import stall_data
from stallscope.run.stall_data import around
from stallscope.stages import COLOURS, FETCH, STALL_COLOUR, colour_of
from stallscope.units import count, printable, seconds, share, worker_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.model.loop_time import LoopBreakdown
    from stallscope.run.result import Run
    from stallscope.run.stall_data import StallRow


# The stalls taken apart

UNATTRIBUTED: Final[dict[str, Any]] = {
    "facecolor": sheet.PAPER,
    "edgecolor": STALL_COLOUR,
    "hatch": "////",
    "linewidth": 0.8,
}
"""Look of the unexplained part."""
WAITS: Final = {"stall": STALL_COLOUR, "wait": "#F3C6A5"}
"""Waits too short to be stalls have a pale stall colour."""
_SMALLEST: Final = 1e-5
"""Share of the longest wait below which waits are drawn at the axis' end."""
_COLUMNS: Final = ("of stalls", "per step", "busy share")


@styled
def exposed_figure(run: Run) -> Sheet:
    """Draw the loop's time, and the parts of the stalls."""
    time = loop_breakdown(run.steps(), run.stalls(), run.side_spans)
    if time is None:
        return Sheet(stall_data.sentence(run), stall_data.nothing(run))
    rows = stall_data.rows_of(run, time, MOST_ROWS)
    strip = loop_strip(time)
    opening = ROW if rows else 0.0  # for the lines from the stall to its parts
    heights = [strip.height + ROW + opening, ROW * (len(rows) + 1) + sheet.AXIS]
    page = Sheet(
        stall_data.sentence(run), _exposed_notes(run, time, rows), heights[: 1 + bool(rows)]
    )
    ax = page.parts[0]
    strip.fill(ax)
    ax.set_ylim(-opening, strip.height + ROW)
    caption = f"the loop's time: {seconds(time.total_s / time.steps)} per step, mean"
    ax.text(0, strip.height + 0.04, caption, color=sheet.FAINT, va="bottom")
    if rows:  # the parts below divide the stall in the bar
        xs, ys = [0, 0, strip.total, time.stall_share], [0, -opening, -opening, 0]
        ax.plot(xs, ys, color=STALL_COLOUR, linewidth=0.9, clip_on=False)
        _draw_parts(page.parts[1], rows)
    return page


def loop_colour(stage: str, kind: str) -> str:
    """Return the colour of a part of the loop's time."""
    return WAITS.get(kind) or colour_of(stage, kind)


def loop_strip(time: LoopBreakdown) -> Strip:
    """Return the parts of the loop's time as a bar."""
    pieces = []
    for name, kind, sum_s in time.pieces(SMALL):
        part = time.share(sum_s)
        numbers = f"{share(part)} · {seconds(sum_s / time.steps)}"
        look = loop_colour(name, kind)
        pieces.append(StripPiece(printable(name), part, numbers, look, short=share(part)))
    return Strip(pieces)


def _exposed_notes(run: Run, time: LoopBreakdown, rows: list[StallRow]) -> list[str]:
    ranks = f" of {time.ranks} ranks together" if time.ranks > 1 else ""
    stalls = f"{count(time.stalls, 'stall')} ({STALL_RULE})"
    lines = [f"{count(time.steps, 'step')}{ranks}, {stalls}"]
    hidden = run.all_steps.height - time.steps
    if hidden:
        lines[0] += f" · left out: {count(hidden, 'step')} (start-up, warm-up)"
    if any(row.busy is not None for row in rows):
        whose = "the workers' own" if run.settings.num_workers else "loading"
        lines.append(
            f"busy share: of {whose} time; prefetching hides it while the loop does not wait"
        )
    return [*lines, *stall_data.small_print(run)]


def _draw_parts(ax: Axes, rows: list[StallRow]) -> None:
    sheet.linear_time(ax, sum(row.exposed_s for row in rows))
    sheet.name_rows(ax, [row.name for row in rows])
    start = 0.0
    for at, row in enumerate(rows):
        look = {"color": COLOURS[row.kind], "lw": 0} if row.kind else UNATTRIBUTED
        ax.barh(at, row.exposed_s, 0.72, start, **look)
        start += row.exposed_s
        if at + 1 < len(rows):
            ax.plot([start, start], [at - 0.36, at + 1.36], color=sheet.RULE, lw=0.8, zorder=0)
    sheet.write_columns(ax, _COLUMNS, [row.cells for row in rows])
    ax.set_xlabel("the stalls per step, mean · each part begins where the previous part ends")


# A single stall


def stall_figure(run: Run, stall: dict[str, Any]) -> Sheet:
    """Draw the workers and the loop around a stall, a row of `Run.stalls`."""
    excerpt, step = around(run, stall["rank"], stall["step"]), stall["step"]
    awaited = excerpt.stalls.filter(pl.col("step") == step).row(0, named=True)
    title = _stall_title(run, awaited, stall)
    return timeline.picture(run, excerpt, title, where="around the stall", step=step)


def parts_of(run: Run, stall: dict[str, Any]) -> pl.DataFrame:
    """Return the parts of a stall, the longest first: columns of `PARTS`, and `share` (0 to 1)."""
    its = (pl.col("rank") == stall["rank"]) & (pl.col("step") == stall["step"])
    parts = run.parts().filter(its).sort("exposed_s", descending=True, maintain_order=True)
    return parts.with_columns(share=pl.col("exposed_s") / stall["stall_s"])


def _stall_title(run: Run, awaited: dict[str, Any], stall: dict[str, Any]) -> str:
    maker = awaited["worker"]
    whose = "that the main process makes" if maker is None else f"of {worker_name(maker)}"
    waits = f"Step {stall['step']} waits {seconds(stall['stall_s'])}"
    sentence = f"{waits} for batch {awaited['batch']} {whose}"
    parts = parts_of(run, stall)
    if parts.is_empty():
        return sentence
    longest = parts.row(0, named=True)
    name = longest["part"]
    if is_own(name, longest["kind"]):
        word = OWN_WORDS.get(name, name)
    else:
        word = "reading" if name == FETCH.name else printable(name)
    return f"{sentence}; {share(longest['share'])} of that is {word}"


# The waits

MARKERS: Final = {"D": "◆", "s": "■", "^": "▲", "v": "▼"}
"""Markers of the patterns, and the same as letters."""
_FEW: Final = 400
"""Steps up to which each stall has a stem."""


@styled
def waits_figure(run: Run) -> Sheet:
    """Draw the waits of the rank in which the leading pattern is strongest."""
    pattern = leading(run.patterns())
    ranks: list[int] = [pattern["rank"]] if pattern else run.all_steps["rank"].to_list()
    rank = min(ranks, default=0)
    steps = _steps(run, rank)
    if steps.is_empty():
        return Sheet(NO_LOOP, stall_data.nothing(run))
    patterns = run.patterns().filter(pl.col("rank") == rank).head(len(MARKERS)).to_dicts()
    notes = _waits_notes(run, steps, patterns, rank)
    page = Sheet(stall_data.pattern_or_sentence(run), notes, [2.3 + sheet.AXIS])
    (ax,) = page.parts
    ax.set_xlim(float(steps["step"][0]) - 0.7, float(steps["step"][-1]) + 0.7)
    _draw_waits(ax, steps, [row["named"] for row in patterns])
    return page


def _steps(run: Run, rank: int) -> pl.DataFrame:
    """Return the steps with recorded waits: `step, epoch, steady, wait_s, stall`.

    The wait of an epoch's first step includes `iter(loader)`.
    """
    stalls = run.stalls().filter(pl.col("rank") == rank)["step"]
    recorded = run.all_steps.drop_nulls(["wait_s", "start_ns"]).filter(pl.col("rank") == rank)
    wait_s = pl.sum_horizontal("wait_s", "restart_s").alias("wait_s")
    stall = pl.col("step").is_in(stalls.implode()).alias("stall")
    return recorded.select("step", "epoch", "steady", wait_s, stall)


def _waits_notes(
    run: Run, steps: pl.DataFrame, patterns: list[dict[str, Any]], rank: int
) -> list[str]:
    stalls = int(steps["stall"].sum())
    lines = [f"{count(steps.height, 'step')}, {count(stalls, 'stall')} ({STALL_RULE})"]
    early = int((~steps["steady"]).sum())
    if early:
        lines[0] += f" · hollow: {count(early, 'step')} of start-up and warm-up, no stalls"
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {rank} of {ranks}; shares of patterns are of all ranks")
    title = stall_data.answer(run)
    for row, mark in zip(patterns, MARKERS.values(), strict=False):
        name = count(row["stalls"], "stall") if row == title else stall_data.pattern_sentence(row)
        lines.append(f"{mark} {name} ({stall_data.explained(row)})")
    hidden = run.patterns().height - len(patterns)
    if hidden:
        lines.append(f"not shown: {count(hidden, 'more pattern')}")
    return [*lines, *stall_data.small_print(run)]


def _draw_waits(ax: Axes, steps: pl.DataFrame, patterns: list[list[int]]) -> None:
    """Draw the waits, those of patterns on top, and lines before the first steps of epochs."""
    waits_s = steps["wait_s"].to_numpy()
    high = max(float(waits_s.max()), 1e-6)
    low = float(waits_s[waits_s >= high * _SMALLEST].min())
    is_log = sheet.spans_decades(low, high)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    sheet.time_axis(ax, low, high, vertical=True)
    ax.grid(axis="y")
    ax.set_ylabel("wait")
    has_epochs = steps["epoch"].n_unique() > 1
    begins = steps.filter(pl.col("epoch") != pl.col("epoch").shift())["step"]
    ax.vlines(begins - 0.5, *ax.get_ylim(), color=sheet.MID, linewidth=0.7, zorder=0)
    log, epochs = " · log scale of time" * is_log, " · lines: an epoch begins" * has_epochs
    ax.set_xlabel(f"step{log}{epochs}")
    low = low if is_log else 0.0
    steady, stall = pl.col("steady"), pl.col("stall")
    if steps.height <= _FEW:
        stalls = steps.filter(stall)
        look: dict[str, Any] = {"color": STALL_COLOUR, "linewidth": 1.0, "alpha": 0.45}
        ax.vlines(stalls["step"], ax.get_ylim()[0], stalls["wait_s"], **look)
    named = [step for steps_of in patterns for step in steps_of]
    hollow: dict[str, Any] = {"markerfacecolor": "none", "color": sheet.FAINT, "markersize": 3.4}
    loud: dict[str, Any] = {"color": STALL_COLOUR, "markersize": 5.0}
    looks: list[tuple[pl.Expr, dict[str, Any]]] = [
        (steady & ~stall, {"color": sheet.MID, "markersize": 2.6}),
        (~steady, hollow),
        (stall & ~pl.col("step").is_in(named), loud | {"markersize": 4.0}),
    ]
    looks += [  # the first pattern is on top if several explain a step
        (stall & pl.col("step").is_in(steps_of), loud | {"marker": marker})
        for steps_of, marker in reversed([*zip(patterns, MARKERS, strict=False)])
    ]
    for which, dot in looks:
        its = steps.filter(which)
        if its.height:  # an empty plot would still take room in the layout
            style: dict[str, Any] = {"marker": "o", "lw": 0, "clip_on": False} | dot
            ax.plot(its["step"], np.maximum(its["wait_s"].to_numpy(), low), **style)
