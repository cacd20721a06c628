"""Smaller decoding, and samples that are kept in memory."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from support.pipelines import Smooth, Tensors, TwiceInPlace, floats
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.verbs.orders.variant import CachedPrefix, ResizedCrop


def jpeg():
    """An image of 288 by 256 pixels, opened and not yet decoded."""
    file = io.BytesIO()
    Smooth(None).image(0).resize((288, 256)).save(file, "JPEG", quality=95)
    return Image.open(file)


class Counted(Tensors):
    """Counts how often an image is made."""

    made = 0

    def image(self, index):
        self.made += 1
        return super().image(index)


def test_a_kept_sample_is_made_once():
    """And an op behind it that changes its input does not change what is kept."""
    dataset = Counted(floats)
    kept = CachedPrefix(dataset, TwiceInPlace(), (0,))

    first, second = kept[3], kept[3]

    assert 1 == dataset.made
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], 2 * floats(Tensors(None).image(3)))
    assert (3, len(dataset)) == (first[1], len(kept))


@pytest.mark.parametrize("library", [v1, v2])
@pytest.mark.parametrize(
    ("size", "crop"),
    [(64, "CenterCrop"), (300, "RandomCrop"), ((80, 200), "RandomCrop"), (40, "CenterCrop")],
)
def test_resize_and_crop_in_one_give_the_same_pixels(library, size, crop):
    """On the same draws, whether the image gets smaller or larger."""
    image = Smooth(None).image(0).resize((288, 256))
    resize, cut = library.Resize(size), getattr(library, crop)(32)

    torch.manual_seed(1)
    wanted = cut(resize(image))
    torch.manual_seed(1)
    made = ResizedCrop(resize, cut)(image)

    assert wanted.size == made.size
    assert np.abs(np.asarray(wanted).astype(int) - np.asarray(made)).max() <= 1
