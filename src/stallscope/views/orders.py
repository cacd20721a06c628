"""A pipeline's orders in a notebook and a terminal: their pictures, their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.orders.result import DIFFERENT, FAILS
from stallscope.orders.text import TITLE, beyond, factor_text, notes_of, sentence, verdict
from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.units import count, printable, seconds
from stallscope.views.document import CellBar, Document, Fold, Heading, Notes, Table, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.orders.result import Orders


HEADS: Final = (
    "pipeline",
    "predicted",
    "measured",
    INTERVAL,
    "speed-up",
    "data",
    "recommended",
)
MOST: Final = 12
"""Rows of a table that is looked at; `Orders.table` has all."""
BRACKETS: Final = "speed-up in brackets: predicted, not measured"
MOST_REASONS: Final = 30
_NAME: Final = 70


def document(orders: Orders) -> Document:
    """The orders that can be used as a table; the others open on a click, with their reasons."""
    table = orders.table().to_dicts()
    unusable = [row for row in table if row["equivalence"] in {DIFFERENT, FAILS}]
    rows = [row for row in table if row["equivalence"] not in {DIFFERENT, FAILS}][:MOST]
    texts = [cells(row) for row in rows]
    bars = [CellBar(row["predicted_s"] or 0.0, COLOURS["transform"]) for row in rows]
    hidden = orders.trials.height - len(rows)
    more = [f"not shown: {count(hidden, 'more pipeline')}, all of them in .table()"]
    brackets = any(text[HEADS.index("speed-up")].startswith("(") for text in texts)
    reasons = [printable(f"{row['order']}: {verdict(row)}", 400) for row in unusable[:MOST_REASONS]]
    further = [printable(beyond(orders), TITLE)] if orders.best() and beyond(orders) else []
    return Document(
        "orders",
        [
            Heading(printable(sentence(orders), TITLE), further),
            Table(HEADS, texts, bars),
            Notes([*[BRACKETS] * brackets, *more * (hidden > 0), *notes_of(orders)]),
            Fold(f"{count(len(unusable), 'pipeline')} that cannot be used, and why", reasons),
        ],
    )


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


VIEW: Final = View(
    "orders",
    document,
    {
        "orders": (
            "the best pipelines, part by part, beside the one as it is (the default)",
            "orders.figure",
        ),
        "ops": (
            "what each op of the pipeline as it is costs, takes and gives",
            "orders.ops_figure",
        ),
        "front": (
            "how fast pipelines are against how far their data is from the original's",
            "orders.front_figure",
        ),
    },
    {
        "try": (
            "the ops in any order, with cost, data, measurement and code (the default)",
            "orders_panel.panel",
        )
    },
    lambda orders: {
        "answer": sentence(orders),
        "orders": orders.table().to_dicts(),
        "best": orders.best(),
    },
)
