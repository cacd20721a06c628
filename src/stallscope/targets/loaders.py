"""The loaders inside a target, and private copies of them that start workers of their own.

Some objects keep an iterator: a loader that keeps its workers from epoch to epoch, a dataset that
is a queue over an inner loader. Its batches are the user's. While we measure, it is replaced by an
iterator that starts over the same data when it is first asked; afterwards everything is put back,
and iterators that were started meanwhile have ended.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from stallscope.errors import UnsupportedError
from stallscope.hooks.find_ops import own_attributes
from stallscope.hooks.loader_access import (
    FreshIterator,
    end,
    fresh,
    has_workers,
    is_iterator,
    is_node,
    is_running_node,
    num_workers,
)
from stallscope.targets.object_graph import attributes_of, children, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


def find_loaders(loader: Any) -> list[Any]:
    """Return the DataLoader itself, or those in another iterable of batches (fastai's, too)."""
    if isinstance(loader, DataLoader):
        return [loader]
    return [thing for thing in walk(loader, children) if _is_loader(thing)]


def count_workers(loader: Any) -> int:
    """Count the workers of all loaders in it that this process uses.

    A dataset may own a loader with workers, or only its iterator.
    """
    used = list(walk(loader, _inside))
    owned: int = sum(thing.num_workers for thing in used if _is_loader(thing))
    kept = (_kept(thing) for thing in used if not isinstance(thing, DataLoader))
    return owned + sum(num_workers(one) for iterators in kept for one in iterators)


def _is_loader(thing: Any) -> bool:
    named = (type(thing).__module__, type(thing).__name__)
    return isinstance(thing, DataLoader) or named == ("fastai.data.load", "_FakeLoader")


def copied(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """Return a shallow copy with other attributes, which shares no iterator and no worker."""
    clone = copy.copy(loader)
    vars(clone).update(changed, _iterator=None)  # torch forbids to set some of them
    _renew(clone)
    return clone


def epoch_length(loader: Any) -> int | None:
    """Return the batches of an epoch; None: unknown."""
    # A torch loader over a stream remembers that it was asked, and warns later: ask a copy
    asked = copied(loader) if isinstance(loader, DataLoader) else loader
    try:
        return len(asked)
    except Exception:  # noqa: BLE001 - a stream has none, and says so in many ways
        return None


@contextmanager
def private_copy(loader: Any) -> Iterator[Any]:
    """Yield the loader in a form that starts its own workers, and spares the user's living ones.

    A DataLoader is copied shallowly. Anything else is used as it is, and so is a dataset that works
    in this process: the iterators in it are replaced for the length of the block, and the
    attributes of all that holds a loader or an iterator are put back.

    Raises:
        UnsupportedError: something keeps an iterator that cannot be started anew.
    """
    mine = copied(loader) if isinstance(loader, DataLoader) else loader
    with iterators_ended(mine):
        for thing in list(walk(mine, _inside)):
            _renew(thing)
        yield mine


@contextmanager
def iterators_ended(loader: Any) -> Iterator[None]:
    """Put back the iterators that a loader keeps, and end those that were made meanwhile."""
    before = [
        (thing, _kept(thing), attributes_of(thing, arrays=_holds(thing)))
        for thing in walk(loader, _inside)
        if _holds(thing) or isinstance(thing, Dataset)  # which may make a loader when it is asked
    ]
    try:
        yield
    finally:
        for thing, kept, restore in before:
            made = [one for one in _kept(thing) if not any(one is known for known in kept)]
            for one in (*made, *kept):
                if one in made or isinstance(one, FreshIterator):
                    end(one)
            if made or _holds(thing):
                restore()


def _inside(thing: Any) -> list[Any]:
    """Return the values of an object that this process uses."""
    is_used_elsewhere = isinstance(thing, DataLoader) and thing.num_workers
    return [] if is_used_elsewhere or is_iterator(thing) else children(thing)


def _holds(thing: Any) -> bool:
    """Recognise a DataLoader, a node, and whatever holds one or an iterator of one."""
    if isinstance(thing, (list, tuple, dict)) or is_iterator(thing):
        return False
    held = (thing, *own_attributes(thing).values())
    is_loader = any(isinstance(one, DataLoader) or is_node(one) for one in held)
    return is_loader or bool(_kept(thing))


def keeps_iterator(loader: Any) -> bool:
    """Tell if a loader, or something in it, keeps an iterator with workers."""
    return any(map(has_workers, kept_iterators(loader)))


def kept_iterators(loader: Any) -> list[Any]:
    """Return the iterators that a loader, or something in it, keeps."""
    return [one for thing in walk(loader, _inside) for one in _kept(thing)]


def _kept(thing: Any) -> list[Any]:
    """Return the iterators over loaders that an object keeps, also in lists and mappings."""
    values = own_attributes(thing).values()
    return [part for value in values for part in (value, *_items(value)) if is_iterator(part)]


def _items(value: Any) -> list[Any]:
    return children(value) if type(value) in (list, tuple, dict) else []


def _renew(thing: Any) -> None:
    """Replace the iterators that an object keeps by ones that have not begun."""
    if not _holds(thing):
        return
    attributes = own_attributes(thing)
    if isinstance(thing, DataLoader):
        attributes["_iterator"] = None
    for name, value in attributes.items():
        if any(map(is_iterator, (value, *_items(value)))):
            attributes[name] = _renewed(thing, value)


def _renewed(owner: Any, value: Any) -> Any:
    """Return the value with iterators that have not begun."""
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
            "started anew: a recording would use up its batches. Give a new one, or iterate it "
            "yourself inside of ss.instrumented()"
        )
    return fresh(value, owner)
