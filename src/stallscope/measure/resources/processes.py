"""Linux: what the process that trains and its workers have of the cores, and wait for them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stallscope.measure.resources.procfile import ProcFile
from stallscope.resources import LOOP, QUEUED, THREADS, WORKER

if TYPE_CHECKING:
    from stallscope.measure.resources.readings import Readings
    from stallscope.probe.logplace import LogPlace

_LOOK_EVERY: Final = 5
"""Samples; then it is looked whether there are new workers."""
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


class _Process:
    """One process. Raises OSError where there is none."""

    def __init__(self, pid: str) -> None:
        self._stat = ProcFile(f"/proc/{pid}/stat")
        self._schedule: ProcFile | None = None
        with suppress(OSError):  # a kernel without CONFIG_SCHED_INFO
            self._schedule = ProcFile(f"/proc/{pid}/schedstat")

    def stat(self) -> tuple[float, int]:
        """CPU time of all threads, and how many there are.

        `utime`, `stime` and `num_threads` in proc_pid_stat(5).
        """
        columns = self._stat.text().rpartition(")")[2].split()
        return (int(columns[11]) + int(columns[12])) * _TICK_S, int(columns[17])

    def queued_s(self) -> float | None:
        """For how long the main thread has waited on a run queue; None where that is not counted.

        See docs.kernel.org/scheduler/sched-stats.html.
        """
        return int(self._schedule.text().split()[1]) / 1e9 if self._schedule else None

    def close(self) -> None:
        self._stat.close()
        if self._schedule:
            self._schedule.close()


class Processes:
    """The process that trains, with all its threads, and the workers that have a log.

    Args:
        place: where the workers' logs are.
    """

    seldom = False

    def __init__(self, place: LogPlace) -> None:
        self.limits: Readings = {}
        self.notes: list[str] = []
        self._place = place
        self._pid = str(os.getpid())
        self._loop = _Process(self._pid)
        self._workers: dict[str, _Process] = {}
        self._known: set[str] = set()
        self._reads = 0

    def read(self) -> Readings:
        """CPU seconds of each, and seconds without a core; a worker that has ended is left out."""
        if self._reads % _LOOK_EVERY == 0:
            self._look()
        self._reads += 1
        found: Readings = {LOOP: {}, WORKER: {}, QUEUED: {}, THREADS: {}}
        _count(self._loop, self._pid, LOOP, found)
        for pid in list(self._workers):
            self._count_worker(pid, found)
        return found

    def _look(self) -> None:
        for pid in self._place.workers() - self._known:
            self._known.add(pid)
            with suppress(OSError):
                self._workers[pid] = _Process(pid)

    def _count_worker(self, pid: str, found: Readings) -> None:
        try:
            _count(self._workers[pid], pid, WORKER, found)
        except (OSError, IndexError):  # it has ended
            self._workers.pop(pid).close()

    def close(self) -> None:
        """Give the files back."""
        for process in (self._loop, *self._workers.values()):
            process.close()


def _count(process: _Process, pid: str, resource: str, found: Readings) -> None:
    found[resource][pid], threads = process.stat()
    if resource == WORKER:
        found[THREADS][pid] = threads
    queued_s = process.queued_s()
    if queued_s is not None:
        found[QUEUED][pid] = queued_s
