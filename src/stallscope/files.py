"""Files: atomic writes, reads of untrusted files, a recording's private folder, addresses."""

from __future__ import annotations

import errno
import io
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final

from stallscope.errors import StallscopeError, TargetError, WorkspaceError
from stallscope.interrupts import held_back
from stallscope.units import printable, said_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

with suppress(ImportError):  # Windows has no such locks
    import fcntl


__version__ = "0.1.0.dev0"

MOST_BYTES = 64 << 20
"""Largest text that is read at once: a run's head, names, notebooks."""
INSTALLED = re.compile(
    r"(?:^|[\\/])((site|dist)-packages|lib\d*[\\/]python3(\.\d+)?t?|\w+[\\/]Lib)(?=[\\/])", re.ASCII
)
"""Folder of packages, or of Python's own library, in a path of any system: what lies there is never
the user's code, unless the user's target does."""
_BINARY = getattr(os, "O_BINARY", 0)
# O_NONBLOCK: do not wait for a pipe
_CAREFUL = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` when the block ends without an error.

    At any time, even after this process was killed, `path` is the complete old or new file. A link
    at `path` is replaced, never followed. The hooks on `open` do not see it.
    """
    part = part_of(Path(path))
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    try:
        with io.BufferedWriter(io.FileIO(descriptor, "w")) as file:  # `os.fdopen` is hooked, too
            yield file
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(part)  # noqa: PTH108
        raise


def open_to_append(path: str | Path) -> int:
    """Open a file to append to it, creating it if missing. The hooks on `open` do not see it.

    Raises:
        OSError: the path is read-only, a link, a second name of another file, or no file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CAREFUL, 0o600)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "is not a file, or has several links", str(path))
    return descriptor


def read_file(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read an untrusted file, see `file_of_anybody`."""
    with file_of_anybody(path, most_bytes) as file:
        return file.read(most_bytes)


@contextmanager
def file_of_anybody(path: str | Path, most_bytes: int) -> Iterator[IO[bytes]]:
    """Open an untrusted file to read it. The hooks on `open` do not see it.

    Raises:
        OSError: the file is missing, or cannot be read.
        ValueError: the path is a link, a device, a pipe or a folder, or larger than `most_bytes`.
    """
    name = os.path.basename(path)  # noqa: PTH119
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{name} is missing")
    no_file = ValueError(f"{name} is not a file, or is a link to one")
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise no_file
    descriptor = os.open(path, os.O_RDONLY | _CAREFUL | _BINARY)
    with io.BufferedReader(io.FileIO(descriptor)) as file:  # `os.fdopen` is hooked
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):  # replaced since the check
            raise no_file
        if about.st_size > most_bytes:
            raise ValueError(f"{name} has {about.st_size:,} bytes, more than {most_bytes:,}")
        yield file


@contextmanager
def system_errors_as(kind: type[StallscopeError], what: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of the system in the block into one of ours: what failed, why, a remedy."""
    try:
        yield
    except OSError as error:
        remedy = f": {remedy}" if remedy else ""
        raise kind(f"{what} ({error.strerror or error}){remedy}") from error


_locked_here: Final[set[str]] = set()
"""Folders that this process has locked; a child of it inherits them."""


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder against other processes; yield whether this process has the lock.

    This process may lock it again inside of the block. The kernel frees the lock with the process,
    however that ends. A system without locks of folders always yields True.
    """
    name = os.path.realpath(folder)
    if name in _locked_here or "fcntl" not in globals():
        yield True
        return
    descriptor, pid = os.open(folder, os.O_RDONLY), os.getpid()
    try:
        is_ours = True
        with suppress(OSError):  # a network disk may have no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_ours = False
        _locked_here.update([name] * is_ours)
        yield is_ours
    finally:
        if os.getpid() == pid:  # not in a forked child, which shares the lock
            _locked_here.discard(name)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def part_of(path: Path) -> Path:
    """Return a temporary name beside `path`; random, so that nobody can put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def packaged_folder(name: str) -> Path:
    """Return a folder of stallscope, from the installed package or a source checkout.

    Args:
        name: "notebooks" or "sample_data".

    Raises:
        StallscopeError: both lack it, or have it empty.
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
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-([0-9a-f]+)-")
_LARGEST_LOG_BYTES: Final = 4 << 20
_SMALLEST_LOG_BYTES: Final = 1 << 20
_LONGEST_S: Final = 2.0
"""Time limit for `sizes`: a slow network disk must not delay the user for a detail."""


@contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new private folder, deleted after the block; by default in the temporary folder.

    A recording writes into it. The next start deletes the folders of killed processes: the name of
    a folder contains its owner's process id, and the machine or container, as other machines may
    share the parent.

    Raises:
        WorkspaceError: the folder cannot be created.
    """
    parent = parent or temporary_folder()
    sweep(parent)
    pid, folder = os.getpid(), None
    try:
        with held_back(), wants_room(parent):
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-{_place()}-", dir=parent))
        yield folder
    finally:
        if folder and os.getpid() == pid:  # a forked child that gets here must not delete it
            with held_back():
                shutil.rmtree(folder, ignore_errors=True)


def temporary_folder() -> Path:
    """Return the folder for temporary files; a `WorkspaceError` says that none can be written."""
    with wants_room(Path("TMPDIR")):
        return Path(tempfile.gettempdir())


def wants_room(folder: Path) -> AbstractContextManager[None]:
    """Turn an error of the system in the block into a `WorkspaceError` about the event logs."""
    place = "set TMPDIR (for stallscope run: --out) to a folder on a local disk"
    what = f"the event logs cannot be written into {folder}"
    return system_errors_as(
        WorkspaceError, what, f"{place}, with room for a few MB and a few files per worker"
    )


def log_capacity(folder: Path, processes: int = 8) -> int:
    """Return the words that each log may have: a quarter of the free space at most.

    By default there must be room for some `processes`, whose number is unknown.

    Raises:
        WorkspaceError: too little space is left.
    """
    with wants_room(folder):
        free = shutil.disk_usage(folder).free
        each = min(_LARGEST_LOG_BYTES, free // (4 * max(processes, 1)))
        if each < _SMALLEST_LOG_BYTES:
            raise OSError(errno.ENOSPC, f"{free / 1e6:.1f} MB free")
    return each // 8 - 64


def sweep(parent: Path) -> None:
    """Delete the folders of dead processes of this machine."""
    for folder in parent.glob(f"{_PREFIX}*"):
        name = _NAME.match(folder.name)
        if name is not None and name[2] == _place():
            import psutil  # not at the top: workers import this module and need no psutil

            if not psutil.pid_exists(int(name[1])):
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _place() -> str:
    """Return a hash of the namespace of process ids: this machine and container."""
    try:
        inside = Path("/proc/self/ns/pid").readlink()
    except OSError:  # no Linux
        inside = Path()
    return sha256(f"{platform.node()} {inside}".encode()).hexdigest()[:8]


def sizes(paths: Iterable[str]) -> dict[str, int]:
    """Return the bytes of each regular file, as far as `_LONGEST_S` allows."""
    sizes_by_path = {}
    deadline = monotonic() + _LONGEST_S
    for path in paths:
        if monotonic() > deadline:
            break
        with suppress(OSError, ValueError):  # ValueError: a zero byte in the path
            about = os.stat(path)  # noqa: PTH116
            if stat.S_ISREG(about.st_mode):
                sizes_by_path[path] = about.st_size
    return sizes_by_path


_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(text: str) -> bool:
    r"""Recognise an address, such as `s3://bucket`; `C:\data` and `C:/data` are paths."""
    return bool(_ADDRESS.match(text))


def listing(address: str) -> tuple[str, list[str]]:
    """Return the path of an address, and the path of each object below it, sorted.

    A `TargetError` says that the server refuses, or that the address' library is missing.
    """
    name = printable(address)
    try:
        system, root = connection(address)
        objects = sorted(system.find(root))
        if not objects:
            system.ls(root)  # raises the reason: `find` ignores errors
    except Exception as error:
        if isinstance(error, ImportError):
            raise TargetError(f"{name!r} cannot be read here: {said_by(error)}") from error
        raise TargetError(
            f"{name!r} cannot be listed ({type(error).__name__}: {said_by(error)}): check the "
            "address, and the credentials that its library needs"
        ) from error
    return root, objects


def names_at(address: str) -> list[str]:
    """Return the names of files and folders at an address; empty if they cannot be listed."""
    try:
        system, root = connection(address)
        return [PurePosixPath(path).name for path in system.ls(root, detail=False)]
    except Exception:  # noqa: BLE001 - each library has errors of its own
        return []


def copy_objects(address: str, places: Mapping[str, Path]) -> None:
    """Copy objects of a server to files, by their paths, else raise a `TargetError`."""
    try:
        for place in places.values():  # a rank without a run has a folder, too
            place.parent.mkdir(parents=True, exist_ok=True)
        connection(address)[0].get(list(places), [str(place) for place in places.values()])
    except Exception as error:  # of the protocol's library
        raise TargetError(
            f"{printable(address)} cannot be copied ({said_by(error)}): try again, or copy it here"
        ) from error


def connection(address: str) -> tuple[Any, str]:
    """Return this process's connection to a server, and the path of an address on it.

    fsspec's library for the protocol finds the credentials (its environment variables and files).
    """
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    return system, str(path)
