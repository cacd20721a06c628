"""What can go wrong, in words: every error names what was given and what to do about it.

A `StallscopeError` is the user's to mend and is shown as one sentence; anything else is a bug of
ours and shows a traceback. Exceptions of the user's own code pass unchanged in type, with a note.
"""

from stallscope.units import without_controls

STACK = "stallscope: the stack of "
"""So the note begins that a `NoBatchError` has, with where who hangs stands."""


class StallscopeError(Exception):
    """Base of all errors that a user can mend; its text says what was given and what to do."""

    def __str__(self) -> str:
        return without_controls(super().__str__())  # it names files of anybody's


class TargetError(StallscopeError, ValueError):
    """The thing pointed at cannot be measured: not found, empty, or not a loader."""


class UnreadableError(TargetError):
    """Too many of the user's images cannot be read; names some of them.

    Raised in a worker, torch makes it anew in the loop's process, out of the worker's traceback.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text.rpartition(f"{type(self).__qualname__}: ")[2].strip())


class ArgumentError(StallscopeError, ValueError):
    """A number that was given cannot be used."""


class RunFormatError(StallscopeError, ValueError):
    """A folder is not a run that this version can read, or no place where one can be written."""


class TraceFileError(StallscopeError, ValueError):
    """A trace cannot be written there: another ending, something else of that name, no right."""


class WorkspaceError(StallscopeError, OSError):
    """There is no place for the event logs (no room, or no right to write)."""


class NoBatchError(StallscopeError, TimeoutError):
    """A batch did not come within the budget and a grace; says where the worker stands."""


class UnsupportedError(StallscopeError, RuntimeError):
    """A kind of loader or start method that is not measured; says which ones are."""
