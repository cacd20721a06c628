"""Driving line_profiler, so that nothing of it is left on anything.

line_profiler wraps nothing here, but it knows a function by its bytecode, which it makes unique:
it gives the function a code object with some no-ops behind its end. That is taken back. While it
is on it holds `sys.settrace` (up to Python 3.11) or the profiler's place of `sys.monitoring`; it
puts back what was there, so a debugger or a coverage tool only misses what happens meanwhile.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from line_profiler import LineProfiler

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FunctionType


class LineTime(NamedTuple):
    """A line that ran."""

    code: CodeType
    """Whose, as the user's function has it."""
    line: int
    hits: int
    time_s: float


class LineTimer:
    """Times the lines of functions in this thread.

    Args:
        functions: those; several may share one code object, as closures do.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self._functions = list(functions)
        self._before = [function.__code__ for function in self._functions]
        self._profiler = LineProfiler()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Know the functions for the length of the block; afterwards they are what they were."""
        try:
            with held_back():
                for function in self._functions:
                    self._profiler.add_function(function)
            yield
        finally:
            with held_back():
                self._profiler.disable_by_count()  # an exception may have come while it was on
                for function, code in zip(self._functions, self._before, strict=True):
                    function.__code__ = code

    @contextmanager
    def on(self) -> Iterator[None]:
        """Time lines for the length of the block."""
        if not self._functions:
            yield
            return
        try:
            with held_back():  # on and counted as on, or neither
                self._profiler.enable_by_count()
            yield
        finally:
            with held_back():
                self._profiler.disable_by_count()

    def times(self) -> list[LineTime]:
        """All lines that have run by now."""
        stats = self._profiler.get_stats()
        places: dict[tuple[str, int, str], CodeType] = {}
        for code in self._before:
            places.setdefault(_place(code), code)
        return [
            LineTime(places[file, first, name.rpartition(".")[2]], line, hits, ticks * stats.unit)
            for (file, first, name), entries in stats.timings.items()
            for line, hits, ticks in entries
        ]


def _place(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name
