"""A planted loader costs what its recipe says, and real workers can run it, forked or started."""

import itertools
import threading
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from planted import loader
from planted.loader import build
from planted.recipe import Op, Recipe, SlowSamples


@pytest.fixture
def waited(monkeypatch):
    """How long was waited, instead of waiting."""
    times = []
    monkeypatch.setattr(loader, "waiting", times.append)
    return times


def samples(**numbers):
    """The dataset of a recipe."""
    return build(Recipe(**{"step_s": 0.01, "batch": 4, "workers": 0, **numbers}))[0].dataset


class SharedNumber:
    """As multiprocessing's, in one process."""

    def __init__(self, value):
        self.value = value

    def get_lock(self):
        return threading.Lock()


class TestStorage:
    def test_all_share_what_it_gives(self, waited, monkeypatch):
        """Three who ask at once for 100 bytes of 100 a second wait 1, 2 and 3 s."""
        monkeypatch.setattr(loader.time, "monotonic", lambda: 50.0)
        storage = loader.Storage(100.0, SimpleNamespace(Value=lambda _, value: SharedNumber(value)))
        for _ in range(3):
            storage.send(100)

        assert waited == pytest.approx([1.0, 2.0, 3.0])


class TestSamples:
    def test_are_filled_with_their_index(self):
        """A sample is a small tensor of its index."""
        assert torch.equal(samples()[7], torch.full((3, 8, 8), 7.0))

    def test_one_worker_waits_longer(self, waited, monkeypatch):
        """The first worker waits for each sample, the others do not."""
        data = samples(workers=2, read_s=0.5, slow_worker_s=2.0)
        for worker in (0, 1):
            monkeypatch.setattr(loader, "get_worker_info", lambda n=worker: SimpleNamespace(id=n))
            data[0]

        assert waited == [2.5, 0.5]

    @pytest.mark.parametrize("every", [7, 50])
    def test_one_in_so_many_is_slow(self, every):
        """Among many samples one in so many is slow, in no rhythm."""
        recipe = Recipe(0.01, 4, 0, slow=SlowSamples(every, 1.0, computes=False))
        slow = [index for index in range(20_000) if recipe.is_slow(index)]
        distances = {later - earlier for earlier, later in itertools.pairwise(slow)}

        assert len(slow) == pytest.approx(20_000 / every, rel=0.05)
        assert len(distances) > every / 2

    def test_the_slow_ones_wait(self, waited):
        """A slow sample waits so much longer, and the sum over a batch is what was planted."""
        data = samples(read_s=0.5, slow=SlowSamples(4, 2.0, computes=False))
        for index in range(4):
            data[index]

        assert sorted(waited) == [0.5, 0.5, 0.5, 2.5]
        assert sum(waited) == data.recipe.batch_wait_s(0, worker=0)

    def test_batches_differ_around_their_mean(self):
        """Waiting for storage differs from batch to batch; on average it is what it was."""
        recipe = Recipe(0.01, 4, 0, read_s=1.0, spread=1.0)
        factors = [recipe.factor(batch) for batch in range(4_000)]

        assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.05)
        assert max(factors) > 5

    def test_an_image_is_decoded_by_whoever_touches_it(self):
        """What is read is an undecoded photograph; the first transform decodes it."""
        data = samples(reads_files=True, decodes=True)

        image = data.load(0)
        assert isinstance(image, Image.Image)
        assert image.tile
        assert data[0].shape == (3, 8, 8)


class TestTransforms:
    def test_each_has_a_name_of_its_own(self):
        """An op of a recipe is an object of the class of that name, with its cost."""
        recipe = Recipe(0.01, 4, 0, ops=(Op("Blur", 0.25), Op("Warp", 0.5)))
        data = build(recipe)[0].dataset

        named = {type(op).__name__: op.seconds for op in data.transform.transforms}
        assert named == {"Blur": 0.25, "Warp": 0.5}

    def test_a_lookup_is_alone(self, monkeypatch):
        """While a worker is in the transform it holds the lock; afterwards it does not."""
        lock = threading.Lock()
        held = []
        monkeypatch.setattr(loader, "waiting", lambda _: held.append(lock.locked()))

        loader.Lookup(1.0, lock, computes=False)("sample")

        assert held == [True]
        assert not lock.locked()

    def test_parallel_work_leaves_no_thread(self):
        """The transform with threads ends the one that it starts, and changes nothing."""
        before = threading.active_count()

        assert loader.Smooth(2)("sample") == "sample"
        assert threading.active_count() == before


class TestBatches:
    def test_the_default_is_one_tensor(self):
        """A batch is one tensor, as torch makes it."""
        batch = loader.Collate(0.0, "tensor")([torch.zeros(2), torch.ones(2)])

        assert batch.tolist() == [[0.0, 0.0], [1.0, 1.0]]

    def test_arrays_are_pickled(self):
        """A batch of arrays goes through the pipe, for torch does not know them as its own."""
        batch = loader.Collate(0.0, "arrays")([torch.zeros(2)])

        assert type(batch[0]).__name__ == "ndarray"

    def test_the_sampler_draws_all(self):
        """The slow sampler gives every index, in order."""
        assert list(loader.SlowSampler(range(5), 2, 0.0)) == [0, 1, 2, 3, 4]


class TestWorkers:
    def test_forked_workers_have_the_same_batches(self):
        """A forked worker gives what the main process gives."""
        recipe = Recipe(step_s=0.01, batch=2, workers=2, epoch=3, ops=(Op("Blur", 1e-4),))
        forked = [batch[:, 0, 0, 0].tolist() for batch in build(recipe)[0]]

        assert forked == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
