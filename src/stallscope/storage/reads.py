"""Reading the user's files in one way, for a while, by so many readers at once, and timing it.

Readers are threads: a read gives Python's lock away while it waits. Each request is made once, so
that none is answered by what an earlier one brought into the page cache, and what does lie there
is counted before the clock starts: a reading that is called cold was cold.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stallscope.storage.page_cache import drop, opened, read_exactly_what_is_asked, resident_bytes
from stallscope.units import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from stallscope.storage.places import DataFile

SAMPLE, RANDOM, SEQUENTIAL = "sample", "random", "sequential"
"""What is read: what a sample is made of; pieces anywhere; files from begin to end."""
COLD, WARM = "cold", "warm"
SMALL_BYTES: Final = 4096
LARGE_BYTES: Final = 1 << 20
MOST_BYTES: Final = 48 << 20
"""That one way of reading reads in one go."""
_MOST_REQUESTS: Final = 2_000
_APART_BYTES: Final = 1 << 20
"""Pieces are so far from each other where there is room: of all but small ones, the kernel reads
ahead."""
_MOST_OPEN: Final = 256
"""Files that are open while pieces of them are read."""
_GRACE_S: Final = 2.0


class ReadRequest(NamedTuple):
    """A piece of a file to read."""

    path: str
    offset: int
    """Bytes; -1: the file is opened, read whole, and closed."""
    length: int
    """Bytes."""

    @property
    def is_whole(self) -> bool:
        """Whether it opens the file, too."""
        return self.offset < 0


@dataclass(frozen=True)
class Medium:
    """Reads; the benchmark has one that is as slow as it says."""

    read: Callable[[Any, int, int], bytes] = os.pread
    """Reads so many bytes from there on of an open file."""
    drop: Callable[[Any, int, int], bool] = drop
    """Takes a part of an open file out of the page cache."""
    resident_bytes: Callable[[Any, int, int], int | None] = resident_bytes
    """How much of it lies there."""
    open: Callable[[str], AbstractContextManager[Any]] = opened
    """Opens a file, for the others."""
    grace_s: float = _GRACE_S
    """So long the last read may take before it is left alone."""
    connects: bool = False
    """Whether a reader's first request takes longer than the others: it connects to a server."""


@dataclass
class Reading:
    """What one way of reading showed, in one go."""

    seconds: float = 0.0
    """From the first request to the end of the last."""
    each_s: list[float] = field(default_factory=list)
    """Of each request."""
    bytes: int = 0
    """That came."""
    cached_share: float | None = None
    """Share (0 to 1) of what was asked for that lay in the page cache; None: nobody says."""
    gone: int = 0
    """Files that could not be read: deleted meanwhile, or grown shorter."""
    why: str = ""
    """What was said of the last one of them; empty: nothing."""
    hangs: bool = False
    """Whether a read did not come back."""


def requests(
    files: Sequence[DataFile], access: str, length: int | None, seed: int
) -> list[ReadRequest]:
    """What to read: no byte of it twice, and not more than `MOST_BYTES`.

    Args:
        files: the sample of the data.
        access: one of the words above.
        length: bytes of a request; None: whole files.
        seed: of what is drawn.
    """
    rng = random.Random(seed)  # noqa: S311 - which pieces are read is no secret
    if length is None:
        drawn = rng.sample(list(files), len(files))
        return _few(ReadRequest(one.path, -1, one.size) for one in drawn)
    if access == SEQUENTIAL:
        first = rng.randrange(len(files)) if files else 0
        turned = [*files[first:], *files[:first]]
        return _few(
            ReadRequest(one.path, at, min(length, one.size - at))
            for one in turned
            for at in range(0, one.size, length)
        )
    step = max(length, _APART_BYTES if length > SMALL_BYTES else 4 * SMALL_BYTES)
    places = [
        (one, at)
        for one in files
        if one.size >= length
        for at in _drawn(rng, max(one.size // step, 1))
    ]
    rng.shuffle(places)
    inside = [(one, at * step, min(step, one.size) - length) for one, at in places]
    return _few(
        ReadRequest(one.path, at + rng.randrange(room + 1) // SMALL_BYTES * SMALL_BYTES, length)
        for one, at, room in inside
    )


def _drawn(rng: random.Random, many: int) -> list[int]:
    return rng.sample(range(many), min(many, _MOST_REQUESTS))


def _few(wanted: Iterable[ReadRequest]) -> list[ReadRequest]:
    kept: list[ReadRequest] = []
    much = 0
    for one in wanted:
        if kept and (len(kept) >= _MOST_REQUESTS or much + one.length > MOST_BYTES):
            break
        kept.append(one)
        much += one.length
    return kept


def make_cold(wanted: Sequence[ReadRequest], medium: Medium) -> None:
    """Take what is going to be read out of the page cache, as far as that is possible."""
    _each_piece(wanted, medium, medium.drop)


def cached_share(wanted: Sequence[ReadRequest], medium: Medium) -> float | None:
    """Share (0 to 1) of what is going to be read that lies in the page cache; None: unknown."""
    known = _each_piece(wanted, medium, medium.resident_bytes)
    if not known or any(one is None for one in known):
        return None
    inside = sum(one for one in known if one is not None)
    return min(inside / max(sum(one.length for one in wanted), 1), 1.0)


def _each_piece(
    wanted: Sequence[ReadRequest], medium: Medium, do: Callable[[Any, int, int], int | None]
) -> list[int | None]:
    """Do something with each piece that is there."""
    found: list[int | None] = []
    by_file: dict[str, list[ReadRequest]] = {}
    for one in wanted:
        by_file.setdefault(one.path, []).append(one)
    for path, pieces in by_file.items():
        with suppress(OSError), medium.open(path) as descriptor:
            found += [do(descriptor, max(one.offset, 0), one.length) for one in pieces]
    return found


def timed(
    wanted: Sequence[ReadRequest],
    readers: int,
    seconds: float,
    medium: Medium,
    *,
    ahead: bool = True,
) -> Reading:
    """Read, and say how long each request took.

    Args:
        wanted: what to read, in this order; those that there is no time for are left out.
        readers: that read at once.
        seconds: how long, at most.
        medium: reads.
        ahead: whether the kernel may read ahead.
    """
    reading = Reading(cached_share=cached_share(wanted, medium))
    left = deque(wanted)
    parts: list[_Part] = []
    began_s = until_s = 0.0

    def begin() -> None:
        nonlocal began_s, until_s
        began_s = time.perf_counter()
        until_s = began_s + seconds
        for part in parts:
            part.until_s = until_s

    start = threading.Barrier(readers + 1, begin)
    files: dict[str, Any] = {}
    with ExitStack() as ends:
        pieces = dict.fromkeys(one.path for one in wanted if not one.is_whole)
        for path in islice(pieces, _MOST_OPEN):
            with suppress(OSError):
                files[path] = ends.enter_context(medium.open(path))
                if not ahead and isinstance(files[path], int):
                    read_exactly_what_is_asked(files[path])
        parts = [_Part(left, files, medium, wanted[0] if wanted else None) for _ in range(readers)]
        for part in parts:
            threading.Thread(target=part.read, args=(start,), daemon=True).start()
        with suppress(threading.BrokenBarrierError):
            start.wait(None if not medium.connects else medium.grace_s + seconds)
        for part in parts:
            part.over.wait(max(until_s + medium.grace_s - time.perf_counter(), 0.01))
        reading.hangs = not all(part.over.is_set() for part in parts)
        if reading.hangs:
            ends.pop_all()  # a thread still reads: its files stay open with it
    for part in parts:
        reading.seconds = max(reading.seconds, part.end_s - began_s)
        reading.each_s += part.each_s
        reading.bytes += part.bytes
        reading.gone += part.gone
        reading.why = part.why or reading.why
    return reading


@dataclass
class _Part:
    """What one reader does."""

    left: deque[ReadRequest]
    files: dict[str, Any]
    medium: Medium
    first: ReadRequest | None
    until_s: float = 0.0
    each_s: list[float] = field(default_factory=list)
    bytes: int = 0
    gone: int = 0
    why: str = ""
    end_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def read(self, start: threading.Barrier) -> None:
        """Make requests until there are none, or the time is over."""
        if self.medium.connects and self.first is not None:
            with suppress(OSError):  # it is said of those that count
                _read(self.first, None, self.medium)
        with suppress(threading.BrokenBarrierError):
            start.wait()
        with suppress(IndexError):  # another reader took the last one
            while time.perf_counter() < self.until_s:
                one = self.left.popleft()
                began_s = time.perf_counter()
                try:
                    came = _read(one, self.files.get(one.path), self.medium)
                except OSError as error:
                    self.gone += 1
                    self.why = said_by(error)
                    continue
                if came < one.length:
                    self.gone += 1
                    continue
                self.each_s.append(time.perf_counter() - began_s)
                self.bytes += came
        self.end_s = time.perf_counter()
        self.over.set()


def _read(one: ReadRequest, descriptor: Any, medium: Medium) -> int:
    """Make a request; returns the bytes that came.

    Raises:
        OSError: the file is gone.
    """
    if descriptor is not None:
        return len(medium.read(descriptor, one.length, one.offset))
    with medium.open(one.path) as found:
        return len(medium.read(found, one.length, max(one.offset, 0)))


def quantiles(each_s: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile of what requests took, seconds."""
    median, late = np.quantile(np.asarray(each_s), [0.5, 0.95])
    return float(median), float(late)
