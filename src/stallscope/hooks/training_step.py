"""Parts of a step, the loop's work between two waits, as marks; and `ss.stage`.

Backward passes and optimizers are seen wherever they run; a module's forward pass where its owner
is known; a user's own part where `ss.stage` names it; what libraries' trainers call beside the
model (`CALLS`); garbage collection, when it takes long. Only what the thread of the
loop does counts, and nothing while it waits for a batch.

`ss.stage` may stand in code that is measured or not, in a worker or in the loop, and costs next to
nothing where nobody measures. Light, because every spawned worker imports it.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
from contextlib import ContextDecorator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stallscope.errors import ArgumentError
from stallscope.hooks.patches import around
from stallscope.stages import BACKWARD, CHECKPOINT, FORWARD, GARBAGE, KINDS, OPTIMIZER, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from typing_extensions import Self

    from stallscope.hooks.event_log import ProcessLog
    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.iterators import Waits
    from stallscope.hooks.patches import Patches
    from stallscope.hooks.recording_folder import Failures

    _Register = Callable[..., Any]


_OLDEST: Final = 2
"""Collections of younger generations are too many and too short to be told."""

_NAMED: Final = "the parts that ss.stage names"


class LoopCall(NamedTuple):
    """Functions that loops call beside the model."""

    module: str
    holder: str
    """The class in it; empty for functions of the module."""
    names: str
    """A pattern of its methods' names."""
    stage: Stage


_CALLBACKS: Final = Stage("callback code", "other")
_TENSORBOARD: Final = Stage("TensorBoard", "other")
CALLS: Final = (
    LoopCall("torch", "", "save", CHECKPOINT),
    LoopCall("torch.distributed.checkpoint", "", "save|async_save", CHECKPOINT),
    LoopCall("safetensors.torch", "", "save_file", CHECKPOINT),
    LoopCall("transformers.trainer", "Trainer", "_save_checkpoint", CHECKPOINT),
    LoopCall("accelerate.accelerator", "Accelerator", "save_state", CHECKPOINT),
    LoopCall("torch.utils.tensorboard.writer", "SummaryWriter", r"add_\w+|flush", _TENSORBOARD),
    LoopCall("tensorboardX.writer", "SummaryWriter", r"add_\w+|flush", _TENSORBOARD),
    LoopCall("wandb.sdk.wandb_run", "Run", "log", Stage("Weights & Biases", "other")),
    LoopCall("lightning.pytorch.trainer.call", "", "_call_callback_hooks", _CALLBACKS),
    LoopCall("pytorch_lightning.trainer.call", "", "_call_callback_hooks", _CALLBACKS),
    LoopCall("transformers.trainer_callback", "CallbackHandler", "call_event", _CALLBACKS),
    LoopCall("mlflow.tracking.client", "MlflowClient", r"log_\w+", Stage("MLflow", "other")),
)
"""Seen from the import of their module on, in the loop's own thread."""


listeners: list[Recorder | StepParts] = []
"""All that measure in this process: `begin` returns what to call at the end of a named part in this
thread, if it is seen. The one that hears first takes the part."""


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
        self._ends: list[Callable[[], object] | None] = []

    def _recreate_cm(self) -> Self:
        return type(self)(self._stage.name, self._stage.kind)  # one for each call of the function

    def __enter__(self) -> Self:
        end = None
        for listener in listeners:
            end = listener.failures.passing(_NAMED, listener.begin)(self._stage)
            if end is not None:
                end = listener.failures.passing(_NAMED, end)
                break
        self._ends.append(end)
        return self

    def __exit__(self, *_: object) -> None:
        end = self._ends.pop()
        if end is not None:
            end()


class StepParts:
    """Marks the parts of the steps; what a thread does while it waits for a batch is none."""

    def __init__(self, marks: ProcessLog, waits: Waits, patches: Patches) -> None:
        self._marks, self._waits, self._patches = marks, waits, patches
        self.failures = marks.failures

    def put_on(self, modules: Iterable[nn.Module]) -> None:
        """Hook what can be seen, and the forward passes of these modules."""
        with self.failures.within("the backward passes"):
            backward = self._timed(torch.autograd.backward, BACKWARD)
            self._patches.put(torch.autograd, "backward", backward)
        with self.failures.within("the steps of the optimizers"):
            before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
            self._register(OPTIMIZER, before, after)
        for module in modules:
            with self.failures.within("the forward passes"):
                after = partial(module.register_forward_hook, always_call=True)
                self._register(FORWARD, module.register_forward_pre_hook, after)
        for call in CALLS:
            self._patches.when_imported(
                call.module, call.stage.name, partial(self._see_calls, call)
            )
        on_garbage = garbage_callback(partial(self._marks.begin, GARBAGE), self.failures)
        self._patches.add(gc.callbacks, on_garbage)
        self._patches.add(listeners, self)

    def _register(
        self, stage: Stage, before: Callable[..., Any], after: Callable[..., Any]
    ) -> None:
        """Give torch hooks, which must not return anything: that would change the input."""
        missing = f"the parts of a step called '{stage.name}'"
        handles: list[Any] = []
        self._patches.at_end(lambda: [handle.remove() for handle in handles])
        for register, key in zip((before, after), self._marks.part(stage), strict=True):
            handles.append(register(self.failures.passing(missing, partial(self._put, key))))

    def _put(self, key: int, *_: object) -> None:
        """Write the begin or end of a part, unless this thread waits for a batch."""
        if not self._waits.stack:
            self._marks.put(key)

    def _see_calls(self, call: LoopCall) -> None:
        owner: Any = sys.modules[call.module]
        owner = getattr(owner, call.holder) if call.holder else owner
        for name in filter(re.compile(call.names).fullmatch, list(vars(owner))):
            function = vars(owner)[name]
            if inspect.isfunction(function):
                self._patches.put(owner, name, self._timed(function, call.stage))

    def begin(self, stage: Stage) -> Callable[[], object] | None:
        """Begin a part of this name, and return what to call at its end."""
        return None if self._waits.stack else self._marks.begin(stage)

    def _timed(self, original: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        return around(
            original,
            lambda *_, **__: self.begin(stage),
            lambda end_part, *_: end_part(),
            self.failures,
            f"the {stage.name} passes",
        )


def garbage_callback(
    begin: Callable[[], Callable[[], object] | None], failures: Failures
) -> Callable[..., None]:
    """Return a callback of `gc`: each collection of the oldest objects is a part or a stage.

    `begin` begins it, and returns what to call at its end; None: it is not recorded.
    """
    begun: list[Callable[[], object] | None] = []

    def collects(phase: str, about: dict[str, int]) -> None:
        if about["generation"] < _OLDEST:
            return
        if phase == "start":
            begun.append(begin())
        elif begun and (end := begun.pop()) is not None:
            end()

    return failures.passing("the collection of garbage", collects)
