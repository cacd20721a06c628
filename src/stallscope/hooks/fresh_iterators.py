"""Iterators of torch's that start anew, in the place of those that somebody is going through."""

from __future__ import annotations

import gc
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from torch import multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope.hooks.probe import shut_down

if TYPE_CHECKING:
    from collections.abc import Callable


_NOT_KEPT: Final = {"generator": None, "pin_memory_device": "", "in_order": True}
"""What torch's iterators ask of a loader and do not keep, not in every version at least."""


class FreshIterator:
    """Iterator of a loader that starts with its first batch, and anew after it was ended.

    Args:
        start: makes an iterator of torch's.
        num_workers: of its loader.
    """

    def __init__(self, start: Callable[[], Any], num_workers: int) -> None:
        self._start = start
        self._num_workers = num_workers
        self._started: Any = None

    def __iter__(self) -> FreshIterator:
        return self

    def __next__(self) -> Any:
        if self._started is None:
            self._started = self._start()
        return next(self._started)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._started is None:
            raise AttributeError(name)
        return getattr(self._started, name)

    def _shutdown_workers(self) -> None:
        started, self._started = self._started, None
        shut_down(started)


class _LoaderOf:
    """Stands for the loader of an iterator, which holds the same under other names."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        workers = getattr(iterator, "_workers", None)
        method = getattr(type(workers[0]), "_start_method", None) if workers else None
        self.multiprocessing_context = multiprocessing.get_context(method) if method else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = name if name.startswith("_") else f"_{name}"
        if name in _NOT_KEPT:
            return getattr(self._iterator, known, None) or _NOT_KEPT[name]
        return getattr(self._iterator, known)


def fresh(iterator: Any, owner: Any) -> FreshIterator:
    """An iterator like one that its owner keeps, before its first batch."""
    if isinstance(owner, DataLoader):
        here = ref(owner)  # a class may end its workers when nobody holds it any more
        return FreshIterator(lambda: here()._get_iterator(), owner.num_workers)  # type: ignore[union-attr]
    if isinstance(iterator, FreshIterator):
        return iterator
    loader = _LoaderOf(iterator)
    return FreshIterator(lambda: type(iterator)(loader), iterator._num_workers)


def is_iterator(value: Any) -> bool:
    """Whether this is in the middle of a loader's epoch, as far as one can see."""
    if isinstance(value, GeneratorType):  # what it goes through lies on its stack
        held = gc.get_referents(value)
        return any(isinstance(one, DataLoader) or is_iterator(one) for one in held)
    return isinstance(value, (_BaseDataLoaderIter, FreshIterator)) or is_running_node(value)


def is_node(value: Any) -> bool:
    """Whether this is a node of torchdata's, whose graph takes the place of a loader."""
    return type(value).__module__.startswith("torchdata.nodes.")


def is_running_node(value: Any) -> bool:
    """Whether this is what a node works with meanwhile: threads or processes of its own."""
    return is_node(value) and hasattr(type(value), "_shutdown")


def num_workers(iterator: Any) -> int:
    """How many workers the loader of an iterator has; of a generator nobody knows."""
    return getattr(iterator, "_num_workers", 0)


def has_workers(iterator: Any) -> bool:
    """Whether an iterator has workers that have not ended."""
    return not getattr(iterator, "_shutdown", True)


def end(iterator: Any) -> None:
    """End an iterator and its workers."""
    if isinstance(iterator, GeneratorType):
        iterator.close()
    elif is_running_node(iterator):
        iterator._shutdown()
    else:
        shut_down(iterator)
