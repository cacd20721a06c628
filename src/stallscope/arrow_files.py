"""Tables as uncompressed Arrow IPC files, whose size in memory equals their size on disk.

Polars would also read a compressed file, where 7 kB can hold 200 MB. So this module checks the
footer first: it lists the batches of a file, and each batch states its compression. Both are
FlatBuffers; see https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format and
https://flatbuffers.dev/internals for the layout.
"""

from __future__ import annotations

import struct
from io import SEEK_END, BytesIO
from typing import IO, TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_BYTES: Final = 2 << 30
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


def write(table: pl.DataFrame, path: Path) -> None:
    """Write a table; the file repeats a text as often as the table."""
    table.write_ipc(path, compression="uncompressed", compat_level=pl.CompatLevel.oldest())


def read(file: IO[bytes], columns: Sequence[str]) -> pl.DataFrame:
    """Read columns of a table.

    Raises:
        ValueError: the file is incomplete, compressed, or no Arrow file.
        PolarsError: the data inside is damaged.
    """
    file.seek(0, SEEK_END)
    ends = []
    for begin in (0, max(file.tell() - len(_MAGIC), 0)):
        file.seek(begin)
        ends.append(file.read(len(_MAGIC)))
    if set(ends) != {_MAGIC}:  # before reading a gigabyte of something else
        raise ValueError("it is no whole Arrow file")
    file.seek(0)
    data = file.read()
    try:
        _refuse_compressed(data)
    except (struct.error, IndexError) as error:
        raise ValueError("it is no whole Arrow file") from error
    return pl.read_ipc(BytesIO(data), columns=list(columns)).select(columns)


def _refuse_compressed(data: bytes) -> None:
    (length,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = _follow(data, len(data) - 10 - length)
    for field in (_DICTIONARIES, _BATCHES):
        for offset in _blocks(data, footer, field):
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
