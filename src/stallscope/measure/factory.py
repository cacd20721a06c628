"""`package.module:factory`: getting at a loader that lives in the user's own code.

Each way in which that can fail has its own sentence, because this is the first thing that a user
types; and an error of the user's code is never mistaken for a wrong name.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType


def is_factory(text: str) -> bool:
    r"""Whether a string has the form `package.module:factory`; `C:\data` and `C:/data` do not."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def find(text: str) -> Any:
    """Import the module and return what the attribute path names, without calling it.

    Raises:
        TargetError: the module or the attribute does not exist, or importing the module failed.
    """
    name, _, path = text.partition(":")
    with importable_here():
        found: Any = _import(name)
        for attribute in path.split("."):
            if not hasattr(found, attribute):
                meant = _meant(attribute, dir(found))
                raise TargetError(f"{text!r}: {_words(found)} has no {attribute!r}{meant}")
            found = getattr(found, attribute)
    return found


def call(factory: Any, text: str) -> Any:
    """What the factory returns when it is called without arguments.

    Raises:
        TargetError: the factory raised; the user's exception is its cause.
    """
    with importable_here():
        try:
            return factory()
        except (Exception, SystemExit) as error:  # SystemExit: argparse, in a notebook
            raise TargetError(
                f"{text!r}, called without arguments, raised {_raised(error)}",
            ) from error


@contextlib.contextmanager
def importable_here() -> Iterator[None]:
    """Modules of the current folder can be imported inside the block, as with `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be a second old, written by a notebook cell
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # what the user's module added to the path stays
            sys.path.remove(here)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = f"; write {name[:-3]!r}, without .py" if name.endswith(".py") else ""
            raise TargetError(
                f"no module {error.name!r}: looked in {str(Path.cwd())!r} and in the installed "
                f"packages{hint}. Change to the folder that holds it, or install it",
            ) from error
        raise TargetError(f"importing your module {name!r} raised {_raised(error)}") from error


def _raised(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _words(found: Any) -> str:
    name = getattr(found, "__name__", None)
    return f"{name!r}" if name else f"the {type(found).__name__}"


def _meant(wrong: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
