"""The user's own dataset behind bytes of ours: its decode and its transforms stay what they are.

While a sample is made, whatever opens one of its files gets that file's bytes instead, which came
from another layout of the same data. What is replaced are Python's `open` and two readers that open
files in C. It stands in workers, as long as they live, and never in the user's own process.
"""

from __future__ import annotations

import builtins
import io
import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stallscope.bench.samples import OwnClock
from stallscope.hooks.patches import Patches
from stallscope.isolation import restore_generators, seed_everywhere
from stallscope.loops.cached_loaders import InPlaceOf
from stallscope.loops.cached_values import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stallscope.storage.containers import Container


SHUFFLE_BUFFER: Final = 1_000
"""Samples of a stream's shuffle buffer, as webdataset's documentation has it."""
QUALITY: Final = 90
"""Of JPEGs that are stored smaller."""
_MOST_BYTES: Final = 64 << 20
"""A larger file is no single sample's."""


@dataclass
class _Desk:
    """Which bytes are handed out for which file, in this process."""

    served: dict[str, bytes] = field(default_factory=dict)
    """By the path that the dataset asks for."""
    asked: list[str] = field(default_factory=list)
    """Files that were opened for reading, in order."""
    _patches: Patches | None = None
    _readers: tuple[bool, ...] = ()
    """Which of the libraries' readers were there to be replaced."""

    def bytes_for(self, path: Any) -> bytes | None:
        """The bytes of a file; None where it is to be opened as ever."""
        try:
            name = os.fsdecode(path)
        except TypeError:  # the number of an open file
            return None
        self.asked.append(name)
        return self.served.get(name)

    def stand(self) -> None:
        """Take the place of what opens files, in a worker; nothing is done in another process."""
        if get_worker_info() is None:
            return
        known = tuple(name in sys.modules for name, _, _ in _READERS)
        if self._patches is not None and known == self._readers:
            return
        if self._patches is not None:  # a reader was imported since
            self._patches.undo()
        self._patches = patches = Patches()
        for module in (builtins, io):
            patches.put(module, "open", self._open(module.open))
        patches.put_everywhere(
            {
                id(original): (original, made(self, original))
                for name, what, made in _READERS
                if (original := getattr(sys.modules.get(name), what, None)) is not None
            }
        )
        self._readers = known

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:  # noqa: A001 - it is one
            data = None if set(mode) & set("wax+") else self.bytes_for(file)
            if data is None:
                return original(file, mode, *args, **named)
            raw = io.BytesIO(data)
            if "b" in mode:
                return raw
            named.pop("closefd", None)
            named.pop("buffering", None)
            return io.TextIOWrapper(raw, *args[1:4], **named)

        return open


def _imread(desk: _Desk, original: Callable[..., Any]) -> Callable[..., Any]:
    def imread(path: Any, *args: Any, **named: Any) -> Any:
        data = desk.bytes_for(path)
        if data is None:
            return original(path, *args, **named)
        return sys.modules["cv2"].imdecode(np.frombuffer(data, np.uint8), *(args or (1,)), **named)

    return imread


def _read_file(desk: _Desk, original: Callable[..., Any]) -> Callable[..., Any]:
    def read_file(path: Any) -> Any:
        data = desk.bytes_for(path)
        return (
            original(path) if data is None else torch.frombuffer(bytearray(data), dtype=torch.uint8)
        )

    return read_file


_READERS: Final = (
    ("cv2", "imread", _imread),
    ("torchvision.io.image", "read_file", _read_file),
)
_desk: Final = _Desk()


@dataclass(frozen=True)
class RawSample:
    """The files that one sample is made of."""

    index: Any
    """As the dataset knows it."""
    paths: tuple[str, ...]
    """As the dataset opens them."""
    blobs: tuple[bytes, ...]
    """What is in them."""
    is_same: bool | None = None
    """Whether the sample made from these bytes is the very same; None: not compared."""


class KeptFiles(InPlaceOf):
    """Gives the files of each sample in place of the sample itself.

    Args:
        dataset: the user's.
        compared: so many of the first samples of each worker are made a second time, from the bytes
            that were kept.
    """

    def __init__(self, dataset: Any, compared: int = 2) -> None:
        super().__init__(dataset)
        self._compared = compared

    def __getitem__(self, index: Any) -> RawSample:
        _desk.stand()
        compares = self._compared > 0
        put_back = list(restore_generators(self._dataset)) if compares else []
        _desk.served, _desk.asked = {}, []
        sample = self._dataset[index]
        paths = tuple(path for path in dict.fromkeys(_desk.asked) if _is_data(path))
        raw = RawSample(index, paths, tuple(Path(path).read_bytes() for path in paths))
        if not paths or not compares:
            return raw
        self._compared -= 1
        for put in put_back:
            put()
        return replace(raw, is_same=same(sample, made_of(self._dataset, raw)))


def _is_data(path: str) -> bool:
    """Whether this is a sample's own file: no code, and no container of many samples."""
    try:
        about = Path(path).stat()
    except (OSError, ValueError):
        return False
    is_code = path.endswith((".py", ".pyc")) or path.startswith(("/proc/", "/sys/", "/dev/"))
    return S_ISREG(about.st_mode) and not is_code and about.st_size <= _MOST_BYTES


def made_of(dataset: Any, raw: RawSample) -> Any:
    """The dataset's own sample, out of these bytes."""
    _desk.served, _desk.asked = dict(zip(raw.paths, raw.blobs, strict=True)), []
    try:
        return dataset[raw.index]
    finally:
        _desk.served = {}


class MakeTimes(InPlaceOf, IterableDataset[Any]):
    """How long the dataset takes to make each sample of bytes that are in memory.

    Gives the number of each sample, the seconds from its own files, and those from smaller images,
    in random order and from the same random numbers; None where there are none.

    Args:
        dataset: the user's.
        samples: number, files, and the same files with smaller images.
    """

    def __init__(
        self, dataset: Any, samples: Sequence[tuple[int, RawSample, list[bytes] | None]]
    ) -> None:
        super().__init__(dataset)
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[int, float, float | None]]:
        _desk.stand()
        clock = OwnClock()
        for number, raw, shrunk in self._samples:
            kinds = [raw] if shrunk is None else [raw, replace(raw, blobs=tuple(shrunk))]
            took_s: dict[int, float] = {}
            made_of(self._dataset, raw)  # the first time pages are mapped
            for at in torch.randperm(len(kinds)).tolist():
                seed_everywhere(number)
                took_s[at] = clock.took_s(partial(made_of, self._dataset, kinds[at]))
            yield number, took_s[0], took_s.get(1)


class ReadTimes(IterableDataset[Any]):
    """How long the files of each sample take to be read from a container, one after the other.

    Args:
        container: closed.
        parts: how many files each sample has.
        numbers: the samples in the order in which they are asked for.
        shuffled: whether a container that is read from its begin to its end shuffles them.
    """

    def __init__(
        self, container: Container, parts: Sequence[int], numbers: Sequence[int], *, shuffled: bool
    ) -> None:
        self._container, self._parts = container, parts
        self._numbers, self._shuffled = numbers, shuffled

    def __iter__(self) -> Iterator[tuple[int, float]]:
        clock, container = OwnClock(), self._container
        if container.is_random:
            for number in self._numbers:
                yield number, clock.took_s(partial(container.get, number, self._parts[number]))
            return
        stream = container.stream(max(len(self._parts) // 4, 2) if self._shuffled else 0)
        came: list[tuple[int, list[bytes]]] = []
        while True:
            seconds = clock.took_s(lambda: came.extend(islice(stream, 1)))
            if not came:
                return
            yield came.pop()[0], seconds


def loader_over(base: Any, dataset: Any, **named: Any) -> DataLoader[Any]:
    """A loader with the settings of the user's and at least one worker, over another dataset."""
    kept = ("worker_init_fn", "prefetch_factor", "multiprocessing_context")
    settings = {name: getattr(base, name) for name in kept if base.num_workers}
    return DataLoader(dataset, **{**settings, "num_workers": max(base.num_workers, 1), **named})


def smaller(blob: bytes, pixels: int) -> bytes:
    """A JPEG whose short side has so many pixels; the same bytes where it is none, or smaller."""
    with suppress(Exception), Image.open(io.BytesIO(blob)) as image:
        if image.format == "JPEG" and min(image.size) > pixels:
            scale = pixels / min(image.size)
            shape = [max(round(side * scale), pixels) for side in image.size]
            out = io.BytesIO()
            image.resize(shape, Image.Resampling.LANCZOS).save(out, "JPEG", quality=QUALITY)
            return out.getvalue()
    return blob


def as_pickle(samples: Any) -> bytes:
    """The samples of a batch in one piece; a collate function."""
    return pickle.dumps(samples, pickle.HIGHEST_PROTOCOL)
