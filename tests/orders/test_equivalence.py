"""Comparison of two pipelines' samples, by digest and value by value."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from stallscope.verbs.orders.equivalence import compare_outputs, digest

IMAGE = np.linspace(0, 1, 1200, dtype=np.float32).reshape(3, 20, 20)
ZEROS = torch.zeros(2, 3)
GREY = Image.new("L", (4, 2))
RAMP = np.tile(np.arange(255, dtype=np.uint8), (64, 1))


@pytest.mark.parametrize(
    ("original", "new", "grade", "difference"),
    [
        (IMAGE, IMAGE.copy(), "identical", None),
        ((IMAGE - 0.45) / 0.22, IMAGE / 0.22 - 0.45 / 0.22, "rounding", 1e-7),
        (IMAGE, IMAGE + np.float32(0.001), "8-bit rounding", 0.001),
        (IMAGE, 1 - IMAGE, "different", 1.0),
    ],
)
def test_the_largest_difference_decides(original, new, grade, difference):
    """Normalizing in two ways is off by some 1e-7 of the range; of samples the worst."""
    result = compare_outputs([IMAGE, original], [IMAGE, new])

    assert grade == result.equivalence
    if difference is None:
        assert (None, None) == result[1:3]
    else:
        assert difference / 10 < result.max_difference < 10 * difference


def test_the_psnr_of_a_difference():
    """A PSNR of 20 log10(1 / 0.001) is 60 dB; a step of 255 is 48 dB, even if the image is dark."""
    dark = np.zeros((8, 8, 3), np.uint8)

    result = compare_outputs([IMAGE], [IMAGE + np.float32(0.001)])

    assert 0.001 == pytest.approx(result.max_difference, rel=1e-3)
    assert 60 == pytest.approx(result.psnr_db, abs=0.05)
    assert 48.13 == pytest.approx(compare_outputs([dark], [dark + 1]).psnr_db, abs=0.01)


def palette(values):
    """An image whose bytes are numbers of colours."""
    return Image.frombytes("P", values.shape[::-1], values.tobytes())


@pytest.mark.parametrize(
    ("values", "make", "grade"),
    [
        (RAMP, np.asarray, "8-bit rounding"),
        (np.dstack([RAMP // 200] * 3), Image.fromarray, "8-bit rounding"),
        (RAMP // 200, np.asarray, "different"),
        (RAMP, palette, "different"),
        (RAMP, tv_tensors.Mask, "different"),
        (RAMP.astype(np.int64), np.asarray, "different"),
        (np.arange(16, dtype=np.float32).reshape(4, 4) * 100, np.asarray, "different"),
    ],
    ids=["grey", "colours", "classes", "palette", "mask", "integers", "boxes"],
)
def test_what_is_no_picture_has_no_rounding_to_8_bits(values, make, grade):
    """One step more is rounding of a picture, and another class of a mask."""
    assert grade == compare_outputs([make(values)], [make(values + 1)]).equivalence


def test_a_mask_of_floats_has_no_rounding():
    """An image of floats has; of a mask each value is a class."""
    image = RAMP.astype(np.float32)

    def grade(values):
        return compare_outputs([values], [values * np.float32(1 - 1e-6)]).equivalence

    assert ("rounding", "different") == (grade(image), grade(image // 200))


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (IMAGE.astype(float), "float64 (3, 20, 20) instead of ndarray float32"),
        ([IMAGE, "cat"], "2 values instead of 1"),
        ([IMAGE], "another type, structure"),
    ],
)
def test_another_kind_is_different_whatever_the_values(sample, why):
    """Another dtype, another number of values, or another structure, is said."""
    grade = compare_outputs([IMAGE], [sample])

    assert "different" == grade.equivalence
    assert why in grade.why


def test_what_is_no_array_has_to_be_equal():
    """A label that changes is different."""
    grade = compare_outputs([(IMAGE, "cat")], [(IMAGE, "dog")])

    assert ("different", "'dog' instead of 'cat'") == (grade.equivalence, grade.why)


class Pair(NamedTuple):
    """A tuple of another type."""

    first: int
    second: int


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
    ("first", "second"),
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
def test_what_differs_has_another_digest(first, second):
    """In type, dtype, shape, mode, structure or any bit."""
    assert digest(first) != digest(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ZEROS, ZEROS.clone()),
        (ZEROS[:0], ZEROS[1:1]),
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
def test_what_is_equal_has_the_same_digest(first, second):
    """However it lies in memory, in whatever order its keys came, whatever it has been through."""
    assert digest(first) == digest(second)
