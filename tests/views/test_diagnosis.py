"""A diagnosis: terminal, notebook, picture and panel agree; the report is one file.

The report asks nobody for anything, and every name in it is only text.
"""

import json
import re
from html.parser import HTMLParser

import pytest
from support.build_diagnosis import COPY, DECODE, HEALTHY, LOCK, UNKNOWN, a_diagnosis
from support.build_flame import named
from support.chart_texts import check_texts

from stallscope.verbs.diagnose.causes import CAUSES
from stallscope.verbs.diagnose.result import Finding
from stallscope.verbs.diagnose.text import NOT_TESTED, all_words
from stallscope.views import diagnosis as face

HOSTILE = "<img src=x onerror=window.broken=1>"
LONG = Finding("one-transform", "VeryLongName" * 30, 1.0, {"x_share": 1.0}, 1.0, "do " * 60)
DIAGNOSES = {
    "three findings": a_diagnosis(),
    "healthy": a_diagnosis(HEALTHY),
    "inconclusive, nothing measured": a_diagnosis(UNKNOWN, parts=False, has_step=False, spent=()),
    "simulated": a_diagnosis(DECODE, simulated_step_s=0.05),
    "long": a_diagnosis(LONG, LONG, notes=["a note that goes on and on " * 9]),
    "many": a_diagnosis(*[LOCK] * 9, parts=False),
    "every cause": a_diagnosis(*[Finding(code, code, 0.1) for code in CAUSES], parts=False),
    "hostile": a_diagnosis(
        Finding("lock", f"\x1b[31m{HOSTILE}", 0.5, {f"{HOSTILE}_s": 1.0}, 0.5, HOSTILE),
        Finding("decode", HOSTILE, 0.2, {HOSTILE: 1.0}, 0.5, HOSTILE),
        parts=False,
        name=HOSTILE,
        device=HOSTILE,
        machine={"system": HOSTILE, "torch": HOSTILE},
        notes=[f"\x1b[31m{HOSTILE}"],
        spent=((HOSTILE, 1.0, HOSTILE), ("stop", 0.0, HOSTILE)),
    ),
}


def html(diagnosis):
    return diagnosis._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_text_of_the_picture_has_a_place_of_its_own(name):
    check_texts(DIAGNOSES[name].plot())


@pytest.mark.parametrize("name", ["three findings", "healthy", "simulated"])
def test_the_verdict_is_the_first_line_everywhere(name):
    diagnosis = DIAGNOSES[name]
    title = diagnosis.verdict.title

    assert str(diagnosis).startswith(f"{title}\n")
    assert title == diagnosis.plot().title
    assert html(diagnosis).index(title) < html(diagnosis).index("Measured")


@pytest.mark.parametrize("view", [str, html, lambda d: " ".join(d.plot().notes)])
def test_a_simulated_step_is_called_simulated(view):
    assert "simulated" in view(DIAGNOSES["simulated"])
    assert "simulated" not in view(a_diagnosis(DECODE, parts=False))


def test_a_guided_notebook_is_a_link():
    step = "see 2_fetch_vs_transform.ipynb, 3_cached_baseline (idle) or 99_none of runs/01_mine"
    page = html(a_diagnosis(Finding("lock", "", 0.1, next_step=step), parts=False))

    assert "<a href='2_fetch_vs_transform.ipynb'>2_fetch_vs_transform.ipynb</a>" in page
    assert "<a href='3_cached_baseline.ipynb'>3_cached_baseline</a>" in page
    assert 2 == page.count("<a ")


def test_each_part_of_a_next_step_has_its_own_line():
    diagnosis = a_diagnosis(
        Finding("lock", "", 0.1, next_step="hold it; and 4_worker_flamegraphs; a.py:3")
    )

    assert "\nnext: hold it\nnext: open 4_worker_flamegraphs\nnext: a.py:3\n" in str(diagnosis)
    assert "<li>hold it</li><li>open <a " in html(diagnosis)


def test_numbers_have_the_unit_of_their_name():
    """Shares, times, sizes, rates, factors, counts and plain numbers have their units."""
    evidence = {
        "a_share": 0.123,
        "b_p50_s": 0.0123,
        "c_bytes": 2e6,
        "d_bytes_per_s": 3e6,
        "e_per_s": 12.0,
        "f_factor": 2.04,
        "prefetch_factor_count": 2,
        "g_ns": 1500,
        "h": 1.5,
    }
    (words,) = all_words(a_diagnosis(Finding("lock", "", 0.1, evidence), parts=False))

    assert words.because == (
        "a 12% · b p50 12 ms · c 2.0 MB · d 3.0 MB/s · e 12/s · f 2.0× · prefetch factor 2 · "
        "g 1.5 µs · h 1.5"
    )


def test_names_are_escaped_and_printable():
    diagnosis = DIAGNOSES["hostile"]

    assert "<img" not in html(diagnosis)
    assert "\x1b" not in html(diagnosis) + str(diagnosis)


def test_lines_of_a_terminal_are_not_too_long():
    """Words are never broken, so that a path can be copied; sentences are."""
    lines = str(DIAGNOSES["three findings"]).splitlines()

    assert max(map(len, lines)) <= face.WIDTH


@pytest.mark.parametrize("kind", ["ladder", "timeline", "flame"])
def test_other_pictures_are_those_of_its_parts(kind):
    diagnosis = DIAGNOSES["three findings"]
    own = getattr(diagnosis, face.OF_PARTS[kind][1]).plot(kind)

    assert own.title == diagnosis.plot(kind).title
    assert "the verdict does not need that" in DIAGNOSES["many"].plot(kind).title
    assert "stands" not in DIAGNOSES["inconclusive, nothing measured"].plot(kind).title


def test_the_panel_shows_one_picture_at_a_time():
    panel = DIAGNOSES["three findings"].panel()
    (choice,) = panel.children[0].children
    before = panel.children[1].value

    choice.value = "ladder"

    assert before != panel.children[1].value
    assert DIAGNOSES["three findings"].plot("ladder").title in panel.children[1].value


# ---- the report ----------------------------------------------------------------------------------

PATH = "/home/me/secret/photos"
WITH_PATHS = {
    "name": f"{PATH} (stallscope's default pipeline, not yours)",
    "notes": [f"12 files of {PATH} could not be read", r"C:\data\x.png", "data/x.jpg at 3 MB/s"],
}


class Elements(HTMLParser):
    """Parser that keeps every element with its attributes, and every request of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page():
    """Return a report with everything in it."""
    return face.page(a_diagnosis(DECODE, LOCK, COPY, simulated_step_s=0.05))


@pytest.fixture(scope="module")
def hostile():
    """Return a report in which every name is markup."""
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
    """The report has verdict, findings, ladder, stages, timeline, flames, machine and settings."""
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
    """The page's rules name the digest of its only script."""
    rules = re.search(r"script-src &#39;(sha256-[^&]+)&#39;", page)[1]
    script = page.rpartition("<script>")[2].partition("</script>")[0]

    assert rules in face._rules(script)
    assert 1 == page.count("<script>")
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", page)[0]


@pytest.mark.slow
def test_every_name_is_only_text(hostile):
    page = face.page(hostile)
    tags = [tag for tag, _ in Elements(page).found]
    scripts = [tag for tag in tags if tag == "script"]

    assert HOSTILE not in page
    assert 2 == len(scripts)  # the data and the viewer
    assert not [a for _, a in Elements(page).found if "onerror" in a or a.get("src") == "x"]


@pytest.fixture(scope="module")
def redacted():
    """Return the redacted report of a diagnosis that is full of paths."""
    return face.page(a_diagnosis(DECODE, **WITH_PATHS), redact=True)


class TestRedacted:
    def test_has_no_pictures(self, redacted):
        tags = {tag for tag, _ in Elements(redacted).found}

        assert not tags & {"img", "script", "iframe", "svg", "canvas"}
        assert "data:image" not in redacted.partition("</head>")[2]

    @pytest.mark.parametrize("path", [PATH, "/home/me", "data.py", "train.py", "x.png", "x.jpg"])
    def test_has_no_paths(self, redacted, path):
        """Neither the target's paths nor those of the code are in the report."""
        assert path not in redacted

    @pytest.mark.parametrize(
        "words", ["dilate", "3 MB/s", "samples/s", "2_fetch_vs_transform.ipynb", DECODE.title]
    )
    def test_keeps_the_rest(self, redacted, words):
        assert words in redacted

    def test_escapes_as_before(self, hostile):
        """Names stay text when the page is written a second time."""
        page = face.page(hostile, redact=True)

        assert HOSTILE not in page
        assert "<script" not in page


class TestJson:
    def test_holds_the_findings(self):
        """Each finding has its evidence as plain numbers, and the verdict's code comes first."""
        content = json.loads(face.as_json(a_diagnosis(DECODE, LOCK)))

        assert "decode" == content["verdict"]
        assert dict(DECODE.evidence) == content["findings"][0]["evidence"]
        assert [0.46, 0.09] == [finding["severity"] for finding in content["findings"]]
        assert "stop" == content["spent"][-1]["phase"]

    def test_nan_and_infinity_are_null(self):
        finding = Finding("lock", "", 0.1, {"a_s": float("nan"), "b_s": float("inf"), "c_s": None})
        content = json.loads(face.as_json(a_diagnosis(finding)))

        assert {"a_s": None, "b_s": None, "c_s": None} == content["findings"][0]["evidence"]

    def test_can_be_redacted(self):
        text = face.as_json(a_diagnosis(DECODE, **WITH_PATHS), redact=True)

        assert "secret" not in text
        assert "train.py" not in text


class TestExport:
    def test_writes_what_the_ending_says(self, tmp_path):
        diagnosis = a_diagnosis(DECODE, parts=False)

        assert diagnosis.export(tmp_path / "new" / "r.html").read_text().startswith("<!DOCTYPE")
        assert "decode" == json.loads(diagnosis.export(tmp_path / "r.json").read_text())["verdict"]
