"""The pictures and panels of each result: the names that there are, and that each draws."""

from __future__ import annotations

import re

import pytest
from support.chart_texts import texts
from surface.built import EACH_KIND, built

import stallscope as ss

OFFERED = re.compile(r"'([\w ]+)': ")


def kinds(call) -> list[str]:
    """The names that the error over an unknown one lists."""
    with pytest.raises(ss.StallscopeError) as error:
        call("no such")
    return OFFERED.findall(str(error.value))


@pytest.mark.parametrize("name", EACH_KIND)
def test_names(name, golden):
    """The same pictures and panels, the default first."""
    result = built(name)

    found = {"plot": kinds(result.plot), "panel": kinds(result.panel)}
    golden.json(f"pictures/{name}.json", found)


@pytest.mark.parametrize("name", EACH_KIND)
def test_every_picture_draws(name):
    """Each has something on it; without a name the first one comes."""
    result = built("run_with_resources" if name == "run" else name)
    offered = kinds(result.plot)

    drawn = {kind: words(result.plot(kind)) for kind in offered}

    assert all(drawn.values())
    assert words(result.plot()) == drawn[offered[0]]


def words(figure) -> list[str]:
    """What is written on a picture."""
    return [text.get_text() for text in texts(figure)]
