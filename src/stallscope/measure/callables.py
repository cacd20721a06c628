"""The Python functions of a pipeline: those that its parts are known by, and those they call.

Only looks. A part without Python code (made in C, compiled) is named, because it has no lines.
"""

from __future__ import annotations

import functools
import gc
import inspect
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate, default_convert

from stallscope.probe import pipeline
from stallscope.stages import COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.data import DataLoader

_ENTRIES: Final = ("__getitems__", "__getitem__", "__iter__")
_OF_OPS: Final = ("__call__", "forward", "transform", "_transform", "apply")
"""Where an op's class does its work; the last three are called by what torchvision's and
albumentations' base classes have in `forward` or `__call__`."""
_DEEPEST: Final = 4


class Parts:
    """The dataset, the ops and the collate function of a loader.

    Args:
        loader: torch's own.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.stages: dict[CodeType, Stage] = {}
        """The stage that a function is known by."""
        self.entries: set[CodeType] = set()
        """Where a sample begins."""
        self.functions: dict[CodeType, FunctionType] = {}
        self.without_source: dict[str, str] = {}
        """Parts that are not made of Python code, and what they are instead."""
        self.homes: set[str] = set()
        """Packages of the user's, as far as is known: those of the datasets."""
        self._seen: set[tuple[int, bool]] = set()
        self._holders: list[Any] = []
        for dataset in pipeline.datasets(loader.dataset):
            self._add_dataset(dataset)
        self._add(loader.collate_fn, COLLATE)

    def holders(self) -> list[Any]:
        """The datasets and the ops: what has attributes that making samples may rebind."""
        return list(self._holders)

    def _add_dataset(self, dataset: Any) -> None:
        self._holders.append(dataset)
        self.homes.add(type(dataset).__module__.partition(".")[0])
        for name in _ENTRIES:
            function = function_of(getattr(type(dataset), name, None))
            if function is not None:
                self._know(function, GETITEM)
                self.entries.add(function.__code__)
        for slot in pipeline.slots(dataset):
            self._add_slot(slot)
        for slot in pipeline.helpers(dataset):
            self._add(slot.value, pipeline.stage_of(slot, gives_way=True))

    def _add_slot(self, slot: pipeline.Slot, depth: int = 0, *, is_stage: bool = True) -> None:
        """Add what stands in a slot: as a stage where it is one for the recorder, too."""
        value = slot.value
        if (id(value), is_stage) in self._seen or depth > _DEEPEST:
            return
        self._seen.add((id(value), is_stage))
        if not pipeline.is_container(value):
            self._add(value, pipeline.stage_of(slot) if is_stage else None)
        if pipeline.is_container(value) or pipeline.is_op(value):
            self._holders.append(value)
            for inner in pipeline.slots(value):
                if not pipeline.is_own_part(value, inner.value):
                    is_op = pipeline.is_container(value) or pipeline.is_inner_op(inner)
                    self._add_slot(inner, depth + 1, is_stage=is_stage and is_op)

    def _add(self, value: Any, stage: Stage | None) -> None:
        functions = list(functions_of(value))
        for function in functions:
            if function not in (default_collate, default_convert):
                self._know(function, stage)
        if stage and not functions:
            self.without_source[stage.name] = what_it_is(value)

    def _know(self, function: FunctionType, stage: Stage | None) -> None:
        self.functions.setdefault(function.__code__, function)
        if stage:
            self.stages.setdefault(function.__code__, stage)


def function_of(value: Any) -> FunctionType | None:
    """The Python function behind what can be called like one; None where there is none."""
    for _ in range(10):  # a wrapper around a wrapper
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
    """The functions in which a callable does its work: itself, or methods of its class."""
    function = function_of(value)
    if function is not None:
        yield function
        return
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, torch.jit.ScriptModule) or pipeline.is_function(value):
        return
    inherited = "forward" if issubclass(cls, torch.nn.Module) else "__call__"
    own = [name for name in _OF_OPS if name in vars(cls)] or [inherited]
    for name in own:
        function = function_of(inspect.getattr_static(cls, name, None))
        if function is not None:
            yield function


def what_it_is(value: Any) -> str:
    """Why a callable has no lines, in words."""
    if isinstance(value, torch.jit.ScriptModule):
        return "compiled by TorchScript"
    return "not written in Python"


def functions_with(codes: Iterable[CodeType]) -> dict[CodeType, list[FunctionType]]:
    """The functions that run each code: methods, closures, what a decorator has hidden.

    A function that is made anew for each call is not among them.
    """
    wanted = list(codes)
    found: dict[CodeType, list[FunctionType]] = {}
    for one in gc.get_referrers(*wanted) if wanted else ():
        if isinstance(one, FunctionType) and one.__code__ in wanted:
            found.setdefault(one.__code__, []).append(one)
    return found


def qualified(code: CodeType, function: FunctionType | None = None) -> str:
    """The name by which a person knows a function: with its class, a lambda with its place."""
    if code.co_name == "<lambda>":
        file = code.co_filename.replace("\\", "/").rpartition("/")[2]
        return f"lambda ({file}:{code.co_firstlineno})"
    if function is not None:
        return function.__qualname__
    return getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
