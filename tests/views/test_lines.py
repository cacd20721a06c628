"""The picture, the listings and the panel of lines."""

from __future__ import annotations

import pytest
from support.build_lines import PLANTED, some_lines
from support.chart_texts import check_texts

from stallscope.lines.result import in_order
from stallscope.views.lines import listing

HOSTILE = "<img src=x onerror=alert(1)>"
LONG = {
    "f": [
        ("def f():", None),
        *[(f"    x{line} = 0", (0.0001, 0.0001)) for line in range(60)],
        ("    slow()", (0.5, 0.5)),
        *[(f"    y{line} = 0", (0.0001, 0.0001)) for line in range(40)],
    ]
}
MANY = {
    f"Module{n}.very_long_method_name_of_mine": [("x = " + "1 + " * 60, (0.05, 0.05))]
    for n in range(9)
}
LINES = {
    "usual": some_lines(),
    "many": some_lines(MANY, notes=("a note",)),
    "one": some_lines({"f": [("return slow()", (1.0, 1.0))]}),
    "none": some_lines({}),
    "no source": some_lines(why_not="it was made from text"),
    "not measured": some_lines({}, samples=0, wall_s=0.0, looks=0),
    "hostile": some_lines({HOSTILE: [(HOSTILE + "\x1b[31m$x$", (0.5, 0.5))]}, notes=(HOSTILE,)),
}


@pytest.mark.parametrize("name", LINES)
def test_every_text_of_the_picture_has_a_place_of_its_own(name):
    """No text leaves the sheet, and none lies on another."""
    check_texts(LINES[name].plot())


@pytest.mark.parametrize("name", sorted(set(LINES) - {"hostile"}))
def test_the_text_and_the_page_say_the_same(name):
    """The answer comes first."""
    title = LINES[name].plot().title

    assert str(LINES[name]).startswith(title)
    assert LINES[name]._repr_mimebundle_()["text/html"].count("<details open") <= 1


def test_what_comes_from_a_user_is_escaped():
    """A function, a line, a note; in a terminal nothing controls it."""
    html = LINES["hostile"]._repr_mimebundle_()["text/html"]

    assert "<img" not in html
    assert "\x1b" not in str(LINES["hostile"])
    panel = LINES["hostile"].panel()
    assert all("<img" not in child.value for child in panel.children[1:])


def test_a_listing_has_heat_and_a_percentage():
    """The hottest line's ground is filled, and it is in bold."""
    html = LINES["usual"]._repr_mimebundle_()["text/html"]

    hot = next(row for row in html.split("<tr ") if ">hits = conv2d" in row)
    assert "linear-gradient" in hot
    assert "100.0%" in hot
    assert "bold" in hot
    assert "60%" in hot


class TestAListing:
    def test_is_short_around_the_hot_lines(self):
        """What is left out is counted."""
        lines = some_lines(LONG)

        found = listing(lines, in_order(lines)[0])
        told = [one if isinstance(one, str) else one.source.strip() for one in found]
        assert "slow()" in told
        assert "def f():" == told[0]
        assert "… 56 lines not shown" in told
        assert len(told) < 12
        assert "… 38 lines not shown" in str(lines)

    def test_of_a_short_function_is_whole(self):
        """Also what never ran."""
        lines = some_lines()

        assert len(PLANTED["Mask.dilate"]) == len(listing(lines, in_order(lines)[0]))

    def test_without_source_has_its_lines(self):
        """With their times."""
        lines = LINES["no source"]

        assert [3, 4] == [one.line for one in listing(lines, in_order(lines)[0])]


class TestPanel:
    def test_shows_the_function_that_is_chosen(self):
        """The one with the hottest line is the first."""
        panel = LINES["usual"].panel()
        (choice,) = panel.children[0].children
        told = panel.children[2]

        assert "hits = conv2d" in told.value
        choice.value = 1
        assert "return self.t(index)" in told.value

    def test_has_a_picture_for_places_without_widgets(self):
        """The hot lines."""
        assert "image/png" in LINES["usual"].panel()._repr_mimebundle_()

    def test_says_when_there_is_nothing_to_choose(self):
        """No function is no choice."""
        assert "No line was measured" in LINES["none"].panel().children[0].value
