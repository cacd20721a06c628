"""The event log: what one thread of one process writes while it works, and how it is read back.

A log is a file of 64-bit words, mapped into the writing process, so that what was written stays
readable when the process is killed, and can be read by the notebook while the process runs. Its
space is reserved when it is made: a full disk is an error then and never a bus error later.

After a header come the words, in the order of time; a word is never 0, so 0 means "not written".
A log has a file for each stretch of the recording (`stretches.py`); where one is full before its
last batch is made, it wraps, and the reader says how much was lost.

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
from stallscope.files import open_to_append, read_file
from stallscope.hooks.failures import Failures
from stallscope.stages import OTHER_NAMES, Stage
from stallscope.units import json_without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from stallscope.hooks.stretches import Stretches


TAG_SHIFT: Final = 58
CODE_SHIFT: Final = 48
PAYLOAD: Final = (1 << TAG_SHIFT) - 1
TIME: Final = (1 << CODE_SHIFT) - 1
MOST_CODES: Final = 1 << (TAG_SHIFT - CODE_SHIFT)
MOST_NAMES: Final = 300
"""Names of `ss.stage` that a process keeps apart; a loop may make up one for each of its steps."""
LONGEST_NS: Final = 1 << 47
"""A log's clock would overflow after 3.2 days; the recorder stops well before (1.6 days)."""

MAGIC: Final = 0x5354414C4C  # "STALL"
HEADER_WORDS: Final = 64
INDEX_OFFSET: Final = 1 << 56
MOST_FILES: Final = 1 << 32
"""A file's number is less."""
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
        self._descriptor = open_to_append(path)
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
    """The lines of a file that are whole, without control characters; none where there is none.

    Raises:
        ValueError: it is no plain file, or larger than any of ours.
    """
    if not path.exists():
        return
    for line in read_file(path).decode("utf-8", "replace").splitlines():
        # a killed process may leave half a line
        with contextlib.suppress(ValueError, RecursionError):
            entry = json_without_controls(json.loads(line))
            if isinstance(entry, dict):
                yield entry


def read_words(path: Path) -> np.ndarray:
    """The whole int64 of a log's file, see `read_file`."""
    data = read_file(path)
    return np.frombuffer(data, np.int64, len(data) // 8)


class MappedLog:
    """A mapped file of numbers, with the names of what they stand for beside it.

    Args:
        path: a new file.
        length: bytes.
        stretches: when the next file begins; None: never.

    Attributes:
        failures: of the recording that the log belongs to.
    """

    def __init__(self, path: Path, length: int, stretches: Stretches | None) -> None:
        self.failures = Failures(path.parent)
        self._length = length
        self._stretches = stretches
        self._said: list[str] = []
        self._turn = 0
        self._open(path)

    def say(self, **line: Any) -> None:
        """Append one line to the names; it survives the end of the process."""
        said = json.dumps(line) + "\n"
        self._said.append(said)
        self._names.write(said)

    def stay(self) -> None:
        """Begin no other file from now on."""
        self._stretches = None

    def _open(self, path: Path) -> None:
        self._mapping = reserve(path, self._length)
        self._path = path
        self._names = JsonLines(path.with_suffix(".names"))
        self._names.write("".join(self._said))
        self._stretch = self._stretches.now() if self._stretches else 0

    def _is_due(self, *, half_full: int) -> bool:
        """Whether the next file should begin; asked between two batches."""
        return self._stretches is not None and (
            half_full != 0 or self._stretches.now() != self._stretch
        )

    def _begin_next(self, worker: int) -> bool:
        """Begin the next file; whether there is one."""
        if self._stretches is None or self._stretches.is_over():
            return False
        try:
            self._open(self._stretches.new_path(worker, self._path.suffix))
        except OSError:  # no room: this file takes the rest, and wraps
            self.stay()
            return False
        self._turn += 1
        return True


def give_back(path: Path, mapping: mmap.mmap, names: JsonLines, used: int | None) -> None:
    """Close both files of a log, and free what lies behind so many bytes; None: nothing."""
    mapping.close()
    names.close()
    if used is not None and os.name == "posix":
        with contextlib.suppress(OSError):
            os.truncate(path, used)


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
    turn: int = 0
    """Which file of its process it is, counted from 0; some may have been deleted."""
    notes: tuple[str, ...] = ()
    """What could not be seen, in sentences."""
    devices: tuple[str | None, ...] = ()
    """What works behind the host; a None after it: and more devices, which were not watched."""


def read_names(path: Path) -> dict[str, Any]:
    """What the `.names` file beside a log says, by the fields of `Pages`."""
    stages, files, loaders, about = {}, {}, {}, {}
    devices: list[str | None] = []
    notes: dict[str, None] = {}
    for entry in read_lines(path.with_suffix(".names")):
        match entry:
            case {"stage": stage, **rest}:  # of a sample's part, or of the loop's
                with contextlib.suppress(TypeError):
                    stages[rest.get("code", rest.get("part"))] = Stage(*stage)
            case {"file": int(number), "path": str(file)} if 0 < number < MOST_FILES:
                files[number] = file
            case {"loader": int(number)}:
                loaders[number] = entry
            case {"about": dict(said)}:
                about.update(said)
            case {"note": str(note)}:
                notes[note] = None
            case {"device": str() | None as device}:
                devices.append(device)
    return {
        "stages": stages, "files": files, "loaders": loaders, "about": about, "notes": tuple(notes),
        "devices": tuple(devices),
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
    TURN = 12
    """Which file of the process this is."""


_OF_PROCESS: Final = (
    Header.PID,
    Header.WORKER,
    Header.BORN_NS,
    Header.CAPACITY,
    Header.EVERY,
    Header.READY_NS,
    Header.LOADER,
)
"""What each file of a process says alike."""


class LogWriter(MappedLog):
    """The writing side: an endless supply of places in a mapped file.

    Attributes:
        words: the places after the header; `words[place()] = word` writes.
        place: gives the next place, forever; it is the only state that writing needs.
        header: the header's words, see `Header`.
    """

    def __init__(  # noqa: PLR0913 - each is a number of the header
        self,
        path: Path,
        *,
        worker: int,
        born_ns: int,
        capacity: int,
        loader: int = 0,
        stretches: Stretches | None = None,
    ) -> None:
        super().__init__(path, (HEADER_WORDS + capacity) * 8, stretches)
        self._lay_out(
            {
                Header.PID: os.getpid(),
                Header.WORKER: worker,
                Header.BORN_NS: born_ns,
                Header.CAPACITY: capacity,
                Header.EVERY: 1,
                Header.LOADER: loader,
            }
        )

    def _lay_out(self, head: dict[Header, int]) -> None:
        self._view = memoryview(self._mapping).cast("q")
        self.header = self._view[:HEADER_WORDS]
        self.words = self._view[HEADER_WORDS:]
        # In C and without memory: 20 ns less than a counter and a mask (tests/benchmarks/overhead)
        room = range(len(self.words))
        self.place: Callable[[], int] = chain.from_iterable(repeat(room)).__next__
        for at, number in head.items():
            self.header[at] = number
        self.header[Header.TURN] = self._turn
        self.header[Header.MAGIC] = MAGIC

    def turn_over(self) -> bool:
        """Begin the next file, between two batches; whether this was the time to."""
        if not self._is_due(half_full=self.words[len(self.words) // 2]):
            return False
        old = self._path, self._mapping, self._names
        if not self._begin_next(self.header[Header.WORKER]):
            self.header[Header.STOP] |= self._stretches is not None
            return False
        views, used = (self.header, self.words, self._view), self._used()
        self._lay_out({at: self.header[at] for at in _OF_PROCESS})
        _release(views)
        give_back(*old, used)
        return True

    def _used(self) -> int | None:
        """Bytes that were written; None where it was full."""
        following = self.place()
        was_full = self.words[following] or self.words[-1]
        return None if was_full else (HEADER_WORDS + following) * 8

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
        used = self._used()
        _release((self.header, self.words, self._view))
        give_back(self._path, self._mapping, self._names, used)


def _release(views: tuple[memoryview, ...]) -> None:
    for view in views:
        view.release()


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
    raw = read_words(path)
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
        turn=header[Header.TURN],
        dropped=dropped,
        other_threads=header[Header.OTHER_THREADS],
        **read_names(path),
    )


def kept_apart(stage: Stage, known: Collection[Stage], note: Callable[[str], object]) -> Stage:
    """The stage that a user's name counts as: its own, or one for all that come too late.

    Args:
        stage: by a name of the user's.
        known: the stages that have been kept apart so far.
        note: told when the names become too many.
    """
    if stage in known or len(known) < MOST_NAMES:
        return stage
    if OTHER_NAMES not in known:
        note(
            f"ss.stage was given more than {MOST_NAMES} names: the rest is '{OTHER_NAMES.name}'; "
            "give a stage the same name each time"
        )
    return OTHER_NAMES


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
