"""Files: those that come with the package, and those that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

__version__ = "0.1.0.dev0"

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
