"""Put the ops of a pipeline into any order: see its cost and its data, measure it, take its code.

The panel is a thin skin over `Tries`, which works without widgets. The ops can be dragged; two
buttons do the same for a keyboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.bench.comparison import OPEN, SAME
from stallscope.charts import orders as charts
from stallscope.orders.result import (
    DIFFERENT,
    FAILS,
    IDENTICAL,
    NEAR,
    ROUNDING,
    NoSuchOrderError,
    OrderTiming,
    op_names,
)
from stallscope.orders.text import factor_text, sentence, verdict
from stallscope.stats import INTERVAL
from stallscope.units import printable, seconds
from stallscope.views.document import Notes, Table, html
from stallscope.views.panels import CopyButton, Panel, dropdown, guarded, image, saying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet
    from stallscope.orders.result import Equivalence, Orders, Prediction

    Positions = tuple[int, ...]

_HEADS = ("order", "predicted", "speed-up", "measured", "speed-up", INTERVAL, "data")
_MARKS = {IDENTICAL: "✓", ROUNDING: "≈", NEAR: "≈", DIFFERENT: "✗", FAILS: "✗"}
_BETWEEN = " → "


@dataclass
class TriedOrder:
    """What is known of one order."""

    prediction: Prediction
    """What it should cost."""
    comparison: Equivalence | None = None
    """Whether it gives the original's data; None until that was looked at."""
    measured: OrderTiming | None = None
    """How fast it is; None until it was measured."""


class Tries:
    """The orders that were tried, from the first to the last.

    Args:
        orders: what was measured.
        bench: the pipeline, still at hand: an `OrderEvaluator`.

    Attributes:
        labels: what the ops are called, in the order as it is; no two alike.
        as_it_is: the positions of all ops, in the order of the pipeline as it is.
        tried: what is known of each order.
    """

    def __init__(self, orders: Orders, bench: Any) -> None:
        self._bench = bench
        self._names = {op: printable(name, 40) for op, name in op_names(orders).items()}
        self.labels = tuple(self._names.values())
        self.as_it_is: Positions = tuple(self._names)
        self.tried: dict[Positions, TriedOrder] = {}
        known = {row["trial"]: row["positions"] for row in orders.trials.to_dicts()}
        rows = [row for row in orders.table().to_dicts() if row["kind"] == "order"]
        self._search = {tuple(known[row["trial"]]): row for row in rows}
        """Rows of the table by their order."""

    def starts(self) -> list[tuple[str, Positions]]:
        """Orders that one can begin from, by what they change: those of the search that work."""
        found = {
            f"{printable(row['change'], 60)}, {row['equivalence']}": positions
            for positions, row in self._search.items()
            if row["equivalence"] not in {DIFFERENT, FAILS} and row["trial"] != 0
        }
        return [("as it is", self.as_it_is), *found.items()]

    def labels_of(self, positions: Positions) -> list[str]:
        """The ops of an order, by their labels."""
        return [self._names[op] for op in positions]

    def positions_of(self, labels: Sequence[str]) -> Positions | None:
        """The order that labels stand for; None where they are not all ops."""
        if sorted(labels) != sorted(self.labels):
            return None
        return tuple(self.as_it_is[self.labels.index(label)] for label in labels)

    def predict(self, positions: Positions) -> TriedOrder:
        """What an order should cost; asked once."""
        if positions not in self.tried:
            prediction = self._bench.predict(positions)
            self.tried[positions] = TriedOrder(prediction, measured=self._from_search(positions))
        return self.tried[positions]

    def compare(self, positions: Positions) -> Equivalence:
        """Whether an order gives the original's data; asked once."""
        found = self.predict(positions)
        if found.comparison is None:
            found.comparison = self._bench.compare(positions)
        return found.comparison

    def measure(self, positions: Positions, on_progress: Callable[[float], object]) -> None:
        """How fast an order is; measured again each time."""
        comparison = self.compare(positions)
        if comparison.equivalence == FAILS:
            raise NoSuchOrderError(
                f"this order cannot be measured, it fails: {comparison.why}. Move the op that fails"
            )
        self.tried[positions].measured = self._bench.measure(positions, on_progress)

    def code(self, positions: Positions) -> str:
        """Python source that makes an order's pipeline."""
        return str(self._bench.code(positions))

    def bars(self, positions: Positions) -> Sheet:
        """What the order should cost beside the pipeline as it is, part by part."""
        rows = [self._row(self.as_it_is, positions)]
        rows += [self._row(positions)] if positions != self.as_it_is else []
        return charts.bars_figure(self.answer(positions), [charts.KEY], rows)

    def pictures(self, positions: Positions) -> Sheet | None:
        """A few samples beside the original's; None where there are none."""
        found = self.compare(positions)
        if not found.pictures or positions == self.as_it_is:
            return None
        return charts.comparison_figure(found)

    def answer(self, positions: Positions) -> str:
        """How fast the order should be, and was, in one sentence."""
        if positions == self.as_it_is:
            return "This is the pipeline as it is"
        found = self.predict(positions)
        if found.prediction.seconds is None:
            return printable(f"This order fails: {found.prediction.why}", 200)
        said = f"This order should be {factor_text(self._predicted(found))} as fast"
        if found.measured is None:
            return f"{said}: predicted, not measured"
        return f"{said}, and is {_measured(found.measured)}"

    def verdict(self, positions: Positions) -> Markup:
        """Whether the data is the original's, with a mark, as HTML."""
        found = self.tried[positions].comparison
        if positions == self.as_it_is:
            return html("<p><b>the original</b></p>")
        if found is None:
            return html("<p>comparing its samples with the original's …</p>")
        said = printable(verdict(found._asdict()), 400)
        return html("<p><b>{} {}</b></p>", _MARKS[found.equivalence], said)

    def table(self) -> Markup:
        """All that was tried, the last first, as HTML."""
        rows = [self._cells(positions, found) for positions, found in self.tried.items()]
        return html("{}{}", Notes(["tried, the last first"]), Table(_HEADS, rows[::-1]))

    def _row(self, positions: Positions, beside: Positions | None = None) -> charts.PipelineRow:
        """One bar; the pipeline as it is is also measured whenever another one is."""
        found = self.predict(positions)
        other = self.predict(beside).measured if beside else None
        parts = found.prediction.parts
        ops = sum(part.kind == "transform" for part in parts)
        fails = found.prediction.seconds is None and ops < len(positions)
        measured: tuple[float, float | None, float | None] | None = None
        if found.measured is not None:
            measured = found.measured[:3]
        elif other is not None:
            measured = (other.measured_s * other.speedup, None, None)
        return charts.PipelineRow(
            name="this order" if beside is None else "as it is",
            said=seconds(found.prediction.seconds),
            parts=parts,
            predicted_s=found.prediction.seconds,
            measured_s=measured,
            order=_BETWEEN.join(self.labels_of(positions)),
            failed=self._names[positions[ops]] if fails else "",
            strong=beside is None,
        )

    def _cells(self, positions: Positions, found: TriedOrder) -> tuple[str, ...]:
        measured, comparison = found.measured, found.comparison
        fails = found.prediction.seconds is None
        first = positions == self.as_it_is
        low = None if measured is None else measured.speedup_low
        return (
            _BETWEEN.join(self.labels_of(positions)),
            seconds(found.prediction.seconds),
            "—" if fails or first else factor_text(self._predicted(found)),
            "—" if measured is None else seconds(measured.measured_s),
            "—" if measured is None or first else factor_text(measured.speedup),
            "—" if measured is None or low is None else f"{low:.2f} to {measured.speedup_high:.2f}",
            "the original" if first else "—" if comparison is None else comparison.equivalence,
        )

    def _predicted(self, found: TriedOrder) -> float:
        original = self.predict(self.as_it_is).prediction.seconds
        mine = found.prediction.seconds
        return original / mine if original and mine else 1.0

    def _from_search(self, positions: Positions) -> OrderTiming | None:
        row = self._search.get(positions)
        if row is None or row["measured_s"] is None:
            return None
        return OrderTiming(**{name: row[name] for name in OrderTiming._fields})


def _measured(found: OrderTiming) -> str:
    low, high = found.speedup_low, found.speedup_high
    if low is None or high is None:
        return f"{factor_text(found.speedup)} as fast, measured once, without an interval"
    ends = f"{INTERVAL} {low:.2f} to {high:.2f}"
    if found.says == OPEN:
        return f"{factor_text(found.speedup)} as fast, which is not settled ({ends}): measure again"
    if found.says == SAME:
        return f"as fast as the original: {found.says} ({ends})"
    return f"{found.speedup:.2f}× as fast, measured ({ends})"


NO_BENCH: Final = (
    "Only figures are here, not the pipeline: call ss.orders in this notebook to try other orders"
)
HINT: Final = (
    "Drag the ops into another order with the mouse; or choose one and move it with the buttons."
)


def panel(orders: Orders) -> Panel:
    """Try orders by hand."""
    still = charts.figure(orders)
    if orders.bench is None:
        return saying(NO_BENCH, still=still)
    tries = Tries(orders, orders.bench)
    if len(tries.labels) < 2:  # noqa: PLR2004 - two to change places
        return saying(sentence(orders), still=still)
    made = Board(tries).panel
    made.still = still
    return made


class Board:
    """The widgets of one panel.

    Args:
        tries: what they ask.
    """

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._now = tries.as_it_is
        labels = list(tries.labels)
        self.tags = ipywidgets.TagsInput(value=labels, allowed_tags=labels, allow_duplicates=False)
        self.start = dropdown("Begin from", tries.starts())
        self.op = dropdown("Op", labels)
        self.earlier = ipywidgets.Button(description="Earlier", icon="arrow-up")
        self.later = ipywidgets.Button(description="Later", icon="arrow-down")
        self.run = ipywidgets.Button(description="Measure for real", icon="clock-o")
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.progress.layout.visibility = "hidden"
        self.copy = CopyButton(label="Copy the code")
        self.said, self.verdict, self.bars, self.pictures, self.code, self.table = (
            ipywidgets.HTML() for _ in range(6)
        )
        guard = partial(guarded, self._say)
        self.tags.observe(lambda change: guard(self._take, change["new"]), names="value")
        self.start.observe(lambda change: guard(self._begin, change["new"]), names="value")
        self.op.observe(lambda _: self._enable(), names="value")
        self.earlier.on_click(lambda _: guard(self.move, -1))
        self.later.on_click(lambda _: guard(self.move, 1))
        self.run.on_click(lambda _: guard(self.measure))
        self.show(self._now)
        self.panel = Panel(
            [
                ipywidgets.HTML(html("<p>{}</p>", HINT)),
                self.tags,
                ipywidgets.HBox([self.op, self.earlier, self.later, self.start]),
                self.verdict,
                self.bars,
                ipywidgets.HBox([self.run, self.copy, self.progress]),
                self.said,
                self.pictures,
                self.code,
                self.table,
            ]
        )
        self.panel.add_class("stallscope-orders-panel")

    def show(self, positions: Positions) -> None:
        """Show an order: at once what it should cost, then whether its data is the same."""
        self._now = positions
        self.tags.value = self._tries.labels_of(positions)
        known = [start for _, start in self.start.options]
        self.start.value = positions if positions in known else None
        self._enable()
        self.copy.text = self.code.value = self.pictures.value = ""  # of the order before
        self._tries.predict(positions)
        self._draw()
        self._tries.compare(positions)
        self._tell()
        self.pictures.value = image(self._tries.pictures(positions))
        self.copy.text = self._tries.code(positions)
        self.code.value = html(
            "<details><summary>The code of this pipeline</summary>"
            "<pre style='overflow-x:auto'>{}</pre></details>",
            self.copy.text,
        )

    def _draw(self) -> None:
        self.bars.value = image(self._tries.bars(self._now))
        self._tell()

    def _tell(self) -> None:
        self.verdict.value = self._tries.verdict(self._now)
        self.table.value = self._tries.table()

    def _say(self, told: str) -> None:
        self.said.value = html("<p>{}</p>", told) if told else ""

    def measure(self) -> None:
        """Measure what is shown, while a bar moves."""
        self.run.disabled = True
        self.progress.value = 0.0
        self.progress.layout.visibility = "visible"
        try:
            self._say("measuring, in turn with the pipeline as it is …")
            self._tries.measure(self._now, partial(setattr, self.progress, "value"))
            self._say("")
            self._draw()
        except BaseException:
            self._say("not measured: it was stopped")
            raise
        finally:
            self.progress.layout.visibility = "hidden"
            self.run.disabled = False

    def move(self, by: int) -> None:
        """Move the chosen op so many places."""
        labels = self._tries.labels_of(self._now)
        place = labels.index(self.op.value)
        labels.insert(min(max(place + by, 0), len(labels) - 1), labels.pop(place))
        self._take(labels)

    def _take(self, labels: list[str]) -> None:
        """An order that somebody made; one without all ops is put right."""
        positions = self._tries.positions_of(labels)
        if positions is None:
            self.tags.value = self._tries.labels_of(self._now)
            self._say("An order has every op once: it was put back")
        else:
            self._begin(positions)

    def _begin(self, positions: Positions | None) -> None:
        if positions is not None and positions != self._now:
            self._say("")
            self.show(positions)

    def _enable(self) -> None:
        place = self._tries.labels_of(self._now).index(self.op.value)
        self.earlier.disabled = place == 0
        self.later.disabled = place == len(self._now) - 1
