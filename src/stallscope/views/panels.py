"""The panels: a thin skin of widgets over functions that work without them.

A panel is given what it calls. It draws into an image of its own, so nothing of it depends on the
cell that shows it, and a cell that runs twice just makes a second, equal panel.
"""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any, Final, Protocol

import ipywidgets

if TYPE_CHECKING:
    from stallscope.views.charts.style import Sheet

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
            bundle["text/plain"] = f"{self.still.title}\n(choose stage and worker in a notebook)"
        return bundle


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
    image, table = ipywidgets.HTML(), ipywidgets.HTML()

    def show(_: object = None) -> Sheet | None:
        choice = (stage.value, worker.value, percentile.value)
        sheet = asked.draw(*choice)
        image.value = _image(sheet)
        table.value = asked.table(*choice)
        return sheet

    for control in (stage, worker, percentile):
        control.observe(show, names="value")
    panel = Panel([ipywidgets.HBox([stage, worker, percentile]), image, table])
    panel.still = show()
    return panel


def _image(sheet: Sheet | None) -> str:
    """The picture with its answer as the text that a screen reader reads."""
    if sheet is None:
        return ""
    data = base64.b64encode(sheet.png()).decode("ascii")
    width = int(sheet.get_figwidth() * 100)
    return (
        f"<img alt='{escape(sheet.title)}' src='data:image/png;base64,{data}' "
        f"style='width:{width}px;max-width:100%'>"
    )
