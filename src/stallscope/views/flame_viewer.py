"""The flamegraph's viewer: a widget, and an HTML page that needs no kernel and no network.

Both are a thin skin over `static/viewer.js`. The page forbids itself every request, so that what it
shows stays on the machine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anywidget
import traitlets

from stallscope.views.document import fill, static

if TYPE_CHECKING:
    from markupsafe import Markup


_SCRIPT: Final = f"{static('d3-flame-graph.min.js')}\n{static('viewer.js')}"
"""Viewer with the library that it draws with: it defines `mountFlame`."""


def to_json(data: dict[str, Any]) -> str:
    """Return data for an element `script` of a page, which only "</" could end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def page_script() -> str:
    """Return the viewer for a page: it draws the element `data` into the element `flame`."""
    data = 'JSON.parse(document.getElementById("data").textContent)'
    return f'{_SCRIPT}\nmountFlame(document.getElementById("flame"), {data});\n'


def page(data: dict[str, Any], below: Markup) -> Markup:
    """Return the page: the graph from `flame.tree.of_flame` or `of_difference`, and a text."""
    return fill(
        "flame.html",
        title=data["title"],
        style=static("viewer.css"),
        data=to_json(data),
        script=page_script(),
        below=below,
    )


class FlameViewer(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Zoom, search, details, and switches for workers and stages."""

    _esm: ClassVar[str] = f"{_SCRIPT}\n{static('widget.js')}"
    _css: ClassVar[str] = static("viewer.css")
    data = traitlets.Dict().tag(sync=True)
    """Graph, from `flame.tree.of_flame` or `of_difference`."""
