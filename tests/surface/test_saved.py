"""Results that other versions saved are opened, and say the same as then.

`make_saved.py` made the folders; one that is there is never made anew.
"""

from __future__ import annotations

import pytest
from surface.built import SAVED_FLAMES, SAVED_RUNS, rows, saved_flame, saved_run

import stallscope as ss

TABLES = ("stages", "steps", "samples", "stalls", "parts", "exposed", "patterns")
NEAR = 1e-9


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", SAVED_RUNS)
def test_tables_of_runs(name, table, golden):
    """Each table has the rows that it had."""
    found = rows(getattr(saved_run(name), table)())

    golden.json(f"saved/{name}/{table}.json", found, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_sums_of_runs(name, golden):
    """Of the long tables how many rows there are, and what the numbers in each column add up to."""
    run = saved_run(name)
    long = {
        "spans": run.spans(steady=False),
        "samples": run.samples(steady=False),
        "resources": run.resources(),
        "parts": run.parts(),
        "startup": run.startup,
        "waits": run.waits,
        "deliveries": run.deliveries,
        "batches": run.batches,
    }
    found = {
        table: {
            "rows": frame.height,
            **{one.name: float(one.sum() or 0) for one in frame if one.dtype.is_numeric()},
            **{one.name: one.n_unique() for one in frame if not one.dtype.is_numeric()},
        }
        for table, frame in long.items()
    }

    golden.json(f"saved/{name}/sums.json", found, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_heads_of_runs(name, golden):
    """What was asked for, where it was measured, and what has to be known."""
    run = saved_run(name)
    settings = ("name", "num_workers", "batch_size", "warmup")
    found = {one: getattr(run.settings, one) for one in settings}
    found |= {one: getattr(run, one) for one in ("first_batch_s", "machine", "notes")}

    golden.json(f"saved/{name}/head.json", found, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_saved_again(name, tmp_path):
    """What is opened can be saved, and is the same."""
    run = saved_run(name)

    again = ss.load(run.save(tmp_path / "run"))

    for table in TABLES:
        assert getattr(again, table)().equals(getattr(run, table)()), table
    assert str(again) == str(run)


@pytest.mark.parametrize("name", SAVED_FLAMES)
def test_flames(name, golden, tmp_path):
    """The same stacks, and the same functions with their intervals."""
    flame = saved_flame(name)
    found = {one: rows(getattr(flame, one)()) for one in ("table", "stacks")}

    golden.json(f"saved/{name}/tables.json", found, rel_tol=NEAR)
    assert ss.Flame.load(flame.save(tmp_path / "flame")).samples.equals(flame.samples)
