"""Results that other versions saved are opened, and have the same values.

`make_saved.py` wrote the folders; an existing folder is never replaced.
"""

import pytest
from surface.built import SAVED_FLAMES, SAVED_RUNS, rows, saved_flame, saved_run

import stallscope as ss

TABLES = ("stages", "steps", "samples", "stalls", "parts", "exposed", "patterns")
NEAR = 1e-9


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", SAVED_RUNS)
def test_tables_of_runs(name, table, golden):
    actual = rows(getattr(saved_run(name), table)())

    golden.json(f"saved/{name}/{table}.json", actual, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_sums_of_runs(name, golden):
    """The long tables have the same number of rows and the same sum of each column."""
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
    actual = {
        table: {
            "rows": frame.height,
            **{
                column.name: float(column.sum() or 0)
                for column in frame
                if column.dtype.is_numeric()
            },
            **{column.name: column.n_unique() for column in frame if not column.dtype.is_numeric()},
        }
        for table, frame in long.items()
    }

    golden.json(f"saved/{name}/sums.json", actual, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_heads_of_runs(name, golden):
    run = saved_run(name)
    settings = ("name", "num_workers", "batch_size", "warmup")
    actual = {field: getattr(run.settings, field) for field in settings}
    actual |= {field: getattr(run, field) for field in ("first_batch_s", "machine", "notes")}

    golden.json(f"saved/{name}/head.json", actual, rel_tol=NEAR)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_saved_again(name, tmp_path):
    """A saved run can be saved again and stays the same."""
    run = saved_run(name)

    again = ss.load(run.save(tmp_path / "run"))

    for table in TABLES:
        assert getattr(again, table)().equals(getattr(run, table)()), table
    assert str(again) == str(run)


@pytest.mark.parametrize("name", SAVED_FLAMES)
def test_flames(name, golden, tmp_path):
    flame = saved_flame(name)
    actual = {method: rows(getattr(flame, method)()) for method in ("table", "stacks")}

    golden.json(f"saved/{name}/tables.json", actual, rel_tol=NEAR)
    assert ss.Flame.load(flame.save(tmp_path / "flame")).samples.equals(flame.samples)
