"""The command line: parse, call, print. torch, polars and Jupyter load only when a command runs."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Final

import typer

from stallscope.errors import StallscopeError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_FORMS: Final = "'sample', a folder of images, tar shards, or 'package.module:factory'"

Force = Annotated[
    bool,
    typer.Option("--force", help="Replace notebooks that you changed, too; yours are put aside."),
]


def main() -> None:
    """Run the command line."""
    app(prog_name="stallscope")


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's way to call it
    if wanted:
        from stallscope import __version__

        _say(f"stallscope {__version__}")
        raise typer.Exit


@app.callback()
def _stallscope(
    *,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Why PyTorch training starves for data, measured inside the DataLoader's workers.

    \b
    Examples:
      stallscope lab                       guided notebooks, on sample photographs
      stallscope lab ~/photos              ... on your folder of images
      stallscope lab train:make_loader     ... on the loader that your function returns
      stallscope record ~/photos           a table of where the time goes
    """  # noqa: D301 - \b is click's


@app.command()
def lab(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help=f"{_FORMS}. By default the one of the last time, else 'sample'."
        ),
    ] = None,
    *,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for your copies of the notebooks.")
    ] = Path("stallscope-notebooks"),
    force: Force = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=65535, help="By default the first free one from 8888."
        ),
    ] = None,
) -> None:
    """Copy the guided notebooks and open them in JupyterLab.

    JupyterLab listens on 127.0.0.1 only and asks for the token that its address carries. Ctrl-C
    ends it and its kernels. Notebooks that you changed are never replaced without --force.

    \b
    Examples:
      stallscope lab
      stallscope lab ~/photos --dir photos-check
      stallscope lab train:make_loader --no-browser --port 8890
    """  # noqa: D301
    with _plainly():
        from stallscope.jupyter import open_lab
        from stallscope.lab import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        _hint(f"notebooks in {copies.folder}", *copies.notes)
        first = copies.notebooks[0]
        open_lab(copies.folder, first, browser=not no_browser, port=port, announce=_announce)


@app.command()
def notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made where it does not exist.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help=f"{_FORMS}. By default the one of the last time, else 'sample'."
        ),
    ] = None,
    *,
    force: Force = False,
) -> None:
    """Copy the guided notebooks into a folder.

    Open them in your own Jupyter or VS Code, with this Python as the kernel.

    \b
    Examples:
      stallscope notebooks check
      stallscope notebooks check --target ~/photos
    """  # noqa: D301
    with _plainly():
        from stallscope.lab import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        _hint(*copies.notes)
        _say(*copies.notebooks)


@app.command()
def record(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{_FORMS}.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run in a new folder, for stallscope.load."),
    ] = None,
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches in the steady state.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Batches before that, kept apart.")
    ] = 4,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0, help="Stop after so many seconds.")
    ] = 60.0,
) -> None:
    """Record a loader, and print where the time goes.

    What the workers do with every sample is measured; the table shows the steady state.

    Modules of the current folder can be imported, as with python -m.

    \b
    Examples:
      stallscope record sample
      stallscope record train:make_loader --batches 200 --out runs/before
    """  # noqa: D301
    with _plainly():
        _check_out(out)
        sys.path.insert(0, str(Path.cwd()))  # also for what the user's module imports later
        from stallscope.experiments.record import record as record_run

        try:
            run = record_run(target, batches=batches, warmup=warmup, budget_s=budget)
        except BaseException as error:
            _save(getattr(error, "run", None), out, "what was recorded until then is")
            raise
        _save(run, out, "saved")
        _say(run)


@contextmanager
def _plainly() -> Iterator[None]:
    """Show an error as what it is; click would hide a user's EOFError or broken pipe.

    A mistake that the user can mend is one line, anything else is a traceback with its notes.
    """
    try:
        _check_here()
        yield
    except StallscopeError as error:
        _hint(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:  # noqa: BLE001 - shown whole
        traceback.print_exc()
        if sys.version_info < (3, 11):  # where tracebacks do not show notes yet
            _hint(*getattr(error, "__notes__", ()))
        raise typer.Exit(1) from None


def _check_here() -> None:
    """Say it once, before something deep inside asks for a current folder that is gone."""
    try:
        Path.cwd()
    except OSError as error:
        raise StallscopeError("the current folder is gone: cd to one that exists") from error


def _check_out(out: Path | None) -> None:
    """Say now, not after the recording, that it cannot be saved there."""
    if out is None:
        return
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StallscopeError(f"--out {out} holds something already: give a new folder")
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise StallscopeError(
            f"--out {out} cannot be written ({error.strerror or error}): give another folder"
        ) from error


def _save(run: Any, out: Path | None, what: str) -> None:
    if run is not None and out is not None:
        _hint(f"{what} in {run.save(out)}")


def _announce(address: str) -> None:
    _hint("JupyterLab is running; Ctrl-C ends it")
    _say(address)


def _say(*lines: object) -> None:
    """What was asked for, on stdout."""
    for line in lines:
        print(line, flush=True)  # noqa: T201


def _hint(*lines: str) -> None:
    """What else there is to know, on stderr."""
    for line in lines:
        print(f"stallscope: {line.removeprefix('stallscope: ')}", file=sys.stderr, flush=True)  # noqa: T201
