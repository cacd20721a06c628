"""Whole batches from memory, over and over.

A step may change its batch in place; what it changes never reaches the next use of that batch. So
the first time, the step gets a copy, which is compared with the original afterwards. If they are
the same, later uses share the tensors, whose version numbers are looked at after each use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stallscope.measure.cache.values import bytes_of, fresh, same, shell, versions

if TYPE_CHECKING:
    from collections.abc import Iterator


class CachedBatches:
    """Batches that are given again and again.

    Args:
        batches: at least one; nobody else may hold them.
    """

    def __init__(self, batches: list[Any]) -> None:
        self._batches = list(batches)
        self._tried = False
        self.copies = False
        """Whether every use gets a copy, because the step changes its batch in place."""
        self.bytes = bytes_of(self._batches)
        """What they need."""

    def __iter__(self) -> Iterator[Any]:
        while self._batches:
            for batch in list(self._batches):
                if self.copies:
                    yield fresh(batch)
                elif self._tried:
                    yield from self._shared(batch)
                else:
                    yield from self._trial(batch)

    def _trial(self, batch: Any) -> Iterator[Any]:
        given = fresh(batch)
        yield given
        self._tried, self.copies = True, not same(given, batch)

    def _shared(self, batch: Any) -> Iterator[Any]:
        before = versions(batch)
        yield shell(batch)
        if versions(batch) != before:  # this one is spoilt, and not used again
            self._batches = [one for one in self._batches if one is not batch]
            self.copies = True
