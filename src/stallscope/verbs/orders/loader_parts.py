"""Parts of changed loaders: ops on the batch, a cached prefix, decoding at a smaller size.

Workers import this module, so it imports no polars.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from stallscope.loops.cached_values import fresh, is_image

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


@dataclass(frozen=True, eq=False)
class BatchOps:
    """Collate function that also runs some ops, on the whole batch."""

    collate: Any
    """The user's."""
    ops: Sequence[Any]
    where: tuple[Any, ...]
    """Keys that lead to their column of the batch."""

    def __call__(self, samples: Any) -> Any:
        """Return the batch, after the ops."""
        return _with_column(self.collate(samples), self.where, self.work)

    def work(self, column: Any) -> Any:
        """Return the ops' result for the samples of a batch, stacked."""
        for op in self.ops:
            column = op(column)
        return column


class CachedPrefix:
    """Dataset that caches its samples in memory, up to the first op that changes them each time.

    A worker caches its own samples, and has those from before its fork; workers share no later
    ones. Workers that end with an epoch lose their cache.

    Args:
        dataset: with only the first ops in its pipeline.
        tail: the ops that run every time; None: there are none.
        where: keys that lead to the pipeline's result in a sample.
    """

    def __init__(self, dataset: Any, tail: Any, where: Sequence[Any]) -> None:
        self.dataset = dataset
        self.tail = tail
        self.where = tuple(where)
        self.kept: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        key = key_of(index)
        if key not in self.kept:
            self.kept[key] = fresh(self.dataset[index])
        return _with_column(self.kept[key], self.where, self._finish)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _finish(self, value: Any) -> Any:
        value = fresh(value)  # an op may change its input in place
        return value if self.tail is None else self.tail(value)


def key_of(index: Any) -> Hashable:
    """Return a key for an index: itself, or its bytes if it cannot be hashed, as a list."""
    try:
        hash(index)
    except TypeError:
        return pickle.dumps(index)
    return index  # type: ignore[no-any-return]  # hashed just above


def loaded(value: Any) -> Any:
    """Decode an image, so that the cache holds pixels."""
    load = getattr(value, "load", None)
    if callable(load):
        load()
    return value


def _with_column(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    """Return a sample or a batch with the value at `where` changed."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    inner = _with_column(value[key], rest, change)
    if isinstance(value, Mapping):
        return {**value, key: inner}
    parts = [inner if number == key else part for number, part in enumerate(value)]
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts) if isinstance(value, (list, tuple)) else parts


@dataclass(frozen=True)
class Draft:
    """Decoder of a JPEG at the smallest of its sizes that is at least this large, pixels.

    Stands before the ops, or in the place of a function that reads an RGB image from a path.
    """

    width: int
    height: int

    def __call__(self, image: Any) -> Any:
        """Return the image, decoded."""
        if not is_image(image):
            with Image.open(image) as opened:
                return self(opened).convert("RGB")
        if getattr(image, "tile", None):
            image.draft(image.mode, (self.width, self.height))
        image.load()
        return image
