"""The flamegraph's viewer: a widget, and an HTML page that needs no kernel and no network.

Both are a thin skin over `static/viewer.js`. The page forbids itself every request, so that what it
shows stays on the machine.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anywidget
import traitlets

from stallscope.views.document import display_with_still, fill, html

if TYPE_CHECKING:
    from markupsafe import Markup

    from stallscope.charts.sheet import Sheet


FRAME_HEIGHT: Final = 560


@cache
def static(name: str) -> str:
    """Read a file of `static/`."""
    return files("stallscope.views").joinpath("static", name).read_text(encoding="utf-8")


def script() -> str:
    """Return the viewer with the library that it draws with: it defines `mountFlame`."""
    return f"{static('d3-flame-graph.min.js')}\n{static('viewer.js')}"


def to_json(data: dict[str, Any]) -> str:
    """Return data for an element `script` of a page, which only "</" could end."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def page_script() -> str:
    """Return the viewer for a page: it draws the element `data` into the element `flame`."""
    data = 'JSON.parse(document.getElementById("data").textContent)'
    return f'{script()}\nmountFlame(document.getElementById("flame"), {data});\n'


def page(data: dict[str, Any], below: Markup | None = None) -> Markup:
    """Return the page.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        below: stands under the graph.
    """
    return fill(
        "flame.html",
        title=data["title"],
        style=static("viewer.css"),
        data=to_json(data),
        script=page_script(),
        below=below or "",
    )


def framed(data: dict[str, Any], table: Markup, still: str) -> Markup:
    """Return the page in a frame and a table below it, for the output of a notebook's cell.

    Where a notebook is not trusted, the frame is taken out: what stands inside of it, which a
    browser passes over otherwise, is then seen above the table.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        table: what stands below.
        still: the picture, a PNG in base64.
    """
    return html(
        "<iframe sandbox='allow-scripts' loading='lazy' title='{0}' "
        "style='width:100%;height:{1}px;border:0' "
        "srcdoc='{2}'><img src='data:image/png;base64,{3}' alt='{0}'></iframe>{4}",
        data["title"],
        FRAME_HEIGHT,
        str(page(data)),
        still,
        table,
    )


class FlamePanel(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Zoom, search, details, and switches for workers and stages; a click tells Python the frame.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        still: the picture for places that show no widgets.
        table: the table for them.
    """

    _esm: ClassVar[str] = f"{script()}\n{static('widget.js')}"
    _css: ClassVar[str] = static("viewer.css")
    data = traitlets.Dict().tag(sync=True)
    picked = traitlets.Dict().tag(sync=True)
    """Clicked frame, in the viewer's numbers."""
    selected = traitlets.Dict()
    """The frame that was clicked last: `function`, `file`, `kind`, `share` (of the chosen samples,
    0 to 1; of a difference, those after and before), `hits` and `stack`; empty after a reset."""

    def __init__(self, data: dict[str, Any], still: Sheet, table: Markup) -> None:
        super().__init__(data=data)
        self.still = still
        self._table = table

    @traitlets.observe("picked")  # type: ignore[untyped-decorator]
    def _tell(self, change: dict[str, Any]) -> None:
        self.selected = _frame(self.data, change["new"])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        rendered = super()._repr_mimebundle_(**kwargs)
        data, metadata = rendered if isinstance(rendered, tuple) else (rendered, {})
        still = self.still.png_text()
        bundle = {
            **(data or {}),
            "text/html": framed(self.data, self._table, still),
            "image/png": still,
            "text/plain": f"{self.still.title}\n(a notebook shows the flamegraph)",
        }
        return bundle, metadata

    def _ipython_display_(self) -> None:
        bundle, metadata = self._repr_mimebundle_()
        display_with_still(self, bundle, metadata, bundle["text/html"])


def _frame(data: dict[str, Any], picked: dict[str, Any]) -> dict[str, Any]:
    """Return the clicked frame in words; a page may send anything."""
    place = picked.get("place")
    if not isinstance(place, int) or not 0 < place < len(data["frame"]):
        return {}
    function, file = data["frames"][data["frame"][place]]
    shares = [float(part) for part in picked.get("shares", [])]
    return {
        "function": function,
        "file": file,
        "kind": data["kind"][place],
        "share": shares[0] if len(shares) == 1 else shares,
        "hits": sum(int(hits) for hits in picked.get("hits", [])),
        "stack": [data["frames"][data["frame"][frame]][0] for frame in picked.get("stack", [])],
    }
