"""`package.module:factory`: a loader in the user's own code.

A factory is the first thing that a user types, so each failure has its own sentence, and an error
of the user's code is never reported as a wrong name.

A worker that is not forked imports the dataset's class by its name. Lambdas and classes of a
notebook cell or a function's body cannot be imported, which is reported before the worker fails.
The check pickles nothing: for some loaders pickling takes gigabytes.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import TargetError
from stallscope.hooks import find_ops
from stallscope.hooks.loader_access import start_method, value_of
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


_OWN_PICKLING: Final = {"__reduce__", "__reduce_ex__", "__getstate__"}
"""Methods by which a class customises its pickling."""


_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_factory(text: str) -> bool:
    r"""Recognise the form `package.module:factory`; `C:\data` and `C:/data` are paths."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def is_address(text: str) -> bool:
    r"""Recognise an address, such as `s3://bucket`; `C:\data` and `C:/data` are paths."""
    return bool(_ADDRESS.match(text))


def names_code(text: str) -> bool:
    """Return True for code to import and call, False for a file with such a name."""
    return is_factory(text) and not Path(text).exists()


def find(text: str) -> Any:
    """Import the module and return what the attribute path names, without calling it.

    Raises:
        TargetError: the module or the attribute does not exist, or importing the module failed.
    """
    name, _, path = text.partition(":")
    with importable_here():
        value: Any = _import(name)
        for attribute in path.split("."):
            if not hasattr(value, attribute):
                matches = difflib.get_close_matches(attribute, dir(value), n=1)
                hint = f"; did you mean {matches[0]!r}?" if matches else ""
                holder = getattr(value, "__name__", None)
                owner = f"{holder!r}" if holder else f"the {type(value).__name__}"
                raise TargetError(f"{text!r}: {owner} has no {attribute!r}{hint}")
            value = getattr(value, attribute)
    return value


def call(factory: Any, text: str) -> Any:
    """Call a factory without arguments.

    Raises:
        TargetError: the factory raised; the user's exception is its cause.
    """
    with importable_here():
        try:
            return factory()
        except (Exception, SystemExit) as error:  # SystemExit: argparse, in a notebook
            raise TargetError(
                f"{text!r}, called without arguments, raised {_raised(error)}"
            ) from error


@contextlib.contextmanager
def importable_here() -> Iterator[None]:
    """Make modules of the current folder importable inside the block, as with `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()  # a notebook cell may have written the file a second ago
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # entries that the user's module added stay
            sys.path.remove(here)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = f"; write {name[:-3]!r}, without .py" if name.endswith(".py") else ""
            raise TargetError(
                f"no module {error.name!r}: looked in {str(Path.cwd())!r} and in the installed "
                f"packages{hint}. Change to the folder that holds it, or install it"
            ) from error
        raise TargetError(f"importing your module {name!r} raised {_raised(error)}") from error


def _raised(error: BaseException) -> str:
    message = said_by(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_ours(frame.filename)]
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen ") or Path(file) in {Path(__file__), Path(importlib.__file__)}


def check_spawnable(loader: Any) -> None:
    """Refuse a loader whose workers cannot import its code.

    Raises:
        TargetError: a dataset, a transform, `collate_fn` or `worker_init_fn` is defined where a
            started worker cannot import it.
    """
    if not value_of(loader, "num_workers") or (method := start_method(loader)) == "fork":
        return
    for role, value in _sent_parts(loader):
        place = _hidden_place(value)
        if place:
            raise TargetError(
                f"{role} is {place}, and workers started by {method} cannot import it: give the "
                "loader multiprocessing_context='fork' or num_workers=0, or move it to a module "
                "(a .py file)"
            )


def _sent_parts(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield role and value of each part with code that is sent to a worker."""
    for dataset in find_ops.datasets(value_of(loader, "dataset")):
        yield "the dataset", dataset
        if not _has_own_pickling(type(dataset)):
            yield from _callables("the dataset", dataset)
    for role in ("collate_fn", "worker_init_fn"):
        yield role, value_of(loader, role)


def _callables(role: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the callables in an object's attributes, and the ops in known containers."""
    for slot in find_ops.slots(holder):
        yield f"{role}'s {slot.hint}", slot.value
        if find_ops.is_container(slot.value):
            for _, op in _callables(role, slot.value):
                yield f"an op of {role}'s {slot.hint}", op


def _hidden_place(value: Any) -> str | None:
    """Return the place of a value's code, if a started worker cannot import the code from there."""
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.ismethod(value):
        value = value.__self__
    code = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    qualname = code.__qualname__
    if _has_own_pickling(code):
        return None
    if qualname.endswith("<lambda>"):
        return "a lambda"
    if "<locals>" in qualname:
        return f"{code.__name__!r}, defined inside a function"
    if code.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        return f"{qualname!r}, defined in the notebook or the interactive session"
    return None


def _has_own_pickling(code: Any) -> bool:
    """Return True for a class (never a function) that customises its pickling."""
    bases = code.__mro__[:-1] if isinstance(code, type) else ()
    return any(_OWN_PICKLING & vars(base).keys() for base in bases)
