"""The face of a diagnosis: terminal, notebook, picture and panel tell the same, as text only."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest
from support.build_diagnosis import COPY, DECODE, HEALTHY, LOCK, UNKNOWN, a_diagnosis
from support.build_run import resources_of
from support.chart_texts import check_texts
from support.virtual_loop import a_loop

from stallscope.diagnose.accounting import ACCOUNTING, BEGIN
from stallscope.diagnose.causes import CAUSES
from stallscope.diagnose.result import Finding
from stallscope.diagnose.text import HOW_SURE, NOT_TESTED, SHARES, all_words
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
    """No text leaves the sheet, and none lies on another."""
    check_texts(DIAGNOSES[name].plot())


@pytest.mark.parametrize("name", ["three findings", "healthy", "simulated"])
def test_the_verdict_is_the_first_line_everywhere(name):
    """In a terminal, in the picture and, before everything else, in a notebook."""
    diagnosis = DIAGNOSES[name]
    title = diagnosis.verdict.title

    assert str(diagnosis).startswith(f"{title}\n")
    assert title == diagnosis.plot().title
    assert html(diagnosis).index(title) < html(diagnosis).index("Measured")


@pytest.mark.parametrize("view", [str, html], ids=["text", "html"])
def test_everything_of_a_finding_is_told(view):
    """Its code, what it costs, its numbers with their units, how sure, and what to do."""
    told = view(a_diagnosis(DECODE)).replace("</b>", "").replace("<b>", "")

    for words in ("decode", "46% of the loop", "12 ms", "12 MB/s", "clear (0.84)", "train.py:31"):
        assert words in told


@pytest.mark.parametrize("view", [str, html], ids=["text", "html"])
def test_says_what_was_measured_and_what_it_cost(view):
    """Target, workers, machine, and each phase of the budget with the reason why it ended."""
    told = " ".join(view(a_diagnosis()).split())

    for words in ("train:loader", "2 workers", "2 cores", "torch 2.15.0", "27 s of at most 60 s"):
        assert words in told
    assert re.search(r"ladder.{0,250}12\.5 s", told)
    assert "nded: the answer is certain" in told
    assert HOW_SURE[:40] in told


@pytest.mark.parametrize("view", [str, html, lambda d: " ".join(d.plot().notes)])
def test_a_simulated_step_is_called_simulated(view):
    """On every output."""
    assert "simulated" in view(DIAGNOSES["simulated"])
    assert "simulated" not in view(a_diagnosis(DECODE, parts=False))


@pytest.mark.parametrize("view", [str, html, lambda d: " ".join(row(d))])
def test_a_rule_that_was_never_tried_says_so(view):
    """A cause that could not be planted is marked where it is shown, and only there."""
    assert NOT_TESTED in view(a_diagnosis(DECODE, COPY))
    assert NOT_TESTED not in view(a_diagnosis(DECODE, LOCK))


def row(diagnosis):
    return [text.get_text() for ax in diagnosis.plot().axes for text in ax.texts]


@pytest.mark.parametrize("verdict", [DECODE, HEALTHY], ids=["decode", "healthy"])
def test_what_is_said_of_a_simulated_step_is_said_with_it(verdict):
    """Whether a loader is too slow depends on the step, so the costs name it in one breath."""
    costs = [all_words(a_diagnosis(verdict, simulated_step_s=one))[0].costs for one in (0.1, None)]

    assert f"{costs[1]}, with a simulated step" == costs[0]


def test_a_share_is_said_to_be_of_what_it_is():
    """Of the loop, of an epoch, of the making of batches, or of how long the loop stalls."""
    begins = pl.DataFrame([(BEGIN, "stall", True, None, 0.2)], ACCOUNTING, orient="row")

    assert "an epoch's time" in str(replace(a_diagnosis(DECODE), accounts=begins))
    assert "an epoch's time" in str(a_diagnosis(Finding("start-up", "Starting late", 0.2)))
    assert "the loop's time" in str(a_diagnosis(DECODE))
    assert "in which batches are made" in str(a_diagnosis(DECODE, has_step=False))
    assert "the loop stalls 30% of the time" in str(a_diagnosis(UNKNOWN))
    assert "unexplained" not in str(a_diagnosis(Finding("inconclusive", "Too few", 0.001)))
    assert "costs" not in str(a_diagnosis(HEALTHY))


def test_a_value_and_its_unit_stand_on_one_line():
    """In the large title of the page, and in that of the picture."""
    title = "The loop waits for decoding: " + "it takes 2.9 ms " * 20
    told = a_diagnosis(Finding("decode", title.strip(), 0.5, {}, 0.9, ""), parts=False)
    lines = [text.get_text() for text in told.plot().texts]

    assert "2.9\N{NO-BREAK SPACE}ms" in html(told)
    assert "2.9 ms" not in html(told)
    assert sum("2.9 ms" in line for line in lines) > 1
    assert not any(line.startswith("ms") for line in lines)


def test_says_of_which_stalls_a_share_is():
    """Where waiting for a core was taken out of it, and only there."""
    shared = Finding("decode", "Decoding", 0.3, {"decode_exposed_share": 0.4}, 0.9, "")

    assert SHARES[:40] in str(a_diagnosis(HEALTHY, shared))
    assert SHARES[:40] not in str(a_diagnosis(HEALTHY))


def test_a_busy_machine_is_told_beside_how_sure_it_is():
    """Milliseconds are then the neighbours', too."""
    run = a_loop(LOOP, workers=2)
    pids = run.batches["pid"].unique().sort().to_list()
    use = {("core_busy_share", "0"): 1.0, ("core_busy_share", "1"): 1.0}
    use |= {("worker_cpu_share", str(pid)): 0.3 for pid in pids} | {("loop_cpu_share", "1"): 0.2}
    busy = replace(run, all_resources=resources_of(use, int(run.all_steps["end_ns"].max() / 1e9)))

    said = [all_words(replace(a_diagnosis(DECODE), run=one))[0].sure for one in (run, busy)]

    assert "other processes" not in said[0]
    beside = "; other processes had 60% of the cores: read shares, not milliseconds"
    assert said[1] == f"{said[0]}{beside}"


def test_what_is_missing_is_no_number():
    """Evidence that was not measured is said to be that, and never 0."""
    evidence = {"lock_s": None, "fetch_s": float("nan")}
    (found,) = all_words(a_diagnosis(Finding("lock", "", 0.1, evidence), parts=False))

    assert "lock not measured · fetch not measured" == found.because


def test_an_interval_stands_beside_its_number():
    """Low and high end are no numbers of their own; an end without its number is."""
    evidence = {"a_factor": 2.0, "a_factor_low": 1.5, "a_factor_high": 2.5, "b_low": 3}
    (found,) = all_words(a_diagnosis(Finding("lock", "", 0.1, evidence), parts=False))

    assert "a 2.0× (1.5× to 2.5×) · b low 3" == found.because


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
    """In HTML no name is markup; in a terminal none controls it."""
    diagnosis = DIAGNOSES["hostile"]

    assert "<img" not in html(diagnosis)
    assert "\x1b" not in html(diagnosis) + str(diagnosis)


def test_lines_of_a_terminal_are_not_too_long():
    """Words are never broken, so that a path can be copied; sentences are."""
    lines = str(DIAGNOSES["three findings"]).splitlines()

    assert max(map(len, lines)) <= face.WIDTH


@pytest.mark.parametrize("kind", face.PICTURE_SOURCES)
def test_other_pictures_are_those_of_its_parts(kind):
    """The run's, the ladder's and the flame's own; a sheet says when it was not measured."""
    diagnosis = DIAGNOSES["three findings"]
    own = getattr(diagnosis, face.PICTURE_SOURCES[kind]).plot(kind)

    assert own.title == diagnosis.plot(kind).title
    assert "the verdict stands without" in DIAGNOSES["many"].plot(kind).title
    assert "stands" not in DIAGNOSES["inconclusive, nothing measured"].plot(kind).title


class TestPanel:
    def test_shows_one_picture_at_a_time(self):
        """Choosing another one draws it."""
        panel = DIAGNOSES["three findings"].panel()
        (choice,) = panel.children[0].children
        before = panel.children[1].value

        choice.value = "ladder"

        assert before != panel.children[1].value
        assert DIAGNOSES["three findings"].plot("ladder").title in panel.children[1].value

    @pytest.mark.slow
    def test_begins_with_a_picture_that_says_more_than_the_verdict(self):
        """The findings are the page over it; without a run there is nothing else."""
        begins = {name: DIAGNOSES[name].panel().children[0].children[0].value for name in DIAGNOSES}

        assert begins["three findings"] == "stages"
        assert begins["many"] == "findings"

    def test_offers_only_what_was_measured(self):
        """Without run, ladder and stacks there are only the findings."""
        panel = DIAGNOSES["many"].panel()

        assert ["findings"] == [value for _, value in panel.children[0].children[0].options]

    def test_has_a_picture_for_places_without_widgets(self):
        """The verdict itself."""
        assert "image/png" in DIAGNOSES["healthy"].panel()._repr_mimebundle_()
