"""The face of a diagnosis: terminal, notebook, picture and panel tell the same, as text only."""

from __future__ import annotations

import pytest
from support.build_diagnosis import DECODE, HEALTHY, LOCK, UNKNOWN, a_diagnosis
from support.chart_texts import check_texts

from stallscope.verbs.diagnose.causes import CAUSES
from stallscope.verbs.diagnose.result import Finding
from stallscope.verbs.diagnose.text import PICTURE_SOURCES, all_words
from stallscope.views import diagnosis as face

LOOP = {"fetch": 5.0, "decode": 40.0, "Mask": 70.0, "collate": 5.0}
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
    """In a terminal, in the picture and, before everything else, in a notebook."""
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
    """The next step opens the notebook that goes deeper, if there is one of that name."""
    step = "see 2_fetch_vs_transform.ipynb, 3_cached_baseline (idle) or 99_none of runs/01_mine"
    told = html(a_diagnosis(Finding("lock", "", 0.1, next_step=step), parts=False))

    assert "<a href='2_fetch_vs_transform.ipynb'>2_fetch_vs_transform.ipynb</a>" in told
    assert "<a href='3_cached_baseline.ipynb'>3_cached_baseline</a>" in told
    assert 2 == told.count("<a ")


def test_each_thing_to_do_stands_on_its_own():
    """The parts of a next step are lines of their own; a notebook that is only named is opened."""
    diagnosis = a_diagnosis(
        Finding("lock", "", 0.1, next_step="hold it; and 4_worker_flamegraphs; a.py:3")
    )

    assert "\nnext: hold it\nnext: open 4_worker_flamegraphs\nnext: a.py:3\n" in str(diagnosis)
    assert "<li>hold it</li><li>open <a " in html(diagnosis)


def test_numbers_have_the_unit_of_their_name():
    """Shares, times, sizes, rates, factors, counts, and what has no unit."""
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
    (found,) = all_words(a_diagnosis(Finding("lock", "", 0.1, evidence), parts=False))

    assert found.because == (
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
    """The run's, the ladder's and the flame's own; a sheet says when it was not measured."""
    diagnosis = DIAGNOSES["three findings"]
    own = getattr(diagnosis, PICTURE_SOURCES[kind]).plot(kind)

    assert own.title == diagnosis.plot(kind).title
    assert "the verdict stands without" in DIAGNOSES["many"].plot(kind).title
    assert "stands" not in DIAGNOSES["inconclusive, nothing measured"].plot(kind).title


class TestPanel:
    def test_shows_one_picture_at_a_time(self):
        panel = DIAGNOSES["three findings"].panel()
        (choice,) = panel.children[0].children
        before = panel.children[1].value

        choice.value = "ladder"

        assert before != panel.children[1].value
        assert DIAGNOSES["three findings"].plot("ladder").title in panel.children[1].value

    def test_has_a_picture_for_places_without_widgets(self):
        assert "image/png" in DIAGNOSES["healthy"].panel()._repr_mimebundle_()
