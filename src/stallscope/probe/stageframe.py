"""The recorder's frames carry the name of their stage, so that sampled stacks tell it.

Whoever looks at a process from outside (py-spy) sees of a frame its function's name, its file and
its line. So every hook gets a code object of its own, named after the stage: it costs nothing while
the hook runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from stallscope.stages import frame_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.stages import Stage

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def under(stage: Stage, function: _Function) -> _Function:
    """Name the frames of a function of ours after a stage; its `__name__` stays."""
    name = frame_name(stage)
    named = {"co_name": name}
    if sys.version_info >= (3, 11):  # what tracebacks and py-spy show from then on
        named["co_qualname"] = name
    function.__code__ = function.__code__.replace(**named)  # type: ignore[arg-type]
    return function
