"""Tunings with planted predictions and measurements."""

from dataclasses import astuple, replace

import polars as pl

from stallscope.bench.comparison import BLOCKS
from stallscope.model.settings import Setting
from stallscope.verbs.tune.result import TRIALS, TuneConditions, Tuning

NOW = Setting(2, 2)
FOUR = Setting(4, 2)
HERE = Setting()
PASSING = Setting(2, 2, in_order=False)
HUGE = Setting(16, 4)
BROKEN = Setting(3, 2, multiprocessing_context="spawn")
PICKLE = "in its loader: PicklingError: Can't pickle <function <lambda>>"
LARGE = "its workers and batches need about 12 GB, of 4 GB allowed"
MACHINE = {"cores": 4, "system": "Linux x86_64", "python": "3.11.7", "torch": "2.15.0"}


def a_tuning(
    measured=None, *, now=NOW, settings=(FOUR, HERE, PASSING), predicted=None, failed=None, **fields
) -> Tuning:
    """Make a tuning with each setting's samples a second, by block; half the blocks are a start."""
    rows = [
        _row(place, setting, now, predicted, failed)
        for place, setting in enumerate((now, *settings))
    ]
    blocks = [
        (place, 2 * turn // len(measured[setting]), turn, 64 / rate, None, 64, 0.1, 0.0)
        for place, setting in enumerate((now, *settings))
        for turn, rate in enumerate((measured or {}).get(setting, ()))
    ]
    about = {"name": "train:loader", "machine": MACHINE, "cores": 4.0, "budget_s": 60.0}
    about |= {"took_s": 41.0, "simulated_step_s": 0.05, "batch_bytes": 600_000}
    parts = {name: fields.pop(name) for name in ("run", "notes") if name in fields}
    conditions = TuneConditions(**about | {"num_workers": now.num_workers} | fields)
    return Tuning(
        pl.DataFrame(rows, TRIALS, orient="row"),
        pl.DataFrame(blocks, BLOCKS, orient="row"),
        circumstances=conditions,
        **parts,
    )


def _row(place, setting, now, predicted, failed):
    rate = (predicted or {}).get(setting, 100.0 * max(setting.num_workers, 0.5))
    prediction = (rate, 0.95 * rate, 1.05 * rate, 0.4, 0.35, 0.45, 0.5, 10**8 * setting.num_workers)
    outside = "more workers than the 4 cores, which was not recorded"
    return (
        *(place, *astuple(setting), now.text(setting)),
        *(prediction if rate is not None else (None,) * 8),
        outside if setting.num_workers > 4 else "",
        (failed or {}).get(setting, ""),
    )


def a_full_tuning() -> Tuning:
    """Return a tuning with each case: recommended, predicted, failed, too large, out of order."""
    return a_tuning(
        {
            NOW: [200, 202, 198, 201, 199, 200],
            FOUR: [380, 384, 379, 381, 382, 380],
            PASSING: [230, 231, 229, 232, 228, 230],
        },
        settings=(FOUR, HERE, PASSING, HUGE, BROKEN, replace(FOUR, persistent_workers=True)),
        failed={HUGE: LARGE, BROKEN: PICKLE},
        notes=("a note",),
    )
