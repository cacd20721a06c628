"""Orders of a stream's transforms, from samples that were recorded once."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.pipelines import halve, middle, triple
from support.planted_costs import BusyOp
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision.transforms import v2

import stallscope as ss
from stallscope.demo import case_a_loader, make_shards

COST_S = 0.004


class SlowByPixel:
    """Takes time for each pixel: 1 ms for 1,000."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        BusyOp(image.numel() * 1e-6)(None)
        return image + 1


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


def slow_then_crop() -> Any:
    return v2.Compose([SlowByPixel(), middle])


def found(dataset: Any, **named: Any) -> ss.Orders:
    return ss.orders(DataLoader(dataset, batch_size=4, **named), samples=8, budget_s=8)


@pytest.mark.parametrize("shuffles", [False, True])
def test_the_faster_order_of_a_stream(shuffles):
    """The crop first; reading, which costs each of them as much, is part of both times."""
    orders = found(Stream(slow_then_crop(), shuffles=shuffles))

    best = orders.best()
    assert "middle before SlowByPixel" == best["change"]
    assert "identical" == best["equivalence"]
    as_it_is = orders.table().filter(trial=0).row(0, named=True)
    assert as_it_is["predicted_s"] > COST_S + 0.0048
    assert best["speedup"] < 2.5  # of the ops alone four times


def test_applied_to_the_stream():
    """The new loader gives the same data, and the user's own stays as it was."""
    dataset = Stream(slow_then_crop())
    orders = found(dataset)
    loader = DataLoader(Stream(slow_then_crop()), batch_size=4)
    other = orders.apply(loader)

    assert dataset.passes == 0
    assert dataset.draw.random() == random.Random(3).random()
    before, after = next(iter(loader)), next(iter(other))
    loader.dataset.draw = random.Random(3)
    after = next(iter(other))
    assert torch.equal(before["label"], after["label"])
    assert before["image"].shape == after["image"].shape


def test_a_row_of_ops_and_a_result_that_the_sample_does_not_hold():
    class Doubled(Stream):
        def __iter__(self):
            for sample in super().__iter__():
                yield sample["image"] * 2

    orders = found(Doubled(slow_then_crop()), num_workers=1)

    assert "middle before SlowByPixel" == orders.best()["change"]


def test_one_order_only():
    assert "Keep the pipeline" in str(found(Stream(v2.Compose([halve, triple]))))


@pytest.mark.parametrize("samples", [4])
def test_the_arguments_of_webdataset_steps(tmp_path, samples):
    """Case A: the pipeline is an argument of `map_tuple`."""
    pytest.importorskip("webdataset")
    loader = case_a_loader(make_shards(tmp_path, 1, 8), num_workers=0)
    orders = ss.orders(loader, samples=samples, budget_s=12)

    assert {"Resize", "CenterCrop"} <= set(orders.ops["name"])
    code = orders.code() if orders.best() else ""
    assert not code or ".args = (" in code


def test_a_stream_that_needs_its_worker_is_told_where_it_ran():
    class Sharded(Stream):
        def __iter__(self):
            yield from list(super().__iter__())[get_worker_info().id :: 2]

    with pytest.raises(AttributeError) as raised:
        found(Sharded(slow_then_crop()), num_workers=2)

    assert "get_worker_info() is None" in raised.value.__notes__[0]
