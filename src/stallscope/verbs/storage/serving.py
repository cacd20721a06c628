"""The user's own dataset over bytes of ours, so that its decode and transforms stay as they are.

While a sample is made, code that opens one of its files gets bytes that came from another layout of
the same data. Python's `open` and two readers that open files in C are replaced, in workers, as
long as they live, and never in the user's own process.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stallscope.bench.samples import OwnClock
from stallscope.hooks.loader_access import StandIn
from stallscope.hooks.patches import Patches
from stallscope.isolation import seed_everywhere
from stallscope.verbs.storage.recipes import QUALITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.verbs.storage.containers import Container


SHUFFLE_BUFFER: Final = 1_000
"""Samples in a stream's shuffle buffer, as in webdataset's documentation."""
_MOST_BYTES: Final = 64 << 20
"""Largest file that can be a single sample's."""


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

    def install(self) -> None:
        """Replace the functions that open files, in a worker; does nothing in other processes."""
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
        _overrides.install()
        _overrides.contents, _overrides.opened = {}, []
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
    _overrides.install()
    _overrides.contents, _overrides.opened = dict(zip(raw.paths, raw.blobs, strict=True)), []
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
        clock = OwnClock()
        for number, raw, shrunk in self._samples:
            variants = [raw] if shrunk is None else [raw, replace(raw, blobs=tuple(shrunk))]
            took_s = [0.0] * len(variants)
            made_of(self._original, raw)  # the first time maps pages
            for place in torch.randperm(len(variants)).tolist():
                seed_everywhere(number)
                took_s[place] = clock.took_s(partial(made_of, self._original, variants[place]))
            yield from ((bool(place), number, each_s) for place, each_s in enumerate(took_s))


class ReadTimes(IterableDataset[Any]):
    """Time that each sample's files take to be read from a container; yields number and seconds.

    `parts` is the number of files of each sample, `numbers` the order in which they are requested.
    """

    def __init__(self, container: Container, parts: Sequence[int], numbers: Sequence[int]) -> None:
        self._container, self._parts, self._numbers = container, parts, numbers

    def __iter__(self) -> Iterator[tuple[int, float]]:
        clock, container = OwnClock(), self._container
        if container.is_random:
            for number in self._numbers:
                yield number, clock.took_s(partial(container.get, number, self._parts[number]))
            return
        stream = container.stream(max(len(self._parts) // 4, 2))
        received: list[tuple[int, list[bytes]]] = []
        while True:
            seconds = clock.took_s(lambda: received.extend(islice(stream, 1)))
            if not received:
                return
            yield received.pop()[0], seconds


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
