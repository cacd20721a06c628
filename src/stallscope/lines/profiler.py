"""Driving line_profiler over a loader's samples, so that nothing of it is left on anything.

line_profiler wraps nothing here, but it knows a function by its bytecode, which it makes unique:
it gives the function a code object with some no-ops behind its end. That is taken back. While it
is on it holds `sys.settrace` (up to Python 3.11) or the profiler's place of `sys.monitoring`; it
puts back what was there, so a debugger or a coverage tool only misses what happens meanwhile.

Samples are made in this process, in batches smaller than the loader's, as a comparison needs
several. A tree of calls from `sys.setprofile` tells which functions are worth a closer look and
divides a function's time among the lines that call it; its times are rough and shown to nobody.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import tokenize
from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from line_profiler import LineProfiler
from torch.utils.data import BatchSampler, DataLoader

from stallscope.errors import TargetError
from stallscope.interrupts import held_back
from stallscope.loops.cached_loaders import GoingOn, OverAndOver, copy_of, is_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType, FunctionType

    from stallscope.stages import Stage


class LineTime(NamedTuple):
    """A line that ran."""

    code: CodeType
    """Whose, as the user's function has it."""
    line: int
    hits: int
    time_s: float


class LineTimer:
    """Times the lines of functions in this thread; several may share one code, as closures do."""

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
        places = {
            (code.co_filename, code.co_firstlineno, code.co_name): code
            for code in reversed(self._before)
        }
        return [
            LineTime(places[file, first, name.rpartition(".")[2]], line, hits, ticks * stats.unit)
            for (file, first, name), entries in stats.timings.items()
            for line, hits, ticks in entries
        ]


class CallNode:
    """A function as it is called along one way, by a line of its caller; the root has no code."""

    __slots__ = ("children", "code", "line", "module", "ns")

    def __init__(self, code: CodeType | None = None, line: int = 0, module: str = "") -> None:
        self.code = code
        self.line = line
        self.module = module
        self.ns = 0
        self.children: dict[tuple[int, CodeType], CallNode] = {}


class CallTime(NamedTuple):
    """Part of a function's time: what it spends in calls from one line of another."""

    caller: CodeType
    line: int
    code: CodeType
    share: float


class CallTree:
    """The functions that ran while it watched."""

    def __init__(self) -> None:
        self.root = CallNode()
        self._stack: list[tuple[CallNode, int]] = []
        self._on = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread for the length of the block; another profiler is put back."""
        before = sys.getprofile()
        self._stack = [(self.root, perf_counter_ns())]
        try:
            sys.setprofile(self._event)
            self._on = True
            yield
        finally:
            self._on = False  # what follows is no part of the samples
            with held_back():
                sys.setprofile(before)
                self.root.ns += perf_counter_ns() - self._stack[0][1]

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._on:
            return
        stack = self._stack
        if event == "call":
            code, back = frame.f_code, frame.f_back
            key = (0 if back is None else back.f_lineno or 0, code)
            parent = stack[-1][0]
            node = parent.children.get(key)
            if node is None:
                module = str(frame.f_globals.get("__name__", ""))
                node = parent.children[key] = CallNode(code, key[0], module)
            stack.append((node, perf_counter_ns()))
        elif event == "return" and len(stack) > 1 and stack[-1][0].code is frame.f_code:
            node, began_ns = stack.pop()
            node.ns += perf_counter_ns() - began_ns

    def ways(self) -> Iterator[list[CallNode]]:
        """Every node that has returned, at the end of the way that leads to it."""
        todo = [[self.root]]
        while todo:
            way = todo.pop()
            for node in way[-1].children.values():
                if node.ns:
                    yield [*way, node]
                    todo.append([*way, node])

    def shares(self) -> dict[CodeType, float]:
        """Of each function, the share of all time that it and what it calls take."""
        spent: Counter[CodeType] = Counter()
        for *above, node in self.ways():
            if node.code and all(one.code is not node.code for one in above):
                spent[node.code] += node.ns
        return {code: ns / max(self.root.ns, 1) for code, ns in spent.items()}

    def modules(self) -> dict[CodeType, str]:
        """Where each function lives."""
        return {way[-1].code: way[-1].module for way in self.ways() if way[-1].code}

    def calls(self, chosen: set[CodeType]) -> list[CallTime]:
        """From which lines of chosen functions the chosen ones are called, itself or by others."""
        parts: Counter[tuple[CodeType, int, CodeType]] = Counter()
        whole: Counter[CodeType] = Counter()
        for way in self.ways():
            node = way[-1]
            if node.code not in chosen or node.code is None:
                continue
            whole[node.code] += node.ns
            above = next((n for n in range(len(way) - 2, 0, -1) if way[n].code in chosen), 0)
            caller = way[above].code
            if caller is not None:
                parts[caller, way[above + 1].line, node.code] += node.ns
        return [CallTime(*key, ns / max(whole[key[2]], 1)) for key, ns in parts.items()]

    def nearest(self, stages: dict[CodeType, Stage]) -> dict[CodeType, Stage]:
        """For each function its stage, or that of the one nearest above it."""
        spent: defaultdict[CodeType, Counter[Stage]] = defaultdict(Counter)
        for way in self.ways():
            code = way[-1].code
            above = next((n.code for n in reversed(way) if n.code in stages), None)
            if code and above:
                spent[code][stages[above]] += way[-1].ns
        return {code: times.most_common(1)[0][0] for code, times in spent.items()}


PIECES: Final = 8
"""Into so many the samples are cut, where there are enough of them."""


class Pieces:
    """Which samples are made, and the making.

    Args:
        loader: torch's own.
        samples: how many in all; whole batches where the loader's batch sampler is the user's own.

    Raises:
        TargetError: the sampler gives nothing.
    """

    def __init__(self, loader: DataLoader[Any], samples: int) -> None:
        self._loader = loader
        self._batches = loader.batch_sampler is not None
        self.stream = is_stream(loader)
        """Whether the samples come as they come, and none can be made twice."""
        self.unit = "sample" if self._batches else "batch"
        """What one index stands for, as far as is known."""
        self.all: list[Any] = list(self._cut(samples))
        """For each piece its indices, or the one."""
        if not self.all:
            raise TargetError("the loader's sampler gives no index, so there is no sample to make")
        self._going: Iterator[Any] | None = None

    def _cut(self, samples: int) -> Iterator[Any]:
        loader, size = self._loader, max(1, samples // PIECES)
        batch_sampler: Any = loader.batch_sampler
        if not self._batches:
            yield from [None] * samples if self.stream else islice(GoingOn(loader.sampler), samples)
        elif self.stream:
            size = min(size, loader.batch_size or size)
            yield from _slices([None] * samples, size)
        elif type(batch_sampler) is BatchSampler:
            size = min(size, loader.batch_size or size)
            batches = GoingOn(batch_sampler)
            indices = (index for batch in batches for index in batch)
            yield from _slices(list(islice(indices, samples)), size)
        else:
            made = 0
            for batch in GoingOn(batch_sampler):
                if made >= samples:
                    return
                yield batch
                made += self.count(batch)

    def count(self, piece: Any) -> int:
        """How many samples a piece has; one where an index stands for all of it."""
        return len(piece) if self._batches else 1

    def restart(self) -> None:
        """Begin a stream anew with the next piece: generators keep the code they began with."""
        self._going = None

    def prepare(self, piece: Any) -> Iterator[Any]:
        """An iterator whose next batch is this piece; a stream's is always the same one."""
        if not self.stream:
            return iter(self._copy([piece]))
        if self._going is None:
            self._going = iter(self._copy(OverAndOver([piece])))
        return self._going

    def _copy(self, sampler: Any) -> DataLoader[Any]:
        here = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "pin_memory": False}
        return copy_of(self._loader, sampler=sampler, **here)


def _slices(indices: list[Any], size: int) -> Iterator[list[Any]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))


def source_of(code: CodeType) -> tuple[dict[int, str], str]:
    """The lines of a function by their numbers, and why they cannot be shown (else empty)."""
    linecache.checkcache(code.co_filename)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        return {}, _why_not(code)
    name = code.co_name
    if name.isidentifier() and not any(name in line for line in lines):
        return {}, "its file has changed since it was imported"
    return {first + place: line.rstrip("\r\n") for place, line in enumerate(lines)}, ""


def _why_not(code: CodeType) -> str:
    if code.co_filename.startswith("<"):
        return f"it was made from text ({code.co_filename}), which Python does not keep"
    return f"its file is not there ({code.co_filename})"
