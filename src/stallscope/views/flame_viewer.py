"""A flamegraph as one HTML page that needs nothing else: no kernel, no network.

The page forbids itself every request, so that what it shows stays on the machine.

The flamegraph as a widget; a thin skin over `static/viewer.js`, which works without a kernel.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anywidget
import traitlets

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet


_RULES: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{body}{style}</style></head>
<body><div id="flame"></div>
<script type="application/json" id="data">{data}</script>
<script>{script}
mountFlame(document.getElementById("flame"),
  JSON.parse(document.getElementById("data").textContent));
</script>{below}</body></html>
"""
_BODY: Final = (
    'body{margin:0;background:#fff;color:#1a1a1a;font:14px "DejaVu Sans",system-ui,sans-serif}'
    ".stallscope-flames{padding:0 12px 12px}"
)
FRAME_HEIGHT: Final = 560


@cache
def static(name: str) -> str:
    """A file of `static/`."""
    return files("stallscope.views").joinpath("static", name).read_text(encoding="utf-8")


def script() -> str:
    """The viewer with the library that it draws with: it defines `mountFlame`."""
    return f"{static('d3-flame-graph.min.js')}\n{static('viewer.js')}"


def page(data: dict[str, Any], below: str = "") -> str:
    """The page.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        below: HTML that stands under the graph, with its names escaped.
    """
    return _PAGE.format(
        rules=_RULES,
        title=escape(data["title"]),
        body=_BODY,
        style=static("viewer.css"),
        # the only way out of such an element is "</"
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        script=script(),
        below=below,
    )


def framed(data: dict[str, Any], table: str, still: str = "") -> str:
    """The page in a frame of its own and a table below it, for the output of a notebook's cell.

    Where a notebook is not trusted, the frame is taken out: what stands inside of it, which a
    browser passes over otherwise, is then seen above the table.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        table: HTML whose names are escaped.
        still: the picture, a PNG in base64.
    """
    title = escape(data["title"])
    picture = f"<img src='data:image/png;base64,{still}' alt='{title}'>" if still else ""
    return (
        f"<iframe sandbox='allow-scripts' title='{title}' "
        f"style='width:100%;height:{FRAME_HEIGHT}px;border:0' "
        f"srcdoc='{escape(page(data))}'>{picture}</iframe>{table}"
    )


class FlamePanel(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Zoom, search, details, and switches for workers and stages; a click tells Python the frame.

    Args:
        data: as `flame.tree.of_flame` or `of_difference` gives it.
        still: the picture for places that show no widgets.
        table: the table for them, HTML whose names are escaped.
    """

    _esm: ClassVar[str] = f"{script()}\n{static('widget.js')}"
    _css: ClassVar[str] = static("viewer.css")
    data = traitlets.Dict().tag(sync=True)
    picked = traitlets.Dict().tag(sync=True)
    """What was clicked, in numbers of the viewer's."""
    selected = traitlets.Dict()
    """The frame that was clicked last: `function`, `file`, `kind`, `share` (of the chosen samples,
    0 to 1; of a difference, those after and before), `hits` and `stack`; empty after a reset."""

    def __init__(self, data: dict[str, Any], still: Sheet, table: str) -> None:
        super().__init__(data=data)
        self.still = still
        self._table = table

    @traitlets.observe("picked")  # type: ignore[untyped-decorator]
    def _tell(self, change: dict[str, Any]) -> None:
        self.selected = _frame(self.data, change["new"])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        found = super()._repr_mimebundle_(**kwargs)
        data, metadata = found if isinstance(found, tuple) else (found, {})
        still = base64.b64encode(self.still.png()).decode("ascii")
        bundle = {
            **(data or {}),
            "text/html": framed(self.data, self._table, still),
            "image/png": still,
            "text/plain": f"{self.still.title}\n(a notebook shows the flamegraph)",
        }
        return bundle, metadata


def _frame(data: dict[str, Any], picked: dict[str, Any]) -> dict[str, Any]:
    """What was clicked, in words; a page may send anything."""
    place = picked.get("place")
    if not isinstance(place, int) or not 0 < place < len(data["frame"]):
        return {}
    function, file = data["frames"][data["frame"][place]]
    shares = [float(one) for one in picked.get("shares", [])]
    return {
        "function": function,
        "file": file,
        "kind": data["kind"][place],
        "share": shares[0] if len(shares) == 1 else shares,
        "hits": sum(int(one) for one in picked.get("hits", [])),
        "stack": [data["frames"][data["frame"][one]][0] for one in picked.get("stack", [])],
    }
