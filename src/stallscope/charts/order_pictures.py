"""A few samples of another pipeline beside the original's, with the difference made visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.charts.sheet import FAINT, MARGIN, SMALL_SIZE, WIDTH, SheetPart, sheet, styled
from stallscope.orders.result import CLOSE
from stallscope.orders.text import verdict
from stallscope.units import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Comparison, Orders, Picture


NO_BENCH: Final = "Only figures are here, not the pipeline: there are no samples to show"
NO_IMAGES: Final = "The samples are no images: there is no picture of a difference"
NONE_CLOSE: Final = "No order that was tried gives data that is close without being identical"
MOST: Final = 2
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 255)
_PICTURE: Final = 1.45
"""Height of a picture, inches."""
_GAP: Final = 0.12
_HEAD: Final = 0.22
_HALF: Final = 128.0
"""What the largest difference should at least look like, of 255."""


def figure(orders: Orders) -> Sheet:
    """The closest order that is not identical, as pictures."""
    if orders.bench is None:
        return sheet(NO_BENCH, [], [])[0]
    rows = [row for row in orders.table().to_dicts() if row["equivalence"] == CLOSE]
    rows = [row for row in rows if row["kind"] == "order"]
    if not rows:
        return sheet(NONE_CLOSE, [], [])[0]
    trial = {row["trial"]: row for row in orders.trials.to_dicts()}[rows[0]["trial"]]
    return of(orders.bench.compare(trial["positions"]), rows[0]["change"])


def of(found: Comparison, change: str) -> Sheet:
    """Pictures of one comparison.

    Args:
        found: with its pictures.
        change: what the other pipeline changes, in words.
    """
    title = printable(f"{change} · {verdict(told(found))}", 200)
    pairs = found.pictures[:MOST]
    if not pairs:
        return sheet(title, [NO_IMAGES], [])[0]
    factor = amplification(pairs)
    height = len(pairs) * (_PICTURE + _GAP) + _HEAD
    made, (ax,) = sheet(title, [_note(factor)], [SheetPart(height, above=0.1, left=0.0, right=0.0)])
    with styled():
        _draw(ax, pairs, factor, height)
    return made


def told(found: Comparison) -> dict[str, Any]:
    """A comparison as the columns of `TRIALS` that it fills."""
    return {
        "equivalence": found.equivalence,
        "largest_difference": found.largest_difference,
        "psnr_db": found.psnr_db,
        "compared": found.compared,
        "why": found.why,
    }


def amplification(pairs: tuple[tuple[Picture, Picture], ...]) -> int:
    """How many times the difference has to be multiplied to be well seen; 1 where there is none."""
    largest = max((float(_distance(*pair).max(initial=0.0)) for pair in pairs), default=0.0)
    if not largest:
        return 1
    return next((step for step in _STEPS if largest * step >= _HALF), _STEPS[-1])


def _distance(one: Picture, other: Picture) -> NDArray[np.float64]:
    """The absolute difference; of different sizes, that of the corner which both have."""
    high, wide = (min(one.shape[axis], other.shape[axis]) for axis in (0, 1))
    near, far = (picture[:high, :wide].astype(np.float64) for picture in (one, other))
    return np.asarray(np.abs(near - far))


def _note(factor: int) -> str:
    said = f"difference times {factor}" if factor > 1 else "no difference in 256 shades"
    return f"each row is one sample on the same draws: original, new, {said} (black: the same)"


def _draw(ax: Axes, pairs: tuple[tuple[Picture, Picture], ...], factor: int, height: float) -> None:
    """One inch is one unit of both axes."""
    width = WIDTH - 2 * MARGIN
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.set_axis_off()
    column = (width - 2 * _GAP) / 3
    wide = max(picture.shape[1] / picture.shape[0] for pair in pairs for picture in pair)
    column = min(column, wide * _PICTURE)
    heads = ("original", "new", f"difference × {factor}" if factor > 1 else "difference")
    for place, head in enumerate(heads):
        across = place * (column + _GAP)
        ax.text(across, _HEAD - 0.05, head, size=SMALL_SIZE, va="bottom", color=FAINT)
    for number, (one, other) in enumerate(pairs):
        far = np.clip(_distance(one, other) * factor, 0, 255).astype(np.uint8)
        top = _HEAD + number * (_PICTURE + _GAP)
        for place, picture in enumerate((one, other, far)):
            _show(ax, picture, (place * (column + _GAP), top), column)


def _show(ax: Axes, picture: Picture, at: tuple[float, float], room: float) -> None:
    left, top = at
    high, wide = picture.shape[:2]
    inch = min(_PICTURE / high, room / wide)
    box = (left, left + wide * inch, top + high * inch, top)
    # pixels as they are: a smoothed difference would look smaller than it is
    ax.imshow(picture, extent=box, aspect="auto", origin="upper", interpolation="nearest")
