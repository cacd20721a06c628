"""Texts of a picture, and their places."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def texts(figure) -> list[Text]:
    """Return the drawn texts: matplotlib also keeps tick labels outside of the axis."""
    figure.draw_without_rendering()  # lays out; nothing is painted
    hidden = {id(label) for ax in figure.axes for label in _undrawn(ax)}
    visible = [
        text for text in figure.findobj(Text) if text.get_visible() and id(text) not in hidden
    ]
    return [text for text in visible if text.get_text().strip()]


def words(figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def _undrawn(ax):
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            # a little more than the interval: matplotlib allows for rounding, too
            if not ax.axison or not low - 1e-12 <= tick.get_loc() <= high + 1e-12:
                yield from (tick.label1, tick.label2)
        if not ax.axison:
            yield axis.label


def boxes(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()  # one drawn apart comes without it
    return [
        (text.get_text(), text.get_window_extent(renderer).padded(-1)) for text in texts(figure)
    ]


def check_texts(figure):
    """Assert that no text leaves the sheet or lies on another."""
    width, height = figure.canvas.get_width_height()
    placed = boxes(figure)
    for text, box in placed:
        assert 0 <= box.x0, text
        assert box.x1 <= width, text
        assert 0 <= box.y0, text
        assert box.y1 <= height, text
    for (text, here), (neighbour, there) in combinations(placed, 2):
        assert not here.overlaps(there), f"{text!r} on {neighbour!r}"
