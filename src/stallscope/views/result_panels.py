"""Any two rungs of a ladder against each other: two choices, a sentence and the picture.

Choose a function, see its listing.

The pictures behind a verdict, one at a time: one choice, and what it shows.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final, cast

import ipywidgets
import polars as pl

from stallscope import result
from stallscope.charts import ladder as climb
from stallscope.charts import lines as hotlines
from stallscope.diagnose.text import PICTURE_SOURCES, PICTURES
from stallscope.ladder.result import compare
from stallscope.ladder.text import sentence
from stallscope.lines.result import in_order, title
from stallscope.names import printable
from stallscope.units import share, times
from stallscope.views.listing import html_listing
from stallscope.views.panels import Panel, Screen

if TYPE_CHECKING:
    from stallscope.charts.sheet import Sheet
    from stallscope.diagnose.result import Diagnosis
    from stallscope.ladder.result import Ladder
    from stallscope.lines.result import Lines


LADDER_PANELS: Final = {"compare": "any two rungs against each other (the default)"}
"""Every panel of a ladder."""
_WIDE: Final = {"description_width": "initial"}


def ladder_panel(ladder: Ladder, kind: str | None = None) -> Panel:
    """Choose two rungs; read how many times as fast the one is as the other.

    Args:
        ladder: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, LADDER_PANELS, "a ladder")
    names = ladder.table().filter(pl.col("samples_per_s").is_not_null())["rung"].to_list()
    still = climb.figure(ladder)
    if len(names) < 2:  # noqa: PLR2004 - two to compare
        return Panel([ipywidgets.HTML(f"<p>{escape(sentence(ladder))}</p>")])
    upper, lower = (
        ipywidgets.Dropdown(options=names, value=names[place], description=what, style=_WIDE)
        for place, what in ((-1, "This rung"), (0, "against"))
    )
    screen = Screen(lambda one, other: (still, _html(compared(ladder, other, one))))

    def show(_: object = None) -> None:
        screen.show(upper.value, lower.value)

    show()
    for control in (upper, lower):
        control.observe(show, names="value")
    return screen.panel(upper, lower)


def _html(told: str) -> str:
    return f"<p><b>{escape(told)}</b></p>"


def compared(ladder: Ladder, lower: str, upper: str) -> str:
    """How many times as fast one rung is as another, in a sentence."""
    if lower == upper:
        return "Choose two different rungs"
    found: dict[str, Any] | None = compare(ladder, lower, upper)
    if found is None or not found["distinguishable"]:
        return f"'{upper}' and '{lower}' are not distinguishable"
    ends = f"95% interval {found['factor_low']:.2f} to {found['factor_high']:.2f}"
    return f"'{upper}' is {times(found['factor'])} as fast as '{lower}' ({ends})"


LINES_PANELS: Final = {"listing": "one function with the heat of its lines (the default)"}
"""Every panel of lines."""
_LONGEST: Final = 60


def lines_panel(lines: Lines, kind: str | None = None) -> Panel:
    """Choose a function; the one with the hottest lines is the first.

    Args:
        lines: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, LINES_PANELS, "lines")
    functions = in_order(lines)
    if not functions:
        return Panel([ipywidgets.HTML(f"<p>{escape(title(lines))}</p>")])
    options = [
        (f"{printable(row['function'], _LONGEST)} ({share(row['own_share'] or 0.0)})", place)
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


DIAGNOSIS_PANELS: Final = {"evidence": "the pictures behind the verdict (the default)"}
"""Every panel of a diagnosis."""
_FIRST: Final = "stages"
"""The picture to begin with, where there is one: the verdict has just been read."""


def diagnosis_panel(diagnosis: Diagnosis, kind: str | None = None) -> Panel:
    """Choose a picture.

    Args:
        diagnosis: what was found.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, DIAGNOSIS_PANELS, "a diagnosis")
    offered = [name for name in PICTURES if _has(diagnosis, name)]
    choice = ipywidgets.Dropdown(
        options=[(_plain(PICTURES[name]), name) for name in offered],
        value=_FIRST if _FIRST in offered else offered[0],
        description="Show",
        layout=ipywidgets.Layout(width="min(100%, 40em)"),
    )
    screen = Screen(lambda name: (cast("Sheet", diagnosis.plot(name)), ""))

    def show(_: object = None) -> None:
        screen.show(choice.value)

    show()
    choice.observe(show, names="value")
    return screen.panel(choice)


def _plain(told: str) -> str:
    return told.removesuffix(" (the default)")


def _has(diagnosis: Diagnosis, kind: str) -> bool:
    """Whether what the picture shows was measured."""
    source = PICTURE_SOURCES.get(kind)
    return source is None or getattr(diagnosis, source.part) is not None
