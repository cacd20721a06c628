"""The DataLoaders inside of what the user points at: their workers are the user's, not ours."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope.errors import UnsupportedError
from stallscope.measure.attributes import attributes_of
from stallscope.measure.reach import held, own, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


def loaders_of(target: Any) -> list[DataLoader[Any]]:
    """The DataLoader itself, or those that another iterable of batches holds."""
    if isinstance(target, DataLoader):
        return [target]
    return [thing for thing in walk(target, held) if isinstance(thing, DataLoader)]


def batch_size_of(loader: DataLoader[Any]) -> int | None:
    """Samples a batch, also where a sampler of the user's says so; None where nothing does."""
    asked = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    size = loader.batch_size or getattr(asked, "batch_size", None)
    return size if isinstance(size, int) else None


def made_here(target: Any) -> bool:
    """Whether its batches are made in this process, as far as one can tell: by DataLoaders."""
    loaders = loaders_of(target)
    return bool(loaders) and not any(loader.num_workers for loader in loaders)


@contextmanager
def private(target: Any) -> Iterator[Any]:
    """The target in a form that starts its own workers, and leaves the user's living ones alone.

    Of a DataLoader that is a shallow copy. Anything else is taken as it is: the DataLoaders inside
    of it forget their living workers for the length of the block, and the attributes of all that
    holds one are put back.

    Raises:
        UnsupportedError: something keeps an iterator of its own, whose batches would be used up.
    """
    _check_ends(target)
    holders = [] if isinstance(target, DataLoader) else [target]
    holders += [thing for thing in walk(target, held) if thing is not target and _holds(thing)]
    for thing in [target, *holders]:
        _check_unshared(thing)
    restores = [attributes_of(thing) for thing in holders]
    try:
        if isinstance(target, DataLoader):
            clone = copy.copy(target)
            vars(clone)["_iterator"] = None
            yield clone
        else:
            for loader in loaders_of(target):
                vars(loader)["_iterator"] = None
            yield target
    finally:
        for restore in restores:
            restore()


def _holds(thing: Any) -> bool:
    """Whether this is a DataLoader, or holds one."""
    if isinstance(thing, (list, tuple, dict)):
        return False
    return any(isinstance(one, DataLoader) for one in (thing, *own(thing).values()))


def _check_unshared(thing: Any) -> None:
    others = [value for name, value in own(thing).items() if name != "_iterator"]
    if any(isinstance(value, _BaseDataLoaderIter) for value in others):
        raise UnsupportedError(
            f"this {type(thing).__name__} keeps an iterator of its own, whose workers live "
            "already: a recording would use up its batches. Give a plain DataLoader over the same "
            "dataset, or iterate it yourself inside of ss.instrumented()"
        )


def _check_ends(target: Any) -> None:
    if type(target).__module__.partition(".")[0] == "torchdata" and not loaders_of(target):
        raise UnsupportedError(
            f"torchdata's {type(target).__name__} keeps its threads and processes until it is gone "
            "itself, so a recording would leave them behind. Give a DataLoader over the same data"
        )
