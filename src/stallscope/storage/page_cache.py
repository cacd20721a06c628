"""The page cache: how much of a file lies in it, and asking the kernel to let some of that go.

Nothing here needs a privilege. Since Linux 5.2 `mincore` tells the truth only of files that the
caller owns or may write (man 2 mincore); of others nothing is known, which is None and never 0.
What a hypervisor, a file server or the disk itself keeps in memory cannot be seen from here.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

REALLY_COLD: Final = 0.1
"""A reading of which the page cache held more than this is not called cold."""
_READ = _SHARED = 1
"""PROT_READ and MAP_SHARED of mmap(2)."""
_FAILED: Final = ctypes.c_void_p(-1).value
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_FOLIO_BYTES: Final = 2 << 20
"""The kernel keeps pages in pieces of up to this size, and keeps a piece that is given in part."""
_WHOLE_BYTES: Final = 256 << 20
_PIECES, _PIECE_BYTES = 64, 1 << 20
"""Of a file that is larger than the number before, so many pieces are looked at."""


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A file for reading, which is closed after the block; a pipe is not waited for.

    Raises:
        OSError: it is gone, or may not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def resident_share(path: str) -> float | None:
    """Share (0 to 1) of a file that lies in the page cache; None where nobody says.

    Raises:
        OSError: the file is gone, or may not be read.
    """
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        pieces = [(0, size)]
        if size > _WHOLE_BYTES:
            step = size // _PIECES
            pieces = [(at * step, _PIECE_BYTES) for at in range(_PIECES)]
        found = [resident_bytes(descriptor, at, length) for at, length in pieces]
    known = [one for one in found if one is not None]
    asked = sum(length for _, length in pieces)
    return sum(known) / asked if asked and len(known) == len(found) else None


def resident_bytes(descriptor: int, offset: int, length: int) -> int | None:
    """How many bytes of a part of an open file lie in the page cache; None where nobody says."""
    libc = _libc()
    if libc is None or not _is_told_of(descriptor):
        return None
    begin = offset - offset % _PAGE
    length = min(offset + length, os.fstat(descriptor).st_size) - begin
    if length <= 0:
        return 0
    pages = -(-length // _PAGE)
    at = libc.mmap(None, length, _READ, _SHARED, descriptor, begin)
    if at == _FAILED:
        return None
    try:
        seen = (ctypes.c_ubyte * pages)()
        if libc.mincore(at, length, seen):
            return None
    finally:
        libc.munmap(at, length)
    inside = np.frombuffer(bytes(seen), np.uint8) & 1
    return min(int(inside.sum()) * _PAGE, length)


def drop(descriptor: int, offset: int = 0, length: int = 0) -> bool:
    """Ask the kernel to let a part of a file go; whether it can be asked at all.

    Pages that were not written to the disk yet stay: they are written first, which changes nothing
    of the file. What others have mapped stays, too. A length of 0 is up to the end of the file.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    size = os.fstat(descriptor).st_size
    end = offset + (length or size)
    offset -= offset % _FOLIO_BYTES
    length = 0 if end >= size else -(-(end - offset) // _FOLIO_BYTES) * _FOLIO_BYTES
    try:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        if resident_bytes(descriptor, offset, end - offset):
            with suppress(OSError):
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    except OSError:  # a kind of file system that knows no advice
        return False
    return True


def read_exactly_what_is_asked(descriptor: int) -> None:
    """Let the kernel read nothing ahead of what is asked for."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def _is_told_of(descriptor: int) -> bool:
    """Whether `mincore` says of this file what is so."""
    about = os.fstat(descriptor)
    if about.st_uid == os.geteuid():
        return True
    with suppress(OSError):
        effective = os.access in os.supports_effective_ids
        return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=effective)
    return False


@cache
def _libc() -> Any:
    """The C library, with the types of what is called; None off Linux."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    place, number = ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = place
    libc.mmap.argtypes = (place, ctypes.c_size_t, number, number, number, ctypes.c_ssize_t)
    libc.munmap.argtypes = (place, ctypes.c_size_t)
    libc.mincore.argtypes = (place, ctypes.c_size_t, place)
    return libc
