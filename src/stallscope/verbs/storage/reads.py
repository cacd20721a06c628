"""The files that a loader reads: their places, their part in the page cache, and timed reads.

The recorder sees files that are opened for a sample. Others in the same folders, with the same
suffix, stand for the rest of the data, which is not searched. A container (HDF5, LMDB, a mapped
array) is opened once, by code that has no hook: it is among the files that the processes hold open
or have mapped.

Nothing here needs a privilege. Since Linux 5.2 `mincore` tells the truth only about files that the
caller owns or may write (man 2 mincore); for others the answer is None, never 0. Caches of a
hypervisor, a file server or the disk itself cannot be seen from here.

Readers are threads: a read releases Python's lock while it waits. Each request is made once, so
that no earlier one has brought its bytes into the page cache, and what is cached is counted before
the clock starts: a reading that is called cold was cold.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import random
import re
import sys
import sysconfig
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# ---- files and their places ----------------------------------------------------------------------

_LOOK_S: Final = 2.0
"""Seconds for listing the folders of all files."""
_MOST_FILES: Final = 4_000
"""Files that stand for the data, beside those that were read; members of an archive that tell how
large a sample in it is."""
_CONTAINER_BYTES: Final = 64 << 10
"""Smallest file that can be a container of samples."""
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
    for folder, suffixes in folders.items():
        if time.monotonic() > until_s:  # opening a folder of a server takes time by itself
            break
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if len(files) >= most or time.monotonic() > until_s:
                    break
                is_new = Path(entry.name).suffix in suffixes and entry.path not in files
                if is_new and (file := _file(entry.path)):
                    files[entry.path] = file
    return [files[path] for path in sorted(files)]


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
            members = [each for each in islice(archive, _MOST_FILES) if each.isfile()]
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


# ---- the page cache ------------------------------------------------------------------------------

REALLY_COLD: Final = 0.1
"""Largest share (0 to 1) in the page cache of a reading that is called cold."""
_FOLIO_BYTES: Final = 2 << 20
"""Largest piece in which the kernel caches pages; a piece that is dropped in part stays."""
_MOST_CACHED_BYTES: Final = 16 << 30
"""Bytes at the begin of a file that stand for a larger file."""


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file for reading, without waiting for a pipe; yields the descriptor."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def resident_share(path: str) -> float | None:
    """Return the share (0 to 1) of a file that is in the page cache; None: unknown."""
    with opened(path) as descriptor:
        size = min(os.fstat(descriptor).st_size, _MOST_CACHED_BYTES)
        resident = resident_bytes(descriptor, 0, size)
    return resident / size if size and resident is not None else None


def resident_bytes(descriptor: int, offset: int, length: int) -> int | None:
    """Return the cached bytes of a part of an open file; None: unknown."""
    if sys.platform != "linux" or not _mincore_is_true(descriptor):
        return None
    begin = offset - offset % mmap.PAGESIZE
    length = min(offset + length, os.fstat(descriptor).st_size) - begin
    if length <= 0:
        return 0
    pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    try:
        with mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=begin) as mapped:
            address = ctypes.c_void_p(np.frombuffer(mapped, np.uint8).ctypes.data)
            places = pages.ctypes.data_as(ctypes.c_void_p)
            if ctypes.CDLL(None).mincore(address, ctypes.c_size_t(length), places):
                return None
    except (OSError, ValueError):  # cannot be mapped
        return None
    return min(int((pages & 1).sum()) * mmap.PAGESIZE, length)


def drop(descriptor: int, offset: int = 0, length: int = 0) -> bool:
    """Ask the kernel to drop a part of a file from the page cache; False where it takes no advice.

    Pages that wait to be written are written first, which changes nothing in the file. Pages that
    other processes have mapped stay. A length of 0 means up to the end of the file.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    size = os.fstat(descriptor).st_size
    end = offset + (length or size)
    offset -= offset % _FOLIO_BYTES
    length = 0 if end >= size else -(-(end - offset) // _FOLIO_BYTES) * _FOLIO_BYTES
    try:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        if resident_bytes(descriptor, offset, end - offset):
            with suppress(OSError):
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    except OSError:  # a file system that takes no advice
        return False
    return True


def _mincore_is_true(descriptor: int) -> bool:
    if os.fstat(descriptor).st_uid == os.geteuid():
        return True
    with suppress(OSError):
        effective = os.access in os.supports_effective_ids
        return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=effective)
    return False


# ---- timed reads ---------------------------------------------------------------------------------

SAMPLE, RANDOM, SEQUENTIAL = "sample", "random", "sequential"
"""Access: the bytes of a sample; pieces at random offsets; files from begin to end."""
COLD, WARM = "cold", "warm"
SMALL_BYTES: Final = 4096
LARGE_BYTES: Final = 1 << 20
MOST_BYTES: Final = 48 << 20
"""Bytes that one reading requests at most."""
_MOST_REQUESTS: Final = 2_000
_MOST_OPEN: Final = 256
"""Files that are held open while pieces of them are read."""


class ReadRequest(NamedTuple):
    """A piece of a file to read."""

    path: str
    offset: int
    """Bytes; -1: open the file, read all of it, and close it."""
    length: int
    """Bytes."""


class Reading(NamedTuple):
    """Result of one reading; columns of `result.READINGS`, and the failed requests."""

    requests: int
    bytes: int
    took_s: float
    """Time from the first request to the end of the last."""
    latency_s: float
    latency_p95_s: float
    cached_share: float | None
    """Share (0 to 1) of the requested bytes in the page cache just before; None: unknown."""
    failed: int = 0
    """Number of requests whose file was gone, shorter, or not readable."""


def requests(files: Sequence[DataFile], access: str, length: int, seed: int) -> list[ReadRequest]:
    """Choose what to read: no byte twice, and at most `MOST_BYTES`; of length 0: whole files."""
    rng = random.Random(seed)  # noqa: S311 - which pieces are read is no secret
    if not length:
        shuffled = rng.sample(list(files), len(files))
        return _limited(ReadRequest(file.path, -1, file.size) for file in shuffled)
    if access == SEQUENTIAL:
        first = rng.randrange(len(files)) if files else 0
        return _limited(
            ReadRequest(file.path, offset, min(length, file.size - offset))
            for file in (*files[first:], *files[:first])
            for offset in range(0, file.size, length)
        )
    # so far apart that the kernel's readahead misses the next
    stride = max(length, LARGE_BYTES if length > SMALL_BYTES else 4 * SMALL_BYTES)
    cells = []
    for file in files:
        if file.size >= length:
            number = max(file.size // stride, 1)
            chosen = rng.sample(range(number), min(number, _MOST_REQUESTS))
            cells += [(file, cell * stride) for cell in chosen]
    rng.shuffle(cells)
    pieces = []
    for file, begin in cells:
        aligned = rng.randrange(min(stride, file.size) - length + 1) // SMALL_BYTES * SMALL_BYTES
        pieces.append(ReadRequest(file.path, begin + aligned, length))
    return _limited(pieces)


def _limited(wanted: Iterable[ReadRequest]) -> list[ReadRequest]:
    chosen: list[ReadRequest] = []
    total = 0
    for request in wanted:
        total += request.length
        if chosen and (len(chosen) >= _MOST_REQUESTS or total > MOST_BYTES):
            break
        chosen.append(request)
    return chosen


def make_cold(wanted: Sequence[ReadRequest]) -> None:
    """Drop what is going to be read from the page cache, as far as possible."""
    _on_each_piece(wanted, drop)


def cached_share(wanted: Sequence[ReadRequest]) -> float | None:
    """Return the share (0 to 1) of the requested bytes in the page cache; None: unknown."""
    resident = _on_each_piece(wanted, resident_bytes)
    counted = [number for number in resident if number is not None]
    if not counted or len(counted) < len(resident):
        return None
    return min(sum(counted) / max(sum(request.length for request in wanted), 1), 1.0)


def _on_each_piece(
    wanted: Sequence[ReadRequest], call: Callable[[int, int, int], int | None]
) -> list[int | None]:
    results: list[int | None] = []
    for path, pieces in groupby(sorted(wanted), key=lambda request: request.path):
        with suppress(OSError), opened(path) as file:
            results += [call(file, max(piece.offset, 0), piece.length) for piece in pieces]
    return results


def timed(
    wanted: Sequence[ReadRequest], readers: int, seconds: float, *, readahead: bool = True
) -> Reading:
    """Read with several readers at once, and time each request, for so many seconds.

    Requests that are under way then are finished, and those after them are left out.
    """
    cached, files = cached_share(wanted), {}
    with ExitStack() as open_files, ThreadPoolExecutor(readers) as pool:
        pieces = dict.fromkeys(request.path for request in wanted if request.offset >= 0)
        for path in islice(pieces, _MOST_OPEN):
            with suppress(OSError):
                files[path] = open_files.enter_context(opened(path))
                if not readahead and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(files[path], 0, 0, os.POSIX_FADV_RANDOM)
        queue, until_s = iter(wanted), time.perf_counter() + seconds
        work = [pool.submit(lambda: list(_read(queue, files, until_s))) for _ in range(readers)]
        rows = list(chain.from_iterable(each.result() for each in work))
    done = [row for row in rows if row[2]]
    if not done:
        return Reading(0, 0, 0.0, 0.0, 0.0, cached, len(rows))
    begins_s, ends_s, received = np.array(done).T
    took_s = float(ends_s.max() - begins_s.min())
    latency_s, p95_s = map(float, np.quantile(ends_s - begins_s, [0.5, 0.95]))
    received_bytes, failed = int(received.sum()), len(rows) - len(done)
    return Reading(len(done), received_bytes, took_s, latency_s, p95_s, cached, failed)


def _read(
    queue: Iterator[ReadRequest], files: Mapping[str, int], until_s: float
) -> Iterator[tuple[float, float, int]]:
    """Yield begin, end and bytes of each request that this reader makes; no bytes: it failed."""
    for request in queue:
        began_s, received = time.perf_counter(), 0
        if began_s >= until_s:
            return
        with suppress(OSError):
            if request.path in files:
                received = len(os.pread(files[request.path], request.length, request.offset))
            else:
                with opened(request.path) as file:
                    received = len(os.pread(file, request.length, max(request.offset, 0)))
        yield began_s, time.perf_counter(), received if received >= request.length else 0
