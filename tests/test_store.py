"""Results as folders: each kind comes back as it was, and a folder of anybody's is one sentence."""

from __future__ import annotations

import json
import os
from dataclasses import fields

import polars as pl
import pytest
from surface.built import built

import stallscope as ss
from stallscope.errors import RunFormatError
from stallscope.store import KINDS

BUILT = {
    "run": ("run", "run_with_resources", "run_of_nothing"),
    "ladder": ("ladder", "ladder_on_gpu", "ladder_of_one"),
    "flame": ("flame", "flame_of_nothing"),
    "orders": ("orders", "orders_not_measured"),
    "lines": ("lines", "lines_without_source"),
    "experiments": ("experiments", "experiments_of_nothing"),
    "storage": ("storage", "storage_warm", "storage_of_nothing"),
    "layouts": ("layouts", "layouts_of_nothing"),
    "tuning": ("tuning", "tuning_as_it_is", "tuning_not_measured"),
    "diagnosis": ("diagnosis", "diagnosis_healthy", "diagnosis_inconclusive"),
}
EACH = [(kind, name) for kind, names in BUILT.items() for name in names]


@pytest.fixture(params=["run", "lines", "diagnosis"])
def kind(request):
    """Kinds of result: with categories, with lists, with parts; all go the same way."""
    return request.param


@pytest.fixture
def saved(kind, tmp_path):
    return built(kind).save(tmp_path / "result")


def head_of(folder):
    (path,) = (folder / f"{kind}.json" for kind in KINDS if (folder / f"{kind}.json").exists())
    return path


def change_head(folder, **values):
    head = json.loads(head_of(folder).read_text())
    head_of(folder).write_text(json.dumps({**head, **values}))


def refusal(folder, words):
    """Loading is refused in one sentence that says these words; gives the sentence."""
    with pytest.raises(RunFormatError, match=words) as caught:
        ss.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def everything(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class TestRoundTrip:
    @pytest.mark.parametrize(("kind", "name"), EACH)
    def test_comes_back(self, kind, name, tmp_path):
        before = built(name)

        after = ss.load(before.save(tmp_path / "result"))

        assert type(after) is type(before)
        assert after.table().equals(before.table())
        for field in fields(before):
            one, other = getattr(before, field.name), getattr(after, field.name)
            if isinstance(one, pl.DataFrame):
                assert one.equals(other), field.name
                assert one.schema == other.schema, field.name
            elif field.name in ("settings", "circumstances", "notes", "machine", "rest", "counts"):
                assert one == other, field.name
        if name != "orders":  # with the pipeline at hand it says more
            assert str(after) == str(before)

    def test_the_parts_of_a_diagnosis(self, tmp_path):
        """Its run, ladder and flame lie in folders of their own, which load by themselves."""
        folder = built("diagnosis").save(tmp_path / "result")

        for part in ("run", "ladder", "flame"):
            assert str(ss.load(folder / part)) == str(getattr(built("diagnosis"), part))

    def test_a_diagnosis_without_parts(self, tmp_path):
        after = ss.load(built("diagnosis_inconclusive").save(tmp_path / "result"))

        assert (after.run, after.ladder, after.flame) == (None, None, None)

    def test_orders_without_their_pipeline(self, tmp_path):
        """They can be looked at; applying one says in a sentence why that does not go."""
        orders = ss.load(built("orders").save(tmp_path / "result"))

        assert orders.best()
        with pytest.raises(ss.StallscopeError, match=r"not the pipeline: call ss\.orders"):
            orders.apply(None)

    def test_is_json_and_arrow(self, saved):
        """Nothing that runs when it is opened."""
        assert {".json", ".arrow"} == {file.suffix for file in saved.rglob("*.*")}


class TestHostileFolders:
    def test_a_missing_table(self, saved):
        table = min(saved.glob("*.arrow"))
        table.unlink()

        refusal(saved, f"{table.name} is missing")

    def test_a_table_of_other_values(self, saved):
        for table in saved.glob("*.arrow"):
            frame = pl.read_ipc(table)
            odd = [pl.lit("soon").alias(name) for name in frame.columns if name != "stack"]
            pl.concat([frame.clear(), frame.clear()]).select(odd).write_ipc(table)

        refusal(saved, "is not a whole")

    def test_a_truncated_table(self, saved):
        for table in saved.glob("*.arrow"):
            table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])

        refusal(saved, "is not a whole")

    def test_a_truncated_head(self, saved):
        head_of(saved).write_text(head_of(saved).read_text()[:40])

        refusal(saved, "cannot be read")

    def test_another_kind(self, saved, kind):
        """A head that says another kind than its name; another kind's class."""
        other = KINDS[KINDS.index(kind) - 1]
        with pytest.raises(RunFormatError, match=f"it has no {other}.json"):
            getattr(ss, other.capitalize()).load(saved)

        change_head(saved, kind=other)
        refusal(saved, f"of the kind '{other}'")

    def test_a_newer_schema(self, saved):
        """Says which versions are read."""
        change_head(saved, schema_version=99)

        refusal(saved, "schema version 99; this stallscope reads")

    @pytest.mark.parametrize("place", ["head", "table"])
    def test_a_link(self, saved, tmp_path, place):
        """A link is not followed, though what it leads to is whole."""
        file = head_of(saved) if place == "head" else min(saved.glob("*.arrow"))
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")

        refusal(saved, "only a link")

    def test_a_pipe(self, saved):
        table = min(saved.glob("*.arrow"))
        table.unlink()
        os.mkfifo(table)

        refusal(saved, f"{table.name} is no file")

    def test_a_circle_of_parts(self, tmp_path):
        folder = built("run").save(tmp_path / "run")
        (folder / "others").mkdir()
        (folder / "others" / "1").symlink_to(folder)
        change_head(folder, parts={"others": 1})

        refusal(folder, "only a link")

    def test_a_part_that_is_missing(self, tmp_path):
        """A diagnosis whose run is gone is not one without a run."""
        folder = built("diagnosis").save(tmp_path / "result")
        (folder / "run").rename(tmp_path / "run")

        refusal(folder, "run is missing")

    def test_nothing_there(self, tmp_path):
        refusal(tmp_path, r"is not a saved result: it has no run\.json, .*diagnosis\.json")
        refusal(tmp_path / "no", "is not a saved result: there is no such folder")
        (tmp_path / "file").touch()
        refusal(tmp_path / "file", "is not a saved result: it is a file")


class TestSaving:
    def test_a_failure_leaves_the_older_result(self, kind, saved, monkeypatch):
        """Whatever goes wrong while the new one is written."""
        before = everything(saved)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("stallscope.store.json.dumps", full)
        with pytest.raises(RunFormatError, match=r"cannot be written into .*No space left"):
            built(kind).save(saved)

        assert everything(saved) == before

    def test_writes_through_no_link(self, kind, saved, tmp_path):
        """A link at the place of a table is replaced; what it leads to stays as it is."""
        theirs = tmp_path / "theirs"
        theirs.write_text("precious")
        for file in saved.glob("*.arrow"):
            file.unlink()
            file.symlink_to(theirs)

        built(kind).save(saved)

        assert "precious" == theirs.read_text()
        assert not [path for path in saved.iterdir() if path.is_symlink()]

    def test_leaves_logs_alone(self, tmp_path):
        """A process may be recording into the folder of a run."""
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "1.events").write_bytes(b"")

        built("run").save(tmp_path)

        assert (tmp_path / "logs" / "1.events").exists()

    def test_not_over_another_kind(self, kind, saved):
        """A run's folder is no place for a ladder."""
        other = KINDS[KINDS.index(kind) - 1]

        with pytest.raises(RunFormatError, match="holds other files"):
            built(other).save(saved)

    @pytest.mark.parametrize("place", ["file", "file/run"])
    def test_not_over_a_file(self, tmp_path, place):
        """A file where the folder would be, or one above it, is one sentence and is left alone."""
        (tmp_path / "file").write_text("mine")

        with pytest.raises(RunFormatError, match=r"is a file|cannot be written into"):
            built("run").save(tmp_path / place)
        assert (tmp_path / "file").read_text() == "mine"
