"""Files that are there whole or not at all.

Whoever looks meanwhile, or after this process was killed, finds the older file or the new one. The
part that is being written has a name that nobody can have put a link at.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` when the block ends without an error.

    A link at `path` is replaced, never followed. Works past the hooks on `open`.

    Args:
        path: of the file; its folder exists.
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
    """Name what is written in the place of `path` meanwhile; no two are alike."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
