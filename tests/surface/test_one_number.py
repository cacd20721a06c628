"""Each share of the stalls has the same number on every page that shows it."""

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
"""Patterns of the parts that texts call by another word."""
PICTURES = ("exposed", "timeline", "stages", "waits")


@pytest.fixture(scope="module", params=LOADERS)
def pages(request):
    """Return a run, its diagnosis, and the words of every text, page and picture title."""
    run = a_loop(LOADERS[request.param], workers=2)
    diagnosis = ss.diagnose(run)
    texts = {f"picture {kind}": run.plot(kind).title for kind in PICTURES}
    for name, result in (("run", run), ("diagnosis", diagnosis)):
        page = result._repr_mimebundle_()["text/html"]
        texts |= {f"{name}, text": str(result), f"{name}, page": re.sub("<[^>]+>", " ", page)}
    return run, diagnosis, {name: " ".join(text.split()) for name, text in texts.items()}


def test_share_of_the_stalls(pages):
    run, diagnosis, texts = pages
    time = loop_breakdown(run.steps(), run.stalls())
    shares = {
        (name, match)
        for name, text in texts.items()
        for match in re.findall(r"\bstalls? (\d+%)|(\d+%) stall\b", text)
    }

    assert {share(time.stall_share)} == {"".join(match) for _, match in shares}
    assert {"run, text", "diagnosis, text", "diagnosis, page"} <= {name for name, _ in shares}
    evidence = json.loads(as_json(diagnosis))["findings"][0]["evidence"]
    assert evidence["stall_share"] == pytest.approx(time.stall_share)


def test_share_of_each_part(pages):
    run, diagnosis, texts = pages
    texts = texts | {"json": as_json(diagnosis)}
    wrong, seen = {}, set()
    parts = run.exposed()
    together = parts.filter(kind="transform")["share"].sum()
    shares = [*parts.select("part", "share").iter_rows(), ("transforms", together)]
    for part, exposed in shares:
        name = f"(?:{WORDS.get(part, re.escape(part))})"
        patterns = (
            rf"\b{name} (?:is|are) the bottleneck: (\d+%) of the stall time",
            rf"\b{name} (?:alone )?(\d+%)[,)]",
            rf"(\d+%) of that is {name}\b",
            rf"of that is \d+% \w+ and (\d+%) {name}\b",
        )
        for page, text in texts.items():
            numbers = {number for pattern in patterns for number in re.findall(pattern, text)}
            seen |= {page} if numbers else set()
            wrong |= {(page, part): numbers} if numbers - {share(exposed)} else {}

    assert not wrong
    assert {"run, text", "diagnosis, text", "diagnosis, page", "picture exposed", "json"} <= seen
