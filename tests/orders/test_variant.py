"""The words for a variant, the source that makes it, and the parts of its loader."""

import numpy as np
import pytest
import torch
from support.pipelines import (
    InTurn,
    Listed,
    Smooth,
    Tensors,
    TwiceInPlace,
    floats,
    halve,
    middle,
    triple,
)
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.verbs.orders.pipeline import Chain, places
from stallscope.verbs.orders.variant import CachedPrefix, ResizedCrop, Site, Variant, change_of

NAMES = "ABCDE"


@pytest.mark.parametrize(
    ("positions", "change"),
    [
        ((0, 1, 2), "as it is"),
        ((1, 0, 2), "B before A"),
        ((2, 0, 1), "C before A"),
        ((1, 2, 0), "A last"),
        ((0, 2, 1, 4, 3), "C before B, E before D"),
    ],
)
def test_as_few_ops_as_possible_are_said_to_move(positions, change):
    """Those outside of a longest row that kept its order."""
    assert change == change_of(positions, NAMES)


@pytest.mark.parametrize(
    "dataset",
    [
        Tensors(v2.Compose([triple, v2.Compose([halve, middle])])),
        Tensors(InTurn(triple, halve, middle)),
        Listed([triple, halve, middle]),
        Listed((triple, halve, middle)),
        Tensors(nn.Sequential(v2.Lambda(triple), v2.Lambda(halve), v2.Lambda(middle))),
    ],
)
def test_the_source_can_be_run(dataset):
    loader = DataLoader(dataset)
    (place,) = places(dataset)
    before = [op.call for op in Chain(place.value).ops]

    exec(Site(place, Chain(place.value), ()).code_of(Variant((2, 0, 1))), {"loader": loader})  # noqa: S102 - our own text

    chain = Chain(place.found_in(dataset))
    assert [before[2], before[0], before[1]] == [op.call for op in chain.ops]
    assert type(chain.value) is type(place.value)


class Counted(Tensors):
    """Counts the images that are made."""

    calls = 0

    def image(self, index):
        self.calls += 1
        return super().image(index)


def test_a_kept_sample_is_made_once():
    """And an op behind it that changes its input does not change what is kept."""
    dataset = Counted(floats)
    prefix = CachedPrefix(dataset, TwiceInPlace(), (0,))

    first, second = prefix[3], prefix[3]

    assert 1 == dataset.calls
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], 2 * floats(Tensors(None).image(3)))
    assert (3, len(dataset)) == (first[1], len(prefix))


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
    cropped = ResizedCrop(resize, cut)(image)

    assert wanted.size == cropped.size
    assert np.abs(np.asarray(wanted).astype(int) - np.asarray(cropped)).max() <= 1
