"""The pictures and panels of each result: the names that there are, and what each says."""

from __future__ import annotations

import re

import pytest
from support.chart_texts import words
from surface.built import BUILT, EACH_KIND, built

import stallscope as ss
from stallscope.views.document import html

OFFERED = re.compile(r"'([\w ]+)': ")


def kinds(call) -> list[str]:
    """The names that the error over an unknown one lists, in one sentence that repeats it."""
    with pytest.raises(ss.StallscopeError, match=r"no (picture|panel) 'no such'") as error:
        call("no such")
    return OFFERED.findall(str(error.value))


@pytest.mark.parametrize("name", EACH_KIND)
def test_names(name, golden):
    """The same pictures and panels, the default first."""
    result = built(name)

    found = {"plot": kinds(result.plot), "panel": kinds(result.panel)}
    golden.json(f"pictures/{name}.json", found)


@pytest.mark.parametrize("name", BUILT)
def test_words(name, golden):
    """What is written on each picture; without a name the first one comes."""
    result = built(name)
    drawn = {kind: sorted(words(result.plot(kind))) for kind in kinds(result.plot)}

    assert all(drawn.values())
    assert result.plot().title == result.plot(next(iter(drawn))).title
    golden.json(f"words/{name}.json", drawn)


@pytest.mark.parametrize("name", ["storage", "layouts"])
def test_panel_of_pictures_shows_the_chosen_one(name):
    """A result without a panel of its own offers its pictures."""
    result = built(name)
    for kind in kinds(result.plot):
        (choice,), image = result.panel(kind).children[0].children, result.panel(kind).children[1]

        assert kind == choice.value
        assert html("alt='{}'", result.plot(kind).title) in image.value
