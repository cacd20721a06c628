"""Samples cost what their recipe says, and come from where it says."""

import itertools
import threading
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from stallscope.planted import samples as sampling
from stallscope.planted.building import build
from stallscope.planted.recipe import Recipe, SlowSamples


@pytest.fixture
def waited(monkeypatch):
    """How long was waited, instead of waiting."""
    times = []
    monkeypatch.setattr(sampling, "waiting", times.append)
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
        monkeypatch.setattr(sampling.time, "monotonic", lambda: 50.0)
        storage = sampling.Storage(
            100.0, SimpleNamespace(Value=lambda _, value: SharedNumber(value))
        )
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
            monkeypatch.setattr(sampling, "get_worker_info", lambda n=worker: SimpleNamespace(id=n))
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
