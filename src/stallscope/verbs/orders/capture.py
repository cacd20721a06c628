"""Finding a loader's pipeline, and capturing the samples on which its ops are run.

A list and a library's compose are rows of ops for sure. Any other object counts as such a row only
if calling its ops in turn gives the dataset's data.

Watchers are placed in a copy of the dataset; the user's own has none. The watcher decodes a lazy
image, so that the decoding does not count as an op's time.

A stream cannot be asked for a sample again. So it runs once in this process, while the calls of its
pipeline are watched, and a dataset with an index repeats these calls. What the stream does around
its pipeline, such as reading, is timed, and the same for all variants.
"""

from __future__ import annotations

import copy
import io
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain as flat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stallscope.errors import StallscopeError
from stallscope.hooks.find_ops import own_attributes
from stallscope.isolation import seed_everywhere
from stallscope.loops import cached_loaders
from stallscope.loops.cached_values import bytes_of, fresh, is_image, leaves, mapped
from stallscope.units import count, said_by, size
from stallscope.verbs.orders.equivalence import digest
from stallscope.verbs.orders.pipeline import Chain, Chained, places, readers
from stallscope.verbs.orders.run_ops import OpInput, OpResultError, apply, clocked, shortest_s
from stallscope.verbs.orders.variant import FixedCosts, Site, with_column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stallscope.verbs.orders.pipeline import Place

_END: Final = object()


class NoPipelineError(StallscopeError, ValueError):
    """The dataset calls nothing that has an order; the message lists what it holds."""


def capture(
    loader: Any, samples: int, room_bytes: int
) -> tuple[Site, list[CapturedSample], list[str]]:
    """Return a loader's pipeline, samples that went through it, and notes on what was left out.

    `room_bytes` is for the samples and all intermediate results.

    Raises:
        NoPipelineError: there is no pipeline that can be split into ops.
    """
    indices = first_indices(loader, samples)
    try:
        watched = watch(loader.dataset, indices)
    except StallscopeError:
        raise
    except Exception as error:
        for index in indices:
            loader.dataset[index]  # raises the exception again, if it is the user's own
        raise NoPipelineError(
            f"{type(loader.dataset).__name__} does more than call its pipeline ({error}), as a "
            "cache does: give a loader over a plain dataset with the same transforms"
        ) from error
    chosen = longest(loader.dataset, watched)
    place, captured = chosen.place, chosen.samples
    chain, notes = _ops_of(place, [sample.input for sample in captured])
    each = max(bytes_of([sample.input.value, sample.finished]) for sample in captured)
    fitting = max(room_bytes // (each * (len(chain.ops) + 2)), 1)
    if fitting < len(captured):
        notes.append(f"only {count(fitting, 'sample')} were used: each needs {size(each)}")
        captured = captured[:fitting]
    others = [each.place.text for each in watched if each.samples and each is not chosen]
    if others:
        notes.append(
            f"only {place.text} was measured; the dataset also calls {', '.join(others)}. Put all "
            "ops into one Compose to have them ordered together"
        )
    first, *rest = {id(sample.reader): sample.reader for sample in captured}.values()
    return Site(place, chain, captured[0].where, None if rest else first), captured, notes


def first_indices(loader: Any, samples: int) -> list[Any]:
    """Return the indices of the first samples of the next batches."""
    if loader.batch_sampler is None:
        return cached_loaders.next_indices(loader, samples)
    batches = -(-samples // (loader.batch_size or 1))
    indices = list(flat.from_iterable(cached_loaders.next_indices(loader, batches)))
    return indices[:samples]


def longest(dataset: Any, watched: list[Watched]) -> Watched:
    """Return the place with most ops that each sample goes through once."""
    called = [each for each in watched if each.samples]
    if once := [each for each in called if each.is_single]:
        return max(once, key=lambda each: len(Chain(each.place.value).ops))
    name = type(dataset).__name__
    if called:
        raise NoPipelineError(
            f"{name} calls {', '.join(each.place.text for each in called)} several times per "
            "sample, or only some of its parts, so there is no single order: give a loader over a "
            "dataset that calls it once per sample, and use the best order for all calls"
        )
    if callable(getattr(dataset, "set_transform", None)):
        raise NoPipelineError(
            f"{name} calls its function (set_transform) on whole columns of a batch, so ops cannot "
            "be compared on samples: give a loader over a dataset that calls a Compose of these "
            "ops on each sample"
        )
    held = ", ".join(each.place.text for each in watched)
    hints = f"; it holds {held}, uncalled" if held else ""
    raise NoPipelineError(f"no pipeline was found in {name}: {_why_none(dataset)}{hints}")


def _why_none(dataset: Any) -> str:
    if isinstance(dataset, IterableDataset):
        return "a stream that calls no transform of its own (such as self.transform)"
    return (
        "its __getitem__ calls no transform of its own, and no chain of functions (each on the "
        "result of the previous one)"
    )


def _ops_of(place: Place, givens: list[OpInput]) -> tuple[Chain, list[str]]:
    """Return the pipeline's ops, if calling them in turn gives its data; else one op."""
    chain = Chain(place.value)
    if chain.is_known or (len(chain.ops) == 1 and chain.ops[0].call is place.value):
        return chain, []
    try:
        why_not = "the data differs" * (not _is_replayed(chain, givens))
    except OpResultError:
        raise
    except Exception as error:  # noqa: BLE001 - it cannot be copied, or is no row of ops
        why_not = f"{type(error).__name__}: {said_by(error):.100}"
    if not why_not:
        return chain, []
    note = (
        f"{place.text} is treated as one op: calling its {count(len(chain.ops), 'part')} in turn "
        f"gives another result ({why_not})"
    )
    return Chain(place.value, whole=True), [note]


def _is_replayed(chain: Chain, givens: list[OpInput]) -> bool:
    """Return true if calling the ops in turn gives the pipeline's data."""
    whole, ops = copy.deepcopy(chain.value), Chain(copy.deepcopy(chain.value)).ops
    for number, arguments in enumerate(givens):
        seed_everywhere(number)
        expected = whole(*fresh(arguments.args), **fresh(arguments.named))
        seed_everywhere(number)
        now = arguments.copy()
        for op in ops:
            now = apply(op, op.call, now)
        if digest(now.value) != digest(expected):
            return False
    return True


def fixed_costs(loader: Any, samples: Sequence[CapturedSample]) -> FixedCosts:
    """Return the costs around the ops, from captured samples.

    Medians, as the first sample includes one-time imports and opened files.
    """
    return FixedCosts(
        fetch_s=statistics.median(sample.fetch_s for sample in samples),
        decode_s=statistics.median(sample.decode_s for sample in samples),
        batch_s=_batch_s(loader, [sample.finished for sample in samples]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Return a sample's share of the time to collate and to copy to shared memory."""
    has_batches = loader.batch_sampler is not None

    def make() -> Any:
        batch = loader.collate_fn(samples if has_batches else samples[0])
        return mapped(batch, _shared) if loader.num_workers else batch

    best_s = shortest_s(lambda: clocked(make)[1], 1)
    return best_s / len(samples) if has_batches else best_s


def _shared(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.clone().share_memory_()  # type: ignore[no-untyped-call]
    return leaf


# ---- watching the calls of a dataset -------------------------------------------------------------


@dataclass(eq=False)
class CapturedSample:
    """Sample that went through a pipeline."""

    input: OpInput
    """Arguments of the pipeline, decoded; a copy."""
    first: Any = None
    """Original first argument, during the call."""
    lazy: str = ""
    """Format and size of the image, if it was still encoded: "JPEG 288×256"."""
    file: Any = None
    """Path or bytes of the encoded image, or the path that a reader read; None: unknown."""
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
    reader: Place | None = None
    """Place of the function that read the image from a path; None: there is none."""

    def source(self) -> Any:
        """Return what `variant.drafted` decodes: the path, or the image as the pipeline got it."""
        if self.reader is not None:
            return self.file
        return Image.open(io.BytesIO(self.file) if isinstance(self.file, bytes) else self.file)


@dataclass(eq=False)
class Watched:
    """Place of a pipeline or of a reader, and the samples that went through it."""

    place: Place
    samples: list[CapturedSample] = field(default_factory=list)
    is_single: bool = True
    """True if each sample went through all of its ops once."""
    calls: list[CapturedSample] = field(default_factory=list)
    """Calls since the last sample was finished."""

    @property
    def ops(self) -> int:
        """Number of ops that a sample goes through; 1 if they are not in a list."""
        value = self.place.value
        return len(value) if isinstance(value, (list, tuple)) else 1

    def filled(self, dataset: Any) -> Any:
        """Return a copy of a dataset with watched ops in the place; the first gets the sample."""
        ops = self.place.value
        is_row = isinstance(ops, (list, tuple))
        watched = [
            cached_loaders.WatchedOp(op, partial(_recorded, op, self.calls, number))
            for number, op in enumerate(ops if is_row else [ops])
        ]
        return self.place.filled(dataset, type(ops)(watched) if is_row else watched[0])

    def add(
        self, finished: Any, rest_s: float = 0.0, reads: Sequence[Watched] = ()
    ) -> list[CapturedSample]:
        """Add the calls since the last sample, and return them."""
        calls = [*self.calls]
        self.calls.clear()
        for call in calls:
            for each in reads:
                for read in each.calls:
                    if read.result is call.first and isinstance(read.first, (str, os.PathLike)):
                        call.reader, call.file = each.place, read.first
            call.finished, call.fetch_s = finished, rest_s
            call.where = path_to(finished, call.result)
            call.first = call.result = None
            self.is_single &= call.ops == self.ops
        self.samples += calls
        return calls


def watch(dataset: Any, indices: list[Any]) -> list[Watched]:
    """Make samples with a copy of the dataset; watch places of pipelines, and what readers read."""
    reads, pipelines = [*map(Watched, readers(dataset))], [*map(Watched, places(dataset))]
    for each in (*reads, *pipelines):
        dataset = each.filled(dataset)
    for number, index in enumerate(indices):
        for each in reads:
            each.calls.clear()
        finished, whole_s = clocked(partial(seeded, dataset, index, number))
        inside_s = sum(call.took_s for each in pipelines for call in each.calls)
        for each in pipelines:
            each.is_single &= len(each.calls) <= 1
            each.add(finished, max(whole_s - inside_s, 0.0), reads)
    return pipelines


def _recorded(op: Any, calls: list[CapturedSample], place: int, /, *args: Any, **named: Any) -> Any:
    """Call an op, and note its time and result in the last of `calls`; op 0 adds the sample."""
    began_ns = time.perf_counter_ns()
    if not place:
        encoded = decoded((args, named))
        arguments = OpInput(*fresh((args, named)))
        calls.append(CapturedSample(arguments, next(iter(args), None), *encoded))
    result = op(*args, **named)
    if calls:
        call = calls[-1]
        call.result = result
        call.ops += 1
        call.took_s += (time.perf_counter_ns() - began_ns) / 1e9
    return result


def decoded(value: Any) -> tuple[str, Any, float]:
    """Decode the images of a value; return kind and file of the first, and the seconds for all."""
    kind, file, took_s = "", None, 0.0
    for leaf in leaves(value):
        if is_image(leaf) and getattr(leaf, "tile", None):
            if not kind:
                kind, file = f"{leaf.format} {leaf.width}×{leaf.height}", _file_of(leaf)
            took_s += clocked(leaf.load)[1]
    return kind, file, took_s


def _file_of(image: Any) -> Any:
    """Return the path of an image, or the bytes of an image in memory."""
    name = getattr(image, "filename", "")
    if isinstance(name, str) and name:
        return name
    with suppress(AttributeError):
        return bytes(image.fp.getvalue())
    return None


def path_to(sample: Any, wanted: Any) -> tuple[Any, ...] | None:
    """Return the keys in a sample that lead to an object, or to the image in a result."""
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
    for key, item in items:
        rest = None if isinstance(item, (str, bytes)) else path_to(item, wanted)
        if rest is not None:
            return (key, *rest)
    return None


def seeded(dataset: Any, index: Any, number: int) -> Any:
    """Make a sample; `number` seeds the draws outside of its pipeline."""
    seed_everywhere(number)
    return dataset[index]


# ---- samples of streams, recorded once and repeated ----------------------------------------------


class RecordedStream(NamedTuple):
    """Samples of a stream with an index, and their cost in the stream."""

    loader: DataLoader[Any]
    """Loader over `ReplayedSamples`, with the stream's batch size and collate function."""
    costs: FixedCosts
    """Means over the samples, without `batch_s`."""


class ReplayedSamples(Dataset[Any]):
    """Samples that a stream's pipeline makes from recorded inputs.

    Has the attributes of the stream, so its places are those of the stream.

    Args:
        stream: the user's dataset.
        place: of the pipeline.
        samples: calls of the pipeline.
    """

    def __init__(self, stream: Any, place: Place, samples: list[CapturedSample]) -> None:
        vars(self).update(own_attributes(stream), _replayed=(place, samples))

    def __len__(self) -> int:
        return len(vars(self)["_replayed"][1])

    def __getitem__(self, number: int) -> Any:
        place, samples = vars(self)["_replayed"]
        sample, pipeline = samples[number], place.found_in(self)
        if isinstance(pipeline, (list, tuple)):
            pipeline = Chained(list(pipeline))
        arguments = sample.input.copy()
        result = pipeline(*arguments.args, **arguments.named)
        if sample.where is None:
            return result
        return with_column(sample.finished, sample.where, lambda _: result)


def replayed(
    loader: Any, samples: int, room_bytes: int, is_over: Callable[[], bool]
) -> RecordedStream:
    """Run a stream for some samples, and return them with an index.

    Args:
        loader: over the stream; its dataset is copied where it is watched.
        samples: number of samples, at most.
        room_bytes: most bytes of all samples.
        is_over: tells when to stop earlier.

    Raises:
        NoPipelineError: the stream calls no transform that it holds.
    """
    stream = loader.dataset
    watched = [Watched(place) for place in places(stream)]
    copied = stream
    for each in watched:
        copied = each.filled(copied)
    seed_everywhere(0)
    iterator, number, whole_s = iter(copied), 0, 0.0
    try:
        while number < samples and room_bytes > 0 and not (number and is_over()):
            item, took_s = clocked(lambda: next(iterator, _END))
            if item is _END:
                break
            whole_s += took_s
            calls = [each.add(item) for each in watched]
            number += max([1, *map(len, calls)])
            room_bytes -= bytes_of([item, [[call.input.value for call in row] for row in calls]])
    finally:
        if callable(close := getattr(iterator, "close", None)):
            close()
    chosen = longest(stream, watched)
    recorded, n_samples = chosen.samples, len(chosen.samples)
    indexed = DataLoader(
        ReplayedSamples(stream, chosen.place, recorded),
        loader.batch_size,
        num_workers=loader.num_workers,
        # Of a result that is not in the sample, the user's function cannot make a batch
        collate_fn=list if recorded[0].where is None and loader.batch_size else loader.collate_fn,
        drop_last=loader.batch_size is not None and n_samples >= loader.batch_size,
    )
    fetch_s = max(whole_s - sum(call.took_s for call in recorded), 0.0)
    decode_s = sum(call.decode_s for call in recorded)
    return RecordedStream(indexed, FixedCosts(fetch_s / n_samples, decode_s / n_samples))
