"""`ss.lines`: how long each line of the dataset, its transforms and its collate function takes.

Some samples are made in this process by torch's own fetcher, three times: once to see which
functions take the time, and then in turn with their lines timed and without, which tells what the
timing costs.
"""

from __future__ import annotations

import difflib
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
from tqdm.auto import tqdm

from stallscope import isolation
from stallscope.errors import ArgumentError, StallscopeError
from stallscope.hooks.find_ops import is_librarys, name_of
from stallscope.isolation import isolated, one_thread
from stallscope.lines.profiler import CallTree, LineTimer, Pieces, source_of
from stallscope.lines.result import CALLS, FUNCTIONS, PAIRS, SOURCES, TIMES, Lines, LinesConditions
from stallscope.loops.cached_loaders import check_plain
from stallscope.loops.training_loop import check_whole
from stallscope.machine import machine, require_single_rank
from stallscope.run.read_logs import note
from stallscope.targets import target as targets
from stallscope.targets.object_graph import (
    LoaderCallables,
    bindings_kept,
    function_of,
    functions_of,
    functions_with,
    place_of,
    qualified,
    why_no_lines,
)
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import CodeType, FunctionType

    from stallscope.stages import Stage
    from stallscope.targets.target import Target


_MOST: Final = 12
"""Functions: more listings nobody reads, and each costs time."""
_LEAST_SHARE: Final = 0.02
"""Of all time, for a function to be chosen unasked."""
_LIBRARIES: Final = frozenset({"torch", "torchvision", "torchaudio", "datasets", "webdataset"})
"""Packages whose datasets people use, and whose code is not theirs."""
_MOST_NAMES: Final = 12


class Choice(NamedTuple):
    """The functions whose lines are timed."""

    functions: Sequence[FunctionType] = ()
    names: Mapping[CodeType, str] = {}
    """How each is called in the result; no two alike."""
    stages: Mapping[CodeType, Stage] = {}
    """The stage that each is part of, where it is part of one."""
    notes: Sequence[str] = ()


def select_functions(
    parts: LoaderCallables, tree: CallTree, wanted: Sequence[Any] | None
) -> Choice:
    """Choose the functions that are wanted by name or as objects; None: those that cost most.

    By default the user's own code: where a sample begins, and what takes a share of its time worth
    looking at. A library's transform is taken where it is one of the pipeline's ops and costs much;
    its insides are not the user's to change, and stay the time of the line that calls them.

    Raises:
        ArgumentError: a name that nothing has, or an object without Python code.
    """
    seen, notes = _seen(parts, tree), list[str]()
    if wanted is None:
        codes = _costly(parts, seen, notes)
        notes += _without_lines(parts)
    else:
        codes = list(dict.fromkeys(c for one in wanted for c in _named(one, parts, seen)))
    functions = list(_functions(codes, parts, notes, asked=wanted is not None))
    return Choice(functions, _distinct(functions), tree.nearest(parts.stages), notes)


def _functions(
    codes: list[CodeType], parts: LoaderCallables, notes: list[str], *, asked: bool
) -> Iterator[FunctionType]:
    """What runs each code; a decorator's own wrapper is nothing to look at."""
    found = functions_with(codes)
    for code in codes:
        known = [parts.functions[code]] if code in parts.functions else []
        every = list({id(one): one for one in [*known, *found.get(code, ())]}.values())
        inner = [one for one in every if "__wrapped__" not in vars(one)]
        yield from inner
        if not every:
            notes.append(
                f"`{qualified(code)}` is made anew for each call, so its lines cannot be timed: "
                "they are part of the line that calls it"
            )
        elif not inner and asked:
            notes.append(f"`{qualified(code)}` is a decorator's: name what it decorates")


def as_list(functions: Any) -> list[Any] | None:
    """What was asked for as a list; one name or one function is a list of one.

    Raises:
        ArgumentError: it is neither.
    """
    if functions is None:
        return None
    if isinstance(functions, str) or callable(functions):
        return [functions]
    if not isinstance(functions, (list, tuple, set, frozenset)) or not functions:
        raise ArgumentError(
            f"functions={functions!r}: give names or functions, such as ['MyTransform', collate]"
        )
    return list(functions)


class _Seen(NamedTuple):
    """What ran."""

    shares: dict[CodeType, float]
    """Of each function, the longest first, the share of all time with what it calls."""
    users: set[CodeType]
    """Those that are not a library's."""


def _seen(parts: LoaderCallables, tree: CallTree) -> _Seen:
    modules, homes = tree.modules(), parts.homes - _LIBRARIES or {""}
    shares = dict(sorted(tree.shares().items(), key=itemgetter(1), reverse=True))
    users = {
        code
        for code in shares
        if any(not is_librarys(modules[code], code.co_filename, home) for home in homes)
    }
    return _Seen(shares, users)


def _costly(parts: LoaderCallables, seen: _Seen, notes: list[str]) -> list[CodeType]:
    known = seen.users | parts.stages.keys()
    candidates = [
        code
        for code, share in seen.shares.items()
        if code in parts.entries or (share >= _LEAST_SHARE and code in known)
        if not code.co_name.startswith("<") or code.co_name == "<lambda>"  # comprehensions
    ]
    hidden = candidates[_MOST:]
    if hidden:
        names = ", ".join(f"`{qualified(code)}`" for code in hidden[:_MOST_NAMES])
        notes.append(
            f"not shown: {count(len(hidden), 'function')} that "
            f"{'take' if len(hidden) > 1 else 'takes'} less than the others ({names}); ask for "
            "them with functions="
        )
    return candidates[:_MOST]


def _without_lines(parts: LoaderCallables) -> Iterator[str]:
    for why in dict.fromkeys(parts.without_source.values()):
        names = [f"`{name}`" for name, said in parts.without_source.items() if said == why]
        verb = "has" if len(names) == 1 else "have"
        yield f"{', '.join(names)} {verb} no lines: {why}"


def _named(one: Any, parts: LoaderCallables, seen: _Seen) -> list[CodeType]:
    """The codes that a name or an object stands for."""
    if not isinstance(one, str):
        return _codes_of(one)

    def is_stage(code: CodeType) -> bool:
        return code in parts.stages and parts.stages[code].name == one

    known = dict.fromkeys([*parts.functions, *seen.shares])
    names = {code: qualified(code, parts.functions.get(code)) for code in known}
    ways = (
        [code for code in known if names[code].rpartition(".")[0] == one or is_stage(code)],
        [code for code in known if names[code] == one],
        [code for code in known if code.co_name == one],
    )
    if any(ways):
        return next(filter(None, ways))
    if one in parts.without_source:
        raise ArgumentError(
            f"functions={one!r} has no Python source ({parts.without_source[one]}), so it has no "
            "lines: name a function that is written in Python"
        )
    possible = _names(parts, seen)
    close = difflib.get_close_matches(one, possible, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ArgumentError(
        f"functions={one!r} names nothing that makes these samples; {hint}There are "
        f"{', '.join(possible)}"
    )


def _codes_of(one: Any) -> list[CodeType]:
    function = function_of(one)
    found = [function] if function else list(functions_of(one)) if callable(one) else []
    if not callable(one) and not found:
        raise ArgumentError(f"functions holds {one!r}: give names or functions")
    if not found:
        raise ArgumentError(
            f"functions holds `{name_of(one)}`, which has no Python source ({why_no_lines(one)}), "
            "so it has no lines"
        )
    return [function.__code__ for function in found]


def _names(parts: LoaderCallables, seen: _Seen) -> list[str]:
    """The names that could have been given, the most expensive first; the user's own, mostly."""
    ran = [code for code in seen.shares if code in seen.users or code in parts.functions]
    codes = dict.fromkeys([*ran, *parts.functions])
    names = [qualified(code, parts.functions.get(code)) for code in codes]
    return list(dict.fromkeys(name for name in names if not name.startswith("<")))[:_MOST_NAMES]


def _distinct(functions: list[FunctionType]) -> dict[CodeType, str]:
    """A name for each code; with its place, where another one is called alike."""
    codes = {function.__code__: function for function in functions}
    names = {code: qualified(code, function) for code, function in codes.items()}
    alike = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {
        code: f"{name} ({place_of(code)})" if name in alike else name
        for code, name in names.items()
    }


_LOOKED_AT: Final = 2
"""Pieces that are made to see which functions take the time; before them one to warm up."""
_WORTH_SAYING: Final = 0.1
"""Of all decoding, for a line to be called the place of it."""


class LineMeasurement:
    """Which samples are made, when their lines are timed, what came of it."""

    def __init__(self, target: Target, parts: LoaderCallables, samples: int) -> None:
        self._target = target
        self._loader = target.loaders[0]
        self._parts = parts
        self._pieces = Pieces(self._loader, samples)
        self._tree = CallTree()
        self._choice = Choice()
        self._timer = LineTimer([])
        self._pairs: list[tuple[float, float]] = []
        self._samples = 0
        self._wall_s = 0.0
        self._ended = False
        self._doing = "making the first samples"
        title = f"lines of {target.name}"
        steps = 1 + _LOOKED_AT + 2 * len(self._pieces.all)
        self._bar = tqdm(desc=title, total=steps, unit="piece", leave=False, delay=0.5)

    def run(self, wanted: list[Any] | None) -> None:
        """Choose functions, and time their lines."""
        with closing(self._bar):
            self._look(wanted)
            self._doing = "timing lines"
            with self._timer.attached():
                self._measure()

    def _look(self, wanted: list[Any] | None) -> None:
        pieces = self._pieces.all
        self._make(pieces[0])
        self._doing = "looking for the functions that take the time"
        for piece in pieces[:_LOOKED_AT]:
            self._make(piece, self._tree.watching)
        self._choice = select_functions(self._parts, self._tree, wanted)
        self._timer = LineTimer(self._choice.functions)

    def _measure(self) -> None:
        """Make each piece with its lines timed and without, in turn."""
        self._pieces.restart()
        for number, piece in enumerate(self._pieces.all):
            again = [*isolation.restore_generators(self._loader)]  # the same draws the second time
            took: dict[bool, float] = {}
            for timed in (True, False) if number % 2 else (False, True):
                seconds = self._make(piece, self._timer.on if timed else nullcontext)
                if seconds is None:
                    return
                took[timed] = seconds
                if timed:
                    self._samples += self._pieces.count(piece)
                    self._wall_s += seconds
                if not self._pieces.stream and len(took) == 1:
                    for restore in again:
                        restore()
            self._pairs.append((took[True], took[False]))

    def _make(
        self, piece: Any, watching: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> float | None:
        """Make a piece; returns its seconds, None where a stream has no more."""
        for _ in range(2):
            batches = self._pieces.prepare(piece)
            try:
                with watching():
                    began_ns = time.perf_counter_ns()
                    next(batches)
                    took_ns = time.perf_counter_ns() - began_ns
            except StopIteration:
                self._pieces.restart()
                continue
            self._bar.update()
            return took_ns / 1e9
        self._ended = True
        return None

    def leave_with(self, error: BaseException) -> None:
        """Tell an exception of the user's where it came from, and what was measured before it."""
        vars(error)["lines"] = self.result()  # past any __setattr__ of a frozen exception
        said = [f"stallscope: raised while {self._doing}"]
        if self._loader.num_workers:
            said.append(
                "stallscope: the samples were made in this process, where get_worker_info() is "
                "None and worker_init_fn is not called"
            )
        said.append("stallscope: what was measured before is this exception's attribute `lines`")
        note(error, said)

    def result(self) -> Lines:
        """What is known by now."""
        names = self._choice.names
        sources = {code: source_of(code) for code in names}
        stages = {**self._parts.stages, **self._choice.stages}
        functions = [
            (
                *(names[code], code.co_filename, code.co_firstlineno),
                *stages.get(code, (None, None))[:2],
                why_not or None,
            )
            for code, (_, why_not) in sources.items()
        ]
        texts = [
            (names[code], number, text)
            for code, (found, _) in sources.items()
            for number, text in found.items()
        ]
        times = [
            (names[one.code], one.line, one.hits, one.time_s)
            for one in self._timer.times()
            if one.code in names
        ]
        calls = [
            (names[one.caller], one.line, names[one.code], one.share)
            for one in self._tree.calls(set(names))
        ]
        return Lines(
            functions=pl.DataFrame(functions, FUNCTIONS, orient="row"),
            times=pl.DataFrame(times, TIMES, orient="row"),
            calls=pl.DataFrame(calls, CALLS, orient="row"),
            sources=pl.DataFrame(texts, SOURCES, orient="row"),
            pairs=pl.DataFrame(self._pairs, PAIRS, orient="row"),
            circumstances=LinesConditions(
                name=self._target.name,
                unit=self._pieces.unit,
                samples=self._samples,
                wall_s=self._wall_s,
                machine=machine(),
            ),
            notes=(*self._target.told(), *self._notes(), *self._choice.notes),
        )

    def _notes(self) -> Iterator[str]:
        names = self._choice.names
        ran = {one.code for one in self._timer.times()}
        silent = [f"`{name}`" for code, name in names.items() if code not in ran]
        if silent and self._samples:
            yield f"never called for these samples: {', '.join(silent)}"
        for one in self._tree.calls(set(names)):
            if one.caller is one.code:
                yield (
                    f"`{names[one.code]}` calls itself: the time of its lines counts every level, "
                    "their own time does not"
                )
        decoders = {
            code
            for code, module in self._tree.modules().items()
            if (module, code.co_name) == ("PIL.ImageFile", "load") and code not in names
        }
        for one in self._tree.calls({*names, *decoders}):
            if one.code in decoders and one.share > _WORTH_SAYING:
                yield (
                    f"line {one.line} of `{names[one.caller]}` decodes the image: PIL reads pixels "
                    "when they are first needed, so whatever stood there would take that time"
                )
        if self._pieces.stream:
            yield "a stream: no sample can be made twice, so those with and without differ"
        if self._ended:
            yield f"the loader gave no more than {count(self._samples, 'sample')}"
        if self._loader.num_workers and self._loader.worker_init_fn is not None:
            yield "made in this process: worker_init_fn was not called"


def lines(target: Any, *, functions: Any = None, samples: int = 32) -> Lines:
    """Time the lines of the code that makes a loader's samples, with line_profiler.

    Makes the samples in this process with one torch thread, in smaller batches than the loader's.
    Afterwards all random generators and the samplers are as they were, the attributes of the
    dataset and its transforms hold what they held, and nothing of line_profiler is left on any
    function; a debugger or another profiler that was on is on again. An exception of the dataset's
    passes unchanged; its attribute `lines` holds what was measured before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        functions: names ("RandomMask", "RandomMask.dilate", "collate") or functions, one or
            several; by default the user's own that cost most: `__getitem__` (or `__iter__`), the
            transforms, what these call, and the collate function.
        samples: how many to make with their lines timed. As many are made without, and some more
            before.

    Raises:
        ArgumentError: `samples` is no number that can be used, or `functions` names nothing.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: there is not one DataLoader in it that torch's own code iterates, or this
            process is one of several ranks.
    """
    check_whole("samples", samples, 1)
    wanted = as_list(functions)
    require_single_rank()
    target = replace(targets.target(target), step=None)
    check_plain(target, "its samples cannot be made one by one in this process")
    with isolated(target) as target, one_thread():
        parts = LoaderCallables(target.loaders[0])
        with bindings_kept(parts.holders()):
            measurement = LineMeasurement(target, parts, int(samples))
            try:
                measurement.run(wanted)
            except BaseException as error:
                if isinstance(error, StallscopeError):
                    raise
                measurement.leave_with(error)
                raise
            return measurement.result()
