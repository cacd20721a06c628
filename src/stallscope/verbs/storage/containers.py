"""Layouts in which the same samples can be stored, and the dataset's own code over bytes from them.

A sample is one file or several. Each layout is written and read by its own library; the worker that
reads a container opens it. While a sample is made, code that opens one of its files gets bytes of
ours, so that the dataset's decode and transforms stay as they are. Python's `open` and two readers
that open files in C are replaced, in workers, as long as they live, and never in the user's own
process.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stallscope.bench.samples import own_s
from stallscope.hooks.loader_access import StandIn
from stallscope.hooks.patches import Patches
from stallscope.isolation import seed_everywhere
from stallscope.verbs.storage.layout_result import QUALITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Samples = Sequence[Sequence[bytes]]
    Sample = tuple[int, list[bytes]]
    """Number and files."""

_SHARDS: Final = 8
"""Tar shards of the samples; a worker without one would have nothing to do."""
_SIMULATED: Final = 20_000
"""Samples of the epoch that is simulated for `shuffle_share`."""
_BUFFER: Final = 1_000
"""Samples in a stream's shuffle buffer, as in webdataset's documentation, and in a shard of a whole
dataset."""
_PAGE: Final = 4096
_MOST_BYTES: Final = 64 << 20
"""Largest file that can be a single sample's."""


@dataclass(eq=False)
class Container:
    """Samples in a folder of their own, in one layout; base of the kinds."""

    folder: Path
    suffixes: tuple[str, ...] = ()

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

    def read(self, numbers: Sequence[int], parts: Sequence[int]) -> Iterator[Sample]:
        """Yield samples in this order, or a stream in its own; `parts` has the files of each."""
        return ((number, self._get(number, parts[number])) for number in numbers)

    def _get(self, number: int, parts: int) -> list[bytes]:
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return everything that was written."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

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

    def _get(self, number: int, parts: int) -> list[bytes]:
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
                        archive.addfile(member, io.BytesIO(blob))

    def read(self, numbers: Sequence[int], parts: Sequence[int]) -> Iterator[Sample]:  # noqa: ARG002 - a stream
        """Yield this worker's samples, shuffled by a buffer of a quarter of them."""
        webdataset, seed = import_module("webdataset"), torch.initial_seed()
        shards = [str(path) for path in self.files()]
        settings = {"shardshuffle": len(shards), "empty_check": False, "seed": seed}
        buffer = max(len(parts) // 4, 2)
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
        tree = import_module("lmdb").open(str(self.folder), map_size=2 * room)
        with tree, tree.begin(write=True) as change:
            for number, parts in enumerate(samples):
                for part, blob in enumerate(parts):
                    change.put(self._file(number, part).encode(), blob)

    @cached_property
    def _tree(self) -> Any:  # LMDB refuses a second handle
        settings = {"readonly": True, "lock": False, "readahead": False}
        return import_module("lmdb").open(str(self.folder), **settings)

    def _get(self, number: int, parts: int) -> list[bytes]:
        with self._tree.begin() as reader:
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

    @cached_property
    def _rows(self) -> Any:
        return import_module("h5py").File(self.folder / "data.h5")["samples"]

    def _get(self, number: int, parts: int) -> list[bytes]:
        return [self._rows[number, part].tobytes() for part in range(parts)]


KINDS: Final[tuple[type[Container], ...]] = (PlainFiles, WebDatasetShards, Lmdb, Hdf5)
"""All layouts; the first is what the others are compared with."""


def missing(kind: type[Container]) -> str:
    """Return what to install for a layout; empty: nothing."""
    is_there = not kind.needs or find_spec(kind.needs) is not None
    return "" if is_there else f"pip install {kind.needs}"


def shuffle_share(kind: type[Container], samples: int) -> float:
    """Return how uniform a shuffled epoch is: 1 is uniform, 0 not shuffled at all.

    The mean distance in the data between successive samples, over that of a uniform shuffle, which
    is a third of the epoch. A stream is simulated: shards in random order, then a buffer of samples
    from which one is drawn at a time.
    """
    if kind.is_random or samples < 2:  # noqa: PLR2004 - one sample has no order
        return 1.0
    number = min(samples, _SIMULATED)
    room = max(_BUFFER * number / samples, 1.0)
    rng = np.random.default_rng(0)
    shards = np.array_split(np.arange(number), min(max(_SHARDS, samples // _BUFFER), number))
    stream = np.concatenate([shards[at] for at in rng.permutation(len(shards))])
    # Drawn with chance 1 / room at each step, a sample stays for so many steps on average; before
    # the buffer is full, none is drawn
    drawn = np.maximum(np.arange(number), room) + rng.exponential(room - 1, number)
    distances = np.abs(np.diff(stream[np.argsort(drawn, kind="stable")]))
    return min(3 * float(distances.mean()) / number, 1.0)


class ReadTimes(IterableDataset[Any]):
    """Time that each sample's files take to be read from a container; yields number and seconds.

    `parts` is the number of files of each sample, `numbers` the order in which they are requested.
    """

    def __init__(self, container: Container, parts: Sequence[int], numbers: Sequence[int]) -> None:
        self._container, self._parts, self._numbers = container, parts, numbers

    def __iter__(self) -> Iterator[tuple[int, float]]:
        received: list[Any] = []
        samples = self._container.read(self._numbers, self._parts)
        while True:
            seconds = own_s(lambda: received.extend(islice(samples, 1)))
            if not received:
                return
            yield received.pop()[0], seconds


# ---- the dataset over bytes in memory ------------------------------------------------------------


@dataclass
class FileOverrides:
    """Bytes that this process gets in place of files, and the files that it opens."""

    contents: dict[str, bytes] = field(default_factory=dict)
    """Bytes, by the path that the dataset opens."""
    opened: list[str] = field(default_factory=list)
    """Files that were opened for reading, in order."""
    _patches: Patches | None = None
    _readers: tuple[str, ...] = ()
    """Libraries whose reader is replaced."""

    def get(self, path: Any) -> bytes | None:
        """Note that a file is opened; returns its bytes, None: open it as usual."""
        try:
            name = os.fsdecode(path)
        except TypeError:  # the number of an open file
            return None
        self.opened.append(name)
        return self.contents.get(name)

    def replace(self, contents: dict[str, bytes]) -> None:
        """Give these bytes from now on, in a worker; does nothing in other processes."""
        self.contents, self.opened = contents, []
        readers = tuple(module for module, _, _ in _READERS if module in sys.modules)
        if get_worker_info() is None or (self._patches and readers == self._readers):
            return
        if self._patches:  # a reader was imported since
            self._patches.undo()
        self._patches, self._readers = Patches(), readers
        for module in (builtins, io):
            self._patches.put(module, "open", self._open(module.open))
        originals = {
            id(original): (original, self._reader(original, decode))
            for module, name, decode in _READERS
            if (original := getattr(sys.modules.get(module), name, None)) is not None
        }
        self._patches.put_everywhere(originals)

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:  # noqa: A001 - it is one
            data = None if set(mode) & set("wax+") else self.get(file)
            if data is None:
                return original(file, mode, *args, **named)
            raw = io.BytesIO(data)
            text = {name: named[name] for name in named.keys() - {"closefd", "buffering", "opener"}}
            return raw if "b" in mode else io.TextIOWrapper(raw, *args[1:4], **text)

        return open

    def _reader(self, original: Callable[..., Any], decode: Callable[..., Any]) -> Any:
        def read(path: Any, *args: Any, **named: Any) -> Any:
            data = self.get(path)
            return original(path, *args, **named) if data is None else decode(data, *args, **named)

        return read


def _imdecode(data: bytes, flags: int = 1, **named: Any) -> Any:
    return sys.modules["cv2"].imdecode(np.frombuffer(data, np.uint8), flags, **named)


_READERS: Final = (
    ("cv2", "imread", _imdecode),
    (
        "torchvision.io.image",
        "read_file",
        lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8),
    ),
)
"""Functions that open files in C, and our decoders of the same bytes."""
_overrides: Final = FileOverrides()


@dataclass(frozen=True)
class RawSample:
    """The files of one sample."""

    index: Any
    paths: tuple[str, ...]
    """Paths, as the dataset opens them."""
    blobs: tuple[bytes, ...]


class RawSamples(StandIn):
    """The dataset's files in place of its samples."""

    def __getitem__(self, index: Any) -> RawSample:
        _overrides.replace({})
        self._original[index]
        paths = tuple(path for path in dict.fromkeys(_overrides.opened) if _is_data(path))
        return RawSample(index, paths, tuple(Path(path).read_bytes() for path in paths))


def _is_data(path: str) -> bool:
    """Tell a sample's own file from code and from containers of many samples."""
    if path.endswith((".py", ".pyc")) or path.startswith(("/proc/", "/sys/", "/dev/")):
        return False
    with suppress(OSError, ValueError):
        return Path(path).is_file() and Path(path).stat().st_size <= _MOST_BYTES
    return False


def made_of(dataset: Any, raw: RawSample) -> Any:
    """Let the dataset make a sample from bytes in memory."""
    _overrides.replace(dict(zip(raw.paths, raw.blobs, strict=True)))
    try:
        return dataset[raw.index]
    finally:
        _overrides.contents = {}


class MakeTimes(StandIn, IterableDataset[Any]):
    """Time that the dataset takes to make each sample from bytes in memory.

    Yields rows of `layout_result.MAKES`: of its own files and of smaller images, if there are any,
    in random order and with the same random numbers. `samples` are numbers, files, and the same
    files with smaller images.
    """

    def __init__(
        self, dataset: Any, samples: Sequence[tuple[int, RawSample, list[bytes] | None]]
    ) -> None:
        super().__init__(dataset)
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[bool, int, float]]:
        for number, raw, shrunk in self._samples:
            variants = [raw] if shrunk is None else [raw, replace(raw, blobs=tuple(shrunk))]
            took_s = [0.0] * len(variants)
            if raw is self._samples[0][1]:
                made_of(self._original, raw)  # the first call in a process imports and allocates
            for place in torch.randperm(len(variants)).tolist():
                seed_everywhere(number)
                took_s[place] = own_s(partial(made_of, self._original, variants[place]))
            yield from ((bool(place), number, each_s) for place, each_s in enumerate(took_s))


def loader_over(base: Any, dataset: Any, **named: Any) -> DataLoader[Any]:
    """Return a loader over another dataset, with the user's settings and at least one worker."""
    names = ("worker_init_fn", "prefetch_factor", "multiprocessing_context")
    settings = {name: getattr(base, name) for name in names if base.num_workers}
    return DataLoader(dataset, **{**settings, "num_workers": max(base.num_workers, 1), **named})


def smaller(blob: bytes, pixels: int) -> bytes:
    """Return a JPEG scaled to a short side of `pixels`; anything else as it is."""
    with suppress(Exception), Image.open(io.BytesIO(blob)) as image:
        if image.format == "JPEG" and min(image.size) > pixels:
            scale = pixels / min(image.size)
            shape = [max(round(side * scale), pixels) for side in image.size]
            out = io.BytesIO()
            image.resize(shape, Image.Resampling.LANCZOS).save(out, "JPEG", quality=QUALITY)
            return out.getvalue()
    return blob
