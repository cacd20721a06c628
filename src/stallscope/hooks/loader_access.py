"""Reading other people's loaders, and starting and ending their iterators.

A loader may raise on any attribute (a property, a `__getattr__`), so attributes are read through
`value_of` alone, which never raises.
"""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import suppress
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from stallscope.hooks.patches import unseen
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable


_NOT_KEPT: Final = {"generator": None, "pin_memory_device": "", "in_order": True}
"""Settings of a loader that torch's iterators do not keep in every version, and their defaults."""


def value_of(owner: Any, name: str) -> Any:
    """Return an attribute of a loader, or of its iterator, which calls it `_name`; else None."""
    for attribute in (name, f"_{name}"):
        with suppress(Exception):
            return getattr(owner, attribute)
    return None


def described(loader: Any) -> dict[str, Any]:
    """Return what a reader of the run has to know of a loader, as JSON takes it."""
    batch_size = value_of(loader, "batch_size")
    return {
        "kind": type(loader).__name__,
        "dataset": type(value_of(loader, "dataset")).__name__,
        "num_workers": value_of(loader, "num_workers") or 0,
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "prefetch_factor": value_of(loader, "prefetch_factor"),
        "persistent_workers": bool(value_of(loader, "persistent_workers")),
        "streams": value_of(loader, "dataset_kind") == _DatasetKind.Iterable,
        # fastai's loader makes batches inside of what torch takes for its dataset
        "whole": not value_of(loader, "_auto_collation") and type(loader).__name__ != "_FakeLoader",
        "lived": isinstance(loader, _BaseDataLoaderIter),  # before the recording began
    }


def start_method(loader: Any) -> str:
    """Return how the loader starts its workers: fork, spawn or forkserver.

    Asking leaves Python's own default unset, so that it can still be chosen afterwards.
    """
    context = value_of(loader, "multiprocessing_context")
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


class StandIn:
    """Takes the place of an object, which answers for all attributes that this one has not."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_original":  # while it is unpickled it has none yet
            raise AttributeError(name)
        return getattr(self._original, name)


class DatasetOf(StandIn):
    """Takes the place of a map-style dataset; its samples come from a function of ours."""

    def __init__(self, dataset: Any, get: Callable[[Any], Any]) -> None:
        super().__init__(dataset)
        self._get = get

    @unseen
    def __getitem__(self, index: Any) -> Any:
        return self._get(index)


class FreshIterator:
    """Iterator of a loader that starts with its first batch, and anew after it was ended."""

    def __init__(self, start: Callable[[], Any], num_workers: int) -> None:
        self._start, self._num_workers = start, num_workers
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
        workers = value_of(iterator, "_workers")
        method = getattr(type(workers[0]), "_start_method", None) if workers else None
        self.multiprocessing_context = multiprocessing.get_context(method) if method else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _NOT_KEPT:
            return value_of(self._iterator, name) or _NOT_KEPT[name]
        return getattr(self._iterator, f"_{name.removeprefix('_')}")


def fresh(iterator: Any, owner: Any) -> FreshIterator:
    """Return an iterator like the one that its owner keeps, before its first batch."""
    if isinstance(owner, DataLoader):
        here = ref(owner)  # a class may end its workers when nobody holds it any more
        return FreshIterator(lambda: here()._get_iterator(), owner.num_workers)  # type: ignore[union-attr]
    if isinstance(iterator, FreshIterator):
        return iterator
    loader = _LoaderOf(iterator)
    return FreshIterator(lambda: type(iterator)(loader), iterator._num_workers)


def is_node(value: Any) -> bool:
    """Return whether this is a node of torchdata's, whose graph takes the place of a loader."""
    return type(value).__module__.startswith("torchdata.nodes.")


def is_running_node(value: Any) -> bool:
    """Return whether this is what a node works with meanwhile: threads or processes of its own."""
    return is_node(value) and hasattr(type(value), "_shutdown")


def is_iterator(value: Any) -> bool:
    """Return whether this is in the middle of a loader's epoch, as far as one can see."""
    if isinstance(value, GeneratorType):  # what it goes through lies on its stack
        held = gc.get_referents(value)
        return any(isinstance(part, DataLoader) or is_iterator(part) for part in held)
    return isinstance(value, (_BaseDataLoaderIter, FreshIterator)) or is_running_node(value)


def ask_to_end(iterator: Any) -> None:
    """Let the workers of an iterator make no other batch; `shut_down` has to follow."""
    event = value_of(iterator, "_workers_done_event")
    if event is not None:
        event.set()


def shut_down(iterator: Any) -> None:
    """End the workers of an iterator now, whoever still holds a reference to it.

    What torch says meanwhile of one that it had to end would hide why the iterator is ended.
    """
    if not hasattr(iterator, "_shutdown_workers"):
        return
    with held_back():
        if "_shutdown" not in vars(iterator):  # its constructor failed before it had any
            iterator._shutdown = True
        with suppress(RuntimeError):
            iterator._shutdown_workers()
        for worker in value_of(iterator, "_workers") or ():
            if worker.is_alive():  # stopped, say, and deaf to being terminated
                worker.kill()
                worker.join()


def end(iterator: Any) -> None:
    """End an iterator and its workers."""
    if isinstance(iterator, GeneratorType):
        iterator.close()
    elif is_running_node(iterator):
        iterator._shutdown()
    shut_down(iterator)
