"""`package.module:factory`: a loader in the user's own code.

A factory is the first thing that a user types, so each failure has its own sentence, and an error
of the user's code is never reported as a wrong name.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import TargetError
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


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

    A `TargetError` says what does not exist, or that importing the module failed.
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
    """Call a factory without arguments; what it raises is the cause of a `TargetError`."""
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
