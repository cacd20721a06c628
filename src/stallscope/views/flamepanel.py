"""The flamegraph as a widget; a thin skin over `static/viewer.js`, which works without a kernel."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget
import traitlets

from stallscope.views.flamepage import framed, script, static

if TYPE_CHECKING:
    from stallscope.views.charts.style import Sheet


class FlamePanel(anywidget.AnyWidget):  # type: ignore[misc]  # its base, ipywidgets, has no types
    """Zoom, search, details, and switches for workers and stages; a click tells Python the frame.

    Args:
        data: what `flamedata` made.
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
