"""The files that a loader reads, and the mounts, devices and file systems that they are on.

The recorder sees files that are opened for a sample. Others in the same folders, with the same
suffix, stand for the rest of the data, which is not searched. A container (HDF5, LMDB, a mapped
array) is opened once, by code that has no hook: it is among the files that the processes hold open
or have mapped.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import sysconfig
import tarfile
import tempfile
import time
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_FOLDERS, _MOST_ENTRIES, _LOOK_S = 32, 20_000, 2.0
"""Folders that are listed, entries in each, and seconds for all of them."""
_MOST_FILES: Final = 4_000
"""Files that stand for the data, beside those that were read."""
_MOST_MEMBERS: Final = 2_000
"""Members of an archive that tell how large a sample in it is."""
_CONTAINER_BYTES: Final = 64 << 10
"""Smallest open file that can be a container of samples."""
_CODE: Final = re.compile(
    r"\.(so(\.\d+)*|pyc?|pyd|mo|cache|log|ipynb|whl|zip\.py)$|locale-archive$"
)
_NETWORK_SYSTEMS: Final = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|virtiofs|ceph|lustre|gpfs|beegfs|afs|davfs|ocfs2|gfs2|orangefs|"
    r"wekafs|fuse.*"
)
_MEMORY_SYSTEMS: Final = frozenset(("tmpfs", "ramfs", "hugetlbfs"))
MEMORY, NETWORK, VIRTUAL, UNKNOWN = "memory", "network", "virtual disk", "unknown"
SPINS, SOLID = "spinning disk", "solid state"


class DataFile(NamedTuple):
    """A file of the data."""

    path: str
    size: int
    """Bytes."""
    was_read: bool = False
    """True if the recording has just read the file, which is why it is in the page cache."""


class Mount(NamedTuple):
    """A mounted file system."""

    path: str
    device: str
    """Device in the system's words: `vda1`, `server:/export`."""
    system: str
    """Kind of file system: ext4, nfs4, tmpfs ..."""
    medium: str
    """Kind of medium: one of the constants above."""


def data_files(read: Iterable[str]) -> list[DataFile]:
    """Return the files that were read and others beside them that were not, sorted by path."""
    files = {path: file for path in dict.fromkeys(read) if (file := _file(path, was_read=True))}
    folders: dict[str, set[str]] = {}
    for path in files:
        folders.setdefault(str(Path(path).parent), set()).add(Path(path).suffix)
    until_s, most = time.monotonic() + _LOOK_S, len(files) + _MOST_FILES
    for folder, suffixes in islice(folders.items(), _MOST_FOLDERS):
        for path in _paths_in(folder, suffixes, until_s):
            if len(files) >= most:
                break
            if path not in files and (file := _file(path)):
                files[path] = file
    return [files[path] for path in sorted(files)]


def _paths_in(folder: str, suffixes: set[str], until_s: float) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if time.monotonic() > until_s:
                return
            if Path(entry.name).suffix in suffixes:
                yield entry.path


def _file(path: str, *, was_read: bool = False) -> DataFile | None:
    """Return a regular, readable file that is not empty; None for anything else."""
    with suppress(OSError, ValueError):  # ValueError: a zero byte in the path
        size = Path(path).is_file() and Path(path).stat().st_size
        if size and os.access(path, os.R_OK):
            return DataFile(str(Path(path).absolute()), size, was_read)
    return None


def open_containers() -> list[DataFile]:
    """Return the data files that the workers hold open for reading, or have mapped.

    Without workers, those of this process.
    """
    paths: set[str] = set()
    for process in _loading_processes():
        with suppress(psutil.Error, OSError):
            paths |= {file.path for file in process.open_files() if file.mode == "r"}
            maps: Any = process.memory_maps(grouped=False)
            paths |= {
                mapping.path
                for mapping in maps
                if mapping.path.startswith("/") and "x" not in mapping.perms
            }
    files = (_file(path, was_read=True) for path in sorted(paths) if not _is_code(path))
    return [file for file in files if file and file.size >= _CONTAINER_BYTES]


def tar_sample_bytes(files: Iterable[DataFile]) -> float | None:
    """Return the bytes of a sample in tar shards, headers included; None without an archive.

    What a process reads meanwhile is no measure: a shuffle buffer fills, a shard is read ahead.
    Members whose names differ only behind the first dot are one sample (webdataset's rule).
    """
    for file in files:
        if not file.path.endswith(".tar"):
            continue
        with suppress(tarfile.TarError, OSError), tarfile.open(file.path, "r:") as archive:
            members = [each for each in islice(archive, _MOST_MEMBERS) if each.isfile()]
            if members:
                last, samples = members[-1], {_sample_of(each.name) for each in members}
                return (last.offset_data + last.size - members[0].offset) / len(samples)
    return None


def _sample_of(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def bytes_read() -> int | None:
    """Return the bytes that the workers have read from the system; None: unknown.

    Without workers, those of this process. See `rchar` in proc_pid_io(5).
    """
    # Off Linux and on old kernels psutil lacks the method, or the counter
    with suppress(psutil.Error, OSError, AttributeError, RuntimeError, ValueError):
        counters: Any = [process.io_counters() for process in _loading_processes()]
        return sum(int(counter.read_chars) for counter in counters)
    return None


def _loading_processes() -> Iterator[psutil.Process]:
    pids = [child.pid for child in multiprocessing.active_children() if child.pid]
    for pid in pids or [os.getpid()]:
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _is_code(path: str) -> bool:
    ours = (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())
    system = ("/dev/", "/proc/", "/sys/", "/lib", "/usr/lib", "/usr/share", "/usr/local/lib")
    outside = (*ours, *system, "/etc", str(Path(tempfile.gettempdir(), "stallscope-")))
    return path.startswith(outside) or bool(_CODE.search(path)) or path.endswith(" (deleted)")


def mounts_of(files: Iterable[DataFile]) -> dict[str, Mount]:
    """Return the mount of each file, by the file's path."""
    # Of several mounts in one place only the last is visible: it comes first here
    partitions = psutil.disk_partitions(all=True)[::-1]
    partitions.sort(key=lambda partition: -len(partition.mountpoint))
    mounts = {}
    for file in files:
        real = os.path.realpath(file.path)
        mounts[file.path] = Mount("/", "", "", UNKNOWN)
        for device, folder, system in (partition[:3] for partition in partitions):
            if f"{real}/".startswith(f"{folder.rstrip('/')}/"):
                medium = _medium(system, folder)
                mounts[file.path] = Mount(folder, device.removeprefix("/dev/"), system, medium)
                break
    return mounts


@cache
def _medium(system: str, folder: str) -> str:
    if system in _MEMORY_SYSTEMS:
        return MEMORY
    if _NETWORK_SYSTEMS.fullmatch(system):
        return NETWORK
    with suppress(OSError):
        number = Path(folder).stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        if block.name.startswith(("vd", "xvd")):  # its host may call it anything
            return VIRTUAL
        for device in (block, block.parent):
            queue = device / "queue/rotational"
            if queue.exists():
                return SPINS if queue.read_text().strip() == "1" else SOLID
    return UNKNOWN
