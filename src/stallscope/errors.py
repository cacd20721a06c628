"""Errors in words: every error names its cause and a remedy.

The user can fix a `StallscopeError`, so it is shown as one sentence; any other error is a bug of
stallscope and shows a traceback. Exceptions of the user's code keep their type and get a note.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from stallscope.units import without_controls

if TYPE_CHECKING:
    from collections.abc import Iterator

STACK: Final = "stallscope: the stack of "
"""Begin of the note on a `NoBatchError`: it shows the stack of the hanging process."""


class StallscopeError(Exception):
    """Base of all errors that a user can fix; the text names the cause and a remedy."""

    def __str__(self) -> str:
        return without_controls(super().__str__())  # file names may contain control characters


class TargetError(StallscopeError, ValueError):
    """A target that cannot be measured: not found, empty, or not a loader."""


class ArgumentError(StallscopeError, ValueError):
    """An unusable argument."""


class RunFormatError(StallscopeError, ValueError):
    """A folder that this version cannot read as a result, or cannot write."""


class TraceFileError(StallscopeError, ValueError):
    """A path that cannot hold a trace: wrong ending, another kind of file, no permission."""


class WorkspaceError(StallscopeError, OSError):
    """No place for the event logs (no room, or no permission to write)."""


class NoBatchError(StallscopeError, TimeoutError):
    """A batch that did not arrive within the budget and a grace; shows the worker's stack."""


class UnsupportedError(StallscopeError, RuntimeError):
    """An unsupported kind of loader or start method; names the supported ones."""


def add_notes(error: BaseException, lines: list[str]) -> None:
    """Add notes as Python 3.11 and later do; an exception may refuse them."""
    with suppress(Exception):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", []), *lines]


_HERE: Final = (
    "stallscope: the samples were made in this process, where get_worker_info() is None and "
    "worker_init_fn is not called"
)


@contextmanager
def made_here(num_workers: int) -> Iterator[None]:
    """Add a note to an exception of the user's code that would else run in a worker."""
    try:
        yield
    except Exception as error:
        if num_workers and not isinstance(error, StallscopeError):
            add_notes(error, [_HERE])
        raise
