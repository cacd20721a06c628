"""What the loop does between two waits: the parts of a step, as marks; and `ss.stage`.

Backward passes and optimizers are seen wherever they run; a module's forward pass where its owner
is known; a user's own part where `ss.stage` names it; what libraries' trainers call beside the
model (`CALLS`, `CALLBACKS`); garbage collection, when it takes long. Only what the thread of the
loop does counts, and nothing while it waits for a batch.

`ss.stage` may stand in code that is measured or not, in a worker or in the loop, and costs next to
nothing where nobody measures. Light, because every spawned worker imports it.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
from contextlib import ContextDecorator, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stallscope.errors import ArgumentError
from stallscope.hooks.event_log import kept_apart
from stallscope.hooks.patches import ByIdentity, around, once_imported, unseen, without
from stallscope.stages import BACKWARD, CHECKPOINT, FORWARD, GARBAGE, KINDS, OPTIMIZER, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from typing_extensions import Self

    from stallscope.hooks.event_log import ProcessLog
    from stallscope.hooks.failures import Failures
    from stallscope.hooks.iterators import Waits
    from stallscope.hooks.patches import Patches


_OLDEST: Final = 2
"""Collections of younger generations are too many and too short to be told."""

_NAMED: Final = "the parts that ss.stage names"


class LoopCall(NamedTuple):
    """What loops call beside the model."""

    module: str
    holder: str
    """The class in it; empty for functions of the module."""
    names: str
    """A pattern of its methods' names."""
    stage: Stage


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
    LoopCall("mlflow.tracking.client", "MlflowClient", r"log_\w+", Stage("MLflow", "other")),
)
"""Seen from the import of their module on, in the loop's own thread."""
CALLBACKS: Final = (
    ("lightning.pytorch.trainer.call", "", "_call_callback_hooks"),
    ("pytorch_lightning.trainer.call", "", "_call_callback_hooks"),
    ("transformers.trainer_callback", "CallbackHandler", "call_event"),
)
"""What calls all callbacks of a trainer: its first argument has them in `callbacks`. Each of their
own methods `on_...` is a part that has the name of their class."""


class Listener(Protocol):
    """Somebody who measures in this process."""

    failures: Failures

    def begin(self, stage: Stage) -> Callable[[], object] | None:
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
        self._ends: list[tuple[Listener, Callable[[], object]] | None] = []

    def _recreate_cm(self) -> Self:
        return type(self)(self._stage.name, self._stage.kind)  # one for each call of the function

    def __enter__(self) -> Self:
        begun = None
        for listener in listeners:
            end = None
            try:
                end = listener.begin(self._stage)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                listener.failures.note(_NAMED, error)
            if end is not None:
                begun = listener, end
                break
        self._ends.append(begun)
        return self

    def __exit__(self, *_: object) -> None:
        begun = self._ends.pop()
        if begun is not None:
            listener, end = begun
            try:
                end()
            except Exception as error:  # noqa: BLE001 - as above
                listener.failures.note(_NAMED, error)


class StepParts:
    """Marks the parts of the steps.

    Args:
        marks: where to write.
        waits: what this thread does while it waits for a batch is no part of a step.
        patches: what is changed here comes off with them.
    """

    def __init__(self, marks: ProcessLog, waits: Waits, patches: Patches) -> None:
        self._marks = marks
        self._waits = waits
        self._patches = patches
        self.failures = marks.failures
        self._keys: dict[Stage, tuple[int, int]] = {}
        self._named: dict[Stage, tuple[int, Callable[[], object]]] = {}
        self._handles: list[Any] = []
        self._imports = ExitStack()
        self._classes: set[type] = set()
        self._callbacks: ByIdentity[bool] = ByIdentity()
        self._on_garbage = self.failures.passing("the collection of garbage", self._collects)

    def put_on(self, modules: Iterable[nn.Module] = ()) -> None:
        """Hook what can be seen.

        Args:
            modules: their forward passes are marked, too.
        """
        with self.failures.within("the backward passes"):
            backward = self._timed(torch.autograd.backward, BACKWARD)
            self._patches.put(torch.autograd, "backward", backward)
        with self.failures.within("the steps of the optimizers"):
            begin, end = self._hooks(OPTIMIZER)
            self._handles.append(register_optimizer_step_pre_hook(begin))
            self._handles.append(register_optimizer_step_post_hook(end))
        for module in modules:
            with self.failures.within("the forward passes"):
                begin, end = self._hooks(FORWARD)
                self._handles.append(module.register_forward_pre_hook(begin))
                self._handles.append(module.register_forward_hook(end, always_call=True))
        for call in CALLS:
            self._once(call.module, call.stage.name, partial(self._see_calls, call))
        for trainer, holder, name in CALLBACKS:
            hook = partial(self._see_trainer, trainer, holder, name)
            self._once(trainer, "the callbacks of trainers", hook)
        gc.callbacks.append(self._on_garbage)
        listeners.append(self)

    def take_off(self) -> None:
        """Leave everything as it was; the patches are undone by their owner."""
        without(gc.callbacks, self._on_garbage)
        without(listeners, self)
        self._imports.close()
        for handle in self._handles:
            with self.failures.within("taking the hooks off optimizers and modules"):
                handle.remove()
        self._handles.clear()

    def _once(self, module: str, missing: str, hook: Callable[[], object]) -> None:
        """Hook a library that is there; another one when it is imported."""
        with self.failures.within(missing):
            wait = once_imported(module, self.failures.passing(missing, hook))
            self._imports.enter_context(wait)

    def _see_calls(self, call: LoopCall) -> None:
        owner, is_called = _holder(call.module, call.holder), re.compile(call.names).fullmatch
        for name in filter(is_called, list(vars(owner))):  # thousands, in torch
            function = vars(owner)[name]
            if inspect.isfunction(function):
                self._patches.put(owner, name, self._timed(function, call.stage))

    def _see_trainer(self, module: str, holder: str, name: str) -> None:
        """Look at a trainer's callbacks whenever they are about to be called."""
        owner = _holder(module, holder)

        def look(trainer: Any, *_: Any, **__: Any) -> None:
            model = getattr(trainer, "lightning_module", None)
            for callback in trainer.callbacks if model is None else [*trainer.callbacks, model]:
                if self._callbacks.get(callback):
                    continue
                with suppress(TypeError):  # nothing can refer to it weakly
                    self._callbacks.put(callback, known=True)
                called = type(callback).__name__
                called = called if callback is not model else f"hooks of {called}"
                if type(callback) not in self._classes:
                    self._see_callback(type(callback), called)
                self._see_functions(callback, called)

        failed = partial(self.failures.note, "the callbacks of trainers")
        self._patches.put(owner, name, around(vars(owner)[name], look, None, failed))

    def _see_callback(self, cls: type, called: str) -> None:
        """Make what a class of callbacks does a part; what it inherits from the library's is none.

        Every trainer calls all methods of all callbacks: most are the empty ones of the base class.

        Args:
            cls: the class.
            called: the name of the part.
        """
        self._classes.add(cls)
        if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return
        stage = self._stage_of(called)
        base = next((one for one in reversed(cls.__mro__) if hasattr(one, "on_train_end")), cls)
        for name in dir(cls):
            function = inspect.getattr_static(cls, name)
            own = function is not inspect.getattr_static(base, name, None)
            if name.startswith("on_") and own and inspect.isfunction(function):
                self._patches.put(cls, name, self._timed(function, stage))

    def _see_functions(self, callback: Any, called: str) -> None:
        """Make the functions that a callback was given a part, as Lightning's `LambdaCallback` is.

        Only those without a name of their own: one that has a name can be pickled, and could not be
        with a hook around it, where a trainer that spawns processes takes its callbacks along.
        """
        for name, function in list(getattr(callback, "__dict__", {}).items()):
            if not name.startswith("on_") or not inspect.isfunction(function):
                continue
            if "<" in function.__qualname__:  # <lambda>, <locals>
                stage = self._stage_of(called)
                self._patches.put(callback, name, self._timed(function, stage))

    def _stage_of(self, called: str) -> Stage:
        return kept_apart(Stage(called, "other"), self._keys, lambda _: None)

    def begin(self, stage: Stage) -> Callable[[], object] | None:
        """A part of this name begins; returns what to call at its end."""
        if self._waits.stack:
            return None
        key, end = self._named.get(stage) or self._name(stage)
        self._marks.put(key)
        return end

    def _name(self, stage: Stage) -> tuple[int, Callable[[], object]]:
        """The key of a part that `begin` is asked for, and what ends it."""
        stage = kept_apart(stage, self._named, lambda sentence: self._marks.say(note=sentence))
        begin, end = self._part(stage)
        named = self._named[stage] = begin, partial(self._marks.put, end)
        return named

    def _part(self, stage: Stage) -> tuple[int, int]:
        if stage not in self._keys:
            self._keys[stage] = self._marks.part(stage)
        return self._keys[stage]

    @unseen
    def _timed(self, original: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        """Mark each call: one function of ours, as those of `hooks.iterators`."""
        waits, put, (begin, end) = self._waits, self._marks.put, self._part(stage)
        failed = partial(self.failures.note, f"the {stage.name} passes")

        @functools.wraps(original)
        def hook(*args: Any, **named: Any) -> Any:
            begun = False
            try:
                if not waits.stack:
                    put(begin)
                    begun = True
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                failed(error)
            try:
                return original(*args, **named)
            finally:
                if begun:
                    try:
                        put(end)
                    except Exception as error:  # noqa: BLE001 - as above
                        failed(error)

        return hook

    def _hooks(self, stage: Stage) -> tuple[Callable[..., None], Callable[..., None]]:
        """Make the hooks at both ends of a part, as torch calls them.

        They must not return anything, which would change the input.
        """
        waits, put = self._waits, self._marks.put
        failed = partial(self.failures.note, f"the parts of a step called '{stage.name}'")

        def hook(key: int, *_: Any) -> None:
            try:
                if not waits.stack:
                    put(key)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                failed(error)

        begin, end = self._part(stage)
        return partial(hook, begin), partial(hook, end)

    def _collects(self, phase: str, about: dict[str, int]) -> None:
        if about["generation"] >= _OLDEST:
            begin, end = self._part(GARBAGE)
            self._marks.put(begin if phase == "start" else end)


def _holder(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name) if name else sys.modules[module]
