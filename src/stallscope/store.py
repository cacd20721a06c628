"""Results on disk: JSON and Arrow files, never pickle, so that untrusted results are safe to open.

A result declares its files (`Contents`); this module writes, reads and checks them. Reading rejects
values that would break a table or a picture later: a wrong type, a number out of range, an unknown
word.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin
from typing import get_type_hints as hints_of

import polars as pl

from stallscope import arrow_files
from stallscope.errors import RunFormatError
from stallscope.files import file_of_anybody, locked, part_of, read_file
from stallscope.units import CONTROLS, NO_LETTER, json_without_controls, printable, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

KINDS: Final = (
    *("run", "ladder", "flame", "orders", "lines", "experiments", "diagnosis", "tuning"),
    *("storage", "layouts"),
)
"""Kinds of results that can be saved; each is the class of that name in the package."""

VERSION: Final = 5
"""Schema version of all kinds of results, the only readable version."""
_LARGEST: Final = 1 << 53
"""Largest count and time in ns of a table (104 days), so that sums are exact."""
_LARGEST_FLOAT: Final = 1e30
"""Largest float, above every measurement; its square is still finite."""
_NEVER_NEGATIVE: Final = ("_share", "bytes", "_s", "seconds", "hits")
"""Suffixes of the names of numbers that are never negative, except `ready_s`: a worker may be ready
before the start of its epoch."""
_LONGEST_TEXT: Final = 10_000
"""Characters of a text in a head; longer texts are cut."""
_POLARS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions of polars over a damaged file; a panic is no `Exception`."""
_MOST_HEAD_BYTES: Final = 4 << 20
"""Largest head: Python's objects take twenty times the size of their JSON."""
_REMEDY: Final = "copy the folder once more, or record again"

R = TypeVar("R")


class StoredTable(NamedTuple):
    """Table of a result, with the rules for its values."""

    field: str
    """Field of the result."""
    schema: Schema
    filled: AbstractSet[str] = frozenset()
    """Columns without nulls; names of other columns are ignored."""
    file: str = ""
    """Name on disk; by default the field's."""
    unbounded: AbstractSet[str] = frozenset()
    """Columns that may hold an infinity."""
    words: Mapping[str, Collection[str]] = {}
    """Columns of names that the views look up, with all valid names."""
    positive: AbstractSet[str] = frozenset()
    """Columns that serve as divisors."""
    is_newer: bool = False
    """True: folders of the same schema version may lack it; it is empty then."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.file or self.field}.arrow"


class Contents(NamedTuple):
    """Files and folders of a kind of result."""

    kind: str
    """One of `KINDS`."""
    noun: str
    """Noun for an error message."""
    tables: tuple[StoredTable, ...]
    values: Mapping[str, Any]
    """Fields in the head, with their types, dataclasses too."""
    parts: Mapping[str, str] = {}
    """Fields that are results or tuples of results, each in a folder of that name, by kind."""
    beside: tuple[str, ...] = ()
    """Other allowed names in the folder, which are not replaced."""
    words: Mapping[str, Collection[str]] = {}
    """Names of values in the head that are looked up, with all valid values."""
    positive: AbstractSet[str] = frozenset()
    """Names of values in the head that serve as divisors."""

    @property
    def head(self) -> str:
        """Name of the file that is written last: it marks a complete result."""
        return f"{self.kind}.json"

    @property
    def names(self) -> list[str]:
        """Names of all files and folders, the head last."""
        return [*(table.name for table in self.tables), *self.parts, self.head]


def save(result: Any, contents: Contents, folder: Path) -> Path:
    """Write a result; it replaces an older result only when it is complete.

    Raises:
        RunFormatError: the folder holds something else, cannot be written, or another process
            saves there at the moment.
    """
    try:
        _check_place(contents, folder)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder) as is_ours:
            if not is_ours:
                raise RunFormatError(
                    f"another process saves into {folder} now: give the {contents.noun} a folder "
                    "of its own"
                )
            with _replaced(folder, contents.names) as new:
                _write(result, contents, new)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunFormatError(
            f"the {contents.noun} cannot be written into {folder}: {error}"
        ) from error
    return folder


def read(result: type[R], contents: Contents, folder: Path) -> R:
    """Read a saved result. Runs no code from the folder.

    Raises:
        RunFormatError: no result, a damaged result, or another schema version.
    """
    head = head_of(contents, folder)
    if (kind := head.get("kind", contents.kind)) != contents.kind:
        raise RunFormatError(
            f"{folder} is not a whole {contents.noun} ({contents.head} says that it is of the kind "
            f"{kind!r}): {_REMEDY}"
        )
    if (version := head.get("schema_version")) != VERSION:
        raise RunFormatError(
            f"{folder} has schema version {version!r}; this stallscope reads {VERSION}. "
            "Open it with the stallscope that wrote it"
        )
    try:
        tables = {table.field: _table(folder, table) for table in contents.tables}
        values = {
            field: _checked(kind, head[field], field, contents)
            for field, kind in contents.values.items()
        }
        counts = _checked(dict[str, int], head["parts"], "parts", contents)
        parts = {
            field: part
            for field, kind in contents.parts.items()
            if (part := _part(folder / field, kind, counts[field])) is not None
        }
        return result(**tables, **values, **parts)
    except RunFormatError:
        raise
    except KeyError as error:
        raise RunFormatError(f"{folder}/{contents.head} has no {error}: {_REMEDY}") from error
    except (OSError, TypeError, ValueError, OverflowError, RecursionError, *_POLARS) as error:
        why = without_controls(str(error).partition("\n")[0])
        raise RunFormatError(
            f"{folder} is not a whole {contents.noun} ({why}): {_REMEDY}"
        ) from error


def load(folder: Path) -> Any:
    """Read the result in a folder, of any kind.

    Raises:
        RunFormatError: no result, a damaged result, or another schema version.
    """
    kind = kind_in(folder)
    if kind is None:
        why = "it is a file" if folder.exists() else "there is no such folder"
        if folder.is_dir():
            why = f"it has no {', '.join(f'{kind}.json' for kind in KINDS)}"
        raise RunFormatError(
            f"{folder} is not a saved result: {why}. Give a folder that `.save(...)` of a result "
            "or `stallscope record --out` wrote"
        )
    return _class_of(kind).load(folder)


def kind_in(folder: Path) -> str | None:
    """Return the kind of result in a folder; None without a result."""
    return next((kind for kind in KINDS if (folder / f"{kind}.json").exists()), None)


def _class_of(kind: str) -> Any:
    """Import the class of a kind by its public name, as this layer must not import it."""
    return getattr(import_module("stallscope"), kind.capitalize())


def _check_place(contents: Contents, folder: Path) -> None:
    if folder.is_file():
        raise RunFormatError(f"{folder} is a file; give a new folder for the {contents.noun}")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    ours = {*contents.names, *contents.beside}
    if any(name not in ours and not name.endswith(".part") for name in names):
        raise RunFormatError(
            f"{folder} holds other files; give a new folder for the {contents.noun}"
        )


@contextmanager
def _replaced(folder: Path, names: list[str]) -> Iterator[Path]:
    """Yield a new folder, whose files replace those in `folder` if the block does not fail.

    The folder itself stays, so it may be a mount point or the current folder. The last of the names
    is removed first and added last.
    """
    work = part_of(folder / "new")
    new, old = work / "new", work / "old"
    try:
        new.mkdir(0o700, parents=True)
        old.mkdir()
        yield new
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    # A rename that fails leaves the older files in the folder's `.new.*.part/old`
    for name in reversed(names):
        if os.path.lexists(folder / name):
            (folder / name).rename(old / name)
    for name in names:
        if (new / name).exists():
            (new / name).rename(folder / name)
    shutil.rmtree(work, ignore_errors=True)


def _write(result: Any, contents: Contents, folder: Path) -> None:
    for table in contents.tables:
        arrow_files.write(getattr(result, table.field), folder / table.name)
    counts = {}
    for field in contents.parts:
        part = getattr(result, field)
        several = isinstance(part, tuple)
        items = part if several else [] if part is None else [part]
        counts[field] = len(items)
        for number, item in enumerate(items, 1):
            item.save(folder / field / str(number) if several else folder / field)
    values = {field: getattr(result, field) for field in contents.values}
    head = {"kind": contents.kind, "schema_version": VERSION, **values, "parts": counts}
    plain: Any = lambda value: vars(value) if is_dataclass(value) else float(value)  # noqa: E731
    (folder / contents.head).write_text(json.dumps(head, indent=2, default=plain), encoding="utf-8")


def head_of(contents: Contents, folder: Path) -> dict[str, Any]:
    """Read the head of a result, unchecked."""
    path = folder / contents.head
    if not os.path.lexists(path):
        raise RunFormatError(
            f"{folder} is not a {contents.noun}: it has no {contents.head}. Give a folder that "
            f"`.save(...)` of a {contents.noun} wrote"
        )
    try:
        text = read_file(path, _MOST_HEAD_BYTES)
        head = json_without_controls(json.loads(text), _LONGEST_TEXT)
    except (OSError, ValueError, RecursionError) as error:
        raise RunFormatError(f"{path} cannot be read ({error}): {_REMEDY}") from error
    if not isinstance(head, dict):
        raise RunFormatError(f"{path} is damaged (no JSON object): {_REMEDY}")
    return head


def _part(folder: Path, kind: str, count: int) -> Any:
    """Read the result in a folder, or all (`count`) in its numbered folders; None without any."""
    if not os.path.lexists(folder):
        if count:
            raise ValueError(f"{folder.name} is missing")
        return None
    check_is_folder(folder)
    cls = _class_of(kind)
    if os.path.lexists(folder / f"{kind}.json"):
        return read(cls, cls._contents, folder)
    numbered = [item for item in folder.iterdir() if item.name.isdecimal()]
    items = sorted(numbered, key=lambda item: int(item.name[:9]))
    for item in items:
        check_is_folder(item)
    if count != len(items):
        raise ValueError(f"{folder.name} holds {len(items)} of {count}")
    return tuple(read(cls, cls._contents, item) for item in items)


def check_is_folder(path: Path) -> None:
    """Raise ValueError for a link, which may lead out of a result, or back into it."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise ValueError(f"{path.name} is no folder, or only a link to one")


def _table(folder: Path, table: StoredTable) -> pl.DataFrame:
    """Read a table with exactly the columns of its schema, and valid values."""
    if table.is_newer and not os.path.lexists(folder / table.name):
        return pl.DataFrame(schema=table.schema)
    with file_of_anybody(folder / table.name, arrow_files.MOST_BYTES) as file:
        try:
            frame = arrow_files.read(file, list(table.schema))
        except ValueError as error:
            raise ValueError(f"{table.name}: {error}") from error
    for name, kind in table.schema.items():
        if frame.schema[name] != kind:
            kinds = f"{frame.schema[name]}, not {kind}"
            raise ValueError(f"{table.name}: {name} has values of the type {kinds}")
    texts = pl.col(pl.String, pl.Categorical).cast(pl.String)
    readable = frame.with_columns(texts.str.replace_all(CONTROLS, NO_LETTER))
    typed = readable.select(pl.col(name).cast(kind) for name, kind in table.schema.items())
    return checked(typed, table)


def checked(frame: pl.DataFrame, table: StoredTable) -> pl.DataFrame:
    """Return the table if its values are valid; else raise ValueError."""
    for column in frame:
        if why := _why_not(column, table):
            raise ValueError(f"{table.name}: {column.name} {why}")
    if "start_ns" in table.schema and not (frame["end_ns"] >= frame["start_ns"]).all():
        raise ValueError(f"{table.name}: spans end before they start")
    return frame


def _why_not(column: pl.Series, table: StoredTable) -> str:
    """Return the fault in the values of a column; empty if they are valid."""
    name, values = column.name, column.drop_nulls()
    if name in table.filled and column.null_count():
        return "has empty places"
    if name in table.words:
        unknown = set(values.unique().cast(pl.String)) - {*table.words[name]}
        return f"has an unknown word ({printable(min(unknown))})" if unknown else ""
    if column.dtype == pl.Float64 and values.is_nan().any():
        return "holds what is no number"
    if column.dtype.is_numeric() and values.len() and name not in {"index", *table.unbounded}:
        ends = cast("float", values.min()), cast("float", values.max())
        largest = _LARGEST_FLOAT if column.dtype == pl.Float64 else _LARGEST
        if not _are_possible(name, *ends, largest) or (name in table.positive and ends[0] <= 0):
            return "holds impossible numbers"
    return ""


def _are_possible(name: str, least: float, most: float, largest: float = _LARGEST_FLOAT) -> bool:
    """Return whether numbers of that name are possible measurements, by the unit in it."""
    smallest = 0 if name.endswith(_NEVER_NEGATIVE) and name != "ready_s" else -largest
    return smallest <= least and most <= largest


def _checked(kind: Any, value: Any, name: str, contents: Contents) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    is_object = origin in (dict, Mapping) or is_dataclass(kind)
    if is_object and not isinstance(value, dict):
        raise TypeError(f"{name} in {contents.head} is no JSON object")
    if isinstance(kind, type) and is_dataclass(kind):
        hints = hints_of(kind)
        names = [field.name for field in fields(kind)]
        return kind(**{key: _checked(hints[key], value[key], key, contents) for key in names})
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{name} in {contents.head} is no list")
        return tuple(_checked(parts[0], item, name, contents) for item in value)
    if is_object:
        # Numbers by name may be NaN in JSON: not measured
        return {
            key: item if type(item) is parts[1] else _checked(parts[1], item, key, contents)
            for key, item in value.items()
        }
    allowed = parts or (kind,)
    return value if Any in allowed else _checked_value(allowed, value, name, contents)


def _checked_value(allowed: tuple[Any, ...], value: Any, name: str, contents: Contents) -> Any:
    where = f"{name} in {contents.head}"
    if type(value) is int and float in allowed:
        value = float(value)
    if type(value) not in allowed:
        raise TypeError(f"{where} has a {type(value).__name__}")
    if name in contents.words and value not in contents.words[name]:
        raise ValueError(f"{where} has an unknown word ({printable(str(value))})")
    if isinstance(value, float) and not _are_possible(name, value, value):
        raise ValueError(f"{where} has what is no number")
    if isinstance(value, int) and (value < 0 or (name in contents.positive and not value)):
        raise ValueError(f"{where} has {value}")
    return value
