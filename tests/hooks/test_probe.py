"""Every kind of hook puts a planted cost into the right stage, to the nanosecond."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from support.virtual_pipeline import CLOCK, Numbers, Op, OtherOp, log_in, record, time_of
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    default_convert,
    random_split,
)
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.hooks.event_log import TAGS, Tag
from stallscope.run.decode import decode

SAMPLES = 4  # two batches of two


class Layer(nn.Module):
    def forward(self, x: Any) -> Any:
        CLOCK.spend(30)
        return x


class Outer:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Any) -> Any:
        CLOCK.spend(5)
        return self.inner(x)


class Joint:
    """A transform of image and target together."""

    def __call__(self, image: Any, target: Any) -> Any:
        CLOCK.spend(40)
        return image, target


class Keyed:
    """A transform of one entry of a dict."""

    def __init__(self, keys: Any) -> None:
        self.keys = keys

    def __call__(self, sample: dict) -> dict:
        CLOCK.spend(20)
        return sample


class OfPairs(Dataset):
    """A dataset with a joint transform and a target transform."""

    def __init__(self) -> None:
        self.transforms = Joint()
        self.target_transform = Op(7)

    def __getitem__(self, index: int) -> Any:
        image, target = self.transforms(index, index)
        return image, self.target_transform(target)


class WithHelpers(Dataset):
    """A dataset that does its work in methods and functions of its own."""

    def __getitem__(self, index: int) -> Any:
        return augment(self._load_image(index)) + measure(0)

    def _load_image(self, index: int) -> Any:
        CLOCK.spend(100)
        return index


def augment(x: Any) -> Any:
    """A helper whose name says that it transforms."""
    CLOCK.spend(50)
    return x


def measure(x: Any) -> Any:
    CLOCK.spend(3)
    return x


class ByHelper:
    """An op that calls what a dataset may also call by itself."""

    def __call__(self, x: Any) -> Any:
        return augment(x) + measure(0)


class WithLoader(Dataset):
    """A dataset that keeps its reader in a slot, as torchvision's folders do."""

    def __init__(self) -> None:
        self.loader = augment  # whatever stands there: the slot says what it is
        self.transform = lambda x: (CLOCK.spend(9), x)[1]

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.loader(index))


class Flaky:
    """An op that fails on the first try of each sample."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, x: Any) -> Any:
        CLOCK.spend(10)
        self.failed = not self.failed
        if self.failed:
            raise ValueError("first try")
        return x


class Retrying(Numbers):
    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except ValueError:
            return super().__getitem__(index)


class Bulk(Numbers):
    """A dataset that makes all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        CLOCK.spend(6)
        return [index * 2 for index in indices]


class BulkBySample(Numbers):
    """A dataset whose `__getitems__` calls its `__getitem__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __iter__(self) -> Any:
        for index in range(8):
            CLOCK.spend(2)
            yield self.transform(index)


class Again(Numbers):
    """A dataset whose `__getitem__` calls itself with a second argument."""

    def __getitem__(self, index: int, *, tries: int = 0) -> Any:
        return super().__getitem__(index) if tries else self.__getitem__(index, tries=1)


def normalize(_: Any) -> Any:
    raise AssertionError


class WithSettings(Numbers):
    """A dataset with class settings; one is False and has the name of a function."""

    MEAN = np.zeros(3)
    normalize = False

    def __getitem__(self, index: int) -> Any:
        assert not self.MEAN.any()
        return normalize(index) if self.normalize else super().__getitem__(index)


class Inline(Numbers):
    """A dataset that creates an op for each sample, of the same class as its transform."""

    def __getitem__(self, index: int) -> Any:
        return Op(5)(super().__getitem__(index))


class Late(Dataset):
    """A dataset that builds its pipeline when it is first used."""

    transform = None

    def __getitem__(self, index: int) -> Any:
        if self.transform is None:
            Late.transform = v1.Compose([Op(11), lambda x: (CLOCK.spend(4), x)[1]])
        return Late.transform(index)


def named(x: Any) -> Any:
    """A function in a list of transforms."""
    CLOCK.spend(8)
    return x


shared = Op(10)
CASES = {
    "code of __getitem__ itself": (Numbers(), {"getitem": 1}),
    "an op in a slot": (Numbers(Op(10)), {"getitem": 1, "Op": 10}),
    "an inherited __call__": (Numbers(OtherOp(10)), {"getitem": 1, "OtherOp": 10}),
    "nested v1 Compose": (
        Numbers(v1.Compose([Op(10), v1.Compose([OtherOp(20), Layer()])])),
        {"getitem": 1, "Op": 10, "OtherOp": 20, "Layer": 30},
    ),
    "nested v2 Compose": (
        Numbers(v2.Compose([Op(10), v2.Compose([Layer()])])),
        {"getitem": 1, "Op": 10, "Layer": 30},
    ),
    "nn.Sequential": (
        Numbers(nn.Sequential(Layer(), nn.Sequential(Layer()))),
        {"getitem": 1, "Layer": 30, "Layer #2": 30},
    ),
    "v1 RandomApply": (Numbers(v1.RandomApply([Op(10)], p=1.0)), {"getitem": 1, "Op": 10}),
    "v2 RandomApply": (Numbers(v2.RandomApply([Layer()], p=1.0)), {"getitem": 1, "Layer": 30}),
    "v1 RandomChoice": (
        Numbers(v1.RandomChoice([Op(10), Op(10)], p=[1, 0])),
        {"getitem": 1, "Op": 10},
    ),
    "v2 RandomChoice": (
        Numbers(v2.RandomChoice([Layer(), OtherOp(1)], p=[1, 0])),
        {"getitem": 1, "Layer": 30},
    ),
    "two ops of one class": (
        Numbers(v1.Compose([Op(10), Op(20)])),
        {"getitem": 1, "Op": 10, "Op #2": 20},
    ),
    "the same object twice": (Numbers(v1.Compose([shared, shared])), {"getitem": 1, "Op": 20}),
    "a function and a lambda": (
        Numbers(v1.Compose([named, lambda x: (CLOCK.spend(4), x)[1]])),
        {"getitem": 1, "named": 8, "lambda (test_probe.py:*)": 4},
    ),
    "torchvision's Lambda": (
        Numbers(v1.Compose([v1.Lambda(named)])),
        {"getitem": 1, "Lambda(named)": 8},
    ),
    "a partial": (Numbers(functools.partial(named)), {"getitem": 1, "named": 8}),
    "one op calling another": (Numbers(Outer(Op(10))), {"getitem": 1, "Outer": 5, "Op": 10}),
    "joint transforms and a target transform": (OfPairs(), {"Joint": 40, "Op": 7}),
    "a dict transform": (Numbers(Keyed(["image"])), {"getitem": 1, "Keyed": 20}),
    "helpers of the dataset": (WithHelpers(), {"fetch": 100, "augment": 50, "getitem": 3}),
    "a loader in a slot": (WithLoader(), {"fetch": 50, "lambda (test_probe.py:*)": 9}),
    "a helper inside an op": (Numbers(ByHelper()), {"getitem": 1, "ByHelper": 53}),
    "an op that raises": (Retrying(Flaky()), {"getitem": 2, "Flaky": 20}),
    "Subset": (Subset(Numbers(Op(10)), [5, 4, 3, 2]), {"getitem": 1, "Op": 10}),
    "Subset of Subset": (
        Subset(Subset(Numbers(Op(10)), [5, 4, 3, 2]), [0, 1, 2, 3]),
        {"getitem": 1, "Op": 10},
    ),
    "ConcatDataset": (
        ConcatDataset([Numbers(Op(10), 2), Numbers(OtherOp(10), 2)]),
        {"getitem": 1, "Op": 5, "OtherOp": 5},
    ),
    "random_split": (random_split(Numbers(Op(10)), [4, 4])[1], {"getitem": 1, "Op": 10}),
    "__getitems__ over __getitem__": (BulkBySample(Op(10)), {"getitem": 1, "Op": 10}),
    "__getitems__ at once": (Bulk(), {"getitem": 3}),
    "a __getitem__ with more than an index": (
        random_split(Again(Op(10)), [4, 4])[1],
        {"getitem": 1, "Op": 10},
    ),
    "settings of the dataset's class": (WithSettings(Op(10)), {"getitem": 1, "Op": 10}),
    "an op that is made for each sample": (Inline(Op(10)), {"getitem": 1, "Op": 15}),
    "an iterable dataset": (Stream(Op(10)), {"getitem": 2, "Op": 10}),
    "a pipeline that is built late": (Late(), {"Op": 11, "lambda (test_probe.py:*)": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_planted_cost_is_found_in_its_stage(case, tmp_path):
    """A cost planted in this kind of place is charged to its stage, and nothing is left over.

    Every sample has its place in the batch and, in a map-style dataset, the sampler's index.
    """
    dataset, expected = CASES[case]

    decoded = record(dataset, tmp_path)

    costs_ns = {_without_line(stage): ns / SAMPLES for stage, ns in time_of(decoded).items()}
    assert expected == costs_ns
    if case.startswith("__getitems__"):
        assert decoded.samples.is_empty()  # nobody can tell one sample from the next
        return
    indices = [None] * SAMPLES if isinstance(dataset, IterableDataset) else [*range(SAMPLES)]
    assert [0, 1, 0, 1] == decoded.samples["sample"].to_list()
    assert indices == decoded.samples["index"].to_list()


def _without_line(stage: str) -> str:
    head, colon, _ = stage.partition(":")
    return f"{head}:*)" if colon else stage


def test_collate_and_what_it_calls_belong_to_the_batch(tmp_path):
    """The collate function is a stage of the batch, and so is an op inside it."""
    op = Op(5)

    def collate(samples: Any) -> Any:
        CLOCK.spend(100)
        return op(samples)

    decoded = record(Numbers(op), tmp_path, collate=collate)

    of_batch = decoded.spans.filter(decoded.spans["sample"].is_null())
    assert {"collate": 2 * 100, "Op": 2 * 5} == time_of(decoded._replace(spans=of_batch))


class TestWithoutBatches:
    @pytest.mark.parametrize(
        ("dataset", "indices", "getitem_ns"),
        [(Numbers(Op(10)), [3, 4], 2), (Stream(Op(10)), [None, None], 4)],
        ids=["map", "stream"],
    )
    def test_one_index_is_a_sample(self, dataset, indices, getitem_ns, tmp_path):
        """With `batch_size=None` each index of the sampler, each item of a stream, is a sample."""
        decoded = record(dataset, tmp_path, batches=indices, auto=False, collate=default_convert)

        assert indices == decoded.samples["index"].to_list()
        assert {"getitem": getitem_ns, "Op": 20} == time_of(decoded)

    def test_a_list_of_indices_is_a_batch(self, tmp_path):
        """A sampler that gives lists makes the dataset give batches: no samples are invented."""

        class Batches(Dataset):
            def __getitem__(self, indices: list[int]) -> Any:
                CLOCK.spend(10)
                return torch.tensor(indices)

        decoded = record(
            Batches(), tmp_path, batches=([1, 2], [3, 4]), auto=False, collate=default_convert
        )

        assert decoded.samples.is_empty()
        assert {"getitem": 20} == time_of(decoded)


def test_cpu_time_is_read_for_every_kth_sample(tmp_path):
    """Every k-th sample has a CPU time, here equal to its duration; the others have null."""
    spans = record(Numbers(Op(100_000)), tmp_path, batches=[range(16)] * 3).spans

    read = spans.filter(spans["cpu_ns"].is_not_null() & (spans["stage"] == "Op"))
    assert 0 < read.height < spans.filter(spans["stage"] == "Op").height
    assert (read["cpu_ns"] == read["end_ns"] - read["start_ns"]).all()


def test_quick_samples_are_recorded_rarely(tmp_path):
    """If recording would cost too much, only every k-th batch is recorded."""
    decoded = record(Numbers(), tmp_path, batches=[range(16)] * 60, cost_share=0.02)

    tags = log_in(tmp_path).words & TAGS
    skipped = int((tags == Tag.SKIPPED).sum())
    assert 0 < skipped < 60
    assert 60 == skipped + decoded.batches.height


def test_a_batch_that_fills_its_log_is_incomplete(tmp_path):
    """The samples that found room are recorded; the reader knows that later words are missing."""
    decoded = record(Numbers(Op(10**8)), tmp_path, batches=[(0,) * 50], capacity=200)

    assert [False] == decoded.batches["complete"].to_list()
    assert 10 < decoded.samples.height < 50
    assert decoded.log.is_full


def test_the_innermost_failing_stage_is_named(tmp_path):
    """The log names the sample that fails and the op that raises."""

    def bad(x: Any) -> Any:
        if x == 3:
            raise KeyError(x)
        return x

    with pytest.raises(KeyError):
        record(Numbers(v1.Compose([Op(10), Outer(bad)])), tmp_path)

    raised = decode(log_in(tmp_path), origin_ns=0).raised
    assert raised.endswith("in 'Outer' of batch 1, sample 1 of the batch (index 3 of the dataset)")
