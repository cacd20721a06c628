"""Can a started worker find the user's code? Told in one sentence before the worker fails.

A worker that is not forked imports the dataset's class by its name; what a notebook cell, a
function's body or a lambda defines has no name there. Nothing is pickled to find that out: for
some loaders that takes gigabytes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import TargetError
from stallscope.probe import pipeline
from stallscope.probe.install import start_method

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN_WAYS: Final = {"__reduce__", "__reduce_ex__", "__getstate__"}
"""A class that defines one of these decides itself what is sent to the worker."""


def check_spawnable(loader: Any) -> None:
    """Refuse a loader whose workers cannot find its code.

    Args:
        loader: anything; only one that starts workers by spawn or forkserver can fail.

    Raises:
        TargetError: a dataset, a transform, `collate_fn` or `worker_init_fn` is defined where a
            started worker cannot import it.
    """
    if not getattr(loader, "num_workers", 0) or (method := start_method(loader)) == "fork":
        return
    for role, value in _what_is_sent(loader):
        where = _hidden_place(value)
        if where:
            raise TargetError(
                f"{role} is {where}, and workers started by {method} cannot import it: give the "
                "loader multiprocessing_context='fork' or num_workers=0, or move it to a module "
                "(a .py file)",
            )


def _what_is_sent(loader: Any) -> Iterator[tuple[str, Any]]:
    """Role and value of everything that is sent to a worker and has code of its own."""
    for dataset in pipeline.datasets(getattr(loader, "dataset", None)):
        yield "the dataset", dataset
        if not _has_own_way(type(dataset)):
            yield from _held("the dataset", dataset)
    for role in ("collate_fn", "worker_init_fn"):
        yield role, getattr(loader, role, None)


def _held(role: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """The callables that an object holds, and the ops in the known containers among them."""
    for slot in pipeline.slots(holder):
        yield f"{role}'s {slot.hint}", slot.value
        if pipeline.is_container(slot.value):
            for _, op in _held(role, slot.value):
                yield f"an op of {role}'s {slot.hint}", op


def _hidden_place(value: Any) -> str | None:
    """Where a value's code is defined, in words, when a started worker cannot find it there."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.ismethod(value):
        value = value.__self__
    code = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    name = code.__qualname__
    if _has_own_way(code):
        return None
    if name.endswith("<lambda>"):
        return "a lambda"
    if "<locals>" in name:
        return f"{code.__name__!r}, defined inside a function"
    if code.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        return f"{name!r}, defined in the notebook or the interactive session"
    return None


def _has_own_way(code: Any) -> bool:
    """Whether a class (never a function) has its own idea of what is sent."""
    bases = code.__mro__[:-1] if isinstance(code, type) else ()
    return any(_OWN_WAYS & vars(base).keys() for base in bases)
