"""The pictures and panels of each result: their names and texts."""

import re

import pytest
from support.chart_texts import words
from surface.built import BUILT, EACH_KIND, built

import stallscope as ss
from stallscope.views.document import html

OFFERED = re.compile(r"'([\w ]+)': ")


def kinds(call) -> list[str]:
    """Return the names that the error for an unknown name lists."""
    with pytest.raises(ss.StallscopeError, match=r"no (picture|panel) 'no such'") as error:
        call("no such")
    return OFFERED.findall(str(error.value))


@pytest.mark.parametrize("name", EACH_KIND)
def test_names(name, golden):
    """The pictures and panels have the same names; the default comes first."""
    result = built(name)

    offered = {"plot": kinds(result.plot), "panel": kinds(result.panel)}
    golden.json(f"pictures/{name}.json", offered)


@pytest.mark.parametrize("name", BUILT)
def test_words(name, golden):
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
