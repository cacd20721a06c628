"""Time of a loader's samples, line by line; the measured code is restored afterwards.

This process makes the samples, in batches smaller than the loader's. A thread samples the running
line every two milliseconds; a line's share of the looks is its share of the time, for any number of
lines. line_profiler counts how often a line runs. Its times are not used: its overhead is the same
for each line, so loops look more expensive than they are.

line_profiler wraps nothing here, but it identifies a function by its bytecode and makes that
unique: the function gets a code object with some no-ops at the end, until the original is restored.
An active line_profiler holds `sys.settrace` (up to Python 3.11) or the profiler slot of
`sys.monitoring`, and restores it. A debugger or a coverage tool misses only that period.
"""

from __future__ import annotations

import inspect
import linecache
import random
import sys
import threading
import time
import tokenize
from collections import defaultdict
from contextlib import contextmanager
from itertools import chain, cycle, islice, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from line_profiler import LineProfiler
from torch.utils.data import BatchSampler, DataLoader

from stallscope.errors import TargetError
from stallscope.hooks.self_sampler import SWITCH_S
from stallscope.interrupts import held_back
from stallscope.loops.cached_loaders import copy_of, epochs, is_stream
from stallscope.stats import share_intervals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from types import CodeType, FrameType, FunctionType

    from stallscope.stages import Stage

    Line = tuple[CodeType, int]
    """Code of a function, and the number of a line in its file."""


class LineCounter:
    """Counter of executed lines in this thread; functions may share a code object."""

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self._functions = list(functions)
        self._before = [function.__code__ for function in self._functions]
        self._profiler = LineProfiler()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Add the functions to the profiler for the block; restore them afterwards."""
        try:
            with held_back():
                for function in self._functions:
                    self._profiler.add_function(function)
            yield
        finally:
            with held_back():
                self._profiler.disable_by_count()  # an exception may have interrupted the profiler
                for function, code in zip(self._functions, self._before, strict=True):
                    function.__code__ = code

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count during the block."""
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

    def hits(self) -> dict[Line, int]:
        """Return how often each line has run."""
        stats = self._profiler.get_stats()
        places = {
            (code.co_filename, code.co_firstlineno, code.co_name): code
            for code in reversed(self._before)
        }
        return {
            (places[file, first, name.rpartition(".")[2]], line): hits
            for (file, first, name), entries in stats.timings.items()
            for line, hits, _ in entries
        }


@contextmanager
def functions_seen(modules: dict[CodeType, str]) -> Iterator[None]:
    """Collect the functions that run in this thread, and their modules; keep another profiler."""

    def event(frame: FrameType, what: str, _: Any) -> None:
        if what == "call" and frame.f_code not in modules:
            modules[frame.f_code] = str(frame.f_globals.get("__name__", ""))

    before = sys.getprofile()
    try:
        sys.setprofile(event)
        yield
    finally:
        with held_back():
            sys.setprofile(before)


EVERY_S: Final = 0.002
"""Mean seconds between two looks; each costs the samples some 50 microseconds."""
_WINDOW: Final = 20
"""Fewest looks in a window."""


class LineSampler:
    """Samples the stacks of a thread below a function of ours (`base`), from another thread.

    Each look counts for the time since the previous look: no thread can look while a library holds
    the GIL, and the next look sees the line that called the library.
    """

    def __init__(self, base: CodeType) -> None:
        self._base = base
        self.windows: list[defaultdict[tuple[Line, ...], float]] = [defaultdict(float)]
        """Parts of the time; for each, the seconds of each stack, outermost line first."""
        self.count = self._began_at = 0
        """Looks that saw `base` on the stack."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Sample this thread during the block."""
        usual_s, done = sys.getswitchinterval(), threading.Event()
        thread = threading.Thread(
            target=self._look, args=(threading.get_ident(), done), daemon=True
        )
        try:
            sys.setswitchinterval(SWITCH_S)
            thread.start()
            yield
        finally:
            done.set()
            with held_back():
                thread.join()
                sys.setswitchinterval(usual_s)

    def turn_over(self) -> None:
        """Begin another window if the current window has enough looks."""
        if self.count - self._began_at >= _WINDOW:
            self._began_at = self.count
            self.windows.append(defaultdict(float))

    def _look(self, whose: int, done: threading.Event) -> None:
        draw = random.Random(0)  # noqa: S311 - jitter, no secret
        last_s = time.perf_counter()
        while not done.wait(draw.uniform(0.5, 1.5) * EVERY_S):  # never in step with a loop
            frame = sys._current_frames().get(whose)  # noqa: SLF001
            now_s, stack = time.perf_counter(), []
            while frame is not None and frame.f_code is not self._base:
                stack.append((frame.f_code, frame.f_lineno or 0))
                frame = frame.f_back
            if frame is not None:
                self.windows[-1][tuple(reversed(stack))] += now_s - last_s
                self.count += 1
            last_s = now_s

    # ---- results -----------------------------------------------------------------------------

    def stacks(self) -> dict[tuple[Line, ...], float]:
        """Return the share of the time of each stack."""
        spent: defaultdict[tuple[Line, ...], float] = defaultdict(float)
        for window in self.windows:
            for stack, took_s in list(window.items()):  # the sampling thread may still write
                spent[stack] += took_s
        whole_s = sum(spent.values())
        return {stack: took_s / whole_s for stack, took_s in spent.items()}

    def line_shares(self) -> dict[Line, float]:
        """Return the share of the time of each line, including its callees."""
        shares: defaultdict[Line, float] = defaultdict(float)
        for stack, part in self.stacks().items():
            for line in set(stack):
                shares[line] += part
        return shares

    def shares(self) -> dict[CodeType, float]:
        """Return the share of the time of each function, including its callees."""
        shares: defaultdict[CodeType, float] = defaultdict(float)
        for stack, part in self.stacks().items():
            for code in {code for code, _ in stack}:
                shares[code] += part
        return shares

    def nearest(self, stages: Mapping[CodeType, Stage]) -> dict[CodeType, Stage]:
        """Return the stage of each function, or of its nearest caller with a stage."""
        spent: defaultdict[CodeType, defaultdict[Stage, float]]
        spent = defaultdict(lambda: defaultdict(float))
        for stack, part in self.stacks().items():
            stage = None
            for code, _ in stack:
                stage = stages.get(code, stage)
                if stage is not None:
                    spent[code][stage] += part
        return {code: max(parts, key=parts.__getitem__) for code, parts in spent.items()}

    def lines(self, chosen: Collection[CodeType]) -> dict[Line, tuple[float, ...]]:
        """Return the shares of the lines of chosen functions.

        That are the shares with everything that the line calls, without the chosen functions that
        it calls, and the ends of the interval of the latter.
        """
        whole = {line: part for line, part in self.line_shares().items() if line[0] in chosen}
        windows = [window for window in self.windows if window]
        if not whole:
            return {}
        column = {line: place for place, line in enumerate(whole)}
        own = np.zeros((len(windows), len(whole)))
        for window, own_s in zip(windows, own, strict=True):
            for stack, took_s in window.items():
                if there := [column[line] for line in stack if line in column]:
                    own_s[there[-1]] += took_s
        many_s = np.array([sum(window.values()) for window in windows])
        each_s = many_s.sum() / self.count
        low, high, _ = share_intervals(own / each_s, many_s / each_s, [0] * len(windows))
        shares = own.sum(axis=0) / many_s.sum()
        return {
            line: (part, *map(float, ends))
            for (line, part), *ends in zip(whole.items(), shares, low, high, strict=True)
        }


PIECES: Final = 8
"""Number of pieces into which enough samples are cut."""


class Pieces:
    """Samples to make again and again, in pieces: whole batches of the user's own batch sampler."""

    def __init__(self, loader: DataLoader[Any], samples: int) -> None:
        self._loader = loader
        self._is_batched = loader.batch_sampler is not None
        self._is_stream = is_stream(loader)
        self.unit = "sample" if self._is_batched else "batch"
        """Meaning of an index: a sample, or an unknown number of samples."""
        self.all: list[Any] = list(self._cut(samples))
        """Indices of each piece, or its single index."""
        if not self.all:
            raise TargetError("the loader's sampler gives no index, so there is no sample to make")
        self.restart()

    def _cut(self, samples: int) -> Iterator[Any]:
        loader, size = self._loader, max(1, samples // PIECES)
        batch_sampler: Any = loader.batch_sampler
        if not self._is_batched:
            yield from (
                [None] * samples if self._is_stream else islice(epochs(loader.sampler), samples)
            )
        elif self._is_stream or type(batch_sampler) is BatchSampler:
            size = min(size, loader.batch_size or size)
            batches = repeat([None]) if self._is_stream else epochs(batch_sampler)
            indices = list(islice(chain.from_iterable(batches), samples))
            yield from (indices[first : first + size] for first in range(0, len(indices), size))
        else:
            total = 0
            for batch in epochs(batch_sampler):
                if total >= samples:
                    return
                yield batch
                total += len(batch)

    def restart(self) -> None:
        """Begin with the first piece, when it is made: a generator keeps its code object."""
        self._order = cycle(self.all)
        self._batches: Iterator[Any] | None = None

    @property
    def batches(self) -> Iterator[Any]:
        """Iterator whose next batch is the next piece."""
        if self._batches is None:
            here = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "pin_memory": False}
            self._batches = iter(copy_of(self._loader, sampler=cycle(self.all), **here))
        return self._batches

    def made(self) -> int:
        """Count the piece that was made: its samples, or 1 if it has a single index."""
        piece = next(self._order)
        return len(piece) if self._is_batched else 1


def source_of(code: CodeType) -> tuple[dict[int, str], str]:
    """Return the lines of a function by number, and a reason if they cannot be shown."""
    linecache.checkcache(code.co_filename)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        if code.co_filename.startswith("<"):
            return {}, f"it was made from text ({code.co_filename}), which Python does not keep"
        return {}, f"its file is not there ({code.co_filename})"
    name = code.co_name
    if name.isidentifier() and not any(name in line for line in lines):
        return {}, "its file has changed since it was imported"
    return {first + place: line.rstrip("\r\n") for place, line in enumerate(lines)}, ""
