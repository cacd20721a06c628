"""The orders that somebody tries in the panel: what is known of each, as sentences and pictures.

Plain functions of the orders and their bench, without widgets, so that the panel is only a skin.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from stallscope.analyze.orders.answer import factor_text, verdict
from stallscope.analyze.orders.parts import op_names, pieces
from stallscope.benches import Measured, NoSuchOrderError
from stallscope.orderings import CLOSE, DIFFERENT, FAILS, IDENTICAL, NOT_DISTINGUISHED
from stallscope.units import seconds
from stallscope.views.charts import orderbars, orderpictures
from stallscope.views.charts.style import sheet, styled
from stallscope.views.names import shown
from stallscope.views.tables import html_note, html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.benches import Bench, Comparison, Prediction
    from stallscope.orderings import Orders
    from stallscope.views.charts.style import Sheet

    Positions = tuple[int, ...]

_HEADS = ("order", "predicted", "speed-up", "measured", "speed-up", "95% interval", "data")
_MARKS = {
    IDENTICAL: "✓",
    CLOSE: "≈",
    NOT_DISTINGUISHED: "?",
    DIFFERENT: "✗",
    FAILS: "✗",
}
_BETWEEN = " → "


@dataclass
class Tried:
    """What is known of one order."""

    prediction: Prediction
    """What it should cost."""
    comparison: Comparison | None = None
    """Whether it gives the original's data; None until that was looked at."""
    measured: Measured | None = None
    """How fast it is; None until it was measured."""


class Tries:
    """The orders that were tried, from the first to the last.

    Args:
        orders: what was measured.
        bench: the pipeline, still at hand.

    Attributes:
        labels: what the ops are called, in the order as it is; no two alike.
        tried: what is known of each order.
    """

    def __init__(self, orders: Orders, bench: Bench) -> None:
        self._orders = orders
        self._bench = bench
        self._names = {op: shown(name, 40) for op, name in op_names(orders).items()}
        self.labels = tuple(self._names.values())
        self.tried: dict[Positions, Tried] = {}

    @property
    def as_it_is(self) -> Positions:
        """The positions of all ops, in the order of the pipeline as it is."""
        return tuple(self._names)

    def starts(self) -> list[tuple[str, Positions]]:
        """Orders that one can begin from, by what they change: those of the search that work."""
        rows = [row for row in self._orders.table().to_dicts() if row["kind"] == "order"]
        known = {row["trial"]: row["positions"] for row in self._orders.trials.to_dicts()}
        works = [row for row in rows if row["equivalence"] not in {DIFFERENT, FAILS}]
        found = {
            f"{shown(row['change'], 60)}, {row['equivalence']}": tuple(known[row["trial"]])
            for row in works
            if row["trial"] != 0
        }
        return [("as it is", self.as_it_is), *found.items()]

    def labels_of(self, positions: Positions) -> list[str]:
        """The ops of an order, by their labels."""
        return [self._names[op] for op in positions]

    def positions_of(self, labels: Sequence[str]) -> Positions | None:
        """The order that labels stand for; None where they are not all ops."""
        by_label = {label: op for op, label in self._names.items()}
        if sorted(labels) != sorted(by_label):
            return None
        return tuple(by_label[label] for label in labels)

    def predict(self, positions: Positions) -> Tried:
        """What an order should cost; asked once."""
        if positions not in self.tried:
            prediction = self._bench.predict(positions)
            self.tried[positions] = Tried(prediction, measured=self._from_search(positions))
        return self.tried[positions]

    def compare(self, positions: Positions) -> Tried:
        """Whether an order gives the original's data; asked once."""
        found = self.predict(positions)
        if found.comparison is None:
            found.comparison = self._bench.compare(positions)
        return found

    def measure(self, positions: Positions, on_progress: Callable[[float], object]) -> Tried:
        """How fast an order is; measured again each time."""
        found = self.compare(positions)
        if found.comparison is not None and found.comparison.equivalence == FAILS:
            raise NoSuchOrderError(
                f"this order cannot be measured, it fails: {found.comparison.why}. Move the op "
                "that fails"
            )
        found.measured = self._bench.measure(positions, on_progress)
        return found

    def code(self, positions: Positions) -> str:
        """Python source that makes an order's pipeline."""
        return self._bench.code(positions)

    def bars(self, positions: Positions) -> Sheet:
        """What the order should cost beside the pipeline as it is, part by part."""
        rows = [self._row(self.as_it_is, positions)]
        rows += [self._row(positions)] if positions != self.as_it_is else []
        made, (ax,) = sheet(self.answer(positions), [orderbars.KEY], [orderbars.part(rows)])
        with styled():
            orderbars.draw(ax, rows)
        return made

    def pictures(self, positions: Positions) -> Sheet | None:
        """A few samples beside the original's; None where there are none."""
        found = self.compare(positions).comparison
        if found is None or not found.pictures or positions == self.as_it_is:
            return None
        return orderpictures.of(found, "This order")

    def answer(self, positions: Positions) -> str:
        """How fast the order should be, and was, in one sentence."""
        if positions == self.as_it_is:
            return "This is the pipeline as it is"
        found = self.predict(positions)
        if found.prediction.seconds is None:
            return shown(f"This order fails: {found.prediction.why}", 200)
        said = f"This order should be {factor_text(self._predicted(found))} as fast"
        if found.measured is None:
            return f"{said}: predicted, not measured"
        return f"{said}, and is {_measured(found.measured)}"

    def verdict(self, positions: Positions) -> str:
        """Whether the data is the original's, with a mark, as HTML."""
        found = self.tried[positions].comparison
        if positions == self.as_it_is:
            return "<p><b>the original</b></p>"
        if found is None:
            return "<p>comparing its samples with the original's …</p>"
        said = shown(verdict(orderpictures.told(found)), 400)
        return f"<p><b>{_MARKS[found.equivalence]} {escape(said)}</b></p>"

    def table(self) -> str:
        """All that was tried, the last first, as HTML."""
        rows = [self._cells(positions, found) for positions, found in self.tried.items()]
        return html_note("tried, the last first") + html_table(_HEADS, rows[::-1])

    def _row(self, positions: Positions, beside: Positions | None = None) -> orderbars.Row:
        """One bar; the pipeline as it is is also measured whenever another one is."""
        found = self.predict(positions)
        other = self.predict(beside).measured if beside else None
        first = positions == self.as_it_is
        parts = pieces(found.prediction.parts)
        ops = sum(part.kind == "transform" for part in parts)
        fails = found.prediction.seconds is None and ops < len(positions)
        measured = None
        if found.measured is not None:
            measured = (found.measured.seconds, found.measured.low, found.measured.high)
        elif other is not None:
            measured = (other.original_s, None, None)
        return orderbars.Row(
            name="as it is" if first else "this order",
            said=seconds(found.prediction.seconds),
            parts=parts,
            predicted_s=found.prediction.seconds,
            measured_s=measured,
            order=_BETWEEN.join(self.labels_of(positions)),
            failed=self._names[positions[ops]] if fails else "",
            strong=not first,
        )

    def _cells(self, positions: Positions, found: Tried) -> tuple[str, ...]:
        measured, comparison = found.measured, found.comparison
        fails = found.prediction.seconds is None
        first = positions == self.as_it_is
        low = None if measured is None else measured.speedup_low
        return (
            _BETWEEN.join(self.labels_of(positions)),
            seconds(found.prediction.seconds),
            "—" if fails or first else factor_text(self._predicted(found)),
            "—" if measured is None else seconds(measured.seconds),
            "—" if measured is None or first else factor_text(measured.speedup),
            "—" if measured is None or low is None else f"{low:.2f} to {measured.speedup_high:.2f}",
            "the original" if first else "—" if comparison is None else comparison.equivalence,
        )

    def _predicted(self, found: Tried) -> float:
        """How many times as fast as the original it should be."""
        original = self.predict(self.as_it_is).prediction.seconds
        mine = found.prediction.seconds
        return original / mine if original and mine else 1.0

    def _from_search(self, positions: Positions) -> Measured | None:
        """What the search measured of an order, if it did."""
        known = {row["trial"]: row["positions"] for row in self._orders.trials.to_dicts()}
        for row in self._orders.table().drop_nulls("measured_s").to_dicts():
            if row["kind"] == "order" and tuple(known[row["trial"]]) == positions:
                ends = (row["measured_s"], row["measured_low_s"], row["measured_high_s"])
                factors = (row["speedup"], row["speedup_low"], row["speedup_high"])
                return Measured(*ends, row["measured_s"] * row["speedup"], *factors, row["place"])
        return None


def _measured(found: Measured) -> str:
    low, high = found.speedup_low, found.speedup_high
    where = "in workers" if found.place == "workers" else "in the main process"
    if low is None or high is None:
        return f"{factor_text(found.speedup)} as fast, measured once {where}, without an interval"
    ends = f"95% interval {low:.2f} to {high:.2f}"
    if low <= 1 <= high:
        return f"not distinguishable from the original, measured {where} ({ends})"
    return f"{factor_text(found.speedup)} as fast, measured {where} ({ends})"
