"""Time against file size and against pixels, and whether they explain it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.analyze.headline import NOTHING
from stallscope.analyze.profile import profile
from stallscope.analyze.size import explain
from stallscope.stages import COLOURS
from stallscope.units import count, size
from stallscope.views.charts.axes import log_time, spans_decades, time_label
from stallscope.views.charts.captions import nothing, population
from stallscope.views.charts.style import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    Part,
    sheet,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.size import Explained
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

MOST_DOTS: Final = 1500
_LEFT: Final = Part(2.6, above=0.2, left=0.75, right=WIDTH / 2 + 0.05)
"""The first of two charts beside each other."""
_WIDE: Final = Part(2.3, above=0.2, left=0.75, right=0.3)


@dataclass(frozen=True)
class Panel:
    """One of the charts."""

    what: str
    sizes: np.ndarray
    times_s: np.ndarray
    files: int
    said: Explained


def figure(run: Run) -> Sheet:
    """Time against size as a picture."""
    found, panels = profile(run.work), panels_of(run)
    if not panels:
        told = "Neither file sizes nor pixels are known for these samples"
        return sheet(told if found.stages else NOTHING, nothing(run), [])[0]
    notes = _notes(panels, population(run, found))
    drawn = [panel for panel in panels if panel.said.different > 1]
    if not drawn:
        return sheet(title(panels), notes, [])[0]
    body = replace(_LEFT if len(drawn) > 1 else _WIDE, axis=_axis_name(drawn[0]))
    made, [ax] = sheet(title(panels), notes, [body])
    with styled():
        for place, panel in zip(
            [ax, *([_beside(ax)] if len(drawn) > 1 else [])], drawn, strict=True
        ):
            draw(place, panel)
        ax.set_ylabel("time of one sample", size=SMALL_SIZE)
    return made


def _beside(ax: Axes) -> Axes:
    box = ax.get_position()
    place = (box.x0 + box.width + 0.55 / WIDTH, box.y0, box.width, box.height)
    other: Axes = ax.figure.add_axes(place, sharey=ax)
    other.spines[["top", "right"]].set_visible(False)
    other.tick_params(labelleft=False, labelsize=TEXT_SIZE, colors=INK, which="both", length=3)
    other.spines[["left", "bottom"]].set_color(FAINT)
    return other


def panels_of(run: Run) -> list[Panel]:
    """What is known about the samples' sizes: bytes of their files, pixels, both or nothing."""
    table = run.samples().with_columns(pixels=pl.col("width").cast(pl.Int64) * pl.col("height"))
    panels = [_panel(table, "bytes", "file size"), _panel(table, "pixels", "number of pixels")]
    return [panel for panel in panels if panel]


def _panel(table: pl.DataFrame, column: str, what: str) -> Panel | None:
    rows = table.filter(pl.col(column).is_not_null())
    if rows.is_empty():
        return None
    values, times_s = rows[column].to_numpy().astype(float), rows["total_s"].to_numpy()
    files = rows["path"].drop_nulls().n_unique()
    return Panel(what, values, times_s, files, explain(values, times_s, what))


def title(panels: list[Panel]) -> str:
    """The sentence of the size that says more."""
    best = max(panels, key=_strength)
    sentence = best.said.sentence
    return sentence[0].upper() + sentence[1:]


def _notes(panels: list[Panel], of: str) -> list[str]:
    files = panels[0].files
    lines = [of]
    if files:
        lines[0] += f" · {count(files, 'file')}"
    best = max(panels, key=_strength)
    lines += [panel.said.sentence for panel in panels if panel is not best]
    if any(panel.said.rho is not None for panel in panels):
        lines.append("Spearman: 1 where the larger always takes longer, 0 where size says nothing")
    return lines


def _strength(panel: Panel) -> float:
    return abs(panel.said.rho or 0.0)


def draw(ax: Axes, panel: Panel) -> Axes:
    """Draw every sample, and the median time of each quarter of them by size."""
    step = -(-panel.sizes.size // MOST_DOTS)
    ax.scatter(
        panel.sizes[::step],
        panel.times_s[::step],
        s=9,
        color=COLOURS["decode"],
        alpha=0.5,
        linewidth=0,
    )
    _draw_medians(ax, panel)
    low, high = float(panel.times_s.min()), float(panel.times_s.max())
    if spans_decades(low, high):
        log_time(ax, low, high, vertical=True)
    else:
        ax.set_ylim(0, high * 1.08)
    ax.yaxis.set_major_formatter(FuncFormatter(time_label))
    _size_axis(ax, panel)
    ax.grid(axis="y", color=RULE, linewidth=0.6)
    return ax


def _draw_medians(ax: Axes, panel: Panel) -> None:
    if panel.said.rho is None:
        return
    order = np.argsort(panel.sizes, kind="stable")
    quarters = np.array_split(order, 4)
    x = [float(np.median(panel.sizes[quarter])) for quarter in quarters]
    y = [float(np.median(panel.times_s[quarter])) for quarter in quarters]
    ax.plot(x, y, color=INK, linewidth=1.6, marker="o", markersize=4)


def _size_axis(ax: Axes, panel: Panel) -> None:
    text = size if panel.what == "file size" else _megapixels
    low, high = float(panel.sizes.min()), float(panel.sizes.max())
    room = (high - low) * 0.06 or high * 0.2 or 1.0
    ax.set_xlim(low - room, high + room)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    ax.set_xlabel(_axis_name(panel), size=SMALL_SIZE, color=FAINT)


def _megapixels(value: float) -> str:
    return f"{value / 1e6:g} million"


def _axis_name(panel: Panel) -> str:
    line = " · line: median of each quarter" if panel.said.rho is not None else ""
    return f"{panel.what}{line}"
