"""Saving and opening runs."""

from __future__ import annotations

import json

import pytest
from loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import RunFormatError


@pytest.fixture
def saved(tmp_path):
    """A small saved run."""
    return ss.record(DataLoader(Noise(32), 4), batches=4, warmup=1).save(tmp_path / "run")


def test_a_run_is_json_and_parquet(saved):
    """Nothing in the folder can run code when it is opened."""
    assert {".json", ".parquet"} == {path.suffix for path in saved.iterdir()}


def test_another_schema_version_is_refused(saved):
    """A run of another version says which version it is."""
    head = json.loads((saved / "run.json").read_text())
    (saved / "run.json").write_text(json.dumps({**head, "schema_version": 99}))

    with pytest.raises(RunFormatError, match="99"):
        ss.load(saved)


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"schema_version": 1}'])
def test_a_damaged_run_is_one_sentence(saved, damage):
    """A head that is no head leads to an error that names the folder."""
    (saved / "run.json").write_text(damage)

    with pytest.raises(RunFormatError, match="run"):
        ss.load(saved)


def test_a_missing_table_is_one_sentence(saved):
    """Half a run is not opened."""
    (saved / "spans.parquet").unlink()

    with pytest.raises(RunFormatError, match="whole run"):
        ss.load(saved)


def test_what_is_no_run_is_one_sentence(tmp_path):
    """A folder without a run says what to give."""
    with pytest.raises(RunFormatError, match="stallscope record"):
        ss.load(tmp_path)


def test_a_run_is_not_saved_over_other_files(saved, tmp_path):
    """A folder with something else in it is left alone."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")

    with pytest.raises(RunFormatError, match="other files"):
        ss.load(saved).save(tmp_path / "other")
