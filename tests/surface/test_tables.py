"""The tables of each result: their columns with types, and the planted values in them."""

from __future__ import annotations

import polars as pl
import pytest
from surface.built import BUILT, EACH_KIND, built, rows

OF_RUN = {
    *("spans", "stages", "table", "samples", "steps", "resources", "stalls", "parts", "exposed"),
    "patterns",
}
METHODS = {
    "run": OF_RUN,
    "ladder": {"table", "gains", "headroom"},
    "flame": {"table", "stacks"},
    "difference": {"table"},
    "orders": {"table"},
    "tuning": {"table", "settings"},
    "storage": {"table"},
    "layouts": {"table"},
    "lines": {"table"},
    "experiments": {"table", "copies"},
    "diagnosis": {"table"},
}
"""What gives a table when it is called."""
LONG = {"spans", "steps", "resources", "samples", "parts", "stalls"}
"""Tables of a run that are as long as it is; `test_saved` looks at the values of real ones."""
NEAR = 1e-9


def tables(kind: str, name: str) -> dict[str, pl.DataFrame]:
    """Every table of a result, those that are attributes too."""
    result = built(name)
    public = [one for one in dir(result) if not one.startswith("_")]
    values = {one: getattr(result, one) for one in public if one not in METHODS[kind]}
    kept = {one: value for one, value in values.items() if isinstance(value, pl.DataFrame)}
    return kept | {f"{one}()": getattr(result, one)() for one in sorted(METHODS[kind])}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_columns(kind, golden):
    """The same columns of the same types, in order."""
    found = {
        name: [[column, str(dtype)] for column, dtype in table.schema.items()]
        for name, table in tables(kind, kind).items()
    }

    golden.json(f"columns/{kind}.json", found)


@pytest.mark.parametrize("name", BUILT)
def test_columns_do_not_depend_on_what_was_measured(name):
    """Tables of little or nothing have the columns of all others."""
    kind = name.partition("_")[0]
    usual = tables(kind, kind)

    for one, table in tables(kind, name).items():
        assert usual[one].schema.names() == table.schema.names(), one
        assert list(map(str, usual[one].dtypes)) == list(map(str, table.dtypes)), one


@pytest.mark.parametrize("name", BUILT)
def test_values(name, golden):
    """The same rows in the same order."""
    kind = name.partition("_")[0]
    called = METHODS[kind] - (LONG | {"table"} if kind == "run" else set())
    found = {one: rows(getattr(built(name), one)()) for one in sorted(called)}

    golden.json(f"values/{name}.json", found, rel_tol=NEAR)
