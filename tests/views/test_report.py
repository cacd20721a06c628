"""The report: one file that asks nobody for anything, in which every name is only text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from support.build_diagnosis import COPY, DECODE, LOCK, a_diagnosis
from support.build_flame import HOSTILE, named

from stallscope.verbs.diagnose.result import Finding
from stallscope.verbs.diagnose.text import NOT_TESTED
from stallscope.views import diagnosis as face
from stallscope.views.document import ExportError

PATH = "/home/me/secret/photos"
WITH_PATHS = {
    "name": f"{PATH} (stallscope's default pipeline, not yours)",
    "notes": [f"12 files of {PATH} could not be read", r"C:\data\x.png", "data/x.jpg at 3 MB/s"],
}


class Elements(HTMLParser):
    """Every element with its attributes, and what the page asks for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page():
    """A report with everything in it."""
    return face.page(a_diagnosis(DECODE, LOCK, COPY, simulated_step_s=0.05))


@pytest.fixture(scope="module")
def hostile():
    """A report in which every name is markup."""
    finding = Finding("lock", HOSTILE, 0.5, {HOSTILE: 1.0}, 0.5, HOSTILE)
    diagnosis = a_diagnosis(
        finding,
        finding,
        name=HOSTILE,
        device=HOSTILE,
        machine={HOSTILE: HOSTILE},
        notes=[HOSTILE, "</script><script>alert(1)</script>"],
        spent=((HOSTILE, 1.0, HOSTILE), ("stop", 0.0, HOSTILE)),
    )
    object.__setattr__(diagnosis, "flame", named(HOSTILE))
    return diagnosis


@pytest.mark.parametrize(
    "words",
    [
        *("Verdict:", DECODE.title, "46% of the loop", "clear (0.84)", "train.py:31", LOCK.title),
        *(NOT_TESTED, "simulated: a timer of 50 ms", "train:loader", "12.5 s", "certain"),
        *face.TITLES.values(),
        *("Machine and settings", "Linux x86_64", "2.15.0"),
    ],
)
def test_holds_everything(page, words):
    """Verdict, further findings, ladder, stages, timeline, flamegraph, machine and settings."""
    assert words.replace("'", "&#39;") in page or words in page


def test_asks_the_network_for_nothing(page):
    """No element names an address, and the page forbids itself every request."""
    asked = [
        (tag, name, value)
        for tag, attributes in Elements(page).found
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "action", "data", "poster", "background"}
    ]

    assert all(value.startswith("data:image/png;base64,") for _, _, value in asked)
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"@import|url\(", page.partition("<script")[0])


def test_only_its_own_script_may_run(page):
    """The rules name the digest of the one script that the page has."""
    rules = re.search(r"script-src &#39;(sha256-[^&]+)&#39;", page)[1]
    script = page.rpartition("<script>")[2].partition("</script>")[0]

    assert rules in face._rules(script)
    assert 1 == page.count("<script>")
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", page)[0]


@pytest.mark.slow
def test_every_name_is_only_text(hostile):
    """A name that is markup makes no element, in the page and in the flamegraph's data."""
    page = face.page(hostile)
    found = [tag for tag, _ in Elements(page).found]
    scripts = [tag for tag in found if tag == "script"]

    assert HOSTILE not in page
    assert 2 == len(scripts)  # the data and the viewer
    assert not [a for _, a in Elements(page).found if "onerror" in a or a.get("src") == "x"]


@pytest.fixture(scope="module")
def redacted():
    """The report of a diagnosis that is full of paths, for others to read."""
    return face.page(a_diagnosis(DECODE, **WITH_PATHS), redact=True)


class TestRedacted:
    def test_has_no_pictures(self, redacted):
        tags = {tag for tag, _ in Elements(redacted).found}

        assert not tags & {"img", "script", "iframe", "svg", "canvas"}
        assert "data:image" not in redacted.partition("</head>")[2]

    @pytest.mark.parametrize("path", [PATH, "/home/me", "data.py", "train.py", "x.png", "x.jpg"])
    def test_has_no_paths(self, redacted, path):
        """Neither those that were pointed at nor those of the code."""
        assert path not in redacted

    @pytest.mark.parametrize(
        "words", ["dilate", "3 MB/s", "samples/s", "2_fetch_vs_transform.ipynb", DECODE.title]
    )
    def test_keeps_the_rest(self, redacted, words):
        """The verdict, the numbers, the names of functions and of guided notebooks."""
        assert words in redacted

    def test_escapes_as_before(self, hostile):
        """Names stay text when the page is written a second time."""
        page = face.page(hostile, redact=True)

        assert HOSTILE not in page
        assert "<script" not in page


class TestJson:
    def test_holds_the_findings(self):
        """Each with its evidence as plain numbers; the verdict's code stands on top."""
        told = json.loads(face.as_json(a_diagnosis(DECODE, LOCK)))

        assert "decode" == told["verdict"]
        assert dict(DECODE.evidence) == told["findings"][0]["evidence"]
        assert [0.46, 0.09] == [found["severity"] for found in told["findings"]]
        assert "stop" == told["spent"][-1]["phase"]

    def test_what_is_no_number_is_null(self):
        found = Finding("lock", "", 0.1, {"a_s": float("nan"), "b_s": float("inf"), "c_s": None})
        told = json.loads(face.as_json(a_diagnosis(found)))

        assert {"a_s": None, "b_s": None, "c_s": None} == told["findings"][0]["evidence"]

    def test_can_be_redacted(self):
        told = face.as_json(a_diagnosis(DECODE, **WITH_PATHS), redact=True)

        assert "secret" not in told
        assert "train.py" not in told


class TestExport:
    def test_writes_what_the_ending_says(self, tmp_path):
        diagnosis = a_diagnosis(DECODE, parts=False)

        assert diagnosis.export(tmp_path / "new" / "r.html").read_text().startswith("<!DOCTYPE")
        assert "decode" == json.loads(diagnosis.export(tmp_path / "r.json").read_text())["verdict"]

    def test_refuses_another_ending(self, tmp_path):
        """One sentence names those that there are, and nothing is written."""
        with pytest.raises(ExportError, match=r"ends in none of \.html, \.json"):
            a_diagnosis(DECODE, parts=False).export(tmp_path / "r.pdf")

        assert not list(tmp_path.iterdir())
