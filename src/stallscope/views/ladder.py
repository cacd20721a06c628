"""The face of a ladder: its picture, its table, its panel.

`stallscope.ladders.Ladder` finds this module by its name when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.analyze.climb import sentence, times
from stallscope.units import seconds, share, size
from stallscope.views import kinds
from stallscope.views.names import shown
from stallscope.views.tables import aligned, html_note, html_table, html_title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.ladders import Ladder
    from stallscope.views.charts.style import Sheet

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
    kinds.picture(kind, KINDS, "a ladder")
    from stallscope.views.charts import climb

    return climb.figure(ladder)


def text(ladder: Ladder) -> str:
    """The ladder as a table for a terminal."""
    notes = [shown(note, 1000) for note in notes_of(ladder)]
    return "\n".join([sentence(ladder), "", *aligned([HEADS, *_rows(ladder)]), "", *notes])


def html(ladder: Ladder) -> str:
    """The ladder as a table for a notebook; readable on a light and on a dark ground."""
    table = html_table(HEADS, list(_rows(ladder)))
    notes = "".join(html_note(note) for note in notes_of(ladder))
    return f"<div class='stallscope-ladder'>{html_title(sentence(ladder))}{table}{notes}</div>"


def panel(ladder: Ladder, kind: str | None = None) -> Any:
    """Widgets: any two rungs against each other; see `stallscope.views.ladderpanel`."""
    from stallscope.views import ladderpanel

    return ladderpanel.panel(ladder, kind)


def notes_of(ladder: Ladder) -> list[str]:
    """What a reader has to know, a sentence each."""
    told = ladder.circumstances
    said = [f"computed by: {told.device}"]
    if told.simulated_step_s is not None:
        said = [f"the step is simulated: a timer of {seconds(told.simulated_step_s)}, no device"]
    elif not told.has_step:
        said = ["no step was given: how busy a device could be cannot be told"]
    missing = ladder.table().filter(pl.col("why_not").is_not_null())
    for why in missing["why_not"].unique(maintain_order=True):
        names = missing.filter(pl.col("why_not") == why)["rung"]
        said.append(f"not measured: {', '.join(names)} ({why})")
    return [*said, *ladder.notes]


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
