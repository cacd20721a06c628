"""What is known of objects while they live: by identity, because a user's class may define `==`."""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, TypeVar
from weakref import ref

Known = TypeVar("Known")


class ByIdentity(Generic[Known]):
    """A mapping that holds no object alive and asks none for its hash."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Any], Known]] = {}

    def get(self, thing: Any) -> Known | None:
        """What is known of this very object; None if nothing is."""
        there, known = self._held.get(id(thing), (None, None))
        return known if there is not None and there() is thing else None

    def put(self, thing: Any, known: Known) -> None:
        """Know this of it from now on."""
        number = id(thing)
        self._held[number] = ref(thing, partial(self._forget, number)), known

    def living(self) -> list[Any]:
        """All objects that still live."""
        there = [reference() for reference, _ in list(self._held.values())]
        return [thing for thing in there if thing is not None]

    def _forget(self, number: int, gone: ref[Any]) -> None:
        if number in self._held and self._held[number][0] is gone:
            del self._held[number]
