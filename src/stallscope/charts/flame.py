"""The flamegraph as a picture: the workers' merged stacks, as wide as their share of the time.

The root is on top, and the callees are below each frame. A frame is named if its name fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import PercentFormatter

from stallscope.charts import sheet
from stallscope.charts.sheet import Sheet, styled
from stallscope.stages import COLOURS, STALL_COLOUR
from stallscope.units import count, printable
from stallscope.verbs.flame.classify import KINDS
from stallscope.verbs.flame.result import difference_sentence, sentence
from stallscope.verbs.flame.tree import COLOURS as TREE_COLOURS
from stallscope.verbs.flame.tree import difference_notes, notes_of, tree

if TYPE_CHECKING:
    from stallscope.verbs.flame.result import Flame, FlameDifference
    from stallscope.verbs.flame.tree import Tree


MOST_FRAMES: Final = 300
"""Most frames in the picture: more would be too narrow to distinguish."""
MOST_ROWS: Final = 22
"""Rows of frames; deeper frames are only counted."""
_PAD: Final = 0.04
_WIDTH: Final = sheet.ROOM - 0.4
"""Approximate width of the chart, inches."""
_NARROWEST: Final = 0.002
_ALIKE: Final = "#E8E8E8"
_CLEAR: Final = 0.02
"""Change of the share of all time from which a frame has its full colour."""


class _Box(NamedTuple):
    """A frame in the picture."""

    name: str
    row: int
    left: float
    width: float
    """Both as shares of the whole."""
    colour: str


def figure(flame: Flame) -> Sheet:
    """Draw the flamegraph."""
    if flame.samples.is_empty():
        return Sheet(sentence(flame), notes_of(flame))
    whole = tree(flame.samples)
    (totals,) = whole.totals()
    colours = [TREE_COLOURS[kind] for kind in whole.kinds()]
    boxes, hidden = _boxes(whole, totals / totals[0], colours)
    seen = {box.colour for box in boxes}
    looks = {n: TREE_COLOURS[kind] for kind, n in KINDS.items() if TREE_COLOURS[kind] in seen}
    axis = "share of the samples; below each function what it called"
    return _picture(sentence(flame), notes_of(flame), (boxes, hidden), looks, axis)


def difference_figure(difference: FlameDifference) -> Sheet:
    """Draw two recordings in one picture."""
    title, notes = difference_sentence(difference), difference_notes(difference)
    if difference.after.samples.is_empty() or difference.before.samples.is_empty():
        return Sheet(title, notes)
    merged = tree(difference.after.samples, difference.before.samples)
    after, before = (totals / totals[0] for totals in merged.totals())
    colours = [change_colour(*pair) for pair in zip(after, before, strict=True)]
    boxes = _boxes(merged, (after + before) / 2, colours)
    looks = {"grew": STALL_COLOUR, "shrank": COLOURS["fetch"], "alike": _ALIKE}
    axis = "mean of the shares before and after; below each function what it called"
    return _picture(title, notes, boxes, looks, axis)


def change_colour(after: float, before: float) -> str:
    """Return orange for growth and blue for shrinkage, paler for a small share of all time."""
    change = (after - before) / max(after, before, 1e-9)
    strength = abs(change) * min(1.0, abs(after - before) / _CLEAR)
    full = STALL_COLOUR if change > 0 else COLOURS["fetch"]
    pale = np.array(to_rgb(_ALIKE))
    red, green, blue = pale + (np.array(to_rgb(full)) - pale) * strength
    return to_hex((red, green, blue)).upper()


def _boxes(
    whole: Tree, widths: np.ndarray[tuple[int], np.dtype[np.float64]], colours: list[str]
) -> tuple[list[_Box], int]:
    """Return the widest frames, and the number of hidden frames."""
    wide = np.flatnonzero((widths >= _NARROWEST) & (whole.depth <= MOST_ROWS))[1:]
    wide = np.sort(wide[np.argsort(-widths[wide], kind="stable")][:MOST_FRAMES])
    lefts, ends, boxes = {0: 0.0}, {0: 0.0}, []
    for place in wide.tolist():  # narrow frames between them are skipped without a gap
        parent = int(whole.parents[place])
        lefts[place] = ends[place] = ends[parent]
        ends[parent] += float(widths[place])
        function = whole.names[whole.name[place]]
        if function:
            name = f"{function.function} ({function.place})"
            row = int(whole.depth[place]) - 1
            boxes.append(_Box(name, row, lefts[place], float(widths[place]), colours[place]))
    return boxes, int((widths[1:] > 0).sum()) - len(boxes)


@styled
def _picture(
    title: str,
    notes: list[str],
    drawn: tuple[list[_Box], int],
    looks: dict[str, str],
    axis: str,
) -> Sheet:
    boxes, hidden = drawn
    if hidden:
        left = f"not drawn: {count(hidden, 'frame')} narrower than {_NARROWEST:.1%}"
        limits = f"deeper than {MOST_ROWS} rows, or beyond the {MOST_FRAMES} widest"
        notes = [*notes, f"{left}, {limits}"]
    rows = 1 + max((box.row for box in boxes), default=0)
    page = Sheet(printable(title, 300), notes, [0.21 * rows + sheet.AXIS + 0.4])
    (ax,) = page.parts
    ax.set_xlim(0, 1)
    ax.set_ylim(rows, 0)
    sheet.hide_rows(ax)
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlabel(axis)
    for row in range(rows):
        its = [box for box in boxes if box.row == row]
        spans, colours = [(box.left, box.width) for box in its], [box.colour for box in its]
        ax.broken_barh(spans, (row, 0.96), fc=colours, ec=sheet.PAPER, lw=0.6)
    for box in boxes:  # shorten the name if it does not fit: first to the function alone
        room = box.width * _WIDTH - 2 * _PAD
        text = printable(box.name, 120)
        if sheet.text_width(text) > room:
            text = sheet.fitting(box.name.rpartition(" (")[0], room)
        at = (box.left + _PAD / _WIDTH, box.row + 0.5)
        ax.text(*at, text, color=sheet.ink_on(box.colour), va="center_baseline")
    edge = {"edgecolor": sheet.INK, "linewidth": 0.3}
    sheet.draw_key(ax, {name: {"facecolor": colour, **edge} for name, colour in looks.items()})
    return page
