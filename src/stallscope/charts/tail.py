"""One stage over all samples: how its times are distributed, and where its slow end begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from stallscope.charts.sheet import (
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    linear_time,
    log_time,
    sheet,
    spans_decades,
    styled,
    text_width,
)
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, plural, printable, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet


BINS: Final = 60
PERCENTILE: Final = 95


@dataclass(frozen=True)
class Tail:
    """A stage's times and the percentile that is asked about."""

    stage: str
    kind: str
    per: str
    """"sample" or "batch"."""
    times_s: np.ndarray
    percentile: int = PERCENTILE
    """Between 0 and 100."""
    where: str = "all workers"
    """Which processes, in words."""

    @property
    def limit_s(self) -> float:
        """Where the slow end begins."""
        return float(np.percentile(self.times_s, self.percentile))

    @property
    def beyond_s(self) -> np.ndarray:
        """The times of the slow end."""
        return self.times_s[self.times_s > self.limit_s]


def picture(tail: Tail, note: str) -> Sheet:
    """The distribution of one stage.

    Args:
        tail: what to draw.
        note: what was left out.
    """
    population = f"{count(tail.times_s.size, tail.per)} · {tail.where} · {note}"
    log = spans_decades(float(tail.times_s.min()), float(tail.times_s.max()))
    axis = f"time in {printable(tail.stage)}, one {tail.per}{' (log scale)' if log else ''}"
    body = SheetPart(1.9, above=0.35, axis=axis, left=0.45, right=0.4)
    made, (ax,) = sheet(title(tail), (population,), [body])
    with styled():
        draw(ax, tail)
    return made


def title(tail: Tail) -> str:
    """Where the slow end begins and what it takes."""
    whole = float(tail.times_s.sum())
    name = printable(tail.stage)
    if not tail.beyond_s.size or not whole:
        return f"No {tail.per} takes longer than {seconds(tail.limit_s)} in {name}"
    part = tail.beyond_s.size / tail.times_s.size
    taken = float(tail.beyond_s.sum()) / whole
    those = f"{share(part)} of the {tail.per}{plural(tail.per)}"
    return f"{those} take over {seconds(tail.limit_s)} in {name}: {share(taken)} of its time"


def draw(ax: Axes, tail: Tail) -> Axes:
    """Draw the histogram; the slow end stands out."""
    edges = _axis(ax, tail.times_s)
    counts, _ = np.histogram(tail.times_s, edges)
    colours = [STALL_COLOUR if left >= tail.limit_s else COLOURS[tail.kind] for left in edges[:-1]]
    ax.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours, linewidth=0)
    top = max(int(counts.max()), 1) * 1.05
    ax.set_ylim(0, top)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.grid(axis="y", color=RULE, linewidth=0.6)
    ax.set_ylabel(f"{tail.per}{plural(tail.per)}", size=SMALL_SIZE)
    _mark(ax, tail, top)
    return ax


def _axis(ax: Axes, times_s: np.ndarray) -> np.ndarray:
    """Set the axis and give the bins' edges."""
    low, high = float(times_s.min()), float(times_s.max())
    bins = int(np.clip(times_s.size // 4, 8, BINS))
    if spans_decades(low, high):
        log_time(ax, low, high)
        return np.geomspace(low, high * 1.0001, bins + 1)
    linear_time(ax, high * 1.05 or 1e-6, 0.0 if low < high / 2 else low - (high - low) * 0.2)
    return np.linspace(low, high * 1.0001 or 1e-6, bins + 1)


def _mark(ax: Axes, tail: Tail, top: float) -> None:
    text = f"p{tail.percentile}: {seconds(tail.limit_s)}"
    if tail.beyond_s.size:
        ax.axvspan(tail.limit_s, ax.get_xlim()[1], color=STALL_COLOUR, alpha=0.07, linewidth=0)
    ax.plot([tail.limit_s] * 2, [0, top], color=INK, linewidth=1.4)
    at = float(ax.transAxes.inverted().transform(ax.transData.transform((tail.limit_s, top)))[0])
    room = text_width(text, TEXT_SIZE) / 7
    ax.text(
        min(max(at, room / 2), 1 - room / 2),
        1.03,
        text,
        transform=ax.transAxes,
        ha="center",
        va="bottom",
        size=TEXT_SIZE,
        weight="bold",
    )
