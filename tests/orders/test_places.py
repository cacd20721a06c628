"""Finding where a dataset holds its pipeline, and datasets with another one in that place."""

from __future__ import annotations

import pytest
from support.pipelines import Listed, Tensors, halve, middle
from torch.utils.data import ConcatDataset, Subset

from stallscope.verbs.orders.pipeline import places


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


def test_what_loads_or_is_for_labels_is_no_pipeline():
    """By its name, as everywhere."""
    dataset = Tensors(None)
    dataset.loader = halve
    dataset.target_transform = halve
    dataset.paths = ["a", "b"]

    assert [] == places(dataset)
