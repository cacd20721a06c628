"""Time against file size and against pixels, and whether they explain it.

Whether a sample's size explains its time: a rank correlation and the sentence that it allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    SheetPart,
    log_time,
    sheet,
    spans_decades,
    styled,
    time_label,
)
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import NOTHING, profile
from stallscope.stages import COLOURS
from stallscope.units import count, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


FEWEST: Final = 20
"""With fewer samples no sentence about them is made."""
FEWEST_SIZES: Final = 5
"""With fewer different sizes neither."""
WEAK: Final = 0.3
STRONG: Final = 0.6
"""Bounds of the absolute rank correlation (a convention: it squares to 9% and 36%)."""


@dataclass(frozen=True)
class Explained:
    """What size says about time."""

    rho: float | None
    """Spearman's rank correlation; None where it says nothing."""
    n: int
    """Number of samples."""
    different: int
    """Number of different sizes."""
    sentence: str
    """What may be said."""


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None where one is constant.

    Source: Spearman, "The Proof and Measurement of Association between Two Things" (1904).
    """
    ranks = np.vstack([_ranks(x), _ranks(y)])
    if x.size < 2 or not ranks.std(axis=1).all():  # noqa: PLR2004 - one point has no correlation
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def explain(sizes: np.ndarray, times_s: np.ndarray, what: str) -> Explained:
    """Say whether size explains time.

    Args:
        sizes: one for each sample, in any unit.
        times_s: seconds for each sample.
        what: the size in words, as "file size".
    """
    n, different = int(sizes.size), int(np.unique(sizes).size)
    if n < FEWEST:
        few = f"too few samples ({n}) to say whether the {what} explains the time"
        return Explained(None, n, different, few)
    if different == 1:
        same = f"all samples have the same {what}: it explains no difference"
        return Explained(None, n, different, same)
    if different < FEWEST_SIZES:
        few = f"only {different} different values of {what}: too few to say what it explains"
        return Explained(None, n, different, few)
    rho = spearman(sizes, times_s)
    told = f"{_verdict(rho or 0.0, what)} (Spearman {rho or 0.0:.2f}, n = {n:,})"
    return Explained(rho, n, different, told)


def _verdict(rho: float, what: str) -> str:
    if abs(rho) < WEAK:
        return f"the time is not explained by the {what}"
    if rho < 0:
        return f"samples with a larger {what} take less time, so it is not what makes them slow"
    return f"the {what} explains {'much' if rho >= STRONG else 'a part'} of the time"


MOST_DOTS: Final = 1500
_LEFT: Final = SheetPart(2.6, above=0.2, left=0.75, right=WIDTH / 2 + 0.05)
"""The first of two charts beside each other."""
_WIDE: Final = SheetPart(2.3, above=0.2, left=0.75, right=0.3)


@dataclass(frozen=True)
class SizeChart:
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


def panels_of(run: Run) -> list[SizeChart]:
    """What is known about the samples' sizes: bytes of their files, pixels, both or nothing."""
    table = run.samples().with_columns(pixels=pl.col("width").cast(pl.Int64) * pl.col("height"))
    panels = [_panel(table, "bytes", "file size"), _panel(table, "pixels", "number of pixels")]
    return [panel for panel in panels if panel]


def _panel(table: pl.DataFrame, column: str, what: str) -> SizeChart | None:
    rows = table.filter(pl.col(column).is_not_null())
    if rows.is_empty():
        return None
    values, times_s = rows[column].to_numpy().astype(float), rows["total_s"].to_numpy()
    files = rows["path"].drop_nulls().n_unique()
    return SizeChart(what, values, times_s, files, explain(values, times_s, what))


def title(panels: list[SizeChart]) -> str:
    """The sentence of the size that says more."""
    best = max(panels, key=_strength)
    sentence = best.said.sentence
    return sentence[0].upper() + sentence[1:]


def _notes(panels: list[SizeChart], of: str) -> list[str]:
    files = panels[0].files
    lines = [of]
    if files:
        lines[0] += f" · {count(files, 'file')}"
    best = max(panels, key=_strength)
    lines += [panel.said.sentence for panel in panels if panel is not best]
    if any(panel.said.rho is not None for panel in panels):
        lines.append("Spearman: 1 where the larger always takes longer, 0 where size says nothing")
    return lines


def _strength(panel: SizeChart) -> float:
    return abs(panel.said.rho or 0.0)


def draw(ax: Axes, panel: SizeChart) -> Axes:
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


def _draw_medians(ax: Axes, panel: SizeChart) -> None:
    if panel.said.rho is None:
        return
    order = np.argsort(panel.sizes, kind="stable")
    quarters = np.array_split(order, 4)
    x = [float(np.median(panel.sizes[quarter])) for quarter in quarters]
    y = [float(np.median(panel.times_s[quarter])) for quarter in quarters]
    ax.plot(x, y, color=INK, linewidth=1.6, marker="o", markersize=4)


def _size_axis(ax: Axes, panel: SizeChart) -> None:
    text = size if panel.what == "file size" else _megapixels
    low, high = float(panel.sizes.min()), float(panel.sizes.max())
    room = (high - low) * 0.06 or high * 0.2 or 1.0
    ax.set_xlim(low - room, high + room)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    ax.set_xlabel(_axis_name(panel), size=SMALL_SIZE, color=FAINT)


def _megapixels(value: float) -> str:
    return f"{value / 1e6:g} million"


def _axis_name(panel: SizeChart) -> str:
    line = " · line: median of each quarter" if panel.said.rho is not None else ""
    return f"{panel.what}{line}"
