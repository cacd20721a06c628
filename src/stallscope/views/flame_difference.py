"""The face of two flamegraphs in one: what grew, and what shrank.

`stallscope.analyze.stacks.Difference` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.flame.classify import StackFunction
from stallscope.flame.result import difference_sentence
from stallscope.flame.tree import difference_notes, of_difference
from stallscope.names import printable
from stallscope.units import share
from stallscope.views.document import aligned, html_note, html_table, html_title
from stallscope.views.flame import KINDS, MOST_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from stallscope.charts.sheet import Sheet
    from stallscope.flame.result import FlameDifference


HEADS: Final = ("your function", "before", "after", "change", "95% interval", "file")


def plot(found: FlameDifference, kind: str | None = None) -> Sheet:
    """Draw the picture; what grew is orange, what shrank is blue.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    result.resolve_kind(kind, KINDS, "a difference")
    from stallscope.charts import flame

    return flame.difference_figure(found)


def panel(found: FlameDifference, kind: str | None = None) -> Any:
    """The viewer, with both recordings in one graph.

    Raises:
        NoSuchPanelError: there is no such kind.
    """
    result.resolve_panel(kind, KINDS, "a difference")
    from stallscope.views.flame_viewer import FlamePanel

    return FlamePanel(of_difference(found), plot(found), html(found))


def export(found: FlameDifference, path: str | Path) -> Path:
    """Write a file, see `stallscope.views.flamefiles`."""
    from stallscope.views import flame_files

    return flame_files.export_difference(found, path)


def text(found: FlameDifference) -> str:
    """The changes as a table for a terminal."""
    rows = _rows(found)
    table = [*aligned([HEADS, *rows]), ""] if rows else []
    head = printable(difference_sentence(found), 300)
    return "\n".join([head, "", *table, *difference_notes(found)])


def html(found: FlameDifference) -> str:
    """The changes as a table for a notebook."""
    rows = _rows(found)
    table = html_table(HEADS, rows) if rows else ""
    notes = "".join(html_note(note) for note in difference_notes(found))
    head = html_title(printable(difference_sentence(found), 300))
    return f"<div class='stallscope-flames'>{head}{table}{notes}</div>"


def _rows(found: FlameDifference) -> list[tuple[str, ...]]:
    return [
        (
            printable(row["function"], 40),
            share(row["before_share"]),
            share(row["after_share"]),
            f"{100 * row['change']:+.1f} points"
            if row["distinguishable"]
            else "not distinguishable",
            f"{100 * row['change_low']:+.1f} to {100 * row['change_high']:+.1f}",
            printable(StackFunction(row["function"], row["file"]).place, 40),
        )
        for row in found.table().head(MOST_ROWS).iter_rows(named=True)
    ]
