"""The marks: what happens to whole batches, and what the training loop does with them.

The event log holds what goes on inside of one batch, in one thread, as fast as can be. Marks are
few, about twenty a batch, and may come from any thread of a process: the loop, a worker, the thread
that sends its batches, the one that pins them. So a mark is a row of six numbers that stands for
itself; they outlive a process that is killed.

`LogPlace` says where the processes of one recording put both, and `RecordingInfo` what it is.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import count, repeat
from threading import get_ident
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.errors import RunFormatError
from stallscope.hooks.failures import Failures
from stallscope.hooks.stage_log import (
    Header,
    LogWriter,
    MappedLog,
    Pages,
    give_back,
    read_names,
    read_words,
)
from stallscope.hooks.stretches import MOST_BYTES, STRETCH_NS, Stretches
from stallscope.machine import machine as machine_here
from stallscope.machine import rank as rank_here

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from pathlib import Path


OUTER: Final = 0
"""The loader that a recording iterates itself, when that is no torch DataLoader."""
AROUND: Final = -1
"""What other libraries put around loaders; each iteration of it is an epoch of its own."""
_EPOCHS: Final = 1 << 20
_MAGIC: Final = 0x4D41524B53  # "MARKS"
_ROW: Final = struct.Struct("6q")
"""The first one is the header: magic, pid, worker, born_ns, how many rows, which file of it."""
MAIN: Final = -1
"""Worker id of the main process in the logs."""
_WORD: Final = struct.Struct("q")
COST_SHARE_DRIVEN: Final = 0.02
"""Share of the batches' time that recording may cost in a loop that stallscope runs itself ..."""
COST_SHARE_WATCHED: Final = 0.01
"""... and in a training of the user's, which must not become slower."""
_MAIN_ROWS: Final = 100_000
_WORKER_ROWS: Final = 20_000
"""Marks in a file; those of a worker: about five thousand batches."""


class Mark(IntEnum):
    """What happened. In brackets: what the number and the extra of the row are."""

    ITER = 1
    """The loop asks for an iterator: an epoch begins."""
    ITERATED = 2
    """It has got it."""
    WAIT = 3
    """The loop asks for a batch."""
    GOT = 4
    """It has got one [batch]."""
    ENDED = 5
    """There was none: the epoch is over, or something was raised."""
    ASKED = 6
    """A worker is asked for a batch [batch, worker]."""
    ARRIVED = 7
    """A batch was received and unpickled [batch]."""
    TAKEN = 8
    """A worker takes a task up [batch]."""
    MADE = 9
    """The batch is made and handed on [batch]."""
    PICKLE = 10
    """The thread that sends begins to pickle a batch [batch]."""
    SENT = 11
    """It has written the batch into the pipe [batch]."""
    PIN = 12
    """A batch is copied into pinned memory."""
    PINNED = 13
    PINS = 14
    """The thread that pins the batches of this epoch [-, thread]."""
    BEGIN = 15
    """A part of the loop begins [-, code]."""
    END = 16
    COLLECT = 17
    """Python collects garbage [generation]."""
    COLLECTED = 18
    DEVICE = 19
    """The device came to an event; written when that was read [`device_time.Edge`, when]. In the
    place of the epoch stands how far its clock had gone astray."""


class MarkRow(IntEnum):
    """The columns of a row."""

    WHAT = 0
    THREAD = 1
    EPOCH = 2
    """Loader and epoch, see `epoch_key`; 0 where it does not matter."""
    NUMBER = 3
    EXTRA = 4
    TIME_NS = 5
    """`perf_counter_ns()`."""


def epoch_key(loader: int, epoch: int) -> int:
    """One number for an epoch of a loader."""
    return loader * _EPOCHS + epoch


def loader_and_epoch(key: int) -> tuple[int, int]:
    """The numbers of a loader and its epoch."""
    return divmod(key, _EPOCHS)


class MarkWriter(MappedLog):
    """Writes the marks of one process; any thread may.

    Args:
        path: a new file.
        worker: worker id, or -1 for the main process.
        rows: how many marks a file holds; of more in a stretch it keeps the latest.
        stretches: when the next file begins; None: never.
    """

    def __init__(
        self,
        path: Path,
        *,
        worker: int,
        pid: int,
        rows: int,
        stretches: Stretches | None = None,
    ) -> None:
        super().__init__(path, (rows + 1) * _ROW.size, stretches)
        self._worker, self._pid, self._rows = worker, pid, rows
        self._turning = threading.Lock()
        self._lay_out()
        self.mark, self._write_to = self._writer(rows)

    def _lay_out(self) -> None:
        head = _MAGIC, self._pid, self._worker, perf_counter_ns(), self._rows, self._turn
        _ROW.pack_into(self._mapping, 0, *head)

    def _writer(self, rows: int) -> tuple[Callable[..., bool], Callable[..., None]]:
        """The functions that write, and that change where it is written.

        Closures, because they run between two steps of a loop. Hooks keep `mark` for themselves.
        """
        pack, size, clock, ident = _ROW.pack_into, _ROW.size, perf_counter_ns, get_ident
        half = rows // 2
        written: tuple[mmap.mmap | bytearray, Callable[[], int], int]

        def mark(what: int, epoch: int = 0, number: int = 0, extra: int = 0) -> bool:
            """Write one mark with the time of now; whether it may be time to turn over."""
            buffer, place, next_ns = written
            row, now = place(), clock()
            try:
                pack(buffer, (row % rows + 1) * size, what, ident(), epoch, number, extra, now)
            except ValueError:  # another thread turned it over just now, or retired it
                return buffer is not written[0] and mark(what, epoch, number, extra)
            return now >= next_ns or row >= half

        def write_to(buffer: mmap.mmap | bytearray, place: Callable[[], int]) -> None:
            nonlocal written
            next_ns = self._stretches.next_ns() if self._stretches else sys.maxsize
            written = buffer, place, next_ns

        write_to(self._mapping, count().__next__)
        return mark, write_to

    def turn_over(self) -> None:
        """Begin the next file if it is time to, between two batches; any thread may."""
        try:
            (half_full,) = _WORD.unpack_from(self._mapping, (self._rows // 2 + 1) * _ROW.size)
        except ValueError:  # another thread retired it just now
            return
        if not self._is_due(half_full=half_full) or not self._turning.acquire(blocking=False):
            return
        try:
            old, stretch = (self._path, self._mapping, self._names), self._stretch
            if self._begin_next(self._worker):
                self._lay_out()
                self._write_to(self._mapping, count().__next__)
                give_back(*old, _used(old[1]))
                if self._worker == MAIN and self._stretch != stretch and self._stretches:
                    self._stretches.thin()
        finally:
            self._turning.release()

    def retire(self, *, close: bool = True) -> None:
        """Write nothing from now on.

        Args:
            close: also give the mapping back, and the space that was not used; a forked child
                leaves them to its parent.
        """
        self.stay()
        self._write_to(bytearray(2 * _ROW.size), repeat(0).__next__)  # one row, for nobody
        self.say = self.turn_over = _nothing  # type: ignore[method-assign]
        if close and not self._mapping.closed:
            give_back(self._path, self._mapping, self._names, _used(self._mapping))


def _used(mapping: mmap.mmap) -> int:
    """Bytes up to the last row that something was written into."""
    written = np.frombuffer(mapping, np.int64).reshape(-1, len(MarkRow))[:, MarkRow.WHAT]
    return (int(np.flatnonzero(written)[-1]) + 1) * _ROW.size


def _nothing(*_: Any, **__: Any) -> None:
    """Where marks go that nobody wants any more."""


@dataclass(frozen=True, kw_only=True)
class MarkPages(Pages):
    """The marks of one process; `stages` are the parts of its loop."""

    rows: np.ndarray
    """int64 of shape (marks, 6), columns of `MarkRow`, in the order of time."""
    full: bool = False
    """Whether earlier marks were overwritten."""


def read_marks(path: Path) -> MarkPages:
    """Read the marks of a process, also while it is running.

    Raises:
        RunFormatError: the file holds no marks.
    """
    raw = read_words(path)
    if raw.size < len(MarkRow) or raw[0] != _MAGIC:
        raise RunFormatError(f"{path} is no file of marks of stallscope")
    written = raw[: raw.size // len(MarkRow) * len(MarkRow)].reshape(-1, len(MarkRow))[1:]
    rows = written[_is_sound(written)]
    return MarkPages(
        pid=int(raw[1]),
        worker=int(raw[2]),
        born_ns=int(raw[3]),
        rows=rows[np.argsort(rows[:, MarkRow.TIME_NS], kind="stable")],
        turn=int(raw[5]),
        full=bool(len(written) == raw[4] and written[-1, MarkRow.WHAT]),
        **read_names(path),
    )


def _is_sound(rows: np.ndarray) -> np.ndarray:
    """Which rows were written, and with numbers that can be: a damaged file may hold any."""
    what, key, number, time_ns = (
        rows[:, column] for column in (MarkRow.WHAT, MarkRow.EPOCH, MarkRow.NUMBER, MarkRow.TIME_NS)
    )
    is_known = (what >= min(Mark)) & (what <= max(Mark))
    is_batch = (np.abs(number) < _EPOCHS << 10) & (np.abs(key) < _EPOCHS << 20)
    sound: np.ndarray = is_known & is_batch & (time_ns > 0)
    return sound


@dataclass(frozen=True)
class RecordingInfo:
    """What a run says of itself."""

    name: str = ""
    """What the user pointed at."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take; None where nothing was simulated."""
    has_step: bool = True
    """Whether batches were used."""
    notes: tuple[str, ...] = ()
    """Sentences that the run is to carry."""
    rank: int = field(default_factory=rank_here)
    """Of the process that trains, in a distributed run."""
    machine: dict[str, Any] = field(default_factory=machine_here)
    """Where it was measured."""
    unix_offset_ns: int | None = field(default_factory=lambda: time_ns() - perf_counter_ns())
    """From `perf_counter_ns()` to the time since 1970."""

    def leave_with(self, marks: MarkWriter) -> None:
        """Leave it with the logs, which then say all, whatever becomes of this process."""
        marks.say(about=asdict(self))


@dataclass(frozen=True)
class LogPlace:
    """Where the processes of one recording put their logs."""

    folder: Path
    """Private folder of the recording."""
    capacity: int
    """Words of each event log."""
    most_bytes: int = MOST_BYTES
    """All logs together, more or less: stretches are deleted before they take much more."""
    stretch_ns: int = STRETCH_NS
    """See `hooks.stretches`."""
    origin_ns: int = field(default_factory=perf_counter_ns)
    """When the recording began."""
    stands_by: bool = False
    """Whether each worker stands by to sample its own stacks, see `hooks.self_sampler`."""
    cost_share: float = COST_SHARE_WATCHED
    """Share of the batches' time that recording may cost; above it, only some are recorded."""

    def open(self, worker: int, loader: int = 0) -> LogWriter:
        """A new event log of this process. Raises OSError where there is no room."""
        stretches = self.stretches()
        return LogWriter(
            stretches.new_path(worker, ".events"),
            worker=worker,
            born_ns=perf_counter_ns(),
            capacity=self.capacity,
            loader=loader,
            stretches=stretches,
        )

    def open_marks(self, worker: int) -> MarkWriter:
        """A new file of marks of this process. Raises OSError where there is no room."""
        stretches = self.stretches()
        path = stretches.new_path(worker, ".marks")
        rows = _MAIN_ROWS if worker == MAIN else _WORKER_ROWS
        return MarkWriter(path, worker=worker, pid=os.getpid(), rows=rows, stretches=stretches)

    def stretches(self) -> Stretches:
        """The stretches of time that the logs are divided into."""
        return Stretches(self.folder, self.origin_ns, self.stretch_ns, self.most_bytes)

    def logs(self) -> list[Path]:
        """All event logs that there are by now."""
        return sorted(self.folder.glob("*.events"))

    def marks(self) -> list[Path]:
        """All files of marks that there are by now."""
        return sorted(self.folder.glob("*.marks"))

    @property
    def failures(self) -> Failures:
        """What failed in stallscope itself while it recorded."""
        return Failures(self.folder)

    def resources(self) -> Path:
        """Where samples of what is used lie, see `stallscope.stages`."""
        return self.folder / "samples.resources"

    def stop(self) -> None:
        """Turn off the hooks of workers that live on."""
        self.stretches().end()
        for path in self.logs():
            with self.failures.within("the end of the hooks in workers"), path.open("r+b") as log:
                log.seek(Header.STOP * 8)
                log.write(struct.pack("q", 1))
