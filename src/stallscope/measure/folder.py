"""A folder of images as a loader, for the user who has pictures but no loader at hand.

The pipeline is stallscope's, and everything made here says so (`OURS`): the numbers are those of
the user's files and disk, not of the user's transforms.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from stallscope.errors import TargetError
from stallscope.measure.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

OURS: Final = "stallscope's default pipeline, not yours"

SUFFIXES: Final = (
    ".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""What counts as an image, in lower case (the list of torchvision's `ImageFolder`)."""

MOST_OTHERS: Final = 200_000
"""So many files and folders that are no images, with hardly an image among them, are a disk."""

BATCH_SIZE: Final = 32
MEAN: Final = [0.485, 0.456, 0.406]
"""Mean of ImageNet's channels (docs.pytorch.org/vision/stable/models.html)."""
STD: Final = [0.229, 0.224, 0.225]
"""Standard deviation of ImageNet's channels (same source)."""


class ImageFile(NamedTuple):
    """One entry of an image dataset."""

    path: str
    label: int


class ImageFiles(Dataset[Any]):
    """Image files and their labels, as torchvision's `ImageFolder` gives them: (image, label)."""

    def __init__(self, files: Sequence[ImageFile], transform: Callable[[Any], Any]) -> None:
        self.files = files
        self.loader = open_image  # held as torchvision's do, so that another may be tried
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        return self.transform(self.loader(path)), label


def open_image(file: str | IO[bytes]) -> Image.Image:
    """Read and decode one image, as RGB."""
    with Image.open(file) as image:
        return image.convert("RGB")


def find_images(folder: Path) -> list[ImageFile]:
    """Every image under a folder, sorted; the label is the number of its first-level sub-folder.

    Images that lie directly in the folder are a class of their own; hidden files are left out.

    Raises:
        TargetError: there is no end to what is no image, as on a whole disk.
    """
    paths = [path for path in _files(folder) if _is_image(path.name)]
    classes = [_class(path, folder) for path in paths]
    label = {name: number for number, name in enumerate(sorted(set(classes)))}
    return [ImageFile(str(path), label[name]) for path, name in zip(paths, classes, strict=True)]


def no_images(folder: Path) -> TargetError:
    """The error for a folder without images: what was looked for, and what is there."""
    found = Counter(path.suffix.lower() or "no suffix" for path in _files(folder))
    there = ", ".join(f"{number} {suffix}" for suffix, number in found.most_common(5))
    return TargetError(
        f"no images in the folder {str(folder)!r}: looked for {', '.join(SUFFIXES)} (and tar "
        f"shards) there and below, found {there or 'no files at all'}. For any other format give "
        "your own loader, or 'package.module:factory'",
    )


def folder_loader(files: Sequence[ImageFile]) -> DataLoader[Any]:
    """Shuffled batches of (image, label) with the default training pipeline."""
    dataset = ImageFiles(files, training_pipeline())
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, **worker_settings(min(4, usable_cores())))


def training_pipeline() -> Callable[[Any], Any]:
    """The usual training transforms: PIL image to float32 of shape (3, 224, 224).

    Raises:
        TargetError: torchvision is missing or does not fit the installed torch.
    """
    v2 = torchvision_v2()
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *_to_floats(v2)]
    return v2.Compose(steps)  # type: ignore[no-any-return]


def evaluation_pipeline() -> Callable[[Any], Any]:
    """Resize and center crop: PIL image to float32 of shape (3, 224, 224).

    Raises:
        TargetError: torchvision is missing or does not fit the installed torch.
    """
    v2 = torchvision_v2()
    return v2.Compose([v2.Resize(256), v2.CenterCrop(224), *_to_floats(v2)])  # type: ignore[no-any-return]


def torchvision_v2() -> Any:
    """The module `torchvision.transforms.v2`, imported only when a pipeline of ours is built.

    Raises:
        TargetError: torchvision is missing or does not fit the installed torch.
    """
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:  # RuntimeError: made for another torch
        raise TargetError(
            f"stallscope's own pipelines need the torchvision that belongs to your torch "
            f"{torch.__version__}, which could not be imported ({error}): install it beside torch, "
            "or give your own loader",
        ) from error
    return v2


def worker_settings(num_workers: int) -> dict[str, Any]:
    """`DataLoader` arguments for so many workers, forked on Linux also where Python would not."""
    if num_workers and sys.platform == "linux":  # Python 3.14's forkserver imports torch per worker
        return {"num_workers": num_workers, "multiprocessing_context": "fork"}
    return {"num_workers": num_workers}


def _to_floats(v2: Any) -> list[Any]:
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _files(folder: Path) -> Iterator[Path]:
    """Every file under a folder that is not hidden, in sorted order."""
    images = others = 0
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = sorted(name for name in names if not name.startswith("."))
        found = sum(map(_is_image, files))
        images, others = images + found, others + len(folders) + len(files) - found
        if others > max(MOST_OTHERS, 10 * images):
            raise TargetError(
                f"the folder {str(folder)!r} has no end: {images:,} images among the first "
                f"{images + others:,} files and folders. Give the folder that holds the classes",
            )
        yield from (Path(place, name) for name in files)


def _class(path: Path, folder: Path) -> str:
    inner = path.relative_to(folder).parts
    return inner[0] if len(inner) > 1 else ""
