"""Hooking the ops of a pipeline, so that each is a stage of its own.

An op is hooked at its class (`__call__`, or `forward` of an `nn.Module`) and known by its object,
because ops can be built or imported late, and because no container of the user's may hold an
object that is not the user's. Only plain functions have no class to hook: they are replaced in
the slot where they stand.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from stallscope.hooks import find_ops
from stallscope.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.find_ops import Slot
    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.patches import Patches


_MOST_KEPT: Final = 1000
"""Objects that only a reference of ours can keep known."""
_MOST_FUNCTIONS: Final = 1000
"""Slots of plain functions that are hooked in a process; each is kept until its end."""


class Ops:
    """The ops of one process: which objects they are, and the names of their stages."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder, self._patches, self._failures = recorder, patches, recorder.failures
        self._keys: dict[int, int] = {}
        self._alive: dict[int, Any] = {}  # an id is only good while its object lives
        self._places: dict[str, int] = {}
        self._classes: set[type] = set()
        self._hooks: dict[int, Callable[..., Any]] = {}
        self._functions = 0

    def hook(self, dataset: Any) -> None:
        """Hook all that can be found from a dataset, and every container for what comes late."""
        with self._failures.within("the ops of containers"):
            self.hook_containers()
        for current in find_ops.datasets(dataset):
            for slot in find_ops.slots(current):
                with self._failures.within("the ops of a dataset"):
                    self._hook_slot(slot)
            for slot in find_ops.helpers(current):
                with self._failures.within("the functions of a dataset"):
                    self._hook_function(slot, find_ops.stage_of(slot, gives_way=True))

    def hook_containers(self) -> None:
        """Hook the known containers' classes that have been imported by now."""
        classes = [
            (name, getattr(sys.modules.get(module), name, None))
            for module, names in find_ops.CONTAINERS.items()
            for name in names
        ]
        for name, cls in classes:
            if cls is not None and cls not in self._classes:
                self._classes.add(cls)
                with self._failures.within(f"the ops of {name}"):
                    method = _method_of(cls)
                    hook = self._container(getattr(cls, method))
                    self._put(cls, method, hook, name)

    def _container(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Let a container's own method adopt the ops of a container that was built late."""
        alive, at_work = self._alive, self._recorder.at_work

        @functools.wraps(original)
        def hook(self_: Any, *args: Any, **named: Any) -> Any:
            if id(self_) not in alive:
                with self._failures.within("the ops of what is built late"):
                    if at_work():
                        self._places = {}  # built late, maybe for each sample: named by place in it
                        self._adopt(self_)
            return original(self_, *args, **named)

        return hook

    def _adopt(self, holder: Any) -> None:
        """Hook what a container or an op holds; what a model is made of stays in the model."""
        self._remember(holder)
        everything = find_ops.is_container(holder)
        for slot in find_ops.slots(holder):
            is_own = find_ops.is_own_part(holder, slot.value)
            if not is_own and (everything or find_ops.is_inner_op(slot)):
                self._hook_slot(slot, quiet=not everything)

    def _remember(self, holder: Any) -> None:
        """Know an object by its id, for as long as it lives: it is not kept alive."""
        number = id(holder)
        try:
            self._alive[number] = weakref.ref(holder, lambda _: self._forget(number))
        except TypeError:  # a class with slots; few, so that they cannot fill the memory
            if len(self._alive) < _MOST_KEPT:
                self._alive[number] = holder

    def _forget(self, number: int) -> None:
        self._alive.pop(number, None)
        self._keys.pop(number, None)

    def _hook_slot(self, slot: Slot, *, quiet: bool = False) -> None:
        """Hook what stands in a slot; quiet: what cannot be hooked is part of an op's own work."""
        value = slot.value
        if id(value) in self._alive:
            return
        if find_ops.is_container(value):
            self._adopt(value)
        elif find_ops.is_op(value):
            self._hook_op(value, self._placed(find_ops.stage_of(slot)))
        elif find_ops.is_function(value):
            self._hook_function(slot, find_ops.stage_of(slot), quiet=quiet)

    def _hook_op(self, op: Any, stage: Stage) -> int:
        """Hook the class of an op, and return the key of the op's stage."""
        self._remember(op)
        key = self._keys[id(op)] = self._recorder.key(stage)
        self._adopt(op)
        cls = type(op)
        if cls not in self._classes:
            self._classes.add(cls)
            method = _method_of(cls)
            original = inspect.getattr_static(cls, method, None)
            if isinstance(op, torch.jit.ScriptModule) or not inspect.isfunction(original):
                self._cannot(cls.__name__)  # compiled, made in C, a static method, a descriptor
            else:
                hook = self._recorder.call(original, key, key_of=self._key_of, first=op)
                self._put(cls, method, hook, cls.__name__)
        return key

    def _put(self, owner: Any, name: Any, hook: Any, stage: str) -> None:
        try:
            self._patches.put(owner, name, hook)
        except Exception as error:  # noqa: BLE001 - whatever forbids it, the user's run goes on
            self._cannot(stage)
            if not isinstance(error, (TypeError, AttributeError)):  # as a class in C forbids it
                self._failures.note(f"the stage '{stage}'", error)

    def _cannot(self, stage: str) -> None:
        self._recorder.note(f"{stage} cannot be hooked: its time is part of its caller's")

    def _key_of(self, op: Any) -> int:
        """Return the key of an op whose class is hooked; a new one may be made for each sample."""
        key = self._keys.get(id(op))
        return key or self._hook_op(op, Stage(find_ops.name_of(op), "transform"))

    def _placed(self, stage: Stage) -> Stage:
        """Return the stage with its place, where a pipeline has two ops of one class."""
        if stage.kind != "transform":
            return stage
        place = self._places[stage.name] = self._places.get(stage.name, 0) + 1
        return stage if place == 1 else stage._replace(name=f"{stage.name} #{place}")

    def _hook_function(self, slot: Slot, stage: Stage, *, quiet: bool = False) -> None:
        if isinstance(slot.owner, tuple):
            if not quiet:
                self._cannot(stage.name)
            return
        if any(slot.value is hook for hook in self._hooks.values()):
            return
        self._functions += 1
        if self._functions == _MOST_FUNCTIONS + 1:
            note = "a pipeline is made for each sample: its functions are stages no longer"
            self._recorder.note(note)
        if self._functions > _MOST_FUNCTIONS:
            return
        hook = self._hooks.get(id(slot.value))
        if hook is None:
            timed = self._recorder.call(slot.value, self._recorder.key(self._placed(stage)))
            hook = _looking_like(slot.value, timed)
            self._hooks[id(slot.value)] = hook  # it keeps the function alive
        self._put(slot.owner, slot.name, hook, stage.name)


def _looking_like(original: Any, timed: Callable[..., Any]) -> Callable[..., Any]:
    """Give the recording function the attributes by which code looks into the original."""
    if isinstance(original, functools.partial):
        call = {"__call__": lambda _, *args, **named: timed(*args, **named)}
        kind: Any = type("partial", (functools.partial,), call)
        return kind(original.func, *original.args, **original.keywords)  # type: ignore[no-any-return]
    for name in ("__self__", "__func__"):
        if hasattr(original, name):
            setattr(timed, name, getattr(original, name))
    return timed


def _method_of(cls: type) -> str:
    return "forward" if issubclass(cls, nn.Module) else "__call__"
