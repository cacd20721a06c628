"""A pipeline's orders in a notebook and a terminal: their charts and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds
from stallscope.verbs.orders.text import TITLE, beyond, factor_text, notes_of, sentence, verdict
from stallscope.verbs.orders.variant import NEAR
from stallscope.views import document as page

if TYPE_CHECKING:
    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import Variant


HEADS: Final = ("pipeline", "predicted", "measured", INTERVAL, "speedup", "data", "recommended")
MOST: Final = 12
"""Rows of the table on a page; `Orders.table` has all."""
MOST_REASONS: Final = 30
_NAME: Final = 70


def document(orders: Orders) -> page.Document:
    """Show usable orders as a table; unusable ones, with their reasons, on a click."""
    usable = [variant for variant in orders.variants if variant.grade.within(NEAR)]
    unusable = [variant for variant in orders.variants if variant not in usable]
    rows = usable[:MOST]
    hidden = len(orders.variants) - len(rows)
    hidden_note = [f"not shown: {count(hidden, 'more pipeline')}; .table() has all"] * (hidden > 0)
    has_guess = any(row.trial and row.speedup is None and row.fast for row in rows)
    brackets = ["speedup in brackets: predicted, not measured"] * has_guess
    reasons = [printable(f"{row.order}: {verdict(row.grade)}", 400) for row in unusable]
    further = [printable(beyond(orders), TITLE)] if orders.best_variant() else []
    return page.Document(
        "orders",
        [
            page.Heading(printable(sentence(orders), TITLE), [text for text in further if text]),
            page.Table(
                HEADS,
                [(*cells(row), "yes" if orders.recommends(row) else "") for row in rows],
                [page.CellBar(row.predicted_s or 0.0, COLOURS["transform"]) for row in rows],
            ),
            page.Notes([*brackets, *hidden_note, *notes_of(orders)]),
            page.Bullets(
                reasons[:MOST_REASONS],
                f"{count(len(unusable), 'pipeline')} that cannot be used, and why",
            ),
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
    """Write the ends of an interval of times; a common unit is written once."""
    first, last = seconds(low), seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number if last.endswith(f' {unit}') else first} to {last}"


VIEW: Final = page.View(
    "orders",
    document,
    {
        "orders": ("the best pipelines, part by part", "orders.figure"),
        "front": ("speed against distance from the original data", "orders.front_figure"),
    },
    {"try": ("the ops in any order, with cost and code", "orders_panel.panel")},
    page.answered(sentence, orders="table", best="best"),
)
