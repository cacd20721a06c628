"""Which pipeline of a dataset is taken, and when a row of ops is believed."""

from __future__ import annotations

import pytest
from support.pipelines import (
    ROOM,
    InTurn,
    Listed,
    Tensors,
    halve,
    middle,
    triple,
)
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
    assert "treated as one op" in note
    assert "the data differs" in note


def test_a_compose_that_calls_its_ops_with_other_values_is_one_op():
    """What its first op raises when it gets what the compose gets is said."""

    class Some:
        def __init__(self):
            self.ops = [pair_halve, pair_halve]

        def __call__(self, image):
            pair = (image, image[:1])
            for op in self.ops:
                pair = op(*pair)
            return pair

    _, _, (note,) = captured(Tensors(Some()))

    assert "(TypeError: pair_halve() missing 1 required" in note


def pair_halve(image, mask):
    """For two values."""
    return image / 2, mask


def by_size(image):
    """Depends on how large the image is, so that the order of the ops shows."""
    return image + image.shape[-1]


class Between(Two):
    """Does something of its own between its pipelines."""

    def __getitem__(self, index):
        return self.augment(self.transform(self.image(index)) + 1), index


class Held(Tensors):
    """Holds its pipelines in a dictionary."""

    def __getitem__(self, index):
        return self.transform["train"](self.image(index)), index


def test_of_two_pipelines_the_longer_one_is_taken():
    """Where the dataset's own code stands between, the other one is named, with its time."""
    site, _, (note,) = captured(Between(halve, v2.Compose([triple, middle])))

    assert ["triple", "middle"] == [op.name for op in site.chain.ops]
    assert note.startswith("only dataset.augment was measured; the dataset also calls dataset.tr")


def test_a_pipeline_in_a_dictionary():
    """It is found by its key, and another one can be put there."""
    dataset = Held({"train": v2.Compose([halve, middle]), "val": halve})

    site, *_ = captured(dataset)
    other = site.place.filled(dataset, triple)

    assert "dataset.transform['train']" == site.place.text
    assert (triple, halve) == (other.transform["train"], other.transform["val"])
    assert dataset.transform["train"] is not triple


def test_a_list_of_which_one_op_is_called_is_no_row():
    """It is said: its ops are not called in turn."""

    class Chooses(Tensors):
        def __getitem__(self, index):
            return self.transform[0](self.image(index))

    with pytest.raises(NoPipelineError, match="not all of its parts in turn"):
        captured(Chooses([halve, middle]))


def test_a_list_that_the_dataset_calls_is_a_pipeline():
    """What goes into the first and comes out of the last is known."""
    site, samples, _ = captured(Listed([halve, middle]))

    assert ["halve", "middle"] == [op.name for op in site.chain.ops]
    assert (0,) == site.where
    assert (3, 32, 36) == samples[0].input.args[0].shape


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

    with pytest.raises(NoPipelineError, match=r"does more than call its pipeline.*give a Compose"):
        captured(Insists(v2.Compose([halve, middle])))
