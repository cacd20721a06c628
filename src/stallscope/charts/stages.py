"""The default picture of a run: one sample as a bar, and beneath it the spread of each stage.

The bar has each stage's mean time, in the order in which a sample meets them. Beneath it, single
samples are dots, with the median and the 95th percentile marked: a mean hides whether a stage is
always slow or sometimes very slow, and those have different causes. A panel shows one stage's
distribution, and where its slow end begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from stallscope.charts.bars import Strip, StripPiece
from stallscope.charts.sheet import (
    AXIS,
    INK,
    RULE,
    TEXT_SIZE,
    Sheet,
    linear_time,
    name_rows,
    spans_decades,
    styled,
    time_axis,
    wrapped,
    write_columns,
)
from stallscope.run.stall_text import nothing, population
from stallscope.run.summary import headline, profile, remarks, stage_name
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, plural, printable, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.run.result import Run
    from stallscope.run.summary import Profile, StageTimes


SMALLEST: Final = 0.02
"""Stages with a smaller share of the bar are put together, where there are several."""
WAITING_SHOWN: Final = 0.1
"""Waiting is drawn from this share of a stage on: less is lost in the clocks."""
KEY: Final = "light and hatched: waiting, not on a CPU (disk, network, a busy machine)"
MOST_ROWS: Final = 12
MOST_DOTS: Final = 250
_ROW: Final = 0.27
_COLUMNS: Final = {"share": 0.55, "p50": 1.2, "p95": 1.85, "waiting": 2.5}
"""Where each column ends at the right, inches from the dots."""
BINS: Final = 60


def figure(run: Run) -> Sheet:
    """Where a sample's time goes, and below it how that is spread."""
    return _figure(run, spread=True)


def sample_figure(run: Run) -> Sheet:
    """The bar as a picture of its own."""
    return _figure(run, spread=False)


@styled
def _figure(run: Run, *, spread: bool) -> Sheet:
    found = profile(run.work)
    if not found.stages:
        return Sheet(headline(found, printable), nothing(run))
    strip = Strip(pieces_of(found))
    spread_height = _ROW * (len(found.stages[:MOST_ROWS]) + 1) + AXIS + 0.2
    notes = [population(run, found), *remarks(found), *(run.notes if spread else ())]
    heights = [strip.height + AXIS + 0.2, *[spread_height] * spread]
    made = Sheet(headline(found, printable), notes, heights)
    _draw_bar(made.parts[0], found, strip)
    if spread:
        _draw_spread(made.parts[1], found)
    return made


def pieces_of(found: Profile) -> list[StripPiece]:
    """The pieces from left to right; small ones together, what is per batch last."""
    inside = [stage for stage in found.stages if stage.per == found.unit]
    small = [stage for stage in inside if stage.share < SMALLEST]
    small = small if len(small) > 1 else []
    # What no hook can name is all over the sample: it comes after what has a place in it
    drawn = [stage for stage in inside if not any(stage is one for one in small)]
    drawn.sort(key=lambda stage: (stage.kind == "other", stage.place))
    beside = [stage for stage in found.stages if stage.per != found.unit]
    pieces = [_piece(stage) for stage in drawn]
    if small:
        mean_s, part = sum(stage.mean_s for stage in small), sum(stage.share for stage in small)
        pieces.append(_named_piece(f"{len(small)} more", "other", mean_s, part))
    return pieces + [_piece(stage) for stage in beside if stage.share >= SMALLEST]


def _piece(stage: StageTimes) -> StripPiece:
    waiting = stage.waiting_share or 0.0
    waiting = waiting if waiting >= WAITING_SHOWN else 0.0
    name = printable(stage.stage, 24)
    return _named_piece(name, stage.kind, stage.mean_s, stage.share, waiting)


def _named_piece(
    name: str, kind: str, mean_s: float, part: float, waiting: float = 0.0
) -> StripPiece:
    numbers = f"{share(part)} · {seconds(mean_s)}"
    return StripPiece(name, mean_s, numbers, COLOURS[kind], f"{name} {share(part)}", waiting)


def _draw_bar(ax: Axes, found: Profile, strip: Strip) -> None:
    linear_time(ax, strip.total)
    strip.fill(ax)
    unread = sum(stage.cpu_share is None for stage in found.stages)
    parts = [f"mean time of a worker per {found.unit}"]
    if any(stage.per != found.unit for stage in found.stages):
        parts[0] += ", with its part of the batch's collate"
    if any(piece.waiting for piece in pieces_of(found)):
        parts.append(KEY)
    if unread == len(found.stages):
        parts.append("computing and waiting are not distinguished")
    elif unread:
        parts.append(f"not distinguished from waiting: {count(unread, 'stage')}")
    ax.set_xlabel("\n".join(wrapped(" · ".join(parts), 135)))


def _draw_spread(ax: Axes, found: Profile) -> None:
    """Draw the dots, the marks and the columns of numbers."""
    drawn, hidden = found.stages[:MOST_ROWS], found.stages[MOST_ROWS:]
    every = np.concatenate([stage.times_s[stage.times_s > 0] for stage in drawn])
    low, high = (float(every.min()), float(every.max())) if every.size else (1e-6, 1e-3)
    time_axis(ax, low, high)
    name_rows(ax, [stage_name(stage, found.unit) for stage in drawn])
    for height, stage in enumerate(drawn):
        ax.axhline(height, color=RULE, linewidth=0.6, zorder=0)
        _draw_row(ax, stage, height, low)
    cells = [
        (
            share(stage.share),
            seconds(stage.quantile_s(0.5)),
            seconds(stage.quantile_s(0.95)),
            share(stage.waiting_share),
        )
        for stage in drawn
    ]
    write_columns(ax, _COLUMNS, cells)
    log = " (log scale)" if spans_decades(low, high) else ""
    parts = [f"time in one {found.unit}{log}", "bars: p50 and p95"]
    if any(stage.times_s.size > MOST_DOTS for stage in found.stages):
        parts.append(f"dots: {MOST_DOTS} of {found.units:,}")
    if hidden:
        taken = share(sum(stage.share for stage in hidden))
        parts.append(f"not shown: {count(len(hidden), 'more stage')}, together {taken}")
    ax.set_xlabel("\n".join(wrapped(" · ".join(parts), 80)))


def _draw_row(ax: Axes, stage: StageTimes, height: int, low: float) -> None:
    times_s = np.maximum(thinned(stage.times_s), low)
    # The golden ratio's multiples fill a row evenly, the same way each time
    offset = (np.arange(times_s.size) * 0.618034) % 1 - 0.5
    colour = COLOURS[stage.kind]
    ax.scatter(times_s, height + offset * 0.5, s=6, color=colour, alpha=0.55, linewidth=0, zorder=2)
    for quantile, half, width in ((0.5, 0.33, 2.2), (0.95, 0.22, 1.6)):
        at = max(stage.quantile_s(quantile), low)
        ax.plot([at, at], [height - half, height + half], color=INK, linewidth=width, zorder=3)


def thinned(times_s: np.ndarray) -> np.ndarray:
    """At most `MOST_DOTS` of the times, evenly over their ranks, the smallest and largest too."""
    ordered = np.sort(times_s)
    if ordered.size <= MOST_DOTS:
        return ordered
    kept: np.ndarray = ordered[np.linspace(0, ordered.size - 1, MOST_DOTS).round().astype(int)]
    return kept


@dataclass(frozen=True)
class Tail:
    """A stage's times and the percentile that is asked about."""

    stage: str
    kind: str
    per: str
    """"sample" or "batch"."""
    times_s: np.ndarray
    percentile: int = 95
    """Between 0 and 100."""
    where: str = "all workers"
    """Which processes, in words."""

    @property
    def limit_s(self) -> float:
        """Where the slow end begins."""
        return float(np.percentile(self.times_s, self.percentile))

    @property
    def title(self) -> str:
        """Where the slow end begins and what it takes."""
        beyond_s = self.times_s[self.times_s > self.limit_s]
        whole = float(self.times_s.sum())
        name, limit = printable(self.stage), seconds(self.limit_s)
        if not beyond_s.size or not whole:
            return f"No {self.per} takes longer than {limit} in {name}"
        part, taken = share(beyond_s.size / self.times_s.size), share(float(beyond_s.sum()) / whole)
        those = f"{part} of the {self.per}{plural(self.per)}"
        return f"{those} take over {limit} in {name}: {taken} of its time"


@styled
def tail_figure(tail: Tail, note: str) -> Sheet:
    """The distribution of one stage, in which the slow end stands out.

    Args:
        tail: what to draw.
        note: what was left out.
    """
    population = f"{count(tail.times_s.size, tail.per)} · {tail.where} · {note}"
    made = Sheet(tail.title, (population,), [2.3 + AXIS])
    (ax,) = made.parts
    times_s, limit_s = tail.times_s, tail.limit_s
    low, high = float(times_s.min()), float(times_s.max())
    log = spans_decades(low, high)
    bins = int(np.clip(times_s.size // 4, 8, BINS)) + 1
    if log:
        time_axis(ax, low, high)
        edges = np.geomspace(low, high * 1.0001, bins)
    else:
        linear_time(ax, high * 1.05 or 1e-6, 0.0 if low < high / 2 else low - (high - low) * 0.2)
        edges = np.linspace(low, high * 1.0001 or 1e-6, bins)
    counts, _ = np.histogram(times_s, edges)
    colours = [STALL_COLOUR if left >= limit_s else COLOURS[tail.kind] for left in edges[:-1]]
    ax.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours, linewidth=0)
    ax.set_ylim(0, max(int(counts.max()), 1) * 1.05)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.grid(axis="y")
    ax.set_ylabel(f"{tail.per}{plural(tail.per)}")
    ax.set_xlabel(f"time in {printable(tail.stage)}, one {tail.per}{' (log scale)' if log else ''}")
    if high > limit_s:
        ax.axvspan(limit_s, ax.get_xlim()[1], color=STALL_COLOUR, alpha=0.07, linewidth=0)
    ax.axvline(limit_s, color=INK, linewidth=1.4)
    text = f"p{tail.percentile}: {seconds(limit_s)}"
    right = ax.transData.transform((limit_s, 0))[0] > ax.bbox.x0 + ax.bbox.width / 2
    look: dict[str, Any] = {"ha": "right" if right else "left", "va": "bottom", "weight": "bold"}
    ax.annotate(
        text,
        (limit_s, 1),
        (0, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        size=TEXT_SIZE,
        **look,
    )
    return made
