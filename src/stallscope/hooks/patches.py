"""Putting something in somebody's place for a while, and taking it off without a trace.

Everything that the probe changes, it changes through here: attributes of classes and modules,
slots of objects, items of lists and dicts. A place is only touched while it holds what was left
there: what the user has put there in the meantime stays. Two recordings may share a place, and end
in either order. Threads of the user's may make iterators, and so change places, meanwhile: each
change is made under one lock, and one that comes after the end is none.

A process that is forked while something records must not write into its parent's logs.

Warnings do not see the hooks: `warnings.warn(..., stacklevel=2)` names whoever called the function
that warns, and prints once for each such place, so a hook around that function would be named
instead. Python passes over frames of its own import system, which it knows by their file's name
(`is_internal_frame` in CPython's Python/_warnings.c), so the hooks' code objects carry such a name
behind that of their file. Who looks from outside (py-spy) sees in the name of a hook's frame which
stage is at work; that costs nothing while the hook runs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakSet, ref

from stallscope.stages import frame_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec

    from stallscope.hooks.failures import Failures
    from stallscope.stages import Stage


MARK: Final = " (passed over by warnings, as importlib._bootstrap is)"
"""Behind the file's name in tracebacks."""
_ABSENT: Final = object()
_Function = TypeVar("_Function", bound="Callable[..., Any]")
Known = TypeVar("Known")


@dataclass(eq=False)
class _Layer:
    """One replacement in one place."""

    owner: Any
    name: Any
    old: Any
    new: Any
    on: bool = True

    @property
    def place(self) -> tuple[int, Any]:
        """The same for all layers of one place. A list's items are known by themselves."""
        return id(self.owner), None if isinstance(self.owner, list) else self.name


_layers: dict[tuple[int, Any], list[_Layer]] = {}
"""All layers that are on, by place, the lowest first; over all recordings of this process."""
_lock = threading.RLock()
_TRIES: Final = 6
"""To take everything off at the end: a hook that stays on is worse than a look at all of them."""


def unlock_in_child() -> None:
    """In a forked process: the thread that held the lock is no more."""
    global _lock  # noqa: PLW0603 - a lock cannot be released by another thread
    _lock = threading.RLock()


class Patches:
    """A pile of replacements that go on and come off together.

    Args:
        failures: where is noted what cannot be taken off again.
    """

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures
        self._pile: list[_Layer] = []
        self._undone = False

    def put(self, owner: Any, name: Any, new: Any) -> None:
        """Replace `owner.name`, or `owner[name]` where the owner is a list or a dict.

        After `undo` it does nothing: a thread may come late.

        Raises:
            Exception: the owner cannot be changed (a class made in C, a metaclass that forbids it).
        """
        with _lock:
            if self._undone:
                return
            layer = _Layer(owner, name, _own(owner, name), new)
            _layers.setdefault(layer.place, []).append(layer)
            self._pile.append(layer)  # first: what was put on in part must come off, too
            try:
                _put(owner, name, new)
            except Exception:
                with self._noted("off", layer.name):
                    _take_off(layer)
                raise

    def put_everywhere(self, functions: dict[int, tuple[Any, Any]]) -> None:
        """Replace functions of modules, also where `from module import name` has taken them.

        A place that cannot be changed keeps what it has: whoever calls from there is not seen.

        Args:
            functions: old and new function by the `id` of the old one.
        """
        for owner, name, number in held_in_modules(functions) if functions else ():
            old, new = functions.get(number, (None, None))
            with self._noted("on", name):
                if new is not None and _own(owner, name) is old:
                    self.put(owner, name, new)

    def suspend(self) -> None:
        """Take everything off for now; `resume` puts it back.

        Both run between two batches, over dozens of places: a guard is made where one is needed.
        """
        with _lock:
            for layer in reversed(self._pile):
                if layer.on:
                    try:
                        _take_off(layer)
                    except Exception:
                        with self._noted("off", layer.name):
                            raise

    def resume(self) -> None:
        """Put everything back that `suspend` took off, where nobody has changed the place."""
        with _lock:
            for layer in self._pile:
                if not layer.on:
                    try:
                        if _replace(layer, layer.old, layer.new):
                            layer.on = True
                            _layers.setdefault(layer.place, []).append(layer)
                    except Exception:
                        with self._noted("on", layer.name):
                            raise

    def undo(self) -> None:
        """Take everything off for good, also where it was imported from in the meantime."""
        with _lock:
            self._undone = True
            for _ in range(_TRIES):  # again for what could not be taken off
                with contextlib.suppress(Exception):  # which is noted, if that can be
                    self.suspend()
            # Nearly always all of them are gone by now, and no module has to be looked into
            alive = [(new(), old) for new, old in self._forgotten()]
            shared = {id(new): (new, old) for new, old in alive if new is not None}
            for owner, name, new in _holders(shared) if shared else ():
                with self._noted("off", name):
                    _put(owner, name, shared[id(new)][1])

    def _forgotten(self) -> list[tuple[Callable[[], Any], Any]]:
        """Know no layer any longer; what was in modules, held by nobody here, and what was before.

        A replacement that dies with its layer is under no other name.
        """
        pile, self._pile = self._pile, []
        for layer in pile:
            _forget(layer)  # what cannot be taken off at all only calls its original
        return [(ref(one.new), one.old) for one in pile if isinstance(one.owner, ModuleType)]

    def _noted(self, where: str, name: Any) -> AbstractContextManager[object]:
        """Note what is raised in the block: one place must not keep the others from being changed.

        Args:
            where: on or off.
            name: of the place.
        """
        if self._failures is None:
            return contextlib.suppress(Exception)
        return self._failures.within(f"putting the hook {where} '{name}'")


def _take_off(layer: _Layer) -> None:
    """Take one layer off; one that lies beneath another is taken out from under it."""
    if not layer.on:
        return
    layers = _layers[layer.place]
    above = next((other for other in layers if other.old is layer.new), None)
    if above is not None:
        above.old = layer.old
    else:
        _replace(layer, layer.new, layer.old)
    _forget(layer)


def _forget(layer: _Layer) -> None:
    if layer.on:
        layer.on = False
        layers = _layers[layer.place]
        layers.remove(layer)
        if not layers:
            del _layers[layer.place]


def _replace(layer: _Layer, expected: Any, value: Any) -> bool:
    """Put a value where the expected one is; leave the place alone where it is not."""
    owner, name = layer.owner, layer.name
    if isinstance(owner, list):
        name = next((i for i, item in enumerate(owner) if item is expected), None)
    if name is None or _own(owner, name) is not expected:
        return False
    _put(owner, name, value)
    return True


def beneath(owner: Any, name: str, value: Any) -> Any:
    """What is there in a forked worker: its parent's hooks are taken off in it."""
    pile = _layers.get((id(owner), name))
    return pile[0].old if pile else value


class _Search(NamedTuple):
    """What a look through all modules found."""

    pid: int
    """Of the process that looked."""
    modules: int
    """How many there were."""
    places: list[tuple[ModuleType, str, int]]
    """Module, name there, and the `id` of the function."""


_searched: set[int] = set()
"""The `id` of every function that modules were looked through for."""
_held: dict[int, tuple[int, list[tuple[str, int]]]] = {}
"""By the `id` of a module: how many names it had, and which of them such functions had."""
_last: list[_Search] = []
"""The last look, of which a forked worker needs no other one."""


def held_in_modules(functions: Iterable[int]) -> list[tuple[ModuleType, str, int]]:
    """Every module and name of it that holds a function, by its `id`; maybe also other functions.

    What has no more names than when it was last looked through is not looked through again. A
    worker that is forked takes what its parent has just found: it would copy most of the memory
    that they share, page by page, only by looking (50 ms with what torch imports).

    Args:
        functions: `id` of each.
    """
    wanted = set(functions)
    if not wanted <= _searched:
        _searched.update(wanted)
        _held.clear()
    elif _last and _last[0].pid != os.getpid() and _last[0].modules == len(sys.modules):
        return _last.pop().places
    # As of `beneath`
    layers = [pile[0] for pile in list(_layers.values()) if isinstance(pile[0].owner, ModuleType)]
    found = [(one.owner, one.name, id(one.old)) for one in layers if id(one.old) in _searched]
    for module in list(sys.modules.values()):
        names = _names_in(module)
        size, held = _held.get(id(module), (-1, []))
        if size != len(names) or module is sys.modules.get("__main__"):
            held = [(name, id(one)) for name, one in list(names.items()) if id(one) in _searched]
            _held[id(module)] = len(names), held
        found += [(module, name, number) for name, number in held]
    _last[:] = [_Search(os.getpid(), len(sys.modules), found)]
    return found


def _holders(functions: dict[int, tuple[Any, Any]]) -> list[tuple[ModuleType, str, Any]]:
    """Every module and name under which one of these very objects can be reached."""
    return [
        (module, name, value)
        for module in list(sys.modules.values())
        for name, value in list(_names_in(module).items())
        if id(value) in functions
    ]


def _names_in(module: Any) -> dict[str, Any]:
    """What a module holds; nothing of what only says that it is one.

    cffi (under cryptography, and so under most clients of a cloud) puts objects into `sys.modules`
    that call themselves modules and have no `__dict__`.
    """
    try:
        if not isinstance(module, ModuleType):
            return {}
        # Past any `__getattribute__`: a module that is imported lazily stays so
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        return names if isinstance(names, dict) else {}
    except Exception:  # noqa: BLE001 - of somebody else's object, in somebody else's training
        return {}


def _own(owner: Any, name: Any) -> Any:
    """What the owner itself holds, not what it inherits."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
    if isinstance(owner, list):
        return owner[name]
    return vars(owner).get(name, _ABSENT)


def _put(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, (type, ModuleType)):
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    elif isinstance(owner, list):
        owner[name] = value
    else:  # past any __setattr__ of the user's, such as a frozen dataclass's
        slots = owner if isinstance(owner, dict) else vars(owner)
        if value is _ABSENT:
            slots.pop(name, None)
        else:
            slots[name] = value


in_this_process: WeakSet[Any] = WeakSet()
"""Everything that writes logs in this process; has `failures` and a method `retire(close=...)`."""


def _take_off_in_child() -> None:
    unlock_in_child()
    for writer in list(in_this_process):
        writer.failures.insist(
            "taking the hooks off in a process that was forked",
            functools.partial(writer.retire, close=False),
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_off_in_child)


class ByIdentity(Generic[Known]):
    """A mapping that holds no object alive and asks none for its hash, nor for `==`."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Any], Known]] = {}

    def get(self, thing: Any) -> Known | None:
        """What is known of this very object; None if nothing is."""
        there, known = self._held.get(id(thing), (None, None))
        return known if there is not None and there() is thing else None

    def put(self, thing: Any, known: Known) -> None:
        """Know this of it from now on."""
        number = id(thing)
        self._held[number] = ref(thing, functools.partial(self._forget, number)), known

    def living(self) -> list[Any]:
        """All objects that still live."""
        there = [reference() for reference, _ in list(self._held.values())]
        return [thing for thing in there if thing is not None]

    def _forget(self, number: int, gone: ref[Any]) -> None:
        if number in self._held and self._held[number][0] is gone:
            del self._held[number]


def without(things: list[Any], ours: Any) -> None:
    """Take something of ours out of a list; the others may be the user's, and define `==`."""
    things[:] = [thing for thing in things if thing is not ours]


def unseen(function: _Function) -> _Function:
    """Make warnings pass over a function, and over those that are defined inside of it."""
    function.__code__ = _marked(function.__code__)
    return function


def _marked(code: CodeType) -> CodeType:
    inner = tuple(_marked(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=code.co_filename + MARK, co_consts=inner)


def under(stage: Stage, function: _Function) -> _Function:
    """Name the frames of a function of ours after a stage; its `__name__` stays."""
    name = frame_name(stage)
    named = {"co_name": name}
    if sys.version_info >= (3, 11):  # what tracebacks and py-spy show from then on
        named["co_qualname"] = name
    function.__code__ = function.__code__.replace(**named)  # type: ignore[arg-type]
    return function


@unseen
def around(
    original: Callable[..., Any],
    before: Callable[..., Any],
    after: Callable[[Any, Any, BaseException | None], object] | None,
    failed: Callable[[BaseException], object],
) -> Callable[..., Any]:
    """Make a function that calls ours around somebody's, which is called once whatever ours do.

    Args:
        original: what is called with what comes.
        before: is called with the same; what it returns goes to `after`, None: that is not called.
        after: `(begun, result, error)`, also when the original has raised; then the result is None.
        failed: told what was raised by one of ours.
    """

    @functools.wraps(original)
    def function(*args: Any, **named: Any) -> Any:
        try:
            begun = before(*args, **named)
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            begun = None
            failed(error)
        if begun is None or after is None:
            return original(*args, **named)
        try:
            result = original(*args, **named)
        except BaseException as raised:
            try:
                after(begun, None, raised)
            except Exception as error:  # noqa: BLE001 - as above
                failed(error)
            raise
        try:
            after(begun, result, None)
        except Exception as error:  # noqa: BLE001 - as above
            failed(error)
        return result

    return function


@contextmanager
def once_imported(name: str, do: Callable[[], object]) -> Iterator[None]:
    """Within the block, call something right after a module's first import.

    A script may set `OMP_NUM_THREADS` and the like before it imports torch, and would behave
    differently if torch were there already. So what hooks torch waits until the script imports it.

    Args:
        name: of a top-level package; the call is made at once if it is imported already.
        do: is called at most once, between the import and what follows it; what it raises comes out
            of the import.
    """
    if name in sys.modules:
        do()
        yield
        return
    finder = _Finder(name, do)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)


class _Finder:
    """Stands before Python's own finders until the one module has been looked for."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self._name = name
        self._do = do
        self._looks = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Where the module is, as Python's own finders say, with a loader that calls us.

        Many a library only asks whether it is there, and imports it later or never.
        """
        if name != self._name or self._looks:
            return None
        self._looks = True
        try:
            return self._watched(name)
        except Exception:  # noqa: BLE001 - the finders behind this one say what is wrong, if anything
            return None
        finally:
            self._looks = False

    def _watched(self, name: str) -> ModuleSpec | None:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with suppress(Exception):  # what is ours stops no import
                    del loader.exec_module
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                execute(module)
                self._do()

            loader.exec_module = exec_module
        return spec
