"""Charts of a pipeline's orders: the best ones, the trade-off, the samples.

A part of the first chart is a pipeline: its name and speedup, its bar, a line with the measured
interval under the bar, and the ops in their order. The original pipeline is always among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.charts import sheet
from stallscope.charts.bars import Strip, StripPiece
from stallscope.charts.sheet import LINE, MARGIN, PICTURE, ROW, Sheet, styled
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import printable, seconds, speedup
from stallscope.verbs.orders.text import notes_of, sentence, verdict
from stallscope.verbs.orders.variant import CACHE, DIFFERENT, IDENTICAL, NEAR, ROUNDING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import Picture, Variant


KEY: Final = (
    "bars: predicted seconds of one worker per sample, part by part · line under a bar: measured, "
    f"with its {INTERVAL}"
)
MOST: Final = 6
_COLOURS: Final = {**COLOURS, "fetch": COLOURS["other"]}
"""Colours of the parts; the dataset's is not that of reading, as it may be mostly decoding."""
_MOST_INTERVAL: Final = 1.6
"""Width of the chart, as a multiple of the longest bar; a longer interval is cut with an arrow."""


def figure(orders: Orders) -> Sheet:
    """Draw the best pipelines."""
    rows = _chosen(orders)
    title = sentence(orders)
    if not rows:
        return Sheet(title, notes_of(orders))
    strong = [row.trial for row in rows if orders.recommends(row)]
    return bars_figure(title, [KEY, *notes_of(orders)], rows, strong)


@styled
def bars_figure(
    title: str, notes: Sequence[str], rows: Sequence[Variant], strong: Collection[int] = ()
) -> Sheet:
    """Draw pipelines under each other; the names of the trials in `strong` are bold."""
    pieces = [_pieces(row) for row in rows]
    measured = [row.measured for row in rows if row.measured]
    bars = [*(sum(piece.length for piece in parts) for parts in pieces)]
    longest = max([*bars, *(took.value for took in measured)]) or 1e-3
    # a wide interval must not make the bars too small to see
    end = min(max([longest, *(took.high or 0.0 for took in measured)]), _MOST_INTERVAL * longest)
    strips = [Strip(parts, end=end) for parts in pieces]
    belows = [LINE * (bool(row.measured) + (row.kind == "order")) for row in rows]
    heights = [strip.height + down + ROW for strip, down in zip(strips, belows, strict=True)]
    page = Sheet(title, notes, heights)
    for ax, row, strip, down in zip(page.parts, rows, strips, belows, strict=True):
        strip.fill(ax)
        ax.set_ylim(-down, strip.height)
        _write_names(ax, row, bold=row.trial in strong)
        if row.measured:
            middle, high = row.measured.value, row.measured.high
            sheet.draw_interval(ax, middle, -LINE / 2, (row.measured.low, high))
            dot: dict[str, Any] = {"color": sheet.PAPER, "mec": sheet.INK, "zorder": 4}
            ax.plot([middle], [-LINE / 2], "o", ms=4, **dot)
            if high is not None and high > end:
                ax.plot([end], [-LINE / 2], ">", ms=4, color=sheet.INK, clip_on=False)
        if row.kind == "order":
            order = sheet.fitting(printable(row.order, 160), sheet.ROOM)
            ax.text(0, -down, order, va="bottom", color=sheet.FAINT)
    return page


def _pieces(row: Variant) -> list[StripPiece]:
    pieces = [
        StripPiece(
            "dataset" if part.kind == "fetch" else printable(part.name, 30),
            part.seconds,
            seconds(part.seconds),
            _COLOURS[part.kind],
        )
        for part in row.parts
    ]
    if row.predicted_s and not pieces:
        whole = StripPiece("as a whole", row.predicted_s, seconds(row.predicted_s), sheet.RULE)
        pieces = [whole]
    return pieces


def _write_names(ax: Axes, row: Variant, *, bold: bool) -> None:
    fast = _speed(row) if row.grade.compared else f"{speedup(row.fast)} predicted"
    about = "the original" if row.is_original else f"{row.grade.equivalence} · {fast}"
    if not row.grade.works:
        about = fast if row.predicted_s else row.grade.equivalence  # no grade yet, or no speed
    if row.predicted_s is None and row.parts:
        works = sum(part.kind == "transform" for part in row.parts)
        about = f"{about}: {printable(row.order.split(' → ')[works], 40)} fails here"
    room = sheet.ROOM - 0.3 - sheet.text_width(about, sheet.TEXT_SIZE)
    name = sheet.fitting(printable(row.change, 150), room, sheet.TEXT_SIZE, bold=bold)
    look: dict[str, Any] = {"size": sheet.TEXT_SIZE, "pad": 3}
    ax.set_title(name, loc="left", weight="bold" if bold else "normal", **look)
    ax.set_title(about, loc="right", **look)


def _chosen(orders: Orders) -> list[Variant]:
    """Return pipelines with usable data, the best first, and the original."""
    rows = [row for row in orders.variants if row.grade.within(NEAR)]
    others = [row for row in rows if row.trial]
    # recommended pipelines are the most interesting, then measured ones
    others.sort(key=lambda row: (not orders.recommends(row), row.speedup is None, -row.fast))
    shown = {row.trial for row in others[: MOST - 1]} | {0}
    return [row for row in rows if row.trial in shown]


def _speed(row: Variant) -> str:
    if row.speedup is None:
        return f"{speedup(row.fast)} predicted" if row.fast else "—"
    low, high = row.speedup.low, row.speedup.high
    ends = ", measured once" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{speedup(row.fast)}{ends}"


_GRADES: Final = (IDENTICAL, ROUNDING, NEAR, DIFFERENT)
_FRONT_KEY: Final = (
    f"dots: pipelines, filled if measured (line: {INTERVAL}) · named: the original and the fastest"
)


@styled
def front_figure(orders: Orders) -> Sheet:
    """Draw the pipelines' speedup by the grade of their data."""
    # a cache costs memory, which is another trade-off
    free = [variant for variant in orders.variants if variant.grade.works and variant.kind != CACHE]
    rows = [variant for variant in free if variant.fast or not variant.trial]
    page = Sheet(sentence(orders), [_FRONT_KEY], [3.0 + sheet.AXIS])
    (ax,) = page.parts
    fast = [_speed_or_one(row) for row in rows]
    low, high = min([0.9, *fast]), max([1.2, *fast])
    ax.set_ylim(low - 0.08 * (high - low), high + 0.25 * (high - low))
    ax.set_xlim(0, len(_GRADES))
    ax.set_xticks(np.arange(len(_GRADES)) + 0.5, _GRADES)
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("difference from the original data")
    ax.yaxis.set_major_formatter("{x:g}×")
    ax.axhline(1.0, color=sheet.FAINT, linewidth=1.2, linestyle="--")
    named: list[Variant] = []
    for number, grade in enumerate(_GRADES):
        ax.axvspan(number, number + 1, color=sheet.RULE, alpha=0.5 * (number % 2), linewidth=0)
        its = [row for row in rows if row.grade.equivalence == grade]
        named += [row for row in its if not row.trial]
        fastest = max(its, key=_speed_or_one, default=None)
        if fastest and _speed_or_one(fastest) > max(map(_speed_or_one, named), default=0.0):
            named.append(fastest)
        for row in its:
            _draw_dot(ax, row, number + 0.5, is_named=row in named)
    return page


def _draw_dot(ax: Axes, row: Variant, place: float, *, is_named: bool) -> None:
    factor, is_measured = _speed_or_one(row), row.speedup is not None or not row.trial
    colour = COLOURS["transform"] if is_measured else sheet.PAPER
    ends = (row.speedup.low, row.speedup.high) if row.speedup else (None, None)
    sheet.draw_interval(ax, place, factor, ends, vertical=True)
    ax.plot([place], [factor], "o", ms=7, mfc=colour, mec=sheet.INK, mew=0.8, zorder=4)
    if is_named:
        name = f"{row.change}, {speedup(row.fast)}" if row.trial else "as it is"
        is_left = place < len(_GRADES) / 2
        look: dict[str, Any] = {"ha": "left" if is_left else "right", "va": "bottom"}
        text = sheet.fitting(printable(name, 150), 4.2, sheet.TEXT_SIZE)
        ax.text(place + (0.06 if is_left else -0.06), factor, text, **look)


def _speed_or_one(row: Variant) -> float:
    return row.fast if row.trial else 1.0


NO_IMAGES: Final = "The samples are not images, so there is no picture of the difference"
_FACTORS: Final = (1, 2, 5, 10, 20, 50, 100, 255)
_HALF: Final = 128.0
"""Brightness, of 255, that the largest difference should at least have."""


@styled
def comparison_figure(variant: Variant) -> Sheet:
    """Draw a variant's pictures beside the original's, with the difference made visible."""
    title = f"This order · {verdict(variant.grade)}"
    pairs = variant.pictures[:2]
    if not pairs:
        return Sheet(title, [NO_IMAGES])
    factor = amplification(pairs)
    size = f"difference times {factor}" if factor > 1 else "no difference in 256 shades"
    note = f"each row is one sample on the same draws: original, new, {size} (black: none seen)"
    height = len(pairs) * (PICTURE + MARGIN) + ROW
    page = Sheet(title, [note], [height])
    (ax,) = page.parts
    ax.set_xlim(0, sheet.ROOM)  # inches, as for y
    ax.set_ylim(height, 0)
    ax.set_axis_off()
    wide = max(picture.shape[1] / picture.shape[0] for pair in pairs for picture in pair)
    column = min((sheet.ROOM - 2 * MARGIN) / 3, wide * PICTURE)
    heads = ("original", "new", f"difference × {factor}" if factor > 1 else "difference")
    for place, head in enumerate(heads):
        ax.text(place * (column + MARGIN), ROW - 0.05, head, va="bottom", color=sheet.FAINT)
    for number, (original, new) in enumerate(pairs):
        far = np.clip(_distance(original, new) * factor, 0, 255).astype(np.uint8)
        top = ROW + number * (PICTURE + MARGIN)
        for place, picture in enumerate((original, new, far)):
            left, (high, broad) = place * (column + MARGIN), picture.shape[:2]
            inch = min(PICTURE / high, column / broad)
            box = (left, left + broad * inch, top + high * inch, top)
            # pixels as they are: a smoothed difference would look smaller than it is
            ax.imshow(picture, extent=box, aspect="auto", interpolation="nearest")
    return page


def amplification(pairs: tuple[tuple[Picture, Picture], ...]) -> int:
    """Return the factor that makes a difference visible; 1: there is none."""
    largest = max((float(_distance(*pair).max(initial=0.0)) for pair in pairs), default=0.0)
    if not largest:
        return 1
    return next((step for step in _FACTORS if largest * step >= _HALF), _FACTORS[-1])


def _distance(original: Picture, new: Picture) -> NDArray[np.float64]:
    """Return the absolute difference, in the corner that both pictures cover."""
    high, wide = (min(original.shape[axis], new.shape[axis]) for axis in (0, 1))
    near, far = (picture[:high, :wide].astype(np.float64) for picture in (original, new))
    return np.asarray(np.abs(near - far))
