"""Where there is no /proc (macOS, Windows): what psutil knows, in one source."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from stallscope.resources import (
    CORE,
    DISK_OPERATIONS,
    DISK_READ,
    DISK_WRITE,
    LOOP,
    MEMORY,
    RECEIVED,
    SENT,
    WORKER,
)

if TYPE_CHECKING:
    from stallscope.measure.resources.readings import Readings
    from stallscope.probe.logplace import LogPlace


class Portable:
    """Cores, processes, memory, disks and network; all disks together, and all links.

    Args:
        place: where the workers' logs are.
    """

    seldom = False

    def __init__(self, place: LogPlace) -> None:
        self.notes: list[str] = []
        self._place = place
        self._loop = psutil.Process()
        self._workers: dict[str, psutil.Process] = {}
        self._known: set[str] = set()
        cores = [str(core) for core in range(psutil.cpu_count() or 1)]
        self.limits: Readings = {
            CORE: dict.fromkeys(cores, 1.0),
            MEMORY: {"machine": float(psutil.virtual_memory().total)},
        }

    def read(self) -> Readings:
        """Counters since the machine or the process was started; memory as it is."""
        cores = enumerate(psutil.cpu_times(percpu=True))
        memory = psutil.virtual_memory()
        return {
            CORE: {str(core): sum(times) - times.idle for core, times in cores},
            MEMORY: {"machine": float(memory.total - memory.available)},
            LOOP: {str(os.getpid()): _cpu_s(self._loop)},
            WORKER: self._of_workers(),
            **_of_disks(),
            **_of_network(),
        }

    def _of_workers(self) -> dict[str, float]:
        for pid in self._place.workers() - self._known:
            self._known.add(pid)
            with suppress(psutil.Error):
                self._workers[pid] = psutil.Process(int(pid))
        spent = {pid: self._worker_s(pid) for pid in list(self._workers)}
        return {pid: spent_s for pid, spent_s in spent.items() if spent_s is not None}

    def _worker_s(self, pid: str) -> float | None:
        try:
            return _cpu_s(self._workers[pid])
        except psutil.Error:
            del self._workers[pid]
            return None

    def close(self) -> None:
        """It holds nothing open."""


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _of_disks() -> Readings:
    # Without `nowrap`, for which psutil takes a lock that a forked child would find taken
    used = psutil.disk_io_counters(nowrap=False)
    if used is None:
        return {}
    return {
        DISK_READ: {"all": float(used.read_bytes)},
        DISK_WRITE: {"all": float(used.write_bytes)},
        DISK_OPERATIONS: {"all": float(used.read_count + used.write_count)},
    }


def _of_network() -> Readings:
    used = psutil.net_io_counters(nowrap=False)
    if used is None:
        return {}
    return {RECEIVED: {"all": float(used.bytes_recv)}, SENT: {"all": float(used.bytes_sent)}}
