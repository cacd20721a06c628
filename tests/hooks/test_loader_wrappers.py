"""Libraries that wrap a loader: the loop waits for the wrapper, which stays unchanged."""

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
NAMES = ("accelerate", "webdataset's WebLoader, batched again")
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
    """Return whether every step's wait encloses the waits for its loader."""
    rows = run.waits.join(run.all_steps, on=["rank", "step"], suffix="_step")
    before = pl.col("start_ns_step") < pl.col("start_ns")
    return (
        rows.height > 0
        and rows.select((before & (pl.col("end_ns") < pl.col("end_ns_step"))).all()).item()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_loop_waits_for_the_outermost_iterator(name):
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
def test_a_prepared_loader_of_accelerate_is_recognized():
    pytest.importorskip("accelerate")
    loader = third_party_loaders.accelerate()

    with ss.instrumented(loader, warmup=0) as watch:
        batches = len(list(loader))

    assert batches == watch.run.all_steps.height


class TestAnImportMeanwhile:
    def test_is_hooked_and_left_as_it_was(self, around):
        with ss.instrumented(warmup=0) as watch:
            loader = around().Around(a_loader())
            hooked = vars(type(loader))["__iter__"]
            batches = list(loader)

        assert len(loader) == len(batches) == watch.run.all_steps.height
        assert outside_of_inner(watch.run)
        assert hooked is not vars(type(loader))["__iter__"]
        assert hooked.__wrapped__ is vars(type(loader))["__iter__"]

    def test_an_error_passes_unchanged(self, around):
        with pytest.raises(TypeError, match="unsupported operand"), ss.instrumented():
            module = around()
            list(module.Around(DataLoader([None], batch_size=None)))
        assert 1 == len(module.closed)
