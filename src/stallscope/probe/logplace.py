"""Where the processes of one recording put what they write."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from stallscope.eventlog import Header, LogWriter
from stallscope.marks import MarkWriter

if TYPE_CHECKING:
    from pathlib import Path

MAIN: Final = -1
"""Worker id of the main process in the logs."""
_OF_WORKER: Final = re.compile(r"\d+-\d+-\d+\.events").fullmatch
_MAIN_ROWS: Final = 400_000
_WORKER_ROWS: Final = 20_000
"""Marks that are kept of a process: those of a worker: about five thousand batches."""


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
    """Whether each worker stands by to sample its own stacks, see `probe.standby`."""

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
        """Where samples of what is used lie, see `stallscope.resources`."""
        return self.folder / "samples.resources"

    def stop(self) -> None:
        """Turn off the hooks of workers that live on."""
        for path in self.logs():
            with path.open("r+b") as log:
                log.seek(Header.STOP * 8)
                log.write(struct.pack("q", 1))
