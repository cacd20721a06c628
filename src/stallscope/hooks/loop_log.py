"""The marks: what happens to whole batches, and what the training loop does with them.

The event log holds what goes on inside of one batch, in one thread, as fast as can be. Marks are
few, about twenty a batch, and may come from any thread of a process: the loop, a worker, the thread
that sends its batches, the one that pins them. So a mark is a row of six numbers that stands for
itself; a file holds the latest of one process, also when the process is killed.

`LogPlace` says where the processes of one recording put both, and `RecordingInfo` what it is.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import count
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stallscope.errors import RunFormatError
from stallscope.hooks.stage_log import Header, LogWriter, MappedLog, Pages, read_names
from stallscope.machine import machine as machine_here
from stallscope.machine import rank as rank_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OUTER: Final = 0
"""The loader that a recording iterates itself, when that is no torch DataLoader."""
AROUND: Final = -1
"""What other libraries put around loaders; each iteration of it is an epoch of its own."""
_EPOCHS: Final = 1 << 20
_MAGIC: Final = 0x4D41524B53  # "MARKS"
_ROW: Final = struct.Struct("6q")
"""The first one is the header: magic, pid, worker, born_ns, how many rows, and one in reserve."""
MAIN: Final = -1
"""Worker id of the main process in the logs."""
_OF_WORKER: Final = re.compile(r"\d+-\d+-\d+\.events").fullmatch
_MAIN_ROWS: Final = 400_000
_WORKER_ROWS: Final = 20_000
"""Marks that are kept of a process; those of a worker: about five thousand batches."""


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
        rows: how many marks are kept, the latest.
    """

    def __init__(self, path: Path, *, worker: int, pid: int, rows: int) -> None:
        super().__init__(path, (rows + 1) * _ROW.size)
        _ROW.pack_into(self._mapping, 0, _MAGIC, pid, worker, perf_counter_ns(), rows, 0)
        self.mark = self._writer(rows)
        self.say = self._names.say

    def _writer(self, rows: int) -> Callable[..., None]:
        """The function that writes; a closure, because it runs between two steps of a loop."""
        mapping, pack, size, place = self._mapping, _ROW.pack_into, _ROW.size, count().__next__
        clock, ident = perf_counter_ns, get_ident

        def mark(what: int, epoch: int = 0, number: int = 0, extra: int = 0) -> None:
            """Write one mark with the time of now."""
            at = (place() % rows + 1) * size
            try:
                pack(mapping, at, what, ident(), epoch, number, extra, clock())
            except ValueError:
                return  # retired by another thread, just now

        return mark

    def retire(self, *, close: bool = True) -> None:
        """Write nothing from now on.

        Args:
            close: also give the mapping back, and the space that was not used; a forked child
                leaves them to its parent.
        """
        self.mark = self.say = _nothing
        if close and not self._mapping.closed:
            self._give_back(self._used())

    def _used(self) -> int:
        """Bytes up to the first row that nothing was written into; rows fill up in order."""
        written = (
            np.frombuffer(self._mapping, np.int64).reshape(-1, len(MarkRow))[1:, MarkRow.WHAT] != 0
        )
        rows = written.size if written[-1] else int(written.argmin())
        return (rows + 1) * _ROW.size


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
    raw = np.fromfile(path, dtype=np.int64)
    if raw.size < len(MarkRow) or raw[0] != _MAGIC:
        raise RunFormatError(f"{path} is no file of marks of stallscope")
    written = raw[: raw.size // len(MarkRow) * len(MarkRow)].reshape(-1, len(MarkRow))[1:]
    rows = written[written[:, MarkRow.WHAT] != 0]
    return MarkPages(
        pid=int(raw[1]),
        worker=int(raw[2]),
        born_ns=int(raw[3]),
        rows=rows[np.argsort(rows[:, MarkRow.TIME_NS], kind="stable")],
        full=bool(len(written) == raw[4] and written[-1, MarkRow.WHAT]),
        **read_names(path),
    )


@dataclass(frozen=True)
class RecordingInfo:
    """What a run says of itself."""

    name: str = ""
    """What the user pointed at."""
    warmup: int = 0
    """Batches at the start that are not part of the steady state."""
    simulated_step_s: float | None = None
    """How long the step was simulated to take; None where nothing was simulated."""
    notes: tuple[str, ...] = ()
    """Sentences that the run is to carry."""
    rank: int = field(default_factory=rank_here)
    """Of the process that trains, in a distributed run."""
    machine: dict[str, Any] = field(default_factory=machine_here)
    """Where it was measured."""

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
    most_bytes: int = 1 << 30
    """All logs together; a process that starts later leaves none."""
    stands_by: bool = False
    """Whether each worker stands by to sample its own stacks, see `hooks.self_sampler`."""

    def open(self, worker: int, loader: int = 0) -> LogWriter:
        """A new event log of this process. Raises OSError where there is no room."""
        self._check_room()
        born_ns = perf_counter_ns()
        path = self.folder / f"{os.getpid()}-{worker}-{born_ns}.events"
        return LogWriter(
            path, worker=worker, born_ns=born_ns, capacity=self.capacity, loader=loader
        )

    def open_marks(self, worker: int) -> MarkWriter:
        """A new file of marks of this process. Raises OSError where there is no room."""
        self._check_room()
        path = self.folder / f"{os.getpid()}-{worker}-{perf_counter_ns()}.marks"
        rows = _MAIN_ROWS if worker == MAIN else _WORKER_ROWS
        return MarkWriter(path, worker=worker, pid=os.getpid(), rows=rows)

    def _check_room(self) -> None:
        if sum(path.stat().st_size for path in self.logs() + self.marks()) > self.most_bytes:
            raise OSError("the logs have become as large as they may")

    def logs(self) -> list[Path]:
        """All event logs that there are by now."""
        return sorted(self.folder.glob("*.events"))

    def marks(self) -> list[Path]:
        """All files of marks that there are by now."""
        return sorted(self.folder.glob("*.marks"))

    def workers(self) -> set[str]:
        """Process ids of the workers that have a log by now."""
        names = (path.name for path in self.folder.iterdir())
        return {name.partition("-")[0] for name in names if _OF_WORKER(name)}

    def resources(self) -> Path:
        """Where samples of what is used lie, see `stallscope.stages`."""
        return self.folder / "samples.resources"

    def stop(self) -> None:
        """Turn off the hooks of workers that live on."""
        for path in self.logs():
            with path.open("r+b") as log:
                log.seek(Header.STOP * 8)
                log.write(struct.pack("q", 1))
