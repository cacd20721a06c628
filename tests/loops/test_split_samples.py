"""Samples cut before their transforms, and finished again."""

import pickle

import pytest
import torch

from stallscope.loops.cached_loaders import Cut
from stallscope.loops.cached_values import same


class Plus:
    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.amount


class InPlace(Plus):
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.add_(self.amount)


class Both:
    """An op on a sample and its target."""

    def __call__(self, image: torch.Tensor, target: torch.Tensor) -> tuple:
        return image + 1, target * 2


class Named:
    """An op in the manner of albumentations."""

    def __call__(self, *, image: torch.Tensor) -> dict:
        return {"image": image + 1}


class Plain:
    """A dataset with a transform and a target."""

    def __init__(self, transform=None):
        self.transform = transform if transform is not None else Plus(1)
        self.read = 0

    def load(self, index: int) -> torch.Tensor:
        self.read += 1
        return torch.full((3,), float(index))

    def __getitem__(self, index):
        return self.transform(self.load(index)), index


class TwoViews(Plain):
    def __getitem__(self, index):
        image = self.load(index)
        return {"views": [self.transform(image), self.transform(image)], "index": index}


class InTurn(Plain):
    def __init__(self):
        super().__init__()
        self.augment = Plus(10)

    def __getitem__(self, index):
        return self.augment(self.transform(self.load(index)))


class Joint(Plain):
    """A dataset whose transform takes a sample and its target together."""

    def __init__(self):
        super().__init__(Both())

    def __getitem__(self, index):
        image, target = self.transform(self.load(index), torch.ones(1))
        return image, target


class ByName(Plain):
    def __init__(self):
        super().__init__(Named())

    def __getitem__(self, index):
        return self.transform(image=self.load(index))["image"], index


class Around:
    def __init__(self):
        self.dataset = Plain()

    def __getitem__(self, index):
        return self.dataset[index]


@pytest.mark.parametrize(
    "dataset",
    [Plain(), Plain(InPlace(1)), TwoViews(), InTurn(), Joint(), ByName(), Around()],
    ids=lambda dataset: type(dataset).__name__,
)
def test_the_ops_alone_reproduce_the_sample(dataset):
    cut = Cut(dataset)
    inner = getattr(dataset, "dataset", dataset)
    before = dict(vars(inner))

    sample, half = cut.make(lambda: dataset[5])
    half = pickle.loads(pickle.dumps(half))  # noqa: S301 - our own
    read = inner.read
    again = [cut.finish(half, copies=half.changed) for _ in range(3)]

    assert all(same(copy, sample) for copy in again)
    assert read == inner.read, "the dataset was read again"
    assert before["transform"] is inner.transform


def test_a_change_in_place_is_seen():
    _, half = Cut(dataset := Plain(InPlace(1))).make(lambda: dataset[5])

    assert half.changed


class After(Plain):
    """A dataset that changes the output of its transform."""

    def __getitem__(self, index):
        return self.transform(self.load(index)) / 2


class Between(InTurn):
    def __getitem__(self, index):
        return self.augment(self.transform(self.load(index)) / 2)


class Never(Plain):
    def __getitem__(self, index):
        return self.load(index)


@pytest.mark.parametrize("dataset", [After(), Between(), Never()])
def test_a_sample_changed_outside_its_ops_has_no_cut(dataset):
    sample, half = Cut(dataset).make(lambda: dataset[5])

    assert half is None
    assert same(sample, dataset[5])


def test_an_op_that_raises_leaves_the_dataset_as_it_was():
    class Raises(Plus):
        def __call__(self, _):
            raise ArithmeticError("no")

    dataset = Plain(op := Raises(1))

    with pytest.raises(ArithmeticError):
        Cut(dataset).make(lambda: dataset[5])
    assert dataset.transform is op


def test_a_dataset_without_ops_has_no_cut():
    assert not Cut([1, 2, 3])
