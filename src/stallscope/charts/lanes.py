"""A lane for each worker over a few seconds: which batch it made when, and out of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib.patches import Rectangle

from stallscope.charts.sheet import (
    INK,
    PAPER,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    linear_time,
    name_rows,
    sheet,
    styled,
    text_width,
)
from stallscope.names import counted, worker_name
from stallscope.run.stall_text import nothing
from stallscope.run.summary import NOTHING
from stallscope.run.timeline import lanes
from stallscope.stages import COLOURS, WORK_KINDS
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run
    from stallscope.run.timeline import Lanes


MOST_LANES: Final = 16
ALWAYS: Final = 0.9
"""From this share on, workers are called busy all the time."""
_LANE: Final = 0.34
_HALF: Final = 0.36
_ORDER: Final = ("fetch", "decode", "transform", "other", "collate")
_RIGHT: Final = 0.35


def figure(run: Run) -> Sheet:
    """The workers' lanes as a picture."""
    found = lanes(run.work)
    if found.blocks.is_empty():
        return sheet(NOTHING, nothing(run), [])[0]
    processes = _processes(found)
    names = [worker_name(worker) for _, worker in processes[:MOST_LANES]]
    left = max(text_width(name, TEXT_SIZE) for name in names) + 0.12
    axis = "time, from some moment of the steady state on · numbers: batches"
    body = SheetPart(_LANE * len(names) + 0.1, above=0.32, axis=axis, left=left, right=_RIGHT)
    made, (ax,) = sheet(title(found), _notes(found), [body])
    with styled():
        linear_time(ax, found.length_s)
        name_rows(ax, names)
        draw(ax, found, inch=found.length_s / body.width)
        _draw_key(ax, found)
    return made


def title(found: Lanes) -> str:
    """How busy the workers are, where the recording can tell."""
    if _skipped(found):
        return (
            f"Most of a batch is {_longest(found)}; gaps do not count: some batches were not "
            "recorded"
        )
    idle = share(1 - found.busy_share)
    if _in_main(found):
        return f"The main process spends {idle} of the time on something else than loading"
    number = len(_processes(found))
    who, are, have = "The worker", "is", "has"
    if number > 1:
        who, are, have = f"The {count(number, 'worker')}", "are", "have"
    if found.busy_share >= ALWAYS:
        return f"{who} {are} making batches {share(found.busy_share)} of the time"
    return f"{who} {have} no batch in hand {idle} of the time"


def _longest(found: Lanes) -> str:
    sums = {kind: float(found.blocks[kind].sum()) for kind in WORK_KINDS}
    return max(sums, key=lambda kind: sums[kind])


def _in_main(found: Lanes) -> bool:
    return found.blocks["worker"].null_count() == found.blocks.height


def _processes(found: Lanes) -> list[tuple[int, int | None]]:
    """Process id and worker of each lane, from the top."""
    rows = found.blocks.select("rank", "pid", "worker").unique(maintain_order=True)
    return [(pid, worker) for _, pid, worker in rows.iter_rows()]


def _skipped(found: Lanes) -> bool:
    """Whether numbers are missing between the batches in the window: they were not recorded."""
    number = pl.col("batch")
    missing = number.max() - number.min() + 1 - number.n_unique()
    return bool(found.blocks.group_by("epoch").agg(missing=missing > 0)["missing"].any())


def _notes(found: Lanes) -> list[str]:
    window = f"{seconds(found.length_s)} of the steady state"
    white = "no batch in hand" + (", or one that was not recorded" if _skipped(found) else "")
    seen = f"{window}, {counted(found.blocks.height, 'batch')} · white: {white}"
    lines = [f"{seen} · within a batch, the time of all its samples is put together by kind"]
    hidden = len(_processes(found)) - MOST_LANES
    return [*lines, f"not shown: {count(hidden, 'more worker')}"] if hidden > 0 else lines


def draw(ax: Axes, found: Lanes, *, inch: float) -> Axes:
    """Draw every batch in its lane.

    Args:
        ax: the chart.
        found: what to draw.
        inch: seconds in an inch of the axis.
    """
    lane = {process: row for row, process in enumerate(_processes(found)[:MOST_LANES])}
    following = pl.col("start_s").shift(-1).over("rank", "pid")
    blocks = found.blocks.with_columns(next_s=following.fill_null(found.length_s))
    for block in blocks.iter_rows(named=True):
        row = lane.get((block["pid"], block["worker"]))
        if row is not None:
            _draw_block(ax, block, row)
            _write_number(ax, block, row, (found.length_s, inch))
    return ax


def _draw_block(ax: Axes, block: dict[str, Any], row: int) -> None:
    start = block["start_s"]
    for kind in _ORDER:
        box = Rectangle((start, row - _HALF), block[kind], 2 * _HALF, color=COLOURS[kind], lw=0)
        ax.add_patch(box)
        start += block[kind]
    ax.plot([block["start_s"]] * 2, [row - _HALF, row + _HALF], color=INK, linewidth=1.4)


def _write_number(ax: Axes, block: dict[str, Any], row: int, axis: tuple[float, float]) -> None:
    """The batch's number at its beginning; behind it, where there is only room for it there."""
    length_s, inch = axis
    text = str(block["batch"])
    room = (text_width(text, TEXT_SIZE, bold=True) + 0.16) * inch
    begin, end = max(block["start_s"], 0.0), min(block["end_s"], length_s)
    if room > end - begin:
        begin, end = end, min(block["next_s"], length_s)
    if room <= end - begin:
        ground = {"boxstyle": "round,pad=0.14", "facecolor": PAPER, "lw": 0, "alpha": 0.92}
        look: dict[str, Any] = {
            "size": SMALL_SIZE,
            "weight": "bold",
            "va": "center",
            "bbox": ground,
        }
        ax.text(begin + 0.07 * inch, row, text, **look)


def _draw_key(ax: Axes, found: Lanes) -> None:
    """Name the colours over the lanes."""
    at = 0.0
    for kind in _ORDER:
        if found.blocks.select((pl.col(kind) > 0).any()).item():
            for text, colour in (("■ ", COLOURS[kind]), (f"{kind}     ", INK)):
                ax.annotate(
                    text,
                    xy=(0, 1),
                    xycoords="axes fraction",
                    xytext=(at * 72, 5),
                    textcoords="offset points",
                    size=TEXT_SIZE,
                    color=colour,
                    annotation_clip=False,
                )
                at += text_width(text.replace(" ", "n"), TEXT_SIZE)
