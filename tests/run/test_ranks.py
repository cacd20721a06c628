"""Which rank a process is, and that experiments leave several ranks alone."""

from __future__ import annotations

import pytest
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import UnsupportedError


def test_an_experiment_refuses_more_than_one_rank(monkeypatch):
    """Under torchrun, also before the ranks have met, `record` says what to use instead."""
    monkeypatch.setenv("WORLD_SIZE", "8")

    with pytest.raises(UnsupportedError, match=r"8 ranks.*ss\.instrumented"):
        ss.record(DataLoader(Noise(), 4))


def test_watching_is_allowed_and_knows_its_rank(monkeypatch):
    """`instrumented` works in each rank, and its spans carry the rank."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    loader = DataLoader(Noise(), 4)

    with ss.instrumented(loader) as watch:
        list(loader)

    assert {5} == set(watch.run.spans(steady=False)["rank"])
