"""Walking through what objects hold, without running any code of theirs."""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEEPEST: Final = 8
_MOST_ITEMS: Final = 64
"""A list of a million paths holds no generator and no model."""
_MOST_OBJECTS: Final = 20_000
_PLAIN: Final = (str, bytes, int, float, bool, type(None), type)


def walk(start: Any, inside: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Everything that can be reached, each once, the nearest first.

    Args:
        start: where to begin.
        inside: what an object leads to.
    """
    seen: dict[int, Any] = {}
    todo = deque([(start, 0)])
    while todo and len(seen) < _MOST_OBJECTS:
        thing, depth = todo.popleft()
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen[id(thing)] = thing
        yield thing
        if depth < _DEEPEST:
            todo.extend((inner, depth + 1) for inner in inside(thing))


def held(thing: Any) -> list[Any]:
    """What an object holds: its items, or the values of its attributes."""
    if isinstance(thing, (list, tuple)):
        return list(thing) if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, dict) and len(thing) <= _MOST_ITEMS:
        return [*dict.values(thing), *own(thing).values()]
    return [] if inspect.ismodule(thing) else list(own(thing).values())


def own(thing: Any) -> dict[str, Any]:
    """The attributes that an object holds itself; past any `__getattr__` of the user's."""
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}
