"""The samples on which ops are tried: what goes into a dataset's pipeline, and what comes out.

Watchers stand in a copy of the dataset while samples are made; the user's own has none. A lazy
image is decoded by the watcher, so that its decoding is no op's.
"""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from stallscope.measure.cache.values import fresh, leaves
from stallscope.measure.pipelines.calls import Given
from stallscope.measure.pipelines.digests import is_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stallscope.measure.pipelines.place import Place


class Lazy(NamedTuple):
    """An image that was still encoded when it came to the pipeline."""

    file: Any
    """Its path, or its bytes; None where it cannot be read a second time."""
    format: str | None
    """As PIL names it."""
    size: tuple[int, int]
    """Width and height."""
    mode: str
    """PIL's, before any conversion."""


@dataclass
class Drawn:
    """One sample that went through a pipeline."""

    index: Any
    """Which one, as the dataset is asked for it."""
    given: Given
    """What the pipeline was called with, decoded."""
    where: tuple[Any, ...] | None = None
    """Keys and numbers that lead to the pipeline's result in the finished sample; None where it is
    not in there as it came out."""
    lazy: Lazy | None = None
    """The image, if it was still encoded."""
    decode_s: float = 0.0
    """Decoding it."""
    fetch_s: float = 0.0
    """The rest of `__getitem__`."""
    finished: Any = None
    """The sample as the dataset gives it."""
    path: Any = None
    """The file that a reader made the image of; None where no reader did."""
    reader: int | None = None
    """Which of the readers."""


@dataclass
class Watched:
    """What the watchers of all places have seen."""

    drawn: dict[int, list[Drawn]] = field(default_factory=dict)
    """For each place, by its number, the samples that went through it once."""
    more_than_once: set[int] = field(default_factory=set)
    """Places that were called several times for a sample."""


def watch(
    dataset: Any, places: list[Place], indices: Iterable[Any], readers: Sequence[Place] = ()
) -> Watched:
    """Make samples, and see what goes through each place.

    Args:
        dataset: the user's, of which a copy is used.
        places: where to look.
        indices: of the samples.
        readers: likewise, but what they give is what a pipeline may be called with.
    """
    watchers = [_Watcher(place.value) for place in places]
    reading = [_Watcher(place.value, reads=True) for place in readers]
    for place, watcher in zip(readers, reading, strict=True):
        dataset = place.filled(dataset, watcher.standing())
    for place, watcher in zip(places, watchers, strict=True):
        dataset = place.filled(dataset, watcher.standing())
    seen = Watched()
    for index in indices:
        for watcher in (*watchers, *reading):
            watcher.calls = []
        began_ns = time.perf_counter_ns()
        sample = dataset[index]
        whole_s = (time.perf_counter_ns() - began_ns) / 1e9
        inside_s = sum(call.took_s for watcher in watchers for call in watcher.calls)
        for number, watcher in enumerate(watchers):
            if len(watcher.calls) > 1:
                seen.more_than_once.add(number)
            for call in watcher.calls[:1]:
                one = Drawn(index, call.given, path_to(sample, call.result), call.lazy)
                one.decode_s, one.fetch_s = call.decode_s, max(whole_s - inside_s, 0.0)
                one.finished = sample
                one.reader, one.path = _read_by(reading, call)
                seen.drawn.setdefault(number, []).append(one)
    return seen


@dataclass
class _Call:
    given: Given
    lazy: Lazy | None = None
    decode_s: float = 0.0
    took_s: float = 0.0
    result: Any = None
    first: Any = None
    """The first argument itself."""


class _Watcher:
    """Sees what goes into a value and what comes out.

    Args:
        value: a callable, or a list of such, the first of which gets the sample.
        reads: whether it makes an image of a path, so that there is nothing to decode before.
    """

    def __init__(self, value: Any, *, reads: bool = False) -> None:
        self._value = value
        self._reads = reads
        self.calls: list[_Call] = []

    def standing(self) -> Any:
        """What stands in for the value."""
        if not isinstance(self._value, (list, tuple)):
            return _Standing(self._value, self._first, is_last=True)
        last = len(self._value) - 1
        ops = [
            _Standing(op, self._next if number else self._first, is_last=number == last)
            for number, op in enumerate(self._value)
        ]
        return type(self._value)(ops)

    def _first(self, op: Any, args: Any, named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        lazy, decode_s = (None, 0.0) if self._reads else _decoded((args, named))
        call = _Call(Given(*fresh((args, named))), lazy, decode_s, first=next(iter(args), None))
        self.calls.append(call)
        call.result = op(*args, **named)
        call.took_s += (time.perf_counter_ns() - began_ns) / 1e9
        return call.result

    def _next(self, op: Any, args: Any, named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        result = op(*args, **named)
        if self.calls:
            self.calls[-1].result = result
            self.calls[-1].took_s += (time.perf_counter_ns() - began_ns) / 1e9
        return result


class _Standing:
    """Answers as the op that it stands in for, but is called through a watcher."""

    def __init__(self, op: Any, call: Any, *, is_last: bool) -> None:
        self._op, self._call, self._is_last = op, call, is_last

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(self._op, args, named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def _read_by(reading: list[_Watcher], call: _Call) -> tuple[int | None, Any]:
    """Which reader made what a pipeline was called with, and of which file."""
    for number, watcher in enumerate(reading):
        for read in watcher.calls:
            if read.result is call.first and isinstance(read.first, (str, os.PathLike)):
                return number, read.first
    return None, None


def _decoded(value: Any) -> tuple[Lazy | None, float]:
    """Decode the images of a value that are not yet; the first of them, and how long it took."""
    found, took_s = None, 0.0
    for leaf in leaves(value):
        if is_image(leaf) and getattr(leaf, "tile", None):
            found = found or Lazy(_file_of(leaf), leaf.format, leaf.size, leaf.mode)
            began_ns = time.perf_counter_ns()
            leaf.load()
            took_s += (time.perf_counter_ns() - began_ns) / 1e9
    return found, took_s


def _file_of(image: Any) -> Any:
    """A path, or the bytes that an image in memory is read from."""
    name = getattr(image, "filename", "")
    if isinstance(name, str) and name:
        return name
    with suppress(AttributeError):
        return bytes(image.fp.getvalue())
    return None


def path_to(sample: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Where an object, or the only image in a result by name, stands in a sample."""
    if sample is wanted:
        return ()
    if isinstance(wanted, dict) and (inner := wanted.get("image")) is not None:
        return path_to(sample, inner)
    if isinstance(wanted, tuple) and wanted and not isinstance(sample, type(wanted[0])):
        return path_to(sample, wanted[0])
    items: Any = ()
    if isinstance(sample, dict):
        items = sample.items()
    elif isinstance(sample, (list, tuple)):
        items = enumerate(sample)
    for key, one in items:
        rest = None if isinstance(one, (str, bytes)) else path_to(one, wanted)
        if rest is not None:
            return (key, *rest)
    return None


def opened(lazy: Lazy) -> Any:
    """The image once more as it came to the pipeline: open, and not yet decoded."""
    source = io.BytesIO(lazy.file) if isinstance(lazy.file, bytes) else lazy.file
    return Image.open(source)
