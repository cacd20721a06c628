"""Copies of a loader with one more of its costs taken away; the user's own stays as it is.

All share its workers' settings, its collate function and its batch size, and go on without an end,
so that no pass ends in the restart of an epoch. Samples are kept by the loader's own workers and
come back pickled, in one piece a batch: as tensors, each would need a file descriptor.

A step may change its batch in place; what it changes never reaches the next use of that batch. So
the first time, the step gets a copy, which is compared with the original afterwards. If they are
the same, later uses share the tensors, whose version numbers are looked at after each use.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stallscope.errors import UnsupportedError
from stallscope.hooks import find_ops
from stallscope.hooks.loader_access import DatasetOf, StandIn, value_of
from stallscope.loops.cached_values import (
    bytes_of,
    compact,
    fresh,
    leaves,
    mapped,
    same,
    shell,
    versions,
)
from stallscope.targets.loaders import copied, kept_iterators
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.hooks.find_ops import Slot
    from stallscope.targets.target import Target


_PLAIN: Final = (str, bytes, int, float, type(None))
"""Equal ones may be one object without having come the same way."""


@dataclass(frozen=True, slots=True)
class DeferredResult:
    """Stands for what a call gave, or for an item of it."""

    call: int
    item: Any = None
    """Its place or key; None: all of it."""

    def of(self, results: list[Any]) -> Any:
        """Return the result that it stands for."""
        result = results[self.call]
        return result if self.item is None else result[self.item]


@dataclass
class Unfinished:
    """A sample before its transforms."""

    calls: list[tuple[int, Any]] = field(default_factory=list)
    """Calls of ops: number of the cut's slot, positional and keyword arguments; a `DeferredResult`
    where a result went in again."""
    sample: Any = None
    """The finished sample with a `DeferredResult` in each place of a result."""
    changed: bool = False
    """True if an op changed its input in place."""


class Cut:
    """Cut through the samples of a map-style dataset: before the dataset's transforms.

    It watches the calls of the ops that a dataset holds, while it makes a sample: what went in,
    what came out, and where that stands in the sample. Later the sample can be made again from what
    went in, by calling the ops alone. That is only right if nothing else happens to what comes out,
    so each result has to be found, as the very same object, in the sample or in a later call.
    """

    def __init__(self, dataset: Any) -> None:
        self._slots = [slot for each in find_ops.datasets(dataset) for slot in _ops(each)]

    def __bool__(self) -> bool:
        return bool(self._slots)

    def make(self, get: Callable[[], Any]) -> tuple[Any, Unfinished | None]:
        """Return a sample, and the same before its transforms; None where it cannot be cut."""
        half = Unfinished()
        results: list[Any] = []

        def call(number: int, *args: Any, **named: Any) -> Any:
            arguments = _by_result((args, named), results)
            before = fresh(arguments)
            result = self._slots[number].value(*args, **named)
            half.changed |= not same(before, arguments)
            half.calls.append((number, before))
            results.append(result)
            return result

        try:
            for number, slot in enumerate(self._slots):  # past the class's own `__setattr__`
                vars(slot.owner)[slot.name] = WatchedOp(slot.value, partial(call, number))
            sample = get()
        finally:
            for slot in self._slots:
                vars(slot.owner)[slot.name] = slot.value
        half.sample = _by_result(sample, results)
        inside = leaves([half.sample, *(arguments for _, arguments in half.calls)])
        used = {leaf.call for leaf in inside if isinstance(leaf, DeferredResult)}
        return sample, half if results and used == set(range(len(results))) else None

    def finish(self, half: Unfinished, *, copies: bool) -> Any:
        """Make the sample by calling the ops: on copies, where these may change their input."""
        results: list[Any] = []
        for slot, arguments in half.calls:
            args, named = _with_results(fresh(arguments) if copies else arguments, results)
            results.append(self._slots[slot].value(*args, **named))
        return _with_results(half.sample, results)


def _ops(dataset: Any) -> Iterator[Slot]:
    """Yield the slots of a dataset's own that change a sample; those for a target do not count."""
    for slot in find_ops.slots(dataset):
        is_held = slot.owner is dataset and not find_ops.is_own_part(dataset, slot.value)
        is_of_samples = is_held and slot.name != "target_transform"
        if is_of_samples and find_ops.stage_of(slot).kind == "transform":
            yield slot


class WatchedOp(StandIn):
    """Answers as the op that it stands in for, but is called through a watcher."""

    def __init__(self, op: Any, call: Callable[..., Any]) -> None:
        super().__init__(op)
        self._call = call

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the watcher returns."""
        return self._call(*args, **named)


def _by_result(value: Any, results: list[Any]) -> Any:
    """Put a `DeferredResult` in the place of each object that is a result, or an item of one."""
    if isinstance(value, _PLAIN):
        return value
    for call, result in reversed(list(enumerate(results))):
        if result is value:
            return DeferredResult(call)
        items: Any = result.items() if isinstance(result, dict) else ()
        items = enumerate(result) if isinstance(result, (list, tuple)) else items
        for place, item in items:
            if item is value:
                return DeferredResult(call, place)
    if type(value) is dict:
        return {key: _by_result(part, results) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_by_result(part, results) for part in value)
    return value


def _with_results(value: Any, results: list[Any]) -> Any:
    return mapped(
        value, lambda leaf: leaf.of(results) if isinstance(leaf, DeferredResult) else leaf
    )


class Capturing(StandIn):
    """Gives each sample twice: finished, and before its transforms (None where it has no cut)."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._cut = Cut(dataset)

    def __getitem__(self, index: Any) -> tuple[Any, Unfinished | None]:
        if not self._cut:
            return self._original[index], None
        return self._cut.make(lambda: self._original[index])

    def __getitems__(self, indices: list[Any]) -> list[tuple[Any, Unfinished | None]]:
        if not self._cut and callable(getattr(self._original, "__getitems__", None)):
            return [(sample, None) for sample in self._original.__getitems__(indices)]
        return [self[index] for index in indices]


def packed(samples: Any) -> bytes:
    """Pickle the samples of a batch in one piece; a collate function."""
    return pickle.dumps(compact(samples), pickle.HIGHEST_PROTOCOL)


class CachedStream(StandIn, IterableDataset[Any]):
    """A stream of finished samples without an end; each worker begins at another place."""

    def __init__(self, dataset: Any, samples: list[Any]) -> None:
        super().__init__(dataset)
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first = worker.id * len(self._samples) // worker.num_workers if worker else 0
        return map(shell, islice(cycle(self._samples), first, None))


def epochs(source: Iterable[Any], goes_on: Callable[[], bool] = lambda: True) -> Iterator[Any]:
    """Iterate a source again and again, until it is empty or is not to go on.

    As the sampler of a loader, this goes on over several iterators.
    """
    empty = False
    while not empty:
        empty = True
        for batch in source:
            empty = False
            yield batch
        empty = empty or not goes_on()


class KeptEpochs:
    """A loader's epochs one after the other, as long as it goes on with the same iterator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return epochs(self.loader, self._keeps_workers)

    def _keeps_workers(self) -> bool:
        return any(value_of(each, "_shutdown") is False for each in kept_iterators(self.loader))


def is_plain(loader: Any) -> bool:
    """Return whether torch's own code iterates this DataLoader, so that it can be rebuilt."""
    return isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__


def check_plain(target: Target, so: str) -> None:
    """Make sure that there is one DataLoader, of which torch makes the samples.

    Else raise an `UnsupportedError`; `so` are the words for what cannot be done otherwise.
    """
    loaders, cls = target.loaders, type(target.loader)
    if len(loaders) == 1 and is_plain(loaders[0]):
        return
    kind = f"{cls.__module__}.{cls.__qualname__}"
    why = "iterates its dataset with its own code"
    if len(loaders) != 1:
        why = f"holds {count(len(loaders), 'torch.utils.data.DataLoader')}"
    raise UnsupportedError(
        f"this {kind} {why}, so {so}: give a plain DataLoader over the same dataset"
    )


def is_stream(loader: Any) -> bool:
    """Return whether the dataset is iterable, so that nobody can ask it for an index."""
    return isinstance(loader.dataset, IterableDataset)


def going_on(loader: Any) -> Any:
    """Return the loader without an end: its next epochs follow.

    A stream keeps its own end, and so does what starts other workers for its next epoch.
    """
    if not is_plain(loader):
        return KeptEpochs(loader)
    if is_stream(loader):
        return copy_of(loader)
    return copy_of(loader, sampler=epochs(_sampler(loader)))


def next_indices(loader: DataLoader[Any], batches: int) -> list[Any]:
    """Return the indices of the samples of each of the next batches."""
    return list(islice(epochs(_sampler(loader)), batches))


def warm(loader: DataLoader[Any], indices: list[Any]) -> DataLoader[Any]:
    """Return the loader over the same few batches again and again."""
    return copy_of(loader, sampler=cycle(indices))


def capturing(loader: DataLoader[Any], indices: list[Any]) -> DataLoader[Any]:
    """Return a loader that gives the samples of each batch, pickled: see the module."""
    if is_stream(loader):
        return copy_of(loader, collate_fn=packed, pin_memory=False)
    dataset = Capturing(loader.dataset)
    return copy_of(loader, dataset=dataset, sampler=indices, collate_fn=packed, pin_memory=False)


def transforming(
    loader: DataLoader[Any], halves: list[Unfinished], counts: list[int]
) -> DataLoader[Any]:
    """Return a loader that transforms, collates and sends; the transforms' input is in memory."""
    copies = any(half.changed for half in halves)
    return _cached(loader, halves, partial(Cut(loader.dataset).finish, copies=copies), counts)


def collating(loader: DataLoader[Any], samples: list[Any], counts: list[int]) -> DataLoader[Any]:
    """Return a loader that collates and sends finished samples from memory."""
    if is_stream(loader):
        return copy_of(loader, dataset=CachedStream(loader.dataset, samples))
    return _cached(loader, samples, shell, counts)


def _cached(
    loader: DataLoader[Any], in_memory: list[Any], make: Callable[[Any], Any], counts: list[int]
) -> DataLoader[Any]:
    numbers = iter(range(len(in_memory)))
    indices = [
        list(islice(numbers, count)) if collates(loader) else next(numbers) for count in counts
    ]
    dataset = DatasetOf(loader.dataset, partial(_made, in_memory, make))
    return copy_of(loader, dataset=dataset, sampler=cycle(indices))


def _made(in_memory: list[Any], make: Callable[[Any], Any], number: int) -> Any:
    return make(in_memory[number])


def collates(loader: DataLoader[Any]) -> bool:
    """Return whether a batch is made of several samples, or an index stands for a whole one."""
    return loader.batch_sampler is not None


def _sampler(loader: DataLoader[Any]) -> Any:
    return loader.batch_sampler if collates(loader) else loader.sampler


def copy_of(loader: DataLoader[Any], *, sampler: Any = None, **changed: Any) -> DataLoader[Any]:
    """Copy a loader with other attributes; the sampler is one of batches where it has such."""
    if sampler is not None:
        changed["batch_sampler" if collates(loader) else "sampler"] = sampler
    return copied(loader, persistent_workers=False, **changed)


class CachedBatches:
    """Batches that are given again and again; nobody else may hold them."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = list(batches)
        self._tried = False
        self.copies = False
        """True if every use gets a copy, because the step changes its batch in place."""
        self.bytes = bytes_of(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def first(self, length: int) -> CachedBatches:
        """Return the first batches."""
        return CachedBatches(self._batches[:length])

    def __iter__(self) -> Iterator[Any]:
        while self._batches:
            for batch in list(self._batches):
                if self.copies:
                    yield fresh(batch)
                elif self._tried:
                    yield from self._shared(batch)
                else:
                    private = fresh(batch)
                    yield private
                    self._tried, self.copies = True, not same(private, batch)

    def _shared(self, batch: Any) -> Iterator[Any]:
        before = versions(batch)
        yield shell(batch)
        if versions(batch) != before:  # this one is spoilt, and not used again
            self._batches = [each for each in self._batches if each is not batch]
            self.copies = True
