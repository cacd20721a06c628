"""Loaders inside a target, and private copies of them that start workers of their own.

Some objects keep an iterator: a loader with persistent workers, a dataset that is a queue over an
inner loader. The batches of this iterator are the user's. During a measurement, an iterator that
starts over the same data at the first `next` replaces it. Afterwards the user's iterator is put
back, and iterators that were started meanwhile are ended.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from types import FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from stallscope.errors import UnsupportedError
from stallscope.hooks.find_ops import own_attributes
from stallscope.hooks.loader_access import (
    FreshIterator,
    end,
    fresh,
    is_iterator,
    is_node,
    is_running_node,
    value_of,
)
from stallscope.targets.object_graph import attributes_of, children, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


def find_loaders(loader: Any) -> list[Any]:
    """Return the DataLoader itself, or those in another iterable of batches (fastai's, too)."""
    if isinstance(loader, DataLoader):
        return [loader]
    return [value for value in walk(loader, children) if _is_loader(value)]


def count_workers(loader: Any) -> int:
    """Count the workers of all loaders in it that this process uses.

    A dataset may own a loader with workers, or only its iterator.
    """
    used = list(walk(loader, _inside))
    owned: int = sum(value_of(value, "num_workers") or 0 for value in used if _is_loader(value))
    iterators = [_kept(value) for value in used if not isinstance(value, DataLoader)]
    # Of a generator nobody knows
    return owned + sum(value_of(each, "_num_workers") or 0 for group in iterators for each in group)


def _is_loader(value: Any) -> bool:
    name = (type(value).__module__, type(value).__name__)
    return isinstance(value, DataLoader) or name == ("fastai.data.load", "_FakeLoader")


def copied(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """Return a shallow copy with changed attributes, without the iterator and its workers."""
    clone = copy.copy(loader)
    vars(clone).update(changed, _iterator=None)  # torch forbids to set some of them
    _renew(clone)
    return clone


def epoch_length(loader: Any) -> int | None:
    """Return the number of batches in an epoch; None: unknown."""
    # `len` makes a torch loader over a stream warn later, so a copy is asked
    return length_of(copied(loader) if isinstance(loader, DataLoader) else loader)


def length_of(value: Any) -> int | None:
    """Return the length of a loader or a dataset; None: unknown."""
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a stream has no length; libraries raise any error for that
        return None


@contextmanager
def private_copy(loader: Any) -> Iterator[Any]:
    """Yield the loader in a form that starts its own workers and leaves the user's alone.

    A DataLoader is copied shallowly. Any other iterable, and a dataset of this process, is used
    directly: during the block its iterators are replaced, and afterwards the attributes of every
    object that is iterated, or that has a loader or an iterator, are put back.

    Raises:
        UnsupportedError: an object keeps an iterator that cannot be restarted.
    """
    private = copied(loader) if isinstance(loader, DataLoader) else loader
    with iterators_ended(private):
        for value in list(walk(private, _inside)):
            _renew(value)
        yield private


@contextmanager
def iterators_ended(loader: Any) -> Iterator[None]:
    """Put back the iterators that a loader keeps, and end those that were started meanwhile."""
    before = [
        (owner, _kept(owner), attributes_of(owner, arrays=_holds(owner)))
        for owner in walk(loader, _inside)
        # A dataset may create a loader lazily, and a stream or wrapper its generator in each epoch
        if _holds(owner) or isinstance(owner, Dataset) or _iterates(owner)
    ]
    try:
        yield
    finally:
        for owner, users, restore in before:
            new = [each for each in _kept(owner) if not any(each is user for user in users)]
            for iterator in (*new, *users):
                if iterator in new or isinstance(iterator, FreshIterator):
                    end(iterator)
            if new or _holds(owner) or _iterates(owner):
                restore()


def _inside(value: Any) -> list[Any]:
    """Return the values of an object that this process uses."""
    is_used_elsewhere = isinstance(value, DataLoader) and value.num_workers
    return [] if is_used_elsewhere or is_iterator(value) else children(value)


def _holds(value: Any) -> bool:
    """Recognise a DataLoader, a node, and an object with either, or an iterator of either."""
    if isinstance(value, (list, tuple, dict)) or is_iterator(value):
        return False
    parts = (value, *own_attributes(value).values())
    is_loader = any(isinstance(part, DataLoader) or is_node(part) for part in parts)
    return is_loader or bool(_kept(value))


def _iterates(value: Any) -> bool:
    """Recognise an object with an `__iter__` of its own: a stream, or a wrapper around a loader."""
    method = getattr(type(value), "__iter__", None)
    if not isinstance(method, FunctionType) or method.__module__.startswith("stallscope."):
        return False
    return not (is_iterator(value) or is_node(value))


def kept_iterators(loader: Any) -> list[Any]:
    """Return the iterators that a loader, or an object in it, keeps."""
    return [iterator for value in walk(loader, _inside) for iterator in _kept(value)]


def _kept(owner: Any) -> list[Any]:
    """Return the iterators over loaders that an object keeps, also in lists and mappings."""
    values = own_attributes(owner).values()
    return [part for value in values for part in (value, *_items(value)) if is_iterator(part)]


def _items(value: Any) -> list[Any]:
    return children(value) if type(value) in (list, tuple, dict) else []


def _renew(owner: Any) -> None:
    if not _holds(owner):
        return
    attributes = own_attributes(owner)
    if isinstance(owner, DataLoader):
        attributes["_iterator"] = None
    for name, value in attributes.items():
        if any(map(is_iterator, (value, *_items(value)))):
            attributes[name] = _renewed(owner, value)


def _renewed(owner: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _renewed(owner, part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_renewed(owner, part) for part in value)
    if not is_iterator(value):
        return value
    if isinstance(value, GeneratorType) or is_running_node(value):
        what = "a generator" if isinstance(value, GeneratorType) else "threads"
        raise UnsupportedError(
            f"this {type(owner).__name__} keeps {what} in the middle of an epoch, which cannot be "
            "restarted: a recording would use up its batches. Give a new loader, or iterate it "
            "yourself inside ss.instrumented()"
        )
    return fresh(value, owner)
