"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

Watchers stand in a copy of the dataset while samples are made; the user's own has none. A lazy
image is decoded by the watcher, so that its decoding is no op's.
"""

from __future__ import annotations

import copy
import io
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain as flat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from PIL import Image

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.hooks import find_ops
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, is_image, leaves, mapped
from stallscope.orders.digests import digest
from stallscope.orders.pipeline import Chain, places, readers
from stallscope.orders.random_streams import seed_everywhere
from stallscope.orders.recipe import Site
from stallscope.orders.result import FixedCosts
from stallscope.orders.run_ops import OpInput, OpResultError, call_op, next_input
from stallscope.units import count, size

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stallscope.orders.pipeline import Place

_CHECKED: Final = 3
"""Samples on which a row of ops has to give what its pipeline gives."""
_MOST_BATCHES: Final = 1_000
_SEED: Final = 1_234
_ROUNDS: Final = 4
"""Times that a batch is collated."""


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that could be put in another order; says what was found."""


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
    indices = _indices(loader, samples)
    try:
        seen, several = _watch(loader.dataset, found, indices, reading)
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
    number = _longest(loader.dataset, found, seen.keys(), several)
    place, captured = found[number], seen[number]
    chain, notes = _ops_of(place, [one.given for one in captured])
    each = max(bytes_of([one.given.value, one.finished]) for one in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    beside = [found[other].text for other in seen if other != number]
    if beside:
        notes.append(
            f"only {place.text} was looked at: the dataset also calls {', '.join(beside)} on its "
            "own; put all ops in one Compose to have them ordered together"
        )
    first, *others = {one.reader for one in captured}
    reader = None if others or first is None else reading[first]
    return Site(place, chain, captured[0].where, reader), captured, notes


def _indices(loader: Any, samples: int) -> list[Any]:
    """The indices of so many samples, without those of batches that nobody needs."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = min(-(-samples // (loader.batch_size or 1)), _MOST_BATCHES)
    found = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return found[:samples]


def _longest(dataset: Any, found: list[Place], seen: Collection[int], several: set[int]) -> int:
    """The place with most ops, among those that each sample goes through once.

    Args:
        dataset: the user's.
        found: the places.
        seen: the numbers of those that samples go through.
        several: of these, those that a sample goes through several times.

    Raises:
        NoPipelineError: there is none.
    """
    once = [number for number in seen if number not in several]
    if once:
        return max(once, key=lambda number: (len(Chain(found[number].value).ops), -number))
    name = type(dataset).__name__
    if seen:
        called_twice = ", ".join(found[number].text for number in seen)
        raise NoPipelineError(
            f"{called_twice} is called several times for one sample of {name}, so there is no one "
            "order: let the dataset call one Compose once for each sample"
        )
    helpers = [
        slot.name for inner in find_ops.datasets(dataset) for slot in find_ops.helpers(inner)
    ]
    inline = f"; its code calls {', '.join(map(str, helpers))} itself" if helpers else ""
    if callable(getattr(dataset, "set_transform", None)):
        inline = "; a function given to set_transform gets whole columns and is not taken apart"
    held = f"; it holds {', '.join(place.text for place in found)}, uncalled" if found else ""
    raise NoPipelineError(
        f"no pipeline was found in {name}: its __getitem__ calls no transform that it holds"
        f"{inline}{held}. Put the ops in a Compose and let the dataset hold and call it, as in "
        "self.transform(image)"
    )


def _ops_of(place: Place, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """The pipeline's ops, if calling them in turn gives what it gives; else it is one op."""
    chain = Chain(place.value)
    if len(chain.ops) == 1 and chain.ops[0].call is place.value:
        return chain, []
    if chain.is_known or _is_replayed(chain, givens[:_CHECKED]):
        return chain, []
    note = (
        f"{place.text} is taken as one op: calling its {count(len(chain.ops), 'part')} in turn "
        "does not give what it gives"
    )
    return Chain(place.value, whole=True), [note]


def _is_replayed(chain: Chain, givens: list[OpInput]) -> bool:
    try:
        whole, parts = copy.deepcopy(chain.value), copy.deepcopy(chain.value)
    except Exception:  # noqa: BLE001 - whatever an op holds: a lock, a file
        return False
    ops = Chain(parts).ops
    for number, given in enumerate(givens):
        seed_everywhere(_SEED + number)
        expected = whole(*fresh(given.args), **fresh(given.named))
        seed_everywhere(_SEED + number)
        now = given.copy()
        try:
            for op in ops:
                now = next_input(op, now, call_op(op, op.call, now))
        except OpResultError:
            raise
        except Exception:  # noqa: BLE001 - it is no row of ops, then
            return False
        if digest(now.value) != digest(expected):
            return False
    return True


def fixed_costs(loader: Any, samples: Sequence[CapturedSample]) -> FixedCosts:
    """Take the costs around the ops from captured samples.

    The first sample pays for what is imported or opened once, so medians are taken.

    Args:
        loader: whose collate function it is.
        samples: finished.
    """
    return FixedCosts(
        fetch_s=statistics.median(one.fetch_s for one in samples),
        decode_s=statistics.median(one.decode_s for one in samples),
        batch_s=_batch_s(loader, [one.finished for one in samples]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Its share of collating and of copying to shared memory, as workers do to send."""
    if loader.batch_sampler is None:
        samples = samples[:1]
    best_s = float("inf")
    for _ in range(_ROUNDS):
        began_ns = time.perf_counter_ns()
        batch = loader.collate_fn(samples if loader.batch_sampler is not None else samples[0])
        if loader.num_workers:
            batch = mapped(batch, _shared)
        best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
        del batch
    return best_s / len(samples)


def _shared(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.clone().share_memory_()  # type: ignore[no-untyped-call]
    return leaf


def _watch(
    dataset: Any, places: list[Place], indices: list[Any], readers: list[Place]
) -> tuple[dict[int, list[CapturedSample]], set[int]]:
    """Make samples, and see what goes through each place.

    Args:
        dataset: the user's, of which a copy is used.
        places: where to look.
        indices: of the samples.
        readers: likewise, but what they give is what a pipeline may be called with.

    Returns:
        For each place, by its number, the samples that went through it; and the places that were
        called several times for a sample.
    """
    calls: list[list[_Call]] = [[] for _ in places]
    reads: list[list[_Call]] = [[] for _ in readers]
    for place, kept in zip(readers, reads, strict=True):
        dataset = place.filled(dataset, _WatchedOp(place.value, kept, reads=True))
    for place, kept in zip(places, calls, strict=True):
        dataset = place.filled(dataset, _watched(place.value, kept))
    seen: dict[int, list[CapturedSample]] = {}
    several = set()
    for index in indices:
        for kept in (*calls, *reads):
            kept.clear()
        began_ns = time.perf_counter_ns()
        finished = dataset[index]
        whole_s = (time.perf_counter_ns() - began_ns) / 1e9
        inside_s = sum(call.took_s for kept in calls for call in kept)
        for number, kept in enumerate(calls):
            if len(kept) > 1:
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
                )
                seen.setdefault(number, []).append(sample)
    return seen, several


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
    first: Any
    """The first argument itself."""
    lazy: Lazy | None
    decode_s: float
    took_s: float = 0.0
    result: Any = None


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
            first = next(iter(args), None)
            self._calls.append(_Call(OpInput(*fresh((args, named))), first, lazy, decode_s))
        result = self._op(*args, **named)
        if self._calls:
            self._calls[-1].result = result
            self._calls[-1].took_s += (time.perf_counter_ns() - began_ns) / 1e9
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
