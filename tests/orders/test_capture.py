"""Which pipeline of a dataset is taken, and when a row of ops is believed."""

from __future__ import annotations

import re

import pytest
import torch
from support.pipelines import (
    ROOM,
    InTurn,
    Listed,
    Noise,
    OwnNoise,
    Tensors,
    halve,
    middle,
    triple,
)
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from stallscope.orders.capture import NoPipelineError, capture
from stallscope.orders.pipeline import Chain


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
            self.ops = [pair_halve, pair_middle]

        def __call__(self, image):
            pair = (image, image[:1])
            for op in self.ops:
                pair = op(*pair)
            return pair

    _, _, (note,) = captured(Tensors(Some()))

    assert "(pair_halve raises TypeError: pair_halve() missing 1 required" in note


def by_size(image):
    """Depends on how large the image is, so that the order of the ops shows."""
    return image + image.shape[-1]


class Between(Two):
    """Does something of its own between its pipelines."""

    def __getitem__(self, index):
        return self.augment(self.transform(self.image(index)) + 1), index


class Kept(Two):
    """Also gives what comes in between."""

    def __getitem__(self, index):
        small = self.transform(self.image(index))
        return self.augment(small), small


class Asks(Two):
    """Asks an op for its settings."""

    def __getitem__(self, index):
        first = self.transform(self.image(index))
        return self.augment(first), index * self.augment.size[0]


class Pairs(Two):
    """Calls its ops with an image and a mask."""

    def __getitem__(self, index):
        image = self.image(index)
        image, mask = self.transform(image, image[:1])
        return self.augment(image, mask)


class ByName(Two):
    """Calls its ops by keyword."""

    def __getitem__(self, index):
        image = self.image(index)
        return self.augment(**self.transform(image=image, mask=image[:1]))


class Held(Tensors):
    """Holds its pipelines in a dictionary."""

    def __getitem__(self, index):
        return self.transform["train"](self.image(index)), index


class Draws(Two):
    """Draws by itself after its ops."""

    def __getitem__(self, index):
        return self.augment(self.transform(self.image(index))), torch.rand(())


def pair_halve(image, mask):
    """For two values."""
    return image / 2, mask


def pair_middle(image, mask):
    """For two values."""
    return middle(image), middle(mask)


def by_name_halve(image, mask):
    """For values by name."""
    return {"image": image / 2, "mask": mask}


def by_name_middle(image, mask):
    """For values by name."""
    return {"image": middle(image), "mask": middle(mask)}


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        (Two(halve, middle), ["halve", "middle"]),
        (Two(halve, v2.Compose([triple, middle])), ["halve", "triple", "middle"]),
        (Draws(Noise(), middle), ["Noise", "middle"]),
        (Draws(OwnNoise("numpy"), middle), ["OwnNoise", "middle"]),
        (Pairs(pair_halve, pair_middle), ["pair_halve", "pair_middle"]),
        (ByName(by_name_halve, by_name_middle), ["by_name_halve", "by_name_middle"]),
    ],
)
def test_attributes_that_are_called_one_after_the_other_are_a_row(dataset, wanted):
    """Each gets what the one before gives; filled the other way round, the others stay as it is."""
    site, _, notes = captured(dataset)
    before = dict(vars(dataset))
    ops = [op.call for op in site.chain.ops]

    other = site.place.filled(dataset, site.chain.put_together([*ops[1:], ops[0]]))

    assert wanted == [op.name for op in site.chain.ops]
    assert [] == notes
    assert before == vars(dataset)
    assert ops[1:] + ops[:1] == [op.call for op in Chain(site.place.found_in(other)).ops]


@pytest.mark.parametrize("dataset", [Kept(halve, middle), Asks(halve, v2.CenterCrop(8))])
def test_a_row_on_which_more_depends_than_its_result_is_left_alone(dataset):
    """A dataset that keeps what comes in between, or looks at an op, would give other samples."""
    site, _, (left_alone, _) = captured(dataset)

    assert "dataset.transform, dataset.augment are called one after the other" in left_alone
    assert 1 == len(site.chain.ops)


def test_of_two_pipelines_the_longer_one_is_taken():
    """Where the dataset's own code stands between, the other one is named, with its time."""
    site, _, (note,) = captured(Between(halve, v2.Compose([triple, middle])))

    assert ["triple", "middle"] == [op.name for op in site.chain.ops]
    assert re.search(r"only dataset\.augment \(\d+%\) was.*calls dataset\.transform \(\d+%\)", note)


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


def test_ops_that_stand_in_no_place_are_named():
    """Functions that the code calls, and what a collate function holds, are in the error."""

    class Inline(Tensors):
        def __getitem__(self, index):
            return middle(halve(self.image(index)))

    loader = DataLoader(Inline(None), collate_fn=InTurn(triple))
    with pytest.raises(NoPipelineError) as caught:
        capture(loader, 4, ROOM)

    assert "its own code calls middle, halve, image, which it does not hold" in str(caught.value)
    assert "the collate function holds ops, which work on batches" in str(caught.value)


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
