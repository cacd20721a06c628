"""Files: those written whole or not at all, those of anybody, a recording's private folder."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Final

from stallscope.errors import StallscopeError, WorkspaceError
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

with suppress(ImportError):  # Windows has no such locks
    import fcntl


__version__ = "0.1.0.dev0"

MOST_BYTES = 64 << 20
"""No text that is read at once is larger: of a run's head, names, notebooks."""
_CHECKED = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_APPEND = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_APPEND
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` when the block ends without an error.

    Whoever looks meanwhile, or after this process was killed, finds the older file or the new one.
    A link at `path` is replaced, never followed. Works past the hooks on `open`.
    """
    part = part_of(Path(path))
    descriptor = os.open(part, _NEW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(part)  # noqa: PTH108
        raise


def open_to_append(path: str | Path) -> int:
    """Open a file that only grows, made where there is none. Works past the hooks on `open`.

    Raises:
        OSError: it cannot be written, or is a link, a second name of another file, or no file.
    """
    descriptor = os.open(path, _APPEND, 0o600)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "is no file of its own", str(path))
    return descriptor


def read_file(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file that may be anybody's, see `file_of_anybody`."""
    with file_of_anybody(path, most_bytes) as file:
        return file.read(most_bytes)


@contextmanager
def file_of_anybody(path: str | Path, most_bytes: int) -> Iterator[IO[bytes]]:
    """Open a file to read it, if it is one. Works past the hooks on `open`.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is a link, a device, a pipe or a folder, or larger than `most_bytes`.
    """
    name = os.path.basename(path)  # noqa: PTH119
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{name} is missing")
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError(f"{name} is no file, or only a link to one")
    with os.fdopen(os.open(path, _CHECKED), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):  # it has become another one since
            raise ValueError(f"{name} is no file, or only a link to one")
        if about.st_size > most_bytes:
            raise ValueError(f"{name} has {about.st_size:,} bytes, more than {most_bytes:,}")
        yield file


_locked_here: Final[set[str]] = set()
"""Folders that this process has locked; a child of it inherits them."""


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keep other processes from locking a folder meanwhile; gives whether it is ours.

    This process may lock it once more inside of the block. The kernel ends the lock with the
    process, however that ends. Where a system has no locks of folders, it is always ours.
    """
    name = os.path.realpath(folder)
    if name in _locked_here or "fcntl" not in globals():
        yield True
        return
    descriptor, pid = os.open(folder, os.O_RDONLY), os.getpid()
    try:
        is_ours = True
        with suppress(OSError):  # a network disk may have none, either
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_ours = False
        _locked_here.update([name] * is_ours)
        yield is_ours
    finally:
        if os.getpid() == pid:  # and not in a forked child, which has the same lock
            _locked_here.discard(name)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def part_of(path: Path) -> Path:
    """Name what is written in the place of `path` meanwhile: nobody can have put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def packaged_folder(name: str) -> Path:
    """Return a folder that comes with stallscope, from the installed package or a source checkout.

    Args:
        name: "notebooks" or "sample_data".

    Raises:
        StallscopeError: it is in neither, or empty in both.
    """
    here = Path(__file__).resolve().parent
    places = (here / "_share" / name, here.parents[1] / name)
    for place in places:
        if place.is_dir() and any(place.iterdir()):
            return place
    raise StallscopeError(
        f"the {name} of stallscope are missing (looked in {places[0]} and {places[1]}): "
        "install stallscope again"
    )


_PREFIX: Final = "stallscope-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-(\d+)-([0-9a-f]+)-")
_LARGEST_LOG_BYTES: Final = 4 << 20
_SMALLEST_LOG_BYTES: Final = 1 << 20


_LONGEST_S: Final = 2.0
"""A slow network disk must not make the user wait for a detail."""


@contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """Give a new private folder, gone after the block; by default in the system's temporary one.

    A recording writes into it. What a killed process left behind is swept by the next start: a
    folder carries in its name its owner's process id, the time that process was born, and the
    machine or container, as others may write into the same folder.

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
    """Return how many words each log may have: a quarter of the free space at most.

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
    """Name where a process id means a process: this machine, and in it this container."""
    try:
        inside = Path("/proc/self/ns/pid").readlink()
    except OSError:  # no Linux
        inside = Path()
    return sha256(f"{platform.node()} {inside}".encode()).hexdigest()[:8]


def _birth(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        import psutil  # workers import this module, and have no use for it

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
    """Return the bytes of each path that is a regular file; those not asked in time are missing."""
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
