"""Files: those that come with the package, those written whole or not at all, those of anybody."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def part_of(path: Path) -> Path:
    """Name what is written in the place of `path` meanwhile: nobody can have put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def packaged_folder(name: str) -> Path:
    """A folder that comes with stallscope: in the installed package, or in a source checkout.

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
