"""A pipeline's orders in a notebook and a terminal: their pictures, their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.orders.text import TITLE, beyond, factor_text, notes_of, sentence, verdict
from stallscope.orders.variant import NEAR
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds
from stallscope.views.document import (
    Bullets,
    CellBar,
    Document,
    Heading,
    Notes,
    Table,
    View,
    answered,
)

if TYPE_CHECKING:
    from stallscope.orders.result import Orders
    from stallscope.orders.variant import Variant


HEADS: Final = ("pipeline", "predicted", "measured", INTERVAL, "speedup", "data", "recommended")
MOST: Final = 12
"""Rows of a table that is looked at; `Orders.table` has all."""
MOST_REASONS: Final = 30
_NAME: Final = 70


def document(orders: Orders) -> Document:
    """Show the orders that can be used as a table; the others, with their reasons, on a click."""
    usable = [one for one in orders.variants if one.grade.within(NEAR)]
    unusable = [one for one in orders.variants if one not in usable]
    rows = usable[:MOST]
    hidden = len(orders.variants) - len(rows)
    more = [f"not shown: {count(hidden, 'more pipeline')}, all of them in .table()"]
    guess = any(one.trial and one.speedup is None and one.fast for one in rows)
    brackets = ["speedup in brackets: predicted, not measured"] * guess
    reasons = [
        printable(f"{one.order}: {verdict(one.grade)}", 400) for one in unusable[:MOST_REASONS]
    ]
    further = [printable(beyond(orders), TITLE)] if orders.best_variant() else []
    return Document(
        "orders",
        [
            Heading(printable(sentence(orders), TITLE), [one for one in further if one]),
            Table(
                HEADS,
                [(*cells(one), "yes" if orders.recommends(one) else "") for one in rows],
                [CellBar(one.predicted_s or 0.0, COLOURS["transform"]) for one in rows],
            ),
            Notes([*brackets, *more * (hidden > 0), *notes_of(orders)]),
            Bullets(reasons, f"{count(len(unusable), 'pipeline')} that cannot be used, and why"),
        ],
    )


def cells(variant: Variant) -> tuple[str, ...]:
    """Write a pipeline as a row of the table, without the last column of `HEADS`."""
    took = variant.measured
    fast = factor_text(variant.fast) if variant.fast else "—"
    return (
        printable(variant.change, _NAME),
        seconds(variant.predicted_s),
        seconds(took.value if took else None),
        "—" if took is None or took.low is None else _interval(took.low, took.high or took.low),
        "—" if variant.is_original else fast if variant.speedup or fast == "—" else f"({fast})",
        "the original" if variant.is_original else variant.grade.equivalence,
    )


def _interval(low: float, high: float) -> str:
    """Write the ends of an interval of times; their unit once where it is the same."""
    first, last = seconds(low), seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} to {last}"


VIEW: Final = View(
    "orders",
    document,
    {
        "orders": ("the best pipelines, part by part", "orders.figure"),
        "ops": ("each op's cost, input and output", "orders.ops_figure"),
        "front": ("speed against distance from the original data", "orders.front_figure"),
    },
    {"try": ("the ops in any order, with cost and code", "orders_panel.panel")},
    answered(sentence, orders="table", best="best"),
)
