"""`ss.stage`: the user's own name for a part of the training step or of `__getitem__`.

It may stand in code that is measured or not, in a worker or in the loop, and costs next to nothing
where nobody measures. Light, because every spawned worker imports it.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Protocol

from stallscope.errors import ArgumentError
from stallscope.stages import KINDS, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


class Listener(Protocol):
    """Somebody who measures in this process."""

    def begin(self, stage: Stage) -> Callable[[], None] | None:
        """A named part begins in this thread; returns what to call at its end, if it is seen."""


listeners: list[Listener] = []
"""All that measure in this process; the one that hears first takes the part."""


class stage(ContextDecorator):  # noqa: N801 - used like a function: `with ss.stage("logging"):`
    """Names a part of the step, or of a dataset's `__getitem__`, in everything that is recorded.

    Args:
        name: as the tables are to show it.
        kind: one of the kinds of stages; "other" by default.

    Raises:
        ArgumentError: there is no such kind, or the name is no text.

    Examples:
        `with ss.stage("logging"): writer.add_scalar("loss", loss.item())`, or `@ss.stage("parse")`
        above a function.
    """

    def __init__(self, name: str, kind: str = "other") -> None:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"stage({name!r}): give a name")
        if kind not in KINDS:
            raise ArgumentError(f"stage(kind={kind!r}): give one of {', '.join(KINDS)}")
        self._stage = Stage(name, kind)
        self._ends: list[Callable[[], None] | None] = []

    def _recreate_cm(self) -> Self:
        return type(self)(self._stage.name, self._stage.kind)  # one for each call of the function

    def __enter__(self) -> Self:
        heard = (listener.begin(self._stage) for listener in listeners)
        self._ends.append(next((end for end in heard if end is not None), None))
        return self

    def __exit__(self, *_: object) -> None:
        end = self._ends.pop()
        if end is not None:
            end()
