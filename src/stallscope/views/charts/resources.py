"""What was used on the time axis of the loop: a row a resource, bands where the loop stands still.

The first row is the loop's own. A resource that was used up while the loop stood still has its name
in the stall's colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.colors import to_rgb

from stallscope.analyze.looptime import NO_LOOP
from stallscope.analyze.usage import usage
from stallscope.analyze.usedup import sentence
from stallscope.resources import DISK_BUSY, NAMES
from stallscope.stages import STALL_COLOUR
from stallscope.units import count, seconds, share
from stallscope.views.charts.axes import linear_time
from stallscope.views.charts.captions import nothing
from stallscope.views.charts.resourcerows import Row, rows
from stallscope.views.charts.style import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    Part,
    sheet,
    styled,
)
from stallscope.views.loop import small_print
from stallscope.views.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from stallscope.analyze.usage import Usage
    from stallscope.run import Run
    from stallscope.views.charts.resourcerows import Line
    from stallscope.views.charts.style import Sheet

NOT_SAMPLED: Final = "Nothing was sampled: it is not known what was used"
MOST_LABELS: Final = 2
"""Lines of a row that are named; the largest."""
BAND: Final = 0.2
"""Opacity of the band behind the rows where the loop stands still all the time."""
_LEFT, _RIGHT = 1.95, 1.75
_HEIGHT, _GAP, _LOOP_HEIGHT = 0.42, 0.12, 0.3
_LABEL: Final = 0.16
_LINE: Final = "#444444"
_THIN: Final = "#9A9A9A"


def figure(run: Run) -> Sheet:
    """The resources as a picture."""
    found = usage(run)
    if found is None:
        looped = run.steps()["start_ns"].drop_nulls().len()
        return sheet(NOT_SAMPLED if looped else NO_LOOP, nothing(run), [])[0]
    shown_rows = rows(found)
    made, axes = sheet(sentence(found.judged), _notes(run, found), list(_parts(shown_rows)))
    with styled():
        _draw_loop(axes[0], found)
        for ax, row in zip(axes[1:], shown_rows, strict=True):
            _draw_row(ax, row, found)
        for ax in axes[:-1]:
            ax.tick_params(axis="x", length=0, labelbottom=False)
    return made


def _parts(shown_rows: Sequence[Row]) -> Iterator[Part]:
    """The rows; the last one carries the axis."""
    axis = "time since the start of the run"
    for place, height in enumerate([_LOOP_HEIGHT, *(_HEIGHT for _ in shown_rows)]):
        last = place == len(shown_rows)
        yield Part(height, _GAP, axis if last else "", left=_LEFT, right=_RIGHT)


def _notes(run: Run, found: Usage) -> list[str]:
    length_s = found.end_s - found.begin_s
    rate = found.samples / length_s if length_s else 0.0
    cost = f" · sampling took {found.cost_share:.1%} of one core" if found.cost_share else ""
    sampled = f"{count(found.samples, 'sample')} ({rate:.2g} a second){cost}"
    key = "bands: the loop stands still · dotted: from here on a resource counts as used up"
    lines = [
        f"{seconds(length_s)} of the steady state, {sampled}",
        f"{key} · numbers at the right: means",
    ]
    if found.missing:
        absent = ", ".join(NAMES.get(name, shown(name)) for name in found.missing)
        lines.append(f"not there, or not read: {absent}")
    if any(use["resource"] == DISK_BUSY for use in found.judged.used_up):
        lines.append("a disk that serves requests side by side (SSD) may do more than when 'busy'")
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1 and found.judged.stood:
        lines.append(f"shown: rank {found.judged.stood.rank} of {ranks}, which stands still most")
    return [*lines, *small_print(run)]


def _draw_loop(ax: Axes, found: Usage) -> None:
    """When the loop stands still, as a share of each bin."""
    edges = found.begin_s + np.arange(len(found.stalled) + 1) * found.bin_s
    ax.stairs(found.stalled, edges, fill=True, color=STALL_COLOUR, lw=0)
    stood = found.judged.stood
    label = [f"{share(stood.share)} of the time"] if stood else []
    _frame(ax, found, "loop stands still", top=1.0, tick="100%", colour=STALL_COLOUR)
    _label(ax, label, _LOOP_HEIGHT)


def _draw_row(ax: Axes, row: Row, found: Usage) -> None:
    band = np.zeros((1, len(found.stalled), 4))
    band[..., :3] = to_rgb(STALL_COLOUR)
    band[..., 3] = BAND * found.stalled
    ends = (found.begin_s, found.end_s, 0.0, row.top * 1.05)
    ax.imshow(band, aspect="auto", extent=ends, zorder=0, interpolation="nearest")
    for line in row.lines:
        _draw_line(ax, line)
    if row.threshold is not None and row.threshold <= row.top:
        ax.axhline(row.threshold, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    tick = _round_below(row.top)
    colour = STALL_COLOUR if row.used_up else INK
    _frame(ax, found, row.name, top=row.top, at=tick, tick=row.tick(tick), colour=colour)
    _label(ax, list(_named(row)), _HEIGHT)


def _draw_line(ax: Axes, line: Line) -> None:
    look: dict[str, Any] = {"color": _LINE, "linewidth": 1.4, "zorder": 3}
    if line.thin:
        look = {"color": _THIN, "linewidth": 0.7, "zorder": 2}
    if line.dashed:
        look["linestyle"] = (0, (3, 1.5))
    at_s, values = line.values["at_s"].to_numpy(), line.values["value"].to_numpy()
    look |= {"marker": "o", "markersize": 3.0} if len(at_s) == 1 else {}
    ax.plot(at_s, values, **look)


def _named(row: Row) -> Iterator[str]:
    """The lines' names and means, the largest first."""
    lines = sorted((one for one in row.lines if not one.thin), key=lambda one: -one.mean)
    for line in lines[: MOST_LABELS if len(lines) <= MOST_LABELS else MOST_LABELS - 1]:
        dashes = " (dashed)" if line.dashed else ""
        yield f"{row.label(line)}{dashes}"
    if len(lines) > MOST_LABELS:
        yield f"and {len(lines) - MOST_LABELS + 1} more"


def _frame(  # noqa: PLR0913 - one row's outside
    ax: Axes, found: Usage, name: str, *, top: float, tick: str, colour: str, at: float = 1.0
) -> None:
    linear_time(ax, found.end_s, found.begin_s)
    ax.set_ylim(0, top * 1.05)
    ax.set_yticks([0, at], ["0", tick], size=SMALL_SIZE, color=FAINT)
    ax.spines["bottom"].set_color(RULE)
    weight = "bold" if colour == STALL_COLOUR else "normal"
    inches = ax.get_figure().get_figwidth() * ax.get_position().width  # type: ignore[union-attr]
    look: dict[str, Any] = {"size": TEXT_SIZE, "color": colour, "weight": weight}
    place = (-_LEFT / inches, 0.5)
    ax.text(*place, name, transform=ax.transAxes, ha="left", va="center", **look)


def _label(ax: Axes, told: list[str], height: float) -> None:
    """Lines of text at the right of a row."""
    step = _LABEL / height
    for place, text in enumerate(told):
        up = 0.5 + step * ((len(told) - 1) / 2 - place)
        ax.text(1.015, up, text, transform=ax.transAxes, size=SMALL_SIZE, color=INK, va="center")


def _round_below(top: float) -> float:
    """The largest of 1, 2, 5, 10, 20 and so on that is not above."""
    decade = 10.0 ** np.floor(np.log10(top))
    return float(max(step * decade for step in (1, 2, 5) if step * decade <= top * (1 + 1e-9)))
