"""The pictures behind a verdict, one at a time: one choice, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import ipywidgets

from stallscope.views import diagnosis as face
from stallscope.views import kinds
from stallscope.views.panels import Panel, Screen

if TYPE_CHECKING:
    from stallscope.diagnoses import Diagnosis

KINDS: Final = {"evidence": "the pictures behind the verdict (the default)"}
"""Every panel of a diagnosis."""
_FIRST: Final = "stages"
"""The picture to begin with, where there is one: the verdict has just been read."""


def panel(diagnosis: Diagnosis, kind: str | None = None) -> Panel:
    """Choose a picture.

    Args:
        diagnosis: what was found.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    kinds.panel(kind, KINDS, "a diagnosis")
    offered = [name for name in face.KINDS if _has(diagnosis, name)]
    choice = ipywidgets.Dropdown(
        options=[(_plain(face.KINDS[name]), name) for name in offered],
        value=_FIRST if _FIRST in offered else offered[0],
        description="Show",
        layout=ipywidgets.Layout(width="min(100%, 40em)"),
    )
    screen = Screen(lambda name: (face.plot(diagnosis, name), ""))

    def show(_: object = None) -> None:
        screen.show(choice.value)

    show()
    choice.observe(show, names="value")
    return screen.panel(choice)


def _plain(told: str) -> str:
    return told.removesuffix(" (the default)")


def _has(diagnosis: Diagnosis, kind: str) -> bool:
    """Whether what the picture shows was measured."""
    source = face.SOURCES.get(kind)
    return source is None or getattr(diagnosis, source.part) is not None
