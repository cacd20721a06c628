"""How large the samples' files are, asked once the recording is over."""

from __future__ import annotations

import stat
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_S: Final = 2.0
"""A slow network disk must not make the user wait for a detail."""


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
