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
from dataclasses import dataclass
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
    """An image that was still encoded when it came to the pipeline."""

    file: Any
    """Its path, or its bytes; None where it cannot be read a second time."""
    format: str | None
    """As PIL names it."""
    size: tuple[int, int]
    """Width and height."""

    def open(self) -> Any:
        """The image once more as it came to the pipeline: open, and not yet decoded."""
        return Image.open(io.BytesIO(self.file) if isinstance(self.file, bytes) else self.file)


@dataclass
class CapturedSample:
    """One sample that went through a pipeline."""

    given: OpInput
    """What the pipeline was called with, decoded."""
    where: tuple[Any, ...] | None
    """Keys and numbers that lead to the pipeline's result in the finished sample; None where it is
    not in there as it came out."""
    lazy: Lazy | None
    """The image, if it was still encoded."""
    decode_s: float
    """Decoding it."""
    fetch_s: float
    """The rest of `__getitem__`."""
    finished: Any
    """The sample as the dataset gives it."""
    path: Any
    """The file that a reader made the image of; None where no reader did."""
    reader: int | None
    """Which of the readers."""
    result: Any
    """What the pipeline gave."""
    generators: tuple[Any, ...]
    """Where torch's, numpy's and Python's generators stood then."""


class Watched(NamedTuple):
    """What was seen while samples were made; places are known by their number."""

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
    calls: list[list[_Call]] = [[] for _ in places]
    reads: list[list[_Call]] = [[] for _ in readers]
    for place, kept in zip(readers, reads, strict=True):
        dataset = place.filled(dataset, _WatchedOp(place.value, kept, reads=True))
    for place, kept in zip(places, calls, strict=True):
        dataset = place.filled(dataset, _watched(place.value, kept))
    seen: dict[int, list[CapturedSample]] = {}
    several = set()
    links: set[tuple[int, int]] | None = None
    took_s, all_s = [0.0] * len(places), 0.0
    for index_number, index in enumerate(indices):
        for kept in (*calls, *reads):
            kept.clear()
        began_ns = time.perf_counter_ns()
        finished = seeded(dataset, index, index_number)
        whole_s = (time.perf_counter_ns() - began_ns) / 1e9
        all_s += whole_s
        inside_s = sum(call.took_s for kept in calls for call in kept)
        for number, kept in enumerate(calls):
            took_s[number] += sum(call.took_s for call in kept)
            of_list = isinstance(places[number].value, (list, tuple))
            most = len(places[number].value) if of_list else 1
            if len(kept) > 1 or any(call.ops != most for call in kept):
                several.add(number)
            for call in kept[:1]:
                reader, path = _read_by(reads, call)
                sample = CapturedSample(
                    given=call.given,
                    where=_path_to(finished, call.result),
                    lazy=call.lazy,
                    decode_s=call.decode_s,
                    fetch_s=max(whole_s - inside_s, 0.0),
                    finished=finished,
                    path=path,
                    reader=reader,
                    result=fresh(call.result),
                    generators=call.generators,
                )
                seen.setdefault(number, []).append(sample)
        now = {pair for pair in _links(calls) if not several & set(pair)}
        links = now if links is None else links & now
    shares = {number: took_s[number] / all_s for number in seen}
    return Watched(seen, several, links or set(), shares)


def _links(calls: list[list[_Call]]) -> set[tuple[int, int]]:
    """The places that were called in turn for one sample, each on what the one before gave."""
    once = [(kept[0], number) for number, kept in enumerate(calls) if len(kept) == 1]
    once.sort(key=lambda one: one[0].began_ns)
    return {
        (number, after)
        for (earlier, number), (later, after) in pairwise(once)
        if earlier.ended_ns <= later.began_ns and _hands_over(earlier.result, later)
    }


def _hands_over(result: Any, later: _Call) -> bool:
    """Whether a call got the very objects of a result: itself, or those in it."""
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


def _read_by(reads: list[list[_Call]], call: _Call) -> tuple[int | None, Any]:
    """Which reader made what a pipeline was called with, and of which file."""
    for number, kept in enumerate(reads):
        for read in kept:
            if read.result is call.first and isinstance(read.first, (str, os.PathLike)):
                return number, read.first
    return None, None


def _watched(value: Any, calls: list[_Call]) -> Any:
    """What stands in for a callable, or for a list of such, the first of which gets the sample."""
    if not isinstance(value, (list, tuple)):
        return _WatchedOp(value, calls)
    first, *rest = value
    return type(value)(
        [_WatchedOp(first, calls), *(_WatchedOp(op, calls, is_first=False) for op in rest)]
    )


@dataclass
class _Call:
    given: OpInput
    args: tuple[Any, ...]
    named: dict[str, Any]
    """The arguments themselves."""
    lazy: Lazy | None
    decode_s: float
    began_ns: int
    ended_ns: int = 0
    took_s: float = 0.0
    ops: int = 0
    """How many ops of a list were called."""
    result: Any = None
    generators: tuple[Any, ...] = ()

    @property
    def first(self) -> Any:
        """The first argument."""
        return next(iter(self.args), None)


class _WatchedOp:
    """Answers as the op that it stands in for, and keeps what goes in and what comes out.

    Args:
        op: the user's.
        calls: are filled; the last one gets the result of every op.
        is_first: whether the sample goes in here.
        reads: whether it makes an image of a path, so that there is nothing to decode before.
    """

    def __init__(
        self, op: Any, calls: list[_Call], *, is_first: bool = True, reads: bool = False
    ) -> None:
        self._op, self._calls, self._is_first, self._reads = op, calls, is_first, reads

    def __call__(self, *args: Any, **named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        if self._is_first:
            lazy, decode_s = (None, 0.0) if self._reads else _decoded((args, named))
            given = OpInput(*fresh((args, named)))
            self._calls.append(_Call(given, args, named, lazy, decode_s, began_ns))
        result = self._op(*args, **named)
        if self._calls:
            call, ended_ns = self._calls[-1], time.perf_counter_ns()
            call.result, call.ended_ns, call.generators = result, ended_ns, _generators()
            call.ops += 1
            call.took_s += (ended_ns - began_ns) / 1e9
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def _decoded(value: Any) -> tuple[Lazy | None, float]:
    """Decode the images of a value that are not yet; the first of them, and how long it took."""
    found, took_s = None, 0.0
    for leaf in leaves(value):
        if is_image(leaf) and getattr(leaf, "tile", None):
            found = found or Lazy(_file_of(leaf), leaf.format, leaf.size)
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


def _path_to(sample: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Where an object, or the only image in a result by name, stands in a sample."""
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
        """The result of the next sample, whatever this is called with."""
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
    """A sample, with the draws of this number outside of its pipeline."""
    seed_everywhere(_SEED + number)
    return dataset[index]
