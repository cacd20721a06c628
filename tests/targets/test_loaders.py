"""Loaders that keep iterators: ours start anew, and theirs go on as if nothing had been."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import psutil
import pytest
import torch
from support.libraries import same
from support.loaders import Noise, NoiseStream, Slow
from support.odd_loaders import Grouped, Infinite, InfiniteAtOnce, Node, PatchQueue, infinite
from support.third_party_loaders import seed
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

import stallscope as ss
from stallscope.bench.measurement import Measurement
from stallscope.diagnose.diagnose import Examination
from stallscope.errors import UnsupportedError
from stallscope.loops.cached_loaders import going_on
from stallscope.loops.devices import Cpu
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.targets.loaders import private_copy
from stallscope.targets.target import Target


class Wrapper:
    """Around a loader, whose iterator it keeps."""

    def __init__(self, loader, kept):
        self.loader, self.kept = loader, kept

    def __iter__(self):
        yield from self.kept[0] if isinstance(self.kept, list) else self.kept


class NeverCopied(np.ndarray):
    """An array that is too large for another one."""

    def copy(self):
        raise MemoryError


def an_iterator(**named):
    return iter(DataLoader(Noise(16), 4, **named))


def keepers():
    """What keeps an iterator, begun by its user."""
    for kind in (Infinite, InfiniteAtOnce):
        yield kind.__name__, lambda kind=kind: infinite(kind)
    yield "in a wrapper", lambda: Wrapper(None, an_iterator(num_workers=1))
    yield "in a list", lambda: Wrapper(None, [an_iterator()])
    yield "in a dataset", lambda: DataLoader(PatchQueue(Noise(16)), 4)


KEEPERS = pytest.mark.parametrize("make", [make for _, make in keepers()], ids=dict(keepers()))


@KEEPERS
def test_their_iterator_loses_no_batch(make):
    """A loader in the middle of an epoch goes on after a recording where it was before."""
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
    """A class that ends its workers with itself does not end the user's with a copy of ours."""
    loader = infinite()
    next(iter(loader))
    workers = [worker.pid for worker in loader.iterator._workers]

    Examination(Target(loader), Measurement("diagnose", 1))
    ss.record(loader, batches=2)
    gc.collect()

    assert all(map(psutil.pid_exists, workers))


@pytest.mark.parametrize("kind", [Infinite, InfiniteAtOnce])
def test_a_loop_starts_again_and_again(kind):
    """The next start has living workers, though those of the one before were ended."""
    theirs = infinite(kind)
    before = psutil.Process().children()
    with private_copy(theirs) as loader:
        loop = TimedLoop(loader, Cpu())
        for _ in range(2):
            with started(loop) as batches:
                assert 4 == len(list(batches))
            assert before == psutil.Process().children()


def test_one_start_goes_on_over_the_epochs():
    """Workers that live from epoch to epoch are not started anew in the middle of a measurement."""
    with private_copy(infinite()) as loader, started(TimedLoop(going_on(loader), Cpu())) as batches:
        workers = [psutil.Process().children() for _, _ in zip(batches, range(10), strict=False)]

    assert 10 == len(workers)
    assert all(workers[0] == later for later in workers)


def test_a_queue_that_begins_late_is_as_it_was():
    """An iterator that a dataset made for us ends, and the dataset has none again."""
    queue = PatchQueue(Noise(16), late=True)

    ss.record(DataLoader(queue, 4), batches=3)

    assert (None, []) == (queue.volumes, queue.kept)
    assert not psutil.Process().children()


def test_the_arrays_of_a_queue_are_not_copied():
    """What a dataset holds in memory may be half of the machine's."""
    queue = PatchQueue(Noise(16), late=True)
    queue.pixels = np.zeros(8).view(NeverCopied)

    assert ss.record(DataLoader(queue, 4), batches=2, warmup=0).all_steps.height


def test_a_generator_in_the_middle_is_refused():
    """What cannot be started anew is refused in a sentence, and loses nothing."""
    loader = Wrapper(None, iter(infinite(num_workers=0)))
    first = next(loader.kept)

    with pytest.raises(UnsupportedError, match="Wrapper keeps a generator"):
        ss.record(loader)

    assert 3 == len(list(loader.kept))
    assert first is not None


@pytest.mark.slow
def test_a_verdict_on_a_loader_that_keeps_its_iterator():
    """The ladder starts such a loader many times."""
    found = ss.diagnose(infinite(num_workers=2), ss.simulated_step(0.001), budget_s=20)

    assert not any("no ladder" in note for note in found.notes)
    assert found.ladder is None or found.ladder.table().height


@pytest.fixture(scope="module")
def run():
    """Of a loader without workers over a queue that has two."""
    return ss.record(
        DataLoader(PatchQueue(Slow(48), patches=2, num_workers=2, late=True), 4), batches=9
    )


class TestAQueue:
    """A dataset that owns a loader, in a loader without workers."""

    def test_the_workers_that_really_run_are_the_runs(self, run):
        """The loop waits for the inner loader's workers, which the run is about."""
        assert 2 == run.settings.num_workers
        assert {0, 1} == set(run.samples()["worker"])
        assert [0] == [other.settings.num_workers for other in run.others]

    def test_all_that_a_step_waited_for_was_used(self, run):
        """A batch of four takes two volumes of two patches each."""
        assert run.samples().height == 2 * run.steps().height > 0

    @pytest.mark.slow
    def test_no_verdict_tells_it_to_get_workers(self):
        """Its dataset has workers, and may not be used in any."""
        found = ss.diagnose(
            DataLoader(PatchQueue(Slow(), num_workers=2, late=True), 4),
            ss.simulated_step(0.0001),
            budget_s=4,
        )

        assert 2 == found.circumstances.num_workers
        assert not [one for one in found.findings if "num_workers=" in one.title]

    def test_the_stacks_are_the_workers(self):
        """Those that are sampled are the processes that make the volumes."""
        loader = DataLoader(PatchQueue(Slow(100), num_workers=1, late=True), 4)

        assert 1 == ss.flame(loader, seconds=0.3).circumstances.num_workers


class _FakeLoader:
    """What fastai gives torch's iterators for a loader."""

    __module__ = "fastai.data.load"
    _IterableDataset_len_called, _auto_collation, drop_last, in_order = None, False, False, True
    _index_sampler, generator, prefetch_factor = itertools.count(), None, 2
    collate_fn, pin_memory, pin_memory_device, timeout = staticmethod(list), False, "", 0
    _dataset_kind, worker_init_fn, persistent_workers = _DatasetKind.Iterable, None, False
    multiprocessing_context, num_workers = None, 1

    def __init__(self, batches):
        self.dataset = batches


class OwnsFake:
    """A loader in the way of fastai's: no DataLoader, and torch's iterators inside."""

    def __init__(self):
        self.fake_l = _FakeLoader(Grouped(NoiseStream(64), 4))

    def __iter__(self):
        yield from _MultiProcessingDataLoaderIter(self.fake_l)


class TestALoaderThatIsNoDataLoader:
    def test_its_workers_are_known(self):
        """It is not told that it makes its batches itself."""
        assert 1 == Target(OwnsFake()).num_workers
        assert not Target(OwnsFake()).loads_here

    def test_its_own_loop_can_be_recorded(self):
        """What `ss.instrumented()` sees is also seen where it is named."""
        loader = OwnsFake()
        with ss.instrumented(loader, warmup=0) as watch:
            batches = len(list(loader))

        assert batches == watch.run.all_steps.height == 16

    @pytest.mark.slow
    def test_its_workers_are_sampled(self):
        """Stacks come from the processes that make the batches."""
        assert 1 == ss.flame(OwnsFake(), seconds=0.2).circumstances.num_workers


class TestAnIterableDatasetOfBatches:
    def test_it_is_a_loader(self):
        """What groups the samples of a loader yields batches, whatever its class is called."""
        grouped = Grouped(DataLoader(Noise(32), None, num_workers=1), 4)

        run = ss.record(grouped, batches=3, warmup=0)

        assert run.settings.num_workers == 1
        assert run.all_steps.height >= 3

    def test_it_gathers_nothing_for_us(self):
        """The samples that it has gathered for its next batches are the user's."""
        grouped = Grouped(DataLoader(Noise(32), None), 4)
        batches = iter(grouped)
        next(batches)
        batches.close()
        before = [list(bucket) for bucket in grouped._buckets]

        ss.record(grouped, batches=2, warmup=0)

        assert any(before)
        assert same(before, grouped._buckets)


class TestNodes:
    def test_the_waits_are_seen(self):
        """Its threads have ended afterwards, and it can be iterated again."""
        node = Node([torch.rand(2)] * 9)

        run = ss.record(node, batches=4, warmup=0)

        assert 4 <= run.all_steps.height <= 5
        assert node._it is None
        assert 9 == len(list(node))
        node._it._shutdown()

    def test_threads_at_work_are_refused(self):
        """They read from the same source as ours would."""
        node = Node([torch.rand(2)] * 9)
        batches = iter(node)
        next(batches)

        with pytest.raises(UnsupportedError, match="Node keeps threads in the middle"):
            ss.record(node)

        assert 8 == len(list(batches))
        node._it._shutdown()
