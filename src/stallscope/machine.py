"""The machine of a measurement, the limits of this process, and its rank.

A container's limits are those of its control groups: every group from the process's own up to the
top limits it, and the tightest limit counts. Both versions are supported:
docs.kernel.org/admin-guide/cgroup-v2.html and docs.kernel.org/admin-guide/cgroup-v1/memory.html.
An unreadable file counts as no limit.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import psutil

from stallscope.errors import UnsupportedError

_ROOT: Final = Path("/")
"""Parent of `proc` and `sys`."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where workers put their batches
_GROUPS: Final = "sys/fs/cgroup"
_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Columns of a core in proc_stat(5): user, nice, system, irq, softirq, steal (time that the
hypervisor gives to others, which is not free, either)."""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that limits memory."""

    folder: Path
    limit_bytes: int

    def used_bytes(self) -> int | None:
        """Return the bytes that count against the limit; None if unknown.

        Without inactive file pages, which the kernel can drop, as in the working set of Kubernetes
        (kubernetes.io/docs/reference/instrumentation/node-metrics).
        """
        used = _number(self.folder / "memory.current", self.folder / "memory.usage_in_bytes")
        counts = _pairs(self.folder / "memory.stat")
        # version 1 counts the groups inside only in its totals, version 2 always
        idle = counts.get("total_inactive_file", counts.get("inactive_file", 0))
        return None if used is None else max(used - idle, 0)


@dataclass(frozen=True)
class CpuGroup:
    """A control group that limits CPU."""

    folder: Path
    quota_cores: float

    def used_s(self) -> float | None:
        """Return the CPU time of the group's processes so far, seconds; None if unknown."""
        used_us = _pairs(self.folder / "cpu.stat").get("usage_usec")
        if used_us is not None:
            return used_us / 1e6
        used_ns = _number(self.folder / "cpuacct.usage")
        return None if used_ns is None else used_ns / 1e9


def cores_available(root: Path = _ROOT) -> float:
    """Return the cores that this process may keep busy; a CPU quota may be fractional.

    The minimum of its CPU affinity and the CPU quota of each of its control groups.
    """
    may_run_on = getattr(os, "sched_getaffinity", None)
    cores = len(may_run_on(0)) if may_run_on else os.cpu_count() or 1
    return min([float(cores), *(group.quota_cores for group in cpu_groups(root))])


def cpu_groups(root: Path = _ROOT) -> list[CpuGroup]:
    """Return the control groups that limit this process's CPU, the tightest quota first."""
    groups = []
    for folder in _folders("cpu", root):
        # Microseconds of CPU in a period, or "max" or -1 for no limit
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            groups.append(CpuGroup(folder, int(quota) / int(period)))
    return sorted(groups, key=lambda group: group.quota_cores)


def memory_available_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that this process can take without swapping or being killed.

    The minimum of the free memory of the machine and of each control group.
    """
    used = [(group.limit_bytes, group.used_bytes()) for group in memory_groups(root)]
    left = [max(limit - bytes_, 0) for limit, bytes_ in used if bytes_ is not None]
    return min([int(psutil.virtual_memory().available), *left])


def shared_memory_free() -> float:
    """Return the free bytes of /dev/shm, where workers put their batches; `inf` without one."""
    return shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else math.inf  # noqa: PTH112


def memory_groups(root: Path = _ROOT) -> list[MemoryGroup]:
    """Return the control groups that limit this process's memory, the tightest limit first."""
    groups = []
    for folder in _folders("memory", root):
        # Above `memory.high`, the processes of a group are put to sleep
        hard = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        limits = [limit for limit in (hard, _number(folder / "memory.high")) if limit is not None]
        limit = min(limits, default=0)
        if 0 < limit < 1 << 60:  # version 1 has a number near 2^63 for "no limit"
            groups.append(MemoryGroup(folder, limit))
    return sorted(groups, key=lambda group: group.limit_bytes)


def _folders(controller: str, root: Path) -> list[Path]:
    """Return the folders of the groups that this process is in, its own first; none off Linux.

    A container that sees the path of its group on the host has only the folder at the top.
    """
    folders: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(",") or not controllers:  # no name: version 2
            top = root / _GROUPS / (controller if controllers else "")
            own = top / group.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return folders


def _pairs(path: Path) -> dict[str, int]:
    pairs = (line.partition(" ") for line in _text(path).splitlines())
    return {name: int(number) for name, _, number in pairs if number.isdecimal()}


def _number(*paths: Path) -> int | None:
    """Return the number in the first of these files that holds one."""
    texts = (_text(path) for path in paths)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def busy_core_s() -> dict[str, float]:
    """Return the busy seconds of each core that this process may use; empty without /proc.

    psutil numbers only the cores that are online, and so misnames those behind an offline core.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        cores = enumerate(psutil.cpu_times(percpu=True))
        return {str(core): sum(times) - times.idle for core, times in cores}
    usable = {f"cpu{core}": str(core) for core in sorted(os.sched_getaffinity(0))}
    # Without the thousands of interrupt counts behind the cores
    rows = map(str.split, _text(_ROOT / "proc/stat").partition("intr")[0].splitlines())
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return {
        usable[row[0]]: sum(int(row[column]) for column in _BUSY) * tick_s
        for row in rows
        if row[0] in usable
    }


class CpuUse(NamedTuple):
    """CPU seconds up to a moment: of the usable cores, and of this process."""

    busy_s: float
    whole_s: float
    """Busy and idle time of the cores."""
    own_s: float
    """CPU time of this process with its ended children."""

    @classmethod
    def now(cls) -> CpuUse:
        """Read the current values."""
        mine, busy = os.times(), busy_core_s()
        own_s = mine.user + mine.system + mine.children_user + mine.children_system
        return cls(sum(busy.values()), len(busy) * perf_counter(), own_s)

    def since(self, children_s: float) -> tuple[float, float]:
        """Return CPU seconds of this process since then, and the share of cores that others used.

        Its living children used `children_s` in that time.
        """
        now = CpuUse.now()
        own_s, whole_s = now.own_s - self.own_s, now.whole_s - self.whole_s
        others_s = now.busy_s - self.busy_s - own_s - children_s
        return own_s, min(max(others_s / whole_s, 0.0), 1.0) if whole_s > 0 else 0.0


def machine() -> dict[str, Any]:
    """Return the usable cores, the versions, the device and the number of the node.

    Names no host and no user.
    """
    import torch  # not at the top: the sampling process imports this module, too

    # Number of the node in a training by torchrun or Slurm
    node = os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or ""
    return {
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "node": int(node) if node.isdecimal() else None,
    }


def usable_cores() -> int:
    """Return the whole cores that this process may keep busy, at least 1."""
    return max(1, int(cores_available()))


@cache
def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    with suppress(PackageNotFoundError):
        return version(package)
    return None


def rank(single: int = 0) -> int:
    """Return the rank of this process; `single` for one that no launcher gave a rank."""
    group = _process_group()
    return group.get_rank() if group else int(os.environ.get("RANK") or single)


def require_single_rank() -> None:
    """Refuse to measure in one of several ranks.

    Raises:
        UnsupportedError: several ranks would wait for each other.
    """
    group = _process_group()
    # Torchrun's variable is there before the ranks connect
    ranks = group.get_world_size() if group else int(os.environ.get("WORLD_SIZE") or 1)
    if ranks > 1:
        raise UnsupportedError(
            f"this process is one of {ranks} ranks, and an experiment of its own would make the "
            "others wait. Use ss.instrumented, which only watches, or run it in one process"
        )


def _process_group() -> Any:
    """Return `torch.distributed` if this process has joined a group; else None."""
    import torch.distributed as group

    return group if group.is_available() and group.is_initialized() else None
