"""Putting the attributes of an object back: what they are, and what is in those that can change."""

from __future__ import annotations

import functools
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
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
    """A copy of what can be changed in place; None for anything else."""
    if isinstance(value, dict):
        return [one for pair in dict.items(value) for one in pair]
    if isinstance(value, (list, set, deque)):
        return list(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else (_version(value), value.detach().clone())
    is_array = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
    return value.copy() if is_array and value.flags.writeable else None


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
        if content is not None:
            _refill(before[name], content)


def _version(value: torch.Tensor) -> int:
    """How often a tensor was changed in place."""
    return value._version  # noqa: SLF001 - torch has no other name for it


def _refill(value: Any, content: Any) -> None:
    """Put the content back, where it has changed: a frozen mapping cannot be written to."""
    if isinstance(value, torch.Tensor):
        version, values = content
        if _version(value) != version:
            with torch.no_grad():
                value.copy_(values)
    elif isinstance(value, np.ndarray):
        value[...] = content
    elif isinstance(value, bytearray):
        value[:] = content
    elif _is_changed(_content(value), content):
        value.clear()
        if isinstance(value, dict):
            value.update(zip(content[::2], content[1::2], strict=True))
        elif isinstance(value, set):
            value.update(content)
        else:
            value.extend(content)


def _is_changed(now: list[Any], before: list[Any]) -> bool:
    """Whether these are other objects; they are not asked whether they are equal."""
    return list(map(id, now)) != list(map(id, before))
