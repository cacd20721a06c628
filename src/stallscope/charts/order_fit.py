"""Predicted against measured: for each pipeline that was measured, how many times as fast it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.orders import fitting
from stallscope.charts.sheet import (
    FAINT,
    INK,
    PAPER,
    SheetPart,
    draw_interval,
    name_rows,
    sheet,
    styled,
    value_axis,
)
from stallscope.orders.text import fit
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Orders


KEY: Final = f"filled dot and line: measured, with its {INTERVAL} · open diamond: predicted"
AXIS: Final = "times as fast as the pipeline as it is"
MOST: Final = 15
_ROW: Final = 0.36
_LEFT: Final = 3.5


def figure(orders: Orders) -> Sheet:
    """Predicted against measured as a picture."""
    rows = [row for row in orders.table().drop_nulls("speedup").to_dicts() if row["trial"] != 0]
    notes = [KEY, *_notes(orders, len(rows))] if rows else _notes(orders, 0)
    if not rows:
        return sheet(fit(orders), notes, [])[0]
    rows = rows[:MOST]
    part = SheetPart(_ROW * len(rows) + 0.15, above=0.15, axis=AXIS, left=_LEFT, right=0.4)
    made, (ax,) = sheet(fit(orders), notes, [part])
    with styled():
        _draw(ax, rows)
    return made


def _notes(orders: Orders, measured: int) -> list[str]:
    told = orders.circumstances
    where = count(told.num_workers, "worker") if told.num_workers else "the main process"
    hidden = [f"not shown: {measured - MOST:,} more"] if measured > MOST else []
    said = [
        f"measured in {where}, in turn with the pipeline as it is",
        f"predicted from ops timed one by one, on {count(told.samples, 'sample')}",
        *hidden,
    ]
    return [" · ".join(said)]


def _draw(ax: Axes, rows: list[dict[str, Any]]) -> None:
    name_rows(ax, [fitting(printable(row["change"], 150), _LEFT - 0.1) for row in rows])
    names = ("speedup", "speedup_low", "speedup_high", "predicted_speedup")
    values = [row[name] for row in rows for name in names if row[name] is not None]
    low, high = min(1.0, *values), max(1.0, *values)
    room = 0.06 * ((high - low) or 1.0)
    value_axis(ax, low - room, high + room, lambda value: f"{value:.4g}×")
    ax.axvline(1.0, color=FAINT, linewidth=1.2, linestyle="--")
    for place, row in enumerate(rows):
        _dots(ax, place, row)


def _dots(ax: Axes, place: int, row: dict[str, Any]) -> None:
    at = (row["speedup"], place)
    draw_interval(ax, at, (row["speedup_low"], row["speedup_high"]), cap=4.0)
    colour = COLOURS["transform"]
    ax.plot([row["speedup"]], [place], "o", ms=7, color=colour, mec=INK, mew=0.8, zorder=4)
    if row["predicted_speedup"] is not None:
        look: dict[str, Any] = {"color": PAPER, "mec": INK, "mew": 1.2, "fillstyle": "none"}
        ax.plot([row["predicted_speedup"]], [place], "D", ms=9, zorder=5, **look)
