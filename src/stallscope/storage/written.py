"""`layouts.write`: the whole dataset in another layout, and a dataset in the old one's place.

Samples are written in parts, each a container of its own (`storage.containers`) that is read back
and compared before a small file beside it says that it is whole. A part without that file is half
written, whoever ended it, and is made anew: so what was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from bisect import bisect_right
from collections import OrderedDict
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakValueDictionary

import numpy as np
from torch.utils.data import RandomSampler

from stallscope.apart import apart
from stallscope.errors import ArgumentError, StallscopeError, UnsupportedError
from stallscope.files import read_file, whole_file
from stallscope.interrupts import held_back
from stallscope.isolation import isolated
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.loops.training_loop import ProgressBar
from stallscope.loops.watchdog import within
from stallscope.machine import memory_available_bytes
from stallscope.run.read_logs import note
from stallscope.storage.containers import KINDS, Container, WebTar, missing
from stallscope.storage.head import KIND as HEAD_KIND
from stallscope.storage.head import PATIENCE_S, with_an_index, write_head
from stallscope.storage.serving import (
    SHUFFLE_BUFFER,
    KeptFiles,
    RawSample,
    Served,
    ServedStream,
    as_pickle,
    loader_over,
)
from stallscope.units import count, said_by, size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from stallscope.orders.loader_parts import CachedPrefix
    from stallscope.targets.target import Target


HEAD: Final = "stallscope-layout.json"
_VERSION: Final = 1
_PART_BYTES: Final = 256 << 20
_PART_SAMPLES: Final = 4_096
"""A part has no more, ..."""
_MEMORY_SHARE: Final = 0.1
"""... and takes no more of the memory that is left."""
_FILE_BYTES: Final = 8_192
"""Of the disk that a file takes beyond its bytes, at most, in any layout."""
_SPARE_BYTES: Final = 32 << 20
_BATCH: Final = 8
_MOST_OPEN: Final = 64
"""Containers that a process has open."""


def write_layout(
    target: Any, folder: str | os.PathLike[str], kind: str, *, pixels: int | None = None
) -> WrittenDataset | WrittenStream | CachedPrefix:
    """Write the whole dataset of a loader in one layout; called again, it goes on.

    Makes every sample once, in the loader's own workers, and keeps the files that it opens; reads
    each part back from the disk's files and compares it. The user's files are only read.

    Args:
        target: a DataLoader over a dataset with an index whose samples open files of their own, a
            `Target`, or a string as for `ss.target`.
        folder: a new or empty one, or one that the same call has begun to write.
        kind: "files", "tar shards", "LMDB", "Arrow", "HDF5" or "zip"; or "head", see
            `stallscope.storage.head.write_head`.
        pixels: of the short side of JPEGs that are stored smaller; None: the same bytes.

    Returns:
        A dataset of the same length that gives the same samples, by the user's own decode and
        transforms; of tar shards a stream, see `WrittenStream`.

    Raises:
        ArgumentError: there is no such kind, or no such size.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: what `ss.layouts` refuses; a sample that opens no file of its own; the
            kind's library is not installed.
        StallscopeError: the folder holds something else, there is no room, it cannot be written, or
            what was written is not what is read back.
        NoBatchError: a sample did not come.
    """
    if kind == HEAD_KIND and pixels is None:
        return write_head(target, folder)
    container = _kind(kind)
    if pixels is not None and (not isinstance(pixels, int) or pixels < 1):
        raise ArgumentError(f"pixels={pixels!r}: give a whole number, 1 or more")
    if why := missing(container):
        raise UnsupportedError(f"{container.name} cannot be written here: {why}")
    found = with_an_index(target, "its samples cannot be made from other files")
    loader: Any = found.loader
    writer = _Writer(found, Path(folder).absolute(), container, pixels)
    with within(PATIENCE_S, remedy="the same call goes on where it was"):
        writer.run()
    shuffles = isinstance(loader.sampler, RandomSampler)
    return written_dataset(folder, loader.dataset, shuffle_buffer=SHUFFLE_BUFFER if shuffles else 0)


def written_dataset(
    folder: str | os.PathLike[str], dataset: Any, *, shuffle_buffer: int = 0
) -> WrittenDataset | WrittenStream:
    """Open what was written, in the place of the dataset that it was written from.

    Args:
        folder: that was written.
        dataset: the one that was written; its own code decodes and transforms.
        shuffle_buffer: samples out of which a stream draws; 0: in order. Only of tar shards.

    Raises:
        StallscopeError: it is no such folder, is not whole, or is of another dataset.
    """
    place = Path(folder).absolute()
    head, parts = _read(place, HEAD), _whole_parts(place)
    if head is None:
        raise StallscopeError(f"{place} holds no layout that was written: it has no {HEAD}")
    samples = sum(len(part) for part in parts)
    if samples != head["samples"]:
        raise StallscopeError(
            f"{place} is not whole: {samples:,} of {count(head['samples'], 'sample')} are written; "
            "the call that wrote them goes on where it was"
        )
    if samples != len(dataset):
        raise StallscopeError(
            f"{place} has {count(samples, 'sample')}, and this {type(dataset).__name__} "
            f"{len(dataset):,}: give the dataset that was written"
        )
    kind, keys = _kind(head["kind"]), Paths([paths for part in parts for paths in part])
    held = Parts(place, kind, tuple(head["suffixes"]), [len(part) for part in parts])
    if kind.is_random:
        return WrittenDataset(dataset, held, keys)
    return WrittenStream(dataset, held, keys, shuffle_buffer)


class WrittenDataset(Served):
    """The samples of a dataset, out of files that were written in another layout.

    Its own attributes are found here, too. In a process that is no worker Python's `open` is
    replaced while a sample is made, and only then.
    """

    anywhere: ClassVar = True


class WrittenStream(ServedStream):
    """The same out of tar shards, which are read from begin to end: give the loader no sampler.

    Each worker, and each rank, reads shards of its own; an epoch's order is torch's seed's.
    """

    anywhere: ClassVar = True


def _kind(name: str) -> type[Container]:
    found = next((kind for kind in KINDS if kind.name.lower() == str(name).lower()), None)
    if found is None:
        known = ", ".join(repr(kind.name) for kind in KINDS)
        raise ArgumentError(
            f"kind={name!r}: give one of {known}; or {HEAD_KIND!r}, which has no pixels"
        )
    return found


class Paths:
    """Index and paths of each sample, in one piece: workers share it, however many there are."""

    def __init__(self, samples: Sequence[Sequence[str]]) -> None:
        joined = ["\0".join(paths) for paths in samples]
        first, last = min(joined, default=""), max(joined, default="")
        same = [one == other for one, other in zip(first, last, strict=False)]
        self._prefix = first[: [*same, False].index(False)]
        texts = [os.fsencode(text[len(self._prefix) :]) for text in joined]
        self._text = b"".join(texts)
        self._ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> tuple[int, tuple[str, ...]]:
        number = range(len(self))[number]
        begin = int(self._ends[number - 1]) if number else 0
        text = os.fsdecode(self._text[begin : int(self._ends[number])])
        return number, tuple((self._prefix + text).split("\0"))


class Parts:
    """A dataset's samples in the containers of its parts, few of which are open at once."""

    _shared: ClassVar[WeakValueDictionary[str, Container]] = WeakValueDictionary()
    """What any of them has open: LMDB lets a process open a file once."""

    def __init__(
        self, folder: Path, kind: type[Container], suffixes: tuple[str, ...], lengths: list[int]
    ) -> None:
        self._folder, self._kind, self._suffixes = folder, kind, suffixes
        self._firsts = [0, *accumulate(lengths)][: len(lengths)]
        self._open: OrderedDict[str, Container] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_open": OrderedDict()}

    def get(self, number: int, parts: int) -> list[bytes]:
        """Give the files of a sample."""
        at = bisect_right(self._firsts, number) - 1
        place = str(self._folder / _name(at))
        container = self._shared.get(place) or self._kind(place, self._suffixes)
        self._shared[place] = self._open[place] = container
        self._open.move_to_end(place)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return container.get(number - self._firsts[at], parts)

    def stream(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        """Give the samples of this worker's part, with their numbers."""
        places = range(len(self._firsts))
        shards = {str(path): at for at in places for path in self._files(at)}
        for shard, number, blobs in WebTar.read(list(shards), buffer):
            yield self._firsts[shards[shard]] + number, blobs

    def _files(self, at: int) -> list[Path]:
        return self._kind(str(self._folder / _name(at))).files()


def _name(part: int) -> str:
    return f"{part:05}"


@dataclass
class _Writer:
    """One go at writing a dataset."""

    target: Target
    folder: Path
    kind: type[Container]
    pixels: int | None

    def run(self) -> None:
        """Write the parts that are missing."""
        is_new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StallscopeError(
                f"{self.folder} is no folder, and cannot be made one ({said_by(error)})"
            ) from error
        with _alone(self.folder):
            self._run(self._begun(), is_new=is_new)

    def _run(self, done: list[int], *, is_new: bool) -> None:
        samples = len(self.target.loader.dataset)  # type: ignore[attr-defined]  # a plain DataLoader
        bar = ProgressBar(
            desc=f"writing {self.kind.name}", total=samples, initial=sum(done), unit="sample"
        )
        try:
            with closing(bar), closing(self._raws(sum(done), samples)) as parts:
                for raws in parts:
                    try:
                        self._write(done, raws, samples)
                    except StallscopeError:
                        raise
                    except Exception as error:  # of the disk, or of a library
                        raise StallscopeError(
                            f"{self.folder} cannot be written ({said_by(error)}): make room, or "
                            "give another folder or kind"
                        ) from error
                    done.append(len(raws))
                    bar.update(len(raws))
        except BaseException as error:
            with held_back():
                shutil.rmtree(self.folder / _name(len(done)), ignore_errors=True)
                if not done:
                    (self.folder / HEAD).unlink(missing_ok=True)
                    with suppress(OSError):
                        if is_new:
                            self.folder.rmdir()
            note(error, [f"stallscope: {self._left(sum(done), samples)}"])
            raise

    def _left(self, done: int, samples: int) -> str:
        if not done:
            return "nothing was written"
        return (
            f"{done:,} of {count(samples, 'sample')} are written in {self.folder}, whole and "
            "checked; the same call goes on there"
        )

    def _begun(self) -> list[int]:
        """Samples of each part that an earlier call has written.

        Raises:
            StallscopeError: the folder holds something else.
        """
        names = {path.name for path in self.folder.iterdir()}
        head = _read(self.folder, HEAD)
        if names and head is None:
            raise StallscopeError(f"{self.folder} holds other files: give a new folder")
        if head is None:
            return []
        wanted = self._head(tuple(head["suffixes"]))
        differ = [f"{key} {head[key]!r}" for key in wanted if head.get(key) != wanted[key]]
        if differ:
            raise StallscopeError(
                f"{self.folder} holds another layout ({', '.join(differ)}): give a new folder"
            )
        done = [len(part) for part in _whole_parts(self.folder)]
        ours = {name for at in range(len(done)) for name in (_name(at), f"{_name(at)}.json")}
        others = names - ours - {HEAD, _name(len(done))}
        others = {name for name in others if not name.endswith(".part")}
        if others:
            raise StallscopeError(
                f"{self.folder} holds other files ({min(others)}): give a new folder"
            )
        return done

    def _head(self, suffixes: Sequence[str]) -> dict[str, Any]:
        dataset = self.target.loader.dataset  # type: ignore[attr-defined]  # a plain DataLoader
        return {
            "version": _VERSION,
            "kind": self.kind.name,
            "pixels": self.pixels,
            "samples": len(dataset),
            "dataset": type(dataset).__name__,
            "suffixes": list(suffixes),
        }

    def _raws(self, first: int, samples: int) -> Generator[list[RawSample], None, None]:
        """The files of the samples from a number on, as many at once as a part has."""
        most = min(_PART_BYTES, _MEMORY_SHARE * memory_available_bytes())
        if first >= samples:
            return
        with isolated(replace(self.target, step=None)) as target:
            loader: Any = target.loader
            batches = [range(at, min(at + _BATCH, samples)) for at in range(first, samples, _BATCH)]
            made = loader_over(
                loader,
                KeptFiles(loader.dataset, pixels=self.pixels),
                batch_sampler=batches,
                collate_fn=as_pickle,
            )
            kept: list[RawSample] = []
            much = 0
            with started(TimedLoop.of(replace(target, loader=made))) as found:
                for batch in found:
                    raws = pickle.loads(batch)  # noqa: S301 - our own worker wrote it
                    much += sum(len(blob) for raw in raws for blob in raw.blobs)
                    kept += raws
                    if much >= most or len(kept) >= _PART_SAMPLES:
                        yield kept
                        kept, much = [], 0
            if kept:
                yield kept

    def _write(self, done: list[int], raws: list[RawSample], samples: int) -> None:
        """Write a part, and say that it is whole once it has been read back."""
        first = sum(done)
        for raw in raws:
            if not raw.paths:
                raise UnsupportedError(
                    f"sample {raw.index} opens no file of its own, so that its bytes cannot be "
                    "separated (they are made, mapped, or rows of a file that stays open)"
                )
        self._check_room(raws, samples - first)
        blobs = [list(raw.blobs) for raw in raws]
        suffixes = tuple(Path(path).suffix for path in raws[0].paths)
        place = self.folder / _name(len(done))
        if not done:
            _save(self.folder / HEAD, self._head(suffixes))
        else:  # of all parts the same
            suffixes = tuple((_read(self.folder, HEAD) or {})["suffixes"])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        container = self.kind(str(place), suffixes)
        container.write(blobs)

        def check() -> int | None:
            return _differs(self.kind(str(place), suffixes), blobs)

        # A library that starts threads is imported apart
        wrong = apart(check) if self.kind.import_s else check()
        if wrong is not None:
            raise StallscopeError(
                f"sample {first + wrong} was not read back from {place} as it was written: the "
                "disk or the library failed"
            )
        _save(self.folder / f"{place.name}.json", {"paths": [raw.paths for raw in raws]})

    def _check_room(self, raws: list[RawSample], samples: int) -> None:
        """Make sure that there is room for what is left, as large as these, before it is written.

        Raises:
            StallscopeError: there is not.
        """
        blobs = [len(blob) for raw in raws for blob in raw.blobs]
        each = (1.02 * sum(blobs) + _FILE_BYTES * len(blobs)) / len(raws)
        needs = int(each * samples) + _SPARE_BYTES
        near = next(one for one in (self.folder, *self.folder.parents) if one.exists())
        free = shutil.disk_usage(near).free
        if needs > free:
            raise StallscopeError(
                f"{count(samples, 'sample')} need about {size(needs)} in {self.folder}, where "
                f"{size(free)} is free: make room, or give a folder on another disk"
            )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let no other process write into a folder meanwhile, where the system can see to that.

    Raises:
        StallscopeError: another one does.
    """
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
            except BlockingIOError as error:
                raise StallscopeError(f"another process is writing into {folder}") from error
        yield
    finally:
        os.close(descriptor)


def _differs(container: Container, blobs: list[list[bytes]]) -> int | None:
    """The first sample that is not read back as it was; None: all are."""
    found: Iterable[tuple[int, list[bytes]]] = (
        (number, container.get(number, len(parts))) for number, parts in enumerate(blobs)
    )
    if not container.is_random:
        found = container.stream(0)
    left = set(range(len(blobs)))
    for number, parts in found:
        if number not in left or [bytes(part or b"") for part in parts] != blobs[number]:
            return number
        left.remove(number)
    return min(left, default=None)


def _save(path: Path, value: dict[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(value).encode())
        file.flush()
        os.fsync(file.fileno())


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    """What a file of ours says; None: there is none.

    Raises:
        StallscopeError: it is damaged.
    """
    try:
        found = json.loads(read_file(folder / name))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StallscopeError(f"{folder / name} cannot be read ({said_by(error)})") from error
    wanted = {"kind": str, "samples": int, "suffixes": list} if name == HEAD else {"paths": list}
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), kind) for key, kind in wanted.items()
    ):
        raise StallscopeError(f"{folder / name} is damaged: write into a new folder")
    return found


def _whole_parts(folder: Path) -> list[list[list[str]]]:
    """The paths of the samples of each part that is whole."""
    parts: list[list[list[str]]] = []
    while (found := _read(folder, f"{_name(len(parts))}.json")) is not None:
        parts.append(found["paths"])
    return parts
