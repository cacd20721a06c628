"""Shared parts of all commands: forms of a target, output of results and errors."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Final, NoReturn, TextIO

import typer

from stallscope.errors import STACK, NoBatchError, StallscopeError
from stallscope.files import locked, system_errors_as
from stallscope.interrupts import ended_politely
from stallscope.units import TARGETS, without_controls

FORMS: Final = (
    f"{TARGETS}, or package.module:function, where your function returns a DataLoader, or a "
    "DataLoader and a step"
)
REDACT: Final = (
    "Remove private names: files, folders, machine, account, error messages, lines of code."
)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text, for programs.")]
Redact = Annotated[bool, typer.Option("--redact", help=REDACT)]

_INTERRUPTED: Final = 130
_NO_READER: Final = 141
"""Exit statuses after SIGINT and SIGPIPE, as in a shell: 128 plus the signal's number."""


@contextmanager
def report_errors(*, script: bool = False) -> Iterator[None]:
    """Print errors and exit; click would hide a user's EOFError.

    A mistake that the user can fix is one line; any other error is a traceback with its notes.
    Ctrl-C and SIGTERM clean up, print nothing, and exit with a shell's status.

    Args:
        script: True while a user's script runs, which handles signals itself.
    """
    if sys.stderr is None and not script:  # closed: `print` and libraries would use stdout
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the end
    try:
        with nullcontext() if script else ended_politely():
            try:
                Path.cwd()
            except OSError as error:  # before a library fails on it without explanation
                raise StallscopeError(
                    "the current folder is gone: cd to one that exists"
                ) from error
            yield
    except StallscopeError as error:
        print_note(str(error))
        if isinstance(error, NoBatchError):  # the stack of the hanging process
            print_note(
                *(note for note in getattr(error, "__notes__", ()) if note.startswith(STACK))
            )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - printed in full
        with suppress(OSError):  # stderr may be a closed pipe
            print(_encodable(traceback.format_exc(), sys.stderr), file=sys.stderr, end="")  # noqa: T201
        if sys.version_info < (3, 11):  # tracebacks of older versions omit notes
            print_note(*getattr(error, "__notes__", ()))
        raise SystemExit(1) from None


def print_result(*lines: object) -> None:
    """Print a result to stdout."""
    text = "".join(f"{_encodable(str(line), sys.stdout)}\n" for line in lines)
    try:
        print(text, end="", flush=True)  # noqa: T201
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _end_unread(_NO_READER)
        print_note(f"the result cannot be printed ({error.strerror})")  # for example, a full disk
        _end_unread(1)


def print_note(*lines: str) -> None:
    """Print notes to stderr, unless it is closed."""
    for line in lines if sys.stderr is not None else ():
        text = _encodable(f"stallscope: {line.removeprefix('stallscope: ')}", sys.stderr)
        with suppress(OSError):  # stderr may be a closed pipe
            print(text, file=sys.stderr, flush=True)  # noqa: T201


def show(
    result: Any,
    *,
    as_json: bool = False,
    redact: bool = False,
    save: Callable[[Any], str] | None = None,
) -> None:
    """Print a result, then save it: `save` returns a note about the file.

    A failure of either does not prevent the other.
    """
    try:
        shown = result.redacted() if redact else result
        print_result(shown._face().as_json(shown) if as_json else shown)  # noqa: SLF001
    finally:
        if save is not None:
            print_note(save(result))


@contextmanager
def showing_partial(name: str, keep: Callable[[Any], object]) -> Iterator[None]:
    """Print and save (`keep`) the partial result of an exception that ends the block.

    The exception has it as the attribute `name`.
    """
    try:
        yield
    except BaseException as error:
        part = vars(error).get(name)
        if part is not None and not part.table().is_empty():
            try:
                print_note("stopped early; partial result:")
                keep(part)
            except StallscopeError as failed:  # the block's exception follows with its reason
                print_note(str(failed))
            except SystemExit:  # the reader of stdout has gone
                pass
        raise


def _end_unread(status: int) -> NoReturn:
    """Exit silently; Python's flush of stdout at the exit would fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(status)


def _encodable(text: str, stream: TextIO) -> str:
    """Return the text in characters of the stream's encoding, without terminal commands.

    ASCII has no µ, and names and exceptions may contain control characters.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return without_controls(text).encode(encoding, "replace").decode(encoding)


def check_file(option: str, out: Path | None, endings: Sequence[str]) -> None:
    """Raise before the measurement if a file cannot be written."""
    if out is None:
        return
    if out.suffix.lower() not in endings:
        raise StallscopeError(f"{option} {out}: give a name that ends in {', '.join(endings)}")
    _check_place(option, out, out.parent)


def check_folder(out: Path | None) -> None:
    """Raise before the recording if `out` cannot be made a new folder."""
    if out is None:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StallscopeError(f"--out {out} is not empty: give a new folder")
    _check_place("--out", out, next(place for place in out.absolute().parents if place.exists()))


@contextmanager
def own_folder(out: Path | None) -> Iterator[None]:
    """Keep a new folder for what a block saves.

    Of two commands at once the second would replace what the first recorded, so it is refused.
    """
    check_folder(out)
    if out is None:
        yield
        return
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out) as is_ours:
            if not is_ours:
                raise StallscopeError(f"another process saves into {out}: give a new folder")
            yield
    finally:
        with suppress(OSError):  # the folder holds the run
            for folder in missing:
                folder.rmdir()


def _check_place(option: str, out: Path, folder: Path) -> None:
    what = f"{option} {out} cannot be written"
    with system_errors_as(StallscopeError, what, "give another place"):
        TemporaryFile(dir=folder).close()
