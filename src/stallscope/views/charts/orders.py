"""The best orders: what each would cost, part by part, what was measured, and what its data is.

The pipeline as it is always stands among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.analyze.orders.answer import factor_text, sentence
from stallscope.analyze.orders.parts import parts_of
from stallscope.orderings import CLOSE, IDENTICAL, NOT_DISTINGUISHED
from stallscope.views.charts import orderbars
from stallscope.views.charts.style import sheet, styled
from stallscope.views.names import shown
from stallscope.views.orders import TITLE, notes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.orderings import Orders
    from stallscope.views.charts.style import Sheet

MOST: Final = 6
_USABLE: Final = (IDENTICAL, CLOSE, NOT_DISTINGUISHED)


def figure(orders: Orders) -> Sheet:
    """The best orders as a picture."""
    rows = [row_of(orders, row) for row in chosen(orders)]
    title = shown(sentence(orders), TITLE)
    if not rows:
        return sheet(title, notes_of(orders), [])[0]
    made, (ax,) = sheet(title, [orderbars.KEY, *notes_of(orders)], [orderbars.part(rows)])
    with styled():
        orderbars.draw(ax, rows)
    return made


def chosen(orders: Orders) -> list[dict[str, Any]]:
    """Rows of the table whose data can be used, the best first; the original among them."""
    rows = [row for row in orders.table().to_dicts() if row["equivalence"] in _USABLE]
    others = [row for row in rows if row["trial"] != 0]
    # what is worth a look: what is faster, or was measured at all, before what is merely the same
    others.sort(key=lambda row: (not row["recommended"], row["speedup"] is None, -_factor(row)))
    kept = {row["trial"] for row in others[: MOST - 1]} | {0}
    return [row for row in rows if row["trial"] in kept]


def _factor(row: Mapping[str, Any]) -> float:
    factor = row["speedup"] if row["speedup"] is not None else row["predicted_speedup"]
    return float(factor or 0.0)


def row_of(orders: Orders, row: dict[str, Any]) -> orderbars.Row:
    """A row of the table as a row of the picture."""
    trial = orders.trials.row(by_predicate=_is(row["trial"]), named=True)
    measured = None
    if row["measured_s"] is not None:
        measured = (row["measured_s"], row["measured_low_s"], row["measured_high_s"])
    return orderbars.Row(
        name=shown(row["change"] if row["trial"] else "as it is", 150),
        said=said(row),
        parts=parts_of(orders, trial),
        predicted_s=row["predicted_s"],
        measured_s=measured,
        order=shown(row["order"], 160) if row["kind"] == "order" else "",
        strong=bool(row["recommended"]),
    )


def said(row: Mapping[str, Any]) -> str:
    """What stands at the right of a name: the data, and how many times as fast."""
    if row["trial"] == 0:
        return "the original"
    return f"{row['equivalence']} · {speed(row)}"


def speed(row: Mapping[str, Any]) -> str:
    """How many times as fast, measured where it was measured."""
    if row["speedup"] is None:
        factor = row["predicted_speedup"]
        return "—" if factor is None else f"{factor_text(factor)} predicted"
    low, high = row["speedup_low"], row["speedup_high"]
    ends = ", measured once" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{factor_text(row['speedup'])}{ends}"


def _is(trial: int) -> Any:
    import polars as pl

    return pl.col("trial") == trial
