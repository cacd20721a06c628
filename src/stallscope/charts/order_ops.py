"""The pipeline as it is, op by op: what each costs, takes and gives, and whether it is random."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FuncFormatter, MaxNLocator

from stallscope.charts.sheet import (
    FAINT,
    INK,
    RULE,
    SMALL_SIZE,
    TEXT_SIZE,
    SheetPart,
    sheet,
    styled,
    time_label,
)
from stallscope.names import printable
from stallscope.orders.result import DECODE, op_names
from stallscope.orders.text import PIPELINE, costliest
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Orders


AXIS: Final = "mean seconds per sample, on what the op gets in this order"
KEY: Final = f"line: {INTERVAL} over samples · decoding is no op's, wherever it happens"
_NOTHING: Final = "No op was timed"
_ROW: Final = 0.6
_BAR: Final = 0.2
_LEFT: Final = 2.3
_RIGHT: Final = 0.8
_LONGEST_NAME: Final = 26
_LONGEST_ABOUT: Final = 88


def figure(orders: Orders) -> Sheet:
    """The ops as a picture."""
    rows = orders.ops.to_dicts()
    names = op_names(orders)
    title = printable(costliest(orders) or _NOTHING, 200)
    told = orders.circumstances
    of = count(told.samples, "sample")
    of += f" of {printable(told.pipeline, PIPELINE)}" if told.pipeline else ""
    if not rows:
        return sheet(title, [of], [])[0]
    part = SheetPart(_ROW * len(rows), above=0.12, axis=AXIS, left=_LEFT, right=_RIGHT)
    made, (ax,) = sheet(title, [of, KEY], [part])
    with styled():
        _draw(ax, rows, names)
    return made


def _draw(ax: Axes, rows: list[dict[str, Any]], names: dict[int, str]) -> None:
    longest = max(row["cost_high_s"] or row["cost_s"] or 0.0 for row in rows)
    ax.set_xlim(0, longest * 1.02 or 1e-3)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(time_label))
    ax.grid(axis="x", color=RULE, linewidth=0.6)
    for place, row in enumerate(rows):
        _bar(ax, place + 0.2, row)
        _words(ax, place, row, names.get(row["position"], row["name"]))


def _bar(ax: Axes, down: float, row: dict[str, Any]) -> None:
    kind = "decode" if row["name"] == DECODE and row["position"] < 0 else "transform"
    cost, low, high = row["cost_s"], row["cost_low_s"], row["cost_high_s"]
    ax.barh(down, cost or 0.0, _BAR / _ROW, color=COLOURS[kind])
    if low is not None and high is not None:
        ax.plot([low, high], [down, down], color=INK, linewidth=1.4)
        for end in (low, high):
            ax.plot([end, end], [down - 0.09, down + 0.09], color=INK, linewidth=1.4)
    ax.annotate(
        "not timed" if cost is None else seconds(cost),
        (max(cost or 0.0, high or 0.0), down),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        size=TEXT_SIZE,
        weight="bold",
    )


def _words(ax: Axes, place: int, row: dict[str, Any], name: str) -> None:
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    left = look | {"xytext": (-8, 0), "ha": "right"}
    ax.annotate(
        printable(name, _LONGEST_NAME), (0, place - 0.17), size=TEXT_SIZE, color=INK, **left
    )
    ax.annotate(_where(row), (0, place + 0.2), size=SMALL_SIZE, color=FAINT, **left)
    about = printable(_about(row), _LONGEST_ABOUT)
    ax.annotate(about, (0, place - 0.17), xytext=(2, 0), size=SMALL_SIZE, color=FAINT, **look)


def _where(row: dict[str, Any]) -> str:
    """Where the code of an op is, and whether it draws random numbers."""
    where = ""
    if row["file"]:
        line = f", line {row['line']}" if row["line"] else ""
        where = f"{printable(PurePath(row['file']).name, 16)}{line}"
    return " · ".join(part for part in ("random" if row["random"] else "", where) if part)


def _about(row: dict[str, Any]) -> str:
    goes = f"{row['takes']} → {row['gives']}" if row["takes"] or row["gives"] else ""
    settings = str(row["settings"] or "")
    inner = settings.removeprefix(f"{row['name']}(")
    if inner != settings:  # a repr says the name again
        settings = inner.removesuffix(")")
    room = _LONGEST_ABOUT - len(goes) - 3
    if len(settings) > room:  # the first ones say most
        settings = f"{settings[: max(room - 1, 0)]}…"
    return " · ".join(part for part in (goes, settings) if part)
