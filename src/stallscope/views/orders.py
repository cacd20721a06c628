"""The face of a pipeline's orders: their pictures, their table, their panel.

`stallscope.orderings.Orders` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.names import printable
from stallscope.orders.result import DIFFERENT, FAILS
from stallscope.orders.text import (
    TITLE,
    factor_text,
    notes_of,
    sentence,
    verdict,
)
from stallscope.stages import COLOURS
from stallscope.units import count, seconds
from stallscope.views.document import CellBar, aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Orders


KINDS: Final = {
    "orders": "the best pipelines, part by part, beside the one as it is (the default)",
    "ops": "what each op of the pipeline as it is costs, takes and gives",
    "predicted": "predicted against measured, for every pipeline that was measured",
    "pictures": "samples of the best pipeline that is close, beside the original's",
}
"""Every picture of orders."""
HEADS: Final = (
    "pipeline",
    "predicted",
    "measured",
    "95% interval",
    "speed-up",
    "data",
    "recommended",
)
MOST: Final = 12
"""Rows of a table that is looked at; `Orders.table` has all."""
BRACKETS: Final = "speed-up in brackets: predicted, not measured"
MOST_REASONS: Final = 30
_NAME: Final = 70


def plot(orders: Orders, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        orders: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    name = result.resolve_kind(kind, KINDS, "orders")
    if name == "ops":
        from stallscope.charts import order_ops

        return order_ops.figure(orders)
    if name == "predicted":
        from stallscope.charts import order_fit

        return order_fit.figure(orders)
    if name == "pictures":
        from stallscope.charts import order_pictures

        return order_pictures.figure(orders)
    from stallscope.charts import orders as best

    return best.figure(orders)


def panel(orders: Orders, kind: str | None = None) -> Any:
    """Widgets: put the ops into any order; see `stallscope.views.orderspanel`."""
    from stallscope.views import orders_panel

    return orders_panel.panel(orders, kind)


def text(orders: Orders) -> str:
    """The orders as a table for a terminal."""
    notes = [printable(note, 1000) for note in notes_of(orders)]
    rows = [cells(row) for row in _looked_at(orders)]
    title = printable(sentence(orders), TITLE)
    table = aligned([HEADS, *rows]) if rows else []
    return "\n".join([title, "", *table, "", *_hidden(orders), *notes]).rstrip()


def html(orders: Orders) -> str:
    """The orders as a table for a notebook; readable on a light and on a dark ground."""
    found = _looked_at(orders)
    bars = [CellBar(row["predicted_s"] or 0.0, COLOURS["transform"]) for row in found]
    table = html_table(HEADS, [cells(row) for row in found], bars) if found else ""
    notes = "".join(html_note(note) for note in (*_hidden(orders), *notes_of(orders)))
    title = html_title(printable(sentence(orders), TITLE))
    return f"<div class='stallscope-orders'>{title}{table}{notes}{_reasons(orders)}</div>"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table in words; `HEADS`."""
    low, high = row["measured_low_s"], row["measured_high_s"]
    factor = row["speedup"] if row["speedup"] is not None else row["predicted_speedup"]
    fast = "—" if factor is None or row["trial"] == 0 else factor_text(factor)
    guess = row["speedup"] is None and fast != "—"
    return (
        printable(row["change"] if row["trial"] else "as it is", _NAME),
        seconds(row["predicted_s"]),
        seconds(row["measured_s"]),
        "—" if low is None else interval(low, high),
        f"({fast})" if guess else fast,
        row["equivalence"] if row["trial"] else "the original",
        "yes" if row["recommended"] else "",
    )


def interval(low: float, high: float) -> str:
    """The ends of an interval of times; their unit once where it is the same."""
    first, last = seconds(low), seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} to {last}"


def _looked_at(orders: Orders) -> list[dict[str, Any]]:
    """The first rows of the table that can be used at all."""
    rows = orders.table().to_dicts()
    return [row for row in rows if row["equivalence"] not in {DIFFERENT, FAILS}][:MOST]


def _hidden(orders: Orders) -> list[str]:
    found = _looked_at(orders)
    brackets = any(cells(row)[4].startswith("(") for row in found)
    hidden = orders.trials.height - len(found)
    more = [f"not shown: {count(hidden, 'more pipeline')}, all of them in .table()"]
    return [*[BRACKETS] * brackets, *more * (hidden > 0)]


def _reasons(orders: Orders) -> str:
    """Why the others cannot be used; opens and closes."""
    rows = [row for row in orders.table().to_dicts() if row["equivalence"] in {DIFFERENT, FAILS}]
    if not rows:
        return ""
    shown_rows: Sequence[dict[str, Any]] = rows[:MOST_REASONS]
    items = "".join(f"<li>{escape(line)}</li>" for line in _lines(shown_rows))
    head = f"{count(len(rows), 'pipeline')} that cannot be used, and why"
    return f"<details style='margin:.3em 0'><summary>{head}</summary><ul>{items}</ul></details>"


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield printable(f"{row['order']}: {verdict(row)}", 400)
