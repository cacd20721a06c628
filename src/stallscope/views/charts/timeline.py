"""The signature of a stalling loop: each worker's batches, and below them the loop that waits.

Numbers are batches: the one that a stall waited for has the stall's colour, and an arrow leads
from the moment at which it left its worker to the end of the stall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.analyze.looptime import NO_LOOP
from stallscope.analyze.timeline import timeline
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, seconds
from stallscope.views.charts.captions import nothing
from stallscope.views.charts.keys import Entry, draw_key
from stallscope.views.charts.style import (
    TEXT_SIZE,
    Part,
    sheet,
    styled,
    text_width,
)
from stallscope.views.charts.timelanes import LOOP, ORDER, UNKNOWN, draw
from stallscope.views.charts.timelayout import Layout, called, long_stalls
from stallscope.views.loop import pattern_or_title, small_print
from stallscope.views.names import worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.analyze.timeline import Timeline
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

MOST_LANES: Final = 16
MANY_LANES: Final = 8
_LANE, _LOW_LANE = 0.34, 0.28
"""Height of a lane, inches; the lower one where there are more than `MANY_LANES`."""
_RIGHT: Final = 0.3
_ABOVE: Final = 0.55
"""From the top to the middle of the first lane, in lanes."""


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


def drawn(found: Timeline, room: tuple[Part, Layout], title: str, notes: list[str]) -> Sheet:
    """A timeline in its room, as `layout_of` has it."""
    part, layout = room
    made, (ax,) = sheet(title, notes, [part])
    with styled():
        draw(ax, found, layout)
        draw_key(ax, list(entries(found)), width=part.width, height=part.height)
    return made


def layout_of(found: Timeline) -> tuple[Part, Layout]:
    """The workers whose batches were waited for go first, where there are too many."""
    awaited = found.stalls.sort("stall_s", descending=True)["worker"].to_list()
    ordered = list(dict.fromkeys([w for w in awaited if w in found.workers] + [*found.workers]))
    kept = set(ordered[:MOST_LANES])
    lanes = {worker: row for row, worker in enumerate(w for w in found.workers if w in kept)}
    names = [LOOP, *(worker_name(worker) for worker in lanes)]
    left = max(text_width(name, TEXT_SIZE) for name in names) + 0.12
    inch = found.length_s / Part(1.0, left=left, right=_RIGHT).width
    layout = Layout(lanes, inch, long_stalls(found), called(found, inch))
    axis = "time, from some moment of the steady state on · numbers: batches"
    if layout.arrows:
        arrows = "arrow" if len(layout.arrows) == 1 else "arrows"
        axis += f" · {arrows}: the batch that was waited for comes"
    lane = _LANE if len(lanes) <= MANY_LANES else _LOW_LANE
    height = lane * (layout.bottom + _ABOVE)
    return Part(height, above=0.36, axis=axis, left=left, right=_RIGHT), layout


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


def entries(found: Timeline) -> Iterator[Entry]:
    """What is drawn in which colour, the loop's last."""
    for kind in ORDER:
        if (found.blocks[kind] > 0).any():
            yield Entry(kind, {"facecolor": COLOURS[kind], "lw": 0})
    if not found.blocks["recorded"].all():
        yield Entry("not recorded", UNKNOWN)
    sent = set(found.sends["kind"].to_list())
    used = set(found.uses["kind"].to_list())
    if "send" in sent:
        yield Entry("send", {"facecolor": COLOURS["send"], "lw": 0})
    if "pin" in sent or "h2d" in used:
        yield Entry("copy", {"facecolor": COLOURS["h2d"], "lw": 0})
    if "step" in used:
        yield Entry("step", {"facecolor": COLOURS["step"], "lw": 0})
    if "other" in used and not (found.blocks["other"] > 0).any():
        yield Entry("other", {"facecolor": COLOURS["other"], "lw": 0})
    if found.stalls.height:
        yield Entry("stall", {"facecolor": STALL_COLOUR, "lw": 0})
