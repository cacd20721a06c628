"""The page cache: how much of a file is in it, and asking the kernel to drop parts of a file.

Nothing here needs a privilege. Since Linux 5.2 `mincore` tells the truth only about files that the
caller owns or may write (man 2 mincore); for others the answer is None, never 0. Caches of a
hypervisor, a file server or the disk itself cannot be seen from here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

REALLY_COLD: Final = 0.1
"""Largest share (0 to 1) in the page cache of a reading that is called cold."""
_FOLIO_BYTES: Final = 2 << 20
"""Largest piece in which the kernel caches pages; a piece that is dropped in part stays."""
_MOST_BYTES: Final = 16 << 30
"""Bytes at the begin of a file that stand for a larger file."""


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file for reading, without waiting for a pipe; yields the descriptor."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def resident_share(path: str) -> float | None:
    """Return the share (0 to 1) of a file that is in the page cache; None: unknown."""
    with opened(path) as descriptor:
        size = min(os.fstat(descriptor).st_size, _MOST_BYTES)
        resident = resident_bytes(descriptor, 0, size)
    return resident / size if size and resident is not None else None


def resident_bytes(descriptor: int, offset: int, length: int) -> int | None:
    """Return the cached bytes of a part of an open file; None: unknown."""
    if sys.platform != "linux" or not _mincore_is_true(descriptor):
        return None
    begin = offset - offset % mmap.PAGESIZE
    length = min(offset + length, os.fstat(descriptor).st_size) - begin
    if length <= 0:
        return 0
    pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    try:
        with mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=begin) as mapped:
            address = ctypes.c_void_p(np.frombuffer(mapped, np.uint8).ctypes.data)
            places = pages.ctypes.data_as(ctypes.c_void_p)
            if ctypes.CDLL(None).mincore(address, ctypes.c_size_t(length), places):
                return None
    except (OSError, ValueError):  # cannot be mapped
        return None
    return min(int((pages & 1).sum()) * mmap.PAGESIZE, length)


def drop(descriptor: int, offset: int = 0, length: int = 0) -> bool:
    """Ask the kernel to drop a part of a file from the page cache; False where it takes no advice.

    Pages that wait to be written are written first, which changes nothing in the file. Pages that
    other processes have mapped stay. A length of 0 means up to the end of the file.
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
    except OSError:  # a file system that takes no advice
        return False
    return True


def _mincore_is_true(descriptor: int) -> bool:
    if os.fstat(descriptor).st_uid == os.geteuid():
        return True
    with suppress(OSError):
        effective = os.access in os.supports_effective_ids
        return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=effective)
    return False
