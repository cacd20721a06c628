"""The picture of a loader's settings: what each was predicted to give, and what it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.charts.bars import FitRow, fit_figure
from stallscope.charts.sheet import Sheet
from stallscope.tune.result import fit, sentence
from stallscope.units import count, printable

if TYPE_CHECKING:
    from stallscope.tune.result import Tuning


MOST: Final = 15
_NOTE: Final = (
    "measured in turn with the loader as it is · predicted from one recording of it, before "
    "anything was measured"
)


def predicted_figure(tuning: Tuning) -> Sheet:
    """Draw how many times as many samples each measured setting gives, beside what was predicted.

    Where none was measured, those that were predicted.
    """
    rows = [row for row in tuning.settings().to_dicts() if row["trial"]]
    measured = [row for row in rows if row["gain"] is not None]
    shown = measured or [row for row in rows if row["predicted_gain"] is not None]
    title = printable(sentence(tuning), 300)
    if not shown:
        return Sheet(title, [_NOTE])
    hidden = len(shown) - MOST
    note = f"{fit(tuning)} · {_NOTE}" if measured else "nothing was measured"
    note += f" · not shown: {count(hidden, 'more setting')}" if hidden > 0 else ""
    fits = [
        FitRow(
            row["setting"],
            row["predicted_gain"],
            row["gain"],
            (row["gain_low"], row["gain_high"]),
            (row["predicted_gain_low"], row["predicted_gain_high"]),
        )
        for row in shown[:MOST]
    ]
    return fit_figure(
        title, note, fits, "times as many samples a second as with the loader as it is"
    )
