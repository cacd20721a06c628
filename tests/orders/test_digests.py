"""Digests: equal for the same bits of the same types, and for nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from stallscope.verbs.orders.equivalence import digest

ZEROS = torch.zeros(2, 3)
GREY = Image.new("L", (4, 2))


class Pair(NamedTuple):
    """A tuple of another type."""

    one: int
    other: int


class Noted(dict):
    """A mapping with attributes beside its items."""


class Traced(torch.Tensor):
    """A tensor with attributes."""


def with_(value, **attributes):
    """A value with attributes."""
    vars(value).update(attributes)
    return value


def box(size):
    """A box on a canvas."""
    return tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=size)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ZEROS, ZEROS.double()),
        (ZEROS, ZEROS.reshape(3, 2)),
        (ZEROS, ZEROS.numpy()),
        (ZEROS, -ZEROS),  # another bit
        (ZEROS, tv_tensors.Mask(ZEROS)),
        (np.zeros(4, np.int32), np.zeros(4, np.float32)),
        (GREY, GREY.convert("P")),
        (GREY, Image.new("L", (2, 4))),
        (GREY, np.asarray(GREY)),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ([1, 2], (1, 2)),
        ((1, 2), Pair(1, 2)),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"b": 1}),
        (box((4, 4)), box((5, 5))),
        (None, "None"),
        (with_(Noted(a=1), size=1), with_(Noted(a=1), size=2)),
        (
            with_(ZEROS.clone().as_subclass(Traced), _meta={"affine": torch.eye(4)}),
            with_(ZEROS.clone().as_subclass(Traced), _meta={"affine": -torch.eye(4)}),
        ),
    ],
)
def test_what_differs_has_another_digest(one, other):
    """In type, dtype, shape, mode, structure or any bit."""
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ZEROS, ZEROS.clone()),
        (ZEROS, torch.zeros(3, 2).T),
        ({"a": 1, "b": ZEROS}, {"b": ZEROS.clone(), "a": 1}),
        (GREY, GREY.copy()),
        (np.zeros((2, 3), order="F"), np.zeros((2, 3))),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (box((4, 4)), box((4, 4))),
        (with_(Noted(a=1), a=1), Noted(a=1)),
        (with_(Noted(), applied_transforms=["Flip", "Noise"]), with_(Noted())),  # torchio's
        (  # MONAI's
            with_(ZEROS.clone().as_subclass(Traced), _applied_operations=[{"id": 1}]),
            with_(ZEROS.clone().as_subclass(Traced), _applied_operations=[{"id": 2}]),
        ),
    ],
)
def test_what_is_equal_has_the_same_digest(one, other):
    """However it lies in memory, in whatever order its keys came, whatever it has been through."""
    assert digest(one) == digest(other)
