"""Iterators nested in one another: each `next` is a span, and what it pulls is not its own time."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.probe.recorder import Recorder

_END: Final = object()


class StageIterator:
    """An iterator of the library's whose every `next` is a span of one stage.

    Args:
        recorder: of the thread that makes the batches.
        key: of the stage.
        inner: the library's own iterator; everything but `next` goes there.
    """

    def __init__(self, recorder: Recorder, key: int, inner: Iterator[Any]) -> None:
        self._inner = inner
        # Its end is no exception here: that would be a failed sample.
        self._next = recorder.call(functools.partial(next, inner, _END), key)

    def __iter__(self) -> StageIterator:
        return self

    def __next__(self) -> Any:
        item = self._next()
        if item is _END:
            raise StopIteration
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
