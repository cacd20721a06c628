"""The settings of a loader in a notebook and a terminal: which one to use, and what each gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stallscope.stages import COLOURS
from stallscope.stats import INTERVAL
from stallscope.tune.result import (
    AS_IT_IS,
    NOT_TRIED,
    PREDICTED,
    notes_of,
    rate,
    sentence,
    times_text,
)
from stallscope.units import count, printable, share, size
from stallscope.views.document import CellBar, Document, Fold, Heading, Notes, Table
from stallscope.views.document import as_json as document_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.tune.result import Tuning


WHOSE: Final = "a tuning"
KINDS: Final = {
    "predicted": "predicted against measured, for every setting that was measured (the default)",
}
CHARTS: Final = {"predicted": ("tuning", "predicted_figure")}
PANELS: Final = {"try": "any setting, step and faster stage: what the loop would do (the default)"}
HEADS: Final = (
    "setting",
    "predicted/s",
    "as now",
    "measured/s",
    INTERVAL,
    "as now",
    "stalls",
    "memory",
    "",
)
MOST_PREDICTED: Final = 5
"""Rows of those that were only predicted: they are alike, and what matters was measured."""
MOST: Final = 14
"""Rows of a table that is looked at; `Tuning.settings` has all."""
_NAME: Final = 60


def panel(tuning: Tuning, _kind: str) -> Any:
    """Give widgets for any setting: what the loop would do, at once, and a button to measure it."""
    from stallscope.views import tuning_panel

    return tuning_panel.panel(tuning)


def document(tuning: Tuning) -> Document:
    """The answer, and the settings as a table; what was not tried opens on a click."""
    rows = tuning.settings().to_dicts()
    known = [row for row in rows if row["status"] != NOT_TRIED]
    guesses = [row for row in known if row["status"] == PREDICTED][:MOST_PREDICTED]
    shown = [row for row in known if row["status"] != PREDICTED or row in guesses][:MOST]
    bars = [
        CellBar(row["measured_per_s"] or row["predicted_per_s"] or 0.0, COLOURS["transform"])
        for row in shown
    ]
    hidden = len(rows) - len(shown)
    more = [f"not shown: {count(hidden, 'more setting')}, all of them in .settings()"]
    reasons = [
        printable(f"{row['setting']}: {row['reason']}", 400)
        for row in rows
        if row["reason"] and row["status"] != AS_IT_IS
    ]
    return Document(
        "tuning",
        [
            Heading(printable(sentence(tuning), 300)),
            Table(HEADS, [cells(row) for row in shown], bars),
            Notes([*notes_of(tuning), *more * (hidden > 0)]),
            Fold(f"{count(len(reasons), 'setting')} with a reservation", reasons),
        ],
    )


def as_json(tuning: Tuning) -> str:
    """The answer and the settings, for programs."""
    return document_json(
        answer=sentence(tuning),
        best=tuning.best,
        code=tuning.code,
        settings=tuning.settings().to_dicts(),
        circumstances=vars(tuning.circumstances),
        notes=tuning.notes,
    )


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table in words; `HEADS`."""
    low, high = row["measured_low_per_s"], row["measured_high_per_s"]
    return (
        printable(row["setting"], _NAME),
        rate(row["predicted_per_s"]),
        "—" if row["predicted_gain"] is None else times_text(row["predicted_gain"]),
        rate(row["measured_per_s"]),
        "—" if low is None else f"{rate(low)} to {rate(high)}",
        "—" if row["gain"] is None else times_text(row["gain"]),
        share(row["stall_share"]),
        "—" if row["memory_bytes"] is None else size(row["memory_bytes"]),
        row["status"],
    )
