"""Loaders of the user's images, for users without a loader at hand.

They read a folder of images, images at an address (`s3://`, `http://`), or tar shards of `key.jpg`,
`key.json`, `key.txt` in webdataset's layout (a sample is neighbouring members with one key, which
ends at the first dot of the file's name), read without webdataset. The pipeline is stallscope's,
and the target's name says so (`OURS`): the numbers describe the user's files and disk, not the
user's transforms.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import tarfile
from collections import Counter
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from stallscope.errors import TargetError
from stallscope.files import connection, listing
from stallscope.machine import usable_cores
from stallscope.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO


OURS: Final = "stallscope's default pipeline, not yours"
SUFFIXES: Final = (
    ".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Suffixes of images, in lower case (the list of torchvision's `ImageFolder`)."""
BATCH_SIZE: Final = 32
MEAN: Final = [0.485, 0.456, 0.406]
STD: Final = [0.229, 0.224, 0.225]
"""Mean and standard deviation of ImageNet's channels, as in torchvision's documentation."""
_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")


class ImageFile(NamedTuple):
    """One entry of an image dataset."""

    path: str
    label: int


class ImageFiles(Dataset[Any]):
    """Image files and their labels, as torchvision's `ImageFolder` yields them: (image, label)."""

    def __init__(self, files: Sequence[ImageFile], transform: Callable[[Any], Any]) -> None:
        self.files = files
        # An attribute, as in torchvision's datasets, so that another decoder can be tried
        self.loader: Callable[[Any], Any] = open_image
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
    """Return every image under a folder, sorted, labelled as `labelled` does.

    Hidden files are left out. A folder that several links lead to counts once.
    """
    paths = [path for path in _files(folder) if is_image(path.name)]
    return labelled([(str(path), path.relative_to(folder)) for path in paths])


def labelled(images: Sequence[tuple[str, PurePath]]) -> list[ImageFile]:
    """Label images (path, and path below the root) with the number of their first sub-folder.

    Images without a sub-folder are a class of their own.
    """
    classes = [below.parts[0] if len(below.parts) > 1 else "" for _, below in images]
    label = {name: number for number, name in enumerate(sorted(set(classes)))}
    return [ImageFile(path, label[name]) for (path, _), name in zip(images, classes, strict=True)]


def is_image(name: str) -> bool:
    """Recognise an image by its suffix."""
    return name.lower().endswith(SUFFIXES)


def _files(folder: Path | str, seen: set[str] | None = None) -> Iterator[Path]:
    """Yield every file under a folder that is not hidden, sorted; a pipe or a device is none.

    `seen` holds the folders that were there before, as links may lead to them again.
    """
    seen, real = set() if seen is None else seen, os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    with suppress(OSError), os.scandir(folder) as entries:
        shown = sorted((each for each in entries if each.name[0] != "."), key=lambda it: it.name)
        # A link that leads nowhere is kept: reading it says so
        for each in shown:
            if each.is_file() or (each.is_symlink() and not Path(each.path).exists()):
                yield Path(each.path)
        for each in shown:
            if each.is_dir():
                yield from _files(each.path, seen)


def no_images(folder: Path) -> TargetError:
    """Return the error for a folder without images, with the expected and the actual suffixes."""
    suffixes = Counter(path.suffix.lower() or "no suffix" for path in _files(folder))
    there = ", ".join(f"{number} {suffix}" for suffix, number in suffixes.most_common(5))
    return TargetError(
        f"no images in the folder {str(folder)!r}: looked for {', '.join(SUFFIXES)} (and tar "
        f"shards) there and below, found {there or 'no files at all'}. For any other format give "
        "your own loader, or 'package.module:factory'"
    )


def image_loader(dataset: ImageFiles) -> DataLoader[Any]:
    """Return a loader of shuffled batches of (image, label)."""
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, **worker_settings(min(4, usable_cores())))


class RemoteImages(ImageFiles):
    """Images at an address; each is read as a whole. Files are named without the protocol."""

    def __init__(
        self, address: str, files: Sequence[ImageFile], transform: Callable[[Any], Any]
    ) -> None:
        super().__init__(files, transform)
        self.address = address
        self.loader = self._open

    def _open(self, path: Any) -> Image.Image:
        return open_image(BytesIO(connection(self.address)[0].cat_file(path)))


def remote_loader(address: str) -> DataLoader[Any]:
    """Return a loader of shuffled (image, label) batches with the default training pipeline.

    A `TargetError` says that there is no image; see `listing`.
    """
    root, objects = listing(address)
    images = [path for path in objects if is_image(path)]
    if not images:
        raise TargetError(
            f"no images at {printable(address)!r}: looked for {', '.join(SUFFIXES)} there "
            f"and below, found {len(objects):,} other objects"
        )
    below = [(path, PurePosixPath(path.removeprefix(root).lstrip("/"))) for path in images]
    return image_loader(RemoteImages(address, labelled(below), training_pipeline()))


def training_pipeline() -> Callable[[Any], Any]:
    """Return the usual training transforms: PIL image to float32 of shape (3, 224, 224)."""
    v2 = torchvision_transforms()
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *_to_floats(v2)]
    return v2.Compose(steps)  # type: ignore[no-any-return]


def evaluation_pipeline() -> Callable[[Any], Any]:
    """Return resize and center crop: PIL image to float32 of shape (3, 224, 224)."""
    v2 = torchvision_transforms()
    return v2.Compose([v2.Resize(256), v2.CenterCrop(224), *_to_floats(v2)])  # type: ignore[no-any-return]


def _to_floats(v2: Any) -> list[Any]:
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def torchvision_transforms(module: str = "torchvision.transforms.v2") -> Any:
    """Import torchvision's transforms only when a pipeline of ours is built.

    A `TargetError` says that torchvision is missing or does not fit the installed torch.
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise TargetError(
            f"stallscope's own pipelines need the torchvision that belongs to your torch "
            f"{torch.__version__}, which could not be imported ({error}): install it beside torch, "
            "or give your own loader"
        ) from error


def worker_settings(num_workers: int) -> dict[str, Any]:
    """Return `DataLoader` arguments for this number of workers, forked on Linux."""
    if num_workers and sys.platform == "linux":  # Python 3.14's forkserver imports torch per worker
        return {"num_workers": num_workers, "multiprocessing_context": "fork"}
    return {"num_workers": num_workers}


class TarShards(IterableDataset[Any]):
    """Images of tar shards, shard by shard; each worker reads its own shards."""

    def __init__(self, shards: Sequence[str], transform: Callable[[Any], Any]) -> None:
        self.shards = shards
        self.transform = transform

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for shard in self.shards[first::every]:
            with tarfile.open(shard) as archive:
                for member in image_members(archive):
                    file: Any = archive.extractfile(member)
                    yield self.transform(open_image(BytesIO(file.read())))


def image_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the image of each sample in an archive: the first image among its key's members."""
    files = (member for member in archive if member.isfile())
    for key, members in itertools.groupby(files, key=lambda member: _split(member)[0]):
        image = next((member for member in members if _split(member)[1] in SUFFIXES), None)
        if image is not None and PurePosixPath(key).name:
            yield image


def is_shards(text: str) -> bool:
    """Recognise a tar shard by its suffix."""
    return text.lower().endswith(".tar")


def is_readable(path: Path) -> bool:
    """Return False for a pipe or a device; reading a link that leads nowhere says so."""
    return path.is_file() or not path.exists()


def find_shards(path: Path) -> list[str]:
    """Return the files of an absolute name, a range like `x-{000..009}.tar` or a glob, in order.

    A `TargetError` names what is missing.
    """
    shards: list[str] = []
    root = Path(path.anchor)
    for name in [str(path)] if path.exists() else _without_ranges(str(path)):
        paths = root.glob(str(Path(name).relative_to(root)))
        names = [name] if Path(name).exists() else sorted(map(str, paths))
        matches = [path for path in names if is_readable(Path(path))]
        if not matches:
            raise TargetError(
                f"no tar shard {name!r}: check the path; ranges are written {{000..009}}, and * "
                "matches any text"
            )
        shards += matches
    if not shards:
        raise TargetError(f"the range in {str(path)!r} is empty: write the lower number first")
    return shards


def shards_loader(shards: Sequence[str]) -> DataLoader[Any]:
    """Return a loader of images with the default evaluation pipeline, a shard or more per worker.

    A `TargetError` says that the first shard is no tar archive, or contains no image.
    """
    _check_has_images(shards[0])
    dataset = TarShards(shards, evaluation_pipeline())
    return DataLoader(dataset, BATCH_SIZE, **worker_settings(min(4, usable_cores(), len(shards))))


def _check_has_images(shard: str) -> None:
    try:
        with tarfile.open(shard) as archive:
            if next(image_members(archive), None) is not None:
                return
            names = ", ".join(archive.getnames()[:5])
    except (tarfile.TarError, EOFError) as error:
        raise TargetError(
            f"the file {shard!r} is not a tar archive: give a folder of images, tar shards, "
            "'package.module:factory', or a loader"
        ) from error
    raise TargetError(
        f"no images in the tar shard {shard!r}: looked for key{', key'.join(SUFFIXES)}, found "
        f"{names or 'no files at all'}. For any other format give your own loader"
    )


def _without_ranges(text: str) -> Iterator[str]:
    """Expand `a-{08..10}.tar` to a-08.tar, a-09.tar, a-10.tar; several ranges multiply."""
    match = _RANGE.search(text)
    if match is None:
        yield text
        return
    low, high = match.groups()
    for number in range(int(low), int(high) + 1):
        expanded = text[: match.start()] + str(number).zfill(len(low)) + text[match.end() :]
        yield from _without_ranges(expanded)


def _split(member: tarfile.TarInfo) -> tuple[str, str]:
    """Split a member's name into key and suffix: `a/b.seg.png` is ('a/b', '.seg.png')."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    return f"{path.parent}/{stem}", f"{dot}{suffix}".lower()
