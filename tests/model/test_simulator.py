"""Recorded batches through other workers: waiting overlaps, computing shares the cores."""

from __future__ import annotations

import numpy as np
import pytest
from planted.recipe import Op, Recipe, SlowSamples, loop_s

from stallscope.model.settings import Setting
from stallscope.model.simulator import (
    ERRORS,
    LoaderCosts,
    LoopReplay,
    enough_workers,
    predict,
)

BATCH = 8


def costs(compute_s=0.0, wait_s=0.0, use_s=0.001, **more) -> LoaderCosts:
    """Batches of eight samples, all alike where no array is given."""
    pair = [np.resize(each, (60, 1)).astype(float) for each in (compute_s, wait_s)]
    about = {"samples": np.full(60, float(BATCH)), "use_s": np.full(60, use_s)}
    about |= {"cores": 2.0, "workers": 2} | more
    return LoaderCosts((("Blur", "transform"),), *pair, **about)


def rate(loader_costs: LoaderCosts, workers: int, **setting) -> float:
    """Batches a second."""
    each = Setting(workers, **setting).normal()
    return predict(loader_costs, each).samples_per_s.value / BATCH


def near(value, rel=0.02):
    return pytest.approx(value, rel=rel)


class TestRates:
    """How many batches a second there are."""

    @pytest.mark.parametrize("workers", [1, 2, 5, 16])
    def test_waiting_overlaps(self, workers):
        """Workers that wait are as many times as fast as they are many, on any cores."""
        assert rate(costs(wait_s=0.1), workers) == near(workers / 0.1)

    @pytest.mark.parametrize(("workers", "wanted"), [(1, 1), (2, 2), (3, 2), (8, 2)])
    def test_computing_shares_the_cores(self, workers, wanted):
        """Workers that compute are no faster than the cores are."""
        assert rate(costs(compute_s=0.1), workers) == near(wanted / 0.1)

    def test_the_step_is_the_ceiling(self):
        """The loop is no faster than it uses batches."""
        assert rate(costs(compute_s=0.01, use_s=0.05), 2) == near(1 / 0.05)

    def test_without_workers_times_add_up(self):
        """The loop makes each batch, then uses it; nothing is sent."""
        loader_costs = costs(compute_s=0.03, wait_s=0.01, use_s=0.02, send_s=9.0, receive_s=9.0)

        assert rate(loader_costs, 0) == near(1 / 0.06)

    def test_receiving_is_part_of_the_loop(self):
        """Nothing overlaps it there."""
        assert rate(costs(use_s=0.02, receive_s=0.03, compute_s=0.01), 2) == near(1 / 0.05)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_sampler_is_part_of_the_loop(self, workers):
        """The loop draws the indices of each batch, whoever makes it."""
        loader_costs = costs(use_s=0.02, draw_s=0.03, compute_s=0.01)

        assert rate(loader_costs, workers) == near(1 / (0.05 + 0.01 * (not workers)))

    def test_one_slow_worker_stays_one(self):
        """With as many workers as were recorded, its batches are its batches."""
        slow = np.where(np.arange(60) % 4 == 1, 0.2, 0.02)

        assert rate(costs(wait_s=slow[:, None], workers=4), 4) == near(4 / 0.2, rel=0.05)

    @pytest.mark.parametrize(
        "recipe",
        [
            Recipe(step_s=0.02, batch=BATCH, workers=2, read_s=0.006),
            Recipe(step_s=0.02, batch=BATCH, workers=4, read_s=0.006, spread=0.5),
            Recipe(step_s=0.02, batch=BATCH, workers=2, ops=(Op("Blur", 0.004),)),
            Recipe(step_s=0.02, batch=BATCH, workers=0, ops=(Op("Blur", 0.004),)),
            Recipe(
                step_s=0.02, batch=BATCH, workers=3, read_s=0.001, slow=SlowSamples(40, 0.2, False)
            ),
        ],
        ids=["reading", "uneven reading", "computing", "here", "slow samples"],
    )
    def test_agrees_with_another_clock(self, recipe):
        """The benchmarks' own loader in virtual time says the same of the same batches."""
        many = range(300)
        loader_costs = LoaderCosts(
            (("all", "transform"),),
            np.array([[recipe.batch_cpu_s(each)] for each in many]),
            np.array([[recipe.batch_wait_s(each, 1)] for each in many]),
            np.full(300, float(BATCH)),
            np.full(300, recipe.step_s),
            cores=4.0,
            workers=max(recipe.workers, 1),
        )

        assert 1 / rate(loader_costs, recipe.workers) == near(loop_s(recipe, 4), rel=0.06)


class TestPrediction:
    """What is said beside the rate."""

    def test_the_same_input_gives_the_same_answer(self):
        """Nothing is drawn without a seed, and no clock is read."""
        loader_costs = costs(compute_s=np.random.default_rng(1).random((60, 1)))

        assert predict(loader_costs, Setting(3, 2)) == predict(loader_costs, Setting(3, 2))

    def test_the_interval_is_as_wide_as_batches_differ(self):
        """Batches that are alike leave open only what the model itself may be off."""
        draw = np.random.default_rng(1).exponential(0.05, (60, 1))
        even, uneven = (
            predict(costs(wait_s=each), Setting(2, 2)).samples_per_s for each in (0.05, draw)
        )

        off = ERRORS["same"]
        assert even.high <= 1.02 * even.value / (1 - off)
        assert even.low >= 0.98 * even.value / (1 + off)
        assert uneven.low < 0.95 * uneven.value < 1.05 * uneven.value < uneven.high

    def test_workers_that_live_on_start_once(self):
        """What starting takes is shared out over an epoch, only where it is paid in each."""
        loader_costs = costs(wait_s=0.1, start_s=1.0, first_s=0.5, epoch_batches=20, use_s=0.05)

        anew, kept = rate(loader_costs, 2), rate(loader_costs, 2, persistent_workers=True)

        assert kept == near(20 / (0.1 + 20 * 0.05))  # they begin with nothing made ahead
        assert 1 / anew - 1 / kept == near(1.5 / 20, rel=0.06)
        assert predict(loader_costs, Setting(2, 2)).first_batch_s == near(1.6)

    @pytest.mark.parametrize(
        ("loader_costs", "setting", "why"),
        [
            (costs(compute_s=0.1), Setting(2, 2), ""),
            (costs(compute_s=0.1), Setting(0), ""),
            (costs(compute_s=0.1), Setting(3, 2), "more workers than the 2 cores"),
            (costs(wait_s=0.1), Setting(3, 2), "3 workers may wait longer than the 2"),
            (costs(compute_s=0.1, workers=0), Setting(1, 2), "no worker was recorded"),
            (costs(compute_s=0.1), Setting(2, 2, threads=1), "threads"),
            (
                costs(compute_s=0.1, others_cores=1.0),
                Setting(1, 2),
                "other processes used 1.0 of 2",
            ),
            (costs(compute_s=0.1, others_cores=1.0), Setting(2, 2), ""),
            (costs(compute_s=0.1, threads=2.0), Setting(4, 2), "libraries use threads"),
        ],
    )
    def test_it_says_when_it_extrapolates(self, loader_costs, setting, why):
        """More than was recorded of what workers share is not known."""
        outside = predict(loader_costs, setting).outside

        assert why in outside
        assert bool(why) == bool(outside)

    @pytest.mark.parametrize(
        ("loader_costs", "wanted"),
        [
            (costs(compute_s=0.1, use_s=0.04, cores=8.0), 3),
            (costs(wait_s=0.1, use_s=0.011), 9),
            (costs(compute_s=0.1, use_s=0.04, cores=2.0), None),
            (costs(compute_s=0.1, use_s=0.04, cores=8.0, receive_s=0.05), None),
        ],
        ids=["computing", "waiting", "too few cores", "receiving"],
    )
    def test_so_many_workers_are_enough(self, loader_costs, wanted):
        """The smallest number with which the loop hardly stalls; none where no number does."""
        assert enough_workers(loader_costs, Setting(2, 2)) == wanted

    def test_a_stage_may_be_faster(self):
        """Of a kind, or one by its name; `inf` removes it."""
        two = LoaderCosts(
            (("decode", "decode"), ("Blur", "transform")),
            np.full((60, 2), 0.05),
            np.zeros((60, 2)),
            np.full(60, float(BATCH)),
            np.full(60, 0.001),
            cores=8.0,
        )

        assert rate(two.faster(2, kinds=["decode"]), 1) == near(1 / 0.075)
        assert rate(two.faster(float("inf"), stage="Blur"), 1) == near(1 / 0.05)
        assert rate(two.faster(5, kinds=["decode", "transform"]).with_step(0.2), 1) == near(5)


class TestReplay:
    """One replay, batch by batch."""

    def test_torch_hands_batches_out_in_turn(self):
        """In order, worker n makes every so manyth batch; the loop uses them as they were asked."""
        loader_costs = costs(wait_s=np.random.default_rng(0).random((60, 1)))
        replayed = LoopReplay(loader_costs, Setting(3, 2)).replay(
            loader_costs.batch_s.tolist(), [0.01] * 50
        )

        assert replayed.worker[:50] == [number % 3 for number in range(50)]
        assert replayed.order == list(range(50))

    def test_out_of_order_a_free_worker_gets_the_next_batch(self):
        """And the loop uses what comes first; nothing is lost."""
        batch_s = [1.0, *[0.1] * 59]
        replayed = LoopReplay(costs(), Setting(2, 1, in_order=False)).replay(batch_s, [0.01] * 12)

        assert replayed.order[:9] == list(range(1, 10))
        assert replayed.worker[1:10] == [1] * 9

    def test_no_more_is_made_ahead_than_asked(self):
        """A worker waits while its batches wait to be used."""
        replayed = LoopReplay(costs(), Setting(1, 2)).replay([0.01] * 42, [1.0] * 40)

        assert all(
            taken >= used - 1e-9
            for taken, used in zip(replayed.taken[3:40], replayed.used_from, strict=False)
        )
