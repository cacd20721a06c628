"""The lanes of a timeline: the workers' batches, the loop below them, and arrows between the two.

Numbers are batches. One that a long stall waited for has the stall's colour in its worker's lane
and under the loop, and an arrow leads from where it comes to the end of the stall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.patheffects import withStroke

from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.views.charts import looplane
from stallscope.views.charts.axes import linear_time
from stallscope.views.charts.style import INK, PAPER, SMALL_SIZE, TEXT_SIZE, text_width
from stallscope.views.charts.timelayout import LOOP_HALF, box
from stallscope.views.names import worker_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.analyze.timeline import Timeline
    from stallscope.views.charts.timelayout import Layout

LOOP: Final = "training loop"
ORDER: Final = ("fetch", "decode", "transform", "other", "collate")
"""In which a batch's kinds are drawn."""
UNKNOWN: Final[dict[str, Any]] = {
    "facecolor": PAPER,
    "edgecolor": "#AAAAAA",
    "hatch": "....",
    "linewidth": 0.6,
}
"""How a batch looks that was not recorded."""
_HALF: Final = 0.36
"""Of a batch's box, in lanes."""
_SEND: Final = 0.1
"""Height of the mark of sending, in lanes."""


def draw(ax: Axes, found: Timeline, layout: Layout) -> Axes:
    """Draw the lanes, the loop, and the lines from a batch to the stall that it ended."""
    linear_time(ax, found.length_s)
    _name_lanes(ax, layout)
    for block in found.blocks.iter_rows(named=True):
        row = layout.lanes.get(block["worker"])
        if row is not None:
            _draw_block(ax, block, row)
            _number_block(ax, block, found, layout)
    for sent in found.sends.iter_rows(named=True):
        _draw_send(ax, sent, layout)
    looplane.draw(ax, found, layout)
    for stall in layout.arrows:
        _lead(ax, stall, layout)
    return ax


def _name_lanes(ax: Axes, layout: Layout) -> None:
    names = [worker_name(worker) for worker in layout.lanes]
    ax.set_yticks([*range(len(names)), layout.loop], [*names, LOOP], size=TEXT_SIZE, color=INK)
    ax.set_ylim(layout.bottom, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _draw_block(ax: Axes, block: dict[str, Any], row: int) -> None:
    start, end = block["start_s"], block["end_s"]
    if not block["recorded"]:
        box(ax, (start, end), row, _HALF, **UNKNOWN)
    for kind in ORDER:
        box(ax, (start, start + block[kind]), row, _HALF, color=COLOURS[kind], lw=0)
        start += block[kind]
    ax.plot([block["start_s"]] * 2, [row - _HALF, row + _HALF], color=INK, linewidth=1.4)


def _number_block(ax: Axes, block: dict[str, Any], found: Timeline, layout: Layout) -> None:
    """In the middle of what is seen of it, where there is room for it."""
    begin, end = max(block["start_s"], 0.0), min(block["end_s"], found.length_s)
    text, marked = (
        str(block["batch"]),
        layout.awaits({name: block[name] for name in ("epoch", "batch")}),
    )
    if (text_width(text, SMALL_SIZE, bold=True) + 0.12) * layout.inch <= end - begin:
        _chip(ax, ((begin + end) / 2, layout.lanes[block["worker"]]), text, marked=marked)


def _chip(ax: Axes, at: tuple[float, float], text: str, *, marked: bool) -> None:
    ground = {"boxstyle": "round,pad=0.16", "lw": 0, "facecolor": PAPER, "alpha": 0.92}
    if marked:
        ground |= {"facecolor": STALL_COLOUR, "alpha": 1.0}
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "bbox": ground, "zorder": 5}
    ax.text(*at, text, size=SMALL_SIZE, weight="bold", color=PAPER if marked else INK, **look)


def _draw_send(ax: Axes, sent: dict[str, Any], layout: Layout) -> None:
    """A thin mark under the lane of whoever sends; pinning is next to the loop."""
    row = layout.loop if sent["kind"] == "pin" else layout.lanes.get(sent["worker"])
    if row is None:
        return
    half = LOOP_HALF if sent["kind"] == "pin" else _HALF
    bottom, span = row + half + 0.02 + _SEND / 2, (sent["start_s"], sent["end_s"])
    box(ax, span, bottom, _SEND / 2, color=COLOURS[sent["kind"]], lw=0.8)


def _lead(ax: Axes, stall: dict[str, Any], layout: Layout) -> None:
    row = layout.lanes[stall["worker"]]
    effects = [withStroke(linewidth=3.2, foreground=PAPER, alpha=0.85)]
    xs = (stall["left_s"], stall["end_s"])
    ys = (row + _HALF + 0.02 + _SEND, layout.loop - LOOP_HALF)
    ax.plot(xs, ys, color=INK, linewidth=1.1, path_effects=effects, zorder=4)
    ax.plot(xs[1:], ys[1:], marker="v", markersize=5, color=INK, zorder=4)
