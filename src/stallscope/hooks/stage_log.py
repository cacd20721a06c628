"""The event log: what one thread of one process writes while it works, and how it is read back.

A log is a file of 64-bit words, mapped into the writing process, so that what was written stays
readable when the process is killed, and can be read by the notebook while the process runs. Its
space is reserved when it is made: a full disk is an error then and never a bus error later.

After a header come the words, in the order of time; a word is never 0, so 0 means "not written".
When the log is full it wraps, and the reader says how much was lost.

Word            bits 58-62      bits 0-57
--------------  --------------  ------------------------------------------------------------------
exit            0               `perf_counter_ns()` as it is
enter           `ENTER`         bits 48-57: code of the stage; bits 0-47: ns since the log was made
everything else its tag         a number, see the tags

Beside each log lies a `.names` file of JSON lines: the codes' stages, the files' paths, notes. The
loop's own log (`loop_log.py`) has words of another form, and the same mapped file and names.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, repeat
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.errors import RunFormatError
from stallscope.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


TAG_SHIFT: Final = 58
CODE_SHIFT: Final = 48
PAYLOAD: Final = (1 << TAG_SHIFT) - 1
TIME: Final = (1 << CODE_SHIFT) - 1
MOST_CODES: Final = 1 << (TAG_SHIFT - CODE_SHIFT)
LONGEST_NS: Final = 1 << 47
"""A log's clock would overflow after 3.2 days; the recorder stops well before (1.6 days)."""

MAGIC: Final = 0x5354414C4C  # "STALL"
HEADER_WORDS: Final = 64
INDEX_OFFSET: Final = 1 << 56
_PATIENCE_S: Final = 1.0
"""So long a thread waits for its turn to write a name."""


def reserve(path: Path, length: int) -> mmap.mmap:
    """A new file of so many zero bytes, mapped.

    Raises:
        OSError: the file exists, or there is no room.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:  # macOS, Windows: written out instead
            os.write(descriptor, b"\0" * length)
        return mmap.mmap(descriptor, length)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


class JsonLines:
    """A file that only grows: a JSON object a line, see `read_lines`."""

    def __init__(self, path: Path) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(path, append, 0o600)
        # Threads say something and close it when they like; a closed number may be a user's file.
        self._turn = threading.Lock()

    def say(self, **line: Any) -> None:
        """Append one line; it survives the end of the process."""
        self.write(json.dumps(line) + "\n")

    def write(self, lines: str) -> None:
        """Append lines of ASCII in one write.

        Never fails: a full disk costs a name and not the user's run.
        """
        with self._its_turn() as mine, contextlib.suppress(OSError):
            if mine and self._descriptor >= 0:
                os.write(self._descriptor, lines.encode("ascii"))

    def close(self) -> None:
        """What is said afterwards is lost."""
        with self._its_turn():
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def _its_turn(self) -> Iterator[bool]:
        """Wait for other threads; not for ever, as in a forked child there is none to end."""
        mine = self._turn.acquire(timeout=_PATIENCE_S)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are whole; none where there is no file."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # a killed process may leave half a line
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


class MappedLog:
    """A mapped file of numbers, with the names of what they stand for beside it.

    Args:
        path: a new file.
        length: bytes.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._path = path
        self._mapping = reserve(path, length)
        self._names = JsonLines(path.with_suffix(".names"))

    def _give_back(self, used: int | None) -> None:
        """Close both files, and free what lies behind so many bytes; None: nothing."""
        self._mapping.close()
        self._names.close()
        if used is not None and os.name == "posix":
            with contextlib.suppress(OSError):
                os.truncate(self._path, used)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What was in one log of a process when it was read, numbers aside."""

    pid: int
    """Process that wrote it."""
    worker: int
    """Worker id, or -1 for the main process."""
    born_ns: int
    """`perf_counter_ns()` when the log was made; enter words count from here."""
    stages: dict[int, Stage] = field(default_factory=dict)
    """Stage of each code."""
    files: dict[int, str] = field(default_factory=dict)
    """Path of each file number."""
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What is known of each loader."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the recording said of itself."""
    notes: tuple[str, ...] = ()
    """What could not be seen, in sentences."""


def read_names(path: Path) -> dict[str, Any]:
    """What the `.names` file beside a log says, by the fields of `Pages`."""
    stages, files, loaders, about = {}, {}, {}, {}
    notes: dict[str, None] = {}
    for entry in read_lines(path.with_suffix(".names")):
        match entry:
            case {"stage": stage, **rest}:  # of a sample's part, or of the loop's
                stages[rest.get("code", rest.get("part"))] = Stage(*stage)
            case {"file": number, "path": file}:
                files[number] = file
            case {"loader": number}:
                loaders[number] = entry
            case {"about": said}:
                about.update(said)
            case {"note": note}:
                notes[note] = None
    return {
        "stages": stages, "files": files, "loaders": loaders, "about": about, "notes": tuple(notes),
    }  # fmt: skip


class Tag(IntEnum):
    """What a word that is not an exit says."""

    ENTER = 1
    BATCH = 2
    """A batch begins; its number in the epoch."""
    EPOCH = 3
    """All later batches belong to this epoch of the loader."""
    SAMPLE = 4
    """A sample begins; its index in the dataset, offset by `INDEX_OFFSET`."""
    UNINDEXED = 5
    """A sample begins that has no index."""
    SAMPLE_END = 6
    CPU = 7
    """CPU time of the thread in ns, read just before the event that follows."""
    FILE = 8
    """The sample reads this file; its number in `.names`."""
    PIXELS = 9
    """Width << 24 | height of an image that the sample opened."""
    RAISED = 10
    """An exception left this stage; its code."""
    SKIPPED = 11
    """A batch that was not recorded, because recording would have cost too much."""
    BATCH_END = 12
    """The batch was made; one that failed has no end."""
    EXHAUSTED = 13
    """The sample that had begun was none: its iterator has ended."""


class Header(IntEnum):
    """Where in the header a number stands."""

    MAGIC = 0
    PID = 1
    WORKER = 2
    """Worker id, or -1 for the main process."""
    BORN_NS = 3
    """`perf_counter_ns()` when the log was made."""
    CAPACITY = 4
    """Words after the header."""
    STOP = 5
    """Set from outside to turn the hooks of a living process off."""
    LAPS = 6
    """How often the log has wrapped."""
    EVERY = 7
    """One batch in this many is recorded."""
    SAMPLES = 8
    """Samples done so far (for the progress bar)."""
    OTHER_THREADS = 9
    """Calls of hooked functions in other threads, which were not recorded."""
    READY_NS = 10
    """`perf_counter_ns()` when the process asked for its first batch."""
    LOADER = 11
    """Which loader of the recording the process works for; 0 where that changes."""


class LogWriter(MappedLog):
    """The writing side: an endless supply of places in a mapped file.

    Attributes:
        words: the places after the header; `words[place()] = word` writes.
        place: gives the next place, forever; it is the only state that writing needs.
        header: the header's words, see `Header`.
        say: appends one line to the `.names` file; it survives the end of the process.
    """

    def __init__(
        self, path: Path, *, worker: int, born_ns: int, capacity: int, loader: int = 0
    ) -> None:
        super().__init__(path, (HEADER_WORDS + capacity) * 8)
        self.say = self._names.say
        self._view = memoryview(self._mapping).cast("q")
        self.header = self._view[:HEADER_WORDS]
        self.words = self._view[HEADER_WORDS:]
        # In C and without memory: 20 ns less than a counter and a mask (tests/benchmarks/span_cost)
        self.place: Callable[[], int] = chain.from_iterable(repeat(range(capacity))).__next__
        self.header[Header.PID] = os.getpid()
        self.header[Header.WORKER] = worker
        self.header[Header.BORN_NS] = born_ns
        self.header[Header.CAPACITY] = capacity
        self.header[Header.EVERY] = 1
        self.header[Header.LOADER] = loader
        self.header[Header.MAGIC] = MAGIC

    def say_files(self, paths: list[str], first: int) -> None:
        """Append these files, numbered from `first`, in one write.

        A write costs 10 us between two ops of a pipeline, so it is not done for every sample.
        """
        lines = (f'{{"file": {i}, "path": {quoted(p)}}}\n' for i, p in enumerate(paths, first))
        self._names.write("".join(lines))

    def close(self) -> None:
        """Give the mapping back, and the space that was not used. Nothing may be written then."""
        if self._mapping.closed:
            return
        following = self.place()
        was_full = self.words[following] or self.words[-1]
        used = None if was_full else following
        for view in (self.header, self.words, self._view):
            view.release()
        self._give_back(None if used is None else (HEADER_WORDS + used) * 8)


@dataclass(frozen=True, kw_only=True)
class LogPages(Pages):
    """What was in one event log."""

    ready_ns: int
    """When the process asked for its first batch; 0 when it never did."""
    every: int
    """One batch in this many was recorded."""
    words: np.ndarray
    """int64, in the order of time, none of them 0."""
    loader: int = 0
    """Which loader of the recording the process worked for; 0 where that changed."""
    dropped: int = 0
    """Words that were overwritten because the log was full."""
    other_threads: int = 0
    """Calls of hooked functions in other threads, which were not recorded."""


def read_log(path: Path) -> LogPages:
    """Read one log, also while it is being written.

    Raises:
        RunFormatError: the file is not an event log.
    """
    raw = np.fromfile(path, dtype=np.int64)
    if raw.size < HEADER_WORDS or raw[Header.MAGIC] != MAGIC:
        raise RunFormatError(f"{path} is not an event log of stallscope")
    header = raw[:HEADER_WORDS].tolist()
    words, dropped = raw[HEADER_WORDS:], 0
    if words.size < header[Header.CAPACITY]:  # closed before it was full
        words = words[words != 0]
    else:
        words, dropped = _in_order(words, header[Header.LAPS], header[Header.BORN_NS])
    return LogPages(
        pid=header[Header.PID],
        worker=header[Header.WORKER],
        born_ns=header[Header.BORN_NS],
        ready_ns=header[Header.READY_NS],
        every=header[Header.EVERY],
        words=words,
        loader=header[Header.LOADER],
        dropped=dropped,
        other_threads=header[Header.OTHER_THREADS],
        **read_names(path),
    )


def _in_order(words: np.ndarray, laps: int, born_ns: int) -> tuple[np.ndarray, int]:
    """The words from oldest to newest, and how many were overwritten."""
    if not words.size or words[-1] == 0:  # never full: nothing was overwritten
        return words[words != 0], 0
    times = event_times(words, born_ns)
    timed = np.flatnonzero(times)
    falls = timed[1:][np.diff(times[timed]) < 0]
    seam = int(falls[0]) if falls.size else 0
    ordered = np.concatenate([words[seam:], words[:seam]])
    tags = ordered >> TAG_SHIFT
    begins = np.flatnonzero(tags == Tag.BATCH)  # the oldest batch is cut off: leave it out
    kept = ordered[begins[0] :] if begins.size else ordered[:0]
    return kept[kept != 0], max(laps - 1, 0) * words.size + seam + (ordered.size - kept.size)


def event_times(words: np.ndarray, born_ns: int) -> np.ndarray:
    """`perf_counter_ns()` of each enter and exit word; 0 for the others.

    Args:
        words: int64 words of a log.
        born_ns: the log's `BORN_NS`.
    """
    tags = words >> TAG_SHIFT
    return np.where(tags == 0, words, np.where(tags == Tag.ENTER, (words & TIME) + born_ns, 0))
