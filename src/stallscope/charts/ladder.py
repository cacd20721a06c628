"""The ladder: how fast the loop is as it is, and without each of the loader's costs.

A bar is a measured loop; what was taken away stands between it and the one before, with the factor
that this made. Every block of steps is a dot, so that one sees how far they agree.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from stallscope.bench.comparison import OPEN, SAME
from stallscope.bench.loops import blocks_of
from stallscope.charts.sheet import (
    FAINT,
    INK,
    PAPER,
    TEXT_SIZE,
    Sheet,
    draw_interval,
    styled,
)
from stallscope.ladder.result import (
    BATCHES,
    FETCHED,
    ON_DEVICE,
    PINNED,
    RUNGS,
    TRANSFORMED,
    WARM,
    notes_of,
    sentence,
)
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, share, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.ladder.result import Ladder


_KIND: Final = {
    WARM.name: "fetch",
    FETCHED.name: "decode",
    TRANSFORMED.name: "transform",
    BATCHES.name: "collate",
    PINNED.name: "pin",
    ON_DEVICE.name: "h2d",
}
"""Whose colour a removed cost has."""
_BAR: Final = "#5B666E"
_LONGEST: Final = len("significant")
"""The longest word under a bar, which no line breaks."""
_MOST_DOTS: Final = 24
_WIDTH: Final = 0.56
_LINE: Final = 0.165
"""Height of a line under a bar, inches."""


@styled
def figure(ladder: Ladder) -> Sheet:
    """The ladder as a picture."""
    rows = ladder.table().filter(pl.col("samples_per_s").is_not_null())
    if rows.is_empty():
        return Sheet(sentence(ladder), notes_of(ladder))
    room = max(104 // rows.height, _LONGEST)
    names = [textwrap.fill(rung, room) for rung in rows["rung"]]
    gains = {row["rung"]: row for row in ladder.gains().to_dicts()}
    removed = [_removed(gains.get(rung), room) for rung in rows["rung"]]
    top = _LINE * (max(name.count("\n") for name in names) + 1) + 0.2
    below = top + _LINE * max(len(lines) for lines, _ in removed) + _LINE
    made = Sheet(sentence(ladder), _notes(ladder, rows), [3.1 + below])
    (ax,) = made.parts
    _draw(ax, ladder, rows.to_dicts())
    ax.set_xticks(range(rows.height), names)
    ax.tick_params(axis="x", length=0)
    for place, (rung, texts) in enumerate(zip(rows["rung"], removed, strict=True)):
        if rung in gains:
            _write_removed(ax, (place, top), texts, COLOURS[_KIND[rung]])
    return made


def _removed(gain: dict[str, Any] | None, room: int) -> tuple[list[str], str]:
    if gain is None:
        return [], ""
    lines = textwrap.wrap(f"without {gain['removes']}", room)
    if gain["says"] in (SAME, OPEN):
        return [*lines, *textwrap.wrap(gain["says"], room)], ""
    ends = f"[{gain['factor_low']:.2f}, {gain['factor_high']:.2f}]"
    return lines, f"{times(gain['factor'])} {ends}"


def _write_removed(
    ax: Axes, at: tuple[int, float], removed: tuple[list[str], str], colour: str
) -> None:
    """Write below a bar, so many inches under the axis, under a rule in the cost's colour."""
    (place, down), (lines, factor) = at, removed

    def below(inches: float) -> dict[str, Any]:
        offset = ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
        return {"transform": ax.get_xaxis_transform() + offset}

    rule: dict[str, Any] = {"color": colour, "lw": 2.5, "clip_on": False}
    ax.plot([place - 0.3, place + 0.3], [0, 0], **rule, **below(down))
    look: dict[str, Any] = {"ha": "center", "va": "top"}
    ax.text(place, 0, "\n".join(lines), color=FAINT, **look, **below(down + 0.05))
    end = down + 0.05 + len(lines) * _LINE
    ax.text(place, 0, factor, weight="bold", **look, **below(end))


def _notes(ladder: Ladder, rows: pl.DataFrame) -> list[str]:
    starts, blocks = int(rows["starts"].max() or 0), int(rows["blocks"].sum())  # type: ignore[arg-type]
    shown = (
        f"bars: samples a second over {count(starts, 'start')} a rung, {count(blocks, 'block')} "
        "in all"
    )
    what = (
        "device busy" if rows["device_busy_share"].is_not_null().any() else "the loop in the step"
    )
    ends = f"dots: single blocks · lines: {INTERVAL}"
    head = f"{shown} · {ends}" + ("" if rows["step_share"].is_null().all() else f" · %: {what}")
    return [head, *notes_of(ladder)]


def _draw(ax: Axes, ladder: Ladder, rows: list[dict[str, Any]]) -> None:
    """The bars, from the loader as it is to the step alone."""
    blocks = blocks_of(ladder.blocks)
    highest = max(row["samples_per_s_high"] or row["samples_per_s"] for row in rows)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylim(0, highest * 1.16)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter("{x:,.4g}")
    ax.grid(axis="y")
    ax.set_ylabel("samples per second")
    for place, row in enumerate(rows):
        rate = row["samples_per_s"]
        is_step_alone = row["rung"] in (BATCHES.name, PINNED.name, ON_DEVICE.name)
        ax.bar(place, rate, _WIDTH, color=COLOURS["step"] if is_step_alone else _BAR)
        ends = (row["samples_per_s_low"], row["samples_per_s_high"])
        draw_interval(ax, place, rate, ends, cap=6.0, vertical=True)
        dots = [
            one.samples / one.seconds for one in blocks if RUNGS[one.variant].name == row["rung"]
        ][-_MOST_DOTS:]
        step = _WIDTH * 0.7 / max(len(dots) - 1, 1)
        across = [place - _WIDTH * 0.35 + step * number for number in range(len(dots))]
        ax.plot(across, dots, "o", ms=3, color=PAPER, mec=INK, mew=0.6, zorder=4)
        busy = row["device_busy_share"]
        busy = row["step_share"] if busy is None else busy
        label = f"{rate:,.0f}" if busy is None else share(busy)
        height = max(ends[1] or rate, *dots, rate) + highest * 0.025
        ax.text(place, height, label, ha="center", va="bottom", weight="bold", size=TEXT_SIZE + 1)
        if place:
            _arrow(ax, place, rows[place - 1]["samples_per_s"], row)


def _arrow(ax: Axes, place: int, before: float, row: dict[str, Any]) -> None:
    """From the height of the bar before to the height of this one, in the removed cost's colour."""
    colour = COLOURS[_KIND[row["rung"]]]
    across = place - _WIDTH / 2 - 0.09
    ax.annotate(
        "",
        (across, row["samples_per_s"]),
        (across, before),
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0},
    )
    ax.plot([place - 1 + _WIDTH / 2, across], [before, before], color=colour, lw=0.8, ls=":")
