"""A planted cause is truly the cause: with it the loop starves, without it the loop does not.

By arithmetic, for machines of several sizes.
"""

from itertools import product
from random import Random

import pytest
import torch

from planted import ASKED, NOT_PLANTED, PAIRS, PLANTED, loader, plant
from planted.planting import together
from planted.recipe import slowdown
from planted.sound import HEALTHY, Given, base
from stallscope.verbs.diagnose.causes import CAUSES

MEASURED = {"sending", "oversubscription"}
"""What these take is nothing that arithmetic knows."""
CORES = (1, 2, 16)
HEALTHY_AGAIN = 1.1
"""Times its step that a loop takes at most in which nothing is wrong."""
FEWEST_CORES = {"few-cores": 2}
LEAST = {"too-little-prefetch": 1.3, "few-cores": 1.3}
"""How slow the loop is at least where it was to be twice as slow; of all others 1.95 times."""


@pytest.fixture(autouse=True)
def a_known_machine(monkeypatch):
    """Decoding takes 5 ms; threads and large batches take ten times what others do."""
    monkeypatch.setattr(loader, "decode_s", lambda: 0.005)
    monkeypatch.setattr(loader, "batch_s", _takes)


def _takes(recipe):
    return 0.05 if recipe.threads > 1 or recipe.values > 192 else 0.005


def two(code, *, seed=0, cores=2, strength=2.0):
    """The recipe of a loop without a cause and with it, on a machine with so many cores."""
    draw = Random(f"{code} {seed}")
    return PLANTED[code](base(draw, cores), Given(draw, cores, strength))


class TestEveryCause:
    @pytest.mark.parametrize("code", sorted({*PLANTED} - MEASURED))
    def test_is_what_makes_the_loop_starve(self, code):
        """With it a step takes about twice as long as it should; without it, hardly longer."""
        fewest = FEWEST_CORES.get(code, 1)
        for cores, seed in product([cores for cores in CORES if cores >= fewest], range(2)):
            without, spoilt = two(code, seed=seed, cores=cores)

            assert slowdown(without, cores) < HEALTHY_AGAIN
            assert slowdown(spoilt, cores) > LEAST.get(code, 1.95)

    @pytest.mark.parametrize("code", sorted(MEASURED))
    def test_what_is_measured_decides_the_step(self, code):
        """Where only measuring tells what it takes, the step is that, by the strength."""
        without, spoilt = two(code, strength=2.5)

        assert spoilt.step_s == without.step_s == 0.05 / 2.5
        assert slowdown(without, 2) < HEALTHY_AGAIN

    @pytest.mark.parametrize("code", sorted({*PLANTED} - MEASURED))
    def test_can_be_planted_near_the_threshold(self, code):
        for strength in (1.25, 1.5):
            _, spoilt = two(code, strength=strength, cores=4)

            assert slowdown(spoilt, 4) == pytest.approx(strength, rel=0.1)

    def test_is_planted_or_said_not_to_be(self):
        """Every cause that can be named is planted, asked, or stands with those never tested."""
        named = {*CAUSES} - {"healthy", "inconclusive"}

        assert {*PLANTED} | {*NOT_PLANTED} | {*ASKED} == named
        assert {code for code in named if not CAUSES[code].tested} == {*NOT_PLANTED}


class TestPairs:
    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    def test_the_first_costs_more(self, pair):
        first, second = (PLANTED[code] for code in pair)
        for cores in (2, 16):
            draw = Random("+".join(pair))
            found = together(first, second, base(draw, cores), Given(draw, cores, 2.2))
            both = slowdown(found.both.spoilt, cores)

            assert slowdown(found.second, cores) < slowdown(found.first, cores) <= both * 1.01
            assert 1.2 < slowdown(found.second, cores)
            assert slowdown(found.both.without, cores) < HEALTHY_AGAIN


class TestHealthy:
    @pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.__name__)
    def test_nothing_is_wrong(self, kind):
        for cores, seed in product(CORES, range(2)):
            draw = Random(seed)

            assert slowdown(kind(base(draw, cores), draw), cores) < 1.05


class TestPlant:
    def test_a_seed_is_always_the_same_loop(self):
        assert plant("lock", 5).recipe == plant("lock", 5).recipe
        assert plant("lock", 5).recipe != plant("lock", 6).recipe

    def test_without_the_cause_the_samples_are_the_same(self):
        """Taking a cause away changes no sample, unless its size was the cause."""
        for code in ("storage-bandwidth", "slow-samples", "lock", "start-up"):
            planted = plant(code, 3)
            assert torch.equal(planted.loader.dataset[1], planted.taken_away.loader.dataset[1])
