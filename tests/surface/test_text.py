"""Texts of results in a terminal, in a notebook and in exported files."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from surface.built import BUILT, SAVED_RUNS, built, saved_run

import stallscope as ss

SILENT = {"style", "script", "svg"}
WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4}")
BLOCKS = {"div", "p", "tr", "table", "li", "ul", "summary", "details", "pre", "br", "h1", "h2"}


class Text(HTMLParser):
    """The words of a page, a line for each block."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.silent = 0
        self.pieces: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.silent += tag in SILENT
        self.pieces.append("\n" if tag in BLOCKS else " ")

    def handle_endtag(self, tag):
        self.silent -= tag in SILENT
        self.pieces.append("\n" if tag in BLOCKS else " ")

    def handle_data(self, data):
        if not self.silent:
            self.pieces.append(data.replace("\n", " "))

    @property
    def lines(self) -> str:
        """The words, with single spaces and without empty lines."""
        lines = [" ".join(line.split()) for line in "".join(self.pieces).split("\n")]
        return "\n".join(line for line in lines if line)


@pytest.mark.parametrize("name", BUILT)
def test_terminal(name, golden):
    """`print(result)`."""
    golden.text(f"text/{name}.txt", str(built(name)))


@pytest.mark.parametrize("name", BUILT)
def test_notebook(name, golden):
    """A notebook shows the same words."""
    shown = built(name)._repr_mimebundle_()

    assert shown["text/plain"] == str(built(name))
    golden.text(f"html/{name}.txt", Text(shown["text/html"]).lines)


@pytest.mark.parametrize("name", SAVED_RUNS)
def test_saved_runs(name, golden):
    """`print(ss.load(folder))`."""
    golden.text(f"saved/{name}.txt", str(saved_run(name)))


def test_report(golden, tmp_path):
    page = built("diagnosis").export(tmp_path / "report.html").read_text(encoding="utf-8")

    words = WHEN.sub("(when)", Text(page).lines)
    golden.text("files/report.txt", words.replace(ss.__version__, "(version)"))


def test_findings_as_json(golden, tmp_path):
    written = built("diagnosis").export(tmp_path / "found.json").read_text(encoding="utf-8")
    findings = json.loads(written.replace(ss.__version__, "(version)"))

    golden.json("files/diagnosis.json", findings, rel_tol=1e-9)


def test_speedscope(golden, tmp_path):
    written = built("flame").export(tmp_path / "flame.json").read_text(encoding="utf-8")

    golden.json("files/speedscope.json", json.loads(written), rel_tol=1e-9)


def test_flame_as_page(golden, tmp_path):
    page = built("flame").export(tmp_path / "flame.html").read_text(encoding="utf-8")
    words = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page)
    lines = [" ".join(line.split()) for line in re.sub(r"<[^>]*>", "\n", words).split("\n")]

    golden.text("files/flame.html.txt", unescape("\n".join(filter(None, lines))))


def test_trace(golden, tmp_path):
    written = built("run_for_a_trace").trace(tmp_path / "trace.json").read_text(encoding="utf-8")
    trace = json.loads(written.replace(ss.__version__, "(version)"))

    golden.json("files/trace.json", trace, rel_tol=1e-9)
