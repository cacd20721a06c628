"""Saving and opening runs."""

from __future__ import annotations

import json

import polars as pl
import pytest
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import RunFormatError
from stallscope.run.result import Run
from stallscope.views.run import VIEW

FILES = [table.name.removesuffix(".arrow") for table in Run._contents.tables]


@pytest.fixture
def saved(tmp_path):
    """A small saved run."""
    return ss.record(DataLoader(Noise(32), 4), batches=4, warmup=1).save(tmp_path / "run")


def test_a_run_is_json_and_arrow(saved):
    """Nothing in the folder can run code when it is opened."""
    assert {".json", ".arrow"} == {path.suffix for path in saved.iterdir()}


def test_another_schema_version_is_refused(saved):
    """A run of another version says which version it is."""
    head = json.loads((saved / "run.json").read_text())
    (saved / "run.json").write_text(json.dumps({**head, "schema_version": 99}))

    with pytest.raises(RunFormatError, match="99"):
        ss.load(saved)


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"schema_version": 1}', "[" * 100_000, "1" * 5_000]
)
def test_a_damaged_run_is_one_sentence(saved, damage):
    """A head that is no head leads to an error that names the folder."""
    (saved / "run.json").write_text(damage)

    with pytest.raises(RunFormatError, match="run"):
        ss.load(saved)


def test_a_missing_table_is_one_sentence(saved):
    """Half a run is not opened."""
    (saved / "spans.arrow").unlink()

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


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_run_is_not_saved_over_a_file(saved, tmp_path, place):
    """A file where the folder would be, or one above it, is one sentence and is left alone."""
    (tmp_path / "file").write_text("mine")

    with pytest.raises(RunFormatError, match=r"is a file|cannot be written into"):
        ss.load(saved).save(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_older_run_is_written_over(saved):
    """A run can be saved where it was loaded from."""
    run = ss.load(saved)

    assert ss.load(run.save(saved)).spans().equals(run.spans())


def test_a_folder_may_have_any_name(saved):
    """A name that looks like a pattern of names is one."""
    odd = saved.rename(saved.with_name("run[1]*?"))

    assert ss.load(odd).settings.num_workers == 0


HEADS = {
    "no settings": {"settings": [1]},
    "name": {"settings": {"name": 3, "num_workers": 0, "batch_size": 4, "warmup": 1}},
    "workers": {"settings": {"name": "x", "num_workers": "0", "batch_size": 4, "warmup": 1}},
    "a setting is missing": {"settings": {"name": "x", "num_workers": 0, "warmup": 1}},
    "a truth for a number": {"first_batch_s": True},
    "not a number": {"first_batch_s": float("nan")},
    "text for a number": {"first_batch_s": "soon"},
    "machine": {"machine": ["fast"]},
    "one note": {"notes": "all well"},
    "notes of numbers": {"notes": [1, 2]},
}


@pytest.mark.parametrize("change", HEADS.values(), ids=HEADS)
def test_a_head_of_other_types_is_refused(saved, change):
    """Every value in run.json has the type that a run needs, or one sentence names the folder."""
    head = json.loads((saved / "run.json").read_text())
    (saved / "run.json").write_text(json.dumps({**head, **change}))

    with pytest.raises(RunFormatError, match=r"run.json.*record again") as caught:
        ss.load(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


TABLES = {
    "no column": ("spans", lambda t: t.drop("end_ns")),
    "text for a number": ("spans", lambda t: t.with_columns(start_ns=pl.lit("early"))),
    "a list for a number": ("spans", lambda t: t.with_columns(batch=pl.concat_list("batch"))),
    "too large a number": ("spans", lambda t: t.with_columns(worker=pl.lit(1 << 40))),
    "a number for a name": ("spans", lambda t: t.with_columns(stage=pl.lit(-1.5))),
    "unknown kind": ("spans", lambda t: t.with_columns(kind=pl.lit("nap"))),
    "no kind": ("spans", lambda t: t.with_columns(kind=pl.lit(None, dtype=pl.String))),
    "no start": ("spans", lambda t: t.with_columns(start_ns=None)),
    "backwards": ("spans", lambda t: t.rename({"start_ns": "end_ns", "end_ns": "start_ns"})),
    "for ever": ("spans", lambda t: t.with_columns(end_ns=pl.lit((1 << 63) - 1))),
    "steady is text": ("batches", lambda t: t.with_columns(steady=pl.lit("perhaps"))),
    "steady is open": ("batches", lambda t: t.with_columns(steady=None)),
    "no path": ("samples", lambda t: t.drop("path")),
    "no end of it": ("startup", lambda t: t.with_columns(first_sample_s=pl.lit(float("inf")))),
    "no step": ("steps", lambda t: t.drop("step")),
}


@pytest.mark.parametrize(("name", "change"), TABLES.values(), ids=TABLES)
def test_a_foreign_table_is_refused(saved, name, change):
    """A table without its columns, or with values that break a picture, is one sentence."""
    file = saved / f"{name}.arrow"
    change(pl.read_ipc(file)).write_ipc(file)

    with pytest.raises(RunFormatError, match="is not a whole run") as caught:
        ss.load(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_table_is_refused(saved, name):
    """A file that is not Arrow, or only half of one, is one sentence."""
    file = saved / f"{name}.arrow"
    whole = file.read_bytes()

    for damaged in (b"", b"ARROW1" * 9, whole[: len(whole) // 2], whole[len(whole) // 2 :]):
        file.write_bytes(damaged)
        with pytest.raises(RunFormatError, match="is not a whole run"):
            ss.load(saved)


def test_columns_in_another_order_and_more_of_them_are_taken(saved):
    before = ss.load(saved)
    for name in FILES:
        file = saved / f"{name}.arrow"
        wider = pl.read_ipc(file).with_columns(extra=pl.lit("more"))
        wider.select(reversed(wider.columns)).write_ipc(file)

    after = ss.load(saved)

    assert after.all_spans.equals(before.all_spans)
    assert after.batches.schema == before.batches.schema


@pytest.mark.parametrize("name", FILES)
def test_an_empty_table_does_not_break_the_faces(saved, name):
    """A run of which one table holds no row is printed and drawn."""
    file = saved / f"{name}.arrow"
    pl.read_ipc(file).clear().write_ipc(file)

    run = ss.load(saved)

    assert str(run)
    for kind in VIEW.pictures:
        run.plot(kind)
