"""A pipeline as a row of ops, and put together again."""

from __future__ import annotations

import pytest
import torch
from support.pipelines import InTurn, Tensors, halve, middle, triple
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.verbs.orders.pipeline import Chain

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
    """Every kind of compose gives its ops, and a new one of its kind in another order."""
    chain = Chain(value)
    halve_, middle_ = (op.call for op in chain.ops)

    other = chain.put_together([middle_, halve_])

    assert kind == chain.kind
    assert ["halve", "middle"] == names(value)
    assert ["middle", "halve"] == names(other)
    assert type(other) is type(value)
    assert ["halve", "middle"] == names(value)


def test_a_sequential_is_one_too():
    """Its modules are ops, and it stays a module."""
    value = nn.Sequential(nn.ReLU(), nn.Flatten())
    chain = Chain(value)

    other = chain.put_together([op.call for op in reversed(chain.ops)])

    assert ["Flatten", "ReLU"] == names(other)
    assert torch.equal(other(torch.ones(2, 3)), torch.ones(2, 3))


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
    """What chooses among its parts is one op, as is a function."""
    assert 1 == len(Chain(value).ops)


def test_more_ops_than_one_need_a_compose():
    """Where the pipeline was a single op, a row of ours stands in its place."""
    made = Chain(halve).put_together([triple, halve])

    assert torch.equal(made(IMAGE), halve(triple(IMAGE)))


def test_knows_where_its_code_is():
    """File and line, for the notebook on lines; nothing for what is not Python."""
    file, line = Chain(halve).ops[0].source

    assert str(file).endswith("pipelines.py")
    assert line == halve.__code__.co_firstlineno
    assert (None, None) == Chain(abs).ops[0].source
