"""A planted cause is the cause: with it the loop starves, without it the loop does not.

By arithmetic, for machines of several sizes; a loader costs what its recipe says, and real workers
can run it. How often a verdict is right is for `benchmarks/verdicts.py` to say: a busy machine
changes what is found.
"""

from itertools import pairwise, product
from random import Random
from types import SimpleNamespace

import pytest
import torch

import planted
import stallscope as ss
from planted import ASKED, HEALTHY_CODE, NOT_PLANTED, PAIRS, PLANTED, loader, plant
from planted.loader import build
from planted.planting import together
from planted.recipe import Recipe, SlowSamples, slowdown
from planted.sound import HEALTHY, Given, base
from stallscope.verbs.diagnose.causes import CAUSES

MEASURED = {"sending", "oversubscription"}
"""Causes whose cost arithmetic cannot predict."""
CORES = (1, 2, 16)
HEALTHY_AGAIN = 1.1
"""Limit of a healthy loop's duration, relative to its step."""
FEWEST_CORES = {"few-cores": 2}
LEAST = {"too-little-prefetch": 1.3, "few-cores": 1.3}
"""Least slowdown of loops that aim at 2; of all others 1.95."""


@pytest.fixture(autouse=True)
def a_known_machine(monkeypatch):
    """Replace measured times: decoding takes 5 ms, threads and large batches ten times the rest."""
    monkeypatch.setattr(loader, "decode_s", lambda: 0.005)
    monkeypatch.setattr(loader, "batch_s", _takes)


def _takes(recipe):
    return 0.05 if recipe.threads > 1 or recipe.values > 192 else 0.005


def two(code, *, seed=0, cores=2, strength=2.0):
    """Return the recipes of a loop without a cause and with it, on a machine with these cores."""
    draw = Random(f"{code} {seed}")
    return PLANTED[code](base(draw, cores), Given(draw, cores, strength))


class TestEveryCause:
    @pytest.mark.parametrize("code", sorted({*PLANTED} - MEASURED))
    def test_is_what_makes_the_loop_starve(self, code):
        """With the cause a step takes about twice its time; without it, hardly longer."""
        fewest = FEWEST_CORES.get(code, 1)
        for cores, seed in product([cores for cores in CORES if cores >= fewest], range(2)):
            without, spoilt = two(code, seed=seed, cores=cores)

            assert slowdown(without, cores) < HEALTHY_AGAIN
            assert slowdown(spoilt, cores) > LEAST.get(code, 1.95)

    @pytest.mark.parametrize("code", sorted(MEASURED))
    def test_a_measured_cost_sets_the_step(self, code):
        """A cause whose cost is only measured sets the step to that cost, by the strength."""
        without, spoilt = two(code, strength=2.5)

        assert spoilt.step_s == without.step_s == 0.05 / 2.5
        assert slowdown(without, 2) < HEALTHY_AGAIN

    @pytest.mark.parametrize("code", sorted({*PLANTED} - MEASURED))
    def test_can_be_planted_near_the_threshold(self, code):
        for strength in (1.25, 1.5):
            _, spoilt = two(code, strength=strength, cores=4)

            assert slowdown(spoilt, 4) == pytest.approx(strength, rel=0.1)

    def test_is_planted_or_listed_as_untested(self):
        """Every cause is planted, asked in a question, or listed as never tested."""
        named = {*CAUSES} - {"healthy", "inconclusive"}

        assert {*PLANTED} | {*NOT_PLANTED} | {*ASKED} == named
        assert {code for code in named if not CAUSES[code].tested} == {*NOT_PLANTED}


class TestPairs:
    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    def test_the_first_costs_more(self, pair):
        first, second = (PLANTED[code] for code in pair)
        for cores in (2, 16):
            draw = Random("+".join(pair))
            loops = together(first, second, base(draw, cores), Given(draw, cores, 2.2))
            both = slowdown(loops.both.spoilt, cores)

            assert slowdown(loops.second, cores) < slowdown(loops.first, cores) <= both * 1.01
            assert 1.2 < slowdown(loops.second, cores)
            assert slowdown(loops.both.without, cores) < HEALTHY_AGAIN


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


@pytest.fixture
def waited(monkeypatch):
    """Return the seconds of waiting, instead of waiting."""
    times = []
    monkeypatch.setattr(loader, "waiting", times.append)
    return times


def samples(**numbers):
    return build(Recipe(**{"step_s": 0.01, "batch": 4, "workers": 0, **numbers}))[0].dataset


class TestSamples:
    def test_one_worker_waits_longer(self, waited, monkeypatch):
        data = samples(workers=2, read_s=0.5, slow_worker_s=2.0)
        for worker in (0, 1):
            monkeypatch.setattr(loader, "get_worker_info", lambda n=worker: SimpleNamespace(id=n))
            data[0]

        assert waited == [2.5, 0.5]

    @pytest.mark.parametrize("every", [7, 50])
    def test_one_in_so_many_is_slow(self, every):
        recipe = Recipe(0.01, 4, 0, slow=SlowSamples(every, 1.0, computes=False))
        slow = [index for index in range(20_000) if recipe.is_slow(index)]
        distances = {later - earlier for earlier, later in pairwise(slow)}

        assert len(slow) == pytest.approx(20_000 / every, rel=0.05)
        assert len(distances) > every / 2

    def test_the_slow_ones_wait(self, waited):
        """A slow sample waits so much longer, and the sum over a batch is what was planted."""
        data = samples(read_s=0.5, slow=SlowSamples(4, 2.0, computes=False))
        for index in range(4):
            data[index]

        assert sorted(waited) == [0.5, 0.5, 0.5, 2.5]
        assert sum(waited) == data.recipe.batch_wait_s(0, worker=0)


@pytest.mark.slow
def test_a_real_loop_gets_a_verdict_with_its_numbers():
    """The verdict names a cause, with the measured stalls, and the loop is unchanged."""
    loop = plant("slow-worker", seed=5)
    workers = loop.loader.num_workers

    diagnosis = ss.diagnose(loop.loader, loop.step, budget_s=20.0, prove=False)

    assert diagnosis.verdict.code in CAUSES
    assert diagnosis.verdict.evidence
    assert diagnosis.circumstances.simulated_step_s == loop.step.seconds
    assert loop.loader.num_workers == workers


def test_every_cause_is_a_target_by_name():
    for code in (HEALTHY_CODE, *PLANTED):
        assert callable(getattr(planted, code.replace("-", "_")))
    assert not hasattr(planted, "copy")
