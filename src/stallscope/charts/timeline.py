"""The signature of a stalling loop: each worker's batches, and below them the loop that waits.

Numbers are batches. One that a long stall waited for has the stall's colour in its worker's lane
and under the loop, and an arrow leads from the moment at which it left its worker to the end of the
stall. A part of the loop that is too narrow for its name has it below, once, at the end of a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from stallscope.charts.bars import place
from stallscope.charts.sheet import (
    AXIS,
    FAINT,
    INK,
    MID,
    PAPER,
    ROOM,
    Sheet,
    draw_key,
    ink_on,
    key_height,
    linear_time,
    styled,
    text_width,
)
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.stall_text import nothing, pattern_or_title, small_print
from stallscope.run.timeline import timeline
from stallscope.stages import (
    COLOURS,
    FORWARD,
    OTHER,
    STALL_COLOUR,
    UNTIL_BACKWARD,
    colour_of,
)
from stallscope.units import count, printable, seconds, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from stallscope.run.result import Run
    from stallscope.run.timeline import Timeline


_MOST_ARROWS: Final = 12
"""Stalls, the longest first, to which an arrow leads."""
_LONG: Final = 0.3
"""A stall that takes less of the longest one in the window has no arrow."""
_MOST_LANES: Final = 16
LOOP, DEVICE = "training loop", "device"
_ORDER: Final = ("fetch", "decode", "transform", "other", "collate")
"""In which a batch's kinds are drawn."""
_UNKNOWN: Final[dict[str, Any]] = {"fc": PAPER, "ec": MID, "hatch": "....", "lw": 0.6}
"""Look of a batch that was not recorded."""
_HALO: Final = withStroke(linewidth=3.0, foreground=PAPER)
"""A line that leads to a name may pass under a text."""
_SEEN: Final = 0.02
"""What is narrower than so many inches is no more than a hair, and has no name."""
_APART: Final = 0.06
"""Between two texts, inches."""
_NAMES: Final = 1.1
"""Width of the lanes' names, inches."""

# Heights in lanes
_HALF, _LOOP_HALF = 0.36, 0.5
"""Of a batch's box and of the loop's."""
_GAP: Final = 0.55
"""Between the workers and the loop."""
_SEND: Final = 0.1
"""Of the mark of sending."""
_BELOW: Final = 0.95
"""From the middle of the loop to what is below its steps' numbers."""
_NAME_ROW, _NAME_ROWS = 0.5, 3
"""Of a row of names below that, and how many there are."""


class Layout:
    """Places of what is drawn.

    Args:
        found: what is shown.
        step: the one to which an arrow leads; None: those with the longest stalls.

    Attributes:
        lanes: row of each worker that is shown; those whose batches were waited for go first.
        inch: seconds in an inch of the axis, about.
        long: the long stalls; rows of `Timeline.stalls`.
        arrows: those whose worker is shown, so that an arrow can lead to them.
        loop: row of the training loop.
        device: row of a device that works behind the host; None where there is none.
        called: the names that fit into none of their parts, each with its place in seconds.
        bottom: where everything ends, in lanes.
    """

    def __init__(self, found: Timeline, step: int | None = None) -> None:
        self.found = found
        self.inch = found.length_s / (ROOM - _NAMES)
        stalls = found.stalls if step is None else found.stalls.filter(pl.col("step") == step)
        stalls = stalls.sort("stall_s", descending=True, maintain_order=True)
        awaited = [worker for worker in stalls["worker"] if worker in found.workers]
        kept = set(list(dict.fromkeys([*awaited, *found.workers]))[:_MOST_LANES])
        shown = [worker for worker in found.workers if worker in kept]
        self.lanes = {worker: row for row, worker in enumerate(shown)}
        matters = pl.col("stall_s") >= _LONG * pl.col("stall_s").max()
        self.long = stalls.filter(matters, pl.col("left_s") >= 0).head(_MOST_ARROWS).to_dicts()
        self.arrows = [stall for stall in self.long if stall["worker"] in self.lanes]
        self.device = len(self.lanes) + _GAP if found.device.height else None
        self.loop = len(self.lanes) + _GAP + (0 if self.device is None else 1 + _GAP)
        self.called = list(self._called())
        rows = max((placed.row + 1 for _, placed in self.called), default=0)
        self.bottom = self.loop + _BELOW + _NAME_ROW * rows

    def awaits(self, **values: Any) -> bool:
        """Return whether a batch or a step with these values is of a long stall."""
        return any(values.items() <= stall.items() for stall in self.long)

    def seen(self, span: dict[str, Any]) -> tuple[float, float]:
        """Cut a piece of time to the window."""
        return max(span["start_s"], 0.0), min(span["end_s"], self.found.length_s)

    def fits(self, text: str, begin: float, end: float) -> bool:
        """Return whether a text has room in a piece of time."""
        return (text_width(text, bold=True) + 0.1) * self.inch <= end - begin

    def _called(self) -> Iterator[tuple[str, Any]]:
        """Each once, at the widest of its parts."""
        widest: dict[str, tuple[float, float]] = {}
        for use in self.found.uses.filter(kind="other").iter_rows(named=True):
            begin, end = self.seen(use)
            name = printable(use["stage"])
            known = widest.setdefault(name, (begin, end))
            if end - begin > known[1] - known[0]:
                widest[name] = (begin, end)
        widest.pop(OTHER.name, None)
        narrow = {
            name: span
            for name, span in widest.items()
            if span[1] - span[0] >= _SEEN * self.inch and not self.fits(name, *span)
        }
        wanted = [(sum(span) / 2, text_width(name) * self.inch) for name, span in narrow.items()]
        places = place(wanted, self.found.length_s, rows=_NAME_ROWS, gap=_APART * self.inch)
        yield from ((name, placed) for name, placed in zip(narrow, places, strict=True) if placed)


def figure(run: Run) -> Sheet:
    """Draw a few seconds of the workers and of the loop."""
    found = timeline(run)
    if found is None:
        return Sheet(NO_LOOP, nothing(run))
    return picture(run, found, pattern_or_title(run))


@styled
def picture(
    run: Run,
    found: Timeline,
    title: str,
    *,
    where: str = "of the steady state",
    step: int | None = None,
) -> Sheet:
    """Draw a piece of a run.

    Args:
        run: what was measured.
        found: the piece.
        title: of the picture.
        where: the piece lies, in words.
        step: the one to which an arrow leads; None: those with the longest stalls.
    """
    layout = Layout(found, step)
    lane = 0.34 if len(layout.lanes) <= _MOST_LANES / 2 else 0.28
    key = dict(_key(found))
    height = lane * (layout.bottom + 0.55) + AXIS + 0.35 + key_height(key, ROOM - _NAMES)
    sheet = Sheet(title, _notes(run, layout, where), [height])
    (ax,) = sheet.parts
    linear_time(ax, found.length_s)
    rows = {row: worker_name(worker) for worker, row in layout.lanes.items()} | {layout.loop: LOOP}
    if layout.device is not None:
        rows[layout.device] = DEVICE
        _draw_device(ax, layout, layout.device)
    ax.set_yticks([*rows], [*rows.values()])
    ax.set_ylim(layout.bottom, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    for block in found.blocks.iter_rows(named=True):
        if block["worker"] in layout.lanes:
            _draw_block(ax, block, layout)
    for sent in found.sends.iter_rows(named=True):
        _draw_send(ax, sent, layout)
    _draw_loop(ax, layout)
    for stall in layout.arrows:
        _lead(ax, stall, layout)
    axis = "time, from some moment of the steady state on · numbers: batches"
    if layout.arrows:
        arrows = "arrow" if len(layout.arrows) == 1 else "arrows"
        axis += f" · {arrows}: the batch that was waited for comes"
    ax.set_xlabel(axis)
    draw_key(ax, key, ROOM - _NAMES)
    return sheet


def _notes(run: Run, layout: Layout, where: str) -> list[str]:
    found = layout.found
    steps = found.window.steps
    window = f"{seconds(found.length_s)} {where}, {count(steps.height, 'step')}"
    batch = "white: no batch in hand · within a batch, its samples' times are put together by kind"
    lines = [f"{window} · {batch}"]
    if found.device.height:
        lines.append(f"{DEVICE}: {printable(run.device or '', 60)}; white: it has nothing to do")
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
    """Yield what is drawn in which colour, the loop's last."""
    for kind in _ORDER:
        if (found.blocks[kind] > 0).any():
            yield kind, COLOURS[kind]
    if not found.blocks["recorded"].all():
        yield "not recorded", _UNKNOWN
    model = dict.fromkeys(found.uses.filter(kind="step")["stage"])
    drawn = {*found.sends["kind"], *found.uses["kind"], *found.device["kind"]}
    for name, kinds in (("send", {"send"}), ("copy", {"pin", "h2d"}), ("step", {"step"})):
        if name == "step" and len(model) > 1:
            yield from ((_short(part), colour_of(part, name)) for part in model)
        elif kinds & drawn:
            yield name, COLOURS["h2d" if name == "copy" else name]
    if "other" in drawn and not (found.blocks["other"] > 0).any():
        yield "other", COLOURS["other"]
    if found.stalls.height:
        yield "stall", STALL_COLOUR


def _short(stage: str) -> str:
    """Shorten the name of a part of the loop: what it is exactly, the tables say."""
    return FORWARD.name if stage == UNTIL_BACKWARD.name else printable(stage)


def _box(ax: Axes, begin: float, end: float, row: float, half: float, **look: Any) -> None:
    # The limits are known; `add_patch` would work them out from every box
    ax.add_artist(Rectangle((begin, row - half), end - begin, 2 * half, **look))


def _draw_block(ax: Axes, block: dict[str, Any], layout: Layout) -> None:
    """Draw a batch, with its number where there is room in what is seen of it."""
    row, start = layout.lanes[block["worker"]], block["start_s"]
    if not block["recorded"]:
        _box(ax, start, block["end_s"], row, _HALF, **_UNKNOWN)
    for kind in _ORDER:
        _box(ax, start, start + block[kind], row, _HALF, color=COLOURS[kind], lw=0)
        start += block[kind]
    ax.plot([block["start_s"]] * 2, [row - _HALF, row + _HALF], color=INK, linewidth=1.4)
    begin, end = layout.seen(block)
    text = str(block["batch"])
    if not layout.fits(text, begin, end):
        return
    ground = {"boxstyle": "round,pad=0.16", "lw": 0, "facecolor": PAPER, "alpha": 0.92}
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 5}
    if layout.awaits(epoch=block["epoch"], batch=block["batch"]):
        ground |= {"facecolor": STALL_COLOUR, "alpha": 1.0}
        look |= {"color": PAPER}
    ax.text((begin + end) / 2, row, text, weight="bold", bbox=ground, **look)


def _draw_send(ax: Axes, sent: dict[str, Any], layout: Layout) -> None:
    """Draw a thin mark under the lane of whoever sends; pinning is next to the loop."""
    pins = sent["kind"] == "pin"
    row = layout.loop if pins else layout.lanes.get(sent["worker"])
    if row is not None:
        middle = row + (_LOOP_HALF if pins else _HALF) + 0.02 + _SEND / 2
        look: dict[str, Any] = {"color": COLOURS[sent["kind"]], "lw": 0.8}
        _box(ax, sent["start_s"], sent["end_s"], middle, _SEND / 2, **look)


def _draw_device(ax: Axes, layout: Layout, row: float) -> None:
    """Draw when the device had work; white: it was idle."""
    for work in layout.found.device.iter_rows(named=True):
        look = _UNKNOWN if work["kind"] is None else {"color": COLOURS[work["kind"]], "lw": 0}
        _box(ax, work["start_s"], work["end_s"], row, _HALF, **look)


def _draw_loop(ax: Axes, layout: Layout) -> None:
    """Draw the loop's lane, and what is written below it."""
    found = layout.found
    top, bottom = layout.loop - _LOOP_HALF, layout.loop + _LOOP_HALF
    for use in found.uses.iter_rows(named=True):
        kind = use["kind"]
        name = "" if kind in ("h2d", use["stage"]) and kind != "other" else _short(use["stage"])
        _draw_part(ax, use, layout, colour_of(use["stage"], kind), name)
    for begin in found.begins_s:
        ax.plot([begin] * 2, [top, bottom], color=PAPER, linewidth=0.8, solid_capstyle="butt")
    for stall in found.stalls.iter_rows(named=True):
        _draw_part(ax, stall, layout, STALL_COLOUR, seconds(stall["stall_s"]))
    _number_steps(ax, layout)
    for name, placed in layout.called:
        down = layout.loop + _BELOW + _NAME_ROW * placed.row
        line = [bottom, down + _NAME_ROW * 0.8]
        ax.plot([placed.at] * 2, line, color=FAINT, linewidth=0.7, zorder=0.5)
        ax.text(placed.left, down + _NAME_ROW / 2, name, va="center", path_effects=[_HALO])


def _draw_part(ax: Axes, span: dict[str, Any], layout: Layout, colour: str, text: str) -> None:
    _box(ax, span["start_s"], span["end_s"], layout.loop, _LOOP_HALF, color=colour, lw=0)
    begin, end = layout.seen(span)
    if text and layout.fits(text, begin, end):
        look: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold"}
        ax.text((begin + end) / 2, layout.loop, text, color=ink_on(colour), **look)


def _number_steps(ax: Axes, layout: Layout) -> None:
    """Under the loop, at the begin of each use; those that were waited for go first."""
    window = layout.found.window
    steps = window.steps.select("step", "batch", *window.since("end_ns")).rows()
    begins = [(batch, begin, layout.awaits(step=step)) for step, batch, begin in steps]
    taken: list[tuple[float, float]] = []
    lines = [(placed.at, placed.at) for _, placed in layout.called]
    for batch, begin, marked in sorted(begins, key=lambda each: not each[2]):
        half = (text_width(str(batch), bold=True) / 2 + 0.05) * layout.inch
        middle = min(max(begin + half, half), layout.found.length_s - half)
        others = taken if marked else [*taken, *lines]
        if all(middle + half <= left or right <= middle - half for left, right in others):
            taken.append((middle - half, middle + half))
            look: dict[str, Any] = {"ha": "center", "va": "center", "color": FAINT}
            if marked:
                look |= {"color": STALL_COLOUR, "weight": "bold", "path_effects": [_HALO]}
            ax.text(middle, layout.loop + 0.76, str(batch), **look)


def _lead(ax: Axes, stall: dict[str, Any], layout: Layout) -> None:
    """Draw an arrow from the moment at which a batch left its worker to the end of its stall."""
    xs = (stall["left_s"], stall["end_s"])
    ys = (layout.lanes[stall["worker"]] + _HALF + 0.02 + _SEND, layout.loop - _LOOP_HALF)
    effects = [withStroke(linewidth=3.2, foreground=PAPER, alpha=0.85)]
    ax.plot(xs, ys, color=INK, linewidth=1.1, path_effects=effects, zorder=4)
    ax.plot(xs[1:], ys[1:], marker="v", markersize=5, color=INK, zorder=4)
