"""Reading the user's files in one access pattern, with several readers, and timing each request.

Readers are threads: a read releases Python's lock while it waits. Each request is made once, so
that no earlier one has brought its bytes into the page cache, and what is cached is counted before
the clock starts: a reading that is called cold was cold.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stallscope.storage.page_cache import disable_readahead, drop, opened, resident_bytes
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from stallscope.storage.places import DataFile

SAMPLE, RANDOM, SEQUENTIAL = "sample", "random", "sequential"
"""Access: the bytes of a sample; pieces at random offsets; files from begin to end."""
COLD, WARM = "cold", "warm"
SMALL_BYTES: Final = 4096
LARGE_BYTES: Final = 1 << 20
MOST_BYTES: Final = 48 << 20
"""Bytes that one reading requests at most."""
_MOST_REQUESTS: Final = 2_000
_STRIDE_BYTES: Final = 1 << 20
"""Distance of random pieces, except small ones, so that the kernel's readahead misses the next."""
_MOST_OPEN: Final = 256
"""Files that are held open while pieces of them are read."""
_GRACE_S: Final = 2.0


class ReadRequest(NamedTuple):
    """A piece of a file to read."""

    path: str
    offset: int
    """Bytes; -1: open the file, read all of it, and close it."""
    length: int
    """Bytes."""

    @property
    def is_whole(self) -> bool:
        """True if the request opens the file, too."""
        return self.offset < 0


@dataclass(frozen=True)
class Backend:
    """Functions that open, read and drop files; by default those of this machine."""

    read: Callable[[Any, int, int], bytes] = os.pread
    """Reads (open file, length, offset)."""
    drop: Callable[[Any, int, int], bool] = drop
    """Drops (open file, offset, length) from the page cache."""
    resident_bytes: Callable[[Any, int, int], int | None] = resident_bytes
    """Counts the bytes of (open file, offset, length) in the page cache."""
    open: Callable[[str], AbstractContextManager[Any]] = opened
    grace_s: float = _GRACE_S
    """Seconds after which a read that does not return is abandoned."""
    connects: bool = False
    """True if a reader's first request is slower than the rest, as it connects to a server."""

    def fetch(self, request: ReadRequest, file: Any = None) -> int:
        """Make a request, of an open file if given; returns the bytes that came.

        Raises:
            OSError: the file is gone.
        """
        if file is not None:
            return len(self.read(file, request.length, request.offset))
        with self.open(request.path) as opened_file:
            return len(self.read(opened_file, request.length, max(request.offset, 0)))


@dataclass
class Reading:
    """Result of one reading."""

    seconds: float = 0.0
    """Time from the first request to the end of the last."""
    latencies_s: list[float] = field(default_factory=list)
    """Duration of each request."""
    bytes: int = 0
    cached_share: float | None = None
    """Share (0 to 1) of the requested bytes in the page cache just before; None: unknown."""
    failed: int = 0
    """Number of requests whose file was gone, shorter, or not readable."""
    error: str = ""
    """Message of the last failed request; empty: none."""
    hangs: bool = False
    """True if a read did not return."""


def requests(
    files: Sequence[DataFile], access: str, length: int | None, seed: int
) -> list[ReadRequest]:
    """Choose what to read: no byte twice, and at most `MOST_BYTES`.

    Args:
        files: sample of the data.
        access: one of the words above.
        length: bytes of a request; None: whole files.
        seed: of the random choices.
    """
    rng = random.Random(seed)  # noqa: S311 - which pieces are read is no secret
    if length is None:
        shuffled = rng.sample(list(files), len(files))
        return _limited(ReadRequest(file.path, -1, file.size) for file in shuffled)
    if access == SEQUENTIAL:
        first = rng.randrange(len(files)) if files else 0
        return _limited(
            ReadRequest(file.path, offset, min(length, file.size - offset))
            for file in (*files[first:], *files[:first])
            for offset in range(0, file.size, length)
        )
    stride = max(length, _STRIDE_BYTES if length > SMALL_BYTES else 4 * SMALL_BYTES)
    cells = []
    for file in files:
        if file.size >= length:
            number = max(file.size // stride, 1)
            chosen = rng.sample(range(number), min(number, _MOST_REQUESTS))
            cells += [(file, cell * stride) for cell in chosen]
    rng.shuffle(cells)
    return _limited(
        ReadRequest(file.path, begin + _aligned(rng, min(stride, file.size) - length), length)
        for file, begin in cells
    )


def _aligned(rng: random.Random, most: int) -> int:
    return rng.randrange(most + 1) // SMALL_BYTES * SMALL_BYTES


def _limited(wanted: Iterable[ReadRequest]) -> list[ReadRequest]:
    chosen: list[ReadRequest] = []
    total = 0
    for request in wanted:
        total += request.length
        if chosen and (len(chosen) >= _MOST_REQUESTS or total > MOST_BYTES):
            break
        chosen.append(request)
    return chosen


def make_cold(wanted: Sequence[ReadRequest], backend: Backend) -> None:
    """Drop what is going to be read from the page cache, as far as possible."""
    _on_each_piece(wanted, backend, backend.drop)


def cached_share(wanted: Sequence[ReadRequest], backend: Backend) -> float | None:
    """Return the share (0 to 1) of the requested bytes in the page cache; None: unknown."""
    resident = _on_each_piece(wanted, backend, backend.resident_bytes)
    counted = [number for number in resident if number is not None]
    if not counted or len(counted) < len(resident):
        return None
    return min(sum(counted) / max(sum(request.length for request in wanted), 1), 1.0)


def _on_each_piece(
    wanted: Sequence[ReadRequest], backend: Backend, call: Callable[[Any, int, int], int | None]
) -> list[int | None]:
    results: list[int | None] = []
    for path, pieces in groupby(sorted(wanted), key=lambda request: request.path):
        with suppress(OSError), backend.open(path) as file:
            results += [call(file, max(piece.offset, 0), piece.length) for piece in pieces]
    return results


def timed(
    wanted: Sequence[ReadRequest],
    readers: int,
    seconds: float,
    backend: Backend,
    *,
    readahead: bool = True,
) -> Reading:
    """Read with several readers at once, and time each request.

    Args:
        wanted: requests, in order; those for which there is no time are left out.
        readers: number of readers.
        seconds: time limit.
        backend: reads.
        readahead: let the kernel read ahead.
    """
    reading = Reading(cached_share=cached_share(wanted, backend))
    files: dict[str, Any] = {}
    with ExitStack() as open_files:
        pieces = dict.fromkeys(request.path for request in wanted if not request.is_whole)
        for path in islice(pieces, _MOST_OPEN):
            with suppress(OSError):
                files[path] = open_files.enter_context(backend.open(path))
                if not readahead and isinstance(files[path], int):
                    disable_readahead(files[path])
        pool = _Readers(wanted, files, seconds, backend, reading)
        threads = [threading.Thread(target=pool.read, daemon=True) for _ in range(readers)]
        pool.start = threading.Barrier(readers + 1, pool.begin)
        for thread in threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            pool.start.wait(seconds + backend.grace_s if backend.connects else None)
        for thread in threads:
            thread.join(max(pool.until_s + backend.grace_s - time.perf_counter(), 0.01))
        reading.hangs = any(thread.is_alive() for thread in threads)
        if reading.hangs:
            open_files.pop_all()  # a thread still reads: its files stay open
    return reading


class _Readers:
    """Queue of requests that several threads work off; each adds to one `Reading`."""

    start: threading.Barrier

    def __init__(
        self,
        wanted: Sequence[ReadRequest],
        files: dict[str, Any],
        seconds: float,
        backend: Backend,
        reading: Reading,
    ) -> None:
        self._queue, self._first = deque(wanted), next(iter(wanted), None)
        self._files, self._backend, self._reading = files, backend, reading
        self._seconds, self._lock = seconds, threading.Lock()
        self._began_s = self.until_s = 0.0

    def begin(self) -> None:
        """Start the clock, when all readers are ready."""
        self._began_s = time.perf_counter()
        self.until_s = self._began_s + self._seconds

    def read(self) -> None:
        """Make requests until there are none, or the time is over."""
        if self._backend.connects and self._first is not None:
            with suppress(OSError):  # the requests that count report it
                self._backend.fetch(self._first)
        with suppress(threading.BrokenBarrierError):
            self.start.wait()
        with suppress(IndexError):  # another reader took the last request
            while time.perf_counter() < self.until_s:
                self._fetch(self._queue.popleft())

    def _fetch(self, request: ReadRequest) -> None:
        began_s, error, received = time.perf_counter(), "", 0
        try:
            received = self._backend.fetch(request, self._files.get(request.path))
        except OSError as failed:
            error = said_by(failed)
        end_s = time.perf_counter()
        with self._lock:
            if received < request.length:
                self._reading.failed += 1
                self._reading.error = error or self._reading.error
                return
            self._reading.latencies_s.append(end_s - began_s)
            self._reading.bytes += received
            self._reading.seconds = max(self._reading.seconds, end_s - self._began_s)
