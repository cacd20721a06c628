"""Finding where a dataset holds its pipeline, and datasets with another one in that place."""

from __future__ import annotations

import polars as pl
import pytest
from support.pipelines import Listed, Tensors, halve, middle
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import transforms as v1

import stallscope as ss
from stallscope.loops.cached_values import same
from stallscope.orders.pipeline import Chain, places


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

    place, other = both(dataset)

    assert text == place.text
    assert (24, 24) == other[0][0].shape[1:]
    assert (32, 36) == dataset[0][0].shape[1:]
    assert inner.transform is halve


def test_one_pipeline_of_several_datasets_is_one_place():
    """Where datasets share a pipeline, all of them get the other one."""
    dataset = ConcatDataset([Tensors(halve), Tensors(halve)])

    _, other = both(dataset)

    assert {(24, 24)} == {tuple(other[index][0].shape[1:]) for index in (0, 30)}


def test_a_list_of_functions_is_one_place():
    """A list whose items are all callable may be a pipeline."""
    dataset = Listed([halve, middle])

    (place,) = places(dataset)

    assert [halve, middle] == place.value
    assert (32, 36) == place.filled(dataset, [halve])[0][0].shape[1:]


def test_torchvisions_pair_of_transforms():
    """What is done to the image is the place, what is done to the label is not."""
    dataset = Tensors(halve)
    dataset.transforms = StandardTransform(middle, halve)

    assert ["dataset.transform", "dataset.transforms.transform"] == [
        place.text for place in places(dataset)
    ]


def test_what_loads_or_is_for_labels_is_no_pipeline():
    """By its name, as everywhere."""
    dataset = Tensors(None)
    dataset.loader = halve
    dataset.target_transform = halve
    dataset.paths = ["a", "b"]

    assert [] == places(dataset)


class Preset:
    """Holds a compose and calls it, as torchvision's references do."""

    def __init__(self, *ops) -> None:
        self.transforms = v1.Compose(list(ops))

    def __call__(self, image):
        return self.transforms(image)


def test_a_preset_is_taken_apart():
    """Its compose is the place; a copy of the preset calls the other one."""
    dataset = Tensors(Preset(halve, middle))

    (place,) = places(dataset)
    other = place.filled(dataset, v1.Compose([halve]))

    assert ("dataset.transform.transforms", Chain(place.value).ops[1].name) == (
        place.text,
        "middle",
    )
    assert (32, 36) == other[0][0].shape[1:]
    assert (24, 24) == dataset[0][0].shape[1:]


def test_the_ops_of_a_preset_are_put_in_order():
    """And the copy that is applied gives the same samples."""
    loader = DataLoader(Tensors(Preset(halve, middle)), 4)

    orders = ss.orders(loader, samples=4, budget_s=2)

    assert ["halve", "middle"] == orders.ops.filter(pl.col("position") >= 0)["name"].to_list()
    applied = orders.apply(loader, [1, 0])
    assert same(loader.dataset[3], applied.dataset[3])
