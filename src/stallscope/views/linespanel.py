"""Choose a function, see its listing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

import ipywidgets

from stallscope.analyze.hotlines import in_order
from stallscope.units import share
from stallscope.views import kinds
from stallscope.views.charts import hotlines
from stallscope.views.lines import html_listing, title
from stallscope.views.names import shown
from stallscope.views.panels import Panel, Screen

if TYPE_CHECKING:
    from stallscope.listings import Lines

KINDS: Final = {"listing": "one function with the heat of its lines (the default)"}
"""Every panel of lines."""
_WIDE: Final = {"description_width": "initial"}
_LONGEST: Final = 60


def panel(lines: Lines, kind: str | None = None) -> Panel:
    """Choose a function; the one with the hottest lines is the first.

    Args:
        lines: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    kinds.panel(kind, KINDS, "lines")
    functions = in_order(lines)
    if not functions:
        return Panel([ipywidgets.HTML(f"<p>{escape(title(lines))}</p>")])
    options = [
        (f"{shown(row['function'], _LONGEST)} ({share(row['own_share'] or 0.0)})", place)
        for place, row in enumerate(functions)
    ]
    choice = ipywidgets.Dropdown(
        options=options,
        value=0,
        description="Function",
        style=_WIDE,
        layout=ipywidgets.Layout(width="min(100%, 40em)"),
    )
    screen = Screen(lambda place: (None, html_listing(lines, functions[place])))

    def show(_: object = None) -> None:
        screen.show(choice.value)

    show()
    choice.observe(show, names="value")
    made = screen.panel(choice)
    made.still = hotlines.figure(lines)
    return made
