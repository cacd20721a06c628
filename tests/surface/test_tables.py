"""The tables of each result: their columns with types, and the planted values in them."""

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
"""Methods that return a table."""
LONG = {"spans", "steps", "resources", "samples", "parts", "stalls"}
"""Tables of a run that grow with its length; `test_saved` checks their values."""
NEAR = 1e-9


def tables(kind: str, name: str) -> dict[str, pl.DataFrame]:
    """Return every table of a result: attributes and methods."""
    result = built(name)
    public = [member for member in dir(result) if not member.startswith("_")]
    values = {member: getattr(result, member) for member in public if member not in METHODS[kind]}
    frames = {member: value for member, value in values.items() if isinstance(value, pl.DataFrame)}
    return frames | {f"{member}()": getattr(result, member)() for member in sorted(METHODS[kind])}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_columns(kind, golden):
    columns = {
        name: [[column, str(dtype)] for column, dtype in table.schema.items()]
        for name, table in tables(kind, kind).items()
    }

    golden.json(f"columns/{kind}.json", columns)


@pytest.mark.parametrize("name", BUILT)
def test_columns_do_not_depend_on_what_was_measured(name):
    """Short and empty tables have the same columns as the others."""
    kind = name.partition("_")[0]
    usual = tables(kind, kind)

    for table_name, table in tables(kind, name).items():
        assert usual[table_name].schema.names() == table.schema.names(), table_name
        assert list(map(str, usual[table_name].dtypes)) == list(map(str, table.dtypes)), table_name


@pytest.mark.parametrize("name", BUILT)
def test_values(name, golden):
    kind = name.partition("_")[0]
    called = METHODS[kind] - (LONG | {"table"} if kind == "run" else set())
    values = {method: rows(getattr(built(name), method)()) for method in sorted(called)}

    golden.json(f"values/{name}.json", values, rel_tol=NEAR)
