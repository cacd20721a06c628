"""The private folder that a recording writes into, and its end.

It lies in the temporary folder, is readable by its owner alone, and is deleted when the recording
ends, however it ends. What a killed process left behind is swept by the next start: a folder
carries in its name its owner's process id, the time that process was born, and the machine or
container, as others may write into the same folder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import psutil

from stallscope.errors import WorkspaceError
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_PREFIX: Final = "stallscope-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-(\d+)-([0-9a-f]+)-")
_LARGEST_LOG_BYTES: Final = 4 << 20
_SMALLEST_LOG_BYTES: Final = 1 << 20


_LONGEST_S: Final = 2.0
"""A slow network disk must not make the user wait for a detail."""


@contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """A new private folder, gone after the block; by default among the system's temporary ones.

    Raises:
        WorkspaceError: it cannot be made there.
    """
    parent = parent or _temporary()
    sweep(parent)
    pid, folder = os.getpid(), None
    try:
        with held_back():
            folder = _new(parent, pid)
        yield folder
    finally:
        if folder and os.getpid() == pid:  # a forked child that gets here must not delete it
            with held_back():
                shutil.rmtree(folder, ignore_errors=True)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise WorkspaceError(
            _no_room(Path("TMPDIR"), error.strerror or "none is usable")
        ) from error


def _new(parent: Path, pid: int) -> Path:
    try:
        name = f"{_PREFIX}{pid}-{_birth(pid)}-{_place()}-"
        return Path(tempfile.mkdtemp(prefix=name, dir=parent))
    except OSError as error:
        raise WorkspaceError(_no_room(parent, error.strerror or "cannot be written")) from error


def log_capacity(folder: Path, processes: int) -> int:
    """How many words each log may have: a quarter of the free space at most.

    Raises:
        WorkspaceError: less than that is left.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise WorkspaceError(_no_room(folder, error.strerror or "cannot be read")) from error
    each = min(_LARGEST_LOG_BYTES, free // (4 * max(processes, 1)))
    if each < _SMALLEST_LOG_BYTES:
        raise WorkspaceError(_no_room(folder, f"{free / 1e6:.1f} MB free"))
    return each // 8 - 64


def sweep(parent: Path) -> None:
    """Delete the folders of processes of this machine that are no more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        name = _NAME.match(folder.name)
        if name is None or name[3] != _place():
            continue
        with suppress(OSError):  # another process may be sweeping, too
            if _birth(int(name[1])) != int(name[2]) and _is_ours(folder):
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _place() -> str:
    """Where a process id means a process: this machine, and in it this container."""
    try:
        inside = Path("/proc/self/ns/pid").readlink()
    except OSError:  # no Linux
        inside = Path()
    return sha256(f"{platform.node()} {inside}".encode()).hexdigest()[:8]


def _birth(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return 0 if Path("/proc/self").exists() or not psutil.pid_exists(pid) else 1
    except (OSError, ValueError, IndexError):
        return 0


def _is_ours(folder: Path) -> bool:
    return not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()


def _no_room(folder: Path, why: str) -> str:
    return (
        f"no place for the event logs in {folder} ({why}): a few MB a worker are needed. Free some "
        "space, or set TMPDIR to a folder on a local disk"
    )


def sizes(paths: Iterable[str]) -> dict[str, int]:
    """Bytes of each path that is a regular file; those not asked in time are left out."""
    found = {}
    deadline = monotonic() + _LONGEST_S
    for path in paths:
        if monotonic() > deadline:
            break
        size = _size(path)
        if size is not None:
            found[path] = size
    return found


def _size(path: str) -> int | None:
    try:
        about = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None
