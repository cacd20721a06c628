"""Format of results on disk: JSON and Arrow files, never pickle, so that they are safe to open.

The fields of a result's class declare its files (see `Contents`); this module writes and reads
them. Reading rejects values that would break a table or a picture later: a wrong type, a number out
of range, an unknown word.

Tables are uncompressed Arrow IPC files, whose size in memory equals their size on disk. Polars
would also read a compressed file, where 7 kB can hold 200 MB. So the footer is checked first: it
lists the batches of a file, and each batch states its compression. Both are FlatBuffers; see
https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format and
https://flatbuffers.dev/internals for the layout.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import field, fields, is_dataclass
from functools import partial
from importlib import import_module
from io import SEEK_END, BytesIO
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args, get_origin
from typing import get_type_hints as hints_of

import polars as pl

from stallscope.columns import Schema, is_possible
from stallscope.errors import RunFormatError
from stallscope.files import file_of_anybody, locked, part_of, read_file
from stallscope.units import json_without_controls, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KINDS: Final = (
    *("run", "ladder", "flame", "orders", "lines", "experiments", "diagnosis", "tuning"),
    *("storage", "layouts"),
)
"""Kinds of results that can be saved; each is the class of that name in the package."""

VERSION: Final = 5
"""Schema version of all kinds of results, the only readable version."""
_LONGEST_TEXT: Final = 10_000
"""Characters of a text in a head; longer texts are cut."""
_POLARS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions of polars over a damaged file; a panic is no `Exception`."""
_MOST_HEAD_BYTES: Final = 4 << 20
"""Largest head: Python's objects take twenty times the size of their JSON."""
MOST_TABLE_BYTES: Final = 2 << 30
"""Largest table: a recording keeps 256 MiB of events; spans take four times as much."""
_MAGIC: Final = b"ARROW1"
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of a footer: lists of blocks."""
_KIND, _HEADER = 1, 2
"""Fields of a block's message: kind and body of its header."""
_OF_DICTIONARY, _DATA, _COMPRESSION = 2, 1, 3
"""Kind of a message; field of a dictionary's header: its batch; field of a batch."""
_BLOCK: Final = struct.Struct("<q16x")
"""Offset; then the bytes of metadata and of data."""
_REMEDY: Final = "copy the folder once more, or record again"

R = TypeVar("R")


class StoredTable(NamedTuple):
    """Table of a result."""

    schema: Schema
    file: str
    """Name on disk."""
    is_newer: bool
    """True: folders of the same schema version may lack it; it is empty then."""


def stored(schema: Schema, file: str = "", *, is_newer: bool = False) -> Any:
    """Declare a field of a result's class that is a table, empty by default.

    Args:
        schema: its columns.
        file: name on disk; by default the field's.
        is_newer: see `StoredTable`.
    """
    about = {"table": StoredTable(schema, file, is_newer)}
    return field(default_factory=partial(pl.DataFrame, schema=schema), metadata=about)


class Contents(NamedTuple):
    """Files and folders of a kind of result: what the fields of its class declare.

    Fields of the type `Any` are not saved.
    """

    kind: str
    """One of `KINDS`."""
    noun: str
    """Noun for an error message."""
    tables: dict[str, StoredTable]
    """Fields that are `stored` tables."""
    values: dict[str, Any]
    """Fields in the head, with their types, dataclasses too."""
    parts: dict[str, Any]
    """Fields that are results or tuples of results, each in a folder of that name, by class."""

    @property
    def head(self) -> str:
        """Name of the file that is written last: it marks a complete result."""
        return f"{self.kind}.json"

    @property
    def names(self) -> list[str]:
        """Names of all files and folders, the head last."""
        return [*(table.file for table in self.tables.values()), *self.parts, self.head]


def contents_of(result: Any) -> Contents:
    """Return what a class of results declares."""
    tables, values, parts = {}, {}, {}
    hints = hints_of(result)
    for each in fields(result):
        kind = hints[each.name]
        part = next((part for part in get_args(kind) if hasattr(part, "_noun")), None)
        if table := each.metadata.get("table"):
            tables[each.name] = table._replace(file=f"{table.file or each.name}.arrow")
        elif part is not None:
            parts[each.name] = part
        elif kind is not Any:
            values[each.name] = kind
    noun = result._noun  # noqa: SLF001 - of a result
    return Contents(result.__name__.lower(), noun, tables, values, parts)


def save(result: Any, folder: Path) -> Path:
    """Write a result; it replaces an older result only when it is complete.

    Raises:
        RunFormatError: the folder holds something else, cannot be written, or another process
            saves there at the moment.
    """
    contents = contents_of(type(result))
    try:
        _check_place(contents, folder, result._left_alone)  # noqa: SLF001 - of a result
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


def read(result: type[R], folder: Path) -> R:
    """Read a saved result. Runs no code from the folder.

    Raises:
        RunFormatError: no result, a damaged result, or another schema version.
    """
    contents = contents_of(result)
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
        tables = {name: _table(folder, table) for name, table in contents.tables.items()}
        values = {
            name: _checked(kind, head[name], name, contents.head)
            for name, kind in contents.values.items()
        }
        counts = _checked(dict[str, int], head["parts"], "parts", contents.head)
        parts = {
            name: part
            for name, kind in contents.parts.items()
            if (part := _part(folder / name, kind, counts[name])) is not None
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
    # By its public name, as this layer must not import it
    return getattr(import_module("stallscope"), kind.capitalize()).load(folder)


def kind_in(folder: Path) -> str | None:
    """Return the kind of result in a folder; None without a result."""
    return next((kind for kind in KINDS if (folder / f"{kind}.json").exists()), None)


def _check_place(contents: Contents, folder: Path, beside: tuple[str, ...]) -> None:
    if folder.is_file():
        raise RunFormatError(f"{folder} is a file; give a new folder for the {contents.noun}")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    ours = {*contents.names, *beside}
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
    for field_name, table in contents.tables.items():
        frame = getattr(result, field_name)
        # The file repeats a text as often as the table
        oldest = pl.CompatLevel.oldest()
        frame.write_ipc(folder / table.file, compression="uncompressed", compat_level=oldest)
    counts = {}
    for name in contents.parts:
        part = getattr(result, name)
        several = isinstance(part, tuple)
        items = part if several else [] if part is None else [part]
        counts[name] = len(items)
        for number, item in enumerate(items, 1):
            item.save(folder / name / str(number) if several else folder / name)
    values = {name: getattr(result, name) for name in contents.values}
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


def _part(folder: Path, kind: Any, count: int) -> Any:
    """Read the result in a folder, or all (`count`) in its numbered folders; None without any."""
    if not os.path.lexists(folder):
        if count:
            raise ValueError(f"{folder.name} is missing")
        return None
    check_is_folder(folder)
    if os.path.lexists(folder / contents_of(kind).head):
        return read(kind, folder)
    numbered = [item for item in folder.iterdir() if item.name.isdecimal()]
    items = sorted(numbered, key=lambda item: int(item.name[:9]))
    for item in items:
        check_is_folder(item)
    if count != len(items):
        raise ValueError(f"{folder.name} holds {len(items)} of {count}")
    return tuple(read(kind, item) for item in items)


def check_is_folder(path: Path) -> None:
    """Raise ValueError for a link, which may lead out of a result, or back into it."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a folder, or is a link to one")


def _table(folder: Path, table: StoredTable) -> pl.DataFrame:
    """Read a table with exactly the columns of its schema, and valid values."""
    if table.is_newer and not os.path.lexists(folder / table.file):
        return pl.DataFrame(schema=table.schema)
    with file_of_anybody(folder / table.file, MOST_TABLE_BYTES) as file:
        try:
            return table.schema.read(_read_arrow(file, list(table.schema)))
        except ValueError as error:
            raise ValueError(f"{table.file}: {error}") from error


def _read_arrow(file: IO[bytes], columns: Sequence[str]) -> pl.DataFrame:
    file.seek(0, SEEK_END)
    ends = []
    for begin in (0, max(file.tell() - len(_MAGIC), 0)):
        file.seek(begin)
        ends.append(file.read(len(_MAGIC)))
    if set(ends) != {_MAGIC}:  # before reading a gigabyte of something else
        raise ValueError("it is not a complete Arrow file")
    file.seek(0)
    data = file.read()
    try:
        _refuse_compressed(data)
    except (struct.error, IndexError) as error:
        raise ValueError("it is not a complete Arrow file") from error
    return pl.read_ipc(BytesIO(data), columns=list(columns)).select(columns)


def _refuse_compressed(data: bytes) -> None:
    (length,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = _follow(data, len(data) - 10 - length)
    for list_of_blocks in (_DICTIONARIES, _BATCHES):
        for offset in _blocks(data, footer, list_of_blocks):
            message = _follow(data, offset + 8)  # behind a marker and the length of the metadata
            batch = _follow(data, _place(data, message, _HEADER))
            if data[_place(data, message, _KIND)] == _OF_DICTIONARY:
                batch = _follow(data, _place(data, batch, _DATA))
            if _place(data, batch, _COMPRESSION):
                raise ValueError("it is compressed, so that its size in memory is not known")


def _blocks(data: bytes, footer: int, field: int) -> Iterator[int]:
    if _place(data, footer, field):
        start = _follow(data, _place(data, footer, field))
        (count,) = struct.unpack_from("<I", data, start)
        for number in range(count):
            yield _BLOCK.unpack_from(data, start + 4 + number * _BLOCK.size)[0]


def _place(data: bytes, table: int, field: int) -> int:
    """Return the position of a field in a FlatBuffers table; 0 if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    names = table - back
    (size,) = struct.unpack_from("<H", data, names)
    entry = 4 + 2 * field
    (offset,) = struct.unpack_from("<H", data, names + entry) if entry < size else (0,)
    return table + offset if offset else 0


def _follow(data: bytes, at: int) -> int:
    """Return the position to which the offset at a position leads."""
    if at < 0:  # `struct` would count from the end
        raise IndexError(at)
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


def _checked(kind: Any, value: Any, name: str, head: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    where, is_object = f"{name} in {head}", origin in (dict, Mapping) or is_dataclass(kind)
    if is_object and not isinstance(value, dict):
        raise TypeError(f"{where} is not a JSON object")
    if isinstance(kind, type) and is_dataclass(kind):
        hints = hints_of(kind)
        names = [each.name for each in fields(kind)]
        return kind(**{key: _checked(hints[key], value[key], key, head) for key in names})
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{where} is not a list")
        return tuple(_checked(parts[0], item, name, head) for item in value)
    if is_object:
        # Numbers by name may be NaN in JSON: not measured
        return {
            key: item if type(item) is parts[1] else _checked(parts[1], item, key, head)
            for key, item in value.items()
        }
    allowed = parts or (kind,)
    return value if Any in allowed else _checked_value(allowed, value, name, where)


def _checked_value(allowed: tuple[Any, ...], value: Any, name: str, where: str) -> Any:
    if type(value) is int and float in allowed:
        value = float(value)
    if type(value) not in allowed:
        raise TypeError(f"{where} has a {type(value).__name__}")
    if isinstance(value, float) and not is_possible(name, value, value):
        raise ValueError(f"{where} has a value that is not a number")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{where} has {value}")
    return value
