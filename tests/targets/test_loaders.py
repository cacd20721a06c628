"""Loaders that keep iterators: a recording starts new ones, and the user's go on undisturbed."""

import gc

import psutil
import pytest
import torch
from support.libraries import same
from support.loaders import Noise, Slow
from support.odd_loaders import Grouped, Infinite, InfiniteAtOnce, Node, PatchQueue, infinite
from support.third_party_loaders import seed
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.bench.measurement import Measurement
from stallscope.errors import UnsupportedError
from stallscope.loops.devices import Cpu
from stallscope.loops.training_loop import TimedLoop, started
from stallscope.targets.loaders import private_copy
from stallscope.targets.target import Target
from stallscope.verbs.diagnose.diagnose import Examination


class Wrapper:
    """A wrapper of a loader that keeps its iterator."""

    def __init__(self, loader, inner):
        self.loader, self.inner = loader, inner

    def __iter__(self):
        yield from self.inner[0] if isinstance(self.inner, list) else self.inner


def an_iterator(**named):
    return iter(DataLoader(Noise(16), 4, **named))


def keepers():
    """Yield makers of objects that keep a started iterator."""
    for kind in (Infinite, InfiniteAtOnce):
        yield kind.__name__, lambda kind=kind: infinite(kind)
    yield "in a wrapper", lambda: Wrapper(None, an_iterator(num_workers=1))
    yield "in a list", lambda: Wrapper(None, [an_iterator()])
    yield "in a dataset", lambda: DataLoader(PatchQueue(Noise(16)), 4)


KEEPERS = pytest.mark.parametrize("make", [make for _, make in keepers()], ids=dict(keepers()))


@KEEPERS
def test_their_iterator_loses_no_batch(make):
    seen = []
    for recorded in (False, True):
        seed()
        loader = make()
        batches = [next(iter(loader))]
        if recorded:
            run = ss.record(loader, batches=2, warmup=0)
            assert run.all_steps.height
        batches += list(loader)
        seen.append(batches)
        del loader  # and its workers

    assert same(*seen)


def test_their_workers_live_on():
    """Deleting our copy of a loader does not end the user's workers."""
    loader = infinite()
    next(iter(loader))
    workers = [worker.pid for worker in loader.iterator._workers]

    Examination(Target(loader), Measurement("diagnose", 1), proves=False)
    ss.record(loader, batches=2)
    gc.collect()

    assert all(map(psutil.pid_exists, workers))


@pytest.mark.parametrize("kind", [Infinite, InfiniteAtOnce])
def test_a_loop_starts_again_and_again(kind):
    """Each start has new workers, even though those of the last start have ended."""
    theirs = infinite(kind)
    before = psutil.Process().children()
    with private_copy(theirs) as loader:
        loop = TimedLoop(loader, Cpu())
        for _ in range(2):
            with started(loop) as batches:
                assert 4 == len(list(batches))
            assert before == psutil.Process().children()


def test_a_generator_in_the_middle_is_refused():
    loader = Wrapper(None, iter(infinite(num_workers=0)))
    first = next(loader.inner)

    with pytest.raises(UnsupportedError, match="Wrapper keeps a generator"):
        ss.record(loader)

    assert 3 == len(list(loader.inner))
    assert first is not None


@pytest.fixture(scope="module")
def run():
    """Return a run of a loader without workers over a queue with two workers."""
    return ss.record(
        DataLoader(PatchQueue(Slow(48), patches=2, num_workers=2, late=True), 4), batches=9
    )


class TestAQueue:
    """A dataset that owns a loader, in a loader without workers."""

    def test_the_run_has_the_workers_of_the_queue(self, run):
        """The run describes the inner loader's workers, because the loop waits for them."""
        assert 2 == run.settings.num_workers
        assert {0, 1} == set(run.samples()["worker"])
        assert [0] == [outer_run.settings.num_workers for outer_run in run.others]

    def test_every_sample_that_a_step_waited_for_is_used(self, run):
        assert run.samples().height == 2 * run.steps().height > 0

    @pytest.mark.slow
    def test_no_finding_recommends_workers(self):
        diagnosis = ss.diagnose(
            DataLoader(PatchQueue(Slow(), num_workers=2, late=True), 4),
            ss.simulated_step(0.0001),
            budget_s=4,
        )

        assert 2 == diagnosis.circumstances.num_workers
        assert not [finding for finding in diagnosis.findings if "num_workers=" in finding.title]


class TestAnIterableDatasetOfBatches:
    def test_it_is_a_loader(self):
        """An iterable that groups the samples of a loader counts as a loader."""
        grouped = Grouped(DataLoader(Noise(32), None, num_workers=1), 4)

        run = ss.record(grouped, batches=3, warmup=0)

        assert run.settings.num_workers == 1
        assert run.all_steps.height >= 3


class TestNodes:
    def test_the_waits_are_seen(self):
        node = Node([torch.rand(2)] * 9)

        run = ss.record(node, batches=4, warmup=0)

        assert 4 <= run.all_steps.height <= 5
        assert node._it is None
        assert 9 == len(list(node))
        node._it._shutdown()

    def test_threads_at_work_are_refused(self):
        node = Node([torch.rand(2)] * 9)
        batches = iter(node)
        next(batches)

        with pytest.raises(UnsupportedError, match="Node keeps threads in the middle"):
            ss.record(node)

        assert 8 == len(list(batches))
        node._it._shutdown()
