"""Copies of a loader with one more of its costs taken away; the user's own stays as it is.

All share its workers' settings, its collate function and its batch size. They go on without an end,
so that no lap ends in the restart of an epoch.
"""

from __future__ import annotations

import copy
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from stallscope.errors import UnsupportedError
from stallscope.measure.cache.samples import (
    Capturing,
    Finished,
    FinishedStream,
    Unfinishing,
    packed,
)
from stallscope.measure.inner import loaders_of
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.measure.cache.cuts import Unfinished


def is_plain(loader: Any) -> bool:
    """Whether this is a DataLoader that torch's own code iterates, so that it can be rebuilt."""
    return isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__


def check_plain(target: Any, so: str) -> None:
    """Make sure that there is one DataLoader, of which torch makes the samples.

    Args:
        target: what the user points at.
        so: what cannot be done otherwise, in words.

    Raises:
        UnsupportedError: there is none, or one that iterates itself.
    """
    found = loaders_of(target)
    if len(found) == 1 and is_plain(found[0]):
        return
    kind = f"{type(target).__module__}.{type(target).__qualname__}"
    why = "iterates its dataset with code of its own"
    if len(found) != 1:
        why = f"holds {count(len(found), 'torch.utils.data.DataLoader')}"
    raise UnsupportedError(
        f"this {kind} {why}, so {so}: give a plain DataLoader over the same dataset"
    )


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is iterable, so that nobody can ask it for an index."""
    return isinstance(loader.dataset, IterableDataset)


class GoingOn:
    """A sampler's epochs one after the other, also over several iterators.

    Args:
        sampler: of indices, or of lists of such.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._going = self._epochs()

    def __iter__(self) -> Iterator[Any]:
        return self._going

    def _epochs(self) -> Iterator[Any]:
        empty = False
        while not empty:
            empty = True
            for one in self._sampler:
                empty = False
                yield one


class OverAndOver:
    """The same indices, or lists of such, over and over; anew for each iterator.

    Args:
        parts: at least one.
    """

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._parts for _ in iter(int, 1))


def going_on(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader without an end: its next epochs follow; a stream keeps its own end."""
    if is_stream(loader):
        return _copy(loader)
    return _copy(loader, sampler=GoingOn(_sampler(loader)))


def next_indices(loader: DataLoader[Any], batches: int) -> list[Any]:
    """Which samples the next batches would be made of: for each, its list of indices."""
    return list(islice(iter(GoingOn(_sampler(loader))), batches))


def warm(loader: DataLoader[Any], indices: list[Any]) -> DataLoader[Any]:
    """The loader over the same few batches again and again."""
    return _copy(loader, sampler=OverAndOver(indices))


def capturing(loader: DataLoader[Any], indices: list[Any]) -> DataLoader[Any]:
    """Gives the samples of each batch, pickled: see `measure.cache.samples`."""
    if is_stream(loader):
        return _copy(loader, collate_fn=packed, pin_memory=False)
    dataset = Capturing(loader.dataset)
    return _copy(loader, dataset=dataset, sampler=indices, collate_fn=packed, pin_memory=False)


def transforming(
    loader: DataLoader[Any], halves: list[Unfinished], counts: list[int]
) -> DataLoader[Any]:
    """Does the transforms, collates and sends; what went into the transforms is in memory.

    Args:
        loader: the user's.
        halves: the samples before their transforms.
        counts: how many samples each batch has.
    """
    dataset = Unfinishing(loader.dataset, halves)
    return _copy(loader, dataset=dataset, sampler=OverAndOver(_numbered(loader, counts)))


def collating(loader: DataLoader[Any], samples: list[Any], counts: list[int]) -> DataLoader[Any]:
    """Collates and sends finished samples from memory.

    Args:
        loader: the user's.
        samples: finished.
        counts: how many samples each batch has.
    """
    if is_stream(loader):
        return _copy(loader, dataset=FinishedStream(loader.dataset, samples))
    dataset = Finished(loader.dataset, samples)
    return _copy(loader, dataset=dataset, sampler=OverAndOver(_numbered(loader, counts)))


def _numbered(loader: DataLoader[Any], counts: list[int]) -> list[Any]:
    """For each batch the numbers of its samples, in the form that the loader's sampler gives."""
    if not _collates(loader):
        return list(range(len(counts)))
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    return [list(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]


def _collates(loader: DataLoader[Any]) -> bool:
    """Whether a batch is made of several samples; otherwise an index stands for a whole one."""
    return loader.batch_sampler is not None


def _sampler(loader: DataLoader[Any]) -> Any:
    return loader.batch_sampler if _collates(loader) else loader.sampler


def _copy(loader: DataLoader[Any], *, sampler: Any = None, **changed: Any) -> DataLoader[Any]:
    clone = copy.copy(loader)
    attributes = vars(clone)  # torch forbids to set some of them
    attributes.update(changed, _iterator=None, persistent_workers=False)
    if sampler is not None:
        attributes["batch_sampler" if _collates(loader) else "sampler"] = sampler
    return clone
