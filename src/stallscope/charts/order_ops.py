"""The pipeline as it is, op by op: what each costs, takes and gives, and whether it is random."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from stallscope.charts.labelled_bars import LabelledBar, bars_part, draw_bars
from stallscope.charts.sheet import sheet, styled, time_label
from stallscope.orders.result import DECODE, op_names
from stallscope.orders.text import PIPELINE, costliest
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Orders


AXIS: Final = "mean seconds per sample, on what the op gets in this order"
KEY: Final = f"line: {INTERVAL} over samples · decoding is no op's, wherever it happens"
_NOTHING: Final = "No op was timed"
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
    bars = [_bar(row, names.get(row["position"], row["name"])) for row in rows]
    made, (ax,) = sheet(title, [of, KEY], [bars_part(bars, AXIS)])
    with styled():
        draw_bars(ax, bars, time_label)
    return made


def _bar(row: dict[str, Any], name: str) -> LabelledBar:
    decodes = row["name"] == DECODE and row["position"] < 0
    return LabelledBar(
        name=printable(name, _LONGEST_NAME),
        where=_where(row),
        text=printable(_about(row), _LONGEST_ABOUT),
        value=row["cost_s"] or 0.0,
        label="not timed" if row["cost_s"] is None else seconds(row["cost_s"]),
        colour=COLOURS["decode" if decodes else "transform"],
        interval=(row["cost_low_s"], row["cost_high_s"]),
    )


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
