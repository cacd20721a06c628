"""The signature of a stalling loop: each worker's batches, and below them the loop that waits.

Numbers are batches. One that a long stall waited for has the stall's colour in its worker's lane
and under the loop, and an arrow leads from the moment at which it left its worker to the end of the
stall. A part of the loop that is too narrow for its name has it below, once, at the end of a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from stallscope.charts.sheet import (
    FAINT,
    INK,
    PAPER,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    draw_key,
    linear_time,
    place,
    sheet,
    styled,
    text_width,
)
from stallscope.run.stall_text import nothing, pattern_or_title, small_print
from stallscope.run.timeline import timeline
from stallscope.stages import COLOURS, OTHER, STALL_COLOUR
from stallscope.stalls.loop_time import NO_LOOP
from stallscope.units import count, printable, seconds, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Placed, Sheet
    from stallscope.run.result import Run
    from stallscope.run.timeline import Timeline

    Span = tuple[float, float]


MOST_ARROWS: Final = 12
"""To so many stalls, the longest first, an arrow leads."""
LONG: Final = 0.3
"""A stall that takes less of the longest one in the window has no arrow."""
GAP: Final = 0.55
"""Between the workers and the loop, in lanes."""
LOOP_HALF: Final = 0.5
"""Of the loop's boxes, in lanes."""
BELOW: Final = 0.95
"""From the middle of the loop to what is below its steps' numbers, in lanes."""
NAME_ROW: Final = 0.5
"""Height of a row of names below that, in lanes."""
_NAME_ROWS: Final = 3
_SEEN: Final = 0.02
"""What is narrower than so many inches is no more than a hair, and has no name."""
_MARGIN: Final = 0.08
_APART: Final = 0.06
"""Between a text and the ends of its part, and between two names, inches."""
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
MOST_LANES: Final = 16
MANY_LANES: Final = 8
_LANE, _LOW_LANE = 0.34, 0.28
"""Height of a lane, inches; the lower one where there are more than `MANY_LANES`."""
_RIGHT: Final = 0.3
_ABOVE: Final = 0.55
"""From the top to the middle of the first lane, in lanes."""
HALO: Final = withStroke(linewidth=3.0, foreground=PAPER)
"""A line that leads to a name may pass under a text."""


@dataclass(frozen=True)
class Called:
    """The name of a part of the loop that is too narrow for it, below a line that leads to it."""

    name: str
    placed: Placed
    """In seconds from the window's begin."""


@dataclass(frozen=True)
class Layout:
    """Where things stand."""

    lanes: dict[int | None, int]
    """Row of each worker that is shown."""
    inch: float
    """Seconds in an inch of the axis."""
    long: list[dict[str, Any]]
    """The stalls to which an arrow leads; rows of `Timeline.stalls`."""
    called: tuple[Called, ...] = ()

    @property
    def loop(self) -> float:
        """Row of the training loop."""
        return len(self.lanes) + GAP

    @property
    def bottom(self) -> float:
        """Where everything ends, in lanes."""
        rows = max((one.placed.row + 1 for one in self.called), default=0)
        return self.loop + BELOW + NAME_ROW * rows

    @property
    def arrows(self) -> list[dict[str, Any]]:
        """The stalls whose worker is shown, so that an arrow can lead to them."""
        return [stall for stall in self.long if stall["worker"] in self.lanes]

    def awaits(self, place: dict[str, Any]) -> bool:
        """Whether what has these values (of the batch, or of the step) is of a long stall."""
        return any(place.items() <= stall.items() for stall in self.long)


def long_stalls(found: Timeline) -> list[dict[str, Any]]:
    """The stalls to which an arrow leads, the longest first."""
    matters = pl.col("stall_s") >= LONG * pl.col("stall_s").max()
    long = found.stalls.filter(matters, pl.col("left_s") >= 0)
    return long.sort("stall_s", descending=True).head(MOST_ARROWS).to_dicts()


def called(found: Timeline, inch: float) -> tuple[Called, ...]:
    """The names that fit into none of their parts: each once, at the widest of them.

    Args:
        found: what is shown.
        inch: seconds in an inch of the axis.
    """
    widest: dict[str, tuple[float, float]] = {}
    for use in found.uses.filter(kind="other").iter_rows(named=True):
        span = seen(found, (use["start_s"], use["end_s"]))
        known = widest.setdefault(use["stage"], span)
        if span[1] - span[0] > known[1] - known[0]:
            widest[use["stage"]] = span
    narrow = [
        (printable(stage), span)
        for stage, span in widest.items()
        if stage != OTHER.name
        and _SEEN * inch <= span[1] - span[0]
        and not fits(printable(stage), span, inch)
    ]
    narrow.sort(key=lambda each: each[1][0] - each[1][1])
    wanted = [(sum(span) / 2, text_width(name, SMALL_SIZE) * inch) for name, span in narrow]
    places = place(wanted, (0.0, found.length_s), rows=_NAME_ROWS, gap=_APART * inch)
    return tuple(
        Called(name, placed)
        for (name, _), placed in zip(narrow, places, strict=True)
        if placed is not None
    )


def seen(found: Timeline, span: tuple[float, float]) -> tuple[float, float]:
    """What is inside of the window of a piece of time."""
    return max(span[0], 0.0), min(span[1], found.length_s)


def fits(text: str, span: tuple[float, float], inch: float) -> bool:
    """Whether a text has room in a piece of time."""
    return (text_width(text, SMALL_SIZE, bold=True) + _MARGIN) * inch <= span[1] - span[0]


def box(ax: Axes, span: tuple[float, float], row: float, half: float, **look: Any) -> None:
    """Draw a piece of time in a row."""
    start, end = span
    # The limits are known; `add_patch` would work them out from every box
    ax.add_artist(Rectangle((start, row - half), end - start, 2 * half, **look))


def draw_loop_lane(ax: Axes, found: Timeline, layout: Layout) -> None:
    """Draw the loop's lane, and what is written below it."""
    for use in found.uses.iter_rows(named=True):
        span, colour = (use["start_s"], use["end_s"]), COLOURS[use["kind"]]
        box(ax, span, layout.loop, LOOP_HALF, color=colour, lw=0)
        if use["kind"] == "other":
            _write_if_room(ax, seen(found, span), printable(use["stage"]), layout, INK)
    row = (layout.loop - LOOP_HALF, layout.loop + LOOP_HALF)
    for begin in found.begins_s:
        ax.plot([begin] * 2, row, color=PAPER, linewidth=0.8, solid_capstyle="butt")
    for stall in found.stalls.iter_rows(named=True):
        span = (stall["start_s"], stall["end_s"])
        box(ax, span, layout.loop, LOOP_HALF, color=STALL_COLOUR, lw=0)
        _write_if_room(ax, seen(found, span), seconds(stall["stall_s"]), layout, PAPER)
    _number_steps(ax, found, layout)
    _call(ax, layout)


def _write_if_room(ax: Axes, span: Span, text: str, layout: Layout, colour: str) -> None:
    if fits(text, span, layout.inch):
        look: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold"}
        ax.text(sum(span) / 2, layout.loop, text, size=SMALL_SIZE, color=colour, **look)


def _number_steps(ax: Axes, found: Timeline, layout: Layout) -> None:
    """Under the loop, at the begin of each use; those that were waited for go first."""
    steps = found.window.steps.select("step", "batch", *found.window.since("end_ns")).rows()
    begins = [(batch, begin, layout.awaits({"step": step})) for step, batch, begin in steps]
    taken: list[Span] = []
    lines = [(one.placed.at, one.placed.at) for one in layout.called]
    for batch, begin, marked in sorted(begins, key=lambda each: not each[2]):
        text = str(batch)
        half = (text_width(text, SMALL_SIZE, bold=True) / 2 + 0.05) * layout.inch
        middle = min(max(begin + half, half), found.length_s - half)
        others = taken if marked else [*taken, *lines]
        if all(middle + half <= left or right <= middle - half for left, right in others):
            taken.append((middle - half, middle + half))
            look: dict[str, Any] = {"ha": "center", "va": "center", "size": SMALL_SIZE}
            look |= {"color": FAINT, "weight": "normal"}
            if marked:
                look |= {"color": STALL_COLOUR, "weight": "bold", "path_effects": [HALO]}
            ax.text(middle, layout.loop + 0.76, text, **look)


def _call(ax: Axes, layout: Layout) -> None:
    """The names that have no room in the lane, each with a line to what it names."""
    for one in layout.called:
        down = layout.loop + BELOW + NAME_ROW * one.placed.row
        line = (layout.loop + LOOP_HALF, down + NAME_ROW * 0.8)
        ax.plot([one.placed.at] * 2, line, color=FAINT, linewidth=0.7, zorder=0.5)
        look: dict[str, Any] = {"va": "center", "size": SMALL_SIZE, "color": INK}
        ax.text(one.placed.left, down + NAME_ROW / 2, one.name, path_effects=[HALO], **look)


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
    draw_loop_lane(ax, found, layout)
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


def figure(run: Run) -> Sheet:
    """A few seconds of the workers and of the loop as a picture."""
    found = timeline(run)
    if found is None:
        return sheet(NO_LOOP, nothing(run), [])[0]
    return picture(run, found, pattern_or_title(run))


def picture(run: Run, found: Timeline, title: str) -> Sheet:
    """A piece of a run as a picture with this title."""
    part, layout = layout_of(found)
    return drawn(found, (part, layout), title, small_notes(run, found, layout))


def drawn(found: Timeline, room: tuple[SheetPart, Layout], title: str, notes: list[str]) -> Sheet:
    """A timeline in its room, as `layout_of` has it."""
    part, layout = room
    made, (ax,) = sheet(title, notes, [part])
    with styled():
        draw(ax, found, layout)
        draw_key(ax, dict(_key(found)))
    return made


def layout_of(found: Timeline) -> tuple[SheetPart, Layout]:
    """The workers whose batches were waited for go first, where there are too many."""
    awaited = found.stalls.sort("stall_s", descending=True)["worker"].to_list()
    ordered = list(dict.fromkeys([w for w in awaited if w in found.workers] + [*found.workers]))
    kept = set(ordered[:MOST_LANES])
    lanes = {worker: row for row, worker in enumerate(w for w in found.workers if w in kept)}
    names = [LOOP, *(worker_name(worker) for worker in lanes)]
    left = max(text_width(name, TEXT_SIZE) for name in names) + 0.12
    inch = found.length_s / SheetPart(1.0, left=left, right=_RIGHT).width
    layout = Layout(lanes, inch, long_stalls(found), called(found, inch))
    axis = "time, from some moment of the steady state on · numbers: batches"
    if layout.arrows:
        arrows = "arrow" if len(layout.arrows) == 1 else "arrows"
        axis += f" · {arrows}: the batch that was waited for comes"
    lane = _LANE if len(lanes) <= MANY_LANES else _LOW_LANE
    height = lane * (layout.bottom + _ABOVE)
    return SheetPart(height, above=0.36, axis=axis, left=left, right=_RIGHT), layout


def small_notes(run: Run, found: Timeline, layout: Layout) -> list[str]:
    """What is shown, and what is not."""
    steps = found.window.steps
    window = f"{seconds(found.length_s)} of the steady state, {count(steps.height, 'step')}"
    batch = "white: no batch in hand · within a batch, its samples' times are put together by kind"
    lines = [f"{window} · {batch}"]
    if steps["epoch"].n_unique() > 1:
        lines.append("the batches' numbers begin again in each epoch")
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {steps['rank'][0]} of {ranks}")
    hidden = len(found.workers) - len(layout.lanes)
    if hidden > 0:
        lines.append(f"not shown: {count(hidden, 'more worker')}")
    return [*lines, *small_print(run)]


def _key(found: Timeline) -> Iterator[tuple[str, Any]]:
    """What is drawn in which colour, the loop's last."""
    for kind in ORDER:
        if (found.blocks[kind] > 0).any():
            yield kind, COLOURS[kind]
    if not found.blocks["recorded"].all():
        yield "not recorded", UNKNOWN
    sent = set(found.sends["kind"].to_list())
    used = set(found.uses["kind"].to_list())
    if "send" in sent:
        yield "send", COLOURS["send"]
    if "pin" in sent or "h2d" in used:
        yield "copy", COLOURS["h2d"]
    if "step" in used:
        yield "step", COLOURS["step"]
    if "other" in used and not (found.blocks["other"] > 0).any():
        yield "other", COLOURS["other"]
    if found.stalls.height:
        yield "stall", STALL_COLOUR
