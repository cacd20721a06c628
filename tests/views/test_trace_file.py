"""Writing a trace: whole or not at all."""

from __future__ import annotations

import pytest
from support import trace_format
from support.build_run import a_run

from stallscope.errors import TraceFileError
from stallscope.views import trace


@pytest.fixture
def run():
    return a_run([{"decode": 2.0}] * 8)


class TestWriting:
    @pytest.mark.parametrize("name", ["trace.json", "new/folder/trace.json.gz"])
    def test_gives_the_file_that_was_asked_for(self, run, tmp_path, name):
        """Plain or compressed, in folders that are made; nothing else stays."""
        path = run.trace(tmp_path / name)

        assert tmp_path / name == path
        assert {"displayTimeUnit", "otherData", "traceEvents"} == set(trace_format.read(path))
        assert [path] == list(path.parent.iterdir())

    def test_of_nothing_is_a_trace(self, tmp_path):
        """A run in which nothing happened can be opened, too."""
        assert [] == trace_format.read(a_run([]).trace(tmp_path / "trace.json"))["traceEvents"]

    def test_that_fails_leaves_what_was_there(self, run, tmp_path, monkeypatch):
        """Half a trace is no trace, and the older one is still whole."""
        path = run.trace(tmp_path / "trace.json")
        before = path.read_bytes()

        def broken(_run):
            yield {"ph": "X"}
            raise KeyboardInterrupt

        monkeypatch.setattr(trace, "events", broken)
        with pytest.raises(KeyboardInterrupt):
            run.trace(path)
        assert ([path], before) == (list(tmp_path.iterdir()), path.read_bytes())


class TestRefusing:
    @pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.gz", "trace.pftrace"])
    def test_another_ending(self, run, tmp_path, name):
        """One sentence says which names are good."""
        with pytest.raises(TraceFileError, match=r"is \.json or \.json\.gz.*give one such as"):
            run.trace(tmp_path / name)
        assert [] == list(tmp_path.iterdir())

    @pytest.mark.parametrize("place", ["/proc/trace.json", "file/trace.json"])
    def test_a_place_that_cannot_be_written(self, run, tmp_path, monkeypatch, place):
        """No right, or a file in the way of a folder."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("mine")

        with pytest.raises(TraceFileError, match=r"cannot be written to .*: give another place"):
            run.trace(place)
