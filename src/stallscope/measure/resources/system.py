"""Linux: what the kernel counts of the whole machine, and of the container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stallscope.measure.cgroup import cpu_groups, memory_groups
from stallscope.measure.resources.procfile import ProcFile
from stallscope.resources import (
    CORE,
    DISK_BUSY,
    DISK_OPERATIONS,
    DISK_READ,
    DISK_WRITE,
    MEMORY,
    QUOTA,
    RECEIVED,
    SENT,
    SHM,
)

if TYPE_CHECKING:
    from stallscope.measure.resources.readings import Readings

_SHM: Final = "/dev/shm"  # noqa: S108 - is only asked
_SECTOR: Final = 512
"""Bytes that the kernel calls a sector, whatever the disk's are (docs.kernel.org/admin-guide/
iostats.html)."""
_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Columns of a core in proc_stat(5): user, nice, system, irq, softirq, steal. What the hypervisor
gives to others is not free, either."""


class OfFile:
    """What the sources of one file have in common."""

    seldom = False
    path = ""

    def __init__(self) -> None:
        self.limits: Readings = {}
        self.notes: list[str] = []
        self._file = ProcFile(self.path)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class Cores(OfFile):
    """The cores that this process may run on."""

    path = "/proc/stat"

    def __init__(self) -> None:
        super().__init__()
        self._names = {f"cpu{core}": str(core) for core in sorted(os.sched_getaffinity(0))}
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.limits = {CORE: dict.fromkeys(self._names.values(), 1.0)}

    def read(self) -> Readings:
        """Seconds in which each was busy."""
        busy = {}
        for line in self._file.text().partition("intr")[0].splitlines():
            columns = line.split()
            name = self._names.get(columns[0])
            if name is not None:
                busy[name] = sum(int(columns[place]) for place in _BUSY) * self._tick_s
        return {CORE: busy}


class Disks(OfFile):
    """The machine's disks; not their partitions, nor what lies on top of disks."""

    path = "/proc/diskstats"

    def __init__(self) -> None:
        super().__init__()
        block = Path("/sys/block")
        self._names = {disk.name for disk in block.glob("*") if (disk / "device").exists()}
        self.limits = {DISK_BUSY: dict.fromkeys(self._names, 1.0)}

    def read(self) -> Readings:
        """Seconds with something to do, bytes, and operations of each."""
        found: Readings = {DISK_BUSY: {}, DISK_READ: {}, DISK_WRITE: {}, DISK_OPERATIONS: {}}
        for line in self._file.text().splitlines():
            columns = line.split()
            name = columns[2]
            if name in self._names:
                found[DISK_READ][name] = int(columns[5]) * _SECTOR
                found[DISK_WRITE][name] = int(columns[9]) * _SECTOR
                found[DISK_OPERATIONS][name] = int(columns[3]) + int(columns[7])
                found[DISK_BUSY][name] = int(columns[12]) / 1e3
        return found


class Network(OfFile):
    """The interfaces that have been used since the machine started, without the loopback."""

    path = "/proc/self/net/dev"

    def __init__(self) -> None:
        super().__init__()
        self._names = {name for name, used in self._bytes() if any(used)} - {"lo"}
        speeds = {name: _link_bytes_per_s(name) for name in self._names}
        known = {name: speed for name, speed in speeds.items() if speed}
        self.limits = {RECEIVED: known, SENT: known}

    def read(self) -> Readings:
        """Bytes in and out of each."""
        used = {name: both for name, both in self._bytes() if name in self._names}
        return {
            RECEIVED: {name: float(both[0]) for name, both in used.items()},
            SENT: {name: float(both[1]) for name, both in used.items()},
        }

    def _bytes(self) -> list[tuple[str, tuple[int, int]]]:
        lines = [line.partition(":") for line in self._file.text().splitlines()[2:]]
        columns = [(name.strip(), rest.split()) for name, _, rest in lines]
        return [(name, (int(numbers[0]), int(numbers[8]))) for name, numbers in columns]


def _link_bytes_per_s(name: str) -> float | None:
    """What the link carries; None where it is virtual, or down."""
    try:
        megabits = int(Path(f"/sys/class/net/{name}/speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


class Memory(OfFile):
    """The machine's memory, and that of the container."""

    path = "/proc/meminfo"
    seldom = True

    def __init__(self) -> None:
        super().__init__()
        self._group = next(iter(memory_groups()), None)
        self.limits = {MEMORY: {"machine": float(self._kib()["MemTotal"] * 1024)}}
        if self._group:
            self.limits[MEMORY]["container"] = float(self._group.limit_bytes)

    def read(self) -> Readings:
        """Bytes that are in use and cannot be dropped at once."""
        kib = self._kib()
        used = {"machine": float((kib["MemTotal"] - kib["MemAvailable"]) * 1024)}
        if self._group and (bytes_ := self._group.used_bytes()) is not None:
            used["container"] = float(bytes_)
        return {MEMORY: used}

    def _kib(self) -> dict[str, int]:
        head = self._file.text()[:400].splitlines()[:3]  # MemTotal, MemFree, MemAvailable
        return {name: int(rest.split()[0]) for name, _, rest in (n.partition(":") for n in head)}


class Quota:
    """The CPU quota of the container; LookupError where it has none."""

    seldom = False

    def __init__(self) -> None:
        groups = cpu_groups()
        if not groups:
            raise LookupError
        self._group = groups[0]
        self.limits: Readings = {QUOTA: {"container": self._group.quota_cores}}
        self.notes: list[str] = []

    def read(self) -> Readings:
        """CPU seconds of all its processes."""
        used_s = self._group.used_s()
        return {} if used_s is None else {QUOTA: {"container": used_s}}

    def close(self) -> None:
        """It holds nothing."""


class SharedMemory:
    """What lies in /dev/shm."""

    seldom = True

    def __init__(self) -> None:
        self.limits: Readings = {SHM: {_SHM: self._bytes()[1]}}
        self.notes: list[str] = []

    def read(self) -> Readings:
        """Bytes in use."""
        return {SHM: {_SHM: self._bytes()[0]}}

    def close(self) -> None:
        """It holds nothing."""

    @staticmethod
    def _bytes() -> tuple[float, float]:
        found = os.statvfs(_SHM)
        unit = found.f_frsize
        return float((found.f_blocks - found.f_bfree) * unit), float(found.f_blocks * unit)
