"""What a Parquet file would take once it is read, found out without reading it.

Some hundred bytes can stand for gigabytes: pages are compressed, and a value that repeats is kept
once. The sizes stand in the file's footer and before each page, in Thrift's compact protocol; see
https://parquet.apache.org/docs/file-format/metadata.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC: Final = b"PAR1"
_MOST_FOOTER_BYTES: Final = 4 << 20
"""A row group of a dozen columns takes some 2 kB, and holds 100,000 rows or more."""
_MOST_PAGE_HEADER_BYTES: Final = 1 << 16
_DEEPEST: Final = 16
_DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 7, 8, 9, 10, 12
_ROW_GROUPS, _GROUP_COLUMNS, _GROUP_ROWS, _CHUNK_META = 4, 1, 3, 3
_COMPRESSED, _DATA_AT, _DICTIONARY_AT = 7, 9, 11
_PAGE_SIZE, _PAGE_COMPRESSED, _DATA_PAGE, _DATA_PAGE_2, _VALUES = 2, 3, 5, 8, 1


def sizes_read(file: IO[bytes]) -> tuple[int, int]:
    """How many rows a file has, or values in a column, and how many bytes its unpacked pages.

    Raises:
        ValueError: it is no Parquet file, or says of itself what cannot be.
    """
    try:
        length = file.seek(0, 2)
        groups = _footer(file, length).get(_ROW_GROUPS, [])
        chunks = [chunk for group in groups for _, chunk in _columns(group)]
        if sum(_natural(chunk[_COMPRESSED]) for chunk in chunks) > length:
            raise ValueError("its columns lie over each other")
        rows = sum(_natural(group[_GROUP_ROWS]) for group in groups)
        values, unpacked = Counter[int](), 0
        for column, chunk in ((at, one) for group in groups for at, one in _columns(group)):
            for size, count in _pages(file, chunk):
                unpacked += size
                values[column] += count
        return max(rows, *values.values(), 0), unpacked
    except (AttributeError, IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError("it is no whole Parquet file") from error


def _footer(file: IO[bytes], length: int) -> dict[int, Any]:
    file.seek(max(length - 8, 0))
    (size,), magic = struct.unpack("<I", file.read(4)), file.read(4)
    if magic != _MAGIC or not 0 < size <= min(length - 12, _MOST_FOOTER_BYTES):
        raise ValueError("it is no whole Parquet file")
    file.seek(length - 8 - size)
    return _Compact(file.read(size)).struct()


def _columns(group: dict[int, Any]) -> Iterator[tuple[int, dict[int, Any]]]:
    """What is said of each column of a row group."""
    return enumerate(chunk[_CHUNK_META] for chunk in group[_GROUP_COLUMNS])


def _pages(file: IO[bytes], chunk: dict[int, Any]) -> Iterator[tuple[int, int]]:
    """Unpacked bytes and number of values of each page of a column."""
    place = min(chunk[_DATA_AT], chunk.get(_DICTIONARY_AT) or chunk[_DATA_AT])
    end = place + chunk[_COMPRESSED]
    while place < end:
        file.seek(_natural(place))
        header = _Compact(file.read(_MOST_PAGE_HEADER_BYTES))
        page = header.struct()
        about = page.get(_DATA_PAGE) or page.get(_DATA_PAGE_2) or {_VALUES: 0}
        yield _natural(page[_PAGE_SIZE]), _natural(about[_VALUES])
        place += header.place + _natural(page[_PAGE_COMPRESSED])


def _natural(number: int) -> int:
    if number < 0:
        raise ValueError("it has a size below 0")
    return number


class _Compact:
    """Reads Thrift's compact protocol: structs as numbered fields, whatever they mean."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._depth = 0
        self.place = 0
        """Of the next byte."""

    def struct(self) -> dict[int, Any]:
        """A struct: its fields by their numbers."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while byte := self._byte():
            step, kind = byte >> 4, byte & 15
            number = number + step if step else self._signed()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # a truth as part of a list, or a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            return self._list()
        return self._skipped(kind)

    def _list(self) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:  # noqa: PLR2004 - more than fit into four bits
            count = self._unsigned()
        self._depth += 1
        if self._depth > _DEEPEST or count > len(self._data) - self.place:
            raise ValueError("it is nested too deep, or a list longer than the file")
        found = [self._value(kind) for _ in range(count)]
        self._depth -= 1
        return found

    def _skipped(self, kind: int) -> None:
        """Texts and fractions: nothing that is asked for."""
        if kind not in (_DOUBLE, _BINARY):  # no map is in this format
            raise ValueError("it is no whole Parquet file")
        length = 8 if kind == _DOUBLE else self._unsigned()
        self.place += length

    def _byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:  # noqa: PLR2004 - the last byte; of 64 bits
                return number

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
