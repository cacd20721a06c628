"""The flamegraph as a picture: the workers' merged stacks, as wide as their share of the time.

The root is on top, and the callees are below each frame. A frame is named if its name fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import PercentFormatter

from stallscope.charts import sheet
from stallscope.charts.sheet import PAD, ROW, Sheet, styled
from stallscope.units import count, printable
from stallscope.verbs.flame.classify import CHANGE_COLOURS, COLOURS, KINDS, tree
from stallscope.verbs.flame.result import Flame, notes_of, recordings_of, sentence

if TYPE_CHECKING:
    from stallscope.verbs.flame.classify import Tree
    from stallscope.verbs.flame.result import FlameDifference


MOST_FRAMES: Final = 300
"""Most frames in the picture: more would be too narrow to distinguish."""
MOST_ROWS: Final = 22
"""Rows of frames; deeper frames are only counted."""
_NARROWEST: Final = 0.002
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


@styled
def figure(flame: Flame | FlameDifference) -> Sheet:
    """Draw a flamegraph, or two recordings in one; what grew is orange and what shrank is blue."""
    recordings, notes = recordings_of(flame), notes_of(flame)
    if any(recording.samples.is_empty() for recording in recordings):
        return Sheet(sentence(flame), notes)
    whole = tree(*(recording.samples for recording in recordings))
    shares = [totals / totals[0] for totals in whole.totals()]
    if isinstance(flame, Flame):
        colours, looks = [COLOURS[kind] for kind in whole.kinds()], dict[str, str]()
        axis = "share of the stacks; below each function what it called"
    else:
        colours = [change_colour(*pair) for pair in zip(*shares, strict=True)]
        looks = CHANGE_COLOURS
        axis = "mean of the shares before and after; below each function what it called"
    boxes, hidden = _boxes(whole, np.mean(shares, axis=0), colours)
    drawn = {box.colour for box in boxes}
    looks = looks or {KINDS[kind]: COLOURS[kind] for kind in KINDS if COLOURS[kind] in drawn}
    if hidden:
        left = f"not drawn: {count(hidden, 'frame')} narrower than {_NARROWEST:.1%}"
        limits = f"deeper than {MOST_ROWS} rows, or beyond the {MOST_FRAMES} widest"
        notes.append(f"{left}, {limits}")
    rows = 1 + max((box.row for box in boxes), default=0)
    page = Sheet(sentence(flame), notes, [0.21 * rows + sheet.AXIS + ROW])
    (ax,) = page.parts
    ax.set_xlim(0, 1)
    ax.set_ylim(rows, 0)
    sheet.name_heights(ax, {})
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlabel(axis)
    for row in range(rows):
        its = [box for box in boxes if box.row == row]
        spans, colours = [(box.left, box.width) for box in its], [box.colour for box in its]
        ax.broken_barh(spans, (row, 0.96), fc=colours, ec=sheet.PAPER, lw=0.6)
    for box in boxes:  # shorten the name if it does not fit: first to the function alone
        room = box.width * sheet.ROOM - 2 * PAD
        text = printable(box.name, 120)
        if sheet.text_width(text) > room:
            text = sheet.fitting(box.name.rpartition(" (")[0], room)
        at = (box.left + PAD / sheet.ROOM, box.row + 0.5)
        ax.text(*at, text, color=sheet.ink_on(box.colour), va="center_baseline")
    edge = {"edgecolor": sheet.INK, "linewidth": 0.3}
    sheet.draw_key(ax, {name: {"facecolor": colour, **edge} for name, colour in looks.items()})
    return page


def change_colour(after: float, before: float) -> str:
    """Return orange for growth and blue for shrinkage, paler for a small share of all time."""
    change = (after - before) / max(after, before, 1e-9)
    strength = abs(change) * min(1.0, abs(after - before) / _CLEAR)
    full = CHANGE_COLOURS["grew" if change > 0 else "shrank"]
    pale = np.array(to_rgb(CHANGE_COLOURS["alike"]))
    red, green, blue = pale + (np.array(to_rgb(full)) - pale) * strength
    return to_hex((red, green, blue)).upper()


def _boxes(
    whole: Tree, widths: np.ndarray[tuple[int], np.dtype[np.float64]], colours: list[str]
) -> tuple[list[_Box], int]:
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
