"""Start-up of each worker: when it was ready, and what its first sample cost beside a typical one.

Both are paid again in every epoch, unless the workers are kept, and neither is in the other
pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    linear_time,
    name_rows,
    sheet,
    styled,
    text_width,
    time_axis,
)
from stallscope.names import worker_name
from stallscope.run.stall_text import nothing
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run


MOST_ROWS: Final = 12
ALIKE: Final = 1.5
"""A first sample that takes less than so many typical ones is nothing special."""
_READY_AXIS: Final = "from the start of the epoch until the worker asked for its first batch"
_FIRST_AXIS: Final = (
    "one sample in this worker · black: its first · orange: median of the later ones"
)
_ROW: Final = 0.3
_READY: Final = "#777777"
_FIRST: Final = "#1A1A1A"
_TYPICAL: Final = "#E69F00"


def figure(run: Run) -> Sheet:
    """Start-up as a picture."""
    rows = run.startup.head(MOST_ROWS)
    if rows.is_empty():
        return sheet("No worker started", nothing(run), [])[0]
    names = _names(run)
    left = max(text_width(name, TEXT_SIZE) for name in names) + 0.12
    height = _ROW * (len(names) + 0.3)
    charts = {_READY_AXIS: _draw_ready, _FIRST_AXIS: _draw_first}
    if rows["ready_s"].is_null().all():  # the main process is ready from the beginning
        del charts[_READY_AXIS]
    parts = [SheetPart(height, above=0.2, axis=axis, left=left, right=1.1) for axis in charts]
    made, axes = sheet(title(run), _notes(run), parts)
    with styled():
        for ax, draw in zip(axes, charts.values(), strict=True):
            draw(ax, rows, names)
    return made


def title(run: Run) -> str:
    """When the first batch came, and how much more a worker's first sample costs."""
    came = (
        f"The first batch came after {seconds(run.first_batch_s)}"
        if run.first_batch_s is not None
        else "No batch came"
    )
    ratio = run.startup.select(pl.col("first_sample_s") / pl.col("typical_sample_s")).to_series()
    typical = ratio.drop_nulls().median()
    if not isinstance(typical, float):
        return came
    if typical < ALIKE:
        return f"{came}; a first sample costs about as much as any other"
    times = f"{typical:.0f}×" if typical >= 10 else f"{typical:.1f}×"  # noqa: PLR2004 - two digits
    return f"{came}; a worker's first sample costs {times} a typical one"


def _notes(run: Run) -> list[str]:
    lines = ["start-up is paid in every epoch unless persistent_workers=True · left out elsewhere"]
    if not run.settings.num_workers:
        lines = ["loaded in the main process: there are no workers to start"]
    hidden = run.startup.height - MOST_ROWS
    if hidden > 0:
        lines.append(f"not shown: {count(hidden, 'more start')}")
    return lines


def _names(run: Run) -> list[str]:
    rows = run.startup.head(MOST_ROWS)
    epochs = rows["epoch"].n_unique() > 1
    return [
        worker_name(row["worker"]) + (f", epoch {row['epoch']}" if epochs else "")
        for row in rows.iter_rows(named=True)
    ]


def _draw_ready(ax: Axes, rows: pl.DataFrame, names: list[str]) -> None:
    ready = rows["ready_s"].to_list()
    linear_time(ax, max([value for value in ready if value is not None], default=0.001) * 1.05)
    name_rows(ax, names)
    for height, value in enumerate(ready):
        ax.barh(height, value or 0.0, height=0.55, color=_READY)
        _write(ax, (value or 0.0, height), seconds(value) if value is not None else "not read")


def _draw_first(ax: Axes, rows: pl.DataFrame, names: list[str]) -> None:
    pairs = rows.select("first_sample_s", "typical_sample_s").rows()
    known = [value for pair in pairs for value in pair if value]
    time_axis(ax, min(known, default=1e-3), max(known, default=1e-2))
    name_rows(ax, names)
    for height, (first, typical) in enumerate(pairs):
        ax.axhline(height, color=RULE, linewidth=0.6, zorder=0)
        if first and typical:
            ax.plot([typical, first], [height, height], color=FAINT, linewidth=1.4, zorder=1)
            _write(ax, (max(first, typical), height), _compared(first, typical))
        for value, colour in ((typical, _TYPICAL), (first, _FIRST)):
            if value:
                ax.scatter([value], [height], s=46, color=colour, zorder=2)


def _compared(first: float, typical: float) -> str:
    ratio = first / typical
    return f"{seconds(first)}, {ratio:.{0 if ratio >= 10 else 1}f}×"  # noqa: PLR2004 - two digits


def _write(ax: Axes, at: tuple[float, int], text: str) -> None:
    """Write at the right of a bar's end or a dot."""
    ax.annotate(
        text,
        xy=at,
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        size=SMALL_SIZE,
        color=INK,
        annotation_clip=False,
    )
