"""Which files a loader reads, and where they lie: mount, device, kind of file system.

Files are those that the recorder saw being opened for a sample; others of the same folders and
endings stand for the rest of the data, which is not searched. A container (HDF5, LMDB, an array
that is mapped) is opened once and by what has no hook: it is found among the files that the
processes hold open or have mapped, see proc_pid_fd(5) and proc_pid_maps(5).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_FOLDERS, _MOST_ENTRIES, _LOOK_S = 32, 20_000, 2.0
"""That are looked at, of each folder so many, and for so long."""
_MOST_FILES: Final = 4_000
"""That stand for the data, beside those that were read."""
_CONTAINER_BYTES: Final = 64 << 10
"""What is held open and smaller than this is no data."""
_CODE: Final = re.compile(
    r"\.(so(\.\d+)*|pyc?|pyd|mo|cache|log|ipynb|whl|zip\.py)$|locale-archive$"
)
_NETWORK: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "gpfs"),
        *("beegfs", "afs", "davfs", "ocfs2", "gfs2", "orangefs", "wekafs"),
    )
)
_MEMORY: Final = frozenset(("tmpfs", "ramfs", "hugetlbfs"))
MEMORY, NETWORK, SPINS, SOLID, VIRTUAL, UNKNOWN = (
    *("memory", "network", "spinning disk", "solid state"),
    *("virtual disk", "unknown"),
)


class DataFile(NamedTuple):
    """A file of the data."""

    path: str
    size: int
    """Bytes."""
    was_read: bool = False
    """Whether the recording has just read it, so that it lies in the page cache for that."""


class Mount(NamedTuple):
    """Where a file system is mounted, and on what it lies."""

    path: str
    device: str
    """As the system calls it: `vda1`, `server:/export`."""
    system: str
    """Kind of file system: ext4, nfs4, tmpfs ..."""
    medium: str
    """One of the words above: memory, network, and so on."""


def data_files(read: Iterable[str]) -> list[DataFile]:
    """The files that were read, and others beside them which were not, in the order of names."""
    known = {path: one for path in dict.fromkeys(read) if (one := _file(path, was_read=True))}
    folders: dict[str, set[str]] = {}
    for path in known:
        folders.setdefault(str(Path(path).parent), set()).add(Path(path).suffix)
    until_s, most = time.monotonic() + _LOOK_S, len(known) + _MOST_FILES
    for folder, endings in islice(folders.items(), _MOST_FOLDERS):
        for path in _beside(folder, endings, until_s):
            if len(known) >= most:
                break
            if path not in known and (one := _file(path)):
                known[path] = one
    return [known[path] for path in sorted(known)]


def _beside(folder: str, endings: set[str], until_s: float) -> Iterator[str]:
    """Files of a folder that end as those that were read do."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if time.monotonic() > until_s:
                return
            if Path(entry.name).suffix in endings:
                yield entry.path


def _file(path: str, *, was_read: bool = False) -> DataFile | None:
    """A file that is there and has something in it; None for anything else."""
    try:
        about = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    if not S_ISREG(about.st_mode) or not about.st_size or not os.access(path, os.R_OK):
        return None
    return DataFile(str(Path(path).absolute()), about.st_size, was_read)


def held_open() -> list[DataFile]:
    """Files that the workers hold open for reading, or have mapped; this process without any."""
    paths = {path for pid in _pids() for path in (*_open_files(pid), *_mapped_files(pid))}
    found = (_file(path, was_read=True) for path in sorted(paths) if not _is_code(path))
    return [one for one in found if one and one.size >= _CONTAINER_BYTES]


def bytes_read() -> int | None:
    """Bytes that this process's workers have asked the system for; None where that is not known.

    Those of the process itself where it has no workers. See `rchar` in proc_pid_io(5).
    """
    known = 0
    for pid in _pids():
        try:
            told = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
        except OSError:
            return None
        known += int(told.partition("rchar:")[2].split()[0])
    return known


def _pids() -> list[int]:
    return [one.pid for one in multiprocessing.active_children() if one.pid] or [os.getpid()]


def _open_files(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}/fd")
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            with suppress(OSError, ValueError, IndexError):
                path = str(entry.readlink())
                about = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text(encoding="ascii")
                flags = int(about.partition("flags:")[2].split()[0], 8)
                if path.startswith("/") and flags & os.O_ACCMODE == os.O_RDONLY:
                    yield path


def _mapped_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            _, rights, *_, path = [*line.split(maxsplit=5), ""]
            if path.startswith("/") and "x" not in rights:
                yield path.strip()


def _is_code(path: str) -> bool:
    """Whether a file is part of a program, or of what is written while it runs."""
    ours = (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())
    other = ("/dev/", "/proc/", "/sys/", "/lib", "/usr/lib", "/usr/share", "/usr/local/lib", "/etc")
    inside = (*ours, *other, str(Path(tempfile.gettempdir(), "stallscope-")))
    return path.startswith(inside) or bool(_CODE.search(path)) or path.endswith(" (deleted)")


def mounts() -> list[Mount]:
    """What is mounted, the innermost folders first; nothing off Linux (proc_pid_mountinfo(5))."""
    found = []
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        before, _, after = line.partition(" - ")
        system, source, *_ = [*after.split(" "), ""]
        path = before.split(" ")[4].encode().decode("unicode_escape")
        found.append(Mount(path, source.removeprefix("/dev/"), system, _medium(system, before)))
    found.reverse()  # of several at one place the last one is what is seen
    return sorted(found, key=lambda one: -len(one.path))


def _medium(system: str, line: str) -> str:
    if system in _MEMORY:
        return MEMORY
    if system in _NETWORK or system.startswith("fuse"):
        return NETWORK
    block = Path("/sys/dev/block", line.split(" ")[2])
    with suppress(OSError):
        block = block.resolve(strict=True)
        if block.name.startswith(("vd", "xvd")):  # its host may say anything of itself
            return VIRTUAL
        for folder in (block, block.parent):
            queue = folder / "queue/rotational"
            if queue.exists():
                return SPINS if queue.read_text().strip() == "1" else SOLID
    return UNKNOWN


def mount_of(path: str, known: list[Mount]) -> Mount:
    """Where a file lies, of all mounts, the innermost first."""
    real = os.path.realpath(path)
    for mount in known:
        if real == mount.path or real.startswith(mount.path.rstrip("/") + "/"):
            return mount
    return Mount("/", "", "", UNKNOWN)
