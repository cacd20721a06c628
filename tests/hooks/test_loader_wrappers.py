"""What other libraries put around a loader: the loop waits for that, and nothing of it changes."""

from __future__ import annotations

import importlib
import sys
from itertools import islice

import polars as pl
import pytest
from support import third_party_loaders
from support.libraries import library, same
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.hooks import iterators

BATCHES = 6
NAMES = (
    "accelerate",
    "webdataset's WebLoader, batched again",
)
AROUND = '''
closed = []

class Around:
    """Works before and after it waits, and keeps one batch ahead."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        try:
            ahead = None
            for batch in self.loader:
                if ahead is not None:
                    yield ahead
                ahead = batch + 1
            yield ahead
        finally:
            closed.append(self)
'''


@pytest.fixture
def around(tmp_path, monkeypatch):
    """Imports a module with such a class for the first time."""
    (tmp_path / "library_around.py").write_text(AROUND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(iterators.LOADER_WRAPPERS, "library_around", ("Around",))
    yield lambda: importlib.import_module("library_around")
    sys.modules.pop("library_around", None)


def a_loader(workers=0):
    return DataLoader(Noise(16), 4, num_workers=workers)


def outside_of_inner(run):
    """Whether every step's wait begins before and ends after the waits for its loader."""
    rows = run.waits.join(run.all_steps, on=["rank", "step"], suffix="_step")
    before = pl.col("start_ns_step") < pl.col("start_ns")
    return (
        rows.height > 0
        and rows.select((before & (pl.col("end_ns") < pl.col("end_ns_step"))).all()).item()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_loop_waits_for_the_outermost_iterator(name):
    """What a library does after its loader is part of the wait, and its batches stay the same."""
    library(name)
    third_party_loaders.seed()
    plain = list(islice(iter(third_party_loaders.LIBRARIES[name]()), BATCHES))
    third_party_loaders.seed()
    loader = third_party_loaders.LIBRARIES[name]()
    kind, attributes = type(loader), {*vars(loader)}
    with ss.instrumented(warmup=0) as watch:
        iterator = iter(loader)
        recorded = list(islice(iterator, BATCHES))
    del iterator

    assert same(plain, recorded)
    assert (kind, attributes) == (type(loader), {*vars(loader)} & attributes)
    assert BATCHES == watch.run.all_steps.height
    assert outside_of_inner(watch.run)


@pytest.mark.slow
def test_a_prepared_loader_of_accelerate_is_known_by_itself():
    """It is a DataLoader that iterates another one."""
    pytest.importorskip("accelerate")
    loader = third_party_loaders.accelerate()

    with ss.instrumented(loader, warmup=0) as watch:
        batches = len(list(loader))

    assert batches == watch.run.all_steps.height


class TestAnImportMeanwhile:
    def test_is_hooked_and_left_as_it_was(self, around):
        """The class is met when its module is imported, and has its own method afterwards."""
        with ss.instrumented(warmup=0) as watch:
            loader = around().Around(a_loader())
            hooked = vars(type(loader))["__iter__"]
            batches = list(loader)

        assert len(loader) == len(batches) == watch.run.all_steps.height
        assert outside_of_inner(watch.run)
        assert hooked is not vars(type(loader))["__iter__"]
        assert hooked.__wrapped__ is vars(type(loader))["__iter__"]

    def test_none_of_two_is_counted_twice(self, around):
        """The stall belongs to the outermost one."""
        with ss.instrumented(warmup=0) as watch:
            module = around()
            batches = list(module.Around(module.Around(a_loader())))

        assert 4 == len(batches) == watch.run.all_steps.height

    def test_a_loop_that_breaks_closes_it_at_once(self, around):
        """As a generator of the library's own is."""
        with ss.instrumented(warmup=0):
            module = around()
            for _ in module.Around(a_loader(workers=1)):
                break
            closed = len(module.closed)

        assert 1 == closed

    def test_an_iterator_outlives_the_recording(self, around):
        """It goes on, and writes nothing."""
        with ss.instrumented(warmup=0):
            third_party_loaders.seed()
            iterator = iter(around().Around(a_loader()))
            first = next(iterator)
        batches = [first, *iterator]

        third_party_loaders.seed()
        assert same(batches, list(around().Around(a_loader())))

    def test_an_error_passes_unchanged(self, around):
        """Of the library's, in its own work."""
        with pytest.raises(TypeError, match="unsupported operand"), ss.instrumented():
            module = around()
            list(module.Around(DataLoader([None], batch_size=None)))
        assert 1 == len(module.closed)

    def test_without_a_loader_inside_it_is_nothing(self, around):
        """Only loaders are recorded; a list of batches beside one is not taken for a loader."""
        with ss.instrumented(warmup=0) as watch:
            numbers = list(around().Around([1, 2, 3]))
            batches = list(a_loader())

        assert ([2, 3, 4], 4) == (numbers, len(batches))
        assert (4, ()) == (watch.run.all_steps.height, watch.run.others)


class Guarded:
    """A loader that raises on any attribute; it can only be iterated."""

    def __init__(self, loader):
        self.__dict__["__loader__"] = loader

    def __iter__(self):
        return iter(self.__dict__["__loader__"])

    def __getattribute__(self, name):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(name)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_raises_on_any_attribute_is_recorded(workers):
    """Driven and watched; the batches are those of plain iteration."""
    loader, used = Guarded(DataLoader(range(64), 4, num_workers=workers)), []
    plain = [batch.tolist() for batch in loader]

    run = ss.record(loader, lambda batch: used.append(batch.tolist()), batches=6, warmup=1)
    with ss.instrumented(loader, warmup=0) as watch:
        watched = [batch.tolist() for batch in loader]

    assert plain[: len(used)] == used
    assert plain == watched
    assert (7, 16) == (run.all_steps.height, watch.run.all_steps.height)
