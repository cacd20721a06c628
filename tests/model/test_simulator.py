"""Recorded batches through other workers: waiting overlaps, computing shares the cores."""

import numpy as np
import pytest
from support.virtual_loop import a_loop

from stallscope.model.batch_times import LoaderCosts
from stallscope.model.settings import Setting
from stallscope.model.simulator import ERRORS, LoopReplay, enough_workers, predict

BATCH = 8


def costs(compute_s=0.0, wait_s=0.0, use_s=0.001, **fields) -> LoaderCosts:
    """Return costs of batches of eight samples; a number means equal batches."""
    pair = [np.resize(each, (60, 1)).astype(float) for each in (compute_s, wait_s)]
    about = {"samples": np.full(60, float(BATCH)), "use_s": np.full(60, use_s)}
    about |= {"cores": 2.0, "workers": 2} | fields
    return LoaderCosts((("Blur", "transform"),), *pair, **about)


def rate(loader_costs: LoaderCosts, workers: int, **setting) -> float:
    """Return the batches per second."""
    each = Setting(workers, **setting).normal()
    return predict(loader_costs, each).samples_per_s.value / BATCH


def near(value, rel=0.02):
    return pytest.approx(value, rel=rel)


class TestRates:
    """Predicted batches per second."""

    @pytest.mark.parametrize("workers", [1, 2, 5, 16])
    def test_waiting_overlaps(self, workers):
        assert rate(costs(wait_s=0.1), workers) == near(workers / 0.1)

    @pytest.mark.parametrize(("workers", "wanted"), [(1, 1), (2, 2), (3, 2), (8, 2)])
    def test_computing_shares_the_cores(self, workers, wanted):
        assert rate(costs(compute_s=0.1), workers) == near(wanted / 0.1)

    def test_the_step_is_the_ceiling(self):
        assert rate(costs(compute_s=0.01, use_s=0.05), 2) == near(1 / 0.05)

    def test_without_workers_times_add_up(self):
        """The loop makes each batch, then uses it; nothing is sent."""
        loader_costs = costs(compute_s=0.03, wait_s=0.01, use_s=0.02, send_s=9.0, receive_s=9.0)

        assert rate(loader_costs, 0) == near(1 / 0.06)

    def test_receiving_is_part_of_the_loop(self):
        assert rate(costs(use_s=0.02, receive_s=0.03, compute_s=0.01), 2) == near(1 / 0.05)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_sampler_is_part_of_the_loop(self, workers):
        loader_costs = costs(use_s=0.02, draw_s=0.03, compute_s=0.01)

        assert rate(loader_costs, workers) == near(1 / (0.05 + 0.01 * (not workers)))

    def test_one_slow_worker_stays_slow(self):
        """With the recorded number of workers, the slow worker keeps its slow batches."""
        slow = np.where(np.arange(60) % 4 == 1, 0.2, 0.02)

        assert rate(costs(wait_s=slow[:, None], workers=4), 4) == near(4 / 0.2, rel=0.05)

    @pytest.mark.parametrize("workers", [0, 2, 4])
    @pytest.mark.parametrize("batch_ms", ["even", "uneven", "rarely slow"])
    def test_agrees_with_another_clock(self, workers, batch_ms):
        """The tests' loader in virtual time has the same rate for the same batches."""
        draw = np.random.default_rng(1)
        kinds = {"even": np.full(300, 40.0), "uneven": draw.uniform(10, 70, 300)}
        kinds["rarely slow"] = np.where(np.arange(300) % 31 == 7, 240.0, 30.0)
        times_ms = kinds[batch_ms]
        run = a_loop(
            lambda number, _: {"Blur": float(times_ms[number])},
            workers=workers, batches=300, send=0.0, unpickle=0.0, restart=0.0,
        )  # fmt: skip
        loader_costs = LoaderCosts(
            (("Blur", "transform"),),
            np.zeros((300, 1)),
            times_ms[:, None] / 1e3,
            np.full(300, float(BATCH)),
            np.full(300, 0.02),
            cores=4.0,
            workers=max(workers, 1),
        )
        starts_s = run.all_steps["start_ns"] / 1e9

        took_s = (starts_s[-1] - starts_s[20]) / (len(starts_s) - 21)
        assert 1 / rate(loader_costs, workers) == near(took_s, rel=0.06)


class TestPrediction:
    def test_the_same_input_gives_the_same_answer(self):
        loader_costs = costs(compute_s=np.random.default_rng(1).random((60, 1)))

        assert predict(loader_costs, Setting(3, 2)) == predict(loader_costs, Setting(3, 2))

    def test_the_interval_is_as_wide_as_batches_differ(self):
        """Equal batches leave only the error of the model in the interval."""
        draw = np.random.default_rng(1).exponential(0.05, (60, 1))
        even, uneven = (
            predict(costs(wait_s=each), Setting(2, 2)).samples_per_s for each in (0.05, draw)
        )

        off = ERRORS["same"]
        assert even.high <= 1.02 * even.value / (1 - off)
        assert even.low >= 0.98 * even.value / (1 + off)
        assert uneven.low < 0.95 * uneven.value < 1.05 * uneven.value < uneven.high

    def test_workers_that_live_on_start_once(self):
        """The start-up time counts in every epoch unless the workers are persistent."""
        loader_costs = costs(wait_s=0.1, start_s=1.0, first_s=0.5, epoch_batches=20, use_s=0.05)

        anew, persistent = rate(loader_costs, 2), rate(loader_costs, 2, persistent_workers=True)

        assert persistent == near(20 / (0.1 + 20 * 0.05))  # they begin with nothing made ahead
        assert 1 / anew - 1 / persistent == near(1.5 / 20, rel=0.06)
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
    def test_the_smallest_sufficient_number_is_returned(self, loader_costs, wanted):
        assert enough_workers(loader_costs, Setting(2, 2)) == wanted

    def test_a_stage_may_be_faster(self):
        """Stages become faster by kind or by name; `inf` removes them."""
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
    def test_torch_hands_batches_out_in_turn(self):
        loader_costs = costs(wait_s=np.random.default_rng(0).random((60, 1)))
        replayed = LoopReplay(loader_costs, Setting(3, 2)).replay(
            loader_costs.batch_s.tolist(), [0.01] * 50
        )

        assert replayed.worker[:50] == [number % 3 for number in range(50)]
        assert replayed.order == list(range(50))

    def test_out_of_order_a_free_worker_gets_the_next_batch(self):
        batch_s = [1.0, *[0.1] * 59]
        replayed = LoopReplay(costs(), Setting(2, 1, in_order=False)).replay(batch_s, [0.01] * 12)

        assert replayed.order[:9] == list(range(1, 10))
        assert replayed.worker[1:10] == [1] * 9

    def test_prefetch_is_limited(self):
        replayed = LoopReplay(costs(), Setting(1, 2)).replay([0.01] * 42, [1.0] * 40)

        assert all(
            taken >= used - 1e-9
            for taken, used in zip(replayed.taken[3:40], replayed.used_from, strict=False)
        )
