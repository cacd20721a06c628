"""The face of a run: its pictures by name, its table, its panel.

`stallscope.run.Run` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stallscope.views import kinds
from stallscope.views import text as tables

if TYPE_CHECKING:
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet

KINDS: Final = {
    "stages": "where a sample's time goes, and how it is spread (the default)",
    "sample": "one sample as a bar of stages",
    "spread": "single samples as dots, stage by stage",
    "naive": "what a stopwatch around each transform would have said",
    "exposed": "what the loop stood still for",
    "timeline": "workers and loop over a few seconds: who was waited for",
    "resources": "what was used up while the loop stood still: cores, memory, disk, network",
    "waits": "every step's wait, and the patterns in them",
    "lanes": "what each worker did over a few seconds",
    "slowest": "the slowest samples, and what made them slow",
    "size": "time against file size and pixels",
    "startup": "what the start of the workers cost",
    "tail": "the longest stage's slow end",
}
"""Every picture of a run; each is a module in `views.charts`."""


def plot(run: Run, kind: str | None = None) -> Sheet:
    """Draw one of the pictures.

    Args:
        run: what was measured.
        kind: one of `KINDS`; None draws "stages".

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    name = kinds.picture(kind, KINDS, "a run")
    chart: Any = import_module(f"stallscope.views.charts.{name}")
    figure: Sheet = chart.figure(run)
    return figure


def text(run: Run) -> str:
    """The run as a table for a terminal."""
    return tables.text(run)


def html(run: Run) -> str:
    """The run as a table for a notebook."""
    return tables.html(run)


def panel(run: Run, kind: str | None = None) -> Any:
    """Widgets: the slow ends of the stages, the stalls, the timeline; see `views.panels`."""
    from stallscope.views import panels

    return panels.panel(run, kind)
