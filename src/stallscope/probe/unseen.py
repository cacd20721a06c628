"""Hooks that warnings do not see: a `stacklevel` counts the frames that would be there without us.

`warnings.warn(..., stacklevel=2)` names whoever called the function that warns, and prints once for
each such place. A hook around that function would be named instead. Python passes over frames of
its own import system, which it knows by their file's name (`is_internal_frame` in CPython's
Python/_warnings.c, and `_is_internal_frame` in Lib/warnings.py); so the hooks' code objects carry
such a name behind that of their file.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

MARK: Final = " (passed over by warnings, as importlib._bootstrap is)"
"""Behind the file's name in tracebacks."""


def unseen(function: _Function) -> _Function:
    """Make warnings pass over a function, and over those that are defined inside of it."""
    function.__code__ = _marked(function.__code__)
    return function


def _marked(code: CodeType) -> CodeType:
    inner = tuple(_marked(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=code.co_filename + MARK, co_consts=inner)
