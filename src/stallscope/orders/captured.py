"""The samples on which ops are tried: what goes into a dataset's pipeline, and what comes out.

Watchers stand in a copy of the dataset while samples are made; the user's own has none. A lazy
image is decoded by the watcher, so that its decoding is no op's.

Calling an op on what the one before it gave, in the way in which its pipeline does.

A sample on its way is what the next op is called with. One positional argument is replaced by the
result; several are replaced by a tuple of as many; keyword arguments by a dictionary.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from stallscope.errors import StallscopeError
from stallscope.loops.cached_values import fresh, leaves
from stallscope.orders.digests import is_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stallscope.orders.pipeline import Op, Place


class OpResultError(StallscopeError, TypeError):
    """An op gives something that the next one cannot be called with."""


class OpInput(NamedTuple):
    """What an op is called with."""

    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def value(self) -> Any:
        """The sample itself, as the last op of a pipeline gives it."""
        if self.named:
            return self.named
        return self.args[0] if len(self.args) == 1 else self.args


def called(op: Op, call: Any, given: OpInput) -> Any:
    """The result of an op, called as its compose would.

    Args:
        op: says how.
        call: what is called: the op, or a copy of it.
        given: with what.
    """
    if op.maps_items and len(given.args) == 1 and isinstance(given.args[0], (list, tuple)):
        return [call(item) for item in given.args[0]]
    return call(*given.args, **given.named)


def passed_on(op: Op, given: OpInput, result: Any) -> OpInput:
    """What the next op is called with.

    Raises:
        OpResultError: the result is nothing that it could be called with.
    """
    if result is None:
        raise OpResultError(
            f"{op.name} returns None, so the op after it gets no sample: let its __call__ return "
            "the sample"
        )
    if given.named:
        if not isinstance(result, Mapping):
            raise OpResultError(
                f"{op.name} was called by keyword and returns a {type(result).__name__}: let it "
                "return a dictionary of what it was given"
            )
        return OpInput((), dict(result))
    if len(given.args) > 1:
        if not isinstance(result, (tuple, list)) or len(result) != len(given.args):
            raise OpResultError(
                f"{op.name} was called with {len(given.args)} values and returns a "
                f"{type(result).__name__}: let it return a tuple of as many"
            )
        return OpInput(tuple(result), {})
    return OpInput((result,), {})


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
class CapturedSample:
    """One sample that went through a pipeline."""

    index: Any
    """Which one, as the dataset is asked for it."""
    given: OpInput
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

    drawn: dict[int, list[CapturedSample]] = field(default_factory=dict)
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
                one = CapturedSample(index, call.given, path_to(sample, call.result), call.lazy)
                one.decode_s, one.fetch_s = call.decode_s, max(whole_s - inside_s, 0.0)
                one.finished = sample
                one.reader, one.path = _read_by(reading, call)
                seen.drawn.setdefault(number, []).append(one)
    return seen


@dataclass
class _Call:
    given: OpInput
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
            return _WatchedOp(self._value, self._first, is_last=True)
        last = len(self._value) - 1
        ops = [
            _WatchedOp(op, self._next if number else self._first, is_last=number == last)
            for number, op in enumerate(self._value)
        ]
        return type(self._value)(ops)

    def _first(self, op: Any, args: Any, named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        lazy, decode_s = (None, 0.0) if self._reads else _decoded((args, named))
        call = _Call(OpInput(*fresh((args, named))), lazy, decode_s, first=next(iter(args), None))
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


class _WatchedOp:
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
