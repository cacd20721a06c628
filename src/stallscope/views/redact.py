"""Results without names of the user's, for others to read.

Of tables, the columns say which are names of files, code or stacks (`columns.Column.secret`). A
sentence can hold any name, and a name can say as much as a picture. So of a sentence only words
stay that are known to be none: those of stallscope's own code, numbers, and the names of functions,
classes and stages, without which a result says nothing. This is done to the values, before any
text, picture or file is made of them, and before anything is shortened.
"""

from __future__ import annotations

import getpass
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import polars as pl

from stallscope.apart import computed_apart
from stallscope.columns import CODE, CODE_FILE, DIGEST, NAME, PATH, STACK
from stallscope.result import SavedResult
from stallscope.run.stacks import short
from stallscope.store import contents_of
from stallscope.units import LONGEST, printable
from stallscope.verbs.diagnose.text import GUIDED
from stallscope.verbs.flame.classify import FRAME, StackFunction, is_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R", bound=SavedResult)

LEFT_OUT: Final = "…"
_SHORTEST: Final = 3
"""Fewest letters of a searched name: shorter names would match inside other words."""
_CHUNK: Final = re.compile(r"""[^\s'"`<>|,;()\[\]=]+""")
"""A path, a dotted name or a word with its punctuation."""
_WORD: Final = re.compile(rf"[\w{LEFT_OUT}]+")
_NUMBER: Final = re.compile(r"[\d_]+(?:th|x|e\d+)?")
_DOTTED: Final = re.compile(r"[\w}]\.(?![\d\W])")
_FILE_NAME: Final = re.compile(r"\w\.(?:py|json|tar|jpg|png|txt|html|toml|cfg|gz)\b")
"""File names of our examples; the user's files may have them, too."""
_OF_EVERY_MACHINE: Final = {"/dev/shm", "I/O"}  # noqa: S108 - the same on every machine
_RATE: Final = re.compile(r"[A-Za-z]+/(?:s|min|step|sample|batch)")
_RAISED: Final = re.compile(
    r"(\b[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit))\b\W.*", re.DOTALL
)
"""An exception with its message, which may hold any text and numbers."""
_SEVERAL: Final = re.compile(rf"{LEFT_OUT}(?:[\s:/.-]*{LEFT_OUT})+")
_OURS: Final = re.compile(r".*( \(stallscope's .*\))", re.DOTALL)
_SLASHES: Final = {"/", "\\"}
_MACHINE: Final = ("cores", "system", "python", "torch", "torchvision", "device", "node")
"""Values of `machine.machine` that name neither a host nor a user."""


@computed_apart
def redacted(result: R) -> R:
    """Return the same result, of which nothing that is shown or written names a file of the user's.

    Left out are paths, names of files, folders, the machine and the account, what exceptions say,
    and lines of code. Names of functions, classes and stages stay.
    """
    return _Redaction(result).result(result)


@cache
def _own_words() -> tuple[frozenset[str], frozenset[str]]:
    """Return the words and the chunks that stallscope's own code consists of."""
    folder = Path(__file__).parents[1]
    code = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    words = {word.lower() for text in code for word in _WORD.findall(text)}
    chunks = {chunk.strip(".:!?") for text in code for chunk in _CHUNK.findall(text)}
    files = {chunk for chunk in chunks if _SLASHES & set(chunk) or _FILE_NAME.search(chunk)}
    return frozenset(words), frozenset((chunks - files) | _OF_EVERY_MACHINE)


@cache
def _installed() -> frozenset[str]:
    return frozenset(packages_distributions())


class _Redaction:
    def __init__(self, result: SavedResult) -> None:
        self._words, self._chunks = _own_words()
        self._numbers: dict[str, int] = {}
        columns = [*_text_columns(result)]
        in_code = {name for how, texts in columns for name in _names_in_code(how, texts)}
        self._kept = in_code | {word for name in in_code for word in _WORD.findall(name)}
        secrets = {str(Path.home()), str(Path.cwd()), platform.node()}
        with suppress(OSError, KeyError, ImportError):  # no account of that number
            secrets.add(getpass.getuser())
        for path in (path for how, texts in columns if how in (PATH, CODE_FILE) for path in texts):
            parts = PurePath(path)
            secrets |= {path, str(parts.parent), parts.name, parts.stem}
        secrets = {name for name in secrets if len(name) >= _SHORTEST and not self._is_own(name)}
        secrets |= {printable(name) for name in secrets if len(name) > LONGEST}
        self._names = sorted(secrets - self._kept, key=len, reverse=True)

    def result(self, result: R) -> R:
        """Return the redacted result, with its parts."""
        contents = contents_of(type(result))
        new: dict[str, Any] = {
            field: getattr(result, field).with_columns(
                self._column(getattr(result, field)[name], how)
                for name, how in table.schema.texts().items()
            )
            for field, table in contents.tables.items()
        }
        new |= {name: self._value(name, getattr(result, name)) for name in contents.values}
        for name in contents.parts:
            part = getattr(result, name)
            several = isinstance(part, tuple)
            new[name] = tuple(map(self.result, part)) if several else part and self.result(part)
        return type(result)(**new)

    def _value(self, name: str, value: Any) -> Any:
        """Redact a value of a result and its contents, by the field's name."""
        if isinstance(value, str) and name != "device":
            return self._target(value) if name == "name" else self.text(value)
        if isinstance(value, tuple):
            return tuple(self._value("", each) for each in value)
        if name == "machine":
            return {key: value[key] for key in _MACHINE if key in value}
        if isinstance(value, Mapping):  # numbers by name
            return {self.text(key): number for key, number in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            held = {field.name: getattr(value, field.name) for field in fields(value)}
            return replace(value, **{key: self._value(key, held[key]) for key in held})
        return value

    def _target(self, name: str) -> str:
        """Redact the target: names of code stay, but a module is the name of a file."""
        if ours := _OURS.fullmatch(name):
            return LEFT_OUT + ours[1]
        if re.fullmatch(r"[\w.]+:\w+", name):
            return f"{LEFT_OUT}:{name.partition(':')[2]}"
        is_code = name == "sample" or name in self._kept or re.fullmatch(r"\w+ over \w+", name)
        return name if is_code else self.text(name)

    def text(self, sentence: str) -> str:
        """Return a sentence with only known words."""
        sentence = _RAISED.sub(rf"\1: {LEFT_OUT}", sentence)
        for name in self._names:
            if name in sentence:  # only as a whole: 'train' is not taken out of 'training'
                sentence = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", LEFT_OUT, sentence)
        return _SEVERAL.sub(LEFT_OUT, _CHUNK.sub(self._chunk, sentence))

    def _chunk(self, match: re.Match[str]) -> str:
        chunk = match[0].rstrip(".:!?")
        if chunk in self._chunks or chunk in self._kept or GUIDED.fullmatch(chunk):
            stays = True
        elif _SLASHES & set(chunk):
            stays = bool(_RATE.fullmatch(chunk))
        else:
            stays = not _DOTTED.search(chunk) and all(map(self._is_own, _WORD.findall(chunk)))
        return (chunk if stays else LEFT_OUT) + match[0][len(chunk) :]

    def _is_own(self, word: str) -> bool:
        """Return if all parts of a word, split at underscores, are words of ours."""
        parts = [part.lower() for part in word.split("_") if part]
        return word in self._kept or all(
            {part, part.removesuffix("s")} & self._words or _NUMBER.fullmatch(part)
            for part in parts
        )

    def _column(self, column: pl.Series, how: str) -> pl.Series:
        """Redact a column: equal values stay equal, and different values stay different."""
        clean: Callable[[str], str] = {
            STACK: lambda stack: ";".join(map(self._frame, stack.split(";"))),
            CODE_FILE: self._code_file,
            PATH: self._numbered,
            CODE: lambda _: LEFT_OUT,
            DIGEST: lambda digest: digest,
        }.get(how, self._cell)
        old = column.unique().drop_nulls().cast(pl.String)
        new = [clean(value) for value in old]
        return column.cast(pl.String).replace_strict(old, new, default=None).cast(column.dtype)

    def _cell(self, value: str) -> str:
        new = self.text(value)
        return self._numbered(value) if new == LEFT_OUT else new

    def _numbered(self, name: str) -> str:
        return f"{LEFT_OUT}{self._numbers.setdefault(name, len(self._numbers) + 1)}"

    def _frame(self, text: str) -> str:
        """Redact a frame as py-spy writes it: function and line stay."""
        match = FRAME.fullmatch(text)
        if match is None:
            return self.text(text)
        function, file, line = match.groups()
        function = self.text(function) if _SLASHES & set(function) else function
        return f"{function} ({self._code_file(file)}{f':{line}' if line else ''})"

    def _code_file(self, file: str) -> str:
        """Redact a file of code; keep a known library's file from its package on."""
        inside = short(file)
        if re.split(r"[/\\]", file)[0] in _installed():  # a saved stack has it from its package on
            inside = file
        top = re.split(r"[/\\]", inside.removeprefix("site-packages/"))[0].removesuffix(".py")
        if not is_library(StackFunction("", file)):
            return f"/{self._numbered(file)}.py"
        is_public = top in sys.stdlib_module_names or all(map(self._is_own, _WORD.findall(top)))
        return inside if is_public else f"site-packages/{self._numbered(file)}"


def _text_columns(result: SavedResult) -> Iterator[tuple[str, list[str]]]:
    """Yield kind and values of each column of texts, of a result and of its parts."""
    contents = contents_of(type(result))
    for field, table in contents.tables.items():
        for name, how in table.schema.texts().items():
            yield how, getattr(result, field)[name].drop_nulls().unique().cast(pl.String).to_list()
    for name in contents.parts:
        part = getattr(result, name)
        for nested in part if isinstance(part, tuple) else filter(None, [part]):
            yield from _text_columns(nested)


def _names_in_code(how: str, texts: list[str]) -> Iterator[str]:
    if how == STACK:
        frames = map(FRAME.fullmatch, {text for stack in texts for text in stack.split(";")})
        texts = [frame[1] for frame in frames if frame]
    if how in (STACK, NAME):
        yield from (name for name in texts if not _SLASHES & set(name))
