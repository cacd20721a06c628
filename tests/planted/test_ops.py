"""The transforms of planted loaders cost what they say, and leave nothing behind."""

import threading

from stallscope.planted import ops
from stallscope.planted.building import build
from stallscope.planted.recipe import Op, Recipe


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
        monkeypatch.setattr(ops, "waiting", lambda _: held.append(lock.locked()))

        ops.Lookup(1.0, lock, computes=False)("sample")

        assert held == [True]
        assert not lock.locked()

    def test_parallel_work_leaves_no_thread(self):
        """The transform with threads ends the one that it starts, and changes nothing."""
        before = threading.active_count()

        assert ops.Smooth(2)("sample") == "sample"
        assert threading.active_count() == before
