"""What a sample of the machine is read from: the kernel's counters in /proc, and NVML.

The files stay open between two samples: a sample costs a fifth of what it costs through psutil,
which also calls `open`; that is hooked while samples are made in this process. Over 500 lines, as a
source is a dozen of them and all have one form.

GPUs are read through NVML where its Python package (nvidia-ml-py) is installed; it is never needed.
Functions and fields: docs.nvidia.com/deploy/nvml-api. "Busy" is NVML's `utilization.gpu`: the share
of a period (1/6 s to 1 s) in which a kernel of any process ran.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from io import FileIO
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
import torch

from stallscope.machine import cpu_groups, memory_groups
from stallscope.stages import (
    CORE,
    DISK_BUSY,
    DISK_OPERATIONS,
    DISK_READ,
    DISK_WRITE,
    FILE_LOCK,
    GPU,
    GPU_MEMORY,
    LOOP,
    MEMORY,
    NAMES,
    QUEUED,
    QUOTA,
    RECEIVED,
    SENT,
    SHM,
    THREADS,
    WORKER,
    WORKER_CORES,
    WORKER_MAPPED,
    WORKER_MEMORY,
    WORKER_PRIVATE,
    WORKER_PROPORTIONAL,
    WORKER_RESIDENT,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.loop_log import LogPlace


PROC: Final = Path("/proc/stat")
"""Where this is missing (macOS, Windows), nothing but GPUs is sampled."""
_LONGEST: Final = 1 << 15
"""Bytes that are read of a file; what is wanted of a longer one, the cores in /proc/stat, stands
first."""
_SHM: Final = "/dev/shm"  # noqa: S108 - is only asked
_SECTOR: Final = 512
"""Bytes that the kernel calls a sector, whatever the disk's are (docs.kernel.org/admin-guide/
iostats.html)."""
_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Columns of a core in proc_stat(5): user, nice, system, irq, softirq, steal. What the hypervisor
gives to others is not free, either."""
_LOOK_EVERY: Final = 5
"""Samples between two looks for new workers."""
_LOCKS_WAIT: Final = ("locks_lock_inode_wait", "flock_lock", "posix_lock", "fcntl_setlk")
"""Functions of Linux (fs/locks.c) in which a process sleeps until a file's lock is free."""
_MOST_WORKERS: Final = 4
"""Workers whose memory is read."""
_LOOK_NS: Final = 1_200_000_000
"""Pause between two looks at it, at least: a recording of a few seconds has some, whatever they
cost, which are ..."""
_FIRST_LOOKS: Final = 5
"""... so many; ..."""
_MEMORY_SHARE: Final = 0.005
"""... all later ones may cost this share of a core. One takes 30 ms for each GB of a worker."""
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_FIRST_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the first namespace of process ids (PROC_PID_INIT_INO in Linux); only in there are
NVML's process ids ours."""

Readings = dict[str, dict[str, float]]
"""Of each resource (see `stallscope.stages`) and device, its counter or its value."""


class Missing(NamedTuple):
    """Resources that are not sampled."""

    resources: tuple[str, ...]
    why: str = ""
    """Nothing where there is nothing to sample: no GPU, no quota."""


class ResourceSource:
    """Something that a sample is read from, always by one thread at a time.

    Raises:
        OSError: what it reads cannot be opened.
    """

    path = ""
    """The file that it is; nothing where it is none, or several."""
    seldom = False
    """Whether it is read only with every few samples: it changes slowly, or costs much."""

    def __init__(self) -> None:
        self.limits: Readings = {}
        """Of its resources, those that are known."""
        self.apart_ns = 0
        """CPU time of reads that it spaces out by itself."""
        self.notes: list[str] = []
        """What a reader of the run has to know, in sentences; more may come while it is read."""
        self._file = FileIO(self.path) if self.path else None

    def read(self) -> Readings:
        """What is used now.

        Raises:
            OSError, ValueError, LookupError: that cannot be read any more.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back what it holds open."""
        if self._file:
            self._file.close()


def sources(place: LogPlace) -> list[ResourceSource | Missing]:
    """Every source of this machine, or what is missing in its place.

    Args:
        place: where the workers' logs are.
    """
    makers: dict[tuple[str, ...], Callable[[], ResourceSource]] = {
        (CORE,): Cores,
        (QUOTA,): Quota,
        (LOOP, WORKER, QUEUED): lambda: Processes(place),
        (MEMORY,): Memory,
        (WORKER_MEMORY, WORKER_MAPPED): lambda: WorkerMemory(place),
        (SHM,): SharedMemory,
        (DISK_BUSY, DISK_READ, DISK_WRITE, DISK_OPERATIONS): Disks,
        (RECEIVED, SENT): Network,
    }
    if not PROC.exists():
        everything = tuple(resource for resources in makers for resource in resources)
        why = "the machine's resources were not sampled: this system has no /proc"
        return [Missing(everything, why), gpus(place)]
    return [_make(resources, make) for resources, make in makers.items()] + [gpus(place)]


def _make(
    resources: tuple[str, ...], make: Callable[[], ResourceSource]
) -> ResourceSource | Missing:
    try:
        return make()
    except LookupError:
        return Missing(resources)
    except (OSError, ValueError) as error:
        named = ", ".join(NAMES[resource] for resource in resources)
        return Missing(resources, f"not sampled: {named} ({error})")


def _text(file: FileIO | None) -> str:
    """What is in a file in /proc now. Raises OSError where its process is gone."""
    return os.pread(file.fileno(), _LONGEST, 0).decode("utf-8", "replace") if file else ""


class Cores(ResourceSource):
    """The cores that this process may run on."""

    path = "/proc/stat"

    def __init__(self) -> None:
        super().__init__()
        self._names = {f"cpu{core}": str(core) for core in sorted(os.sched_getaffinity(0))}
        self.limits = {CORE: dict.fromkeys(self._names.values(), 1.0)}

    def read(self) -> Readings:
        """Seconds in which each was busy."""
        busy = {}
        for line in _text(self._file).partition("intr")[0].splitlines():
            columns = line.split()
            name = self._names.get(columns[0])
            if name is not None:
                busy[name] = sum(int(columns[place]) for place in _BUSY) * _TICK_S
        return {CORE: busy}


class Disks(ResourceSource):
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
        for line in _text(self._file).splitlines():
            columns = line.split()
            name = columns[2]
            if name in self._names:
                found[DISK_READ][name] = int(columns[5]) * _SECTOR
                found[DISK_WRITE][name] = int(columns[9]) * _SECTOR
                found[DISK_OPERATIONS][name] = int(columns[3]) + int(columns[7])
                found[DISK_BUSY][name] = int(columns[12]) / 1e3
        return found


class Network(ResourceSource):
    """The interfaces that have been used since the machine started, without the loopback."""

    path = "/proc/self/net/dev"

    def __init__(self) -> None:
        super().__init__()
        self._names = {name for name, used in self._bytes() if any(used)} - {"lo"}
        megabits = {name: link.speed for name, link in psutil.net_if_stats().items()}
        # What the links carry; 0 where one is virtual, or down
        known = {name: megabits[name] * 1e6 / 8 for name in self._names if megabits.get(name)}
        self.limits = {RECEIVED: known, SENT: known}

    def read(self) -> Readings:
        """Bytes in and out of each."""
        used = {name: both for name, both in self._bytes() if name in self._names}
        return {
            RECEIVED: {name: float(both[0]) for name, both in used.items()},
            SENT: {name: float(both[1]) for name, both in used.items()},
        }

    def _bytes(self) -> list[tuple[str, tuple[int, int]]]:
        lines = [line.partition(":") for line in _text(self._file).splitlines()[2:]]
        columns = [(name.strip(), rest.split()) for name, _, rest in lines]
        return [(name, (int(numbers[0]), int(numbers[8]))) for name, numbers in columns]


class Memory(ResourceSource):
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
        head = _text(self._file)[:400].splitlines()[:3]  # MemTotal, MemFree, MemAvailable
        return {name: int(rest.split()[0]) for name, _, rest in (n.partition(":") for n in head)}


class Quota(ResourceSource):
    """The CPU quota of the container; LookupError where it has none."""

    def __init__(self) -> None:
        super().__init__()
        groups = cpu_groups()
        if not groups:
            raise LookupError
        self._group = groups[0]
        self.limits = {QUOTA: {"container": self._group.quota_cores}}

    def read(self) -> Readings:
        """CPU seconds of all its processes."""
        used_s = self._group.used_s()
        return {} if used_s is None else {QUOTA: {"container": used_s}}


class SharedMemory(ResourceSource):
    """What lies in /dev/shm."""

    seldom = True

    def __init__(self) -> None:
        super().__init__()
        self.limits = {SHM: {_SHM: self._bytes()[1]}}

    def read(self) -> Readings:
        """Bytes in use."""
        return {SHM: {_SHM: self._bytes()[0]}}

    @staticmethod
    def _bytes() -> tuple[float, float]:
        found = os.statvfs(_SHM)
        unit = found.f_frsize
        return float((found.f_blocks - found.f_bfree) * unit), float(found.f_blocks * unit)


class _Process:
    """One process. Raises OSError where there is none."""

    def __init__(self, pid: str) -> None:
        self._stat = FileIO(f"/proc/{pid}/stat")
        self._schedule: FileIO | None = None
        with suppress(OSError):  # a kernel without CONFIG_SCHED_INFO
            self._schedule = FileIO(f"/proc/{pid}/schedstat")
        self._sleeps_in: FileIO | None = None
        with suppress(OSError):  # a kernel without CONFIG_KALLSYMS
            self._sleeps_in = FileIO(f"/proc/{pid}/wchan")

    def count(self, pid: str, resource: str, found: Readings) -> None:
        """Add its CPU time (all threads), its threads, and how long its main thread was queued.

        `utime`, `stime` and `num_threads` in proc_pid_stat(5);
        docs.kernel.org/scheduler/sched-stats.html.
        """
        columns = _text(self._stat).rpartition(")")[2].split()
        found[resource][pid] = (int(columns[11]) + int(columns[12])) * _TICK_S
        if resource == WORKER:
            found[THREADS][pid] = int(columns[17])
            found[WORKER_CORES][pid] = len(os.sched_getaffinity(int(pid)))
            if self._sleeps_in:
                found[FILE_LOCK][pid] = float(_text(self._sleeps_in).startswith(_LOCKS_WAIT))
        if self._schedule:
            found[QUEUED][pid] = int(_text(self._schedule).split()[1]) / 1e9

    def close(self) -> None:
        for file in (self._stat, self._schedule, self._sleeps_in):
            if file:
                file.close()


class Processes(ResourceSource):
    """The process that trains, with all its threads, and the workers that have a log.

    Args:
        place: where the workers' logs are.
    """

    def __init__(self, place: LogPlace) -> None:
        super().__init__()
        self._place = place
        self._pid = str(os.getpid())
        self._loop = _Process(self._pid)
        self._workers: dict[str, _Process] = {}
        self._known: set[str] = set()
        self._reads = 0

    def read(self) -> Readings:
        """CPU seconds of each, and seconds without a core; a worker that has ended is left out."""
        if self._reads % _LOOK_EVERY == 0:
            for pid in self._place.workers() - self._known:
                self._known.add(pid)
                with suppress(OSError):
                    self._workers[pid] = _Process(pid)
        self._reads += 1
        found: Readings = {
            LOOP: {},
            WORKER: {},
            QUEUED: {},
            THREADS: {},
            FILE_LOCK: {},
            WORKER_CORES: {},
        }
        self._loop.count(self._pid, LOOP, found)
        for pid, worker in list(self._workers.items()):
            try:
                worker.count(pid, WORKER, found)
            except (OSError, IndexError):  # noqa: PERF203 - it has ended
                self._workers.pop(pid).close()
        return found

    def close(self) -> None:
        """Give the files back."""
        for process in (self._loop, *self._workers.values()):
            process.close()


class WorkerMemory(ResourceSource):
    """The memory of the latest workers, which the kernel adds up page by page: read seldom.

    Args:
        place: where the workers' logs are.
    """

    def __init__(self, place: LogPlace) -> None:
        super().__init__()
        self._place = place
        self._due_ns = self._reads = 0
        FileIO("/proc/self/smaps_rollup").close()

    def read(self) -> Readings:
        """Bytes of each, see `stallscope.stages`; nothing between two looks."""
        now_ns, before_ns = perf_counter_ns(), thread_time_ns()
        if now_ns < self._due_ns:
            return {}
        found: Readings = {}
        for pid in sorted(self._place.workers(), key=int)[-_MOST_WORKERS:]:
            try:
                with FileIO(f"/proc/{pid}/smaps_rollup") as file:
                    fields = re.findall(r"^(\w+): +(\d+) kB", _text(file), re.MULTILINE)
            except PermissionError as error:  # it runs as somebody else
                self.notes = [f"the memory of a worker could not be read ({error.strerror})"]
                continue
            except OSError:  # it has ended
                continue
            kib = {name: float(number) * 1024 for name, number in fields}
            if not kib:  # it is ending: it has no memory any more
                continue
            private = kib["Private_Clean"] + kib["Private_Dirty"]
            for resource, value in (
                (WORKER_MEMORY, kib.get("Pss_Anon") or kib["Private_Dirty"]),
                (WORKER_MAPPED, kib["Anonymous"]),
                (WORKER_RESIDENT, kib["Rss"]),
                (WORKER_PROPORTIONAL, kib["Pss"]),
                (WORKER_PRIVATE, private),
            ):
                found.setdefault(resource, {})[pid] = value
        if not found:  # the first look does not wait for the second
            return {}
        cost_ns = thread_time_ns() - before_ns
        self.apart_ns += cost_ns
        self._reads += 1
        pause_ns = cost_ns / _MEMORY_SHARE if self._reads >= _FIRST_LOOKS else 0
        self._due_ns = now_ns + int(max(pause_ns, _LOOK_NS))
        return found


class Gpus(ResourceSource):
    """The GPUs that this process may use.

    Args:
        nvml: the module `pynvml`.
        place: where the workers' logs are.
    """

    seldom = True

    def __init__(self, nvml: Any, place: LogPlace) -> None:
        super().__init__()
        self._nvml, self._place = nvml, place
        self._pid = os.getpid()
        nvml.nvmlInit()
        self._gpus = {str(number): gpu for number, gpu in self._visible()}
        total = {n: float(nvml.nvmlDeviceGetMemoryInfo(g).total) for n, g in self._gpus.items()}
        self.limits = {GPU: dict.fromkeys(self._gpus, 1.0), GPU_MEMORY: total}

    def _visible(self) -> list[tuple[int, Any]]:
        """Number and handle of each; CUDA_VISIBLE_DEVICES holds numbers, or the ids of GPUs."""
        nvml = self._nvml
        all_ = {n: nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())}
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return list(all_.items())
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        return [
            (number, gpu)
            for number, gpu in all_.items()
            if str(number) in names or any(nvml.nvmlDeviceGetUUID(gpu).startswith(n) for n in names)
        ]

    def read(self) -> Readings:
        """Share of the time in which a kernel ran, and bytes in use."""
        nvml = self._nvml
        try:
            busy = {
                n: nvml.nvmlDeviceGetUtilizationRates(g).gpu / 100 for n, g in self._gpus.items()
            }
            used = {n: float(nvml.nvmlDeviceGetMemoryInfo(g).used) for n, g in self._gpus.items()}
            for number, gpu in self._gpus.items():
                self._look_for_others(number, gpu)
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error
        return {GPU: busy, GPU_MEMORY: used}

    def _look_for_others(self, number: str, gpu: Any) -> None:
        note = f"GPU {number} is used by another process, too"
        if note in self.notes or not _ids_are_ours():
            return
        running = {str(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if running - self._place.workers() - {str(self._pid)}:
            self.notes.append(note)

    def close(self) -> None:
        """End NVML; a forked child leaves it to its parent."""
        with suppress(self._nvml.NVMLError):
            if os.getpid() == self._pid:
                self._nvml.nvmlShutdown()


def gpus(place: LogPlace) -> ResourceSource | Missing:
    """The GPUs, or why they are not sampled; a machine without a CUDA device has nothing to say."""
    both = (GPU, GPU_MEMORY)
    if not torch.cuda.is_available():
        return Missing(both)
    try:
        import pynvml
    except ImportError:
        return Missing(both, "the GPU was not sampled: there is no NVML (pip install nvidia-ml-py)")
    try:
        return Gpus(pynvml, place)
    except Exception as error:  # noqa: BLE001 - of a package that is not ours; nothing depends on it
        return Missing(both, f"the GPU was not sampled: NVML says {error!r}")


def _ids_are_ours() -> bool:
    """Whether NVML's process ids mean the same here; in most containers they do not."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return os.name == "nt"
