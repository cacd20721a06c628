"""The panels: a thin skin of widgets over functions that work without them.

A panel is given what it calls. It draws into an image of its own, so nothing of it depends on the
cell that shows it, and a cell that runs twice just makes a second, equal panel.

A button that puts a text on the clipboard: ipywidgets has none.
"""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import anywidget
import ipywidgets
import traitlets

from stallscope import result
from stallscope.views.flame_viewer import static

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.charts.sheet import Sheet
    from stallscope.run.result import Run
    from stallscope.views.run_panels import Moments, Stalls


RUN_PANELS: Final = {
    "tail": "one stage's distribution, and what lies in its slow end (the default)",
    "stalls": "the stalls one by one: what happened around each, and its parts",
    "timeline": "workers and loop from any step on, as many steps as you like",
}
"""Every panel of a run."""
EMPTY: Final = "No batch was recorded from beginning to end: there is nothing to choose from"
_WIDE: Final = {"description_width": "initial"}


class Asked(Protocol):
    """What a tail panel shows."""

    stages: tuple[str, ...]
    workers: tuple[str, ...]

    def draw(self, stage: str, worker: str, percentile: int) -> Sheet | None:
        """The picture, None where there is nothing to draw."""

    def table(self, stage: str, worker: str, percentile: int) -> str:
        """The table beneath it, as HTML whose names are escaped."""


class Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Widgets under each other, with a picture for places that show no widgets."""

    still: Sheet | None = None
    """What the panel showed first."""

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
        if self.still:
            bundle["image/png"] = base64.b64encode(self.still.png()).decode("ascii")
            bundle["text/plain"] = f"{self.still.title}\n(a notebook shows the panel's controls)"
        return bundle


class Screen:
    """A picture and what stands below it, drawn anew only where something else is to be seen.

    Args:
        draw: gives both.
    """

    def __init__(self, draw: Callable[..., tuple[Sheet | None, str]]) -> None:
        self.image, self.below = ipywidgets.HTML(), ipywidgets.HTML()
        self.first: Sheet | None = None
        self.shown: tuple[Any, ...] | None = None
        self._draw = draw

    def show(self, *what: Any) -> None:
        """Draw this, unless it is there."""
        if what == self.shown:
            return
        sheet, self.below.value = self._draw(*what)
        self.image.value = image(sheet)
        self.first = self.first if self.shown else sheet
        self.shown = what

    def panel(self, *controls: Any) -> Panel:
        """With its controls, if there are any, in a row over it."""
        row = [ipywidgets.HBox(controls)] if controls else []
        panel = Panel([*row, self.image, self.below])
        panel.still = self.first
        return panel


def panel(run: Run, kind: str | None = None) -> Any:
    """One of the panels.

    Args:
        run: what was measured.
        kind: one of `KINDS`; None is "tail".

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    name = result.resolve_panel(kind, RUN_PANELS, "a run")
    if name == "tail":
        from stallscope.views.run_panels import Tails

        return tail_panel(Tails(run))
    if name == "stalls":
        from stallscope.views.run_panels import Stalls

        return stall_panel(Stalls(run))
    from stallscope.views.run_panels import Moments

    return timeline_panel(Moments(run))


def tail_panel(asked: Asked) -> Any:
    """Choose a stage, a worker and a percentile; see the distribution and what lies beyond.

    Args:
        asked: gives the choices, the picture and the table.
    """
    if not asked.stages:
        return ipywidgets.HTML(f"<p>{EMPTY}</p>")
    stage = ipywidgets.Dropdown(options=asked.stages, description="Stage", style=_WIDE)
    worker = ipywidgets.Dropdown(options=asked.workers, description="Worker", style=_WIDE)
    percentile = ipywidgets.IntSlider(
        95, 50, 99, description="Percentile", continuous_update=False, style=_WIDE
    )
    screen = Screen(lambda *choice: (asked.draw(*choice), asked.table(*choice)))
    controls = (stage, worker, percentile)

    def show(_: object = None) -> None:
        screen.show(*(control.value for control in controls))

    show()
    for control in controls:
        control.observe(show, names="value")
    return screen.panel(*controls)


def stall_panel(asked: Stalls) -> Panel:
    """Step through the stalls; see what happened around each, and what it consists of.

    Choosing another order keeps the stall: the longest one's neighbours are a step away.

    Args:
        asked: gives the stalls, the picture and the table.
    """
    if not asked.number:
        return Panel([ipywidgets.HTML(f"<p>{escape(asked.none)}</p>")])
    order = ipywidgets.Dropdown(options=asked.orders, description="Order", style=_WIDE)
    slider = ipywidgets.IntSlider(
        1, 1, asked.number, continuous_update=False, description="Stall", style=_WIDE
    )
    screen = Screen(lambda stall: (asked.draw(stall), asked.table(stall)))

    def show(_: object = None) -> None:
        screen.show(asked.stall(order.value, slider.value))

    def reorder(_: object) -> None:
        slider.value = asked.number_of(order.value, *(screen.shown or ()))

    show()
    slider.observe(show, names="value")
    order.observe(reorder, names="value")
    if asked.number == 1:
        return screen.panel()
    return screen.panel(order, slider, ipywidgets.Label(f"of {asked.number:,}"))


def timeline_panel(asked: Moments) -> Panel:
    """Slide over the steady state; see what the workers and the loop did.

    Another length (or rank) keeps the first step, as far as there are so many after it.

    Args:
        asked: gives the choices and the picture.
    """
    if asked.usual is None:
        return Panel([ipywidgets.HTML(f"<p>{escape(asked.none)}</p>")])
    first_rank, first_step, first_many = asked.usual
    rank = ipywidgets.Dropdown(
        options=asked.ranks, value=first_rank, description="Rank", style=_WIDE
    )
    many = ipywidgets.Dropdown(
        options=asked.lengths, value=first_many, description="Steps", style=_WIDE
    )
    slider = ipywidgets.IntSlider(continuous_update=False, description="From step", style=_WIDE)
    screen = Screen(lambda *choice: (asked.draw(*choice), ""))

    def bound(step: int) -> None:
        low, high = asked.firsts(rank.value, many.value)
        with slider.hold_trait_notifications():
            slider.min, slider.max, slider.value = low, high, min(max(step, low), high)

    def show(_: object = None) -> None:
        screen.show(rank.value, slider.value, many.value)

    def choose(_: object) -> None:
        bound(slider.value)
        show()

    bound(first_step)
    show()
    slider.observe(show, names="value")
    for choice in (rank, many):
        choice.observe(choose, names="value")
    return screen.panel(*([rank] if len(asked.ranks) > 1 else []), many, slider)


def image(sheet: Sheet | None) -> str:
    """The picture with its answer as the text that a screen reader reads."""
    if sheet is None:
        return ""
    data = base64.b64encode(sheet.png()).decode("ascii")
    width = int(sheet.get_figwidth() * 100)
    return (
        f"<img alt='{escape(sheet.title)}' src='data:image/png;base64,{data}' "
        f"style='width:{width}px;max-width:100%'>"
    )


class CopyButton(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Copies `text` when it is pressed, and says so beside it; disabled while there is none.

    Args:
        label: what stands on it.
    """

    _esm: ClassVar[str] = static("copy.js")
    text = traitlets.Unicode().tag(sync=True)
    """What is copied."""
    label = traitlets.Unicode().tag(sync=True)
    """What stands on it."""

    def __init__(self, label: str, **kwargs: Any) -> None:
        super().__init__(label=label, **kwargs)
