"""A ladder in a notebook and a terminal: its picture, its table, any two rungs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.bench.comparison import FASTER, SAME, SLOWER
from stallscope.ladder.result import notes_of, sentence
from stallscope.stats import INTERVAL
from stallscope.units import share, size, times
from stallscope.views.document import Document, Heading, Notes, Table, html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.ladder.result import Ladder


WHOSE: Final = "a ladder"
KINDS: Final = {"ladder": "how fast the loop is without each of the loader's costs (the default)"}
PANELS: Final = {"compare": "any two rungs against each other (the default)"}
HEADS: Final = (
    "rung",
    "samples/s",
    INTERVAL,
    "vs. previous rung",
    "in the step",
    "busy",
    "in memory",
)


def document(ladder: Ladder) -> Document:
    """The ladder as a table."""
    table = Table(HEADS, list(_rows(ladder)))
    return Document("ladder", [Heading(sentence(ladder)), table, Notes(notes_of(ladder))])


def panel(ladder: Ladder, _kind: str) -> Any:
    """Give widgets to choose two rungs: how many times as fast the one is as the other."""
    from stallscope.charts import ladder as chart
    from stallscope.views.panels import dropdown, pick, saying

    names = ladder.table().filter(pl.col("samples_per_s").is_not_null())["rung"].to_list()
    if len(names) < 2:  # noqa: PLR2004 - two to compare
        return saying(sentence(ladder))
    picture = chart.figure(ladder)
    return pick(
        lambda upper, lower: (picture, html("<p><b>{}</b></p>", compared(ladder, lower, upper))),
        dropdown("This rung", names, names[-1]),
        dropdown("against", names, names[0]),
    )


def compared(ladder: Ladder, lower: str, upper: str) -> str:
    """How many times as fast one rung is as another, in a sentence."""
    if lower == upper:
        return "Choose two different rungs"
    found = ladder.compared(upper, lower)
    if found.low is None:
        return f"'{upper}' against '{lower}': {found.says}"
    ends = f"{INTERVAL} {found.low:.2f} to {found.high:.2f}"
    said = f"'{upper}' is {times(found.factor)} as fast as '{lower}' ({ends})"
    return said if found.says in (FASTER, SLOWER) else f"{said}: {found.says}"


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
    if gain["says"] == SAME or gain["factor_low"] is None:
        return str(gain["says"])
    return f"{times(gain['factor'])} ({interval(gain['factor_low'], gain['factor_high'], '.2f')})"
