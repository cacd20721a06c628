"""Copies, sizes and changes of samples and batches of any type."""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from stallscope.loops.cached_loaders import CachedBatches
from stallscope.loops.cached_values import batch_bytes, fresh, same, samples_in, versions


class Pair(NamedTuple):
    image: torch.Tensor
    label: Any


class Page:
    def __init__(self, image: torch.Tensor) -> None:
        self.image = image


def a_batch():
    return {"image": torch.ones(4, 3), "more": [np.zeros(4), Pair(torch.zeros(2), "cat")]}


@pytest.mark.parametrize(
    ("batch", "usual", "samples"),
    [
        (torch.zeros(4, 3), None, 4),
        (torch.tensor(1.0), None, 1),
        ([torch.zeros(4, 3), torch.zeros(4)], 4, 4),
        ({"image": torch.zeros(4, 3), "label": torch.zeros(4)}, None, 4),
        (([torch.zeros(3, 8, 8)] * 4, [{}] * 4), 4, 4),
        ([(torch.zeros(3, 8), 1)] * 4, 4, 4),
        ([torch.zeros(3, 8, 8)] * 5, 5, 5),
        ((tuple([torch.zeros(3, 8, 8)] * 5), tuple([{}] * 5)), 4, 5),
        ([[torch.zeros(6, 3), torch.zeros(6, 3)], torch.zeros(6)], 6, 6),
        ([[torch.zeros(5, 3), torch.zeros(5, 3)], torch.zeros(5)], 6, 5),
        (torch.zeros(12, 3), 6, 12),
        (Page(torch.zeros(6, 2)), 6, 6),
        (np.zeros((7, 2)), None, 7),
        ("text", None, 1),
        ([], None, 1),
        ((), 4, 1),
    ],
)
def test_counts_the_samples_of_a_batch(batch, usual, samples):
    assert samples == samples_in(batch, usual)


def test_a_fresh_copy_shares_nothing():
    batch = a_batch()
    copy = fresh(batch)

    copy["image"].fill_(7)
    copy["more"][0][:] = 7
    copy["more"][1].image.fill_(7)
    copy["more"].append(7)

    assert same(batch, a_batch())
    assert not same(copy, a_batch())
    assert isinstance(copy["more"][1], Pair)


def test_a_change_in_place_is_seen():
    batch = a_batch()
    before = versions(batch)

    batch["more"][1].image.add_(1)

    assert before != versions(batch)


class TestCachedBatches:
    def test_share_tensors_while_nobody_changes_them(self):
        batches = [torch.full((2,), float(number)) for number in range(3)]
        first, *rest = islice(CachedBatches(batches), 7)

        assert first is not batches[0]
        assert all(batch is batches[place % 3] for place, batch in enumerate(rest, 1))

    def test_are_copied_after_a_change(self):
        cached = CachedBatches([torch.full((2,), 5.0) for _ in range(2)])

        for batch in islice(cached, 5):
            assert [5.0, 5.0] == batch.tolist()
            batch.zero_()
        assert cached.copies


IMAGES = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
SCALED = IMAGES / 255
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
NORMALISED = (SCALED - MEAN[:, None, None]) / STD[:, None, None]


class TestFloatsThatFitUint8:
    @pytest.mark.parametrize(
        "floats",
        [
            pytest.param(IMAGES.float(), id="cast"),
            pytest.param(SCALED, id="scaled"),
            pytest.param(NORMALISED, id="each channel normalised"),
            pytest.param(NORMALISED.permute(0, 2, 3, 1), id="channels last"),
            pytest.param(NORMALISED.double(), id="float64"),
            pytest.param(NORMALISED.numpy(), id="numpy"),
            pytest.param((IMAGES > 99).float(), id="a mask"),
        ],
    )
    def test_scaled_bytes_fit(self, floats):
        sizes = batch_bytes({"x": floats, "y": torch.arange(8)})

        assert floats.nbytes == sizes.floats
        assert IMAGES.nbytes == sizes.as_uint8
        assert floats.nbytes + 64 == sizes.all

    @pytest.mark.parametrize(
        "floats",
        [
            pytest.param(torch.randn(8, 3, 32, 32), id="noise"),
            pytest.param(SCALED * torch.rand(8, 1, 1, 1), id="each sample its own brightness"),
            pytest.param(torch.randint(0, 4096, (8, 4096)) / 4096, id="twelve bits"),
            pytest.param(SCALED.pow(2.2), id="another curve"),
            pytest.param(torch.zeros(8, 3, 32, 32), id="constant"),
            pytest.param(torch.full((8, 3, 32, 32), torch.nan), id="no numbers"),
            pytest.param(SCALED[:, :, :4, :4], id="too few to tell"),
            pytest.param(SCALED.half(), id="two bytes"),
            pytest.param(IMAGES, id="uint8"),
            pytest.param(np.array(["a", "b"]), id="no numbers at all"),
        ],
    )
    def test_other_values_do_not_fit(self, floats):
        assert 0 == batch_bytes([floats]).floats
