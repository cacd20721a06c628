"""Costs of batches, from a run; waiting for a core is not part of them."""

from dataclasses import replace

import polars as pl
import pytest
from support.build_run import resources_of
from support.virtual_loop import a_loop

from stallscope.model.costs import costs_of
from stallscope.model.settings import Setting
from stallscope.model.simulator import predict
from stallscope.stages import LOOP, QUEUED, THREADS, WORKER, WORKER_CORES

EIGHT = Setting(8, 2)


def crowded(queued: float):
    """Batches that compute 20 of their 80 ms in each of eight workers, on two cores.

    Args:
        queued: share of its time in which a worker has no core; beside what makes batches, another
            thread of it computes.
    """
    run = a_loop({"Blur": 80.0}, workers=8, batches=160, using={"forward": 1.0})
    computed_ns = (pl.col("end_ns") - pl.col("start_ns")) // 4
    use = {(LOOP, "1"): 0.02}
    use |= {(WORKER, f"{100 + pid}"): 0.3 for pid in range(8)}
    use |= {(QUEUED, f"{100 + pid}"): queued for pid in range(8)}
    spans = run.all_spans.with_columns(cpu_ns=computed_ns)
    return replace(run, all_spans=spans, all_resources=resources_of(use, 2))


def costs(run):
    return costs_of(run, EIGHT, epoch_batches=None, batch_bytes=None, cores=2.0)


class TestCrowded:
    """Eight workers on two cores."""

    def test_waiting_for_a_core_is_no_cost(self):
        """On two cores, two workers are as fast as eight."""
        cost = costs(crowded(0.74))
        two, eight = (predict(cost, each).samples_per_s.value for each in (Setting(2, 2), EIGHT))

        assert cost.wait_s < 0.02 * cost.compute_s
        assert two == pytest.approx(eight, rel=0.03)

    def test_other_waiting_is_a_cost(self):
        """All eight workers are needed if they sleep most of the time."""
        cost = costs(crowded(0.1))
        two, eight = (predict(cost, each).samples_per_s.value for each in (Setting(2, 2), EIGHT))

        assert cost.wait_s > 2 * cost.compute_s
        assert eight > 2.5 * two


TWO = Setting(2, 2)


def in_two_workers(use, **how):
    """A run of two workers that compute all the time they take for a batch, on two cores."""
    run = a_loop({"Blur": 20.0}, **{"workers": 2, "batches": 60, "using": {"forward": 5.0}} | how)
    spans = run.all_spans.with_columns(cpu_ns=pl.col("end_ns") - pl.col("start_ns"))
    return replace(run, all_spans=spans, all_resources=resources_of({(LOOP, "1"): 0.3} | use, 2))


def each_worker(**use):
    """Return the resources of both workers, by name."""
    names = {"cpu": WORKER, "queued": QUEUED, "cores": WORKER_CORES, "threads": THREADS}
    return {(names[name], str(pid)): value for name, value in use.items() for pid in (100, 101)}


class TestLoop:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_sampler_that_computes_is_no_work_of_the_batches(self, workers):
        """The loop draws the indices of the batches with any number of workers."""
        use = each_worker(cpu=0.5, queued=0.0) if workers else {(LOOP, "1"): 0.9}
        run = in_two_workers(use, workers=workers, draw=30.0)
        now = Setting(workers).normal()

        cost = costs_of(run, now, epoch_batches=None, batch_bytes=None, cores=2.0)
        none, two = (predict(cost, Setting(count).normal()).samples_per_s.value for count in (0, 2))

        assert cost.draw_s == pytest.approx(0.03, rel=0.02)
        assert 1e3 * cost.samples.mean() / none == pytest.approx(30 + 20 + 5, rel=0.03)
        assert 1e3 * cost.samples.mean() / two == pytest.approx(30 + 5, rel=0.05)


class TestCores:
    def test_workers_with_fewer_cores_share_them(self):
        """Workers on one core of two queue for it, and more workers are no faster."""
        run = in_two_workers(each_worker(cpu=0.5, queued=0.5, cores=1.0))

        cost = costs_of(run, TWO, epoch_batches=None, batch_bytes=None, cores=2.0)
        two, eight = (predict(cost, each).samples_per_s.value for each in (TWO, Setting(8, 2)))

        assert cost.worker_cores == pytest.approx(1.0)
        assert eight == pytest.approx(two, rel=0.03)


class TestSlowWorker:
    @pytest.mark.parametrize("slow_ms", [80.0, 24.0])
    def test_holds_up_the_others_where_batches_come_in_order(self, slow_ms):
        """Each round of batches waits for the slow worker."""
        run = a_loop(
            lambda _, worker: {"Blur": slow_ms if 1 == worker else 20.0},
            workers=4,
            batches=120,
            using={"forward": 1.0},
        )

        cost = costs_of(run, Setting(4, 2), epoch_batches=None, batch_bytes=None, cores=8.0)

        assert 1e3 * cost.samples.mean() / predict(cost, Setting(4, 2)).samples_per_s.value == (
            pytest.approx(slow_ms / 4, rel=0.1)
        )
