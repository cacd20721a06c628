"""A button that puts a text on the clipboard: ipywidgets has none."""

from __future__ import annotations

from typing import Any, ClassVar

import anywidget
import traitlets

from stallscope.views.flamepage import static


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
