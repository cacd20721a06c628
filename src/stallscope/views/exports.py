"""Writing a result as a file that others can open: a whole file or none, and errors in words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class ExportError(StallscopeError, ValueError):
    """A result cannot be written there: another ending, a folder, no right."""


def write(path: Path, makers: Mapping[str, Callable[[], str]]) -> Path:
    """Write a file; an older one is written over.

    Args:
        path: of the file; its folder is made.
        makers: for each ending (`.html`) what gives the text.

    Returns:
        The path.

    Raises:
        ExportError: another ending, or it cannot be written there.
    """
    make = makers.get(path.suffix.lower())
    if make is None:
        raise ExportError(
            f"{path.name!r} ends in none of {', '.join(makers)}: give a name that does, such as "
            f"{path.with_suffix(next(iter(makers))).name!r}"
        )
    made = make()
    meanwhile = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            meanwhile.write_text(made, encoding="utf-8", errors="replace", newline="\n")
            meanwhile.replace(path)
        finally:
            meanwhile.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({error.strerror or error}): give another place"
        ) from error
    return path
