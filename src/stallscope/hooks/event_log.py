"""Event log: the threads of a process write it while they work; `read_log` reads it.

Each thread has a log of its own, so a log needs no lock. A log is a file of 64-bit words, mapped
into the process: the words stay readable when the process is killed or hangs, and the notebook
reads them while the process runs. Space is reserved when a file is created, so a full disk is an
error then and never a bus error later. After a header come the words in the order of time; a word
is never 0, so 0 means "not written". Words beyond the end are lost, and the reader reports that.

Word            bits 58-62      bits 0-57
--------------  --------------  ------------------------------------------------------------------
exit            0               `perf_counter_ns()`
enter           `Tag.ENTER`     bits 48-57: code of the stage; bits 0-47: ns since the start
begin, end      `Mark.BEGIN`    the same, of a part of the loop; the time overflows after 3 days
mark            its `Mark`      `perf_counter_ns()`; `Tag.EPOCH` and `Tag.NUMBER` name the batch
other words     its `Tag`       a number, see the tags

A log begins a new file after some seconds or when a file is half full, always between two
batches, so that the oldest files can be deleted (`recording_folder.py`). Each process has a
`.names` file of JSON lines: the codes' stages, its loaders, notes. Paths of the user's files are
in `.paths` beside a log's file, one per line, because there are too many to keep for ever.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import chain, count, repeat
from json.encoder import encode_basestring_ascii as quoted
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.errors import RunFormatError
from stallscope.files import read_file
from stallscope.hooks.recording_folder import JsonLines, ProcessNames, json_lines, read_names
from stallscope.stages import OTHER_NAMES, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stallscope.hooks.recording_folder import LogPlace


MAIN: Final = -1
"""Worker id of the main process."""
TAG_SHIFT: Final = 58
CODE_SHIFT: Final = 48
PAYLOAD: Final = (1 << TAG_SHIFT) - 1
TAGS: Final = ~PAYLOAD
TIME: Final = (1 << CODE_SHIFT) - 1
MOST_CODES: Final = 1 << (TAG_SHIFT - CODE_SHIFT)
MOST_NAMES: Final = 300
"""Most stages of a process; a loop may invent a name for `ss.stage` in each step."""
INDEX_OFFSET: Final = 1 << 56
"""Added to a sample's index, which may be negative, and to an epoch's key."""
EXTRA_SHIFT: Final = 40
NUMBER: Final = (1 << EXTRA_SHIFT) - 1
DRIFT_OFFSET: Final = 1 << (EXTRA_SHIFT - 1)
"""Added to the drift of a device's clock, which may be negative."""

MAGIC: Final = 0x5354414C4C32  # "STALL2": the first format had no number
HEADER_WORDS: Final = 64
_SHARE_OF_OTHERS: Final = 8
"""Divisor of the words for threads after the first: they write at most six words per batch."""
_MOST_THREADS: Final = 64
"""Most logs of a process; each reserves space."""
_NEVER: Final = sys.maxsize


class Tag(IntEnum):
    """Meaning of a word inside a batch; exits have no tag."""

    ENTER = 1 << TAG_SHIFT
    BATCH = 2 << TAG_SHIFT
    """A batch begins; its number in the epoch."""
    EPOCH = 3 << TAG_SHIFT
    """Later batches and marks belong to this epoch, see `recording_folder.epoch_key`."""
    SAMPLE = 4 << TAG_SHIFT
    """A sample begins; its index in the dataset, offset by `INDEX_OFFSET`."""
    UNINDEXED = 5 << TAG_SHIFT
    """A sample begins that has no index."""
    SAMPLE_END = 6 << TAG_SHIFT
    CPU = 7 << TAG_SHIFT
    """CPU time of the thread in ns, read just before the event that follows."""
    FILE = 8 << TAG_SHIFT
    """The sample reads this file; its line in `.paths`."""
    PIXELS = 9 << TAG_SHIFT
    """Width << 24 | height of an image that the sample opened."""
    RAISED = 10 << TAG_SHIFT
    """An exception left this stage; its code."""
    SKIPPED = 11 << TAG_SHIFT
    """A batch that was not recorded, to limit overhead."""
    BATCH_END = 12 << TAG_SHIFT
    """The batch is complete; a failed batch has no end."""
    EXHAUSTED = 13 << TAG_SHIFT
    """The iterator ended instead of the sample that had begun."""
    NUMBER = 14 << TAG_SHIFT
    """The mark that follows is about this batch; above `EXTRA_SHIFT` a second number."""
    NONE = 15 << TAG_SHIFT
    """The sample is None: its dataset had nothing to give."""


class Mark(IntEnum):
    """Events of whole batches and of the loop. In brackets: number and extra."""

    ITER = 16 << TAG_SHIFT
    """The loop requests an iterator: an epoch begins."""
    ITERATED = 17 << TAG_SHIFT
    """The loop has received the iterator."""
    WAIT = 18 << TAG_SHIFT
    """The loop requests a batch."""
    GOT = 19 << TAG_SHIFT
    """The loop has received a batch [batch]."""
    ENDED = 20 << TAG_SHIFT
    """The loop received no batch: the epoch is over, or an exception was raised."""
    ASKED = 21 << TAG_SHIFT
    """A batch is requested from a worker [batch, worker]."""
    ARRIVED = 22 << TAG_SHIFT
    """A batch was received and unpickled [batch]."""
    READY = 23 << TAG_SHIFT
    """A worker waits for its first task."""
    TAKEN = 24 << TAG_SHIFT
    """A worker starts a task [batch]."""
    MADE = 25 << TAG_SHIFT
    """The worker hands on the complete batch [batch]."""
    PICKLE = 26 << TAG_SHIFT
    """The sending thread begins to pickle a batch [batch]."""
    SENT = 27 << TAG_SHIFT
    """The sending thread has written the batch into the pipe [batch]."""
    PINS = 28 << TAG_SHIFT
    """Identity of the thread that pins the batches of this epoch [thread]."""
    DEVICE = 29 << TAG_SHIFT
    """The device reached an event at this time of its own clock [drift of that clock, edge]."""
    BEGIN = 30 << TAG_SHIFT
    """A part of the loop begins."""
    END = 31 << TAG_SHIFT


class Header(IntEnum):
    """Positions of the numbers in the header."""

    MAGIC = 0
    PID = 1
    WORKER = 2
    """Worker id, or `MAIN`."""
    STARTED_NS = 3
    """Start of the process's recording: enter, begin and end words count from here."""
    BORN_NS = 4
    """Creation of the file."""
    THREAD = 5
    TURN = 6
    """Number of the file in its thread, from 0; earlier files may have been deleted."""
    STOP = 7
    """Set by another process to turn the hooks of a living process off."""
    # 8 stays free: saved logs have another number there
    OTHER_THREADS = 9
    """Unrecorded calls of hooked functions in other threads."""


def numbers(number: int, extra: int) -> int:
    """Pack two numbers of a mark into one; the first may be an address."""
    return extra << EXTRA_SHIFT | number & NUMBER


def names_of(pid: int, worker: int, started_ns: int) -> str:
    """Return the name of the file with a process's names."""
    return f"{pid}-{worker}-{started_ns}.names"


def reserve(path: Path, length: int) -> mmap.mmap:
    """Create a file of `length` zero bytes, and map it; an `OSError` where the disk is full."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:  # macOS, Windows: writing zeros reserves the space
            os.write(descriptor, b"\0" * length)
        return mmap.mmap(descriptor, length)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


# ---- writing -------------------------------------------------------------------------------------


class ThreadLog:
    """Log of one thread, in one file after the other; `words[place()] = word` writes."""

    words: memoryview
    """Places after the header."""
    place: Callable[[], int]
    """Returns the next place, forever; writing needs no other state."""
    header: memoryview
    """Words of the header, see `Header`."""
    _close_file: Callable[[], None] | None

    def __init__(self, process: ProcessLog, words: int) -> None:
        self._process, self._words, self._turn = process, words, 0
        self._paths: JsonLines | None = None
        self.is_busy = False
        """True during a batch, when no file may begin."""
        self.epoch: int | None = None
        self._write_nowhere()

    def begin(self) -> None:
        """Begin a file; raises an `OSError` where the disk is full."""
        process, place = self._process, self._process.place
        born_ns, self._stretch = perf_counter_ns(), place.stretch()
        name = f"{os.getpid()}-{process.worker}-{born_ns}-{self._stretch}"
        path = place.folder / f"{name}.events"
        mapping = reserve(path, (HEADER_WORDS + self._words) * 8)
        self._lay_out(memoryview(mapping))
        self._path = path
        self._close_file = partial(_close, path, mapping, self.place, self._views)
        for at, number in {
            Header.PID: os.getpid(),
            Header.WORKER: process.worker,
            Header.STARTED_NS: process.started_ns,
            Header.BORN_NS: born_ns,
            Header.THREAD: get_ident() & NUMBER,
            Header.TURN: self._turn,
            Header.MAGIC: MAGIC,
        }.items():
            self.header[at] = number
        if self.epoch is not None:  # epoch of the next batch
            self.words[self.place()] = self.epoch + INDEX_OFFSET | Tag.EPOCH
        self.due_ns = place.stretch_ends_ns()

    def _lay_out(self, bytes_of_file: memoryview) -> None:
        view = bytes_of_file.cast("q")
        self.header, self.words = view[:HEADER_WORDS], view[HEADER_WORDS:]
        self._views = self.header, self.words, view
        # C code without allocation: 20 ns faster than a counter (tests/benchmarks/overhead.py).
        # Words beyond the end go to place 0.
        self.place = chain(range(1, len(self.words)), repeat(0)).__next__
        self.half = len(self.words) // 2

    def _write_nowhere(self) -> None:
        self._close_file = None
        self._lay_out(memoryview(bytearray((HEADER_WORDS + 4) * 8)))
        self._keep_file()

    def _keep_file(self) -> None:
        """Stay in the current file from now on."""
        self.due_ns = self.half = _NEVER
        """Begin of the next file, and the place in the middle of this one."""

    def turn_over(self, at: int) -> None:
        """Begin the next file, unless a batch is under way; `at` is the place of the last word."""
        place, close, stretch = self._process.place, self._close_file, self._stretch
        if self.is_busy or close is None or self.half == _NEVER:
            return
        if 0 < at < self.half and place.stretch() == stretch:
            return
        if self.header[Header.STOP]:  # the recording is over
            self._keep_file()
            return
        self._turn += 1
        try:
            self.begin()
        except OSError:  # the disk is full: this file takes the rest
            self._keep_file()
            return
        self._paths = None
        close()
        if self._process.worker == MAIN and self._stretch != stretch:
            place.thin()

    def add_paths(self, paths: list[str]) -> None:
        """Append paths of files; the log refers to a path by the number of its line, from 1.

        A write takes 10 us between two ops of a pipeline, so paths are not written per sample.
        """
        if self._close_file is None:
            return
        if self._paths is None:
            self._paths = JsonLines(self._path.with_suffix(".paths"))
        self._paths.write("".join(f"{quoted(path)}\n" for path in paths))

    def close(self, *, files: bool = True) -> None:
        """Write nothing from now on; with `files`, close the file and free its unused space."""
        close, self._paths = self._close_file, None
        self._write_nowhere()
        if files and close is not None:
            close()


def _close(
    path: Path, mapping: mmap.mmap, place: Callable[[], int], views: tuple[memoryview, ...]
) -> None:
    for view in views:  # a thread that still writes gets an exception instead of a bus error
        view.release()
    mapping.close()
    following = place()
    if following and os.name == "posix":
        with contextlib.suppress(OSError):
            os.truncate(path, (HEADER_WORDS + following) * 8)


class ProcessLog:
    """Logs of all threads of a process, and the names behind the words' codes.

    Times of words count from `started_ns` (`perf_counter_ns()`), by default now. An `OSError` says
    that the disk has no room for the log of this thread.
    """

    mark: Callable[..., None]
    """`(mark, epoch, number)`: writes a mark of the calling thread, with the time."""
    put: Callable[[int], None]
    """`(key)`: writes the time as a word, see `part`."""
    here: Callable[[], ThreadLog]
    """Returns the log of the calling thread."""

    def __init__(self, place: LogPlace, worker: int, started_ns: int | None = None) -> None:
        self.place, self.worker, self.failures = place, worker, place.failures
        self.started_ns = perf_counter_ns() if started_ns is None else started_ns
        self.is_retired = False
        self._threads: dict[int, ThreadLog] = {}
        self._codes: dict[Stage, int] = {}
        self._numbers = count(1)
        first = ThreadLog(self, place.capacity)
        first.begin()
        self._threads[get_ident()] = first
        name = names_of(os.getpid(), worker, self.started_ns)
        self._names: JsonLines | None = JsonLines(place.folder / name)
        self.mark, self.put, self.here = self._writers()

    def _writers(  # noqa: C901 - `mark` is one function, because it runs some twenty times per batch
        self,
    ) -> tuple[Callable[..., None], Callable[[int], None], Callable[[], ThreadLog]]:
        """Return the functions that write.

        They are closures for speed: they run between two steps of a loop, and hooks keep them.
        """
        threads, begin_thread, started_ns = self._threads, self._begin_thread, self.started_ns
        ident, clock = get_ident, perf_counter_ns
        epoch_word, number_word = Tag.EPOCH | INDEX_OFFSET, int(Tag.NUMBER)

        def here() -> ThreadLog:
            try:
                return threads[ident()]
            except KeyError:
                return begin_thread()

        def mark(mark: int, epoch: int = 0, number: int = 0) -> None:
            try:
                log = threads[ident()]
            except KeyError:
                log = begin_thread()
            now, words, place = clock(), log.words, log.place
            try:
                if epoch != log.epoch:
                    words[place()] = epoch + epoch_word
                    log.epoch = epoch
                words[place()] = number + number_word
                words[at := place()] = now + mark
                if now >= log.due_ns or not 0 < at < log.half:
                    log.turn_over(at)
            except ValueError:  # another thread has just closed the log
                if not self.is_retired:
                    raise

        def put(key: int) -> None:
            log, now = here(), clock()
            try:
                log.words[at := log.place()] = key | now - started_ns & TIME
                if now >= log.due_ns or not 0 < at < log.half:
                    log.turn_over(at)
            except ValueError:  # as above
                if not self.is_retired:
                    raise

        return mark, put, here

    def mark_device(self, edge: int, at_ns: int, drift_ns: int) -> None:
        """Write the time at which a device reached an event, which is in the past."""
        words, place = (log := self.here()).words, log.place
        words[place()] = Tag.NUMBER | numbers(drift_ns + DRIFT_OFFSET, edge)
        words[place()] = Mark.DEVICE | at_ns

    def _begin_thread(self) -> ThreadLog:
        log = ThreadLog(self, self.place.capacity // _SHARE_OF_OTHERS)
        if self.is_retired:
            return log
        if len(self._threads) == _MOST_THREADS:
            self.say(note=f"more than {_MOST_THREADS} threads: the others were not recorded")
        if len(self._threads) < _MOST_THREADS:
            with self.failures.within("events of other threads"):
                log.begin()
        return self._threads.setdefault(get_ident(), log)

    def numbered(self, stage: Stage) -> tuple[Stage, int]:
        """Return a stage and its code; late stages share one when there are too many names."""
        if stage not in self._codes and len(self._codes) >= MOST_NAMES:
            if OTHER_NAMES not in self._codes:
                self.say(
                    note=f"more than {MOST_NAMES} names of stages: later names are "
                    f"'{OTHER_NAMES.name}'; use the same name for a stage each time"
                )
            stage = OTHER_NAMES
        if stage not in self._codes:
            code = self._codes.setdefault(stage, next(self._numbers))
            self.say(code=code, stage=stage)
        return stage, self._codes[stage]

    def part(self, stage: Stage) -> tuple[int, int]:
        """Return the arguments of `put` for the begin and the end of a part."""
        code = self.numbered(stage)[1] << CODE_SHIFT
        return Mark.BEGIN | code, Mark.END | code

    def begin(self, stage: Stage) -> Callable[[], None]:
        """Begin a part of the loop, and return what to call at its end."""
        begin, end = self.part(stage)
        self.put(begin)
        return partial(self.put, end)

    def say(self, **line: Any) -> None:
        """Append one line to the names, which survives the end of the process."""
        names = self._names
        if names is not None:
            names.say(**line)

    def retire(self, *, close: bool = True) -> None:
        """Write nothing from now on; a forked child (`close=False`) leaves the files open."""
        self.is_retired = True
        for log in list(self._threads.values()):
            if not (close and log.is_busy):  # the thread closes its log after its batch
                log.close(files=close)
        self._names = None


def stop_hooks(place: LogPlace) -> None:
    """End a recording, and turn off the hooks of living workers."""
    for path in place.logs():
        with place.failures.within("the end of the hooks in workers"), path.open("r+b") as log:
            log.seek(Header.STOP * 8)
            log.write(struct.pack("q", 1))


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LogPages:
    """Content of one file of a thread's log; with the numbers of `Header`, by their names."""

    pid: int
    worker: int
    born_ns: int
    words: np.ndarray
    """int64, in the order of time, none of them 0."""
    started_ns: int = 0
    """Enter, begin and end words count from here: the start of the process's recording."""
    thread: int = 0
    turn: int = 0
    is_full: bool = False
    """True if later words are missing."""
    other_threads: int = 0
    """Unrecorded calls of hooked functions in other threads."""
    paths: list[Any] = field(default_factory=list)
    """Paths of the user's files, by number from 1; a value of another type is a damaged line."""
    names: ProcessNames = field(default_factory=ProcessNames)


def read_log(path: Path, names_read: dict[str, ProcessNames] | None = None) -> LogPages:
    """Read one file of a log, also while a process writes it.

    `names_read` is a cache of processes' names, by their file.

    Raises:
        RunFormatError: the file is not an event log, or one of another version.
    """
    data = read_file(path)
    raw = np.frombuffer(data, np.int64, len(data) // 8)
    if raw.size <= HEADER_WORDS or raw[Header.MAGIC] != MAGIC:
        raise RunFormatError(f"{path} is not an event log of this version of stallscope")
    head, words = raw[:HEADER_WORDS].tolist(), raw[HEADER_WORDS + 1 :]
    name = names_of(head[Header.PID], head[Header.WORKER], head[Header.STARTED_NS])
    names = (names_read or {}).get(name) or read_names(path.with_name(name))
    if names_read is not None:
        names_read[name] = names
    others = Header.MAGIC, Header.STOP
    of_writer = {at.name.lower(): head[at] for at in Header if at not in others}
    is_full, paths = bool(raw[HEADER_WORDS]), list(json_lines(path.with_suffix(".paths")))
    return LogPages(words=words[words != 0], is_full=is_full, paths=paths, names=names, **of_writer)
