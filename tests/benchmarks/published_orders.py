"""Compare `ss.orders` with an expert's orders, for ten published pipelines.

A plain stopwatch of this file, which knows nothing of the kit, times the pipeline as published, in
the expert's order and as found: CPU time of a sample, in turns, the decoding of its photograph
included. The kit grades the expert's order, too: a *different* one it never recommends.

    python tests/benchmarks/published_orders.py
    python tests/benchmarks/published_orders.py --only tutorial monai
"""

import os
import statistics
import time
import warnings
from typing import Any, NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")

from collections.abc import Callable, Sequence

import numpy as np
import torch
from benchkit.command import Option, arguments, table
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import stallscope as ss
from stallscope.demo import case_b_loader, case_b_pipeline
from stallscope.isolation import seed_everywhere
from stallscope.targets.sample import photographs

TOLERANCE = "8-bit rounding"
SAMPLES, ROUNDS = 24, 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEAD = (
    *("pipeline", "expert", "its grade", "its gain"),
    *("found", "grade", "gain", "in the loader", "seconds"),
)


class Photos(Dataset):
    """Photographs of 533 by 800 pixels, opened as most datasets do."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform
        self.paths = [photo.path for photo in photographs()]

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> Any:
        return Image.open(self.paths[index]).convert("RGB")

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.image(index)), index % 10


class Masked(Photos):
    """The same with a mask, transformed together."""

    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        mask = tv_tensors.Mask(torch.zeros(1, image.height, image.width, dtype=torch.uint8))
        return self.transform(image, mask)


class Boxed(Photos):
    """The same with boxes."""

    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        size = (image.height, image.width)
        boxes = tv_tensors.BoundingBoxes([[9, 9, 200, 200]], format="XYXY", canvas_size=size)  # type: ignore[call-overload]
        return self.transform(image, {"boxes": boxes, "labels": torch.tensor([1])})


class Arrays(Photos):
    """The same as arrays, as OpenCV gives them."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(image=np.asarray(self.image(index)))["image"], index % 10


class Volumes(Photos):
    """Volumes in dictionaries, as MONAI's datasets give them."""

    def __getitem__(self, index: int) -> Any:
        draw = torch.Generator().manual_seed(index)
        volume = torch.randn(1, 96, 96, 64, generator=draw)
        return self.transform({"image": volume, "label": (volume > 1).float()})


class Published(NamedTuple):
    """A pipeline and the order that an expert would write."""

    loader: DataLoader[Any]
    ops: Sequence[Any]
    order: tuple[int, ...]
    """Places in `ops`."""
    compose: Callable[[Sequence[Any]], Any]


def _of(
    ops: Sequence[Any],
    order: tuple[int, ...],
    dataset: type[Photos] = Photos,
    compose: Callable[[Any], Any] = v2.Compose,
) -> Published:
    # As detection's references do: samples of different sizes stay a list
    collate = list if dataset is Boxed else None
    loader = DataLoader(
        dataset(compose(list(ops))), 16, shuffle=True, num_workers=2, collate_fn=collate
    )
    return Published(loader, ops, order, compose)


def pipelines() -> dict[str, Callable[[], Published]]:
    """Name each pipeline, and make it."""
    to_floats = v2.ToDtype(torch.float32, scale=True)
    end = [to_floats, v2.Normalize(MEAN, STD)]
    return {
        "tutorial": lambda: _of(
            [
                *(v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.5,) * 3), v1.Resize(256)),
                *(v1.RandomCrop(224), v1.RandomHorizontalFlip()),
            ],
            (2, 3, 4, 0, 1),
            compose=v1.Compose,
        ),
        "case B": _case_b,
        "torchvision classification, PIL": lambda: _of(
            [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor(), *end],
            (0, 1, 2, 3, 4),
        ),
        "torchvision classification, tensors": lambda: _of(
            [v2.PILToTensor(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *end],
            (1, 2, 0, 3, 4),
        ),
        "torchvision segmentation": lambda: _of(
            [
                *(v2.ToImage(), v2.RandomResize(260, 1040), v2.RandomHorizontalFlip()),
                *(v2.RandomCrop(256, pad_if_needed=True), *end),
            ],
            (0, 1, 3, 2, 4, 5),
            Masked,
        ),
        "torchvision detection": lambda: _of(
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomHorizontalFlip()],
            (0, 2, 1),
            Boxed,
        ),
        "timm": lambda: _of(
            [
                *(v2.RandomResizedCrop(224, interpolation=v2.InterpolationMode.BICUBIC),),
                *(v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), v2.PILToTensor()),
                *(*end, v2.RandomErasing(0.25)),
            ],
            (0, 1, 2, 3, 4, 5, 6),
        ),
        "albumentations": _albumentations,
        "Lightning, Hugging Face": lambda: _of(
            [v1.Resize(256), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.CenterCrop(224)],
            (0, 3, 1, 2),
            compose=v1.Compose,
        ),
        "MONAI spleen": _monai,
    }


def _case_b() -> Published:
    ops = case_b_pipeline().transforms  # type: ignore[attr-defined]  # a Compose
    return Published(case_b_loader(num_workers=2), ops, (1, 0, 2, 3, 4), v2.Compose)


def _albumentations() -> Published:
    import albumentations as A  # noqa: N812 - its own name

    ops = [
        *(A.RGBShift(p=1), A.RandomBrightnessContrast(p=1), A.SmallestMaxSize(256)),
        *(A.RandomCrop(224, 224), A.HorizontalFlip(p=0.5), A.Normalize(), A.ToTensorV2()),
    ]
    return _of(ops, (2, 3, 4, 0, 1, 5, 6), Arrays, A.Compose)


def _monai() -> Published:
    from monai import transforms as m

    keys = ["image", "label"]
    ops = [
        m.ScaleIntensityRanged(["image"], -3, 3, 0.0, 1.0, clip=True),
        m.Spacingd(keys, (1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
        m.RandSpatialCropd(keys, (48, 48, 24), random_size=False),
        m.RandFlipd(keys, 0.5, 0),
    ]
    return _of(ops, (1, 2, 3, 0), Volumes, m.Compose)


def cpu_s(loaders: Sequence[DataLoader[Any]]) -> list[float]:
    """Return the mean CPU seconds of a sample of each loader's dataset, in turns."""
    took: list[list[float]] = [[] for _ in loaders]
    torch.set_num_threads(1)
    for number in range(ROUNDS * SAMPLES):
        for turn in range(len(loaders)):
            # Each is the first as often: the next ones find the photograph in the CPU's cache
            place = (number + turn) % len(loaders)
            seed_everywhere(number)
            began_s = time.process_time()
            loaders[place].dataset[number % SAMPLES]
            took[place].append(time.process_time() - began_s)
    return [statistics.fmean(each[SAMPLES:]) for each in took]


def row(name: str, published: Published, budget_s: float) -> tuple[str, ...]:
    """Search a pipeline, and time what was found."""
    began_s = time.perf_counter()
    orders = ss.orders(published.loader, tolerance=TOLERANCE, budget_s=budget_s)
    took_s = time.perf_counter() - began_s
    best = orders.best()
    changed = orders.apply(published.loader) if best else published.loader
    expert = published.compose([published.ops[place] for place in published.order])
    dataset = type(published.loader.dataset)
    if isinstance(published.loader.dataset, Photos):
        by_expert = DataLoader(dataset(expert), 16)  # type: ignore[call-arg]
    else:
        by_expert = case_b_loader("crop_first", num_workers=0)
    grade = orders.bench.compare(orders.bench.predict(published.order)).grade
    as_it_is, experts, ours = cpu_s([published.loader, by_expert, changed])
    in_loader = best and best["loader_gain"]
    return (
        name,
        "as published" if published.order == tuple(sorted(published.order)) else "another",
        grade.equivalence,
        f"{as_it_is / experts:.2f}",
        best["change"] if best else "keep",
        best["equivalence"] if best else "-",
        f"{as_it_is / ours:.2f}",
        f"{in_loader:.2f}" if in_loader else "-",
        f"{took_s:.0f}",
    )


def main() -> None:
    """Search all pipelines, and print the table."""
    names = list(pipelines())
    options = arguments(
        __doc__,
        only=Option(names, ["tutorial"], "pipelines whose name begins so"),
        budget=Option(30.0, 3.0, "of each, seconds"),
    )
    warnings.filterwarnings("ignore")
    rows = []
    for name, make in pipelines().items():
        if name.startswith(tuple(options.only)):
            rows.append(row(name, make(), options.budget))
            print("  ".join(rows[-1]), flush=True)
    print(f"tolerance {TOLERANCE!r}; {SAMPLES} photographs {ROUNDS} times, without the first")
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
