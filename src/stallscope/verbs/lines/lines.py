"""`ss.lines`: time of each line of a dataset, its transforms and its collate function.

Torch's own fetcher makes some samples in this process: repeatedly while a thread samples the
running line, and once more to count how often each line runs.
"""

from __future__ import annotations

import difflib
import itertools
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError, made_here
from stallscope.hooks.find_ops import is_librarys, name_of, place_of
from stallscope.isolation import isolated, one_thread
from stallscope.loops.cached_loaders import check_plain
from stallscope.loops.training_loop import check_whole
from stallscope.machine import machine, require_single_rank
from stallscope.stats import wilson
from stallscope.targets import object_graph as graph
from stallscope.targets import target as targets
from stallscope.units import BUDGET_S, count
from stallscope.verbs.lines.profiler import (
    LineCounter,
    LineSampler,
    Pieces,
    functions_seen,
    source_of,
)
from stallscope.verbs.lines.result import FUNCTIONS, LINES, SOURCES, Lines, LinesConditions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import CodeType, FunctionType

    from stallscope.targets.target import Target
    from stallscope.verbs.lines.profiler import Line


_MOST_FUNCTIONS: Final = 12
"""Listed functions: nobody reads more, and each costs time."""
_LEAST_SHARE: Final = 0.02
"""Share of the time from which a function is listed by default."""
_LIBRARIES: Final = frozenset({"torch", "torchvision", "torchaudio", "datasets", "webdataset"})
"""Packages whose datasets people use without owning the code."""
_MOST_NAMES: Final = 12


class FunctionSelector:
    """Chooses functions by name or as objects among those that make the samples, or the costly.

    The default is the user's own code: entry points of a sample, and functions with a notable share
    of its time. A library's transform is listed if it is a costly op of the pipeline. The user
    cannot change its inner functions, so their time counts for the calling line.
    """

    def __init__(
        self,
        wanted: Sequence[Any] | None,
        parts: graph.LoaderCallables,
        measured: Mapping[CodeType, float],
        modules: Mapping[CodeType, str],
    ) -> None:
        """Choose from the functions that ran, by their modules and measured shares.

        Raises:
            ArgumentError: a name is unknown, or an object has no Python code.
        """
        self._parts = parts
        shares = {code: measured.get(code, 0.0) for code in modules}
        self._shares = dict(sorted(shares.items(), key=itemgetter(1), reverse=True))
        homes = parts.homes - _LIBRARIES or {""}
        self._users = {
            code
            for code, module in modules.items()
            if any(not is_librarys(module, code.co_filename, home) for home in homes)
        }
        self.notes: list[str] = []
        if wanted is None:
            codes = self._costly()
            without_source = parts.without_source
            for why in dict.fromkeys(without_source.values()):
                names = [f"`{name}`" for name, reason in without_source.items() if reason == why]
                verb = "has" if len(names) == 1 else "have"
                self.notes.append(f"{', '.join(names)} {verb} no lines: {why}")
        else:
            codes = list(dict.fromkeys(code for asked in wanted for code in self._named(asked)))
        self.functions = list(self._functions(codes, asked=wanted is not None))
        """Functions whose lines are shown."""

    def names(self) -> dict[CodeType, str]:
        """Return a unique name for each function; duplicates get their place appended."""
        names = {
            function.__code__: graph.qualified(function.__code__, function)
            for function in self.functions
        }
        counts = Counter(names.values())
        return {
            code: f"{name} ({place_of(code)})" if counts[name] > 1 else name
            for code, name in names.items()
        }

    def _costly(self) -> list[CodeType]:
        parts, eligible = self._parts, self._users | self._parts.stages.keys()
        candidates = [
            code
            for code, share in self._shares.items()
            if code in parts.entries or (share >= _LEAST_SHARE and code in eligible)
            if not code.co_name.startswith("<") or code.co_name == "<lambda>"  # comprehensions
        ]
        hidden = candidates[_MOST_FUNCTIONS:]
        if hidden:
            names = ", ".join(f"`{graph.qualified(code)}`" for code in hidden[:_MOST_NAMES])
            self.notes.append(
                f"not shown: {count(len(hidden), 'function')} with a smaller share ({names}); ask "
                "for them with functions="
            )
        return candidates[:_MOST_FUNCTIONS]

    def _functions(self, codes: list[CodeType], *, asked: bool) -> Iterator[FunctionType]:
        """Yield the functions that run each code, without the wrappers of decorators."""
        by_code = graph.functions_with(codes)
        for code in codes:
            listed = [self._parts.functions[code]] if code in self._parts.functions else []
            functions = [*listed, *by_code.get(code, ())]
            every = list({id(function): function for function in functions}.values())
            inner = [function for function in every if "__wrapped__" not in vars(function)]
            yield from inner
            if not every:
                self.notes.append(
                    f"`{graph.qualified(code)}` is created for each call, so its lines cannot be "
                    "shown; the line that calls it has their time"
                )
            elif not inner and asked:
                self.notes.append(
                    f"`{graph.qualified(code)}` is a decorator: name the decorated function"
                )

    def _named(self, asked: Any) -> list[CodeType]:
        parts = self._parts
        if not isinstance(asked, str):
            return _codes_of(asked)
        codes = dict.fromkeys([*parts.functions, *self._shares])
        names = {code: graph.qualified(code, parts.functions.get(code)) for code in codes}
        stages = {code: stage.name for code, stage in parts.stages.items()}
        matches = (
            [c for c in codes if names[c].rpartition(".")[0] == asked or stages.get(c) == asked],
            [code for code in codes if names[code] == asked],
            [code for code in codes if code.co_name == asked],
        )
        if any(matches):
            return next(filter(None, matches))
        if asked in parts.without_source:
            raise ArgumentError(
                f"functions={asked!r} has no Python source ({parts.without_source[asked]}), so no "
                "lines: name a function that is written in Python"
            )
        ran = [code for code in self._shares if code in self._users or code in parts.functions]
        unique = dict.fromkeys(names[code] for code in [*ran, *parts.functions])
        possible = [name for name in unique if not name.startswith("<")][:_MOST_NAMES]
        close = difflib.get_close_matches(asked, possible, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ArgumentError(
            f"functions={asked!r} matches no function that makes these samples; {hint}There are "
            f"{', '.join(possible)}"
        )


def _codes_of(item: Any) -> list[CodeType]:
    if not callable(item):
        raise ArgumentError(f"functions holds {item!r}: give names or functions")
    function = graph.function_of(item)
    functions = [function] if function else list(graph.functions_of(item))
    if not functions:
        why = graph.why_no_lines(item)
        raise ArgumentError(
            f"functions holds `{name_of(item)}`, which has no Python source ({why}) and so no lines"
        )
    return [function.__code__ for function in functions]


def as_list(functions: Any) -> list[Any] | None:
    """Return the requested functions as a list; None: the default."""
    if functions is None:
        return None
    if isinstance(functions, str) or callable(functions):
        return [functions]
    if not isinstance(functions, (list, tuple, set, frozenset)) or not functions:
        raise ArgumentError(
            f"functions={functions!r}: give names or functions, such as ['MyTransform', collate]"
        )
    return list(functions)


_WITHIN: Final = 0.02
"""Half width of the intervals at which sampling ends; takes at most 2,400 looks."""
_LEAST_LOOKS: Final = 200
"""Looks below which a share of 0 or 1 may be chance."""
_LOOKING_SHARE: Final = 0.6
"""Share of the budget for sampling; the rest is for counting, which slows each line down."""
_NOTABLE_DECODING: Final = 0.1
"""Share of the decode time from which a note names a line."""


def _seconds_of(batches: Iterator[Any]) -> float:
    """Time the next batch; the sampler ignores frames above this function."""
    began_ns = time.perf_counter_ns()
    next(batches)
    return (time.perf_counter_ns() - began_ns) / 1e9


class LineMeasurement:
    """Measurement of the lines of a loader."""

    def __init__(
        self, target: Target, parts: graph.LoaderCallables, samples: int, measurement: Measurement
    ) -> None:
        self._target, self._measurement = target, measurement
        self._loader = target.loaders[0]
        self._parts = parts
        self._pieces = Pieces(self._loader, samples)
        self._wanted: list[Any] | None = None
        self._modules: dict[CodeType, str] = {}
        """Module of each function that ran."""
        self._sampler = LineSampler(_seconds_of.__code__)
        self._choice: FunctionSelector | None = None
        self._counter = LineCounter([])
        self._looked_at = self._counted = 0  # samples
        self._wall_s = 0.0
        self._ended = False

    def run(self, wanted: list[Any] | None) -> None:
        """Sample the running lines, choose functions, count how often their lines run."""
        self._wanted = wanted
        self._measurement.now("the first samples")
        self._make()
        self._make(partial(functions_seen, self._modules))
        self._chosen()  # reports an unknown name before the long part
        self._measurement.now("where the time goes")
        with self._sampler.looking():
            self._look()
        self._measurement.now("how often lines run")
        self._choice = self._chosen()
        self._count(self._choice)

    def _look(self) -> None:
        """Make the pieces repeatedly, until the shares are precise enough."""
        self._pieces.restart()
        for number in itertools.count():
            is_whole = number >= len(self._pieces.all)
            is_late = self._looked_at > 0 and self._measurement.has_used(_LOOKING_SHARE)
            if is_late or (is_whole and self._is_enough()):
                return
            took_s, samples = self._make()
            if not samples:
                return
            self._sampler.turn_over()
            self._looked_at += samples
            self._wall_s += took_s

    def _is_enough(self) -> bool:
        looks = self._sampler.count
        if looks < _LEAST_LOOKS:
            return False
        shares = np.minimum([*self._sampler.line_shares().values()], 1.0)
        low, high = wilson(shares, looks)
        return bool((high - low).max(initial=0) / 2 <= _WITHIN)

    def _count(self, choice: FunctionSelector) -> None:
        self._counter = LineCounter(choice.functions)
        self._pieces.restart()
        longest_s = 0.0
        with self._counter.attached():
            for _ in self._pieces.all:
                if self._measurement.left_s < longest_s:
                    return
                took_s, samples = self._make(self._counter.on)
                if not samples:
                    return
                longest_s = max(longest_s, took_s)
                self._counted += samples

    def _make(
        self, watching: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[float, int]:
        """Make the next piece; return its seconds and samples, no samples if a stream has ended."""
        for _ in range(2):
            batches = self._pieces.batches
            with suppress(StopIteration):
                with watching():
                    took_s = _seconds_of(batches)
                return took_s, self._pieces.made()
            self._pieces.restart()
        self._ended = True
        return 0.0, 0

    def _chosen(self) -> FunctionSelector:
        return FunctionSelector(self._wanted, self._parts, self._sampler.shares(), self._modules)

    def result(self) -> Lines:
        """Return the measurements so far."""
        choice = self._choice or self._chosen()
        names, stages = choice.names(), self._parts.stages
        stages = {**stages, **self._sampler.nearest(stages)}
        functions: list[tuple[Any, ...]] = []
        texts: list[tuple[Any, ...]] = []
        for code, name in names.items():
            source_lines, why_not = source_of(code)
            stage = stages.get(code, (None, None))[:2]
            functions.append((name, code.co_filename, code.co_firstlineno, *stage, why_not or None))
            texts += [(name, number, text) for number, text in source_lines.items()]
        seen, hits = self._sampler.lines(names), self._counter.hits()
        nothing = (0.0, 0.0, 0.0, 0.0)
        rows = [
            (names[line[0]], line[1], hits.get(line), *seen.get(line, nothing))
            for line in dict.fromkeys([*hits, *seen])
            if line[0] in names
        ]
        samples = self._counted or self._looked_at
        return Lines(
            functions=pl.DataFrame(functions, FUNCTIONS, orient="row"),
            lines=pl.DataFrame(rows, LINES, orient="row"),
            sources=pl.DataFrame(texts, SOURCES, orient="row"),
            circumstances=LinesConditions(
                name=self._target.name,
                unit=self._pieces.unit,
                samples=samples,
                wall_s=self._wall_s * samples / max(self._looked_at, 1),
                looks=self._sampler.count,
                machine=machine(),
            ),
            notes=(
                *self._target.notes,
                *self._measurement.notes,
                *self._notes(names, {code for code, _ in (*hits, *seen)}),
                *choice.notes,
            ),
        )

    def _notes(self, names: Mapping[CodeType, str], ran: set[CodeType]) -> Iterator[str]:
        silent = [f"`{name}`" for code, name in names.items() if code not in ran]
        if silent and self._counted:
            yield f"never called for these samples: {', '.join(silent)}"
        yield from self._decoding(names)
        if self._ended:
            yield f"the loader yielded only {count(self._looked_at, 'sample')}"
        if self._loader.num_workers and self._loader.worker_init_fn is not None:
            yield "worker_init_fn was not called: this process made the samples"

    def _decoding(self, names: Mapping[CodeType, str]) -> Iterator[str]:
        """Name the lines that decode images implicitly."""
        decoders = {
            code
            for code, module in self._modules.items()
            if (module, code.co_name) == ("PIL.ImageFile", "load") and code not in names
        }
        parts: dict[Line, float] = {}
        for stack, part in self._sampler.stacks().items():
            callers = [line for line in stack if line[0] in names]
            if callers and any(code in decoders for code, _ in stack):
                parts[callers[-1]] = parts.get(callers[-1], 0.0) + part
        for (code, line), part in parts.items():
            if part > _NOTABLE_DECODING * sum(parts.values()):
                yield (
                    f"line {line} of `{names[code]}` decodes the image: PIL decodes when pixels "
                    "are first needed, so any op on that line would take that time"
                )


def lines(
    target: Any, *, functions: Any = None, samples: int = 32, budget_s: float = BUDGET_S
) -> Lines:
    """Time the lines of the code that makes a loader's samples.

    A thread samples the running line every two milliseconds for the shares; line_profiler counts
    the hits. Makes the samples in this process with one torch thread, in smaller batches than the
    loader's. Afterwards restores all random generators, the samplers, the attributes of the dataset
    and its transforms, the functions, and an active debugger or profiler. An exception of the
    dataset passes unchanged; its attribute `lines` holds the measurements so far.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        functions: a name ("RandomMask", "RandomMask.dilate", "collate"), a function, or several;
            by default the user's costliest: `__getitem__` (or `__iter__`), the transforms, the
            functions that these call, and the collate function.
        samples: number of different samples; they are repeated until the shares are precise.
        budget_s: time limit, seconds; the samples in progress are then finished.

    Raises:
        ArgumentError: `samples` or `budget_s` is invalid, or `functions` matches no function.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target is not a single DataLoader that torch's own code iterates, or
            this process is one of several ranks.
    """
    measurement = Measurement("lines", budget_s)
    check_whole("samples", samples, 1)
    wanted = as_list(functions)
    require_single_rank()
    target = replace(targets.target(target), step=None)
    check_plain(target, "its samples cannot be made one by one in this process")
    with isolated(target) as target, one_thread():
        parts = graph.LoaderCallables(target.loaders[0])
        with graph.bindings_kept(parts.holders), measurement.of(target.name):
            session = LineMeasurement(target, parts, int(samples), measurement)
            measurement.result = session.result
            with made_here(target.loaders[0].num_workers):
                session.run(wanted)
            return session.result()
