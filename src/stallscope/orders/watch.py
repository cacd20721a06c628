"""Watching what a dataset calls while it makes samples, and what goes in and comes out.

Watchers stand in a copy of the dataset; the user's own has none. A lazy image is decoded by the
watcher, so that its decoding is no op's.
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from PIL import Image

from stallscope.isolation import seed_everywhere
from stallscope.loops.cached_values import fresh, is_image, leaves
from stallscope.orders.run_ops import OpInput

if TYPE_CHECKING:
    from stallscope.orders.pipeline import Place

_SEED: Final = 1_234


class Lazy(NamedTuple):
    """Image that was still encoded when it came to the pipeline."""

    file: Any
    """Its path, or its bytes; None where it cannot be read a second time."""
    format: str | None
    """As PIL names it."""
    size: tuple[int, int]
    """Width and height."""

    def open(self) -> Any:
        """Return the image as it came to the pipeline: open, and not yet decoded."""
        return Image.open(io.BytesIO(self.file) if isinstance(self.file, bytes) else self.file)


@dataclass
class CapturedSample:
    """One sample that went through a pipeline."""

    given: OpInput
    """Arguments of the pipeline, decoded; a copy."""
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    """The arguments themselves."""
    lazy: Lazy | None = None
    """The image, if it was still encoded."""
    decode_s: float = 0.0
    """Seconds of decoding it."""
    began_ns: int = 0
    ended_ns: int = 0
    took_s: float = 0.0
    """Seconds in the pipeline, decoding included."""
    ops: int = 0
    """Number of ops of a list that were called."""
    result: Any = None
    """Result of the pipeline."""
    generators: tuple[Any, ...] = ()
    """States of torch's, numpy's and Python's generators after it."""
    fetch_s: float = 0.0
    """Seconds of the rest of `__getitem__`."""
    finished: Any = None
    """Sample as the dataset gives it."""
    where: tuple[Any, ...] | None = None
    """Keys and numbers that lead to the pipeline's result in the finished sample; None where it is
    not in there as it came out."""
    path: Any = None
    """File that a reader made the image of; None where no reader did."""
    reader: int | None = None
    """Number of the reader."""

    @property
    def first(self) -> Any:
        """First argument."""
        return next(iter(self.args), None)


class Watched(NamedTuple):
    """Calls that were seen while samples were made; places are known by their number."""

    seen: dict[int, list[CapturedSample]]
    """What went through each place."""
    several: set[int]
    """Places that were called several times for a sample."""
    links: set[tuple[int, int]]
    """Places of which, for every sample, the second got what the first gave."""
    shares: dict[int, float]
    """Of the time of making samples (0 to 1)."""


def watch(dataset: Any, places: list[Place], indices: list[Any], readers: list[Place]) -> Watched:
    """Make samples, and see what goes through each place.

    Args:
        dataset: the user's, of which a copy is used.
        places: where to look.
        indices: of the samples.
        readers: likewise, but what they give is what a pipeline may be called with.
    """
    calls: list[list[CapturedSample]] = [[] for _ in places]
    reads: list[list[CapturedSample]] = [[] for _ in readers]
    for place, mine in zip(readers, reads, strict=True):
        dataset = place.filled(dataset, _WatchedOp(place.value, mine, reads=True))
    for place, mine in zip(places, calls, strict=True):
        dataset = place.filled(dataset, _watched(place.value, mine))
    seen: dict[int, list[CapturedSample]] = {}
    several = set()
    links: set[tuple[int, int]] | None = None
    took_s, all_s = [0.0] * len(places), 0.0
    for index_number, index in enumerate(indices):
        for mine in (*calls, *reads):
            mine.clear()
        began_ns = time.perf_counter_ns()
        finished = seeded(dataset, index, index_number)
        whole_s = (time.perf_counter_ns() - began_ns) / 1e9
        all_s += whole_s
        inside_s = sum(call.took_s for mine in calls for call in mine)
        pairs = _links(calls)
        for number, mine in enumerate(calls):
            took_s[number] += sum(call.took_s for call in mine)
            of_list = isinstance(places[number].value, (list, tuple))
            most = len(places[number].value) if of_list else 1
            if len(mine) > 1 or any(call.ops != most for call in mine):
                several.add(number)
            for call in mine[:1]:
                call.reader, call.path = _read_by(reads, call)
                call.where, call.finished = _path_to(finished, call.result), finished
                call.fetch_s = max(whole_s - inside_s, 0.0)
                done = replace(call, args=(), named={}, result=fresh(call.result))
                seen.setdefault(number, []).append(done)
        now = {pair for pair in pairs if not several & set(pair)}
        links = now if links is None else links & now
    shares = {number: took_s[number] / all_s for number in seen}
    return Watched(seen, several, links or set(), shares)


def _links(calls: list[list[CapturedSample]]) -> set[tuple[int, int]]:
    """Return places that were called in turn for a sample, each on what the one before gave."""
    once = [(kept[0], number) for number, kept in enumerate(calls) if len(kept) == 1]
    once.sort(key=lambda one: one[0].began_ns)
    return {
        (number, after)
        for (earlier, number), (later, after) in pairwise(once)
        if earlier.ended_ns <= later.began_ns and _hands_over(earlier.result, later)
    }


def _hands_over(result: Any, later: CapturedSample) -> bool:
    """Return whether a call got the very objects of a result: itself, or those in it."""
    if later.named:
        return (
            not later.args
            and isinstance(result, Mapping)
            and result.keys() == later.named.keys()
            and all(result[name] is value for name, value in later.named.items())
        )
    if len(later.args) == 1:
        return later.args[0] is result
    several = isinstance(result, (tuple, list)) and len(result) == len(later.args) > 1
    return several and all(one is other for one, other in zip(result, later.args, strict=True))


def _read_by(reads: list[list[CapturedSample]], call: CapturedSample) -> tuple[int | None, Any]:
    """Return which reader made what a pipeline was called with, and of which file."""
    for number, kept in enumerate(reads):
        for read in kept:
            if read.result is call.first and isinstance(read.first, (str, os.PathLike)):
                return number, read.first
    return None, None


def _watched(value: Any, calls: list[CapturedSample]) -> Any:
    """Watch a callable, or a list of such, the first of which gets the sample."""
    if not isinstance(value, (list, tuple)):
        return _WatchedOp(value, calls)
    first, *rest = value
    return type(value)(
        [_WatchedOp(first, calls), *(_WatchedOp(op, calls, is_first=False) for op in rest)]
    )


class _WatchedOp:
    """Answers as the op that it stands in for, and keeps what goes in and what comes out.

    Args:
        op: the user's.
        calls: are filled; the last one gets the result of every op.
        is_first: whether the sample goes in here.
        reads: whether it makes an image of a path, so that there is nothing to decode before.
    """

    def __init__(
        self, op: Any, calls: list[CapturedSample], *, is_first: bool = True, reads: bool = False
    ) -> None:
        self._op, self._calls, self._is_first, self._reads = op, calls, is_first, reads

    def __call__(self, *args: Any, **named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        if self._is_first:
            lazy, decode_s = (None, 0.0) if self._reads else decoded((args, named))
            given = OpInput(*fresh((args, named)))
            self._calls.append(CapturedSample(given, args, named, lazy, decode_s, began_ns))
        result = self._op(*args, **named)
        if self._calls:
            call, ended_ns = self._calls[-1], time.perf_counter_ns()
            call.result, call.ended_ns, call.generators = result, ended_ns, _generators()
            call.ops += 1
            call.took_s += (ended_ns - began_ns) / 1e9
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def decoded(value: Any) -> tuple[Lazy | None, float]:
    """Decode the images of a value; return the first encoded one, and the seconds it took."""
    found, took_s = None, 0.0
    for leaf in leaves(value):
        if is_image(leaf) and getattr(leaf, "tile", None):
            found = found or Lazy(_file_of(leaf), leaf.format, leaf.size)
            began_ns = time.perf_counter_ns()
            leaf.load()
            took_s += (time.perf_counter_ns() - began_ns) / 1e9
    return found, took_s


def _file_of(image: Any) -> Any:
    """Return a path, or the bytes that an image in memory is read from."""
    name = getattr(image, "filename", "")
    if isinstance(name, str) and name:
        return name
    with suppress(AttributeError):
        return bytes(image.fp.getvalue())
    return None


def _path_to(sample: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Find an object, or the image in a result by name, in a sample."""
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
    for key, one in items:
        rest = None if isinstance(one, (str, bytes)) else _path_to(one, wanted)
        if rest is not None:
            return (key, *rest)
    return None


class Player:
    """Gives what a pipeline gave for sample after sample, and draws as it did."""

    def __init__(self, samples: list[CapturedSample]) -> None:
        self._samples = iter(samples)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Return the result of the next sample, whatever this is called with."""
        sample = next(self._samples)
        torch_state, numpy_state, python_state = sample.generators
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - the global one
        random.setstate(python_state)
        return fresh(sample.result)


def _generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002 - the global one
    return torch.default_generator.get_state(), numpy_state, random.getstate()


def seeded(dataset: Any, index: Any, number: int) -> Any:
    """Make a sample, with the draws of this number outside of its pipeline."""
    seed_everywhere(_SEED + number)
    return dataset[index]
