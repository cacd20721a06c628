"""A run that somebody sent: it is looked at before it is read, and one sentence refuses it."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from surface.built import built

import stallscope as ss
from stallscope.errors import RunFormatError, TargetError
from stallscope.hooks.failures import Failures
from stallscope.parquet_sizes import sizes_read

EVIL = "\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e"
"""Sets the clipboard of a terminal, clears it, and turns what follows around."""


@pytest.fixture
def saved(tmp_path):
    """A saved run."""
    return built("run").save(tmp_path / "run")


def refusal(folder, words):
    with pytest.raises(RunFormatError, match=words) as caught:
        ss.load(folder)
    assert "\n" not in str(caught.value)


def size_of(path):
    with path.open("rb") as file:
        return sizes_read(file)


class TestSizes:
    def test_of_a_sound_table(self, tmp_path):
        """Rows and bytes are those that there are, in several row groups, too."""
        frame = pl.DataFrame({"a": range(10_000), "b": ["text"] * 10_000})
        frame.write_parquet(tmp_path / "t", row_group_size=1000, compression="uncompressed")

        rows, unpacked = size_of(tmp_path / "t")

        assert 10_000 == rows
        assert 80_000 < unpacked < 200_000

    @pytest.mark.parametrize(
        "damage", [b"", b"PAR1", b"PAR1" * 9, b"\xff" * 64 + b"\x30\0\0\0PAR1"]
    )
    def test_of_something_else(self, tmp_path, damage):
        """No Parquet file is an error of values, whatever it is."""
        (tmp_path / "t").write_bytes(damage)

        with pytest.raises(ValueError, match=r"Parquet|nested"):
            size_of(tmp_path / "t")

    @pytest.mark.parametrize("bomb", ["rows", "page", "list"])
    def test_a_small_file_of_a_large_table(self, saved, bomb):
        """It is refused before its memory is asked for."""
        made = {
            "rows": lambda: pl.select(epoch=pl.repeat(0, 20_000_000)),
            "page": lambda: pl.DataFrame({"stage": ["\0" * 100_000_000]}),
            "list": lambda: pl.DataFrame({"epoch": [[0] * 8_000_000]}),
        }[bomb]()
        made.write_parquet(saved / "spans.parquet")
        assert (saved / "spans.parquet").stat().st_size < 1 << 20

        refusal(saved, r"spans\.parquet would take [\d,]+ bytes of memory")


class TestTexts:
    def test_of_a_saved_run(self, saved):
        """Neither tables nor head give a terminal a command."""
        table = pl.read_parquet(saved / "spans.parquet")
        table.with_columns(stage=pl.lit(f"{EVIL}crop")).write_parquet(saved / "spans.parquet")
        head = json.loads((saved / "run.json").read_text())
        head["notes"], head["machine"] = [EVIL], {EVIL: [EVIL]}
        (saved / "run.json").write_text(json.dumps(head))

        run = ss.load(saved)

        told = f"{run}{run.notes}{run.machine}{run.all_spans['stage'].to_list()}"
        assert not set(told) & set(EVIL) - set("52;c;ZXZpbA==2J]")
        assert run.all_spans["stage"][0].endswith("crop")

    def test_of_an_error(self, saved):
        """Nor does the sentence that refuses."""
        (saved / "run.json").write_text(json.dumps({"kind": EVIL, "schema_version": 3}))

        with pytest.raises(RunFormatError) as caught:
            ss.load(saved)
        assert "\x1b" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["run", "lines", "orders"])
    def test_of_a_live_result(self, kind):
        """Names of the user's files and code may hold anything; a terminal is shown letters."""
        result = built(kind)
        for table in result._contents.tables:
            frame = getattr(result, table.field)
            names = {"stage", "function", "source", "name", "change"} & set(frame.columns)
            evil = [pl.format(f"{EVIL}{{}}", pl.col(name).cast(pl.String)) for name in names]
            kinds = {name: frame.schema[name] for name in names}
            new = frame.with_columns(one.alias(name) for name, one in zip(names, evil, strict=True))
            result = replace(result, **{table.field: new.cast(kinds)})

        told = str(result), result._repr_mimebundle_()["text/plain"]

        assert "52;c;ZXZpbA" in told[0]
        assert not set("".join(told)) & set(EVIL) - set("52;c;ZXZpbA==2J]")

    def test_of_what_is_pointed_at(self):
        """An error names it, and is shown by whoever catches it."""
        with pytest.raises(TargetError) as caught:
            ss.target(f"/nowhere/{EVIL}")

        assert "nowhere" in str(caught.value)
        assert "\x1b" not in str(caught.value)


class TestLinks:
    def test_ranks_that_are_links(self, saved, tmp_path):
        """What lies outside of the folder is not read for it."""
        (tmp_path / "all").mkdir()
        (tmp_path / "all" / "rank0").symlink_to(saved)

        refusal(tmp_path / "all", "rank0 is no folder, or only a link")

    def test_logs_that_are_a_link(self, tmp_path):
        """Logs of another run are not this one's."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "1.marks").touch()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")

        refusal(tmp_path / "run", "is not a saved result")

    def test_results_in_results(self, saved):
        """A chain of others of others is followed no further than ours go."""
        folder = saved
        for _ in range(4):
            built("run").save(folder / "others" / "1")
            head = json.loads((folder / "run.json").read_text())
            (folder / "run.json").write_text(json.dumps({**head, "parts": {"others": 1}}))
            folder = folder / "others" / "1"

        refusal(saved, "others lies in too many results")

    @pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
    def test_nothing_is_written_through_a_link(self, tmp_path, link):
        """Where failures are noted may be a link of somebody else's: what it leads to stays."""
        (tmp_path / "precious").write_text("mine")
        (tmp_path / "logs").mkdir()
        getattr(tmp_path / "logs" / "failures.lines", link)(tmp_path / "precious")

        Failures(tmp_path / "logs").note("a log", ValueError("damaged"))

        assert "mine" == (tmp_path / "precious").read_text()


class TestColumns:
    def test_of_counts_that_cannot_be(self, tmp_path):
        """Their sum would be no number of the table's."""
        folder = built("flame").save(tmp_path / "flame")
        table = pl.read_parquet(folder / "stacks.parquet")
        table.with_columns(hits=pl.lit(1 << 62)).write_parquet(folder / "stacks.parquet")

        refusal(folder, "hits holds impossible numbers")

    def test_of_structs(self, saved):
        """A value of several parts is no number and no name."""
        table = pl.read_parquet(saved / "spans.parquet")
        odd = table.with_columns(stage=pl.struct("epoch", "batch"))
        odd.write_parquet(saved / "spans.parquet")

        refusal(saved, "stage has values of several parts")
