"""The face of a ladder: its picture, its table, its panel.

`stallscope.ladders.Ladder` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope import result
from stallscope.ladder.text import notes_of, sentence
from stallscope.names import printable
from stallscope.units import share, size, times
from stallscope.views.document import aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.charts.sheet import Sheet
    from stallscope.ladder.result import Ladder


KINDS: Final = {"ladder": "how fast the loop is without each of the loader's costs (the default)"}
"""Every picture of a ladder."""
HEADS: Final = (
    "rung",
    "samples/s",
    "95% interval",
    "against the one before",
    "in the step",
    "busy",
    "in memory",
)


def plot(ladder: Ladder, kind: str | None = None) -> Sheet:
    """Draw the picture.

    Args:
        ladder: what was measured.
        kind: one of `KINDS`.

    Raises:
        NoSuchPictureError: there is no such kind.
    """
    result.resolve_kind(kind, KINDS, "a ladder")
    from stallscope.charts import ladder as climb

    return climb.figure(ladder)


def text(ladder: Ladder) -> str:
    """The ladder as a table for a terminal."""
    notes = [printable(note, 1000) for note in notes_of(ladder)]
    return "\n".join([sentence(ladder), "", *aligned([HEADS, *_rows(ladder)]), "", *notes])


def html(ladder: Ladder) -> str:
    """The ladder as a table for a notebook; readable on a light and on a dark ground."""
    table = html_table(HEADS, list(_rows(ladder)))
    notes = "".join(html_note(note) for note in notes_of(ladder))
    return f"<div class='stallscope-ladder'>{html_title(sentence(ladder))}{table}{notes}</div>"


def panel(ladder: Ladder, kind: str | None = None) -> Any:
    """Widgets: any two rungs against each other; see `stallscope.views.ladderpanel`."""
    from stallscope.views import result_panels

    return result_panels.ladder_panel(ladder, kind)


def _rows(ladder: Ladder) -> Iterator[tuple[str, ...]]:
    gains = {row["rung"]: row for row in ladder.gains().iter_rows(named=True)}
    for row in ladder.table().iter_rows(named=True):
        if row["samples_per_s"] is not None:
            yield (
                row["rung"],
                f"{row['samples_per_s']:,.0f}",
                interval(row["samples_per_s_low"], row["samples_per_s_high"], ",.0f"),
                gain_text(gains.get(row["rung"])),
                share(row["step_share"]),
                share(row["device_busy_share"]),
                size(row["cached_bytes"]) if row["cached_bytes"] else "—",
            )


def interval(low: float | None, high: float | None, form: str) -> str:
    """The ends of an interval; a dash without one."""
    return "—" if low is None else f"{low:{form}} to {high:{form}}"


def gain_text(gain: dict[str, Any] | None) -> str:
    """How a rung compares with the one before it; a row of `Ladder.gains`."""
    if gain is None:
        return "—"
    if not gain["distinguishable"]:
        return "not distinguishable"
    return f"{times(gain['factor'])} ({interval(gain['factor_low'], gain['factor_high'], '.2f')})"
