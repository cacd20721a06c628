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

import functools
import importlib.util
import os
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from stallscope.stages import frame_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from importlib.machinery import ModuleSpec

    from stallscope.hooks.recording_folder import Failures
    from stallscope.stages import Stage


MARK: Final = " (passed over by warnings, as importlib._bootstrap is)"
"""Behind the file's name in tracebacks."""
_ABSENT: Final = object()
_Function = TypeVar("_Function", bound="Callable[..., Any]")


@dataclass(eq=False)
class _Layer:
    """One replacement in one place."""

    owner: Any
    name: Any
    old: Any
    new: Any
    on: bool = True


_covered: dict[int, tuple[Any, Any]] = {}
"""Replacements that had something over them at their end, by their `id`; with what they replaced,
which is put back in their stead."""
_lock = threading.RLock()
_TRIES: Final = 6
"""To take everything off at the end: a hook that stays on is worse than a look at all of them."""


class Patches:
    """Replacements, callbacks and the like, which go on and come off together."""

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures
        self._noted = (lambda _: suppress(Exception)) if failures is None else failures.within
        self._pile: list[_Layer] = []
        self._at_end: list[Callable[[], object]] = []
        self._undone = False

    def put(self, owner: Any, name: Any, new: Any) -> None:
        """Replace `owner.name`, or `owner[name]` where the owner is a list or a dict.

        After `undo` it does nothing: a thread may come late. It raises where the owner cannot be
        changed (a class made in C, a metaclass that forbids it).
        """
        with _lock:
            if self._undone:
                return
            layer = _Layer(owner, name, _own(owner, name), new)
            self._pile.append(layer)  # first: what was put on in part must come off, too
            try:
                _put(owner, name, new)
            except Exception:
                layer.on = False
                self._attempt("off", name, partial(_replace, layer, new, layer.old))
                raise

    def put_everywhere(
        self, functions: dict[int, tuple[Any, Any]], modules: list[Any] | None = None
    ) -> None:
        """Replace functions in modules that took them by `from module import name`; None: in all.

        `functions` has the old and the new one by the `id` of the old. A place that cannot be
        changed keeps what it has: whoever calls from there is not seen.
        """
        for owner, name, old in _holders(functions, modules):
            self._attempt("on", name, partial(self.put, owner, name, functions[id(old)][1]))

    def add(self, items: list[Any], item: Any) -> None:
        """Append something of ours to a list of somebody's, such as `gc.callbacks`."""
        self.at_end(partial(without, items, item))
        items.append(item)

    def at_end(self, function: Callable[[], object]) -> None:
        """Call this when everything is taken off."""
        self._at_end.append(function)

    def when_imported(self, module: str, missing: str, hook: Callable[[], object]) -> None:
        """Hook a library that is there; another one when it is imported.

        Where that fails, the run lacks what is `missing`.
        """
        assert self._failures is not None  # noqa: S101 - only recordings wait for imports
        with self._failures.within(missing):
            ends = ExitStack()
            self.at_end(ends.close)
            ends.enter_context(once_imported(module, self._failures.passing(missing, hook)))

    def suspend(self) -> None:
        """Take all replacements off for now; `resume` puts them back."""
        with _lock:
            for layer in reversed(self._pile):
                if layer.on:
                    self._attempt("off", layer.name, partial(_take_off, layer))

    def resume(self) -> None:
        """Put everything back that `suspend` took off, where nobody has changed the place."""
        with _lock:
            for layer in self._pile:
                if not layer.on:
                    self._attempt("on", layer.name, partial(_put_back, layer))

    def undo(self, *, search: bool = True) -> None:
        """Take everything off for good.

        `search` also looks through all modules for hooks that were imported by name meanwhile; a
        worker has no time for that, and ends.
        """
        with _lock:
            self._undone = True
            while self._at_end:
                for _ in range(2):  # which does no harm, and may work where the first has failed
                    self._attempt("off", "a callback", self._at_end[-1])
                self._at_end.pop()
            for _ in range(_TRIES):  # again for what could not be taken off
                with self._noted("removing the hooks"):
                    self.suspend()
            pile, self._pile = self._pile, []
            hooks = {id(each.new): each.old for each in pile if isinstance(each.owner, ModuleType)}
            if search and hooks:
                for owner, name, hook in _holders(hooks):
                    self._attempt("off", name, partial(_put, owner, name, hooks[id(hook)]))

    def _attempt(self, where: str, name: Any, change: Callable[[], object]) -> None:
        """Change a place; one that cannot be changed is noted, and the others are changed."""
        with self._noted(f"putting the hook {where} '{name}'"):
            change()


def _take_off(layer: _Layer) -> None:
    """Take one layer off; another that lies over it takes it out at its own end."""
    if layer.on:
        old, gone = layer.old, []
        while id(old) in _covered:
            gone.append(id(old))
            old = _covered[id(old)][1]
        if _replace(layer, layer.new, old):
            for number in gone:
                del _covered[number]
        else:
            _covered[id(layer.new)] = layer.new, layer.old
    layer.on = False


def _put_back(layer: _Layer) -> None:
    if _replace(layer, layer.old, layer.new):
        _covered.pop(id(layer.new), None)
        layer.on = True


def _replace(layer: _Layer, expected: Any, value: Any) -> bool:
    """Put a value where the expected one is; leave the place alone where it is not."""
    owner, name = layer.owner, layer.name
    if isinstance(owner, list):
        name = next((i for i, item in enumerate(owner) if item is expected), None)
    if name is None or _own(owner, name) is not expected:
        return False
    _put(owner, name, value)
    return True


def _holders(
    functions: Container[int], modules: list[Any] | None = None
) -> list[tuple[ModuleType, str, Any]]:
    return [
        (module, name, value)
        for module in modules or list(sys.modules.values())
        for name, value in list(names_in(module).items())
        if id(value) in functions
    ]


def names_in(module: Any) -> dict[str, Any]:
    """Return the names of a module; of what only says that it is a module, none.

    cffi (under cryptography, and so under most clients of a cloud) puts objects into `sys.modules`
    that call themselves modules and have no `__dict__`.
    """
    with suppress(Exception):  # of somebody else's object, in somebody else's training
        if isinstance(module, ModuleType):
            # Past any `__getattribute__`: a module that is imported lazily stays so
            return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]
    return {}


def _own(owner: Any, name: Any) -> Any:
    """Return what the owner itself holds, not what it inherits."""
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
    global _lock  # noqa: PLW0603 - the thread that held the old one is no more
    _lock = threading.RLock()
    missing = "removing the hooks in a process that was forked"
    for writer in list(in_this_process):
        writer.failures.insist(missing, partial(writer.retire, close=False))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_off_in_child)


def without(things: list[Any], ours: Any) -> None:
    """Take something of ours out of a list; the others may be the user's, and define `==`."""
    things[:] = [value for value in things if value is not ours]


def unseen(function: _Function) -> _Function:
    """Make warnings pass over a function, and over those that are defined inside of it."""
    function.__code__ = _marked(function.__code__)
    return function


def _marked(code: CodeType) -> CodeType:
    inner = (_marked(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=code.co_filename + MARK, co_consts=tuple(inner))


def under(stage: Stage, function: _Function) -> _Function:
    """Name the frames of a function of ours after a stage; its `__name__` stays."""
    # Tracebacks and py-spy show the qualified name from Python 3.11 on
    names = ("co_name", "co_qualname") if sys.version_info >= (3, 11) else ("co_name",)
    named: dict[str, Any] = dict.fromkeys(names, frame_name(stage))
    function.__code__ = function.__code__.replace(**named)
    return function


@unseen
def around(
    original: Callable[..., Any],
    before: Callable[..., Any],
    after: Callable[[Any, Any, BaseException | None], object] | None,
    failures: Failures,
    missing: str,
) -> Callable[..., Any]:
    """Make a function that calls ours around somebody's, which is called once whatever ours do.

    `before` gets the arguments of each call. Unless it returns None, `after` gets what it returned,
    the result (None if the original has raised), and the error. Where ours fail, the run lacks what
    is `missing`.
    """
    begins = failures.passing(missing, before)
    ends = None if after is None else failures.passing(missing, after)

    @functools.wraps(original)
    def function(*args: Any, **named: Any) -> Any:
        begun = begins(*args, **named)
        if begun is None or ends is None:
            return original(*args, **named)
        try:
            result = original(*args, **named)
        except BaseException as raised:
            ends(begun, None, raised)
            raise
        ends(begun, result, None)
        return result

    return function


@contextmanager
def once_imported(name: str, do: Callable[[], object]) -> Iterator[None]:
    """Call something in the block right after a module's first import.

    A script may set `OMP_NUM_THREADS` and the like before it imports torch, and would behave
    differently if torch were there already. So what hooks torch waits until the script imports it.
    If it is there already, the call is made at once. What the call raises comes out of the import.
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


def forget_imports() -> None:
    """Forget the calls of `once_imported` that a forked child has from its parent."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Finder:
    """Stands before Python's own finders until the one module has been looked for."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self._name, self._do, self._looks = name, do, False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return where the module is, as Python's own finders say, with a loader that calls us.

        Many a library only asks whether it is there, and imports it later or never.
        """
        if name != self._name or self._looks:
            return None
        self._looks = True
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                self._watch(spec.loader)
        except Exception:  # noqa: BLE001 - the finders behind this one say what is wrong, if anything
            return None
        finally:
            self._looks = False
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with suppress(Exception):  # what is ours stops no import
                del loader.exec_module
            with suppress(ValueError):
                sys.meta_path.remove(self)
            execute(module)
            self._do()

        loader.exec_module = exec_module
