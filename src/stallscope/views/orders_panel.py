"""Panel that puts the ops of a pipeline into any order, and measures its time and its data.

A slider moves along the best orders of each grade, and the ops can be dragged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import OPEN, SAME
from stallscope.charts import orders as charts
from stallscope.units import printable, seconds
from stallscope.verbs.orders.result import op_names
from stallscope.verbs.orders.text import factor_text, interval_text, sentence, verdict
from stallscope.verbs.orders.variant import IDENTICAL, NEAR, ROUNDING, TOLERANCES
from stallscope.views.document import html
from stallscope.views.panels import WIDE, Panel, guarded, image, measuring, saying

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.verbs.orders.result import Orders
    from stallscope.verbs.orders.variant import Variant

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


def panel(orders: Orders) -> Panel:
    """Return the panel for trying orders by hand."""
    still = charts.figure(orders)
    if orders.bench is None:
        return saying(NO_BENCH, still=still)
    if len(op_names(orders)) < 2:  # noqa: PLR2004 - two to change places
        return saying(sentence(orders), still=still)
    shown = Board(orders, orders.bench).panel
    shown.still = still
    return shown


class Board:
    """The widgets of one panel, and the orders that were tried with it."""

    def __init__(self, orders: Orders, bench: Any) -> None:
        self._bench = bench
        self._names = {op: printable(name, 40) for op, name in op_names(orders).items()}
        self._original: Positions = tuple(self._names)
        works = [v for v in orders.variants if v.kind == "order" and v.grade.works]
        self._variants = {variant.positions: variant for variant in works}
        self._front = self._fastest(works)
        self._now = self._original
        labels = list(self._names.values())
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

    def _fastest(self, works: list[Variant]) -> dict[str, Positions]:
        """Return the original order, and for each grade the fastest order within it."""
        front = {AS_IT_IS: self._original}
        for grade in TOLERANCES:
            near = [row for row in works if row.grade.within(grade)]
            near.sort(key=lambda row: not row.is_original)
            fastest = max(near, key=lambda row: 1.0 if row.is_original else row.fast, default=None)
            front[grade] = fastest.positions if fastest else self._original
        return front

    def variant(self, positions: Positions) -> Variant:
        """Return an order with what is known of it: at least its predicted time."""
        if positions not in self._variants:
            predicted = self._bench.predict(positions)
            positions = predicted.positions  # ops of two chains never exchange places
            self._variants.setdefault(positions, predicted)
        return self._variants[positions]

    def picture(self, positions: Positions) -> Sheet:
        """Draw the predicted cost of the order and of the original, part by part."""
        rows = [self.variant(order) for order in dict.fromkeys((self._original, positions))]
        return charts.bars_figure(_answer(rows[-1]), [charts.KEY], rows, [rows[-1].trial])

    def _begin(self, positions: Positions) -> None:
        """Show an order, and measure it the first time."""
        if positions == self._now:
            self._show_tags()
            return
        self._now = positions
        self._say("")
        self.code.value = self.pictures.value = ""  # of the order before
        self._show()
        variant = self.variant(positions)
        if variant.predicted_s is not None and not variant.is_original:
            if not variant.pictures:
                self._variants[positions] = variant = self._bench.compare(variant)
            if variant.measured is None:
                self._measure()
        self._show()

    def _show_tags(self) -> None:
        self.tags.value = [self._names[op] for op in self._now]

    def _show(self) -> None:
        variant = self.variant(self._now)
        self._show_tags()
        self.bars.value = image(self.picture(self._now))
        mark = _MARKS.get(variant.grade.equivalence, "✗")
        grade = f"{mark} {printable(verdict(variant.grade), 400)}"
        about = "the original" if variant.is_original else grade
        self.verdict.value = html("<p><b>{}</b></p>", about)
        pictures = charts.comparison_figure(variant) if variant.pictures else None
        self.pictures.value = image(pictures)
        self.code.value = html(
            "<details><summary>The code of this pipeline</summary>"
            "<pre style='overflow-x:auto'>{}</pre></details>",
            variant.code,
        )

    def _say(self, message: str) -> None:
        self.message.value = html("<p>{}</p>", message) if message else ""

    def _measure(self, *budget_s: float) -> None:
        """Measure the order that is shown, further each time."""
        variant = self.variant(self._now)
        if variant.predicted_s is None:
            return
        with measuring(self._say, self.run, "the pipeline"):
            self._variants[self._now] = self._bench.measure(variant, *budget_s)
            self._say("")
            self._show()

    def _move(self, by: int) -> None:
        """Move the chosen op; at an end it stays."""
        labels = [self._names[op] for op in self._now]
        place = labels.index(self.op.value)
        labels.insert(max(place + by, 0), labels.pop(place))
        self._take(labels)

    def _take(self, labels: list[str]) -> None:
        """Show an order that the user made; undo it if an op is missing."""
        ops = {label: op for op, label in self._names.items()}
        if sorted(labels) == sorted(ops):
            self._begin(self.variant(tuple(ops[label] for label in labels)).positions)
        else:
            self._show_tags()
            self._say("An order needs every op once, so the change was undone")


def _answer(variant: Variant) -> str:
    """Return the order's time per sample and speedup, in one line."""
    if variant.is_original:
        return f"The pipeline as it is: {seconds(variant.predicted_s)} per sample"
    if variant.predicted_s is None:
        return printable(f"This order fails: {variant.grade.why}", 200)
    took = variant.measured.value if variant.measured else variant.predicted_s
    speed = f"{factor_text(variant.fast)} the original's speed (predicted)"
    if variant.speedup is not None:
        settled = "; not settled: measure longer" if variant.says == OPEN else ", measured"
        speed = f"{variant.fast:.2f}× the original's speed{interval_text(variant.speedup)}{settled}"
        if variant.says == SAME:
            speed = f"{SAME}{interval_text(variant.speedup)}"
    return f"This order: {seconds(took)} per sample, {speed}"
