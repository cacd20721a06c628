"""Which pipeline of a dataset is taken, and when a row of ops is believed."""

from __future__ import annotations

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

from stallscope.verbs.orders.capture import capture


def captured(dataset, samples=4):
    """The pipeline of a dataset."""
    return capture(DataLoader(dataset, batch_size=2), samples, ROOM)


def names(dataset):
    """Its ops."""
    return [op.name for op in captured(dataset)[0].chain.ops]


def test_a_compose_of_the_users_is_believed_if_it_calls_its_ops_in_turn():
    """That is tried, on copies."""
    assert ["halve", "middle"] == names(Tensors(InTurn(halve, middle)))


class Held(Tensors):
    """Holds its pipelines in a dictionary."""

    def __getitem__(self, index):
        return self.transform["train"](self.image(index)), index


def test_a_pipeline_in_a_dictionary():
    """It is found by its key, and another one can be put there."""
    dataset = Held({"train": v2.Compose([halve, middle]), "val": halve})

    site, *_ = captured(dataset)
    other = site.place.filled(dataset, triple)

    assert "dataset.transform['train']" == site.place.text
    assert (triple, halve) == (other.transform["train"], other.transform["val"])
    assert dataset.transform["train"] is not triple


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
