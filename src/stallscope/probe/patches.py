"""Putting something in somebody's place for a while, and taking it off without a trace.

Everything that the probe changes, it changes through here: attributes of classes and modules,
items of lists and dicts. What was not there before is deleted again, not set to what it inherited.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """A pile of replacements; they go on in order and come off in the opposite order."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, Any, Any, Any]] = []  # owner, name, old, new
        self._on = True

    def put(self, owner: Any, name: Any, new: Any) -> None:
        """Replace `owner.name`, or `owner[name]` where the owner is a list or a dict.

        Raises:
            TypeError: the owner cannot be changed (a class made in C).
        """
        old = _own(owner, name)
        _put(owner, name, new)
        self._places.append((owner, name, old, new))

    def put_everywhere(self, functions: dict[int, tuple[Any, Any]]) -> None:
        """Replace functions of modules, also where `from module import name` has taken them.

        Args:
            functions: old and new function by the `id` of the old one.
        """
        for owner, name, old in _holders(functions):
            self.put(owner, name, functions[id(old)][1])

    def suspend(self) -> None:
        """Take everything off for now; `resume` puts it back."""
        if self._on:
            self._on = False
            for owner, name, old, _ in reversed(self._places):
                _put(owner, name, old)

    def resume(self) -> None:
        """Put everything back that `suspend` took off."""
        if not self._on:
            self._on = True
            for owner, name, _, new in self._places:
                _put(owner, name, new)

    def undo(self) -> None:
        """Take everything off for good, also where it was imported from in the meantime."""
        self.suspend()
        shared = {id(new): (new, old) for owner, _, old, new in self._places if _is_module(owner)}
        for owner, name, new in _holders(shared) if shared else ():
            _put(owner, name, shared[id(new)][1])
        self._places.clear()
        self._on = True


def _is_module(owner: Any) -> bool:
    return isinstance(owner, ModuleType)


def _holders(functions: dict[int, tuple[Any, Any]]) -> list[tuple[ModuleType, str, Any]]:
    """Every module and name under which one of these very objects can be reached."""
    return [
        (module, name, value)
        for module in list(sys.modules.values())
        if _is_module(module)
        for name, value in list(vars(module).items())
        if id(value) in functions
    ]


def _own(owner: Any, name: Any) -> Any:
    """What the owner itself holds, not what it inherits."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
    if isinstance(owner, list):
        return owner[name]
    return vars(owner).get(name, _ABSENT)


def _put(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, list):
        owner[name] = value
    elif isinstance(owner, dict):
        if value is _ABSENT:
            owner.pop(name, None)
        else:
            owner[name] = value
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
