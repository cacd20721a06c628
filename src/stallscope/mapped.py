"""Files that a process writes while it works, and that survive it: mapped numbers, appended names.

Space is reserved when a file is made: a full disk is an error then and never a bus error later.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def reserve(path: Path, length: int) -> mmap.mmap:
    """A new file of so many zero bytes, mapped.

    Raises:
        OSError: the file exists, or there is no room.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:  # macOS, Windows: written out instead
            os.write(descriptor, b"\0" * length)
        return mmap.mmap(descriptor, length)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


_PATIENCE_S: Final = 1.0


class Lines:
    """A file that only grows: a JSON object a line, see `read_lines`."""

    def __init__(self, path: Path) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(path, append, 0o600)
        # Threads say something and close it when they like; a closed number may be a user's file.
        self._turn = threading.Lock()

    def say(self, **line: Any) -> None:
        """Append one line; it survives the end of the process."""
        self.write(json.dumps(line) + "\n")

    def write(self, lines: str) -> None:
        """Append lines of ASCII in one write.

        Never fails: a full disk costs a name and not the user's run.
        """
        with self._its_turn() as mine, contextlib.suppress(OSError):
            if mine and self._descriptor >= 0:
                os.write(self._descriptor, lines.encode("ascii"))

    def close(self) -> None:
        """What is said afterwards is lost."""
        with self._its_turn():
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def _its_turn(self) -> Iterator[bool]:
        """Wait for other threads; not for ever, as in a forked child there is none to end."""
        mine = self._turn.acquire(timeout=_PATIENCE_S)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()


class Names(Lines):
    """The `.names` file beside a mapped one, see `read_names`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.with_suffix(".names"))


def read_names(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the `.names` file beside this one, those that are whole."""
    return read_lines(path.with_suffix(".names"))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are whole; none where there is no file."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # a killed process may leave half a line
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry
