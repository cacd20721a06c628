"""Pipelines with known equality of two orders' data, and unusual ops.

The truth of each follows from what its ops do, not from a measurement: it stands beside it.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from stallscope.verbs.orders import run_ops
from stallscope.verbs.orders.capture import capture
from stallscope.verbs.orders.evaluator import OrderEvaluator
from stallscope.verbs.orders.variant import DIFFERENT, FAILS, IDENTICAL, NEAR, Grade, Variant
from support.planted_costs import BusyOp

WIDTH, HEIGHT = 36, 32
_STREAMS = 1000
"""Far more than a pipeline has ops."""
ROOM = 1 << 30


class Smooth(Dataset):
    """Images with a gradient, blobs and some noise, as PIL gives them; decoded."""

    def __init__(self, transform: Any, seed: int = 0, entries: int = 24) -> None:
        self.transform = transform
        self.seed = seed
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.image(index)), index

    def image(self, index: int) -> Any:
        rng = np.random.default_rng((self.seed, index))
        y, x = np.mgrid[:HEIGHT, :WIDTH] / WIDTH
        waves = [np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + c) for c in range(3)]
        pixels = 110 + 80 * np.stack(waves, axis=-1) + rng.normal(0, 12, (HEIGHT, WIDTH, 3))
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


class Tensors(Smooth):
    """The same as tensors of bytes, shape (3, HEIGHT, WIDTH)."""

    def image(self, index: int) -> Any:
        return torch.from_numpy(np.asarray(super().image(index)).copy()).permute(2, 0, 1)


class InTurn:
    """A compose of the user's."""

    def __init__(self, *ops):
        self.ops = ops

    def __call__(self, image):
        for op in self.ops:
            image = op(image)
        return image


class Listed(Tensors):
    """Holds its ops in a list, and calls them in turn."""

    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        for op in self.transform:
            image = op(image)
        return image, index


class Dicts(Tensors):
    """The same in a dictionary."""

    def image(self, index: int) -> Any:
        return {"image": super().image(index), "name": str(index)}


class Arrays(Smooth):
    """The same as arrays, for transforms that are called by keyword."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(image=np.asarray(self.image(index)))["image"], index


# --- ops ----------------------------------------------------------------------------------------


def halve(image: torch.Tensor) -> torch.Tensor:
    return image / 2


def middle(image: torch.Tensor) -> torch.Tensor:
    return image[..., 4:28, 4:28]


def floats(image: torch.Tensor) -> torch.Tensor:
    return image.float()


def doubles(image: torch.Tensor) -> torch.Tensor:
    return image.double()


def dark(image: torch.Tensor) -> torch.Tensor:
    """Nothing is brighter than 60."""
    return image.clamp(max=60)


def triple(image: torch.Tensor) -> torch.Tensor:
    return image * 3.0


def inverted(image: torch.Tensor) -> torch.Tensor:
    return 255 - image


def by_brightest(image: torch.Tensor) -> torch.Tensor:
    return image / image.max()


def by_name(sample: dict[str, Any]) -> dict[str, Any]:
    """Half as bright, in a dictionary."""
    return {**sample, "image": sample["image"] / 2}


def part_by_name(sample: dict[str, Any]) -> dict[str, Any]:
    """A part of the image, in a dictionary."""
    return {**sample, "image": sample["image"][..., 4:28, 4:28]}


def no_return(image: Any) -> None:
    image * 2


class TwiceInPlace:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.mul_(2)


class OneMoreInPlace:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.add_(1)


class ThroughNumpy:
    """Changes what it is given, so that torch does not know."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        image.numpy()[...] *= 2
        return image


class Noise:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + 20 * torch.randn(())


class PixelNoise:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + 20 * torch.randn(image.shape)


class OwnNoise:
    """Adds noise from a generator of its own."""

    def __init__(self, kind: str) -> None:
        makers = {"torch": torch.Generator, "numpy": np.random.default_rng}
        self.generator = makers.get(kind, random.Random)()

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        if isinstance(self.generator, torch.Generator):
            return image + 20 * float(torch.rand((), generator=self.generator))
        return image + 20 * self.generator.random()


NAMED = np.random.default_rng(5)


def named_noise(image: torch.Tensor) -> torch.Tensor:
    """Adds noise from a generator that stands in its module."""
    return image + 20 * NAMED.random()


class HiddenNoise:
    """Adds noise that no seed reaches."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + os.urandom(1)[0]


class EverySecond:
    """Makes every second image dark: it keeps count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return image / 2 if self.calls % 2 else image


class RareHole:
    """Blacks out a part of one image in thirty."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        if torch.rand(()) < 1 / 30:
            image = image.clone()
            image[..., :8, :8] = 0
        return image


class SlowByPixel:
    """Takes time for each pixel: 1 ms for 1,000."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        BusyOp(image.numel() * 1e-6)(None)
        return image + 1


class Contrast:
    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.invert(image)


class Locked:
    """Cannot be copied, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.uncopied = (step for step in range(3))  # a generator function's object

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return image + 1


# --- what is known ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """Two orders of a pipeline, and how their data compares."""

    name: str
    truth: str
    ops: Callable[[], list[Any]]
    dataset: type[Smooth] = Tensors
    order: tuple[int, ...] = (1, 0)


def _albumentations() -> Any:
    import albumentations

    crop, flip = albumentations.RandomCrop(16, 16), albumentations.HorizontalFlip(p=0.5)
    return albumentations.Compose([crop, flip, albumentations.Normalize()])


def _resized() -> list[Any]:
    return [v2.Resize((64, 72)), v2.RandomCrop(24), v2.Resize((24, 24))]


LAST_TWO = (0, 2, 1)
"""An order of three ops in which the last two change places."""
KNOWN = (
    Known("elementwise and crop", IDENTICAL, lambda: [halve, middle]),
    Known("crop first, v2", IDENTICAL, lambda: [v2.PILToTensor(), v2.RandomCrop(24)], Smooth),
    Known("crop first, v1", IDENTICAL, lambda: [v1.ToTensor(), v1.RandomCrop(24)], Smooth),
    Known("clamp and halve", DIFFERENT, lambda: [halve, dark]),
    Known("flip and crop", DIFFERENT, lambda: [v2.RandomHorizontalFlip(), v2.RandomCrop(24)]),
    Known("noise before and after tripling", DIFFERENT, lambda: [PixelNoise(), triple]),
    Known("noise and crop", IDENTICAL, lambda: [Noise(), middle]),
    Known("two dtypes", DIFFERENT, lambda: [floats, doubles]),
    Known("dtype and crop", IDENTICAL, lambda: [middle, floats]),
    Known("in place", IDENTICAL, lambda: [floats, TwiceInPlace(), middle], order=LAST_TWO),
    Known("nearly", NEAR, lambda: [floats, TwiceInPlace(), OneMoreInPlace()], order=LAST_TWO),
    Known("unseen by torch", DIFFERENT, lambda: [floats, ThroughNumpy(), dark], order=LAST_TWO),
    Known("resize and random crop", DIFFERENT, _resized, order=(1, 0, 2)),
    Known("own generator of torch", IDENTICAL, lambda: [OwnNoise("torch"), middle]),
    Known("own generator of numpy", IDENTICAL, lambda: [OwnNoise("numpy"), middle]),
    Known("own generator of Python", DIFFERENT, lambda: [OwnNoise("python"), triple]),
    Known("generator of the module", IDENTICAL, lambda: [named_noise, middle]),
    Known("hidden generator", DIFFERENT, lambda: [HiddenNoise(), middle]),
    Known("counter", DIFFERENT, lambda: [EverySecond(), middle]),
    Known("normalise before converting", FAILS, lambda: [v2.PILToTensor(), floats], Smooth),
    Known("PIL alone", FAILS, lambda: [Contrast(), v2.PILToTensor()], Smooth),
    Known("rarely acting", DIFFERENT, lambda: [RareHole(), inverted]),
    Known("depends on the content", DIFFERENT, lambda: [by_brightest, middle]),
    Known("dictionaries", IDENTICAL, lambda: [by_name, part_by_name], Dicts),
    Known("albumentations", IDENTICAL, _albumentations, Arrays, order=LAST_TWO),
)
"""Each: the ops, another order of them, and how its data compares with the original's."""


def evaluator_of(dataset: Any, samples: int = 16) -> OrderEvaluator:
    """The evaluator of a dataset's pipeline."""
    loader = DataLoader(dataset, batch_size=4)
    site, captured, _ = capture(loader, samples, ROOM)
    evaluator = OrderEvaluator(loader, site, captured)
    evaluator.run_original(lambda: False)
    return evaluator


def compared(case: Known, seed: int = 0) -> Grade:
    """Return the grade of the other order; each seed has other data and other draws."""

    def other(number: int, draw: tuple[int, int]) -> int:
        return usual(number + _STREAMS * seed, draw)

    usual = run_ops._seed
    with patch.object(run_ops, "_seed", other):
        ops = case.ops()
        transform = v2.Compose(ops) if isinstance(ops, list) else ops
        return evaluator_of(case.dataset(transform, seed)).judged(Variant(case.order)).grade
