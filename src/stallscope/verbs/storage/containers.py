"""Layouts in which the same samples can be stored, each written and read by its own library.

A sample is one file or several. A container is written here; the worker that reads it opens it.
"""

from __future__ import annotations

import os
import tarfile
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Samples = Sequence[Sequence[bytes]]

_SHARDS: Final = 8
"""Tar shards of the samples; a worker without one would have nothing to do."""
_SHARD_SAMPLES: Final = 1_000
"""Samples of a shard of a whole dataset."""
_SIMULATED: Final = 20_000
"""Samples of the epoch that is simulated for `shuffle_share`."""
_PAGE: Final = 4096


@dataclass(eq=False)
class Container:
    """Samples in a folder of their own, in one layout; base of the kinds."""

    folder: Path
    suffixes: tuple[str, ...] = ()
    _handle: Any = None

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    """Package that reads it; empty: none."""
    is_random: ClassVar[bool] = True
    """True if any sample can be read by its number; else they come as a stream."""

    def write(self, samples: Samples) -> float:
        """Write samples, numbered from 0, to the disk; returns the seconds that it took."""
        began_s = time.perf_counter()
        self._write(samples)
        for path in self.files():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return time.perf_counter() - began_s

    def _write(self, samples: Samples) -> None:
        raise NotImplementedError

    def get(self, number: int, parts: int) -> list[bytes]:
        """Return the files of a sample, which has so many `parts`."""
        raise NotImplementedError

    def stream(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield this worker's samples with their numbers, shuffled by a buffer of this size."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return everything that was written."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _opened(self, opener: Callable[[], Any]) -> Any:
        """Open the container once: LMDB refuses a second handle."""
        self._handle = self._handle or opener()
        return self._handle

    def _file(self, number: int, part: int) -> str:
        suffix = self.suffixes[part] if part < len(self.suffixes) else ""
        return f"{number:07}.{part}{suffix}"


class PlainFiles(Container):
    """Each file as a file."""

    name = "files"

    def _write(self, samples: Samples) -> None:
        for number, parts in enumerate(samples):
            for part, blob in enumerate(parts):
                (self.folder / self._file(number, part)).write_bytes(blob)

    def get(self, number: int, parts: int) -> list[bytes]:  # noqa: D102 - as in the base
        return [(self.folder / self._file(number, part)).read_bytes() for part in range(parts)]


class WebDatasetShards(Container):
    """Archives that webdataset reads from begin to end; each worker has its own."""

    name = "tar shards"
    needs = "webdataset"
    is_random = False

    def _write(self, samples: Samples) -> None:
        size = -(-len(samples) // _SHARDS)
        for shard, first in enumerate(range(0, len(samples), size)):
            with tarfile.open(self.folder / f"{shard:03}.tar", "w") as archive:
                for number, parts in enumerate(samples[first : first + size], first):
                    for part, blob in enumerate(parts):
                        member = tarfile.TarInfo(self._file(number, part))
                        member.size = len(blob)
                        archive.addfile(member, BytesIO(blob))

    def stream(self, buffer: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield this worker's samples with their numbers."""
        webdataset, seed = import_module("webdataset"), torch.initial_seed()
        shards = [str(path) for path in self.files()]
        settings = {"shardshuffle": len(shards), "empty_check": False, "seed": seed}
        for sample in webdataset.WebDataset(shards, **settings).shuffle(buffer, seed=seed):
            keys = (key for key in sample if not key.startswith("__"))
            ordered = sorted(keys, key=lambda key: int(key.partition(".")[0]))
            yield int(sample["__key__"]), [sample[key] for key in ordered]


class Lmdb(Container):
    """A tree of pages in one file, which is mapped into memory."""

    name = "LMDB"
    needs = "lmdb"

    def _write(self, samples: Samples) -> None:
        room = sum(len(blob) + 2 * _PAGE for parts in samples for blob in parts) + (16 << 20)
        with import_module("lmdb").open(str(self.folder), map_size=2 * room) as tree:
            with tree.begin(write=True) as change:
                for number, parts in enumerate(samples):
                    for part, blob in enumerate(parts):
                        change.put(self._file(number, part).encode(), blob)
            tree.sync(True)  # noqa: FBT003 - the library's own way to call it

    def get(self, number: int, parts: int) -> list[bytes]:
        """Return the files of a sample."""
        settings = {"readonly": True, "lock": False, "readahead": False}
        tree = self._opened(lambda: import_module("lmdb").open(str(self.folder), **settings))
        with tree.begin() as reader:
            return [reader.get(self._file(number, part).encode()) for part in range(parts)]


class Hdf5(Container):
    """A dataset of byte strings of any length in one HDF5 file."""

    name = "HDF5"
    needs = "h5py"

    def _write(self, samples: Samples) -> None:
        h5py = import_module("h5py")
        with h5py.File(self.folder / "data.h5", "w") as file:
            shape = len(samples), max(map(len, samples))
            rows = file.create_dataset("samples", shape, h5py.vlen_dtype(np.uint8))
            for number, parts in enumerate(samples):
                for part, blob in enumerate(parts):
                    rows[number, part] = np.frombuffer(blob, np.uint8)

    def get(self, number: int, parts: int) -> list[bytes]:
        """Return the files of a sample."""
        file = self._opened(lambda: import_module("h5py").File(self.folder / "data.h5"))
        return [file["samples"][number, part].tobytes() for part in range(parts)]


KINDS: Final[tuple[type[Container], ...]] = (PlainFiles, WebDatasetShards, Lmdb, Hdf5)
"""All layouts; the first is what the others are compared with."""


def missing(kind: type[Container]) -> str:
    """Return what to install for a layout; empty: nothing."""
    is_there = not kind.needs or find_spec(kind.needs) is not None
    return "" if is_there else f"pip install {kind.needs}"


def shuffle_share(kind: type[Container], samples: int, buffer: int) -> float:
    """Return how uniform a shuffled epoch is: 1 is uniform, 0 not shuffled at all.

    The mean distance in the data between successive samples, over that of a uniform shuffle, which
    is a third of the epoch. A stream is simulated: shards in random order, then a buffer of samples
    from which one is drawn at a time.
    """
    if kind.is_random or samples < 2:  # noqa: PLR2004 - one sample has no order
        return 1.0
    number = min(samples, _SIMULATED)
    room = max(buffer * number / samples, 1.0)
    rng = np.random.default_rng(0)
    shards = np.array_split(np.arange(number), min(max(_SHARDS, samples // _SHARD_SAMPLES), number))
    stream = np.concatenate([shards[at] for at in rng.permutation(len(shards))])
    # Drawn with chance 1 / room at each step, a sample stays for so many steps on average; before
    # the buffer is full, none is drawn
    drawn = np.maximum(np.arange(number), room) + rng.exponential(room - 1, number)
    distances = np.abs(np.diff(stream[np.argsort(drawn, kind="stable")]))
    return min(3 * float(distances.mean()) / number, 1.0)
