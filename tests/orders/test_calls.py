"""Pipelines that `__getitem__` writes as calls: the chains that are found, and their orders."""

import pickle
import random

import numpy as np
import polars as pl
import pytest
import torch
import torchvision.transforms.functional as tv
from support.pipelines import ROOM, Smooth, halve, middle, triple
from torch.utils.data import DataLoader, Subset

import stallscope as ss
from stallscope.bench import samples
from stallscope.loops.cached_values import same
from stallscope.verbs.orders.calls import find_calls
from stallscope.verbs.orders.variant import Variant


@pytest.fixture(autouse=True)
def a_few_pairs(monkeypatch):
    """These tests look at what is measured, and not at how well."""
    monkeypatch.setattr(samples, "_FEWEST", 4)


def remap(mask):
    """A function of the user's, a value at a time."""
    wide, high = mask.size
    return torch.tensor([value + 1 for value in mask.tobytes()]).view(high, wide)


def lookup(mask):
    """The same at once."""
    return torch.from_numpy(np.asarray(mask).astype(np.int64) + 1)


def noisy(image):
    """A function that draws."""
    return image + torch.rand(())


class Straight(Smooth):
    """An image and its mask, each crop in its own call."""

    def __init__(self):
        super().__init__(None)
        self.crop = 16

    def mask(self, index):
        return self.image(index).convert("L").point(lambda value: value // 50)

    def __getitem__(self, index):
        image, mask = self.image(index), self.mask(index)
        x = tv.to_tensor(image)
        x = tv.normalize(x, [0.5] * 3, std=[0.2] * 3)
        y = remap(mask)
        top, left = random.randint(0, 32 - self.crop), random.randint(0, 36 - self.crop)
        x = tv.crop(x, top, left, self.crop, self.crop)
        y = tv.crop(y, top, left, self.crop, self.crop)
        if random.random() < 0.5:
            x, y = tv.hflip(x), tv.hflip(y)
        return {"image": x, "mask": [y]}


def place_of(dataset):
    """Return the place of a dataset's chains."""
    return find_calls(dataset, list(range(8)), ROOM)[0]


def test_image_and_mask_are_two_chains():
    """Calls that only some samples make stand where these make them; arguments are known."""
    image, mask = place_of(Straight()).chains

    assert ["to_tensor", "normalize", "crop", "hflip"] == [op.name for op in image]
    assert ["remap", "crop #2", "hflip #2"] == [op.name for op in mask]
    assert "normalize([0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2])" == image[1].settings
    file, line = mask[0].source
    assert file.endswith("test_calls.py")
    assert "remap(mask)" in open(file).read().splitlines()[line - 1]  # noqa: SIM115, PTH123


def test_another_order_gives_the_same_samples_for_a_seed():
    """Bit for bit, with the draws of the user's code where they were; the user's own is as ever."""
    loader = DataLoader(Subset(Straight(), range(20)), batch_size=4)
    held = dict(vars(loader.dataset.dataset))

    reordered = place_of(loader.dataset).loader_with(Variant((2, 3, 0, 1, 5, 4, 6)), loader).dataset

    for index in range(20):
        first, second = (_seeded(dataset, index) for dataset in (loader.dataset, reordered))
        assert same(first, second)
    assert type(loader.dataset.dataset) is Straight
    assert held == vars(loader.dataset.dataset)


def _seeded(dataset, index):
    random.seed(index)
    return dataset[index]


def test_an_ordered_dataset_can_be_sent_to_a_worker():
    """Spawned workers get it by pickle, with the attributes of the user's dataset."""
    variant, loader = Variant((2, 0, 1, 3, 4, 5, 6)), DataLoader(Straight(), 4)
    dataset = place_of(Straight()).loader_with(variant, loader).dataset
    dataset[0]

    sent = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own

    assert same(_seeded(dataset, 3), _seeded(sent, 3))
    assert (24, 16) == (len(sent), sent.crop)


class Looks(Smooth):
    """Looks at what comes in between."""

    def __getitem__(self, index):
        x = halve(tv.pil_to_tensor(self.image(index)))
        x = x[:, : x.shape[1] // 2]
        return middle(triple(x))


class Keeps(Smooth):
    """Also gives what comes in between."""

    def __getitem__(self, index):
        small = tv.center_crop(self.image(index), 8)
        return tv.pil_to_tensor(small), tv.hflip(small).size


class Noisy(Smooth):
    """Dataset with a call that draws."""

    def __getitem__(self, index):
        return middle(halve(noisy(triple(tv.pil_to_tensor(self.image(index))))))


class Loops(Smooth):
    """One call, again and again."""

    def __getitem__(self, index):
        x = tv.pil_to_tensor(self.image(index))
        for _ in range(3):
            x = halve(x)
        return x


class ByMethod(Smooth):
    """Calls its own methods, one of which is a chain."""

    def __getitem__(self, index):
        return self.double(self.prepared(self.image(index)))

    def prepared(self, image):
        return halve(middle(tv.pil_to_tensor(image)))

    @staticmethod
    def double(image):
        return 2 * image


class Skips(Smooth):
    """Every second sample goes on in a chain that the others skip."""

    def __getitem__(self, index):
        x = triple(middle(tv.pil_to_tensor(self.image(index))))
        shape = x.shape
        return tv.hflip(halve(x)) if index % 2 else x[:, : shape[1]]


class Sized(Smooth):
    """Draws the place of its crop from the size of what comes in between."""

    def __getitem__(self, index):
        image = tv.hflip(self.image(index))
        wide, _ = image.size
        x = triple(tv.to_tensor(np.asarray(image)))
        _, high, same_wide = x.shape
        top = random.randint(0, high - 8)
        return tv.crop(x, top, wide - same_wide, 8, 8)


class Signal(Smooth):
    """A waveform, which has a single axis."""

    def __getitem__(self, index):
        return triple(halve(torch.arange(2_000) + index))


class Stacked(Smooth):
    """Hands results on to torch, by operators, and by name."""

    def __getitem__(self, index):
        image = triple(middle(tv.pil_to_tensor(self.image(index))))
        return torch.stack([image, 1 + tv.hflip(img=halve(image))])


@pytest.mark.parametrize(
    ("dataset", "chains"),
    [
        (Looks(None), [["fromarray", "pil_to_tensor", "halve"], ["triple", "middle"]]),
        (Keeps(None), [["fromarray", "center_crop"]]),
        (Noisy(None), [["fromarray", "pil_to_tensor", "triple"], ["halve", "middle"]]),
        (Loops(None), [["fromarray", "pil_to_tensor"]]),
        (ByMethod(None), [["fromarray", "pil_to_tensor", "middle", "halve", "double"]]),
        (Skips(None), [["fromarray", "pil_to_tensor", "middle", "triple"]]),
        (Sized(None), [["fromarray", "hflip", "asarray", "to_tensor", "triple", "crop"]]),
        (Signal(None), [["halve", "triple"]]),
        (Stacked(None), [["fromarray", "pil_to_tensor", "middle", "triple"], ["halve", "hflip"]]),
    ],
)
def test_a_chain_ends_where_more_depends_on_its_result(dataset, chains):
    """A result that is used, kept, drawn or made in a loop ends a chain; methods are opened."""
    assert chains == [[op.call.site.name for op in row] for row in place_of(dataset).chains]


def test_orders_of_calls_are_compared_and_applied():
    """The whole verb: both chains in one row of ops, the lines to move, a rewrite, any order."""
    loader = DataLoader(Straight(), batch_size=4)

    orders = ss.orders(loader, samples=6, budget_s=4, alternatives={"remap": lookup})

    about = orders.circumstances.pipeline
    assert "Straight.__getitem__, 2 chains of calls" == about
    assert "uint8" not in orders.ops["gives"][0]
    is_crop_first = pl.col("change").is_in(["crop #2 before remap", "remap last"])
    crops = orders.trials.filter(is_crop_first).row(0, named=True)
    assert "identical" == crops["equivalence"]
    first, second, *lines = crops["code"].splitlines()
    assert "# Straight.__getitem__ in test_calls.py: call in this order" == first
    assert second.startswith("y = tv.crop(y, top, left, self.crop, self.crop)  # line ")
    # its line flips the image, too
    assert any(line.startswith("hflip(...)  # line ") for line in lines)
    rewrite = orders.trials.filter(pl.col("kind") == "alternative").row(0, named=True)
    assert ("identical", "lookup instead of remap") == (rewrite["equivalence"], rewrite["change"])
    for trial in (crops["trial"], rewrite["trial"], (2, 0, 1, 3, 4, 5, 6)):
        changed = orders.apply(loader, trial).dataset
        assert same(_seeded(loader.dataset, 5), _seeded(changed, 5))
    variant = orders.bench.predict((2, 4, 0, 1, 5, 3, 6))  # mixed: each chain has its own order
    assert (2, 0, 1, 3, 4, 5, 6) == variant.positions
    assert orders.bench.measure(orders.bench.compare(variant)).measured is not None
