"""A run that somebody sent: it is looked at before it is read, and one sentence refuses it."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from surface.built import built

import stallscope as ss
from stallscope import store
from stallscope.errors import RunFormatError, TargetError
from stallscope.hooks.recording_folder import Failures
from stallscope.views.run import VIEW

EVIL = "\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e"
"""Sets the clipboard of a terminal, clears it, and turns what follows around."""


@pytest.fixture
def saved(tmp_path):
    return built("run").save(tmp_path / "run")


def refusal(folder, words):
    with pytest.raises(RunFormatError, match=words) as caught:
        ss.load(folder)
    assert "\n" not in str(caught.value)


class TestSizes:
    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compressed_table_is_refused_before_it_is_unpacked(self, saved, compression):
        """Some kilobytes can stand for gigabytes."""
        bomb = pl.DataFrame({"stage": ["\0" * 100_000_000]})
        bomb.write_ipc(saved / "spans.arrow", compression=compression)
        assert (saved / "spans.arrow").stat().st_size < 1 << 20

        refusal(saved, r"spans\.arrow: it is compressed")

    @pytest.mark.parametrize(
        ("bomb", "words"),
        [
            (lambda: pl.select(epoch=pl.repeat(None, 1_000)), "type Null, not Int32"),
            (lambda: pl.DataFrame({"epoch": [[0] * 1_000]}), "type List"),
        ],
        ids=["nothing", "lists"],
    )
    def test_column_that_would_grow_is_refused(self, saved, bomb, words):
        sound = pl.read_ipc(saved / "spans.arrow").clear()
        columns = bomb()
        others = [pl.lit(None, sound.schema[name]).alias(name) for name in sound.columns]
        columns.with_columns(one for one in others if one.meta.output_name() != "epoch").write_ipc(
            saved / "spans.arrow"
        )

        refusal(saved, rf"spans\.arrow: epoch has values of the {words}")

    def test_large_file_is_refused_before_it_is_read(self, saved, monkeypatch):
        monkeypatch.setattr(store, "MOST_TABLE_BYTES", 100)

        refusal(saved, r"spans\.arrow has [\d,]+ bytes, more than 100")


class TestTexts:
    def test_of_a_saved_run(self, saved):
        """Neither tables nor head give a terminal a command."""
        table = pl.read_ipc(saved / "spans.arrow")
        table.with_columns(stage=pl.lit(f"{EVIL}crop").cast(pl.Categorical)).write_ipc(
            saved / "spans.arrow"
        )
        head = json.loads((saved / "run.json").read_text())
        head["notes"], head["machine"] = [EVIL], {EVIL: [EVIL]}
        (saved / "run.json").write_text(json.dumps(head))

        run = ss.load(saved)

        told = f"{run}{run.notes}{run.machine}{run.all_spans['stage'].to_list()}"
        assert not set(told) & set(EVIL) - set("52;c;ZXZpbA==2J]")
        assert run.all_spans["stage"][0].endswith("crop")

    def test_of_an_error(self, saved):
        (saved / "run.json").write_text(json.dumps({"kind": EVIL, "schema_version": 3}))

        with pytest.raises(RunFormatError) as caught:
            ss.load(saved)
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
            new = frame.with_columns(one.alias(name) for name, one in zip(names, evil, strict=True))
            result = replace(result, **{field: new.cast(kinds)})

        told = str(result), result._repr_mimebundle_()["text/plain"]

        assert "52;c;ZXZpbA" in told[0]
        assert not set("".join(told)) & set(EVIL) - set("52;c;ZXZpbA==2J]")

    def test_of_what_is_pointed_at(self):
        """An error names it, and is shown by whoever catches it."""
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
    ("tuning", {"budget_s": -1}, "no number"),
    ("tuning", {"num_workers": -1}, "num_workers in .* has -1"),
    ("orders", {"tolerance": "luck"}, r"an unknown word \(luck\)"),
]


class TestHeads:
    @pytest.mark.parametrize(
        "damage", ["", "[]", "{", '{"schema_version": 1}', "[" * 100_000, "1" * 5_000]
    )
    def test_of_no_head(self, saved, damage):
        (saved / "run.json").write_text(damage)

        refusal(saved, "run")

    @pytest.mark.parametrize(("kind", "values", "words"), HEADS)
    def test_of_values_that_cannot_be(self, tmp_path, kind, values, words):
        folder = built(kind).save(tmp_path / "result")
        head = json.loads((folder / f"{kind}.json").read_text())
        head["circumstances"] |= values
        (folder / f"{kind}.json").write_text(json.dumps(head))

        refusal(folder, words)


class TestLinks:
    def test_ranks_that_are_links(self, saved, tmp_path):
        """What lies outside of the folder is not read for it."""
        (tmp_path / "all").mkdir()
        (tmp_path / "all" / "rank0").symlink_to(saved)

        refusal(tmp_path / "all", "rank0 is no folder, or only a link")

    def test_logs_that_are_a_link(self, tmp_path):
        """Logs of another run are not this one's."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "1.events").touch()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")

        refusal(tmp_path / "run", "is not a saved result")

    @pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
    def test_nothing_is_written_through_a_link(self, tmp_path, link):
        """Where failures are noted may be a link of somebody else's: what it leads to stays."""
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
    def test_of_a_foreign_table(self, saved, name, change):
        file = saved / f"{name}.arrow"
        change(pl.read_ipc(file)).write_ipc(file)

        refusal(saved, "is not a whole run")

    def test_of_a_damaged_table(self, saved):
        """A file that is not Arrow, or only half of one."""
        file = saved / "steps.arrow"
        whole = file.read_bytes()

        for damaged in (b"", b"ARROW1" * 9, whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            file.write_bytes(damaged)
            refusal(saved, "is not a whole run")

    @pytest.mark.parametrize("name", ["steps", "deliveries"])
    def test_of_an_empty_table_can_be_looked_at(self, saved, name):
        """A run of which one table holds no row is printed and drawn."""
        file = saved / f"{name}.arrow"
        pl.read_ipc(file).clear().write_ipc(file)

        run = ss.load(saved)

        assert str(run)
        for kind in VIEW.pictures:
            run.plot(kind)

    @pytest.mark.parametrize("forged", FORGED, ids=lambda one: f"{one[0]}-{one[2]}-{one[3]}")
    def test_of_values_that_cannot_be(self, tmp_path, forged):
        """Else a view would end in a KeyError, a division by zero, or with a wrong sum."""
        kind, table, column, value, words = forged
        file = built(kind).save(tmp_path / "result") / f"{table}.arrow"
        frame = pl.read_ipc(file)
        frame.with_columns(pl.lit(value).cast(frame.schema[column]).alias(column)).write_ipc(file)

        refusal(tmp_path / "result", words)
