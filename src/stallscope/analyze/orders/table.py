"""The table of a pipeline's orders: predicted beside measured, and what may be used.

Intervals come from resampling starts of the loader, and groups of batches inside of each, as in
`analyze.headroom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.analyze.headroom import Rates
from stallscope.orderings import IDENTICAL

if TYPE_CHECKING:
    from stallscope.orderings import Orders, Schema

TABLE: Schema = {
    "order": pl.String,
    "change": pl.String,
    "predicted_s": pl.Float64,
    "measured_s": pl.Float64,
    "measured_low_s": pl.Float64,
    "measured_high_s": pl.Float64,
    "speedup": pl.Float64,
    "equivalence": pl.String,
    "speedup_low": pl.Float64,
    "speedup_high": pl.Float64,
    "predicted_speedup": pl.Float64,
    "trial": pl.Int32,
    "kind": pl.String,
    "changes": pl.String,
    "recommended": pl.Boolean,
    "place": pl.String,
    "largest_difference": pl.Float64,
    "psnr_db": pl.Float64,
    "compared": pl.Int32,
    "why": pl.String,
}
"""One row a trial; times in seconds of one worker per sample. `speedup`: the original's measured
time over the trial's, with a 95% interval; null where the trial was not measured, and then
`predicted_speedup` is all there is."""

_PROMISING: Final = 1.05
"""What is only predicted to be faster by less than this is not recommended."""
_SEED: Final = 20_240_229
_ENDS: Final = (2.5, 97.5)


def table(orders: Orders) -> pl.DataFrame:
    """One row a trial, columns of `TABLE`: recommended first, then the original, then the rest."""
    rates = rates_of(orders.laps)
    original = orders.trials.row(0, named=True) if orders.trials.height else {}
    rows = []
    for trial in orders.trials.iter_rows(named=True):
        measured = _measured(rates, trial["trial"])
        predicted = trial["predicted_s"]
        whole = original["predicted_s"]
        rows.append(
            {
                **trial,
                **measured,
                "place": _place(orders.laps, trial["trial"]),
                "predicted_speedup": whole / predicted if whole and predicted else None,
                "recommended": is_recommended(trial, measured, whole),
            }
        )
    rows.sort(key=_rank)
    return pl.DataFrame([[row[name] for name in TABLE] for row in rows], TABLE, orient="row")


def is_recommended(trial: dict[str, Any], measured: dict[str, Any], whole_s: float | None) -> bool:
    """Whether a trial gives the same bits, and is faster.

    Args:
        trial: a row of `TRIALS`.
        measured: its `speedup_low`, null where it was not measured, or too little for an interval:
            then the prediction has to promise more than its own noise.
        whole_s: what the original should cost.
    """
    if not trial["recommended"] or trial["equivalence"] != IDENTICAL:
        return False
    if measured["speedup_low"] is not None:
        return bool(measured["speedup_low"] > 1.0)
    if measured["speedup"] is not None and measured["speedup"] <= 1.0:
        return False
    return bool(whole_s and trial["predicted_s"] and whole_s / trial["predicted_s"] > _PROMISING)


def rates_of(laps: pl.DataFrame) -> dict[int, Rates]:
    """For each trial that was measured, how many samples one worker makes in a second."""
    found = {}
    for trial in laps["trial"].unique(maintain_order=True):
        blocks = laps.filter(pl.col("trial") == trial).partition_by("block", maintain_order=True)
        pairs = [
            np.column_stack([block["samples"], block["samples"] * block["seconds"]]).astype(float)
            for block in blocks
        ]
        found[int(trial)] = Rates(str(trial), pairs)
    return found


def speedup(original: Rates, other: Rates) -> tuple[float, float | None, float | None]:
    """How many times as fast the other one is, with the ends of a 95% interval (None: too few)."""
    factor = other.rate / original.rate
    if not (original.draws.size and other.draws.size):
        return factor, None, None
    # Drawn independently: the starts of two trials are not the same.
    ratios = other.draws / np.random.default_rng(_SEED).permutation(original.draws)
    low, high = (float(end) for end in np.percentile(ratios, _ENDS))
    return factor, low, high


def _measured(rates: dict[int, Rates], trial: int) -> dict[str, Any]:
    """The measured columns of a trial; null where it was not measured."""
    names: tuple[str, ...] = ("measured_s", "measured_low_s", "measured_high_s")
    names += ("speedup", "speedup_low", "speedup_high")
    mine, original = rates.get(trial), rates.get(0)
    if mine is None or original is None:
        return dict.fromkeys(names)
    low, high = mine.interval()
    seconds = (1 / mine.rate, 1 / high if high else None, 1 / low if low else None)
    factors = (1.0, None, None) if trial == 0 else speedup(original, mine)
    return dict(zip(names, (*seconds, *factors), strict=True))


def _place(laps: pl.DataFrame, trial: int) -> str | None:
    rows = laps.filter(pl.col("trial") == trial)
    return str(rows["place"][0]) if rows.height else None


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    """Recommended first (measured before predicted), the original next; fast before slow."""
    group = 0 if row["recommended"] else 1 if row["trial"] == 0 else 2
    is_measured = row["speedup_low"] is not None
    speed = row["speedup"] or row["predicted_speedup"]
    order = ("identical", "close", "not-distinguished", "different", "fails")
    return (
        group,
        order.index(row["equivalence"]) if group else not is_measured,
        -(speed or 0.0),
        row["trial"],
    )
