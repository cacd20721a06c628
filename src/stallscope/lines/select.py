"""Which functions are looked at line by line: those named, or those in which the time goes.

By default the user's own code: where a sample begins, and what takes a share of its time worth
looking at. A library's transform is taken where it is one of the pipeline's ops and costs much; its
insides are not the user's to change, and stay the time of the line that calls them.
"""

from __future__ import annotations

import difflib
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.errors import ArgumentError
from stallscope.hooks.find_ops import is_librarys, name_of
from stallscope.targets.object_graph import (
    function_of,
    functions_of,
    functions_with,
    place_of,
    qualified,
    why_no_lines,
)
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType, FunctionType

    from stallscope.lines.profiler import CallTree
    from stallscope.stages import Stage
    from stallscope.targets.object_graph import LoaderCallables


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
