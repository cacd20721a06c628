"""A trace as a file: JSON, compressed if its name says so; whole, or not there at all."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

from stallscope.errors import TraceFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PLAIN, _PACKED = ".json", ".json.gz"
_OURS: Final = b'{"displayTimeUnit":"ms","otherData":{"by":"stallscope"'
"""How each of our traces begins; only such a file is written over."""
_LEVEL: Final = 4
"""Of the compression: more takes longer than it saves."""


def write(path: Path, events: Iterable[dict[str, Any]], about: dict[str, Any]) -> Path:
    """Write a trace; while it is being written it has another name.

    Args:
        path: ends in `.json`, or in `.json.gz` for a compressed file.
        events: of the Trace Event Format, see `analyze.trace`.
        about: what else there is to know; JSON's values.

    Returns:
        The path.

    Raises:
        TraceFileError: it ends otherwise, is no trace of ours but there, or cannot be written.
    """
    if not path.name.endswith((_PLAIN, _PACKED)):
        raise TraceFileError(
            f"a trace is {_PLAIN} or {_PACKED}: {str(path)!r} cannot be its name, give one such as "
            f"{str(path.with_suffix(_PACKED))!r}"
        )
    meanwhile = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _opened(meanwhile, packed=path.name.endswith(_PACKED)) as file:
                file.writelines(_lines(events, about))
            meanwhile.replace(path)
        finally:
            meanwhile.unlink(missing_ok=True)
    except OSError as error:
        raise TraceFileError(
            f"the trace cannot be written to {path} ({error.strerror or error}): give another place"
        ) from error
    return path


def _check_free(path: Path) -> None:
    """Leave alone what is there, unless it is an older trace of ours."""
    if path.is_dir():
        raise TraceFileError(f"{path} is a folder: give the name of a file in it")
    if not path.exists():
        return
    try:
        with (gzip.open if path.name.endswith(_PACKED) else open)(path, "rb") as file:
            begins = file.read(len(_OURS))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        begins = b"something else"
    if begins not in (b"", _OURS):
        raise TraceFileError(
            f"{path} is there already and is no trace of stallscope's: give another name"
        )


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[IO[bytes]]:
    with path.open("xb") as file:
        if not packed:
            yield file
            return
        # Without its name and time in it: the same run gives the same file
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as inner:
            yield inner  # type: ignore[misc]  # a file of bytes, too


def _lines(events: Iterable[dict[str, Any]], about: dict[str, Any]) -> Iterator[bytes]:
    """One event a line: what is written can be looked at, and is never whole in memory."""
    text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    yield _OURS + b"," + text(about)[1:].encode() + b',"traceEvents":[\n'
    between = b""
    for event in events:
        yield between + text(event).encode()
        between = b",\n"
    yield b"\n]}\n"
