"""Putting the attributes of an object back: what they are, and what is in those that can change."""

from __future__ import annotations

import copy
import functools
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stallscope.measure.reach import own

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator


@contextmanager
def bindings_kept(holders: Iterable[Any]) -> Iterator[None]:
    """Let attributes hold afterwards what they held; what they hold may have changed.

    A file that was opened for the first time here must not be inherited by later workers.
    """
    before = [(attributes, dict(attributes)) for attributes in map(own, holders)]
    try:
        yield
    finally:
        for attributes, values in before:
            attributes.clear()
            attributes.update(values)


def attributes_of(thing: Any, without: Container[str] = ()) -> Callable[[], None]:
    """What to call to put the attributes of an object back to how they are now.

    Args:
        thing: the object.
        without: names of attributes that are left alone.
    """
    attributes = own(thing)
    before = {name: value for name, value in attributes.items() if name not in without}
    contents = {name: _content(value) for name, value in before.items()}
    return functools.partial(_put_back, attributes, before, contents, without)


def _content(value: Any) -> Any:
    """A copy of what can be changed in place."""
    if isinstance(value, (list, set, dict, bytearray, deque)):
        return copy.copy(value)
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if type(value).__module__ == "numpy" and hasattr(value, "copy") else None


def _put_back(
    attributes: dict[str, Any],
    before: dict[str, Any],
    contents: dict[str, Any],
    without: Container[str],
) -> None:
    for name in [*attributes]:
        if name not in before and name not in without:
            del attributes[name]
    attributes.update(before)
    for name, content in contents.items():
        value = before[name]
        if isinstance(value, (list, bytearray)):
            value[:] = content
        elif isinstance(value, (set, dict)):
            value.clear()
            value.update(content)
        elif isinstance(value, deque):
            value.clear()
            value.extend(content)
        elif isinstance(value, torch.Tensor):
            value.data.copy_(content)
        elif content is not None and getattr(value, "ndim", None):
            value[...] = content
