"""Moving batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from support.loaders import Noise
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.isolation import to_device


class Pair(NamedTuple):
    """A sample of two."""

    image: Any
    label: Any


def test_every_tensor_moves_and_nothing_else_changes():
    """Tensors in lists, tuples, named tuples and dicts are moved; the rest stays as it is."""
    one = torch.ones(1)

    moved = to_device([{"a": one, "b": "text"}, (one, 3), Pair(one, None)], "meta")

    assert "meta" == moved[0]["a"].device.type == moved[1][0].device.type
    assert "meta" == moved[2].image.device.type
    assert ("text", 3, None) == (moved[0]["b"], moved[1][1], moved[2].label)
    assert Pair is type(moved[2])


def test_record_moves_the_batch_before_the_step():
    """With `device` the step gets the batch there."""
    devices = []

    ss.record(DataLoader(Noise(), 4), lambda b: devices.append(b.device.type), device="meta")

    assert {"meta"} == set(devices)
