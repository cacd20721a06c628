"""Which pipeline of a dataset is taken, and when a row of ops is believed."""

from __future__ import annotations

import pytest
from support.pipelines import ROOM, InTurn, Listed, Tensors, halve, middle, triple
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from stallscope.orders.capture import NoPipelineError, capture


def captured(dataset, samples=4):
    """The pipeline of a dataset."""
    return capture(DataLoader(dataset, batch_size=2), samples, ROOM)


def names(dataset):
    """Its ops."""
    return [op.name for op in captured(dataset)[0].chain.ops]


class Backwards(InTurn):
    """Calls its ops the other way round."""

    def __call__(self, image):
        for op in reversed(self.ops):
            image = op(image)
        return image


class Two(Tensors):
    """Calls two pipelines, one after the other."""

    def __init__(self, first, second):
        super().__init__(first)
        self.augment = second

    def __getitem__(self, index):
        return self.augment(self.transform(self.image(index))), index


def test_a_compose_of_the_users_is_believed_if_it_calls_its_ops_in_turn():
    """That is tried, on copies."""
    assert ["halve", "middle"] == names(Tensors(InTurn(halve, middle)))


def test_what_does_not_call_its_ops_in_turn_is_one_op():
    """And it is said."""
    site, _, (note,) = captured(Tensors(Backwards(middle, by_size)))

    assert ["Backwards"] == [op.name for op in site.chain.ops]
    assert "taken as one op" in note


def by_size(image):
    """Depends on how large the image is, so that the order of the ops shows."""
    return image + image.shape[-1]


def test_of_two_pipelines_the_longer_one_is_taken():
    """The other one is named."""
    site, _, (note,) = captured(Two(halve, v2.Compose([triple, middle])))

    assert ["triple", "middle"] == [op.name for op in site.chain.ops]
    assert "only dataset.augment was looked at: the dataset also calls dataset.transform" in note


def test_a_list_that_the_dataset_calls_is_a_pipeline():
    """What goes into the first and comes out of the last is known."""
    site, samples, _ = captured(Listed([halve, middle]))

    assert ["halve", "middle"] == [op.name for op in site.chain.ops]
    assert (0,) == site.where
    assert (3, 32, 36) == samples[0].given.args[0].shape


def test_as_many_samples_as_fit():
    """Large samples are fewer, which is said."""
    loader = DataLoader(Tensors(v2.Compose([halve, middle])), batch_size=2)

    _, samples, (note,) = capture(loader, 8, 200_000)

    assert 1 <= len(samples) < 8
    assert "were used: each needs" in note


def test_a_pipeline_that_is_not_called_is_none():
    """It is named in the error."""

    class Idle(Tensors):
        def __getitem__(self, index):
            return self.image(index)

    with pytest.raises(NoPipelineError, match=r"it holds dataset\.transform, uncalled"):
        captured(Idle(halve))


def test_a_dataset_that_insists_on_its_own_compose_is_said():
    """As MONAI's CacheDataset does: it works, but not with anything else in that place."""

    class Insists(Tensors):
        def __getitem__(self, index):
            if not isinstance(self.transform, v2.Compose):
                raise TypeError("give a Compose")
            return self.transform(self.image(index))

    with pytest.raises(NoPipelineError, match=r"does more with its pipeline.*give a Compose"):
        captured(Insists(v2.Compose([halve, middle])))
