"""What all tests of `ss.lines` share."""

import pytest

from stallscope.verbs.lines import lines


@pytest.fixture(autouse=True)
def rough_shares(monkeypatch):
    """Their truth is a benchmark's (`lines_truth.py`); here some looks are enough."""
    monkeypatch.setattr(lines, "_WITHIN", 0.1)
    monkeypatch.setattr(lines, "_LEAST_LOOKS", 60)
