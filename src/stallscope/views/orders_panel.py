"""Panel that puts the ops of a pipeline into any order, and measures its time and its data.

The panel is a thin layer over `Tries`, which works without widgets. A slider moves along the best
orders of each grade, and the ops can be dragged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import OPEN, SAME
from stallscope.charts import orders as charts
from stallscope.orders.result import op_names
from stallscope.orders.text import factor_text, interval_text, sentence, verdict
from stallscope.orders.variant import IDENTICAL, NEAR, ROUNDING, TOLERANCES
from stallscope.units import printable, seconds
from stallscope.views.document import html
from stallscope.views.panels import WIDE, Panel, guarded, image, saying

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Orders
    from stallscope.orders.variant import Variant

    Positions = tuple[int, ...]

_MARKS: Final = {IDENTICAL: "✓", ROUNDING: "≈", NEAR: "≈"}
_LONG_S: Final = 8.0
"""Seconds for which `Measure longer` measures an order."""
AS_IT_IS: Final = "as it is"
NO_BENCH: Final = (
    "The pipeline is not in this session: call ss.orders in this notebook to try other orders"
)
HINT: Final = (
    "The slider shows the fastest order of each grade. Drag the ops into another order, or choose "
    "one and move it: the order is measured at once."
)


class Tries:
    """The orders that were tried, from the first to the last.

    Args:
        orders: the result.
        bench: the pipeline's `OrderEvaluator`.

    Attributes:
        labels: names of the ops, in the original order; no two alike.
        as_it_is: the positions of all ops, in the original order.
        tried: the variant of each order.
    """

    def __init__(self, orders: Orders, bench: Any) -> None:
        self._bench = bench
        self._names = {op: printable(name, 40) for op, name in op_names(orders).items()}
        self.labels = tuple(self._names.values())
        self.as_it_is: Positions = tuple(self._names)
        self.tried: dict[Positions, Variant] = {}
        works = [v for v in orders.variants if v.kind == "order" and v.grade.works]
        self._measured = {variant.positions: variant for variant in works}

    def front(self) -> list[tuple[str, Positions]]:
        """Return the original order, and for each grade the fastest order within it."""
        stops = [(AS_IT_IS, self.as_it_is)]
        for grade in TOLERANCES:
            near = [row for row in self._measured.values() if row.grade.within(grade)]
            near.sort(key=lambda row: not row.is_original)
            fastest = max(near, key=lambda row: 1.0 if row.is_original else row.fast, default=None)
            stops.append((grade, fastest.positions if fastest else self.as_it_is))
        return stops

    def labels_of(self, positions: Positions) -> list[str]:
        """Return the labels of an order's ops."""
        return [self._names[op] for op in positions]

    def positions_of(self, labels: Sequence[str]) -> Positions | None:
        """Return the order of labels; None: they are not all ops."""
        if sorted(labels) != sorted(self.labels):
            return None
        return tuple(self.as_it_is[self.labels.index(label)] for label in labels)

    def predict(self, positions: Positions) -> Variant:
        """Return an order with its predicted time; predicts it once."""
        if positions not in self.tried:
            predicted = self._bench.predict(positions)
            positions = predicted.positions  # ops of two chains never exchange places
            self.tried.setdefault(positions, self._measured.get(positions, predicted))
        return self.tried[positions]

    def compare(self, positions: Positions) -> Variant:
        """Return an order with its grade and pictures; compares it once."""
        variant = self.predict(positions)
        if variant.predicted_s is not None and not variant.pictures and not variant.is_original:
            self.tried[positions] = variant = self._bench.compare(variant)
        return variant

    def measure(self, positions: Positions, *settings: Any) -> Variant:
        """Return an order with its measured time; measures further each time."""
        variant = self.predict(positions)
        if variant.predicted_s is not None:
            self.tried[positions] = variant = self._bench.measure(variant, *settings)
        return variant

    def bars(self, positions: Positions) -> Sheet:
        """Draw the predicted cost of the order and of the original, part by part."""
        shown = dict.fromkeys((self.as_it_is, positions))
        rows = [self.predict(order) for order in shown]
        return charts.bars_figure(self.answer(positions), [charts.KEY], rows, [rows[-1].trial])

    def pictures(self, positions: Positions) -> Sheet | None:
        """Draw a few samples beside the original's; None: there are no pictures."""
        variant = self.predict(positions)
        return charts.comparison_figure(variant) if variant.pictures else None

    def answer(self, positions: Positions) -> str:
        """Return the order's time per sample and speedup, in one line."""
        variant = self.predict(positions)
        if variant.is_original:
            return f"The pipeline as it is: {seconds(variant.predicted_s)} per sample"
        if variant.predicted_s is None:
            return printable(f"This order fails: {variant.grade.why}", 200)
        took = variant.measured.value if variant.measured else variant.predicted_s
        return f"This order: {seconds(took)} per sample, {_speed(variant)}"

    def verdict(self, positions: Positions) -> Markup:
        """Return the grade of the order's data, with a mark, as HTML."""
        variant = self.predict(positions)
        if variant.is_original:
            return html("<p><b>the original</b></p>")
        mark = _MARKS.get(variant.grade.equivalence, "✗")
        return html("<p><b>{} {}</b></p>", mark, printable(verdict(variant.grade), 400))


def _speed(variant: Variant) -> str:
    if variant.speedup is None:
        return f"{factor_text(variant.fast)} the original's speed (predicted)"
    ends = interval_text(variant.speedup)
    if variant.says == SAME:
        return f"{SAME}{ends}"
    settled = "; not settled: measure longer" if variant.says == OPEN else ", measured"
    return f"{variant.fast:.2f}× the original's speed{ends}{settled}"


def panel(orders: Orders) -> Panel:
    """Return the panel for trying orders by hand."""
    still = charts.figure(orders)
    if orders.bench is None:
        return saying(NO_BENCH, still=still)
    tries = Tries(orders, orders.bench)
    if len(tries.labels) < 2:  # noqa: PLR2004 - two to change places
        return saying(sentence(orders), still=still)
    shown = Board(tries).panel
    shown.still = still
    return shown


class Board:
    """The widgets of one panel.

    Args:
        tries: the orders.
    """

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._now = tries.as_it_is
        self._front = dict(tries.front())
        labels = list(tries.labels)
        self.tags = ipywidgets.TagsInput(value=labels, allowed_tags=labels, allow_duplicates=False)
        self.tolerance = ipywidgets.SelectionSlider(
            options=list(self._front), description="Tolerance", continuous_update=False, style=WIDE
        )
        self.op = ipywidgets.Dropdown(options=labels, description="Op", style=WIDE)
        self.earlier = ipywidgets.Button(description="Earlier", icon="arrow-up")
        self.later = ipywidgets.Button(description="Later", icon="arrow-down")
        self.run = ipywidgets.Button(description="Measure longer", icon="clock-o")
        self.message, self.verdict, self.bars, self.pictures, self.code = (
            ipywidgets.HTML() for _ in range(5)
        )
        guard = partial(guarded, self._say)
        self.tags.observe(lambda change: guard(self._take, change["new"]), names="value")
        self.tolerance.observe(
            lambda change: guard(self._begin, self._front[change["new"]]), names="value"
        )
        self.earlier.on_click(lambda _: guard(self._move, -1))
        self.later.on_click(lambda _: guard(self._move, 1))
        self.run.on_click(lambda _: guard(self._measure, _LONG_S))
        self._show()
        by_keyboard = [self.op, self.earlier, self.later]
        controls = ipywidgets.HBox([self.tolerance, *by_keyboard, self.run])
        hint = ipywidgets.HTML(html("<p>{}</p>", HINT))
        shown = [self.verdict, self.bars, self.message, self.pictures, self.code]
        self.panel = Panel([hint, self.tags, controls, *shown])
        self.panel.add_class("stallscope-orders-panel")

    def _begin(self, positions: Positions) -> None:
        """Show an order, and measure it the first time."""
        if positions == self._now:
            self.tags.value = self._tries.labels_of(positions)
            return
        self._now = positions
        self._say("")
        self.code.value = self.pictures.value = ""  # of the order before
        self._show()
        variant = self._tries.compare(positions)
        if variant.measured is None and not variant.is_original:
            self._measure()
        self._show()

    def _show(self) -> None:
        now, tries = self._now, self._tries
        self.tags.value = tries.labels_of(now)
        self.bars.value = image(tries.bars(now))
        self.verdict.value = tries.verdict(now)
        self.pictures.value = image(tries.pictures(now))
        self.code.value = html(
            "<details><summary>The code of this pipeline</summary>"
            "<pre style='overflow-x:auto'>{}</pre></details>",
            tries.predict(now).code,
        )

    def _say(self, message: str) -> None:
        self.message.value = html("<p>{}</p>", message) if message else ""

    def _measure(self, *budget_s: float) -> None:
        """Measure the order that is shown."""
        self.run.disabled = True
        try:
            self._say("measuring, in turn with the pipeline as it is …")
            self._tries.measure(self._now, *budget_s)
            self._say("")
            self._show()
        except BaseException:
            self._say("not measured: it was stopped")
            raise
        finally:
            self.run.disabled = False

    def _move(self, by: int) -> None:
        """Move the chosen op; at an end it stays."""
        labels = self._tries.labels_of(self._now)
        place = labels.index(self.op.value)
        labels.insert(max(place + by, 0), labels.pop(place))
        self._take(labels)

    def _take(self, labels: list[str]) -> None:
        """Show an order that the user made; undo it if an op is missing."""
        positions = self._tries.positions_of(labels)
        if positions is None:
            self.tags.value = self._tries.labels_of(self._now)
            self._say("An order needs every op once, so the change was undone")
        else:
            self._begin(self._tries.predict(positions).positions)
