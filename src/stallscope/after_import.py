"""Doing something as soon as a package is imported, rather than importing it now.

A script may set `OMP_NUM_THREADS` and the like before it imports torch; if torch were there already
the script would behave differently. So what hooks torch waits until the script imports it.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType


@contextmanager
def once_imported(name: str, do: Callable[[], object]) -> Iterator[None]:
    """Within the block, call something right after a module's first import.

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
        finder.go()


class _Finder:
    """Stands before Python's own finders until the one module has been looked for."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self._name = name
        self._do = do
        self._looks = False

    def go(self) -> None:
        """Take this off again."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

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
                self.go()
                execute(module)
                self._do()

            loader.exec_module = exec_module
        return spec
