"""A planted cause is truly the cause: with it the loop starves, without it the loop does not.

By arithmetic, for machines of several sizes.
"""

from dataclasses import fields
from itertools import product
from random import Random

import pytest
import torch

import stallscope as ss
from planted import ASKED, NOT_PLANTED, PAIRS, PLANTED, loader, plant, plant_pair
from planted.planting import together
from planted.recipe import slowdown
from planted.sound import HEALTHY, Given, base
from stallscope.diagnose.causes import CAUSES
from stallscope.errors import ArgumentError, UnsupportedError

MEASURED = {"sending", "oversubscription"}
"""What these take is nothing that arithmetic knows."""
CORES = (1, 2, 4, 16, 64)
HEALTHY_AGAIN = 1.1
"""Times its step that a loop takes at most in which nothing is wrong."""
FEWEST_CORES = {"few-cores": 2}
LEAST = {"too-little-prefetch": 1.3, "few-cores": 1.3}
"""How slow the loop is at least where it was to be twice as slow; of all others 1.95 times."""
CHANGES = {
    "storage-latency": {"read_s"},
    "storage-bandwidth": {"bytes_per_s"},
    "decode": {"decodes"},
    "one-transform": {"ops", "parse_s"},
    "transforms": {"ops"},
    "collate": {"collate_s"},
    "sending": {"sending", "values"},
    "too-few-workers": {"workers"},
    "idle-workers": {"shards"},
    "few-cores": {"worker_cores"},
    "cpu-saturated": {"parse_s", "ops", "collate_s"},
    "oversubscription": {"threads"},
    "main-process": {"workers", "logging_s", "sampler_s"},
    "too-little-prefetch": {"prefetch"},
    "slow-samples": {"slow"},
    "slow-worker": {"slow_worker_s"},
    "start-up": {"persistent"},
    "lock": {"is_locked"},
}
"""What is different with the cause, of each."""


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

    @pytest.mark.parametrize("code", sorted(PLANTED))
    def test_is_all_that_is_changed(self, code):
        """The loops with and without it differ in nothing else."""
        for seed in range(4):
            without, spoilt = two(code, seed=seed)
            changed = {
                field.name
                for field in fields(without)
                if getattr(without, field.name) != getattr(spoilt, field.name)
            }

            assert changed
            assert changed <= CHANGES[code]

    @pytest.mark.parametrize("code", sorted({*PLANTED} - MEASURED))
    def test_can_be_planted_near_the_threshold(self, code):
        """A weak one slows its loop down as much as it was asked to, within a tenth."""
        for strength in (1.25, 1.5):
            _, spoilt = two(code, strength=strength, cores=4)

            assert slowdown(spoilt, 4) == pytest.approx(strength, rel=0.1)

    def test_is_planted_or_said_not_to_be(self):
        """Every cause that can be named is planted, asked, or stands with those never tested."""
        named = {*CAUSES} - {"healthy", "inconclusive"}

        assert {*PLANTED} | {*NOT_PLANTED} | {*ASKED} == named
        assert {code for code in named if not CAUSES[code].tested} == {*NOT_PLANTED}

    def test_threads_that_cost_nothing_are_refused(self):
        """Where many threads cost too little, the error says what they cost, and what to do."""
        with pytest.raises(UnsupportedError, match=r"here a batch takes 5\.0 ms .* 50 ms with 16"):
            two("oversubscription", strength=20.0)


class TestPairs:
    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    def test_the_first_costs_more(self, pair):
        """Taking the first of the causes away gains more than taking away the second."""
        first, second = (PLANTED[code] for code in pair)
        for cores in (2, 16):
            draw = Random("+".join(pair))
            found = together(first, second, base(draw, cores), Given(draw, cores, 2.2))
            both = slowdown(found.both.spoilt, cores)

            assert slowdown(found.second, cores) < slowdown(found.first, cores) <= both * 1.01
            assert 1.2 < slowdown(found.second, cores)
            assert slowdown(found.both.without, cores) < HEALTHY_AGAIN

    def test_not_all_go_together(self):
        """A pair that is none is refused, with those that there are."""
        with pytest.raises(ArgumentError, match=r"take storage-latency \+ collate,"):
            plant_pair("collate", "collate")

    def test_both_are_told(self):
        """A planted pair names its causes, the worse one first, and has neither when healthy."""
        planted = plant_pair("one-transform", "collate", seed=1)

        assert planted.causes == ("one-transform", "collate")
        assert planted.taken_away.truth == "healthy"
        assert planted.recipe.collate_s > planted.taken_away.recipe.collate_s


class TestHealthy:
    @pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.__name__)
    def test_nothing_is_wrong(self, kind):
        """The loop takes hardly longer than its steps."""
        for cores, seed in product(CORES, range(2)):
            draw = Random(seed)

            assert slowdown(kind(base(draw, cores), draw), cores) < 1.05

    def test_seeds_go_through_the_kinds(self):
        """As many seeds as there are kinds plant all of them."""
        steps = {plant("healthy", seed).recipe for seed in range(len(HEALTHY))}

        assert len(steps) == len(HEALTHY)


class TestPlant:
    def test_a_seed_is_always_the_same_loop(self):
        """The same seed gives the same numbers, another one others."""
        assert plant("lock", 5).recipe == plant("lock", 5).recipe
        assert plant("lock", 5).recipe != plant("lock", 6).recipe

    def test_what_cannot_be_planted_is_said(self):
        """An unknown cause is refused in one sentence that lists the known ones."""
        with pytest.raises(ArgumentError, match="'copy' cannot be planted: give one of healthy, "):
            plant("copy")

    def test_a_cause_has_to_slow_the_loop(self):
        """A strength of 1 would be no cause."""
        with pytest.raises(ArgumentError, match="strength=1: give a number above 1"):
            plant("lock", strength=1)

    def test_the_step_is_called_simulated(self):
        """The step is one that every output calls simulated, but where it really computes."""
        simulated = type(ss.simulated_step(0.0))

        assert isinstance(plant("collate").step, simulated)
        assert all(isinstance(plant("main-process", seed).step, simulated) for seed in range(6))
        computing = [plant("cpu-saturated", seed) for seed in range(6)]
        assert all(isinstance(one.step, simulated) is not one.recipe.busy_step for one in computing)
        assert {one.recipe.busy_step for one in computing} == {True, False}

    def test_is_a_target_by_its_name(self):
        """`planted:slow_worker` can be given wherever a target can."""
        target = ss.target("planted:slow_worker")

        assert target.loader.dataset.recipe.slow_worker_s > 0
        assert target.step is not None

    def test_without_the_cause_the_samples_are_the_same(self):
        """Taking a cause away changes no sample, unless its size was the cause."""
        for code in ("storage-bandwidth", "slow-samples", "lock", "start-up"):
            planted = plant(code, 3)
            assert torch.equal(planted.loader.dataset[1], planted.taken_away.loader.dataset[1])
