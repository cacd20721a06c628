"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

Watchers stand in a copy of the dataset while it makes samples; the user's own has none. A lazy
image is decoded by the watcher, so that its decoding is no op's. What is a row of ops for sure is a
list or a library's compose; all else is believed if trying it gives what the dataset gives.
"""

from __future__ import annotations

import copy
import io
import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain as flat
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from PIL import Image

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.hooks import find_ops
from stallscope.isolation import seed_everywhere
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, is_image, leaves
from stallscope.orders.equivalence import digest
from stallscope.orders.pipeline import Chain, Row, calls_in, places, readers
from stallscope.orders.run_ops import OpInput, OpResultError, call_op, next_input
from stallscope.orders.variant import Site
from stallscope.units import count, said_by, share, size

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stallscope.orders.pipeline import Place

_CHECKED: Final = 3
"""Samples on which a row of ops has to give what its pipeline gives."""
_MOST_BATCHES: Final = 1_000
_SEED: Final = 1_234


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that could be put in another order; says what was found."""


def capture(
    loader: Any, samples: int, room_bytes: int
) -> tuple[Site, list[CapturedSample], list[str]]:
    """Find the pipeline of a loader, and capture samples for it.

    Args:
        loader: torch's own, map-style.
        samples: how many, in the order of its sampler.
        room_bytes: what the samples may need in memory at all points of their way.

    Returns:
        Where it works; what went through it; and what was left out, in sentences.

    Raises:
        NoPipelineError: there is none that can be taken apart.
        UnsupportedError: the dataset is a stream.
    """
    if cached_loaders.is_stream(loader):
        raise UnsupportedError(
            f"the dataset ({type(loader.dataset).__name__}) is a stream, whose samples cannot be "
            "asked for again: give a loader over a map-style dataset with the same transforms"
        )
    found = places(loader.dataset)
    reading = readers(loader.dataset)
    indices = first_indices(loader, samples)
    try:
        watched = watch(loader.dataset, found, indices, reading)
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            loader.dataset[index]  # the user's own exception, if it is one, leaves from here
        raise NoPipelineError(
            f"{type(loader.dataset).__name__} does more with its pipeline than to call it "
            f"({error}), as one that keeps finished parts does: give a loader over a plain dataset "
            "with the same transforms"
        ) from error
    numbers, notes = _longest(loader, found, watched, indices)
    place = _row(found, numbers)
    captured = _through(watched.seen, numbers)
    chain, more = _ops_of(place, [one.given for one in captured])
    notes += more
    each = max(bytes_of([one.given.value, one.finished]) for one in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    notes += _beside(found, watched, numbers)
    first, *others = {one.reader for one in captured}
    reader = None if others or first is None else reading[first]
    return Site(place, chain, captured[0].where, reader), captured, notes


def first_indices(loader: Any, samples: int) -> list[Any]:
    """Return the indices of the first samples of the next batches."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    found = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return found[:samples]


def _through(seen: dict[int, list[CapturedSample]], numbers: Sequence[int]) -> list[CapturedSample]:
    """Return what went through places that are called in turn."""
    return [
        replace(first, where=last.where, result=last.result, generators=last.generators)
        for first, last in zip(seen[numbers[0]], seen[numbers[-1]], strict=True)
    ]


def _beside(found: list[Place], watched: Watched, numbers: Sequence[int]) -> list[str]:
    """Say which places were left out, and why."""

    def named(these: Collection[int]) -> str:
        return ", ".join(f"{found[one].text} ({share(watched.shares[one])})" for one in these)

    others = [number for number in watched.seen if number not in numbers]
    if not others:
        return []
    note = (
        f"only {named(numbers)} was looked at: the dataset also calls {named(others)} for other "
        "samples or on another value, or its own code stands in between (shares of a sample's "
        "time); ops are ordered together where each gets, for every sample, what the one before "
        "gives, as in one Compose"
    )
    return [note]


def _longest(
    loader: Any, found: list[Place], watched: Watched, indices: list[Any]
) -> tuple[list[int], list[str]]:
    """The place, or the row of places, with most ops that each sample goes through once.

    Args:
        loader: the user's.
        found: the places.
        watched: what was seen of them.
        indices: of the samples.

    Returns:
        Their numbers, and which row had to be left alone, in sentences.

    Raises:
        NoPipelineError: there is none.
    """
    once = [[number] for number in watched.seen if number not in watched.several]
    notes: list[str] = []

    def ops_in(numbers: list[int]) -> int:
        return len(Chain(_row(found, numbers).value).ops)

    for numbers in sorted((*_rows(watched.links), *once), key=lambda one: (-ops_in(one), one)):
        row = _row(found, numbers)
        if not isinstance(row, Row):
            return numbers, notes
        samples = _through(watched.seen, numbers)
        if _is_all_that_counts(row, loader.dataset, indices, samples):
            return numbers, notes
        notes.append(
            f"{row.text} are called one after the other, but were not put in another order: the "
            "sample also depends on what one of them gives before the last, or on which of them "
            "stands where"
        )
    raise NoPipelineError(_why_none(loader, found, watched))


def _row(found: list[Place], numbers: Sequence[int]) -> Place | Row:
    chosen = [found[number] for number in numbers]
    return chosen[0] if len(chosen) == 1 else Row(tuple(chosen))


def _rows(links: set[tuple[int, int]]) -> list[list[int]]:
    """Join links to rows, as long as they get."""
    after = dict(links)
    rows = []
    for first in after.keys() - set(after.values()):
        row = [first]
        while row[-1] in after:
            row.append(after[row[-1]])
        rows.append(row)
    return rows


def _is_all_that_counts(
    row: Row, dataset: Any, indices: list[Any], samples: list[CapturedSample]
) -> bool:
    """Return whether finished samples depend on the result of a row alone.

    That is tried: the first of its places gives at once what the last gave, and the others pass it
    on. Code that keeps what comes in between, or asks an op for its settings, shows.
    """
    played = row.filled(dataset, Player(samples))
    try:
        return all(
            digest(seeded(played, index, number)) == digest(sample.finished)
            for number, (index, sample) in enumerate(zip(indices, samples, strict=False))
        )
    except Exception:  # noqa: BLE001 - the dataset's code may do anything with an odd value
        return False


def _why_none(loader: Any, found: list[Place], watched: Watched) -> str:
    """Say why a dataset has no pipeline, and what to do."""
    dataset = loader.dataset
    name = type(dataset).__name__
    if watched.seen:
        called_twice = ", ".join(found[number].text for number in watched.seen)
        return (
            f"{called_twice} is called several times for one sample of {name}, or not by all of "
            "its parts in turn, so there is no one order: give a loader over a dataset that calls "
            "it once for each sample, and use the order that is found for all calls"
        )
    if callable(getattr(dataset, "set_transform", None)):
        return (
            f"{name} gives its function (set_transform) whole columns of a batch, so there are no "
            "samples on which ops could be compared: give a loader over a dataset that calls a "
            "Compose of these ops on each of its samples"
        )
    held = f"; it holds {', '.join(place.text for place in found)}, uncalled" if found else ""
    called = [
        call
        for inner in find_ops.datasets(dataset)
        for call in calls_in(getattr(type(inner), "__getitem__", None), inner)
    ]
    if called:
        held += f"; its own code calls {', '.join(dict.fromkeys(called))}, which stand in no place"
    batched = [slot.hint for slot in find_ops.slots(loader.collate_fn)]
    if batched:
        held += (
            f"; the collate function holds {', '.join(batched)}, which work on batches: only ops "
            "on samples are ordered"
        )
    return (
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds, and "
        f"no functions of which one takes first what the other returns{held}"
    )


def _ops_of(place: Place | Row, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """Return the pipeline's ops, if calling them in turn gives what it gives; else one op."""
    chain = Chain(place.value)
    if chain.is_known or (len(chain.ops) == 1 and chain.ops[0].call is place.value):
        return chain, []
    why_not = _why_not_replayed(chain, givens[:_CHECKED])
    if not why_not:
        return chain, []
    note = (
        f"{place.text} is taken as one op: calling its {count(len(chain.ops), 'part')} in turn "
        f"does not give what it gives ({why_not})"
    )
    return Chain(place.value, whole=True), [note]


def _why_not_replayed(chain: Chain, givens: list[OpInput]) -> str:
    """Say why a row of ops is not what a pipeline does; "" where it is."""
    try:
        whole, parts = copy.deepcopy(chain.value), copy.deepcopy(chain.value)
    except Exception as error:  # noqa: BLE001 - whatever an op holds: a lock, a file
        return f"it cannot be copied to try that: {said_by(error):.100}"
    ops = Chain(parts).ops
    for number, given in enumerate(givens):
        seed_everywhere(number)
        expected = whole(*fresh(given.args), **fresh(given.named))
        seed_everywhere(number)
        now = given.copy()
        op = ops[0]
        try:
            for op in ops:
                now = next_input(op, now, call_op(op, op.call, now))
        except OpResultError:
            raise
        except Exception as error:  # noqa: BLE001 - it is no row of ops, then
            return f"{op.name} raises {type(error).__name__}: {said_by(error):.100}"
        if digest(now.value) != digest(expected):
            return "it gives other data"
    return ""


# ---- watching a dataset ----------------------------------------------------------------------


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
