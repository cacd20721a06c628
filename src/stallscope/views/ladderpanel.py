"""Any two rungs of a ladder against each other: two choices, a sentence and the picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

import ipywidgets
import polars as pl

from stallscope.analyze.climb import sentence, times
from stallscope.analyze.headroom import compare
from stallscope.views import kinds
from stallscope.views.charts import climb
from stallscope.views.panels import Panel, Screen

if TYPE_CHECKING:
    from stallscope.ladders import Ladder

KINDS: Final = {"compare": "any two rungs against each other (the default)"}
"""Every panel of a ladder."""
_WIDE: Final = {"description_width": "initial"}


def panel(ladder: Ladder, kind: str | None = None) -> Panel:
    """Choose two rungs; read how many times as fast the one is as the other.

    Args:
        ladder: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    kinds.panel(kind, KINDS, "a ladder")
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
