"""The pipeline of a dataset or a stream, and the samples that were recorded from it."""

import random
from typing import Any

import pytest
import torch
from support.pipelines import ROOM, InTurn, Listed, SlowByPixel, Tensors, halve, middle, triple
from support.planted_costs import BusyOp
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision.transforms import v2

import stallscope as ss
from stallscope.demo import case_a_loader, make_shards
from stallscope.verbs.orders.capture import capture

COST_S = 0.004


def captured(dataset, samples=4):
    """The pipeline of a dataset."""
    return capture(DataLoader(dataset, batch_size=2), samples, ROOM)


def names(dataset):
    """Its ops."""
    return [op.name for op in captured(dataset)[0].chain.ops]


def test_a_compose_of_the_users_is_believed_if_it_calls_its_ops_in_turn():
    assert ["halve", "middle"] == names(Tensors(InTurn(halve, middle)))


class Held(Tensors):
    """Holds its pipelines in a dictionary."""

    def __getitem__(self, index):
        return self.transform["train"](self.image(index)), index


def test_a_pipeline_in_a_dictionary():
    dataset = Held({"train": v2.Compose([halve, middle]), "val": halve})

    site, *_ = captured(dataset)
    tripled = site.place.filled(dataset, triple)

    assert "dataset.transform['train']" == site.place.text
    assert (triple, halve) == (tripled.transform["train"], tripled.transform["val"])
    assert dataset.transform["train"] is not triple


def test_a_list_that_the_dataset_calls_is_a_pipeline():
    """The input of the first op and the result of the last are recorded."""
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


# ---- streams -------------------------------------------------------------------------------------


class Stream(IterableDataset):
    """Images with labels, each read in some time."""

    def __init__(self, transform: Any, *, shuffles: bool = False) -> None:
        self.transform, self.shuffles = transform, shuffles
        self.draw = random.Random(3)
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        buffer = []
        for label in range(64):
            BusyOp(COST_S)(None)
            image = torch.full((3, 40, 40), float(label)) + self.draw.random()
            buffer.append({"image": self.transform(image), "label": label})
            if len(buffer) > 8 * self.shuffles:
                yield buffer.pop(self.draw.randrange(len(buffer)))
        yield from buffer


def orders_of(dataset: Any, **named: Any) -> ss.Orders:
    return ss.orders(DataLoader(dataset, batch_size=4, **named), samples=8, budget_s=4)


@pytest.mark.parametrize("shuffles", [False, True])
def test_the_faster_order_of_a_stream(shuffles):
    """The crop first; reading, which costs each of them as much, is part of both times."""
    orders = orders_of(Stream(v2.Compose([SlowByPixel(), middle]), shuffles=shuffles))

    best = orders.best()
    assert "middle before SlowByPixel" == best["change"]
    assert "identical" == best["equivalence"]
    as_it_is = orders.table().filter(trial=0).row(0, named=True)
    assert as_it_is["predicted_s"] > COST_S + 0.0048
    assert best["speedup"] < 2.5  # of the ops alone four times


def test_applied_to_the_stream():
    """The new loader gives the same data, and the user's own stays as it was."""
    dataset = Stream(v2.Compose([SlowByPixel(), middle]))
    orders = orders_of(dataset)
    loader = DataLoader(Stream(v2.Compose([SlowByPixel(), middle])), batch_size=4)
    applied = orders.apply(loader)

    assert dataset.passes == 0
    assert dataset.draw.random() == random.Random(3).random()
    before = next(iter(loader))
    loader.dataset.draw.seed(3)  # the copy of the dataset draws from the same generator
    after = next(iter(applied))
    assert torch.equal(before["label"], after["label"])
    assert torch.equal(before["image"], after["image"])


def test_a_row_of_ops_and_a_result_that_the_sample_does_not_hold():
    class Doubled(Stream):
        def __iter__(self):
            for sample in super().__iter__():
                yield sample["image"] * 2

    orders = orders_of(Doubled(v2.Compose([SlowByPixel(), middle])), num_workers=1)

    assert "middle before SlowByPixel" == orders.best()["change"]


def test_one_order_only():
    assert "Keep the pipeline" in str(orders_of(Stream(v2.Compose([halve, triple]))))


def test_the_arguments_of_webdataset_steps(tmp_path):
    """Case A: the pipeline is an argument of `map_tuple`."""
    pytest.importorskip("webdataset")
    loader = case_a_loader(make_shards(tmp_path, 1, 8), num_workers=0)
    orders = ss.orders(loader, samples=4, budget_s=6)

    assert {"Resize", "CenterCrop"} <= set(orders.ops["name"])
    code = orders.code() if orders.best() else ""
    assert not code or ".args = (" in code


def test_a_stream_that_needs_its_worker_is_told_where_it_ran():
    class Sharded(Stream):
        def __iter__(self):
            yield from list(super().__iter__())[get_worker_info().id :: 2]

    with pytest.raises(AttributeError) as raised:
        orders_of(Sharded(v2.Compose([SlowByPixel(), middle])), num_workers=2)

    assert "get_worker_info() is None" in raised.value.__notes__[0]
