"""Values inside of objects, read without running the objects' code.

Attributes that are put back afterwards, and the Python functions of a pipeline. A part without
Python code (written in C, compiled) is named, because it has no lines.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections import OrderedDict, defaultdict, deque
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from stallscope.hooks import find_ops
from stallscope.hooks.find_ops import own_attributes, place_of
from stallscope.stages import COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from torch.utils.data import DataLoader


_DEEPEST: Final = 8
_MOST_ITEMS: Final = 64
"""Longest list that is searched; longer lists hold paths, no generators or models."""
_MOST_OBJECTS: Final = 20_000
_PLAIN: Final = (str, bytes, int, float, bool, type(None), type)


_ENTRIES: Final = ("__getitems__", "__getitem__", "__iter__")
_OF_OPS: Final = ("__call__", "forward", "transform", "_transform", "apply")
"""Methods in which an op's class does its work; torchvision's and albumentations' base classes call
the last three from `forward` or `__call__`."""
_DEEPEST_CALLABLE: Final = 4


def walk(start: Any, inside: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Yield every reachable object once, nearest first."""
    seen: dict[int, Any] = {}
    todo = deque([(start, 0)])
    while todo and len(seen) < _MOST_OBJECTS:
        value, depth = todo.popleft()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen[id(value)] = value
        yield value
        if depth < _DEEPEST:
            todo.extend((inner, depth + 1) for inner in inside(value))


def children(value: Any) -> list[Any]:
    """Return an object's items, or the values of its attributes."""
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) <= _MOST_ITEMS else []
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        return [*dict.values(value), *own_attributes(value).values()]
    return [] if inspect.ismodule(value) else list(own_attributes(value).values())


@contextmanager
def bindings_kept(holders: Iterable[Any]) -> Iterator[None]:
    """Put back the attributes of objects afterwards; the values themselves may have changed.

    Later workers must not inherit a file that was first opened here.
    """
    before = [(attributes, dict(attributes)) for attributes in map(own_attributes, holders)]
    try:
        yield
    finally:
        for attributes, values in before:
            attributes.clear()
            attributes.update(values)


def attributes_of(
    owner: Any, without: Container[str] = (), *, arrays: bool = True
) -> Callable[[], None]:
    """Return a function that restores the current attributes of an object, `without` some names.

    With `arrays`, it also restores the contents of tensors and arrays, from a copy.
    """
    attributes = own_attributes(owner)
    before = {name: value for name, value in attributes.items() if name not in without}
    parts = [part for value in before.values() for part in (value, *_buckets(value))]
    contents = [
        (value, _content(value))
        for value in parts
        if arrays or not isinstance(value, (torch.Tensor, np.ndarray))
    ]

    def put_back() -> None:
        for name in [*attributes]:
            if name not in before and name not in without:
                del attributes[name]
        attributes.update(before)
        for value, content in contents:
            if content is not None:
                _refill(value, content)

    return put_back


_BUCKETS: Final = frozenset({list, dict, defaultdict, OrderedDict, deque, set})
"""Containers whose content is restored."""


def _buckets(value: Any) -> Iterator[Any]:
    """Yield the containers in a container, at any depth: samplers gather batches there."""
    seen, left = {id(value)}, [value]
    while left:
        outer = left.pop()
        if type(outer) in _BUCKETS:
            for inner in children(outer):
                if type(inner) in _BUCKETS and id(inner) not in seen:
                    seen.add(id(inner))
                    left.append(inner)
                    yield inner


def _content(value: Any) -> Any:
    """Copy a value that can change in place; None for any other value."""
    if isinstance(value, dict):
        return [part for pair in dict.items(value) for part in pair]
    if isinstance(value, (list, set, deque)):
        return list(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, torch.Tensor):
        # The number of its changes in place, which has no public name
        return None if value.is_inference() else (value._version, value.detach().clone())  # noqa: SLF001
    is_array = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
    return value.copy() if is_array and value.flags.writeable else None


def _refill(value: Any, content: Any) -> None:
    """Put changed content back; unchanged content stays, as a frozen mapping raises on writes."""
    if isinstance(value, torch.Tensor):
        version, values = content
        if value._version != version:  # noqa: SLF001
            with torch.no_grad():
                value.copy_(values)
    elif isinstance(value, np.ndarray):
        value[...] = content
    elif isinstance(value, bytearray):
        value[:] = content
    elif [*map(id, _content(value))] != [*map(id, content)]:  # `==` could run the user's code
        value.clear()
        if isinstance(value, dict):
            value.update(zip(content[::2], content[1::2], strict=True))
        else:
            (value.update if isinstance(value, set) else value.extend)(content)


class LoaderCallables:
    """Dataset, ops and collate function of a loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.stages: dict[CodeType, Stage] = {}
        self.entries: set[CodeType] = set()
        """Code in which a sample begins."""
        self.functions: dict[CodeType, FunctionType] = {}
        self.without_source: dict[str, str] = {}
        """Reason why a part has no Python code."""
        self.homes: set[str] = set()
        """Packages of the datasets, which are the user's own."""
        self._seen: set[tuple[int, bool]] = set()
        self.holders: list[Any] = []
        """Datasets and ops: loading samples may rebind their attributes."""
        for dataset in find_ops.datasets(loader.dataset):
            self._add_dataset(dataset)
        self._add(loader.collate_fn, COLLATE)

    def _add_dataset(self, dataset: Any) -> None:
        self.holders.append(dataset)
        self.homes.add(type(dataset).__module__.partition(".")[0])
        for name in _ENTRIES:
            function = function_of(getattr(type(dataset), name, None))
            if function is not None:
                self._add_function(function, GETITEM)
                self.entries.add(function.__code__)
        for slot in find_ops.slots(dataset):
            self._add_slot(slot)
        for slot in find_ops.helpers(dataset):
            self._add(slot.value, find_ops.stage_of(slot, gives_way=True))

    def _add_slot(self, slot: find_ops.Slot, depth: int = 0, *, is_stage: bool = True) -> None:
        """Add the value of a slot, as a stage if the recorder also has this stage."""
        value = slot.value
        if (id(value), is_stage) in self._seen or depth > _DEEPEST_CALLABLE:
            return
        self._seen.add((id(value), is_stage))
        if not find_ops.is_container(value):
            self._add(value, find_ops.stage_of(slot) if is_stage else None)
        if find_ops.is_container(value) or find_ops.is_op(value):
            self.holders.append(value)
            for inner in find_ops.slots(value):
                if not find_ops.is_own_part(value, inner.value):
                    is_op = find_ops.is_container(value) or find_ops.is_inner_op(inner)
                    self._add_slot(inner, depth + 1, is_stage=is_stage and is_op)

    def _add(self, value: Any, stage: Stage | None) -> None:
        functions = list(functions_of(value))
        for function in functions:
            if function not in (default_collate, default_convert):
                self._add_function(function, stage)
        if stage and not functions:
            self.without_source[stage.name] = why_no_lines(value)

    def _add_function(self, function: FunctionType, stage: Stage | None) -> None:
        self.functions.setdefault(function.__code__, function)
        if stage:
            self.stages.setdefault(function.__code__, stage)


def function_of(value: Any) -> FunctionType | None:
    """Return the Python function behind a callable; None: there is none."""
    for _ in range(10):  # wrappers can be nested
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, (MethodType, staticmethod, classmethod)):
            value = value.__func__
        elif hasattr(type(value), "__wrapped__") or "__wrapped__" in getattr(value, "__dict__", {}):
            value = inspect.unwrap(value)
        else:
            break
    return value if isinstance(value, FunctionType) else None


def functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that do a callable's work: itself, or methods of its class."""
    function = function_of(value)
    if function is not None:
        yield function
        return
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, torch.jit.ScriptModule) or find_ops.is_function(value):
        return
    inherited = "forward" if issubclass(cls, torch.nn.Module) else "__call__"
    own = [name for name in _OF_OPS if name in vars(cls)] or [inherited]
    for name in own:
        function = function_of(inspect.getattr_static(cls, name, None))
        if function is not None:
            yield function


def why_no_lines(value: Any) -> str:
    """Return the reason why a callable has no lines."""
    is_script = isinstance(value, torch.jit.ScriptModule)
    return "compiled by TorchScript" if is_script else "not written in Python"


def functions_with(codes: Iterable[CodeType]) -> dict[CodeType, list[FunctionType]]:
    """Return the functions that run each code: methods, closures, decorated functions.

    Functions that are created for each call are missing.
    """
    wanted = list(codes)
    functions: dict[CodeType, list[FunctionType]] = {}
    with thawed():
        referrers = gc.get_referrers(*wanted)
    for referrer in referrers:
        if isinstance(referrer, FunctionType) and referrer.__code__ in wanted:
            functions.setdefault(referrer.__code__, []).append(referrer)
    return functions


@contextmanager
def thawed() -> Iterator[None]:
    """Make objects visible to `gc` that a training froze before it forked its workers."""
    was_frozen = bool(gc.get_freeze_count())
    if was_frozen:
        if gc.isenabled():
            gc.collect()  # `freeze` below would freeze garbage, too
        gc.unfreeze()
    try:
        yield
    finally:
        if was_frozen:
            gc.freeze()


def qualified(code: CodeType, function: FunctionType | None = None) -> str:
    """Return a function's name with its class; a lambda's with its place."""
    if code.co_name == "<lambda>":
        return f"lambda ({place_of(code)})"
    if function is not None:
        return function.__qualname__
    return getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
