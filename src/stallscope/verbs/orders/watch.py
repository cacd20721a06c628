"""Watching the calls of a dataset while it makes samples, with their inputs and results.

Watchers are placed in a copy of the dataset; the user's own has none. The watcher decodes a lazy
image, so that the decoding does not count as an op's time.
"""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from PIL import Image

from stallscope.isolation import seed_everywhere
from stallscope.loops.cached_values import fresh, is_image, leaves
from stallscope.verbs.orders.run_ops import OpInput, clocked

if TYPE_CHECKING:
    from stallscope.verbs.orders.pipeline import Place

_SEED: Final = 1_234


class Lazy(NamedTuple):
    """Image that was still encoded when the pipeline got it."""

    file: Any
    """Its path, or its bytes; None: it cannot be read a second time."""
    format: str | None
    """PIL's name of the format."""
    size: tuple[int, int]
    """Width and height."""

    def open(self) -> Any:
        """Return the image as the pipeline got it: open, and not yet decoded."""
        return Image.open(io.BytesIO(self.file) if isinstance(self.file, bytes) else self.file)


@dataclass(eq=False)
class CapturedSample:
    """Sample that went through a pipeline."""

    input: OpInput
    """Arguments of the pipeline, decoded; a copy."""
    first: Any = None
    """Original first argument, during the call."""
    lazy: Lazy | None = None
    """The image, if it was still encoded."""
    decode_s: float = 0.0
    """Seconds for decoding the image."""
    took_s: float = 0.0
    """Seconds in the pipeline, decoding included."""
    ops: int = 0
    """Number of ops of a list that were called."""
    result: Any = None
    """Result of the pipeline, during the call."""
    fetch_s: float = 0.0
    """Seconds of the rest of `__getitem__`."""
    finished: Any = None
    """Sample as the dataset returns it."""
    where: tuple[Any, ...] | None = None
    """Keys and numbers that lead to the pipeline's result in the finished sample; None: the sample
    does not hold the unchanged result."""
    path: Any = None
    """File from which a reader read the image; None: no reader did."""
    reader: Place | None = None
    """Place of the reader."""

    def source(self) -> Any:
        """Return what a `Draft` decodes: the path, or the image as the pipeline got it."""
        return self.path or (self.lazy and self.lazy.open())


@dataclass(eq=False)
class Watched:
    """Place of a pipeline or of a reader, and the samples that went through it."""

    place: Place
    samples: list[CapturedSample] = field(default_factory=list)
    is_single: bool = True
    """True if each sample went through all of its ops once."""
    calls: list[CapturedSample] = field(default_factory=list)
    """Calls for the current sample."""

    def filled(self, dataset: Any, *, reads: bool = False) -> Any:
        """Return a copy of a dataset with watched ops in the place; the first gets the sample."""
        ops = self.place.value
        if not isinstance(ops, (list, tuple)):
            return self.place.filled(dataset, _WatchedOp(ops, self.calls, reads=reads))
        watched = [_WatchedOp(op, self.calls, is_first=not n) for n, op in enumerate(ops)]
        return self.place.filled(dataset, type(ops)(watched))

    def add(self, finished: Any, rest_s: float, reads: list[Watched]) -> None:
        """Add the current sample, if it went through the place."""
        if not self.calls:
            return
        call, value = self.calls[0], self.place.value
        most = len(value) if isinstance(value, (list, tuple)) else 1
        self.is_single &= len(self.calls) == 1 and call.ops == most
        for each in reads:
            for read in each.calls:
                if read.result is call.first and isinstance(read.first, (str, os.PathLike)):
                    call.reader, call.path = each.place, read.first
        call.finished, call.fetch_s = finished, rest_s
        call.where = _path_to(finished, call.result)
        call.first = call.result = None
        self.samples.append(call)


def watch(
    dataset: Any, places: list[Place], indices: list[Any], readers: list[Place]
) -> list[Watched]:
    """Make samples with a copy of the dataset; watch places of pipelines, and what readers read."""
    reads, pipelines = [*map(Watched, readers)], [*map(Watched, places)]
    for each in reads:
        dataset = each.filled(dataset, reads=True)
    for each in pipelines:
        dataset = each.filled(dataset)
    for number, index in enumerate(indices):
        for each in (*reads, *pipelines):
            each.calls.clear()
        finished, whole_s = clocked(partial(seeded, dataset, index, number))
        inside_s = sum(call.took_s for each in pipelines for call in each.calls)
        for each in pipelines:
            each.add(finished, max(whole_s - inside_s, 0.0), reads)
    return pipelines


class _WatchedOp:
    """Wrapper of an op that records its inputs and results.

    Args:
        op: the user's.
        calls: extended by each call; the last call gets the result of every op.
        is_first: the op gets the sample.
        reads: the op reads an image from a path, so its input needs no decoding.
    """

    def __init__(
        self, op: Any, calls: list[CapturedSample], *, is_first: bool = True, reads: bool = False
    ) -> None:
        self._op, self._calls, self._is_first, self._reads = op, calls, is_first, reads

    def __call__(self, *args: Any, **named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        if self._is_first:
            lazy, decode_s = (None, 0.0) if self._reads else decoded((args, named))
            arguments = OpInput(*fresh((args, named)))
            first = next(iter(args), None)
            self._calls.append(CapturedSample(arguments, first, lazy, decode_s))
        result = self._op(*args, **named)
        if self._calls:
            call = self._calls[-1]
            call.result = result
            call.ops += 1
            call.took_s += (time.perf_counter_ns() - began_ns) / 1e9
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def decoded(value: Any) -> tuple[Lazy | None, float]:
    """Decode the images of a value; return the first encoded image, and the seconds for all."""
    encoded, took_s = None, 0.0
    for leaf in leaves(value):
        if is_image(leaf) and getattr(leaf, "tile", None):
            encoded = encoded or Lazy(_file_of(leaf), leaf.format, leaf.size)
            took_s += clocked(leaf.load)[1]
    return encoded, took_s


def _file_of(image: Any) -> Any:
    """Return the path of an image, or the bytes of an image in memory."""
    name = getattr(image, "filename", "")
    if isinstance(name, str) and name:
        return name
    with suppress(AttributeError):
        return bytes(image.fp.getvalue())
    return None


def _path_to(sample: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Return the keys in a sample that lead to an object, or to the image in a result."""
    if sample is wanted:
        return ()
    if isinstance(wanted, dict) and (inner := wanted.get("image")) is not None:
        return _path_to(sample, inner)
    if isinstance(wanted, tuple) and wanted and not isinstance(sample, type(wanted[0])):
        return _path_to(sample, wanted[0])
    items: Any = ()
    if isinstance(sample, dict):
        items = sample.items()
    elif isinstance(sample, (list, tuple)):
        items = enumerate(sample)
    for key, item in items:
        rest = None if isinstance(item, (str, bytes)) else _path_to(item, wanted)
        if rest is not None:
            return (key, *rest)
    return None


def seeded(dataset: Any, index: Any, number: int) -> Any:
    """Make a sample; `number` seeds the draws outside of its pipeline."""
    seed_everywhere(_SEED + number)
    return dataset[index]
