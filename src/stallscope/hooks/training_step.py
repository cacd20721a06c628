"""What the loop does between two waits: the parts of a step, as marks; and `ss.stage`.

Backward passes and optimizers are seen wherever they run; a module's forward pass where its owner
is known; a user's own part where `ss.stage` names it; garbage collection, when it takes long.
Only what the thread of the loop does counts, and nothing while it waits for a batch.

`ss.stage` may stand in code that is measured or not, in a worker or in the loop, and costs next to
nothing where nobody measures. Light, because every spawned worker imports it.
"""

from __future__ import annotations

import functools
import gc
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stallscope.errors import ArgumentError
from stallscope.hooks.loop_log import Mark
from stallscope.hooks.patches import unseen
from stallscope.stages import BACKWARD, FORWARD, KINDS, OPTIMIZER, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from typing_extensions import Self

    from stallscope.hooks.loop_log import MarkWriter
    from stallscope.hooks.patches import Patches


_OLDEST: Final = 2
"""Collections of younger generations are too many and too short to be told."""


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


class StepParts:
    """Marks the parts of the steps.

    Args:
        marks: where to write.
        is_waiting: whether this thread is waiting for a batch.
        patches: what is changed here comes off with them.
    """

    def __init__(self, marks: MarkWriter, is_waiting: Callable[[], bool], patches: Patches) -> None:
        self._marks = marks
        self._is_waiting = is_waiting
        self._patches = patches
        self._codes: dict[Stage, int] = {}
        self._handles: list[Any] = []

    def put_on(self, modules: Iterable[nn.Module] = ()) -> None:
        """Hook what can be seen.

        Args:
            modules: their forward passes are marked, too.
        """
        backward = torch.autograd.backward
        self._patches.put(torch.autograd, "backward", self._timed(backward, BACKWARD))
        self._handles += [
            register_optimizer_step_pre_hook(self._hook(Mark.BEGIN, OPTIMIZER)),
            register_optimizer_step_post_hook(self._hook(Mark.END, OPTIMIZER)),
        ]
        for module in modules:
            begin, end = self._hook(Mark.BEGIN, FORWARD), self._hook(Mark.END, FORWARD)
            self._handles += [
                module.register_forward_pre_hook(begin),
                module.register_forward_hook(end, always_call=True),
            ]
        gc.callbacks.append(self._collects)
        listeners.append(self)

    def take_off(self) -> None:
        """Leave everything as it was; the patches are undone by their owner."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        if self in listeners:
            listeners.remove(self)

    def begin(self, stage: Stage) -> Callable[[], None] | None:
        """A part of this name begins; returns what to call at its end."""
        if self._is_waiting():
            return None
        code = self._codes.get(stage) or self._code(stage)
        self._marks.mark(Mark.BEGIN, 0, 0, code)
        return functools.partial(self._marks.mark, Mark.END, 0, 0, code)

    def _code(self, stage: Stage) -> int:
        """The number of a stage that is met for the first time."""
        code = self._codes[stage] = len(self._codes) + 1
        self._marks.say(part=code, stage=stage)
        return code

    @unseen
    def _timed(self, original: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **named: Any) -> Any:
            end = self.begin(stage)
            try:
                return original(*args, **named)
            finally:
                if end is not None:
                    end()

        return function

    def _hook(self, mark: Mark, stage: Stage) -> Callable[..., None]:
        """A hook as torch calls it; it must not return anything, which would change the input."""

        def hook(*_: Any) -> None:
            if not self._is_waiting():
                code = self._codes.get(stage) or self._code(stage)
                self._marks.mark(mark, 0, 0, code)

        return hook

    def _collects(self, phase: str, about: dict[str, int]) -> None:
        if about["generation"] >= _OLDEST:
            mark = Mark.COLLECT if phase == "start" else Mark.COLLECTED
            self._marks.mark(mark, 0, about["generation"])
