"""The user's images as a loader, for those who have none at hand.

A folder of images, or tar shards of `key.jpg`, `key.json`, `key.txt` in webdataset's layout (a
sample is neighbouring members with one key, which ends at the first dot of the file's name), read
with the standard library alone. The pipeline is stallscope's, and everything made here says so
(`OURS`): the numbers are those of the user's files and disk, not of the user's transforms.
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

from stallscope.errors import TargetError, UnreadableError
from stallscope.machine import usable_cores
from stallscope.units import count, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO


OURS: Final = "stallscope's default pipeline, not yours"
SUFFIXES: Final = (
    ".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Suffixes of images, in lower case (the list of torchvision's `ImageFolder`)."""
MOST_OTHERS: Final = 200_000
"""Files and folders without images, from which on a folder is taken for a whole disk."""
BATCH_SIZE: Final = 32
MEAN: Final = [0.485, 0.456, 0.406]
STD: Final = [0.229, 0.224, 0.225]
"""Mean and standard deviation of ImageNet's channels, as in torchvision's documentation."""
_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")

_NAMED: Final = 3
"""Unreadable images that a note names."""
_NAME_BYTES: Final = 512
"""Length of a name in shared memory; of a longer name the end is kept."""
_BEARABLE: Final = 0.1
"""Share of unreadable images above which a measurement ends ..."""
_ENOUGH: Final = 30
"""... judged from so many images on."""


class Unreadable:
    """Counts of images that could and could not be read, and the names of some.

    One bad file among thousands is usual; a measurement goes on with the others. The counts are in
    memory that workers share with the loop's process, so that a result can report them.

    Args:
        places: number of files or shards; one process at a time reads each of them.
        images: number of images, if known.
    """

    def __init__(self, places: int, images: int = _ENOUGH) -> None:
        self._counts = _shared(places, 2, dtype=torch.int32)
        self._names = _shared(_NAMED, _NAME_BYTES, dtype=torch.uint8)
        self._enough = min(images, _ENOUGH)

    def __deepcopy__(self, _: Any) -> Unreadable:
        """Return itself: a measurement's private copy of a loader counts for the loader."""
        return self

    def begin(self, place: int) -> None:
        """Reset the counts of a place, which is read anew."""
        self._counts[place] = 0

    def read(self, place: int) -> None:
        """Count an image that was read."""
        self._counts[place, 0] += 1

    def leave_out(self, place: int, name: str) -> None:
        """Count an image that could not be read.

        Raises:
            UnreadableError: there are too many for numbers that mean anything.
        """
        self._counts[place, 1] += 1
        known = self._known()
        if len(known) < _NAMED and name not in known:
            kept = os.fsencode(name)[-_NAME_BYTES:].ljust(_NAME_BYTES, b"\0")
            self._names[len(known)] = torch.frombuffer(bytearray(kept), dtype=torch.uint8)
        read, bad = self._counts.sum(0).tolist()
        if bad > _BEARABLE * max(read + bad, self._enough):
            raise UnreadableError(
                f"{bad} of the first {count(read + bad, 'image')} cannot be read "
                f"({self._some(bad)}): remove such files, or give your own loader"
            )

    def notes(self) -> tuple[str, ...]:
        """Return a note on unreadable images; nothing if all could be read."""
        bad = int(self._counts[:, 1].sum())
        if not bad:
            return ()
        return (f"{count(bad, 'image')} could not be read and was left out: {self._some(bad)}",)

    def _known(self) -> list[str]:
        rows = (bytes(row.tolist()).rstrip(b"\0") for row in self._names)
        return [os.fsdecode(row) for row in rows if row]

    def _some(self, of: int) -> str:
        known = [printable(name, 200) for name in self._known()]
        return ", ".join(known) + (", ..." if of > len(known) else "")


def _shared(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(shape, dtype=dtype)
    with suppress(RuntimeError, OSError):  # no room in /dev/shm: each process counts for itself
        zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


class ImageFile(NamedTuple):
    """One entry of an image dataset."""

    path: str
    label: int


class ImageFiles(Dataset[Any]):
    """Image files and their labels, as torchvision's `ImageFolder` yields them: (image, label)."""

    def __init__(self, files: Sequence[ImageFile], transform: Callable[[Any], Any]) -> None:
        self.files = files
        # Held as torchvision's do, so that another may be tried
        self.loader: Callable[[Any], Any] = open_image
        self.transform = transform
        self.unreadable = Unreadable(len(files), len(files))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        self.unreadable.begin(index)
        try:
            image = self.loader(path)
        except Exception as error:  # noqa: BLE001 - decoders raise almost anything about a broken file
            self.unreadable.leave_out(index, self.named(path, error))
            return self[(index + 1) % len(self)]
        self.unreadable.read(index)
        return self.transform(image), label

    def named(self, path: str, error: Exception) -> str:  # noqa: ARG002 - a server's needs the error
        """Return the name of an image that cannot be read."""
        return path


def open_image(file: str | IO[bytes]) -> Image.Image:
    """Read and decode one image, as RGB."""
    with Image.open(file) as image:
        return image.convert("RGB")


def find_images(
    folder: Path, on_error: Callable[[OSError], object] | None = None
) -> list[ImageFile]:
    """Return every image under a folder, sorted, labelled as `labelled` does.

    Hidden files are left out. A folder to which several links lead, or one from inside of itself,
    counts once.

    Args:
        folder: where to look.
        on_error: is called where a folder cannot be read, which is left out.

    Raises:
        TargetError: there is no end to files that are no images, as on a whole disk.
    """
    paths = [path for path in _files(folder, on_error) if is_image(path.name)]
    return labelled([(str(path), path.relative_to(folder)) for path in paths])


def labelled(images: Sequence[tuple[str, PurePath]]) -> list[ImageFile]:
    """Label images with the number of their first-level sub-folder, sorted by name.

    Images without a sub-folder are a class of their own.

    Args:
        images: for each its full path, and that below the root.
    """
    classes = [below.parts[0] if len(below.parts) > 1 else "" for _, below in images]
    label = {name: number for number, name in enumerate(sorted(set(classes)))}
    return [ImageFile(path, label[name]) for (path, _), name in zip(images, classes, strict=True)]


def is_image(name: str) -> bool:
    """Tell an image by its suffix."""
    return name.lower().endswith(SUFFIXES)


def _files(folder: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Yield every file under a folder that is not hidden, sorted."""
    images = others = 0
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        try:
            about = Path(place).stat()
        except OSError:  # it is gone meanwhile
            about = None
        if about is None or (about.st_dev, about.st_ino) in seen:  # a link led here before
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = sorted(name for name in names if not name.startswith("."))
        found = sum(map(is_image, files))
        images, others = images + found, others + len(folders) + len(files) - found
        if others > max(MOST_OTHERS, 10 * images):
            raise TargetError(
                f"the folder {str(folder)!r} has no end: {images:,} images among the first "
                f"{images + others:,} files and folders. Give the folder that holds the classes"
            )
        yield from (Path(place, name) for name in files)


def no_images(folder: Path) -> TargetError:
    """Return the error for a folder without images: expected suffixes, and found ones."""
    found = Counter(path.suffix.lower() or "no suffix" for path in _files(folder))
    there = ", ".join(f"{number} {suffix}" for suffix, number in found.most_common(5))
    return TargetError(
        f"no images in the folder {str(folder)!r}: looked for {', '.join(SUFFIXES)} (and tar "
        f"shards) there and below, found {there or 'no files at all'}. For any other format give "
        "your own loader, or 'package.module:factory'"
    )


def image_loader(dataset: ImageFiles) -> DataLoader[Any]:
    """Return a loader of shuffled batches of (image, label)."""
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, **worker_settings(min(4, usable_cores())))


def training_pipeline() -> Callable[[Any], Any]:
    """Return the usual training transforms: PIL image to float32 of shape (3, 224, 224)."""
    v2 = torchvision_v2()
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *_to_floats(v2)]
    return v2.Compose(steps)  # type: ignore[no-any-return]


def evaluation_pipeline() -> Callable[[Any], Any]:
    """Return resize and center crop: PIL image to float32 of shape (3, 224, 224)."""
    v2 = torchvision_v2()
    return v2.Compose([v2.Resize(256), v2.CenterCrop(224), *_to_floats(v2)])  # type: ignore[no-any-return]


def _to_floats(v2: Any) -> list[Any]:
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def torchvision_v2() -> Any:
    """Import `torchvision.transforms.v2`; see `torchvision_transforms`."""
    return torchvision_transforms("torchvision.transforms.v2")


def torchvision_transforms(module: str = "torchvision.transforms") -> Any:
    """Import torchvision's transforms only when a pipeline of ours is built.

    Raises:
        TargetError: torchvision is missing or does not fit the installed torch.
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: made for another torch
        raise TargetError(
            f"stallscope's own pipelines need the torchvision that belongs to your torch "
            f"{torch.__version__}, which could not be imported ({error}): install it beside torch, "
            "or give your own loader"
        ) from error


def worker_settings(num_workers: int) -> dict[str, Any]:
    """Return `DataLoader` arguments for so many workers, forked on Linux."""
    if num_workers and sys.platform == "linux":  # Python 3.14's forkserver imports torch per worker
        return {"num_workers": num_workers, "multiprocessing_context": "fork"}
    return {"num_workers": num_workers}


class TarShards(IterableDataset[Any]):
    """The images of tar shards, one shard after another; each worker reads its own shards."""

    def __init__(self, shards: Sequence[str], transform: Callable[[Any], Any]) -> None:
        self.shards = shards
        self.transform = transform
        self.unreadable = Unreadable(len(shards))

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for place in range(first, len(self.shards), every):
            self.unreadable.begin(place)
            yield from map(self.transform, self._images(place))

    def _images(self, place: int) -> Iterator[Image.Image]:
        shard = self.shards[place]
        try:
            with tarfile.open(shard) as archive:
                for member in image_members(archive):
                    try:
                        file = archive.extractfile(member)
                        image = open_image(BytesIO(file.read() if file else b""))
                    except Exception:  # noqa: BLE001 - as of files
                        self.unreadable.leave_out(place, f"{shard}: {member.name}")
                        continue
                    self.unreadable.read(place)
                    yield image
        except (tarfile.TarError, EOFError, OSError):  # it ends early, or is gone
            self.unreadable.leave_out(place, shard)


def image_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the image of each sample in an archive: the first member of its key that is one."""
    files = (member for member in archive if member.isfile())
    for key, members in itertools.groupby(files, key=lambda member: _split(member)[0]):
        image = next((member for member in members if _split(member)[1] in SUFFIXES), None)
        if image is not None and PurePosixPath(key).name:
            yield image


def is_shards(text: str) -> bool:
    """Tell tar shards by their suffix."""
    return text.lower().endswith(".tar")


def find_shards(path: Path) -> list[str]:
    """Return the files of a name, a range like `x-{000..009}.tar` or a glob, in order.

    Args:
        path: absolute.

    Raises:
        TargetError: a file is missing, or nothing matches.
    """
    shards: list[str] = []
    root = Path(path.anchor)
    for name in [str(path)] if path.exists() else _without_ranges(str(path)):
        found = root.glob(str(Path(name).relative_to(root)))
        matches = [name] if Path(name).exists() else sorted(map(str, found))
        if not matches:
            raise TargetError(
                f"no tar shard {name!r}: check the path; ranges are written {{000..009}}, and * "
                "stands for anything"
            )
        shards += matches
    if not shards:
        raise TargetError(f"the range in {str(path)!r} is empty: write the lower number first")
    return shards


def shards_loader(shards: Sequence[str]) -> DataLoader[Any]:
    """Return a loader of images with the default evaluation pipeline; no worker is without a shard.

    Raises:
        TargetError: the first shard is no tar archive, or has no image in it.
    """
    _look_into(shards[0])
    dataset = TarShards(shards, evaluation_pipeline())
    return DataLoader(dataset, BATCH_SIZE, **worker_settings(min(4, usable_cores(), len(shards))))


def _look_into(shard: str) -> None:
    try:
        with tarfile.open(shard) as archive:
            if next(image_members(archive), None) is not None:
                return
            names = ", ".join(archive.getnames()[:5])
    except (tarfile.TarError, EOFError) as error:
        raise TargetError(
            f"{shard!r} is a file, but not a tar archive: give a folder of images, tar shards, "
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
        whole = text[: match.start()] + str(number).zfill(len(low)) + text[match.end() :]
        yield from _without_ranges(whole)


def _split(member: tarfile.TarInfo) -> tuple[str, str]:
    """Split a member's name into key and suffix: `a/b.seg.png` is ('a/b', '.seg.png')."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    return f"{path.parent}/{stem}", f"{dot}{suffix}".lower()
