"""One quantity has one number on every page that shows it: what stalls, what holds the stalls."""

from __future__ import annotations

import json
import re

import pytest
from support.virtual_loop import a_loop
from surface.built import LOOP

import stallscope as ss
from stallscope.model.loop_time import loop_breakdown
from stallscope.units import share
from stallscope.views.diagnosis import as_json

LOADERS = {
    "one transform": LOOP,
    "decoding": {"fetch": 2.0, "decode": 90.0, "Crop": 4.0},
    "many transforms": dict.fromkeys(("Alpha", "Beta", "Gamma", "Delta", "Epsilon"), 18.0),
    "reading": {"fetch": 90.0, "decode": 24.0},
    "collate": {"decode": 5.0, "collate": 90.0},
}
WORDS = {
    "fetch": "fetch|[Rr]eading",
    "decode": "decode|[Dd]ecoding",
    "collate": "collate|Collating",
}
"""What a part is called, where that is not its name."""
PICTURES = ("exposed", "timeline", "stages", "waits")


@pytest.fixture(scope="module", params=LOADERS)
def pages(request):
    """A run of a loader, and every page of it: text, HTML, JSON and the pictures' titles."""
    run = a_loop(LOADERS[request.param], workers=2)
    diagnosis = ss.diagnose(run)
    found = {f"picture {kind}": run.plot(kind).title for kind in PICTURES}
    for name, result in (("run", run), ("diagnosis", diagnosis)):
        page = result._repr_mimebundle_()["text/html"]
        found |= {f"{name}, text": str(result), f"{name}, page": re.sub("<[^>]+>", " ", page)}
    return run, diagnosis, {name: " ".join(text.split()) for name, text in found.items()}


def test_of_the_stalls(pages):
    """The share of the loop's time in them."""
    run, diagnosis, texts = pages
    time = loop_breakdown(run.steps(), run.stalls())
    said = {
        (name, one)
        for name, text in texts.items()
        for one in re.findall(r"\bstalls? (\d+%)|(\d+%) stall\b", text)
    }

    assert {share(time.stall_share)} == {"".join(one) for _, one in said}
    assert {"run, text", "diagnosis, text", "diagnosis, page"} <= {name for name, _ in said}
    evidence = json.loads(as_json(diagnosis))["findings"][0]["evidence"]
    assert evidence["stall_share"] == pytest.approx(time.stall_share)


def test_of_what_holds_them(pages):
    """Of each part: in the table, the verdict, its evidence, and the sentence of the run."""
    run, diagnosis, texts = pages
    texts = texts | {"json": as_json(diagnosis)}
    wrong, seen = {}, set()
    for part, exposed in run.exposed().select("part", "share").iter_rows():
        name = f"(?:{WORDS.get(part, re.escape(part))})"
        ways = (
            rf"\b{name} is the bottleneck: (\d+%) of the stall time",
            rf"\b{name} (?:alone )?(\d+%)[,)]",
            rf"(\d+%) of that is {name}\b",
            rf"of that is \d+% \w+ and (\d+%) {name}\b",
        )
        for page, text in texts.items():
            numbers = {one for way in ways for one in re.findall(way, text)}
            seen |= {page} if numbers else set()
            wrong |= {(page, part): numbers} if numbers - {share(exposed)} else {}

    assert not wrong
    assert {"run, text", "diagnosis, text", "diagnosis, page", "picture exposed", "json"} <= seen
