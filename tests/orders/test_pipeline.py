"""The place of a pipeline in a dataset; its row of ops, and the same put together again."""

import pytest
import torch
from support.pipelines import InTurn, Listed, Tensors, halve, middle, triple
from torch import nn
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.verbs.orders.pipeline import Chain, places

IMAGE = Tensors(None).image(0)


def names(value):
    """The ops' names."""
    return [op.name for op in Chain(value).ops]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (v1.Compose([halve, middle]), "a torchvision Compose"),
        (v2.Compose([halve, middle]), "a torchvision v2 Compose"),
        ([halve, middle], "a list of ops"),
        (InTurn(halve, middle), "a InTurn"),
    ],
)
def test_is_taken_apart_and_put_together(value, kind):
    chain = Chain(value)
    halve_, middle_ = (op.call for op in chain.ops)

    reordered = chain.put_together([middle_, halve_])

    assert kind == chain.kind
    assert ["halve", "middle"] == names(value)
    assert ["middle", "halve"] == names(reordered)
    assert type(reordered) is type(value)
    assert ["halve", "middle"] == names(value)


def test_a_sequential_is_one_too():
    """Its modules are ops, and it stays a module."""
    value = nn.Sequential(nn.ReLU(), nn.Flatten())
    chain = Chain(value)

    reordered = chain.put_together([op.call for op in reversed(chain.ops)])

    assert ["Flatten", "ReLU"] == names(reordered)
    assert torch.equal(reordered(torch.ones(2, 3)), torch.ones(2, 3))


def test_nested_composes_are_flattened():
    """In order; two of a class are told apart, and each knows how to be written."""
    chain = Chain(v2.Compose([v2.Compose([halve, middle]), middle]))

    assert ["halve", "middle", "middle #2"] == [op.name for op in chain.ops]
    assert "old.transforms[0].transforms[1]" == chain.ops[1].code
    assert "old.transforms[1]" == chain.ops[2].code


@pytest.mark.parametrize(
    "value",
    [v2.RandomApply([v2.RandomCrop(8)]), v1.RandomChoice([v1.CenterCrop(8)]), halve, v2.ToImage()],
)
def test_what_is_no_row_is_one_op(value):
    """A transform that chooses among its parts is one op, as is a function."""
    assert 1 == len(Chain(value).ops)


def test_more_ops_than_one_need_a_compose():
    """A row of ours replaces a pipeline of a single op."""
    pipeline = Chain(halve).put_together([triple, halve])

    assert torch.equal(pipeline(IMAGE), halve(triple(IMAGE)))


def test_knows_where_its_code_is():
    """File and line, for the notebook on lines; nothing for what is not Python."""
    file, line = Chain(halve).ops[0].source

    assert str(file).endswith("pipelines.py")
    assert line == halve.__code__.co_firstlineno
    assert (None, None) == Chain(abs).ops[0].source


def both(dataset):
    """The dataset with another function at its only place, and what it then gives."""
    (place,) = places(dataset)
    return place, place.filled(dataset, middle)


@pytest.mark.parametrize(
    ("wrapped", "text"),
    [
        (lambda inner: inner, "dataset.transform"),
        (lambda inner: Subset(inner, [3, 4]), "dataset.dataset.transform"),
        (lambda inner: Subset(Subset(inner, [3, 4]), [0]), "dataset.dataset.dataset.transform"),
        (lambda inner: ConcatDataset([inner]), "dataset.datasets[0].transform"),
    ],
)
def test_is_found_inside_of_other_datasets(wrapped, text):
    """The way to it is known, and a copy of the way leads to something else."""
    inner = Tensors(halve)
    dataset = wrapped(inner)

    place, reordered = both(dataset)

    assert text == place.text
    assert (24, 24) == reordered[0][0].shape[1:]
    assert (32, 36) == dataset[0][0].shape[1:]
    assert inner.transform is halve


def test_one_pipeline_of_several_datasets_is_one_place():
    """Datasets that share a pipeline all get the new one."""
    dataset = ConcatDataset([Tensors(halve), Tensors(halve)])

    _, reordered = both(dataset)

    assert {(24, 24)} == {tuple(reordered[index][0].shape[1:]) for index in (0, 30)}


def test_a_list_of_functions_is_one_place():
    """A list whose items are all callable may be a pipeline."""
    dataset = Listed([halve, middle])

    (place,) = places(dataset)

    assert [halve, middle] == place.value
    assert (32, 36) == place.filled(dataset, [halve])[0][0].shape[1:]


def test_what_loads_or_is_for_labels_is_no_pipeline():
    """An op is named as everywhere."""
    dataset = Tensors(None)
    dataset.loader = halve
    dataset.target_transform = halve
    dataset.paths = ["a", "b"]

    assert [] == places(dataset)
