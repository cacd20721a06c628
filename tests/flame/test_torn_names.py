"""py-spy reads a process that goes on: a name may be torn."""

from __future__ import annotations

import polars as pl

from stallscope.flame.pyspy import from_speedscope
from stallscope.flame.result import SAMPLES, Flame, FlameConditions
from stallscope.flame.sampling import collapsed


def test_a_torn_name_is_shown_and_ends_nothing():
    """A NUL byte and a semicolon in a name: one frame, without them, in every table."""
    frames = [
        {"name": "load", "file": "mine.py", "line": 7},
        {"name": "re\0ad;x", "file": "mi\0ne.py", "line": 8},
    ]
    found = {"shared": {"frames": frames}, "profiles": [{"samples": [[0, 1]] * 12}]}

    (thread,) = from_speedscope(found)
    rows = [(0, 100, 0, "fetch", collapsed(stack)[1], 1) for stack in thread]
    flame = Flame(pl.DataFrame(rows, SAMPLES, orient="row"), FlameConditions())

    assert 2 == flame.table().height
    assert "\0" not in flame.stacks()["stack"][0]
    assert 1 == flame.stacks()["stack"][0].count(";")
