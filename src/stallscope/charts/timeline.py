"""The timeline of a stalling loop: each worker's batches, and below them the waiting loop.

Numbers are batches. A batch that caused a long stall has the stall's colour in its worker's lane
and under the loop, and an arrow leads from the end of its sending to the end of the stall. A part
of the loop that is too narrow for its name has the name below, once, at the end of a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from stallscope import stages
from stallscope.charts import sheet
from stallscope.charts.bars import Label, in_a_row
from stallscope.charts.sheet import ROW, Sheet, styled
from stallscope.model.loop_time import NO_LOOP
from stallscope.run.stall_data import nothing, pattern_or_sentence, small_print, timeline
from stallscope.units import count, printable, seconds, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from stallscope.run.result import Run
    from stallscope.run.stall_data import Timeline


_MOST_ARROWS: Final = 12
"""Most stalls with an arrow, the longest first."""
_LONG: Final = 0.3
"""Share of the window's longest stall from which a stall has an arrow."""
_MOST_LANES: Final = 16
LOOP, DEVICE = "training loop", "device"
_ORDER: Final = ("fetch", "decode", "transform", "other", "collate")
"""Order of the kinds in a batch."""
_UNKNOWN: Final[dict[str, Any]] = {"fc": sheet.PAPER, "ec": sheet.MID, "hatch": "....", "lw": 0.6}
"""Look of a batch that was not recorded."""
_HALO: Final = withStroke(linewidth=3.0, foreground=sheet.PAPER)
"""A line that leads to a name may pass under a text."""
_SEEN: Final = 0.02
"""Width from which a part has a name, inches: narrower parts are barely visible."""

# Heights in lanes
_HALF: Final = 0.36
"""Half height of a box."""
_GAP: Final = 0.55
"""Space between the workers and the loop."""
_SEND: Final = 0.1
"""Height of the mark of sending."""
_LINE: Final = 0.9
"""Height of a line of text below the loop: its steps' numbers, its parts' names."""


class Layout:
    """Places of lanes, stalls and names.

    Args:
        excerpt: piece of the run.
        step: the one to which an arrow leads; None: those with the longest stalls.

    Attributes:
        lanes: row of each worker that is shown; those whose batches were waited for go first.
        inch: seconds in an inch of the axis, about.
        long: the long stalls; rows of `Timeline.stalls`.
        arrows: those whose worker is shown, so that an arrow can lead to them.
        loop: row of the training loop.
        device: row of a device that works behind the host; None where there is none.
        called: the names that fit into none of their parts.
        bottom: where everything ends, in lanes.
    """

    def __init__(self, excerpt: Timeline, step: int | None = None) -> None:
        self.excerpt = excerpt
        self.inch = excerpt.length_s / (sheet.beside([LOOP]))
        stalls = excerpt.stalls if step is None else excerpt.stalls.filter(pl.col("step") == step)
        stalls = stalls.sort("stall_s", descending=True, maintain_order=True)
        awaited = [worker for worker in stalls["worker"] if worker in excerpt.workers]
        with_lane = set(list(dict.fromkeys([*awaited, *excerpt.workers]))[:_MOST_LANES])
        shown = [worker for worker in excerpt.workers if worker in with_lane]
        self.lanes = {worker: row for row, worker in enumerate(shown)}
        matters = pl.col("stall_s") >= _LONG * pl.col("stall_s").max()
        self.long = stalls.filter(matters, pl.col("left_s") >= 0).head(_MOST_ARROWS).to_dicts()
        self.arrows = [stall for stall in self.long if stall["worker"] in self.lanes]
        self.device = len(self.lanes) + _GAP if excerpt.device.height else None
        self.loop = len(self.lanes) + _GAP + (0 if self.device is None else 1 + _GAP)
        self.called = self._called()
        self.bottom = self.loop + _LINE + _LINE * bool(self.called)

    def awaits(self, **values: Any) -> bool:
        """Return True if a batch or a step with these values belongs to a long stall."""
        return any(values.items() <= stall.items() for stall in self.long)

    def seen(self, span: dict[str, Any]) -> tuple[float, float]:
        """Clip a span to the window."""
        return max(span["start_s"], 0.0), min(span["end_s"], self.excerpt.length_s)

    def fits(self, text: str, begin: float, end: float) -> bool:
        """Return True if a text fits into a span."""
        return (sheet.text_width(text, bold=True) + 0.1) * self.inch <= end - begin

    def _called(self) -> list[Label]:
        """Return each name once, at the widest of its parts."""
        widest: dict[str, tuple[float, float]] = {}
        for use in self.excerpt.uses.filter(kind="other").iter_rows(named=True):
            begin, end = self.seen(use)
            name = printable(use["stage"])
            longest = widest.setdefault(name, (begin, end))
            if end - begin > longest[1] - longest[0]:
                widest[name] = (begin, end)
        widest.pop(stages.OTHER.name, None)
        narrow = [
            (Label(name, sum(span) / 2 / self.inch), span[1] - span[0])
            for name, span in sorted(widest.items(), key=lambda item: sum(item[1]))
            if span[1] - span[0] >= _SEEN * self.inch and not self.fits(name, *span)
        ]
        return in_a_row(narrow, sheet.beside([LOOP]))


def figure(run: Run) -> Sheet:
    """Draw a few seconds of the workers and of the loop."""
    excerpt = timeline(run)
    if excerpt is None:
        return Sheet(NO_LOOP, nothing(run))
    return picture(run, excerpt, pattern_or_sentence(run))


@styled
def picture(
    run: Run,
    excerpt: Timeline,
    title: str,
    *,
    where: str = "of the steady state",
    step: int | None = None,
) -> Sheet:
    """Draw a piece of a run, that lies at the place `where` in words.

    An arrow leads to `step`; None: to those with the longest stalls.
    """
    layout = Layout(excerpt, step)
    key = dict(_key(excerpt))
    height = ROW * (layout.bottom + 0.55) + sheet.AXIS + 0.35 + sheet.key_height(key)
    page = Sheet(title, _notes(run, layout, where), [height])
    (ax,) = page.parts
    sheet.linear_time(ax, excerpt.length_s)
    rows = {row: worker_name(worker) for worker, row in layout.lanes.items()} | {layout.loop: LOOP}
    if layout.device is not None:
        rows[layout.device] = DEVICE
        for work in excerpt.device.iter_rows(named=True):  # white: idle
            colour = stages.COLOURS.get(work["kind"] or "")
            look = {"color": colour, "lw": 0} if colour else _UNKNOWN
            _box(ax, work["start_s"], work["end_s"], layout.device, _HALF, **look)
    sheet.name_heights(ax, rows)
    ax.set_ylim(layout.bottom, -0.55)
    for block in excerpt.blocks.iter_rows(named=True):
        if block["worker"] in layout.lanes:
            _draw_block(ax, block, layout)
    for sent in excerpt.sends.iter_rows(named=True):
        _draw_send(ax, sent, layout)
    _draw_loop(ax, layout)
    for stall in layout.arrows:
        # From the end of its batch's sending to the end of the stall
        xs = (stall["left_s"], stall["end_s"])
        ys = (layout.lanes[stall["worker"]] + _HALF + 0.02 + _SEND, layout.loop - _HALF)
        effects = [withStroke(linewidth=3.2, foreground=sheet.PAPER, alpha=0.85)]
        ax.plot(xs, ys, color=sheet.INK, linewidth=1.1, path_effects=effects, zorder=4)
        ax.plot(xs[1:], ys[1:], marker="v", markersize=5, color=sheet.INK, zorder=4)
    axis = "time from a moment of the steady state · numbers: batches"
    if layout.arrows:
        arrows = "arrow" if len(layout.arrows) == 1 else "arrows"
        axis += f" · {arrows}: the awaited batch arrives"
    ax.set_xlabel(axis)
    sheet.draw_key(ax, key)
    return page


def _notes(run: Run, layout: Layout, where: str) -> list[str]:
    excerpt = layout.excerpt
    steps = excerpt.steps
    window = f"{seconds(excerpt.length_s)} {where}, {count(steps.height, 'step')}"
    batch = "white: no batch in hand · within a batch, times of samples are grouped by kind"
    lines = [f"{window} · {batch}"]
    if excerpt.device.height:
        lines.append(f"{DEVICE}: {printable(run.device or '', 60)}; white: idle")
    if steps["epoch"].n_unique() > 1:
        lines.append("batch numbers restart in each epoch")
    ranks = run.all_steps["rank"].n_unique()
    if ranks > 1:
        lines.append(f"shown: rank {steps['rank'][0]} of {ranks}")
    hidden = len(excerpt.workers) - len(layout.lanes)
    if hidden > 0:
        lines.append(f"not shown: {count(hidden, 'more worker')}")
    return [*lines, *small_print(run)]


def _key(excerpt: Timeline) -> Iterator[tuple[str, Any]]:
    """Yield names and colours, the loop's last."""
    for kind in _ORDER:
        if (excerpt.blocks[kind] > 0).any():
            yield kind, stages.COLOURS[kind]
    if not excerpt.blocks["recorded"].all():
        yield "not recorded", _UNKNOWN
    model = dict.fromkeys(excerpt.uses.filter(kind="step")["stage"])
    drawn = {*excerpt.sends["kind"], *excerpt.uses["kind"], *excerpt.device["kind"]}
    for name, kinds in (("send", {"send"}), ("copy", {"pin", "h2d"}), ("step", {"step"})):
        if name == "step" and len(model) > 1:
            yield from ((_short(part), stages.colour_of(part, name)) for part in model)
        elif kinds & drawn:
            yield name, stages.COLOURS["h2d" if name == "copy" else name]
    if "other" in drawn and not (excerpt.blocks["other"] > 0).any():
        yield "other", stages.COLOURS["other"]
    if excerpt.stalls.height:
        yield "stall", stages.STALL_COLOUR


def _short(stage: str) -> str:
    """Shorten the name of a part of the loop; tables have the full name."""
    return stages.FORWARD.name if stage == stages.UNTIL_BACKWARD.name else printable(stage)


def _box(ax: Axes, begin: float, end: float, row: float, half: float, **look: Any) -> None:
    # The limits are known; `add_patch` would work them out from every box
    ax.add_artist(Rectangle((begin, row - half), end - begin, 2 * half, **look))


def _draw_block(ax: Axes, block: dict[str, Any], layout: Layout) -> None:
    row, start = layout.lanes[block["worker"]], block["start_s"]
    if not block["recorded"]:
        _box(ax, start, block["end_s"], row, _HALF, **_UNKNOWN)
    for kind in _ORDER:
        _box(ax, start, start + block[kind], row, _HALF, color=stages.COLOURS[kind], lw=0)
        start += block[kind]
    ax.plot([block["start_s"]] * 2, [row - _HALF, row + _HALF], color=sheet.INK, linewidth=1.4)
    begin, end = layout.seen(block)
    text = str(block["batch"])
    if not layout.fits(text, begin, end):
        return
    ground = {"boxstyle": "round,pad=0.16", "lw": 0, "facecolor": sheet.PAPER, "alpha": 0.92}
    look: dict[str, Any] = {"va": "center_baseline", "zorder": 5, "weight": "bold"}
    if layout.awaits(epoch=block["epoch"], batch=block["batch"]):
        ground |= {"facecolor": stages.STALL_COLOUR, "alpha": 1.0}
        look |= {"color": sheet.PAPER}
    sheet.write_centred(ax, (begin + end) / 2, row, text, bbox=ground, **look)


def _draw_send(ax: Axes, sent: dict[str, Any], layout: Layout) -> None:
    """Draw a thin mark under the sender's lane; pinning is next to the loop."""
    pins = sent["kind"] == "pin"
    row = layout.loop if pins else layout.lanes.get(sent["worker"])
    if row is not None:
        middle = row + (_HALF) + 0.02 + _SEND / 2
        look: dict[str, Any] = {"color": stages.COLOURS[sent["kind"]], "lw": 0.8}
        _box(ax, sent["start_s"], sent["end_s"], middle, _SEND / 2, **look)


def _draw_loop(ax: Axes, layout: Layout) -> None:
    excerpt = layout.excerpt
    top, bottom = layout.loop - _HALF, layout.loop + _HALF
    for use in excerpt.uses.iter_rows(named=True):
        kind = use["kind"]
        name = "" if kind in ("h2d", use["stage"]) and kind != "other" else _short(use["stage"])
        _draw_part(ax, use, layout, stages.colour_of(use["stage"], kind), name)
    for begin in excerpt.begins_s:
        ax.plot([begin] * 2, [top, bottom], color=sheet.PAPER, linewidth=0.8, solid_capstyle="butt")
    for stall in excerpt.stalls.iter_rows(named=True):
        _draw_part(ax, stall, layout, stages.STALL_COLOUR, seconds(stall["stall_s"]))
    _number_steps(ax, layout)
    down = layout.loop + _LINE
    for label in layout.called:
        xs = [label.at * layout.inch] * 2 + [label.end * layout.inch]
        ax.plot(xs, [bottom, down, down + 0.3], color=sheet.FAINT, linewidth=0.7, zorder=0.5)
        ax.text(label.left * layout.inch, down + 0.35, label.text, va="top")


def _draw_part(ax: Axes, span: dict[str, Any], layout: Layout, colour: str, text: str) -> None:
    _box(ax, span["start_s"], span["end_s"], layout.loop, _HALF, color=colour, lw=0)
    begin, end = layout.seen(span)
    if text and layout.fits(text, begin, end):
        look = {"weight": "bold", "color": sheet.ink_on(colour)}
        sheet.write_centred(ax, (begin + end) / 2, layout.loop, text, **look)


def _number_steps(ax: Axes, layout: Layout) -> None:
    """Write batch numbers under the loop; batches of stalls have priority."""
    excerpt = layout.excerpt
    steps = zip(excerpt.steps["step"], excerpt.steps["batch"], excerpt.begins_s, strict=True)
    begins = [(batch, begin, layout.awaits(step=step)) for step, batch, begin in steps]
    taken: list[tuple[float, float]] = []
    lines = [(label.at * layout.inch,) * 2 for label in layout.called]
    for batch, begin, marked in sorted(begins, key=lambda each: not each[2]):
        half = (sheet.text_width(str(batch), bold=True) / 2 + 0.05) * layout.inch
        middle = min(max(begin + half, half), layout.excerpt.length_s - half)
        others = taken if marked else [*taken, *lines]
        if all(middle + half <= left or right <= middle - half for left, right in others):
            taken.append((middle - half, middle + half))
            look: dict[str, Any] = {"color": sheet.FAINT}
            if marked:
                look = {"color": stages.STALL_COLOUR, "weight": "bold", "path_effects": [_HALO]}
            sheet.write_centred(ax, middle, layout.loop + 0.66, str(batch), **look)
