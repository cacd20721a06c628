"""Shared parts of all commands: forms of a target, output of results and errors."""

import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Final, NoReturn, TextIO

import typer

from stallscope.errors import STACK, NoBatchError, StallscopeError
from stallscope.files import locked
from stallscope.interrupts import ended_politely
from stallscope.units import without_controls

FORMS: Final = (
    "'sample', a folder of images, tar shards, an address of images (s3://bucket/photos), or "
    "'package.module:factory', which is imported, "
    "from the current folder too, and called"
)
REDACT: Final = (
    "Anonymize: omit names of files, folders, this machine and your account, messages of "
    "exceptions, and lines of code. Names of functions, classes and stages stay."
)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text, for programs.")]
Redact = Annotated[bool, typer.Option("--redact", help=REDACT)]

_INTERRUPTED: Final = 130
_NO_READER: Final = 141
"""Exit statuses after SIGINT and SIGPIPE, as in a shell: 128 plus the signal's number."""


@contextmanager
def report_errors(*, script: bool = False) -> Iterator[None]:
    """Print errors and exit; click would hide a user's EOFError or broken pipe.

    A mistake that the user can fix is one line; any other error is a traceback with its notes.
    Ctrl-C, SIGTERM and a closed pipe clean up, print nothing, and exit with a shell's status.

    Args:
        script: True while a user's script runs, which handles signals itself.
    """
    with ExitStack() as ends:
        if not script:
            ends.enter_context(ended_politely())
            if sys.stderr is None:  # closed: `print` and libraries would use stdout
                nowhere = ends.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                ends.enter_context(redirect_stderr(nowhere))
        with _shown():
            yield


@contextmanager
def _shown() -> Iterator[None]:
    try:
        try:
            Path.cwd()
        except OSError as error:  # before a library fails on it without explanation
            raise StallscopeError("the current folder is gone: cd to one that exists") from error
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
        if isinstance(error, BrokenPipeError) and (
            _is_unread(sys.stdout) or _is_unread(sys.stderr)
        ):
            _end_unread()
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
            _end_unread()
        print_note(f"the result cannot be printed ({error.strerror})")  # for example, a full disk
        _end_unread(1)


def shown(result: Any, *, as_json: bool = False, redact: bool = False) -> object:
    """Return the result or its JSON, for `print_result`."""
    result = result.redacted() if redact else result
    return result._face().as_json(result) if as_json else result  # noqa: SLF001


def print_note(*lines: str) -> None:
    """Print notes to stderr, unless it is closed."""
    for line in lines if sys.stderr is not None else ():
        text = _encodable(f"stallscope: {line.removeprefix('stallscope: ')}", sys.stderr)
        with suppress(OSError):  # stderr may be a closed pipe
            print(text, file=sys.stderr, flush=True)  # noqa: T201


def print_then(result: object, save: Callable[[], str] | None = None) -> None:
    """Print a result, then save it; a failure of either does not prevent the other.

    Args:
        result: printed first.
        save: saves the result, and returns a note about that.
    """
    try:
        print_result(result)
    finally:
        if save is not None:
            print_note(save())


@contextmanager
def showing_partial(name: str, keep: Callable[[Any], object]) -> Iterator[None]:
    """Print and save the partial result of an exception that ends the block.

    Args:
        name: name of the exception's attribute with the partial result.
        keep: prints and saves the partial result.
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


def _is_unread(stream: TextIO) -> bool:
    """Return True for a pipe whose reader has gone."""
    if not hasattr(select, "poll"):
        return False
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def _end_unread(status: int = _NO_READER) -> NoReturn:
    """Exit silently, as a command that SIGPIPE ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):  # Python flushes both at exit
        with suppress(OSError, ValueError, AttributeError):
            if stream is sys.stdout or _is_unread(stream):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
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
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise StallscopeError(f"{option} {out} cannot be written: give another file")
    with _writing(option, out, "file"), TemporaryFile(dir=out.parent):
        pass


def check_folder(out: Path | None) -> list[Path]:
    """Raise before the recording if a folder cannot be written; return the created folders.

    The folder itself comes first, then its parents.
    """
    if out is None:
        return []
    with _writing("--out", out, "folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StallscopeError(f"--out {out} is not empty: give a new folder")
        new = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    return new


@contextmanager
def new_folder(out: Path | None) -> Iterator[None]:
    """Check a folder as `check_folder` does, and lock it against other commands meanwhile.

    Afterwards, created folders are deleted if they are empty.
    """
    new = check_folder(out)
    try:
        with nullcontext(enter_result=True) if out is None else locked(out) as is_ours:
            if not is_ours:
                raise StallscopeError(
                    f"--out {out}: another process saves in this folder; give a new folder"
                )
            yield
    finally:
        with suppress(OSError):  # not empty: a run was saved
            for folder in new:
                folder.rmdir()


@contextmanager
def _writing(option: str, out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StallscopeError(
            f"{option} {out} cannot be written ({error.strerror or error}): give another {what}"
        ) from error
