"""The ladder: throughput of the loop now, and without each of the loader's costs.

A bar is a measured loop; between two bars are the removed cost and its speedup. Every block of
steps is a dot, so that a reader sees their spread.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from stallscope.bench.comparison import OPEN, SAME
from stallscope.bench.loops import blocks_of
from stallscope.charts import sheet
from stallscope.charts.sheet import Sheet, styled
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, share, times
from stallscope.verbs.ladder import result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.verbs.ladder.result import Ladder


_KIND: Final = {
    result.WARM.name: "fetch",
    result.FETCHED.name: "decode",
    result.TRANSFORMED.name: "transform",
    result.BATCHES.name: "collate",
    result.PINNED.name: "pin",
    result.ON_DEVICE.name: "h2d",
}
"""Kind of stage that gives a removed cost its colour."""
_BAR: Final = "#5B666E"
_LONGEST: Final = len("significant")
"""Letters of the longest word under a bar: lines break between words only."""
_MOST_DOTS: Final = 24
_WIDTH: Final = 0.56
_LINE: Final = 0.165
"""Height of a line under a bar, inches."""


@styled
def figure(ladder: Ladder) -> Sheet:
    """Draw the ladder."""
    table = ladder.table().filter(pl.col("samples_per_s").is_not_null())
    if table.is_empty():
        return Sheet(result.sentence(ladder), result.notes_of(ladder))
    rows = table.to_dicts()
    room = max(104 // len(rows), _LONGEST)
    names = [textwrap.fill(row["rung"], room) for row in rows]
    gains = {row["rung"]: row for row in ladder.gains().to_dicts()}
    removed = [_removed(gains.get(row["rung"]), room) for row in rows]
    top = _LINE * (max(name.count("\n") for name in names) + 1) + 0.2
    below = top + _LINE * max(len(lines) for lines, _ in removed) + _LINE
    page = Sheet(result.sentence(ladder), _notes(ladder, table), [3.1 + below])
    (ax,) = page.parts
    highest = max(row["samples_per_s_high"] or row["samples_per_s"] for row in rows)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylim(0, highest * 1.16)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter("{x:,.4g}")
    ax.grid(axis="y")
    ax.set_ylabel("samples per second")
    ax.set_xticks(range(len(rows)), names)
    ax.tick_params(axis="x", length=0)
    blocks = blocks_of(ladder.blocks)
    for place, (row, texts) in enumerate(zip(rows, removed, strict=True)):
        its = [block for block in blocks if result.RUNGS[block.variant].name == row["rung"]][
            -_MOST_DOTS:
        ]
        _draw_rung(ax, place, row, [block.samples / block.seconds for block in its])
        if row["rung"] in gains:
            colour = COLOURS[_KIND[row["rung"]]]
            # From the height of the previous bar to the height of this bar
            before, after = (rows[at]["samples_per_s"] for at in (place - 1, place))
            across = place - _WIDTH / 2 - 0.09
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (across, after), (across, before), arrowprops=arrow)
            ax.hlines(before, place - 1 + _WIDTH / 2, across, color=colour, lw=0.8, ls=":")
            _write_removed(ax, (place, top), texts, colour)
    return page


def _removed(gain: dict[str, Any] | None, room: int) -> tuple[list[str], str]:
    """Return the lines that name the cost removed by a rung, and its speedup."""
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
    """Write below a bar and a rule in the cost's colour, at a distance in inches."""
    (place, down), (lines, factor) = at, removed

    def below(inches: float) -> dict[str, Any]:
        offset = ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
        return {"transform": ax.get_xaxis_transform() + offset}

    rule: dict[str, Any] = {"color": colour, "lw": 2.5, "clip_on": False}
    ax.plot([place - 0.3, place + 0.3], [0, 0], **rule, **below(down))
    look: dict[str, Any] = {"ha": "center", "va": "top"}
    ax.text(place, 0, "\n".join(lines), color=sheet.FAINT, **look, **below(down + 0.05))
    end = down + 0.05 + len(lines) * _LINE
    ax.text(place, 0, factor, weight="bold", **look, **below(end))


def _notes(ladder: Ladder, rows: pl.DataFrame) -> list[str]:
    starts, blocks = int(rows["starts"].max() or 0), int(rows["blocks"].sum())  # type: ignore[arg-type]
    shown = (
        f"bars: samples per second over {count(starts, 'start')} a rung, {count(blocks, 'block')}"
    )
    has_device = rows["device_busy_share"].is_not_null().any()
    what = "device busy" if has_device else "the loop in the step"
    percent = "" if rows["step_share"].is_null().all() else f" · %: {what}"
    head = f"{shown} in all · dots: single blocks · lines: {INTERVAL}{percent}"
    return [head, *result.notes_of(ladder)]


def _draw_rung(ax: Axes, place: int, row: dict[str, Any], dots: list[float]) -> None:
    """Draw a bar with its interval, its blocks and the device's busy share."""
    rate = row["samples_per_s"]
    ax.bar(place, rate, _WIDTH, color=COLOURS["step"] if row["rung"] in result.WHOLE else _BAR)
    ends = (row["samples_per_s_low"], row["samples_per_s_high"])
    sheet.draw_interval(ax, place, rate, ends, cap=6.0, vertical=True)
    step = _WIDTH * 0.7 / max(len(dots) - 1, 1)
    across = [place - _WIDTH * 0.35 + step * number for number in range(len(dots))]
    ax.plot(across, dots, "o", ms=3, color=sheet.PAPER, mec=sheet.INK, mew=0.6, zorder=4)
    busy = row["device_busy_share"]
    busy = row["step_share"] if busy is None else busy
    label = f"{rate:,.0f}" if busy is None else share(busy)
    height = max(ends[1] or rate, *dots, rate) + ax.get_ylim()[1] * 0.0215
    ax.text(place, height, label, ha="center", va="bottom", weight="bold", size=sheet.TEXT_SIZE + 1)
