"""The ops of a user's pipeline: what a dataset holds and its own code calls, found and hooked.

An op is any callable object that a dataset, a container or another op holds; a container
(`Compose`, `RandomApply`, `nn.Sequential`) is not a stage but the place where ops stand.

An op is hooked at its class (`__call__`, or `forward` of an `nn.Module`) and known by its object,
because ops can be built or imported late, and because no container of the user's may hold an
object that is not the user's. Only plain functions have no class to hook: they are replaced in
the slot where they stand. What finds ops only looks, and changes nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

from stallscope.files import INSTALLED
from stallscope.stages import KIND_OF_NAME, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.patches import Patches


_OF_TORCHVISION: Final = ("Compose", "RandomApply", "RandomChoice", "RandomOrder")
CONTAINERS: Final[dict[str, tuple[str, ...]]] = {
    "torchvision.transforms.transforms": _OF_TORCHVISION,
    "torchvision.transforms.v2._container": _OF_TORCHVISION,
    "torchvision.datasets.vision": ("StandardTransform",),
    "torch.nn.modules.container": ("Sequential", "ModuleList", "ModuleDict"),
    "albumentations.core.composition": ("BaseCompose", "Compose"),
    "monai.transforms.compose": ("Compose",),
}
"""Classes of containers, by their module; a subclass counts as its base."""

_FUNCTIONS: Final = (
    *(types.FunctionType, types.MethodType),
    *(functools.partial, types.BuiltinFunctionType),
)
_WHOLE: Final = ("webdataset",)
"""Packages whose stages have an adapter: what these are made of stays in them."""
_MODULE_FIELDS: Final = frozenset(vars(nn.Module()))
_MOST_ITEMS: Final = 2000
"""A dataset may hold a million paths: nobody's pipeline is so long ..."""
_DEEPEST: Final = 3
"""... or so deep."""
_MOST_KEPT: Final = 1000
"""Objects, and slots of plain functions, that are kept until the end of a process."""


class Slot(NamedTuple):
    """A place that holds something callable: `owner.name`, or `owner[name]`."""

    owner: Any
    name: Any
    value: Any
    hint: str
    """Name under which the user knows it: the attribute, the function."""


def kind_of_name(name: str) -> str:
    """Return the kind of stage that a function's name promises; 'other' where it promises none."""
    lower = name.lower()
    return next((kind for kind, pattern in KIND_OF_NAME if pattern.search(lower)), "other")


def is_container(value: Any) -> bool:
    """Return whether this is one of the known containers of ops."""
    return any(cls.__name__ in CONTAINERS.get(cls.__module__, ()) for cls in type(value).__mro__)


def is_function(value: Any) -> bool:
    """Return whether this is code without a class of its own: only its place can be hooked."""
    return isinstance(value, _FUNCTIONS)


def is_op(value: Any) -> bool:
    """Return whether this is a callable object with a class of its own."""
    is_other = is_function(value) or isinstance(value, (type, Dataset, types.ModuleType))
    return callable(value) and not is_other and not (_is_module(value) and is_container(value))


def is_inner_op(slot: Slot) -> bool:
    """Return whether what an op holds is an op again, and no function or layer it is made of."""
    if type(slot.value).__module__.startswith("torch.nn.modules"):
        return is_container(slot.value)
    is_listed = isinstance(slot.owner, (list, tuple, dict)) and not _is_module(slot.value)
    return is_listed or is_container(slot.value) or is_op(slot.value)


def is_own_part(holder: Any, value: Any) -> bool:
    """Return whether a callable is part of its holder: a method, or a library's own piece."""
    if getattr(value, "__self__", None) is holder:
        return True
    part = value if is_function(value) else type(value)
    home = package(getattr(type(holder), "__module__", ""))
    return home in _WHOLE and home == package(getattr(part, "__module__", ""))


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


def package(module: object) -> str:
    """Return the package of a module's name, which may be anything in an object of the user's."""
    return str(module).partition(".")[0]


def datasets(dataset: Any) -> list[Any]:
    """Return the dataset and every dataset in it (Subset, ConcatDataset, a wrapper)."""
    result: dict[int, Any] = {}
    todo = [dataset]
    while todo:
        current = todo.pop()
        if id(current) not in result:
            result[id(current)] = current
            for name, value in dict(own_attributes(current)).items():
                if isinstance(value, Dataset) or name == "dataset":
                    todo.append(value)
                elif name == "datasets" and isinstance(value, (list, tuple)):
                    todo.extend(value)
    return list(result.values())


def slots(holder: Any) -> Iterator[Slot]:
    """Yield every place of an object that holds something callable, lists and dicts included."""
    for name, value in dict(own_attributes(holder)).items():  # which may change meanwhile
        if not (name.startswith("__") or (_is_module(holder) and name in _MODULE_FIELDS)):
            yield from _expand(holder, name, value, str(name))
    if _is_module(holder):
        for name, value in holder._modules.items():
            yield Slot(holder._modules, name, value, name)


def _expand(owner: Any, name: Any, value: Any, hint: str, depth: int = 0) -> Iterator[Slot]:
    if isinstance(value, (list, tuple, dict)) and depth < _DEEPEST and len(value) <= _MOST_ITEMS:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _expand(value, key, inner, hint, depth + 1)
    elif callable(value) and not isinstance(value, type):
        yield Slot(owner, name, value, hint)


def helpers(dataset: Any) -> Iterator[Slot]:
    """Yield functions and methods of the user's own that the dataset's `__getitem__` names.

    Only those whose own name says that they read, decode or transform; the others stay what they
    are, a part of `__getitem__`. What they call in turn is not followed, and neither are functions
    of libraries: those that matter are in `library_calls.py`.
    """
    cls = type(dataset)
    for entry in ("__getitem__", "__getitems__", "__iter__"):
        method = getattr(cls, entry, None)
        code = method and inspect.unwrap(method)
        if not isinstance(code, types.FunctionType) or _is_foreign(code, ""):
            continue
        home = package(code.__module__)
        for name in names_in(code.__code__):
            base = next((base for base in cls.__mro__ if name in vars(base)), None)
            owner = vars(base) if base else code.__globals__
            function = owner.get(name)
            if not isinstance(function, types.FunctionType) or name.startswith("__"):
                continue
            # Its work is done by whoever goes through it or awaits it, and not by the call
            is_late = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
            is_named = kind_of_name(function.__name__) != "other"
            if is_named and not is_late and not _is_foreign(function, home):
                yield Slot(base or code.__globals__, name, function, name)


def stage_of(slot: Slot, *, gives_way: bool = False) -> Stage:
    """Return name and kind of what stands in a slot, by the name that the user gave the slot.

    A name that promises nothing is a transform's, which may be part of one around it.
    """
    kind = kind_of_name(slot.hint)
    is_other = kind in ("transform", "other")
    return Stage(name_of(slot.value), "transform", gives_way) if is_other else Stage(kind, kind)


def name_of(value: Any) -> str:
    """Return the name that a person recognises: a class's, a function's, where a lambda stands."""
    if isinstance(value, functools.partial):
        return name_of(value.func)
    if not is_function(value):
        inner = own_attributes(value).get("lambd")  # torchvision's Lambda
        name = type(value).__name__
        return f"{name}({name_of(inner)})" if is_function(inner) else name
    name = getattr(value, "__name__", type(value).__name__)
    code = getattr(value, "__code__", None)
    return f"lambda ({place_of(code)})" if name == "<lambda>" and code is not None else str(name)


def place_of(code: types.CodeType) -> str:
    """Return the file's name and the line where a function begins."""
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{code.co_firstlineno}"


def own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself; past any `__getattr__` of the user's."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:  # a list, a tuple, a class with slots
        return {}
    return attributes if isinstance(attributes, dict) else {}


def names_in(code: types.CodeType) -> list[str]:
    """Return names that a function and the functions inside it (comprehensions) look up."""
    nested = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [*code.co_names, *(name for inner in nested for name in names_in(inner))]


def _is_foreign(function: types.FunctionType, home: str) -> bool:
    return is_librarys(function.__module__ or "", function.__code__.co_filename, home)


def is_librarys(module: str, file: str, home: str) -> bool:
    """Return whether code is a library's; what lives in the package `home` is the user's."""
    name = package(module)
    is_pythons = not file.endswith(".py") and name in sys.stdlib_module_names  # compiled, or frozen
    return name != home and (is_pythons or bool(INSTALLED.search(file)))


# ---- hooking them --------------------------------------------------------------------------------


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
        for current in datasets(dataset):
            for slot in slots(current):
                with self._failures.within("the ops of a dataset"):
                    self._hook_slot(slot)
            for slot in helpers(current):
                with self._failures.within("the functions of a dataset"):
                    self._hook_function(slot, stage_of(slot, gives_way=True))

    def hook_containers(self) -> None:
        """Hook the known containers' classes that have been imported by now."""
        classes = [
            (name, getattr(sys.modules.get(module), name, None))
            for module, names in CONTAINERS.items()
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
        everything = is_container(holder)
        for slot in slots(holder):
            is_own = is_own_part(holder, slot.value)
            if not is_own and (everything or is_inner_op(slot)):
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
        if is_container(value):
            self._adopt(value)
        elif is_op(value):
            self._hook_op(value, self._placed(stage_of(slot)))
        elif is_function(value):
            self._hook_function(slot, stage_of(slot), quiet=quiet)

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
        return key or self._hook_op(op, Stage(name_of(op), "transform"))

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
        if self._functions == _MOST_KEPT + 1:
            note = "a pipeline is made for each sample: its functions are no longer stages"
            self._recorder.note(note)
        if self._functions > _MOST_KEPT:
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
