"""The words for what an order changes, and the source that makes it."""

from __future__ import annotations

import pytest
from support.pipelines import Listed, Tensors, halve, middle, triple
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from stallscope.verbs.orders.pipeline import Chain, places
from stallscope.verbs.orders.variant import Site, Variant, change_of

NAMES = "ABCDE"


@pytest.mark.parametrize(
    ("positions", "change"),
    [
        ((0, 1, 2), "as it is"),
        ((1, 0, 2), "B before A"),
        ((2, 0, 1), "C before A"),
        ((1, 2, 0), "A last"),
        ((0, 2, 1, 4, 3), "C before B, E before D"),
    ],
)
def test_as_few_ops_as_possible_are_said_to_move(positions, change):
    """Those outside of a longest row that kept its order."""
    assert change == change_of(positions, NAMES)


class Holder:
    """A compose of the user's with a tuple."""

    def __init__(self, *ops):
        self.steps = ops

    def __call__(self, image):
        for op in self.steps:
            image = op(image)
        return image


@pytest.mark.parametrize(
    "dataset",
    [
        Tensors(v2.Compose([triple, v2.Compose([halve, middle])])),
        Tensors(Holder(triple, halve, middle)),
        Listed([triple, halve, middle]),
        Listed((triple, halve, middle)),
        Tensors(nn.Sequential(v2.Lambda(triple), v2.Lambda(halve), v2.Lambda(middle))),
    ],
)
def test_the_source_can_be_run(dataset):
    """It puts a pipeline of the same kind in the place, with the ops in the order."""
    loader = DataLoader(dataset)
    (place,) = places(dataset)
    before = [op.call for op in Chain(place.value).ops]

    exec(Site(place, Chain(place.value), ()).code_of(Variant((2, 0, 1))), {"loader": loader})  # noqa: S102 - our own text

    made = Chain(place.found_in(dataset))
    assert [before[2], before[0], before[1]] == [op.call for op in made.ops]
    assert type(made.value) is type(place.value)
