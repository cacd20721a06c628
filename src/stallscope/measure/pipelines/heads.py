"""The first ops of a pipeline done once for each sample, and their results kept in memory.

A worker keeps what it has made, and what was made before it was forked; workers do not share what
they make later. Workers that end with an epoch lose theirs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from stallscope.measure.cache.values import fresh

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class CachedHead:
    """A dataset whose samples come from memory, as far as they are the same every time.

    Args:
        dataset: with the first ops alone in the place of its pipeline.
        tail: the ops that are done every time, one after the other; None: there are none.
        where: keys that lead to the pipeline's result in a sample.
    """

    def __init__(self, dataset: Any, tail: Any, where: Sequence[Any]) -> None:
        self.dataset = dataset
        self.tail = tail
        self.where = tuple(where)
        self.kept: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        key = key_of(index)
        if key not in self.kept:
            self.kept[key] = fresh(self.dataset[index])
        return _placed(self.kept[key], self.where, self._finish)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _finish(self, value: Any) -> Any:
        value = fresh(value)  # an op may change its input in place
        return value if self.tail is None else self.tail(value)


def key_of(index: Any) -> Hashable:
    """The index itself, or its bytes where it cannot be a key, as the list of a batch."""
    try:
        hash(index)
    except TypeError:
        return pickle.dumps(index)
    return index  # type: ignore[no-any-return]  # it has just been hashed


def _placed(value: Any, where: tuple[Any, ...], change: Any) -> Any:
    """A sample with another value in one place."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    inner = _placed(value[key], rest, change)
    if isinstance(value, dict):
        return {**value, key: inner}
    parts = [inner if number == key else one for number, one in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
