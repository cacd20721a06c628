"""Caches that a dataset fills while it is read: workers that end with the epoch take them along.

Only the parent's object is looked at, and the text of its class: nothing is called or read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANY: Final = 1000
"""Entries that a cache of a function has room for, from which on it may hold a dataset."""
_NOT_THE_USERS: Final = {"torch", "builtins", "typing"}
"""Packages whose classes keep no samples."""
_DEEPEST: Final = 5
"""Datasets inside of datasets that are looked at."""


def cache_of(dataset: Any) -> str:
    """Name where a dataset keeps what it has read: an attribute, or a function with a cache.

    Returns:
        '' for a dataset without one, or with one that is full before workers start.
    """
    with suppress(Exception):  # objects of other people: any of these may raise
        return next(_caches(dataset), "")
    return ""


def _caches(dataset: Any) -> Iterator[str]:
    for _ in range(_DEEPEST):
        attributes = getattr(dataset, "__dict__", {})
        for cls in type(dataset).__mro__:
            if cls.__module__.partition(".")[0] in _NOT_THE_USERS:
                continue
            names = _stored_in(cls)
            yield from (f"self.{one}" for one in names if _has_room(attributes.get(one), dataset))
            yield from (f"{cls.__name__}.{one}" for one in _cached_methods(cls))
        if "dataset" not in attributes:
            return
        dataset = attributes["dataset"]


def _cached_methods(cls: type) -> Iterator[str]:
    """Methods under `functools.cache`, or under an `lru_cache` with room for many."""
    for name, method in vars(cls).items():
        if hasattr(method, "cache_parameters"):
            most = method.cache_parameters()["maxsize"]
            if most is None or most >= _MANY:
                yield name


def _has_room(kept: Any, dataset: Any) -> bool:
    """Whether not every sample is in there yet."""
    if isinstance(kept, dict):
        return len(kept) < len(dataset)
    return isinstance(kept, list) and any(one is None for one in kept)


@lru_cache(maxsize=64)
def _stored_in(cls: type) -> tuple[str, ...]:
    """Attributes under whose keys the methods of a class store something: `self.x[key] = ...`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    methods = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    )
    nodes = (node for method in methods for node in ast.walk(method))
    targets = (one for node in nodes if isinstance(node, ast.Assign) for one in node.targets)
    return tuple(
        dict.fromkeys(
            target.value.attr
            for target in targets
            if isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Attribute)
            and isinstance(target.value.value, ast.Name)
            and target.value.value.id == "self"
        )
    )
