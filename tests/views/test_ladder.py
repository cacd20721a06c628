"""The ladder's picture, table and panel."""

from __future__ import annotations

import pytest
from support.build_ladder import a_ladder
from support.chart_texts import check_texts, texts

from stallscope.ladder.result import AS_IT_IS, BATCHES, FETCHED, RUNGS, TRANSFORMED, WARM

FULL = {AS_IT_IS: 0.4, WARM: 0.4, FETCHED: 0.2, TRANSFORMED: 0.15, BATCHES: 0.1}
LADDERS = {
    "full": a_ladder(FULL, noise=0.2, start_noise=0.1),
    "with a GPU": a_ladder(
        {rung: 0.5 - 0.06 * place for place, rung in enumerate(RUNGS)},
        busy={rung: 0.2 + 0.1 * place for place, rung in enumerate(RUNGS)},
        device="NVIDIA H200",
    ),
    "simulated": a_ladder(FULL, simulated_step_s=0.1),
    "no step": a_ladder({AS_IT_IS: 0.4, FETCHED: 0.2}, has_step=False),
    "two": a_ladder({AS_IT_IS: 1e-6, BATCHES: 1e-7}),
    "one": a_ladder({AS_IT_IS: 400.0}, starts=1, blocks=1),
    "none": a_ladder({}),
    "alike": a_ladder(dict.fromkeys(FULL, 0.1)),
    "alike on a simulated device": a_ladder(
        dict.fromkeys(RUNGS, 0.1),
        simulated_step_s=0.1,
        device="simulated device behind the host",
    ),
}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("name", LADDERS)
def test_every_text_of_the_picture_has_a_place_of_its_own(name):
    """No text leaves the sheet, and none lies on another."""
    check_texts(LADDERS[name].plot())


def test_no_word_under_a_bar_is_broken():
    """Also where there are seven of them; and the device is not denied."""
    figure = LADDERS["alike on a simulated device"].plot()
    under = [text.get_text() for text in texts(figure) if "without" in text.get_text()]

    assert 6 == len(under)
    assert all("significant" in text for text in under)
    assert any("a timer of 100 ms on a simulated device" in note for note in figure.notes)


@pytest.mark.parametrize("name", LADDERS)
def test_the_table_says_the_same(name):
    """In a terminal and in a notebook, the answer comes first."""
    ladder = LADDERS[name]
    title = ladder.plot().title

    assert str(ladder).startswith(title)
    assert title in ladder._repr_mimebundle_()["text/html"]


def test_what_comes_from_a_user_is_escaped():
    """A note holds names of the user's."""
    html = a_ladder(FULL, notes=(HOSTILE,))._repr_mimebundle_()["text/html"]

    assert HOSTILE not in html


class TestPanel:
    def test_compares_any_two_rungs(self):
        """Also the other way round, and more than once."""
        panel = LADDERS["simulated"].panel()
        upper, lower = panel.children[0].children
        told = panel.children[2]

        assert "is 4.0× as fast as &#39;as it is&#39;" in told.value
        upper.value = "fetched samples in memory"
        assert "2.0× as fast as &#39;as it is&#39;" in told.value
        lower.value = "storage warm"
        assert "2.0× as fast as &#39;storage warm&#39;" in told.value
        lower.value = upper.value
        assert "two different rungs" in told.value

    def test_has_a_picture_for_places_without_widgets(self):
        """The ladder itself."""
        assert "image/png" in LADDERS["full"].panel()._repr_mimebundle_()

    def test_says_when_there_is_nothing_to_compare(self):
        """One rung is no choice."""
        assert "Only the loader as it is" in LADDERS["one"].panel().children[0].value
