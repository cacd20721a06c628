"""Results without names of the user's, for others to read.

A file's name can say as much as a picture of it. So what is left out is not what looks like a name,
but whatever is not known to be none: of every text those words stay that are stallscope's own,
numbers, and the names of functions, classes and stages, without which a result says nothing. This
is done to the values, before any text, table, picture or file is made of them, and before anything
is shortened.
"""

from __future__ import annotations

import getpass
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import polars as pl

from stallscope.apart import computed_apart
from stallscope.flame.classify import StackFunction, is_library, short
from stallscope.result import SavedResult
from stallscope.units import LONGEST, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R", bound=SavedResult)

LEFT_OUT: Final = "…"
_SHORTEST: Final = 3
"""Letters of a name that is looked for; anything shorter would be found inside of others."""
_CHUNK: Final = re.compile(r"""[^\s'"`<>|,;()\[\]=]+""")
"""What a path, a dotted name or a word with its punctuation is part of."""
_WORD: Final = re.compile(rf"[\w{LEFT_OUT}]+")
_NUMBER: Final = re.compile(r"[\d_]+(?:th|x|e\d+)?")
_DOTTED: Final = re.compile(r"[\w}]\.(?![\d\W])")
_A_FILE: Final = re.compile(r"\w\.(?:py|json|tar|jpg|png|txt|html|toml|cfg|gz)\b")
"""Names of files that examples of ours have; the user's may be called so, too."""
_KEPT: Final = {"/dev/shm", "I/O"}  # noqa: S108 - the same on every machine
_RATE: Final = re.compile(r"[A-Za-z]+/(?:s|min|step|sample|batch)")
_GUIDED: Final = re.compile(r"\d\d_[a-z_]+(?:\.ipynb)?")
_RAISED: Final = re.compile(
    r"(\b[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit))\b\W.*", re.DOTALL
)
"""What an exception says is text of anybody's, numbers too."""
_SEVERAL: Final = re.compile(rf"{LEFT_OUT}(?:[\s:/.-]*{LEFT_OUT})+")
_OURS: Final = re.compile(r".*( \(stallscope's .*\))", re.DOTALL)
_FRAME: Final = re.compile(r"(.*) \((.*?)(:\d+)?\)", re.DOTALL)
_SLASHES: Final = {"/", "\\"}
_OF_CODE: Final = {"stage", "function", "caller", "name"}
"""Columns of names that stand in code: they stay."""
_DIGESTS: Final = ("state",)
_MACHINE: Final = ("cores", "system", "python", "torch", "torchvision", "device", "node")
"""What a machine says of itself, see `machine.machine`: no host and no user."""


@computed_apart
def redacted(result: R) -> R:
    """The same result, of which nothing that is shown or written names a file of the user's.

    Left out are paths, names of files, folders, the machine and the account, what exceptions say,
    and lines of code. Names of functions, classes and stages stay.
    """
    return _Redaction(result).result(result)


@cache
def _own_words() -> tuple[frozenset[str], frozenset[str]]:
    """The words and the chunks that stallscope's own code consists of."""
    code = [
        path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[1].rglob("*.py"))
    ]
    words = {word.lower() for text in code for word in _WORD.findall(text)}
    chunks = {chunk.strip(".:!?") for text in code for chunk in _CHUNK.findall(text)}
    files = {chunk for chunk in chunks if _SLASHES & set(chunk) or _A_FILE.search(chunk)}
    return frozenset(words), frozenset((chunks - files) | _KEPT)


class _Redaction:
    """Takes the names out of a result, and out of those that it holds."""

    def __init__(self, result: SavedResult) -> None:
        self._words, self._chunks = _own_words()
        self._numbers: dict[str, int] = {}
        kept: set[str] = set()
        known = {str(Path.home()), str(Path.cwd()), platform.node(), _account()}
        for one in _with_parts(result):
            known.update(_files(one))
            kept.update(_names_in_code(one))
        self._kept = kept | {word for name in kept for word in _WORD.findall(name)}
        known = {name for name in known if len(name) >= _SHORTEST and not self._is_own(name)}
        known |= {printable(name) for name in known if len(name) > LONGEST}
        self._names = sorted(known - self._kept, key=len, reverse=True)

    def result(self, result: R) -> R:
        """A result of the same kind, and those that are its parts."""
        contents = result._contents  # noqa: SLF001 - of a result
        new: dict[str, Any] = {
            table.field: self._table(getattr(result, table.field)) for table in contents.tables
        }
        new |= {name: self._value(name, getattr(result, name)) for name in contents.values}
        for name in contents.parts:
            part = getattr(result, name)
            several = isinstance(part, tuple)
            new[name] = tuple(map(self.result, part)) if several else part and self.result(part)
        return type(result)(**new)

    def text(self, told: str) -> str:
        """A text of which only known words are left."""
        told = _RAISED.sub(rf"\1: {LEFT_OUT}", told)
        for name in self._names:
            if name in told:  # only as a whole: 'train' is not taken out of 'training'
                told = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", LEFT_OUT, told)
        return _SEVERAL.sub(LEFT_OUT, _CHUNK.sub(self._chunk, told))

    def _chunk(self, match: re.Match[str]) -> str:
        chunk = match[0].rstrip(".:!?")
        return (chunk if self._stays(chunk) else LEFT_OUT) + match[0][len(chunk) :]

    def _stays(self, chunk: str) -> bool:
        if chunk in self._chunks or chunk in self._kept or _GUIDED.fullmatch(chunk):
            return True
        if _SLASHES & set(chunk):
            return bool(_RATE.fullmatch(chunk))
        return not _DOTTED.search(chunk) and all(map(self._is_own, _WORD.findall(chunk)))

    def _is_own(self, word: str) -> bool:
        """Whether a word, or all of what underscores connect, is no name of a file's."""
        parts = [part.lower() for part in word.split("_") if part]
        known = (
            part in self._words or part.removesuffix("s") in self._words or _NUMBER.fullmatch(part)
            for part in parts
        )
        return word in self._kept or all(known)

    # Values

    def _value(self, name: str, value: Any) -> Any:
        """A value of a result by its field's name, with all that it holds."""
        if isinstance(value, str) and name != "device":
            return self._target(value) if name == "name" else self.text(value)
        if isinstance(value, tuple):
            return tuple(self._value("", one) for one in value)
        if name == "machine":
            return {key: value[key] for key in _MACHINE if key in value}
        if isinstance(value, Mapping):  # numbers by name
            return {self.text(key): one for key, one in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            held = {one.name: getattr(value, one.name) for one in fields(value)}
            return replace(value, **{key: self._value(key, held[key]) for key in held})
        return value

    def _target(self, told: str) -> str:
        """What was pointed at: names of code stay, that of its module is one of a file."""
        if found := _OURS.fullmatch(told):
            return LEFT_OUT + found[1]
        if re.fullmatch(r"\w+ over \w+", told):
            return told
        if re.fullmatch(r"[\w.]+:\w+", told):
            return f"{LEFT_OUT}:{told.partition(':')[2]}"
        return told if told == "sample" or told in self._kept else self.text(told)

    # Tables

    def _table(self, frame: pl.DataFrame) -> pl.DataFrame:
        new = [
            self._column(frame[name])
            for name, dtype in frame.schema.items()
            if dtype in (pl.String, pl.Categorical) and name not in _DIGESTS
        ]
        return frame.with_columns(new)

    def _column(self, column: pl.Series) -> pl.Series:
        """Alike values stay alike, and different ones different."""
        of_column: dict[str, Callable[[str], str]] = {
            "stack": self._stack,
            "file": self._file,
            "path": self._numbered,
            "source": lambda _: LEFT_OUT,
        }
        clean = of_column.get(column.name, self._cell)
        old = column.unique().drop_nulls().cast(pl.String)
        new = [clean(value) for value in old]
        return column.cast(pl.String).replace_strict(old, new, default=None).cast(column.dtype)

    def _cell(self, value: str) -> str:
        new = self.text(value)
        return self._numbered(value) if new == LEFT_OUT else new

    def _numbered(self, name: str) -> str:
        return f"{LEFT_OUT}{self._numbers.setdefault(name, len(self._numbers) + 1)}"

    def _stack(self, stack: str) -> str:
        return ";".join(map(self._frame, stack.split(";")))

    def _frame(self, text: str) -> str:
        """A frame as py-spy writes it: function and line stay."""
        found = _FRAME.fullmatch(text)
        if found is None:
            return self.text(text)
        function, file, line = found.groups("")
        function = self.text(function) if _SLASHES & set(function) else function
        return f"{function} ({self._file(file)}{line})"

    def _file(self, file: str) -> str:
        """A file of code; one of a library that stallscope knows stays, from its package on."""
        inside = short(file)
        top = re.split(r"[/\\]", inside.removeprefix("site-packages/"))[0].removesuffix(".py")
        if not is_library(StackFunction("", file)):
            return f"/{self._numbered(file)}.py"
        known = top in sys.stdlib_module_names or all(map(self._is_own, _WORD.findall(top)))
        return inside if known else f"site-packages/{self._numbered(file)}"


# What is known of a result


def _files(result: SavedResult) -> Iterator[str]:
    """Names that its texts can hold: of files that were read, and of those of the code."""
    for table in result._contents.tables:  # noqa: SLF001 - of a result
        rows = getattr(result, table.field)
        for column in {"path", "file"} & set(rows.columns):
            for text in rows[column].drop_nulls().unique():
                path = PurePath(text)
                yield from (text, str(path.parent), path.name, path.stem)


def _names_in_code(result: SavedResult) -> Iterator[str]:
    """Names of its stages, functions and ops."""
    for table in result._contents.tables:  # noqa: SLF001 - of a result
        rows = getattr(result, table.field)
        for column in _OF_CODE & set(rows.columns):
            found = rows[column].drop_nulls().unique().cast(pl.String)
            yield from (name for name in found if not _SLASHES & set(name))
        stacks = rows["stack"].unique() if "stack" in rows.columns else ()
        seen = {text for stack in stacks for text in stack.split(";")}
        functions = (_FRAME.fullmatch(text) for text in seen)
        yield from (one[1] for one in functions if one and not _SLASHES & set(one[1]))


def _with_parts(result: SavedResult) -> Iterator[SavedResult]:
    yield result
    for name in result._contents.parts:  # noqa: SLF001 - of a result
        part = getattr(result, name)
        for one in part if isinstance(part, tuple) else filter(None, [part]):
            yield from _with_parts(one)


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # there is none of that number
        return ""
