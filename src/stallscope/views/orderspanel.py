"""Put the ops of a pipeline into any order: see its cost and its data, measure it, take its code.

A thin skin over `ordertries.Tries`. The ops can be dragged; two buttons do the same for a keyboard.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

import ipywidgets

from stallscope.analyze.orders.answer import sentence
from stallscope.errors import StallscopeError
from stallscope.views import kinds
from stallscope.views.charts import orders as best
from stallscope.views.copybutton import CopyButton
from stallscope.views.names import shown
from stallscope.views.ordertries import Tries
from stallscope.views.panels import Panel, image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.orderings import Orders
    from stallscope.views.ordertries import Positions

KINDS: Final = {"try": "the ops in any order, with cost, data, measurement and code (the default)"}
"""Every panel of orders."""
NO_BENCH: Final = (
    "Only figures are here, not the pipeline: call ss.orders in this notebook to try other orders"
)
HINT: Final = (
    "Drag the ops into another order with the mouse; or choose one and move it with the buttons."
)
_WIDE: Final = {"description_width": "initial"}


def panel(orders: Orders, kind: str | None = None) -> Panel:
    """Try orders by hand.

    Args:
        orders: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    kinds.panel(kind, KINDS, "orders")
    if orders.bench is None:
        return _told(orders, NO_BENCH)
    tries = Tries(orders, orders.bench)
    if len(tries.labels) < 2:  # noqa: PLR2004 - two to change places
        return _told(orders, sentence(orders))
    made = Board(tries).panel
    made.still = best.figure(orders)
    return made


def _told(orders: Orders, said: str) -> Panel:
    made = Panel([ipywidgets.HTML(f"<p>{escape(shown(said, 300))}</p>")])
    made.still = best.figure(orders)
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
        self.start = ipywidgets.Dropdown(
            options=tries.starts(), description="Begin from", style=_WIDE
        )
        self.op = ipywidgets.Dropdown(options=labels, description="Op", style=_WIDE)
        self.earlier = ipywidgets.Button(description="Earlier", icon="arrow-up")
        self.later = ipywidgets.Button(description="Later", icon="arrow-down")
        self.run = ipywidgets.Button(description="Measure for real", icon="clock-o")
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.progress.layout.visibility = "hidden"
        self.copy = CopyButton("Copy the code")
        self.said, self.verdict, self.bars, self.pictures, self.code, self.table = (
            ipywidgets.HTML() for _ in range(6)
        )
        self._connect()
        self.show(self._now)
        self.panel = Panel(list(self._rows()))
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
        sheet = self._tries.pictures(positions)
        self.pictures.value = image(sheet)
        code = self._tries.code(positions)
        self.copy.text = code
        self.code.value = _fold("The code of this pipeline", code)

    def _draw(self) -> None:
        self.bars.value = image(self._tries.bars(self._now))
        self._tell()

    def _tell(self) -> None:
        self.verdict.value = self._tries.verdict(self._now)
        self.table.value = self._tries.table()

    def measure(self) -> None:
        """Measure what is shown, while a bar moves."""
        self.run.disabled = True
        self.progress.value = 0.0
        self.progress.layout.visibility = "visible"
        try:
            self.said.value = "<p>measuring, in turn with the pipeline as it is …</p>"
            self._tries.measure(self._now, self._move)
            self.said.value = ""
            self._draw()
        except BaseException:
            self.said.value = "<p>not measured: it was stopped</p>"
            raise
        finally:
            self.progress.layout.visibility = "hidden"
            self.run.disabled = False

    def _move(self, share: float) -> None:
        self.progress.value = share

    def move(self, by: int) -> None:
        """Move the chosen op so many places."""
        op = self.op.value
        labels = self._tries.labels_of(self._now)
        place = labels.index(op)
        labels.insert(min(max(place + by, 0), len(labels) - 1), labels.pop(place))
        self._take(labels)

    def _take(self, labels: list[str]) -> None:
        """An order that somebody made; one without all ops is put right."""
        positions = self._tries.positions_of(labels)
        if positions is None:
            self.tags.value = self._tries.labels_of(self._now)
            self.said.value = "<p>An order has every op once: it was put back</p>"
        elif positions != self._now:
            self.said.value = ""
            self.show(positions)

    def _enable(self) -> None:
        place = self._tries.labels_of(self._now).index(self.op.value)
        self.earlier.disabled = place == 0
        self.later.disabled = place == len(self._now) - 1

    def _connect(self) -> None:
        guard = self._guarded
        self.tags.observe(lambda change: guard(lambda: self._take(change["new"])), names="value")
        self.start.observe(lambda change: guard(lambda: self._begin(change["new"])), names="value")
        self.op.observe(lambda _: self._enable(), names="value")
        self.earlier.on_click(lambda _: guard(lambda: self.move(-1)))
        self.later.on_click(lambda _: guard(lambda: self.move(1)))
        self.run.on_click(lambda _: guard(self.measure))

    def _begin(self, positions: Positions | None) -> None:
        if positions is not None:
            self._take(self._tries.labels_of(positions))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Act, and say here what went wrong: what a callback raises is shown nowhere."""
        try:
            act()
        except StallscopeError as error:
            self.said.value = f"<p>{escape(str(error))}</p>"
        except Exception as error:  # noqa: BLE001 - the user's own, out of an op
            said = shown(f"{type(error).__name__}: {error}", 600)
            self.said.value = f"<p>That did not work. {escape(said)}</p>"

    def _rows(self) -> Iterator[Any]:
        yield ipywidgets.HTML(f"<p>{HINT}</p>")
        yield self.tags
        yield ipywidgets.HBox([self.op, self.earlier, self.later, self.start])
        yield self.verdict
        yield self.bars
        yield ipywidgets.HBox([self.run, self.copy, self.progress])
        yield self.said
        yield self.pictures
        yield self.code
        yield self.table


def _fold(head: str, code: str) -> str:
    return (
        f"<details><summary>{escape(head)}</summary>"
        f"<pre style='overflow-x:auto'>{escape(code)}</pre></details>"
    )
