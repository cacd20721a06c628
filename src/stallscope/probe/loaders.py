"""Which loader is which in a recording, and what a reader of the run has to know of each."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch.utils.data.dataloader import _BaseDataLoaderIter

if TYPE_CHECKING:
    from stallscope.marks import MarkWriter


class Loaders:
    """Numbers loaders, and their epochs; any thread may ask.

    Args:
        marks: where to write what is known of a loader.
    """

    def __init__(self, marks: MarkWriter) -> None:
        self._marks = marks
        self._loaders: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        self._epochs: dict[int, int] = {}
        self._lock = threading.RLock()

    def begin(self, loader: Any) -> tuple[int, int]:
        """An epoch of a loader begins: its numbers."""
        with self._lock:
            number = self._number(loader)
            return number, self.next_epoch(number)

    def next_epoch(self, loader: int) -> int:
        """Number of the epoch of a loader that begins now."""
        self._epochs[loader] = self._epochs.get(loader, -1) + 1
        return self._epochs[loader]

    def _number(self, loader: Any) -> int:
        """The loader's number: its own, or that of the one that it takes the place of.

        A script may make its loader anew for each epoch: the same kind of dataset, read in the same
        way, and the one before is no more.
        """
        about = described(loader)
        alike = (type(held(loader, "dataset")), type(held(loader, "sampler")), *about.values())
        for key, (there, number) in list(self._loaders.items()):
            if there() is loader:
                return number
            if key[:-1] == alike and there() is None:
                self._loaders[key] = (ref(loader), number)
                return number
        number = len(self._loaders) + 1
        self._loaders[(*alike, number)] = (ref(loader), number)
        self._marks.say(loader=number, **about)
        return number


def described(loader: Any) -> dict[str, Any]:
    """What a reader of the run has to know of a loader, as JSON takes it."""
    batch_size = held(loader, "batch_size")
    return {
        "kind": type(loader).__name__,
        "dataset": type(held(loader, "dataset")).__name__,
        "num_workers": held(loader, "num_workers") or 0,
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        # fastai's loader makes batches inside of what torch takes for its dataset
        "whole": not held(loader, "_auto_collation") and type(loader).__name__ != "_FakeLoader",
        "lived": isinstance(loader, _BaseDataLoaderIter),  # before the recording began
    }


def held(loader: Any, name: str) -> Any:
    """What a loader holds; where it is gone, its iterator has the same under another name."""
    for known in (name, f"_{name}"):
        with contextlib.suppress(Exception):  # a property of the user's, or their `__getattr__`
            return getattr(loader, known)
    return None
