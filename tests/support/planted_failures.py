"""Failures of stallscope's own functions, planted while they run in a training's processes.

All functions are found by looking: a hook that is new is among them without being named here.
"""

import functools
import inspect
import mmap
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import stallscope.hooks
from stallscope.hooks import hot_path, libraries, recording_folder
from stallscope.hooks.event_log import TAGS, Mark, ProcessLog

OURS = [
    *(
        f"stallscope.hooks.{module.name}"
        for module in pkgutil.iter_modules(stallscope.hooks.__path__)
    ),
    "stallscope.run.resource_sampler",
]
"""Modules that run in the processes of a training."""
AROUND = {
    "hot_path.IteratorStandIn.__iter__",
    "hot_path.IteratorStandIn.__next__",
    "iterators.Iterations.batches",
    "probe.Probe.batches",
    "loader_access.DatasetOf.__getitem__",
    "loader_access.StandIn.__getattr__",
    "training_step.stage.__enter__",
    "training_step.stage.__exit__",
    "training_step.stage.__init__",
    "probe.WorkerEntry.__call__",
    "probe.WorkerEntry.__getstate__",
    "probe.WorkerEntry.__setstate__",
}
"""Functions between the user's caller and the user's function; only their callees can fail."""
OF_PYTHON = {"recording_folder.JsonLines.__del__", "find_ops.Ops._forget"}
"""Functions that Python calls when an object dies or at a fork, and whose errors it drops."""
LAST_RESORT = ("recording_folder.Failures.", "recording_folder._text_of")
"""Functions that note failures; they suppress their own."""
HOT = ("at_work", "read_cpu", "enter_batch", "leave", "clock_with_cpu",
       "file", "begin_key", "pixels", "call")  # fmt: skip
"""Functions of the hot path that others call; `sample` encloses the user's."""


class PlantedError(Exception):
    """Failure of a function of ours, with its name."""


def functions() -> dict[str, tuple[Any, str, FunctionType]]:
    """Return every function and method of ours that may fail, with its owner."""
    holders = {}
    for name in OURS:
        module = import_module(name)
        classes = [c for c in vars(module).values() if isinstance(c, type)]
        for owner in [module, *(c for c in classes if c.__module__ == name)]:
            for attribute, value in vars(owner).items():
                ours = isinstance(value, FunctionType) and value.__module__ == name
                written = ours and value.__code__.co_filename.startswith(module.__file__)
                if written and (owner is module or value.__qualname__.startswith(owner.__name__)):
                    called = f"{name.rpartition('.')[2]}.{value.__qualname__}"
                    if called not in AROUND | OF_PYTHON and not called.startswith(LAST_RESORT):
                        holders[called] = owner, attribute, value
    return holders


class Book:
    """Failures to come and past ones, shared with the workers.

    Args:
        path: of the file that it is kept in.
        names: of all functions, the same in each process.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.names = names
        self._numbers = {name: number for number, name in enumerate(names)}
        if not path.exists():
            path.write_bytes(bytes(len(names)))
        with path.open("r+b") as file:
            self._came = mmap.mmap(file.fileno(), 0)

    def fail(self, name: str) -> None:
        number = self._numbers[name]
        if not self._came[number]:
            self._came[number] = 1
            raise PlantedError(name)

    def came(self) -> set[str]:
        return {name for name, number in self._numbers.items() if self._came[number]}

    def rounds(self) -> Iterator[Callable[[], set[str]]]:
        """Yield as long as something fails; each value returns this round's failures."""
        before = None
        while before != (before := self.came()):
            yield lambda earlier=before: self.came() - earlier


def import_libraries() -> None:
    """Import the libraries that have an adapter, where installed, so that it is put on."""
    for library in libraries.ADAPTERS:
        with suppress(ImportError):
            import_module(library)


def import_all() -> None:
    """Import all of stallscope: what is imported while failures are planted would keep them."""
    for module in pkgutil.walk_packages(stallscope.__path__, "stallscope."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


@contextmanager
def planted(path: Path) -> Iterator[Book]:
    """Let each function of ours fail the first time that it is called.

    Args:
        path: of the book that is kept of it.
    """
    ours = functions()
    marks = [f"mark {mark.name}" for mark in Mark]
    book = Book(path, [*ours, *(f"hot_path.{name}" for name in HOT), *marks, "clock", "place"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_folder, "_MOST_KEPT", 1000)
        for called, (owner, name, function) in ours.items():
            failing = _failing(book, called, function)
            for there, known_as in [(owner, name), *_imported(owner, function)]:
                patch.setattr(there, known_as, failing)
        hot = hot_path.hot_path
        patch.setattr(hot_path, "hot_path", lambda *arguments: _failing_hot(book, hot(*arguments)))
        writers = ProcessLog._writers
        patch.setattr(
            ProcessLog, "_writers", lambda *arguments: _failing_marks(book, writers(*arguments))
        )
        original = hot_path.Recorder.__init__
        clock = _failing(book, "clock", hot_path.perf_counter_ns)

        @functools.wraps(original)
        def make(self: Any, log: Any, *_: Any) -> None:
            here = log.here()
            here.place = _failing(book, "place", here.place)
            original(self, log, clock)

        patch.setattr(hot_path.Recorder, "__init__", make)
        yield book


def _failing(book: Book, called: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        book.fail(called)
        return function(*args, **named)

    return call


def _failing_hot(book: Book, hot: dict[str, Any]) -> dict[str, Any]:
    names = {name: f"hot_path.{name}" for name in HOT}
    return hot | {n: _failing(book, label, hot[n]) for n, label in names.items()}


def _failing_marks(book: Book, writers: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Let the first mark of each kind fail: each is written by another hook."""
    mark, put, here = writers

    def failing_mark(what: int, *rest: int) -> None:
        _failing(book, f"mark {Mark(what).name}", mark)(what, *rest)

    def failing_put(key: int) -> None:
        _failing(book, f"mark {Mark(key & TAGS).name}", put)(key)

    return failing_mark, failing_put, here


def _imported(owner: Any, function: Any) -> list[tuple[Any, str]]:
    """Return other places of a module's function."""
    if not inspect.ismodule(owner):
        return []
    ours = [module for name, module in sys.modules.items() if name.startswith("stallscope")]
    return [(m, name) for m in ours for name, value in vars(m).items() if value is function]
