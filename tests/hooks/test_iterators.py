"""Libraries with iterators of their own: the same batches, their stages by name, nothing left."""

import functools
import sys
from itertools import islice
from typing import Any

import pytest
from support import third_party_loaders
from support.libraries import called, library, same
from support.third_party_loaders import LIBRARIES, OPS
from support.virtual_pipeline import CLOCK, record, time_of
from torch.utils.data import Subset

import stallscope as ss

pytestmark = pytest.mark.slow  # what only `.[ci]` installs
BATCHES = 6
MODULES = {
    "webdataset": ("webdataset.pipeline",),
    "Hugging": ("datasets.iterable_dataset", "datasets.formatting.formatting"),
}
NAMES = [name for name in LIBRARIES if called(name) in MODULES]


def batches_of(name: str, *, recorded: bool) -> tuple[list[Any], Any]:
    """Return the first batches of a loader, and their run if `recorded`."""
    third_party_loaders.seed()
    loader = LIBRARIES[name]()
    third_party_loaders.seed()
    if not recorded:
        return list(islice(iter(loader), BATCHES)), None
    with ss.instrumented(warmup=0) as watch:
        batches = list(islice(iter(loader), BATCHES))
    return batches, watch.run


def functions_of(package: str) -> dict[tuple[str, str, str], int]:
    """Return the identity of every function that an adapter could change."""
    return {
        (module, cls.__qualname__, name): id(value)
        for module in MODULES[package]
        for cls in vars(sys.modules[module]).values()
        if isinstance(cls, type) and cls.__module__ == module
        for name, value in vars(cls).items()
        if callable(value)
    }


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_the_same_and_stages_have_names(name):
    """A recording changes no bit of a batch, and sees an op that every sample goes through."""
    library(name)
    plain, _ = batches_of(name, recorded=False)
    recorded, run = batches_of(name, recorded=True)
    assert len(plain) == BATCHES
    assert same(plain, recorded)
    stages, op = set(run.work["stage"]), OPS[name]
    assert not op or op in stages
    assert not [stage for stage in stages if stage.startswith("apply")]
    assert not [note for note in run.notes if "cannot be hooked" in note or "not seen" in note]


@pytest.mark.parametrize("name", NAMES)
def test_the_main_process_is_left_as_it_was(name, monkeypatch):
    package = library(name)
    monkeypatch.setattr(third_party_loaders, "WORKERS", 0)
    plain, _ = batches_of(name, recorded=False)
    before = functions_of(package)
    recorded, run = batches_of(name, recorded=True)
    assert functions_of(package) == before
    assert same(plain, recorded)
    assert not OPS[name] or OPS[name] in set(run.work["stage"])


def spend(ns: int, value: Any) -> Any:
    CLOCK.spend(ns)
    return value


def slowly(samples: Any) -> Any:
    """A step of the user's that works before and after it pulls."""
    for sample in samples:
        CLOCK.spend(30)
        yield sample


def double(sample: Any) -> Any:
    return spend(200, sample)


def whole(examples: Any) -> Any:
    """A transform of the user's that gets whole batches."""
    return spend(50, examples)


def test_nested_steps_have_their_own_time(tmp_path):
    """A step's time is not that of the steps it pulls from; the end of the data is no failure."""
    wds = pytest.importorskip("webdataset")
    numbers = [{"number": number} for number in range(4)]
    dataset = wds.DataPipeline(
        lambda: (spend(1000, sample) for sample in numbers),
        functools.partial(slowly),
        functools.partial(slowly),
        wds.map(double),
    )
    decoded = record(dataset, tmp_path, batches=[(0, 0), (0, 0)], collate=list)
    times = time_of(decoded)
    assert times["slowly"] == times["slowly #2"] == 4 * 30
    assert times["double"] == 4 * 200
    assert sum(times.values()) == 4 * (1000 + 30 + 30 + 200)


def test_a_mapped_function_is_a_stage(tmp_path):
    """`map` and `filter` of an iterable dataset: the user's functions by their own names."""
    datasets = pytest.importorskip("datasets")
    numbers = datasets.Dataset.from_list([{"number": number} for number in range(4)])
    dataset = numbers.to_iterable_dataset().map(double).filter(whole)
    times = time_of(record(dataset, tmp_path, batches=[(0, 0), (0, 0)], collate=list))
    assert times == {"double": 4 * 200, "whole": 4 * 50}


def test_a_transform_of_whole_batches_is_a_stage(tmp_path):
    """`set_transform` with a plain function; a batch is not taken for a sample."""
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list([{"number": number} for number in range(4)])
    dataset.set_transform(whole)
    subset = Subset(dataset, range(4))
    decoded = record(subset, tmp_path, batches=[[0, 1], [2, 3]], collate=list)
    assert time_of(decoded) == {"whole": 2 * 50}
    assert decoded.spans.filter(decoded.spans["stage"] == "whole").height == 2
    assert decoded.samples.is_empty()


def test_samples_of_fastai_have_their_numbers():
    """Torch gets whole batches from fastai, whose samples have their own indices."""
    pytest.importorskip("fastai")
    _, run = batches_of("fastai", recorded=True)
    samples = run.samples(steady=False)
    assert samples["index"].null_count() == 0
    sizes = samples.group_by("epoch", "batch").len()["len"].unique().to_list()
    assert sizes == [third_party_loaders.SIZE]
