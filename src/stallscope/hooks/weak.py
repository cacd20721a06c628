"""What is known of objects while they live: by identity, because a user's class may define `==`.

Hooks that warnings do not see: a `stacklevel` counts the frames that would be there without us.

`warnings.warn(..., stacklevel=2)` names whoever called the function that warns, and prints once for
each such place. A hook around that function would be named instead. Python passes over frames of
its own import system, which it knows by their file's name (`is_internal_frame` in CPython's
Python/_warnings.c, and `_is_internal_frame` in Lib/warnings.py); so the hooks' code objects carry
such a name behind that of their file.

Letting the process that made a worker look into it.

Under Yama's ptrace_scope 1, Ubuntu's default, a process may look only into its own descendants:
py-spy, a sibling of the worker, is refused, unless the worker names an ancestor of py-spy's. See
prctl(2), PR_SET_PTRACER.

The recorder's frames carry the name of their stage, so that sampled stacks tell it.

Whoever looks at a process from outside (py-spy) sees of a frame its function's name, its file and
its line. So every hook gets a code object of its own, named after the stage: it costs nothing while
the hook runs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from stallscope.stages import frame_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.stages import Stage


Known = TypeVar("Known")


class ByIdentity(Generic[Known]):
    """A mapping that holds no object alive and asks none for its hash."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Any], Known]] = {}

    def get(self, thing: Any) -> Known | None:
        """What is known of this very object; None if nothing is."""
        there, known = self._held.get(id(thing), (None, None))
        return known if there is not None and there() is thing else None

    def put(self, thing: Any, known: Known) -> None:
        """Know this of it from now on."""
        number = id(thing)
        self._held[number] = ref(thing, partial(self._forget, number)), known

    def living(self) -> list[Any]:
        """All objects that still live."""
        there = [reference() for reference, _ in list(self._held.values())]
        return [thing for thing in there if thing is not None]

    def _forget(self, number: int, gone: ref[Any]) -> None:
        if number in self._held and self._held[number][0] is gone:
            del self._held[number]


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


_PR_SET_PTRACER: Final = 0x59616D61


def let_creator_attach() -> None:
    """Let the process that created this one attach, and what it starts; does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(Exception):  # a kernel without Yama refuses, which is as good
        # Not getppid(): of a process made by a fork server that is the server.
        creator = multiprocessing.parent_process()
        pid = os.getppid() if creator is None or creator.pid is None else creator.pid
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def under(stage: Stage, function: _Function) -> _Function:
    """Name the frames of a function of ours after a stage; its `__name__` stays."""
    name = frame_name(stage)
    named = {"co_name": name}
    if sys.version_info >= (3, 11):  # what tracebacks and py-spy show from then on
        named["co_qualname"] = name
    function.__code__ = function.__code__.replace(**named)  # type: ignore[arg-type]
    return function
