"""A planted loader costs what its recipe says, and real workers can run it, forked or started."""

import itertools
from types import SimpleNamespace

import pytest

from planted import loader
from planted.loader import build
from planted.recipe import Recipe, SlowSamples


@pytest.fixture
def waited(monkeypatch):
    """How long was waited, instead of waiting."""
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
