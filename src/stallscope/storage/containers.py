"""The ways in which the same samples can be stored, each written and read by its own library.

A sample is one file or several. A container is written once, and then opened by each process that
reads it; it is pickled closed.
"""

from __future__ import annotations

import os
import random
import tarfile
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Samples = Sequence[Sequence[bytes]]


@dataclass(eq=False)
class Container:
    """Samples in a folder, in one layout; base of the kinds."""

    folder: str
    """It is written into; there is nothing else there."""
    suffixes: tuple[str, ...] = ()
    """What the names of a sample's files end in."""

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    """Package that reads it; empty: Python does."""
    is_random: ClassVar[bool] = True
    """Whether any sample can be asked for by its number."""

    def write(self, samples: Samples) -> float:
        """Write samples, numbered from 0, down to the disk.

        Args:
            samples: of each its files; in memory.

        Returns:
            Seconds that took.
        """
        began_s = time.perf_counter()
        self._put(samples)
        for path in self.files():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return time.perf_counter() - began_s

    def get(self, number: int, parts: int) -> list[bytes]:
        """The files of a sample.

        Args:
            number: of the sample.
            parts: how many files it has.
        """
        return self._take(number, parts)

    def stream(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        """The samples of this worker's part, with their numbers.

        Args:
            buffer: of a shuffle, samples; 0: in order.
        """
        return self._flow(buffer)

    def _put(self, samples: Samples) -> None:
        raise NotImplementedError

    def _take(self, number: int, parts: int) -> list[bytes]:
        raise NotImplementedError

    def _flow(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        raise NotImplementedError

    @property
    def at(self) -> Path:
        """The folder."""
        return Path(self.folder)

    def files(self) -> list[Path]:
        """Everything that was written."""
        return sorted(path for path in self.at.rglob("*") if path.is_file())

    def __getstate__(self) -> dict[str, Any]:
        kept = {"folder", "suffixes"}
        return {key: value for key, value in vars(self).items() if key in kept}

    def _opened(self, make: Any) -> Any:
        """What this process has open; a forked one opens it anew."""
        pid, found = vars(self).get("_open", (0, None))
        if pid != os.getpid():
            found = vars(self).pop("_open", None)
            found = (
                None  # closed first: LMDB lets a process open a file once, also an inherited one
            )
            found = make()
            vars(self)["_open"] = os.getpid(), found
        return found

    def _name(self, number: int, part: int) -> str:
        suffix = self.suffixes[part] if part < len(self.suffixes) else ""
        return f"{number:07}.{part}{suffix}"


class PlainFiles(Container):
    """A file for each file, as they are."""

    name = "files"

    def _put(self, samples: Samples) -> None:
        for number, parts in enumerate(samples):
            for part, blob in enumerate(parts):
                (self.at / self._name(number, part)).write_bytes(blob)

    def _take(self, number: int, parts: int) -> list[bytes]:
        names = (self._name(number, part) for part in range(parts))
        return [(self.at / name).read_bytes() for name in names]


class WebTar(Container):
    """Archives that are read from begin to end, by webdataset; each worker has its own."""

    name = "tar shards"
    needs = "webdataset"
    is_random = False
    SHARDS: ClassVar[int] = 8
    """So many; a worker without one has nothing to do."""

    def _put(self, samples: Samples) -> None:
        each = -(-len(samples) // self.SHARDS)
        for shard, first in enumerate(range(0, len(samples), each)):
            with tarfile.open(self.at / f"{shard:03}.tar", "w") as archive:
                for number in range(first, min(first + each, len(samples))):
                    for part, blob in enumerate(samples[number]):
                        about = tarfile.TarInfo(self._name(number, part))
                        about.size = len(blob)
                        archive.addfile(about, BytesIO(blob))

    def _flow(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        wds, seed = import_module("webdataset"), torch.initial_seed()
        shards = [str(path) for path in self.files()]
        shuffled = len(shards) if buffer else False
        found = wds.WebDataset(shards, shardshuffle=shuffled, empty_check=False, seed=seed)
        for sample in found.shuffle(buffer, seed=seed) if buffer else found:
            parts = sorted(
                (key for key in sample if not key.startswith("__")),
                key=lambda key: int(key.partition(".")[0]),
            )
            yield int(sample["__key__"]), [sample[key] for key in parts]


class Lmdb(Container):
    """A tree of pages in one file, which is mapped into memory."""

    name = "LMDB"
    needs = "lmdb"

    def _put(self, samples: Samples) -> None:
        room = sum(len(blob) + 2 * _PAGE for parts in samples for blob in parts) + (16 << 20)
        with import_module("lmdb").open(self.folder, map_size=2 * room) as tree:
            with tree.begin(write=True) as change:
                for number, parts in enumerate(samples):
                    for part, blob in enumerate(parts):
                        change.put(self._name(number, part).encode(), blob)
            tree.sync(True)  # noqa: FBT003 - the library's own way to call it

    def _take(self, number: int, parts: int) -> list[bytes]:
        lmdb = import_module("lmdb")
        tree = self._opened(
            lambda: lmdb.open(self.folder, readonly=True, lock=False, readahead=False)
        )
        with tree.begin() as looked:
            return [looked.get(self._name(number, part).encode()) for part in range(parts)]


class Hdf5(Container):
    """A dataset of byte strings of any length in one HDF5 file."""

    name = "HDF5"
    needs = "h5py"

    def _put(self, samples: Samples) -> None:
        h5py, np = import_module("h5py"), import_module("numpy")
        with h5py.File(self.at / "data.h5", "w") as file:
            most = max(map(len, samples))
            kind = h5py.vlen_dtype(np.uint8)
            rows = file.create_dataset("samples", (len(samples), most), kind)
            for number, parts in enumerate(samples):
                for part, blob in enumerate(parts):
                    rows[number, part] = np.frombuffer(blob, np.uint8)

    def _take(self, number: int, parts: int) -> list[bytes]:
        h5py = import_module("h5py")
        rows = self._opened(lambda: h5py.File(self.at / "data.h5"))["samples"]
        return [rows[number, part].tobytes() for part in range(parts)]


_PAGE: Final = 4096
KINDS: Final[tuple[type[Container], ...]] = (PlainFiles, WebTar, Lmdb, Hdf5)
"""All layouts, files first: the others are compared with them."""


def missing(kind: type[Container]) -> str:
    """What to install for a layout; empty where it can be written and read."""
    if not kind.needs or find_spec(kind.needs) is not None:
        return ""
    return f"pip install {kind.needs}"


def shuffle_share(kind: type[Container], samples: int, buffer: int) -> float:
    """How uniform a shuffled epoch is: 1 is uniform, 0 not shuffled at all.

    The mean distance in the data between samples that come one after the other, over that of a
    uniform shuffle, a third of the epoch. Of a stream: whole shards in any order, and a buffer out
    of which one is drawn each time.

    Args:
        kind: of container.
        samples: of the epoch.
        buffer: samples that a stream keeps to draw from.
    """
    if kind.is_random:
        return 1.0
    many = min(samples, _SIMULATED)
    room = max(round(buffer * many / max(samples, 1)), 1)
    rng = random.Random(0)  # noqa: S311 - a simulation
    each = max(many // max(WebTar.SHARDS, samples // _IN_A_SHARD), 1)
    shards = [range(first, min(first + each, many)) for first in range(0, many, each)]
    rng.shuffle(shards)
    kept: list[int] = []
    came: list[int] = []
    for number in (one for shard in shards for one in shard):
        kept.append(number)
        if len(kept) >= room:
            at = rng.randrange(len(kept))
            kept[at], kept[-1] = kept[-1], kept[at]
            came.append(kept.pop())
    rng.shuffle(kept)
    came += kept
    distances = [abs(one - other) for one, other in pairwise(came)]
    return min(3 * sum(distances) / len(distances) / many, 1.0) if distances else 1.0


_SIMULATED: Final = 20_000
_IN_A_SHARD: Final = 1_000
"""Samples of a shard, in larger data."""
