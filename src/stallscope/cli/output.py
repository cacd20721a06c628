"""What all commands share: how a target is named, and how results and errors are shown."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, TextIO

from stallscope.errors import StallscopeError

FORMS: Final = (
    "'sample', a folder of images, tar shards, or 'package.module:factory', which is imported, "
    "from the current folder too, and called"
)


@contextmanager
def report_errors() -> Iterator[None]:
    """Show an error as what it is; click would hide a user's EOFError or broken pipe.

    A mistake that the user can mend is one line, anything else is a traceback with its notes.
    """
    try:
        try:
            Path.cwd()
        except OSError as error:  # said once, before something deep inside asks for it
            raise StallscopeError("the current folder is gone: cd to one that exists") from error
        yield
    except StallscopeError as error:
        print_note(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:  # noqa: BLE001 - shown whole
        traceback.print_exc()
        if sys.version_info < (3, 11):  # where tracebacks do not show notes yet
            print_note(*getattr(error, "__notes__", ()))
        raise SystemExit(1) from None


def print_result(*lines: object) -> None:
    """What was asked for, on stdout."""
    for line in lines:
        print(_encodable(str(line), sys.stdout), flush=True)  # noqa: T201


def print_note(*lines: str) -> None:
    """What else there is to know, on stderr."""
    for line in lines:
        said = _encodable(f"stallscope: {line.removeprefix('stallscope: ')}", sys.stderr)
        print(said, file=sys.stderr, flush=True)  # noqa: T201


def _encodable(text: str, stream: TextIO) -> str:
    """The text in letters that the stream can take: a µ or a name may be none of ASCII's."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


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


def check_folder(out: Path | None) -> None:
    """Say now, not after the recording, that it cannot be saved there; the folder is made."""
    if out is None:
        return
    with _writing("--out", out, "folder"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StallscopeError(f"--out {out} holds something already: give a new folder")
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()


@contextmanager
def _writing(option: str, out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StallscopeError(
            f"{option} {out} cannot be written ({error.strerror or error}): give another {what}"
        ) from error
