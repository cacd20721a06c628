"""What all commands share: how a target is named, and how results and errors are shown."""

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
    "For others to read: leave out names of files, folders, this machine and your account, what "
    "exceptions say, and lines of code. Names of functions, classes and stages stay."
)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text, for programs.")]
Redact = Annotated[bool, typer.Option("--redact", help=REDACT)]

_INTERRUPTED: Final = 130
_NO_READER: Final = 141
"""A shell's status of what SIGINT has ended, and SIGPIPE: 128 and the signal's number."""


@contextmanager
def report_errors(*, script: bool = False) -> Iterator[None]:
    """Show an error as what it is; click would hide a user's EOFError or broken pipe.

    A mistake that the user can mend is one line, anything else is a traceback with its notes. What
    ends the command from outside, Ctrl-C, a polite kill or a reader that goes away, leaves nothing
    behind, says nothing, and gives the status that a shell expects.

    Args:
        script: it is a user's script that runs; signals are its own.
    """
    with ExitStack() as ends:
        if not script:
            ends.enter_context(ended_politely())
            if sys.stderr is None:  # it was closed: `print`, and libraries, would take stdout
                nowhere = ends.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                ends.enter_context(redirect_stderr(nowhere))
        with _shown():
            yield


@contextmanager
def _shown() -> Iterator[None]:
    try:
        try:
            Path.cwd()
        except OSError as error:  # said once, before something deep inside asks for it
            raise StallscopeError("the current folder is gone: cd to one that exists") from error
        yield
    except StallscopeError as error:
        print_note(str(error))
        if isinstance(error, NoBatchError):  # where who hangs stands
            print_note(
                *(note for note in getattr(error, "__notes__", ()) if note.startswith(STACK))
            )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - shown whole
        if isinstance(error, BrokenPipeError) and (
            _is_unread(sys.stdout) or _is_unread(sys.stderr)
        ):
            _end_unread()
        with suppress(OSError):  # nobody reads it
            print(_encodable(traceback.format_exc(), sys.stderr), file=sys.stderr, end="")  # noqa: T201
        if sys.version_info < (3, 11):  # where tracebacks do not show notes yet
            print_note(*getattr(error, "__notes__", ()))
        raise SystemExit(1) from None


def print_result(*lines: object) -> None:
    """What was asked for, on stdout."""
    text = "".join(f"{_encodable(str(line), sys.stdout)}\n" for line in lines)
    try:
        print(text, end="", flush=True)  # noqa: T201
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _end_unread()
        print_note(f"the result cannot be printed ({error.strerror})")  # a full disk, say
        _end_unread(1)


def shown(found: Any, *, as_json: bool = False, redact: bool = False) -> object:
    """Return what is printed of a result: itself, or its JSON."""
    found = found.redacted() if redact else found
    return found._face().as_json(found) if as_json else found  # noqa: SLF001


def print_note(*lines: str) -> None:
    """What else there is to know, on stderr; nowhere where that is closed."""
    for line in lines if sys.stderr is not None else ():
        said = _encodable(f"stallscope: {line.removeprefix('stallscope: ')}", sys.stderr)
        with suppress(OSError):  # nobody reads it
            print(said, file=sys.stderr, flush=True)  # noqa: T201


def print_then(result: object, save: Callable[[], str] | None = None) -> None:
    """Print a result, and then save it, where that is asked for.

    What cannot be saved was printed; what cannot be printed is saved.

    Args:
        result: what was measured.
        save: saves it, and returns what to say of that.
    """
    try:
        print_result(result)
    finally:
        if save is not None:
            print_note(save())


@contextmanager
def kept_until_then(name: str, keep: Callable[[Any], object]) -> Iterator[None]:
    """Print and save what was measured before something ended the block, if anything was.

    Args:
        name: of the exception's attribute that holds it.
        keep: prints and saves it.
    """
    try:
        yield
    except BaseException as error:
        part = vars(error).get(name)
        if part is not None and not part.table().is_empty():
            try:
                print_note("ended before its time; what was measured until then:")
                keep(part)
            except StallscopeError as failed:  # the exception itself says more
                print_note(str(failed))
            except SystemExit:  # nobody reads it
                pass
        raise


def _is_unread(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    if not hasattr(select, "poll"):
        return False
    with suppress(OSError, ValueError, AttributeError):
        asked = select.poll()
        asked.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in asked.poll(0))
    return False


def _end_unread(status: int = _NO_READER) -> NoReturn:
    """End as a command that SIGPIPE ends, whose text nobody reads."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):  # Python writes out what is left at the very end
        with suppress(OSError, ValueError, AttributeError):
            if stream is sys.stdout or _is_unread(stream):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    raise SystemExit(status)


def _encodable(text: str, stream: TextIO) -> str:
    """The text in letters that the stream can take, and that a terminal only shows.

    A µ may be none of ASCII's, and names and exceptions of anybody's may hold commands.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return without_controls(text).encode(encoding, "replace").decode(encoding)


def check_file(option: str, out: Path | None, endings: Sequence[str]) -> None:
    """Say now, not after the measurement, that a file cannot be written."""
    if out is None:
        return
    if out.suffix.lower() not in endings:
        raise StallscopeError(f"{option} {out}: give a name that ends in {', '.join(endings)}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise StallscopeError(f"{option} {out} cannot be written: give another file")
    with _writing(option, out, "file"), TemporaryFile(dir=out.parent):
        pass


def check_folder(out: Path | None) -> list[Path]:
    """Say now, not after the recording, that it cannot be saved there; gives the folders it made.

    The folder itself comes first, then those around it.
    """
    if out is None:
        return []
    with _writing("--out", out, "folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StallscopeError(f"--out {out} holds something already: give a new folder")
        new = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    return new


@contextmanager
def new_folder(out: Path | None) -> Iterator[None]:
    """Check a folder as `check_folder` does, and keep other commands out of it meanwhile.

    Where nothing was saved in the folders that were made, they are gone afterwards.
    """
    made = check_folder(out)
    try:
        with nullcontext(enter_result=True) if out is None else locked(out) as is_ours:
            if not is_ours:
                raise StallscopeError(
                    f"--out {out}: another process saves there; give a new folder"
                )
            yield
    finally:
        with suppress(OSError):  # it holds the run
            for folder in made:
                folder.rmdir()


@contextmanager
def _writing(option: str, out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StallscopeError(
            f"{option} {out} cannot be written ({error.strerror or error}): give another {what}"
        ) from error
