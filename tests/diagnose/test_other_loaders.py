"""Loaders of other libraries: verdicts on them that were once wrong stay right."""

import itertools
import multiprocessing
import random
import time
from dataclasses import replace

import polars as pl
import pytest
import torch
from support.build_facts import known
from support.build_run import a_run, deliveries_of, resources_of, steps_of
from torch.utils.data import DataLoader, Dataset, IterableDataset

import stallscope as ss
from stallscope.isolation import isolated
from stallscope.model.batch_times import making
from stallscope.model.loop_time import Starts, starts
from stallscope.run.resources import find_saturated
from stallscope.run.result import WAITS
from stallscope.stages import CORE, HELPER, LOOP, QUEUED
from stallscope.targets.target import Target
from stallscope.verbs.diagnose.facts import facts
from stallscope.verbs.diagnose.rules import begin_of
from stallscope.verbs.diagnose.setup import Setup, setup_of
from stallscope.verbs.diagnose.verdict import judge

SAMPLE = {"getitem": 10.0}
MS = 1_000_000


def awaited(*batches_of_steps, epoch=0):
    """Return waits of each step for these batches, one after the other."""
    rows = [
        {"rank": 0, "step": step, "epoch": epoch, "batch": batch, "start_ns": 0, "end_ns": 0}
        for step, batches in enumerate(batches_of_steps)
        for batch in batches
    ]
    return pl.DataFrame(rows, WAITS)


def batches_in_turn(count, batch_ms, workers=2, **fields):
    """Return batches that the workers make in turn."""
    return [
        {"batch": number, "worker": number % workers, "pid": 100 + number % workers, **fields}
        | {"taken_ns": number // workers * batch_ms * MS}
        | {"made_ns": (number // workers + 1) * batch_ms * MS}
        for number in range(count)
    ]


class TestLoopThatJoinsBatches:
    """A wrapper that takes two batches of the inner loader for each of its own."""

    def test_all_workers_make_batches_and_each_step_needs_two(self):
        """A step has the number of one of the inner batches, but takes the time of both."""
        run = a_run(
            [SAMPLE] * 4,
            steps=steps_of([0.04] * 12, step_s=0.02, batch=[2 * step + 1 for step in range(12)]),
            waits=awaited(*((2 * step, 2 * step + 1) for step in range(12))),
            deliveries=deliveries_of(*batches_in_turn(24, 40)),
        )

        batch_times = making(run, 2)

        assert 2 == batch_times.workers
        assert 0.08 == pytest.approx(batch_times.batch_s)


class TestBegins:
    """Time at the begin of an epoch that another setting could save."""

    @staticmethod
    def epochs(first_s, batch_ms, batches_of_first):
        """Return a run of two workers with three epochs of ten steps of 0.1 s."""
        steps = steps_of(
            ([first_s] + [0.0] * 9) * 3,
            epoch=[number // 10 for number in range(30)],
            batch=[number % 10 for number in range(30)],
        )
        later = [[], [1]][batches_of_first == 1]
        waits = [later if number % 10 else range(batches_of_first) for number in range(30)]
        run = a_run([SAMPLE] * 4, steps=steps, waits=awaited(*waits), workers=2)
        return replace(run, deliveries=deliveries_of(*batches_in_turn(10, batch_ms)))

    @pytest.mark.parametrize(
        ("first_s", "batch_ms", "batches", "extra_s"),
        [(0.3, 240, 1, 0.06), (0.24, 240, 1, 0.0), (0.78, 250, 6, 0.03)],
        ids=["short epochs", "only the first batch", "a buffer of six"],
    )
    def test_first_batches_must_be_made_anyway(self, first_s, batch_ms, batches, extra_s):
        """Workers that live on make these batches, too: as many rounds as the first step takes."""
        run = self.epochs(first_s, batch_ms, batches)

        begins = starts(run, 2, persistent=False, epoch_batches=10)

        assert extra_s == pytest.approx(begins.extra_s, abs=1e-6)

    def test_a_usual_first_sample_fills_no_buffer(self):
        """A first sample as quick as the others leaves the slow start to the workers."""
        begun = {"extra_s": 0.4, "first_s": 0.21, "ready_s": 0.2}
        stream = known(setup={"streams": True}, starts=Starts(**begun, filled_s=0.02))

        assert "Workers start" in begin_of(stream).title

    def test_a_setting_is_named_with_its_loader(self):
        """persistent_workers=True would raise for the outer loader, which has no workers."""

        class Owns(Dataset):
            inner = None

            def __init__(self):
                self.inner = DataLoader([1], num_workers=2)

        setup = setup_of(Target(DataLoader(Owns())))

        assert 2 == setup.num_workers
        assert "persistent_workers=True of the loader inside the dataset" == setup.keep_alive


def test_waiting_for_a_core_is_counted_for_each_process():
    """Each epoch has new worker processes, and each waits for its core by its own share."""
    rows = [
        {"batch": batch, "worker": worker, "pid": 10 * epoch + worker, "epoch": epoch}
        | {
            "taken_ns": (epoch * 3 + batch // 2) * 200 * MS,
            "made_ns": (epoch * 3 + batch // 2 + 1) * 200 * MS,
        }
        for epoch in range(3)
        for batch in range(6)
        for worker in [batch % 2]
    ]
    steps = steps_of(
        [0.1] * 18, epoch=[n // 6 for n in range(18)], batch=[n % 6 for n in range(18)]
    )
    use = {(QUEUED, str(10 * epoch + worker)): 0.5 for epoch in range(3) for worker in (0, 1)}
    use |= {(QUEUED, "0"): 0.0, (QUEUED, "1"): 0.9}  # of the first epoch
    run = a_run([SAMPLE] * 4, steps=steps, deliveries=deliveries_of(*rows))
    run = replace(run, all_resources=resources_of(use, 4))

    by_worker = making(run, 2).by_worker

    assert by_worker[0].median_s > 0.05
    assert by_worker[0].median_s < 2 * by_worker[1].median_s


class Raises:
    """A loader that raises on every attribute."""

    __module__ = "fastai.data.load"

    def __getattr__(self, name):
        raise RuntimeError(name)


Raises.__name__ = "_FakeLoader"


class Around:
    """Holds a loader of somebody else's, and draws a new generator for each epoch."""

    def __init__(self):
        self.fake_l, self.rng = Raises(), random.Random(3)

    def __iter__(self):
        self.rng = random.Random(self.rng.random())
        yield from DataLoader([torch.tensor(self.rng.random())])


def test_a_loader_that_raises_on_everything_is_read():
    """A setting that the loader does not reveal stays unknown."""
    assert replace(setup_of(Target(Around())), cores=1.0, inside="", has_step=True) == Setup(
        sampler=setup_of(Target(Around())).sampler
    )


def test_a_generator_that_is_made_anew_is_put_back():
    """The loader's next epoch is what it would have been."""
    measured, left_alone = Around(), Around()
    with isolated(Target(measured)) as target:
        list(target.loader)

    assert list(measured) == list(left_alone)


class TestProcessesOfTheDataset:
    def run(self):
        """A loop without workers that waits for two processes that compute."""
        steps = steps_of([0.08] * 40, step_s=0.02, worker=None)
        use = {(CORE, core): 1.0 for core in "01"} | {(HELPER, pid): 0.95 for pid in "89"}
        run = a_run(
            [{"getitem": 80.0}] * 40,
            batch_size=1,
            workers=0,
            rest_ms=20.0,
            steps=steps,
            deliveries=deliveries_of(
                *(
                    {"batch": n, "worker": None, "taken_ns": begin, "made_ns": begin + 80 * MS}
                    for n, begin in enumerate(steps["start_ns"])
                )
            ),
            cpu_share={"getitem": 0.01},
        )
        return replace(run, all_resources=resources_of({**use, (LOOP, "7"): 0.02}, 4))

    def test_are_not_other_processes(self):
        assert 0.1 > find_saturated(self.run()).others_share

    def test_compute_for_the_loader(self):
        """No storage is waited for, and the main process makes no batch itself."""
        verdict = judge(facts(self.run(), Setup(cores=2.0)))[0]

        assert "one-transform" == verdict.code
        assert "in processes of its own" in verdict.title


@pytest.mark.slow
def test_a_pool_in_a_stream_is_the_loaders_own():
    verdict = ss.diagnose(DataLoader(_Pool(), 4), ss.simulated_step(0.02), budget_s=12).verdict

    assert verdict.code in ("one-transform", "cpu-saturated")


class _Loader:
    """A loader of another library, whose own processes make the batches."""

    def __iter__(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            yield from pool.imap(_busy, [0.04] * 400)


@pytest.mark.slow
def test_stacks_name_the_work_of_another_librarys_loader():
    """The loader's processes have no hooks."""
    verdict = ss.diagnose(_Loader(), ss.simulated_step(0.005), budget_s=15).verdict

    assert "one-transform" == verdict.code
    assert "_busy (test_other_loaders.py" in verdict.title


class _Pool(IterableDataset):
    def __iter__(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            yield from pool.imap(_busy, [0.04] * 400)


def _busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return torch.zeros(9)


class Cycles:
    """A loader whose `itertools.cycle`, deep inside, keeps all batches for its next round."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return itertools.cycle(self.loader)


def test_a_loop_that_keeps_all_its_batches_is_told_who_does():
    loader = DataLoader(list(torch.zeros(800, 2)), 4, num_workers=1)
    step, both = ss.simulated_step(0.01), (Cycles(loader), loader)
    cycled, plain = (ss.diagnose(each, step, budget_s=8) for each in both)

    assert any("itertools.cycle" in each.next_step for each in cycled.findings)
    assert not any("itertools.cycle" in each.next_step for each in plain.findings)
