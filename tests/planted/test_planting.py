"""A planted loop differs from its healthy one in its cause alone.

Whether it starves is measured by `benchmarks/verdicts.py`, with a stopwatch before each verdict.
"""

from dataclasses import fields
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest
import torch

from planted import ASKED, NOT_PLANTED, PLANTED, loader, plant
from planted.loader import build
from planted.recipe import Recipe, SlowSamples
from planted.sound import Given, base
from stallscope.verbs.diagnose.causes import CAUSES


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("storage-latency", {"read_s"}),
        ("storage-bandwidth", {"bytes_per_s"}),
        ("collate", {"collate_s"}),
        ("lock", {"is_locked"}),
        ("idle-workers", {"shards"}),
        ("too-little-prefetch", {"prefetch"}),
        ("slow-samples", {"slow"}),
        ("slow-worker", {"slow_worker_s"}),
        ("start-up", {"persistent"}),
    ],
)
def test_with_the_cause_nothing_else_differs(code, changed):
    draw = Random(code)
    two = PLANTED[code](base(draw, 2), Given(draw, 2, 2.0))

    assert changed == {
        each.name
        for each in fields(Recipe)
        if getattr(two.without, each.name) != getattr(two.spoilt, each.name)
    }


def test_each_cause_is_planted_or_listed_as_untested():
    named = {*CAUSES} - {"healthy", "inconclusive"}

    assert {*PLANTED} | {*NOT_PLANTED} | {*ASKED} == named
    assert {code for code in named if not CAUSES[code].tested} == {*NOT_PLANTED}


def test_a_seed_is_always_the_same_loop():
    assert plant("lock", 5).recipe == plant("lock", 5).recipe
    assert plant("lock", 5).recipe != plant("lock", 6).recipe


def test_without_the_cause_the_samples_are_the_same():
    """Taking a cause away changes no sample, unless its size was the cause."""
    for code in ("storage-bandwidth", "slow-samples", "lock", "start-up"):
        planted = plant(code, 3)
        assert torch.equal(planted.loader.dataset[1], planted.taken_away.loader.dataset[1])


def test_samples_wait_as_planted(monkeypatch):
    """One worker waits longer, and one sample in so many."""
    waited = []
    monkeypatch.setattr(loader, "waiting", waited.append)
    slow = SlowSamples(4, 2.0, computes=False)
    data = build(Recipe(0.01, 4, workers=2, read_s=0.5, slow_worker_s=8.0, slow=slow))[0].dataset
    for worker in (0, 1):
        monkeypatch.setattr(loader, "get_worker_info", lambda n=worker: SimpleNamespace(id=n))
        for index in range(4):
            data[index]

    assert sorted(waited[:4]) == [8.5, 8.5, 8.5, 10.5]
    assert sorted(waited[4:]) == [0.5, 0.5, 0.5, 2.5]


@pytest.mark.parametrize("every", [7, 50])
def test_slow_samples_have_no_rhythm(every):
    recipe = Recipe(0.01, 4, 0, slow=SlowSamples(every, 1.0, computes=False))
    slow = [index for index in range(20_000) if recipe.is_slow(index)]
    distances = {later - earlier for earlier, later in pairwise(slow)}

    assert len(slow) == pytest.approx(20_000 / every, rel=0.05)
    assert len(distances) > every / 2
