"""The ladder: how fast the loop is as it is, and without each of the loader's costs.

A bar is a measured loop; what was taken away stands between it and the one before, with the factor
that this made. Every lap is a dot, so that one sees how far the laps agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    INK,
    PAPER,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    draw_interval,
    sheet,
    styled,
    wrapped,
)
from stallscope.ladder.result import (
    BATCHES,
    FETCHED,
    ON_DEVICE,
    PINNED,
    TRANSFORMED,
    WARM,
    lap_rates,
    notes_of,
    sentence,
)
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, share, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
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
_WIDTH: Final = 0.56
_HEIGHT: Final = 2.9
_LEFT: Final = 0.75
_LINE: Final = 0.165


def figure(ladder: Ladder) -> Sheet:
    """The ladder as a picture."""
    rows = ladder.table().filter(pl.col("samples_per_s").is_not_null())
    if rows.is_empty():
        return sheet(sentence(ladder), notes_of(ladder), [])[0]
    bars = SheetPart(_HEIGHT, above=0.3, left=_LEFT)
    labels = _labels(ladder, rows["rung"].to_list(), bars.width / rows.height - 0.1)
    below = 0.06 + max(label.bottom for label in labels)
    made, axes = sheet(
        sentence(ladder), _notes(ladder, rows), [bars, SheetPart(below, above=0.0, left=_LEFT)]
    )
    with styled():
        _draw(axes[0], ladder, rows.to_dicts())
        _name(axes[1], labels, below)
    return made


def _notes(ladder: Ladder, rows: pl.DataFrame) -> list[str]:
    laps, steps = int(rows["laps"].max() or 0), int(rows["steps"].sum())  # type: ignore[arg-type]
    shown = (
        f"bars: samples a second over {count(laps, 'lap')} a rung, {count(steps, 'step')} in all"
    )
    what = (
        "device busy" if rows["device_busy_share"].is_not_null().any() else "the loop in the step"
    )
    ends = f"dots: single laps · lines: {INTERVAL}"
    head = f"{shown} · {ends}" + ("" if rows["step_share"].is_null().all() else f" · %: {what}")
    return [head, *notes_of(ladder)]


def _draw(ax: Axes, ladder: Ladder, rows: list[dict[str, Any]]) -> None:
    """The bars, from the loader as it is to the step alone."""
    laps = lap_rates(ladder)
    highest = max(row["samples_per_s_high"] or row["samples_per_s"] for row in rows)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylim(0, highest * 1.16)
    ax.set_xticks([])
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    ax.grid(axis="y", color=RULE, linewidth=0.6)
    ax.set_ylabel("samples per second", size=SMALL_SIZE, color=FAINT)
    for place, row in enumerate(rows):
        rate = row["samples_per_s"]
        is_step_alone = row["rung"] in (BATCHES.name, PINNED.name, ON_DEVICE.name)
        ax.bar(place, rate, _WIDTH, color=COLOURS["step"] if is_step_alone else _BAR)
        ends = (row["samples_per_s_low"], row["samples_per_s_high"])
        draw_interval(ax, (place, rate), ends, cap=6.0, vertical=True)
        dots = laps.filter(pl.col("rung") == row["rung"])["samples_per_s"].to_list()
        step = _WIDTH * 0.7 / max(len(dots) - 1, 1)
        across = [place - _WIDTH * 0.35 + step * number for number in range(len(dots))]
        ax.plot(across, dots, "o", ms=3, color=PAPER, mec=INK, mew=0.6, zorder=4)
        said = row["device_busy_share"]
        said = row["step_share"] if said is None else said
        label = f"{rate:,.0f}" if said is None else share(said)
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


@dataclass(frozen=True)
class _Label:
    """What stands under a bar."""

    name: list[str]
    """The rung's, as lines."""
    removed: list[str]
    """What it does without, as lines."""
    factor: str
    """What that made of it."""
    colour: str
    top: float
    """Where `removed` begins, inches from the top."""

    @property
    def bottom(self) -> float:
        """Where all of it ends, inches from the top."""
        return self.top + _LINE * (len(self.removed) + bool(self.factor))


def _labels(ladder: Ladder, rungs: list[str], room: float) -> list[_Label]:
    """What stands under each bar, in so much room."""
    gains = {row["rung"]: row for row in ladder.gains().iter_rows(named=True)}
    names = [wrapped(rung, room, TEXT_SIZE) for rung in rungs]
    top = 0.06 + _LINE * max(map(len, names)) + 0.08
    labels = []
    for rung, name in zip(rungs, names, strict=True):
        gain = gains.get(rung)
        removed = wrapped(f"without {gain['removes']}", room, SMALL_SIZE) if gain else []
        factor = ""
        if gain and gain["distinguishable"]:
            factor = (
                f"{times(gain['factor'])}  [{gain['factor_low']:.2f}, {gain['factor_high']:.2f}]"
            )
        elif gain:
            removed += wrapped("not distinguishable", room, SMALL_SIZE)
        labels.append(_Label(name, removed, factor, COLOURS[_KIND.get(rung, "step")], top))
    return labels


def _name(ax: Axes, labels: list[_Label], height: float) -> None:
    """What each rung is, what it does without, and what that made of it."""
    ax.set_axis_off()
    ax.set_xlim(-0.5, len(labels) - 0.5)
    ax.set_ylim(height, 0)
    look: dict[str, Any] = {"ha": "center", "va": "top"}
    for place, label in enumerate(labels):
        for number, line in enumerate(label.name):
            ax.text(place, 0.06 + number * _LINE, line, size=TEXT_SIZE, color=INK, **look)
        if label.removed:
            ax.plot([place - 0.3, place + 0.3], [label.top - 0.03] * 2, color=label.colour, lw=2.5)
        for number, line in enumerate(label.removed):
            down = label.top + number * _LINE
            ax.text(place, down, line, size=SMALL_SIZE, color=FAINT, **look)
        down = label.top + len(label.removed) * _LINE
        ax.text(place, down, label.factor, size=SMALL_SIZE, color=INK, weight="bold", **look)
