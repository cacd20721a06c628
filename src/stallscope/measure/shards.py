"""Tar shards as a loader: archives of `key.jpg`, `key.json`, `key.txt`, of which the image is used.

The layout is webdataset's (a sample = neighbouring members with one key, the key ends at the
first dot of the file's name), read with the standard library alone. The pipeline is stallscope's.
"""

from __future__ import annotations

import itertools
import re
import tarfile
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stallscope.errors import TargetError
from stallscope.measure.folder import (
    BATCH_SIZE,
    SUFFIXES,
    evaluation_pipeline,
    open_image,
    worker_settings,
)
from stallscope.measure.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")


class TarShards(IterableDataset[Any]):
    """The images of tar shards, one shard after another; each worker reads its own shards."""

    def __init__(self, shards: Sequence[str], transform: Callable[[Any], Any]) -> None:
        self.shards = shards
        self.transform = transform

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for shard in self.shards[first::every]:
            with tarfile.open(shard) as archive:
                for member in image_members(archive):
                    yield self.transform(open_image(BytesIO(read_member(archive, member))))


def image_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The image of each sample in an archive: the first member of the key that is one."""
    files = (member for member in archive if member.isfile())
    for key, members in itertools.groupby(files, key=lambda member: _split(member)[0]):
        image = next((member for member in members if _split(member)[1] in SUFFIXES), None)
        if image is not None and PurePosixPath(key).name:
            yield image


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The bytes of one file in an archive."""
    file = archive.extractfile(member)
    return file.read() if file else b""


def is_shards(text: str) -> bool:
    """Whether a string is meant as tar shards: it ends in .tar."""
    return text.lower().endswith(".tar")


def find_shards(path: Path) -> list[str]:
    """The files that a name, a range like `x-{000..009}.tar` or a glob stands for, in order.

    Args:
        path: absolute.

    Raises:
        TargetError: a file is missing, or nothing matches.
    """
    shards: list[str] = []
    for name in [str(path)] if path.exists() else _without_ranges(str(path)):
        matches = [name] if Path(name).exists() else _matches(Path(name))
        if not matches:
            raise TargetError(
                f"no tar shard {name!r}: check the path; ranges are written {{000..009}}, and * "
                "stands for anything",
            )
        shards += matches
    if not shards:
        raise TargetError(f"the range in {str(path)!r} is empty: write the lower number first")
    return shards


def shards_loader(shards: Sequence[str]) -> DataLoader[Any]:
    """Batches of images with the default evaluation pipeline; no worker without a shard.

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
            "'package.module:factory', or a loader",
        ) from error
    raise TargetError(
        f"no images in the tar shard {shard!r}: looked for key{', key'.join(SUFFIXES)}, found "
        f"{names or 'no files at all'}. For any other format give your own loader",
    )


def _matches(pattern: Path) -> list[str]:
    root = Path(pattern.anchor)
    return sorted(str(path) for path in root.glob(str(pattern.relative_to(root))))


def _without_ranges(text: str) -> Iterator[str]:
    """`a-{08..10}.tar` as a-08.tar, a-09.tar, a-10.tar; several ranges multiply."""
    match = _RANGE.search(text)
    if match is None:
        yield text
        return
    low, high = match.groups()
    for number in range(int(low), int(high) + 1):
        whole = text[: match.start()] + str(number).zfill(len(low)) + text[match.end() :]
        yield from _without_ranges(whole)


def _split(member: tarfile.TarInfo) -> tuple[str, str]:
    """Key and suffix of a member: `a/b.seg.png` is ('a/b', '.seg.png')."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    return f"{path.parent}/{stem}", f"{dot}{suffix}".lower()
