"""Results as folders: each kind comes back unchanged, and a bad folder is one sentence.

A result that somebody sent is looked at before it is read.
"""

import json
import os
from dataclasses import fields, replace

import polars as pl
import pytest
from surface.built import built

import stallscope as ss
from stallscope import store
from stallscope.errors import RunFormatError, TargetError
from stallscope.hooks.recording_folder import Failures
from stallscope.store import KINDS
from stallscope.views.run import VIEW

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
EVIL = "\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e"
"""Sets the clipboard of a terminal, clears it, and turns what follows around."""
EACH = [(kind, name) for kind, names in BUILT.items() for name in names]


@pytest.fixture(params=["run", "lines", "diagnosis"])
def kind(request):
    """Kinds of result: with categories, with lists, with parts; all go the same way."""
    return request.param


@pytest.fixture
def saved(kind, tmp_path):
    return built(kind).save(tmp_path / "result")


@pytest.fixture
def saved_run(tmp_path):
    return built("run").save(tmp_path / "run")


def head_of(folder):
    (path,) = (folder / f"{kind}.json" for kind in KINDS if (folder / f"{kind}.json").exists())
    return path


def change_head(folder, **values):
    head = json.loads(head_of(folder).read_text())
    head_of(folder).write_text(json.dumps({**head, **values}))


def refusal(folder, words):
    """Assert that loading is refused in one sentence with these words; return the sentence."""
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
            original, loaded = getattr(before, field.name), getattr(after, field.name)
            if isinstance(original, pl.DataFrame):
                assert original.equals(loaded), field.name
                assert original.schema == loaded.schema, field.name
            elif field.name in ("settings", "circumstances", "notes", "machine", "rest", "counts"):
                assert original == loaded, field.name
        if name != "orders":  # with the pipeline at hand it says more
            assert str(after) == str(before)

    def test_the_parts_of_a_diagnosis(self, tmp_path):
        folder = built("diagnosis").save(tmp_path / "result")

        for part in ("run", "ladder", "flame"):
            assert str(ss.load(folder / part)) == str(getattr(built("diagnosis"), part))

    def test_a_diagnosis_without_parts(self, tmp_path):
        after = ss.load(built("diagnosis_inconclusive").save(tmp_path / "result"))

        assert (after.run, after.ladder, after.flame) == (None, None, None)

    def test_orders_without_their_pipeline(self, tmp_path):
        """Orders without a pipeline can be shown; applying one is an error with a reason."""
        orders = ss.load(built("orders").save(tmp_path / "result"))

        assert orders.best()
        with pytest.raises(ss.StallscopeError, match=r"not the pipeline: call ss\.orders"):
            orders.apply(None)

    def test_is_json_and_arrow(self, saved):
        """The folder holds no file that runs when it is opened."""
        assert {".json", ".arrow"} == {file.suffix for file in saved.rglob("*.*")}


class TestHostileFolders:
    def test_a_missing_table(self, saved):
        table = min(saved.glob("*.arrow"))
        table.unlink()

        refusal(saved, f"{table.name} is missing")

    def test_a_damaged_table(self, saved):
        """The table is no Arrow file, or only half of one."""
        file = min(saved.glob("*.arrow"))
        whole = file.read_bytes()

        for damaged in (b"", b"ARROW1" * 9, whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            file.write_bytes(damaged)
            refusal(saved, "is not a whole")

    def test_another_kind(self, saved, kind):
        """The head names another kind than the file, or the class is another kind's."""
        other_kind = KINDS[KINDS.index(kind) - 1]
        with pytest.raises(RunFormatError, match=f"it has no {other_kind}.json"):
            getattr(ss, other_kind.capitalize()).load(saved)

        change_head(saved, kind=other_kind)
        refusal(saved, f"of the kind '{other_kind}'")

    def test_a_newer_schema(self, saved):
        change_head(saved, schema_version=99)

        refusal(saved, "schema version 99; this stallscope reads")

    @pytest.mark.parametrize("place", ["head", "table"])
    def test_a_link(self, saved, tmp_path, place):
        file = head_of(saved) if place == "head" else min(saved.glob("*.arrow"))
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")

        refusal(saved, "a link to one")

    def test_a_pipe(self, saved):
        table = min(saved.glob("*.arrow"))
        table.unlink()
        os.mkfifo(table)

        refusal(saved, f"{table.name} is not a file")

    def test_a_circle_of_parts(self, tmp_path):
        folder = built("run").save(tmp_path / "run")
        (folder / "others").mkdir()
        (folder / "others" / "1").symlink_to(folder)
        change_head(folder, parts={"others": 1})

        refusal(folder, "a link to one")

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
        before = everything(saved)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("stallscope.store.json.dumps", full)
        with pytest.raises(RunFormatError, match=r"cannot be written into .*No space left"):
            built(kind).save(saved)

        assert everything(saved) == before

    def test_writes_through_no_link(self, kind, saved, tmp_path):
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
        other_kind = KINDS[KINDS.index(kind) - 1]

        with pytest.raises(RunFormatError, match="holds other files"):
            built(other_kind).save(saved)

    @pytest.mark.parametrize("place", ["file", "file/run"])
    def test_not_over_a_file(self, tmp_path, place):
        """A file where the folder would be, or one above it, is one sentence and is left alone."""
        (tmp_path / "file").write_text("mine")

        with pytest.raises(RunFormatError, match=r"is a file|cannot be written into"):
            built("run").save(tmp_path / place)
        assert (tmp_path / "file").read_text() == "mine"


class TestSizes:
    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compressed_table_is_refused_before_it_is_unpacked(self, saved_run, compression):
        """Some kilobytes can stand for gigabytes."""
        bomb = pl.DataFrame({"stage": ["\0" * 100_000_000]})
        bomb.write_ipc(saved_run / "spans.arrow", compression=compression)
        assert (saved_run / "spans.arrow").stat().st_size < 1 << 20

        refusal(saved_run, r"spans\.arrow: it is compressed")

    @pytest.mark.parametrize(
        ("bomb", "words"),
        [
            (lambda: pl.select(epoch=pl.repeat(None, 1_000)), "type Null, not Int32"),
            (lambda: pl.DataFrame({"epoch": [[0] * 1_000]}), "type List"),
        ],
        ids=["nothing", "lists"],
    )
    def test_column_that_would_grow_is_refused(self, saved_run, bomb, words):
        sound = pl.read_ipc(saved_run / "spans.arrow").clear()
        columns = bomb()
        others = [pl.lit(None, sound.schema[name]).alias(name) for name in sound.columns]
        columns.with_columns(
            column for column in others if column.meta.output_name() != "epoch"
        ).write_ipc(saved_run / "spans.arrow")

        refusal(saved_run, rf"spans\.arrow: epoch has values of the {words}")

    def test_large_file_is_refused_before_it_is_read(self, saved_run, monkeypatch):
        monkeypatch.setattr(store, "MOST_TABLE_BYTES", 100)

        refusal(saved_run, r"spans\.arrow has [\d,]+ bytes, more than 100")


class TestTexts:
    def test_of_a_saved_run(self, saved_run):
        """Neither tables nor head give a terminal a command."""
        table = pl.read_ipc(saved_run / "spans.arrow")
        table.with_columns(stage=pl.lit(f"{EVIL}crop").cast(pl.Categorical)).write_ipc(
            saved_run / "spans.arrow"
        )
        head = json.loads((saved_run / "run.json").read_text())
        head["notes"], head["machine"] = [EVIL], {EVIL: [EVIL]}
        (saved_run / "run.json").write_text(json.dumps(head))

        run = ss.load(saved_run)

        text = f"{run}{run.notes}{run.machine}{run.all_spans['stage'].to_list()}"
        assert not set(text) & set(EVIL) - set("52;c;ZXZpbA==2J]")
        assert run.all_spans["stage"][0].endswith("crop")

    def test_of_an_error(self, saved_run):
        (saved_run / "run.json").write_text(json.dumps({"kind": EVIL, "schema_version": 3}))

        with pytest.raises(RunFormatError) as caught:
            ss.load(saved_run)
        assert "\x1b" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["run", "lines", "orders"])
    def test_of_a_live_result(self, kind):
        """Names of the user's files and code may hold anything; a terminal is shown letters."""
        result = built(kind)
        for field in store.contents_of(type(result)).tables:
            frame = getattr(result, field)
            names = {"stage", "function", "source", "name", "change"} & set(frame.columns)
            evil = [pl.format(f"{EVIL}{{}}", pl.col(name).cast(pl.String)) for name in names]
            kinds = {name: frame.schema[name] for name in names}
            new = frame.with_columns(
                column.alias(name) for name, column in zip(names, evil, strict=True)
            )
            result = replace(result, **{field: new.cast(kinds)})

        texts = str(result), result._repr_mimebundle_()["text/plain"]

        assert "52;c;ZXZpbA" in texts[0]
        assert not set("".join(texts)) & set(EVIL) - set("52;c;ZXZpbA==2J]")

    def test_of_what_is_pointed_at(self):
        """The error names the target, safely for whoever prints it."""
        with pytest.raises(TargetError) as caught:
            ss.target(f"/nowhere/{EVIL}")

        assert "nowhere" in str(caught.value)
        assert "\x1b" not in str(caught.value)


FORGED = [  # of which result, in which table, in which column, which value; what is said
    ("flame", "stacks", "hits", 1 << 62, "impossible numbers"),
    ("flame", "stacks", "hits", 0, "impossible numbers"),
    ("run_with_resources", "resources", "resource", "luck", r"an unknown word \(luck\)"),
    ("run_with_resources", "resources", "value", 1e300, "impossible numbers"),
    ("run", "steps", "wait_s", -1.0, "impossible numbers"),
    ("ladder", "facts", "rung", "luck", r"an unknown word \(luck\)"),
    ("ladder", "blocks", "variant", 99, r"an unknown word \(99\)"),
    ("ladder", "blocks", "seconds", 0.0, "impossible numbers"),
    ("orders", "trials", "equivalence", "luck", r"an unknown word \(luck\)"),
]
HEADS = [  # of which result, which value of which part; what is said
    ("tuning", {"budget_s": 10**400}, "too large"),
    ("tuning", {"budget_s": -1}, "not a number"),
    ("tuning", {"num_workers": -1}, "num_workers in .* has -1"),
    ("orders", {"tolerance": "luck"}, r"an unknown word \(luck\)"),
]


class TestHeads:
    @pytest.mark.parametrize(
        "damage", ["", "[]", "{", '{"schema_version": 1}', "[" * 100_000, "1" * 5_000]
    )
    def test_of_no_head(self, saved_run, damage):
        (saved_run / "run.json").write_text(damage)

        refusal(saved_run, "run")

    @pytest.mark.parametrize(("kind", "values", "words"), HEADS)
    def test_of_values_that_cannot_be(self, tmp_path, kind, values, words):
        folder = built(kind).save(tmp_path / "result")
        head = json.loads((folder / f"{kind}.json").read_text())
        head["circumstances"] |= values
        (folder / f"{kind}.json").write_text(json.dumps(head))

        refusal(folder, words)


class TestLinks:
    def test_ranks_that_are_links(self, saved_run, tmp_path):
        """Ranks outside of the folder are not read."""
        (tmp_path / "all").mkdir()
        (tmp_path / "all" / "rank0").symlink_to(saved_run)

        with pytest.raises(RunFormatError, match="rank0 is not a folder, or is a link"):
            ss.load(tmp_path / "all")

    def test_logs_that_are_a_link(self, tmp_path):
        """Logs of another run are not this one's."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "1.events").touch()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")

        refusal(tmp_path / "run", "is not a saved result")

    @pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
    def test_nothing_is_written_through_a_link(self, tmp_path, link):
        """The file of failures may be a foreign link: its target stays."""
        (tmp_path / "precious").write_text("mine")
        (tmp_path / "logs").mkdir()
        getattr(tmp_path / "logs" / "failures.lines", link)(tmp_path / "precious")

        Failures(tmp_path / "logs").note("a log", ValueError("damaged"))

        assert "mine" == (tmp_path / "precious").read_text()


CHANGES = {
    "no column": ("spans", lambda t: t.drop("end_ns")),
    "text for a number": ("spans", lambda t: t.with_columns(start_ns=pl.lit("early"))),
    "too large a number": ("spans", lambda t: t.with_columns(worker=pl.lit(1 << 40))),
    "unknown kind": ("spans", lambda t: t.with_columns(kind=pl.lit("nap"))),
    "no start": ("spans", lambda t: t.with_columns(start_ns=None)),
    "backwards": ("spans", lambda t: t.rename({"start_ns": "end_ns", "end_ns": "start_ns"})),
    "for ever": ("spans", lambda t: t.with_columns(end_ns=pl.lit((1 << 63) - 1))),
    "steady is open": ("batches", lambda t: t.with_columns(steady=None)),
    "no end of it": ("steps", lambda t: t.with_columns(step_s=pl.lit(float("inf")))),
}


class TestColumns:
    @pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES)
    def test_of_a_foreign_table(self, saved_run, name, change):
        file = saved_run / f"{name}.arrow"
        change(pl.read_ipc(file)).write_ipc(file)

        refusal(saved_run, "is not a whole run")

    @pytest.mark.parametrize("name", ["steps", "deliveries"])
    def test_of_an_empty_table_can_be_looked_at(self, saved_run, name):
        """A run of which one table holds no row is printed and drawn."""
        file = saved_run / f"{name}.arrow"
        pl.read_ipc(file).clear().write_ipc(file)

        run = ss.load(saved_run)

        assert str(run)
        for kind in VIEW.pictures:
            run.plot(kind)

    @pytest.mark.parametrize("forged", FORGED, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}")
    def test_of_values_that_cannot_be(self, tmp_path, forged):
        """A view would end in a KeyError, a division by zero, or a wrong sum."""
        kind, table, column, value, words = forged
        file = built(kind).save(tmp_path / "result") / f"{table}.arrow"
        frame = pl.read_ipc(file)
        frame.with_columns(pl.lit(value).cast(frame.schema[column]).alias(column)).write_ipc(file)

        refusal(tmp_path / "result", words)
