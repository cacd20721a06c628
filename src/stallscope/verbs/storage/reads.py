"""Reading the user's files in one access pattern, with several readers, and timing each request.

Readers are threads: a read releases Python's lock while it waits. Each request is made once, so
that no earlier one has brought its bytes into the page cache, and what is cached is counted before
the clock starts: a reading that is called cold was cold.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.verbs.storage.page_cache import drop, opened, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stallscope.verbs.storage.places import DataFile

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


@dataclass
class Reading:
    """Result of one reading."""

    seconds: float = 0.0
    """Time from the first request to the end of the last."""
    latencies_s: list[float] = field(default_factory=list)
    bytes: int = 0
    cached_share: float | None = None
    """Share (0 to 1) of the requested bytes in the page cache just before; None: unknown."""
    failed: int = 0
    """Number of requests whose file was gone, shorter, or not readable."""


def requests(
    files: Sequence[DataFile], access: str, length: int | None, seed: int
) -> list[ReadRequest]:
    """Choose what to read: no byte twice, and at most `MOST_BYTES`; of length None: whole files."""
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
    pieces = []
    for file, begin in cells:
        aligned = rng.randrange(min(stride, file.size) - length + 1) // SMALL_BYTES * SMALL_BYTES
        pieces.append(ReadRequest(file.path, begin + aligned, length))
    return _limited(pieces)


def _limited(wanted: Iterable[ReadRequest]) -> list[ReadRequest]:
    chosen: list[ReadRequest] = []
    total = 0
    for request in wanted:
        total += request.length
        if chosen and (len(chosen) >= _MOST_REQUESTS or total > MOST_BYTES):
            break
        chosen.append(request)
    return chosen


def make_cold(wanted: Sequence[ReadRequest]) -> None:
    """Drop what is going to be read from the page cache, as far as possible."""
    _on_each_piece(wanted, drop)


def cached_share(wanted: Sequence[ReadRequest]) -> float | None:
    """Return the share (0 to 1) of the requested bytes in the page cache; None: unknown."""
    resident = _on_each_piece(wanted, resident_bytes)
    counted = [number for number in resident if number is not None]
    if not counted or len(counted) < len(resident):
        return None
    return min(sum(counted) / max(sum(request.length for request in wanted), 1), 1.0)


def _on_each_piece(
    wanted: Sequence[ReadRequest], call: Callable[[int, int, int], int | None]
) -> list[int | None]:
    results: list[int | None] = []
    for path, pieces in groupby(sorted(wanted), key=lambda request: request.path):
        with suppress(OSError), opened(path) as file:
            results += [call(file, max(piece.offset, 0), piece.length) for piece in pieces]
    return results


def timed(
    wanted: Sequence[ReadRequest], readers: int, seconds: float, *, readahead: bool = True
) -> Reading:
    """Read with several readers at once, and time each request, for so many seconds.

    Requests that are under way then are finished, and those after them are left out.
    """
    reading = Reading(cached_share=cached_share(wanted))
    files: dict[str, int] = {}
    with ExitStack() as open_files, ThreadPoolExecutor(readers) as pool:
        pieces = dict.fromkeys(request.path for request in wanted if not request.is_whole)
        for path in islice(pieces, _MOST_OPEN):
            with suppress(OSError):
                files[path] = open_files.enter_context(opened(path))
                if not readahead and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(files[path], 0, 0, os.POSIX_FADV_RANDOM)
        queue, until_s = iter(wanted), time.perf_counter() + seconds
        work = [pool.submit(lambda: list(_read(queue, files, until_s))) for _ in range(readers)]
        rows = list(chain.from_iterable(each.result() for each in work))
    done = [(begin_s, end_s, received) for begin_s, end_s, received in rows if received]
    if done:
        reading.seconds = max(end_s for _, end_s, _ in done) - min(begin_s for begin_s, *_ in done)
    reading.latencies_s = [end_s - begin_s for begin_s, end_s, _ in done]
    reading.bytes = sum(received for *_, received in done)
    reading.failed = len(rows) - len(done)
    return reading


def _read(
    queue: Iterator[ReadRequest], files: Mapping[str, int], until_s: float
) -> Iterator[tuple[float, float, int]]:
    """Yield begin, end and bytes of each request that this reader makes; no bytes: it failed."""
    for request in queue:
        began_s, received = time.perf_counter(), 0
        if began_s >= until_s:
            return
        with suppress(OSError):
            if request.path in files:
                received = len(os.pread(files[request.path], request.length, request.offset))
            else:
                with opened(request.path) as file:
                    received = len(os.pread(file, request.length, max(request.offset, 0)))
        yield began_s, time.perf_counter(), received if received >= request.length else 0
