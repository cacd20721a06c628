"""The command line: parse, call, print. torch, polars and Jupyter load only when a command runs.

Each command is a function: those around notebooks and saved results are here, those that measure in
`measure`.
"""

from __future__ import annotations

import getpass
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from stallscope.cli import measure, output

_LIMIT_EXCEEDED: Final = 3
_CLEAR: Final = "\x1b[2J\x1b[H"
"""Codes that clear a terminal."""
_RUN: Final = "Folder or address (s3://...) of a saved run."
LAST: Final = f"{output.FORMS}. Default: the target of the last call, or 'sample'."
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Replace notebooks that you changed; your copies are moved aside."
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; a user's script runs here, outside of typer's error handling."""
    hook = sys.excepthook
    try:
        app(prog_name="stallscope")
    except measure.Script as script:
        start = script.start
    except SystemExit:  # all output is written: Ctrl-C would only interrupt libraries' cleanup
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    sys.excepthook = hook  # typer has replaced the hook
    from stallscope.run.script import end_with

    with output.report_errors(script=True):
        outcome = start()
    end_with(outcome)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes a positional
    if wanted:
        from stallscope import __version__

        output.print_result(f"stallscope {__version__}")
        raise typer.Exit


@app.callback()
def _stallscope(
    *,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find out why a PyTorch training waits for data.

    stallscope measures inside the DataLoader's workers.

    \b
    Examples:
      stallscope lab                       open the guided notebooks, with sample photographs
      stallscope lab ~/photos              ... with your folder of images
      stallscope lab train:make_loader     ... with the loader that your function returns
      stallscope diagnose ~/photos         why a training waits for data, in a minute
      stallscope record ~/photos           a table of where the time goes
      stallscope lines train:make_loader   the slowest lines of your dataset and transforms
      stallscope orders train:make_loader  the fastest order of transforms with the same data
      stallscope tune train:make_loader    the fastest settings, such as the number of workers
      stallscope storage ~/photos          how fast the disk reads your files
      stallscope layouts ~/photos          files compared with tar shards, LMDB, smaller images
      stallscope run train.py --epochs 1   what the loop of your own script waits for
      stallscope compare before after      what changed between two such runs
      stallscope flame 4711                the workers' code in a training that runs already
    """  # noqa: D301 - \b is click's


def lab(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help=LAST)] = None,
    *,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder for your copies of the notebooks.")
    ] = Path("stallscope-notebooks"),
    force: Force = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, but do not open a browser.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=65535, help="Port. Default: the first free one from 8888."
        ),
    ] = None,
) -> None:
    """Copy the guided notebooks and open them in JupyterLab.

    Only this machine can reach JupyterLab, and only with the token in the printed address. Ctrl-C
    stops JupyterLab and its kernels. Notebooks that you changed stay, unless you give --force.

    \b
    Examples:
      stallscope lab
      stallscope lab ~/photos --dir photos-check
      stallscope lab train:make_loader --no-browser --port 8890
    """  # noqa: D301
    with output.report_errors():
        from stallscope.lab.notebooks import copy_notebooks, open_lab

        copies = copy_notebooks(folder, target, force=force)
        output.print_note(f"notebooks in {copies.folder}", *copies.notes)
        first = copies.notebooks[0]
        browser = not no_browser and "SSH_CONNECTION" not in os.environ  # it would open there
        open_lab(copies.folder, first, browser=browser, port=port, announce=_announce)


def notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for your copies.")],
    target: Annotated[str | None, typer.Option(metavar="TARGET", help=LAST)] = None,
    *,
    force: Force = False,
) -> None:
    """Copy the guided notebooks into a folder.

    Open the copies in your own Jupyter or VS Code, with this Python as the kernel.

    \b
    Examples:
      stallscope notebooks check
      stallscope notebooks check --target ~/photos
    """  # noqa: D301
    with output.report_errors():
        from stallscope.lab.notebooks import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        output.print_note(*copies.notes)
        output.print_result(*copies.notebooks)


def _announce(address: str) -> None:
    output.print_note("JupyterLab is running; Ctrl-C stops JupyterLab")
    if len(ends := os.environ.get("SSH_CONNECTION", "").split()) == 4:  # noqa: PLR2004 - two addresses
        port = urlsplit(address).port
        tunnel = f"ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{ends[2]}"
        output.print_note("to reach it from your own machine, run there:", tunnel)
    output.print_result(address)


def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    *,
    redact: output.Redact = False,
    as_json: output.AsJson = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print again and again until the training ends.")
    ] = False,
    pages: Annotated[bool, typer.Option("--pages", hidden=True)] = False,
) -> None:
    """Print a saved run or another saved result.

    Also works while the training runs.

    \b
    Examples:
      stallscope show stallscope-runs/train-20261120-101500
      stallscope show --follow stallscope-runs/train-20261120-101500
    """  # noqa: D301
    with output.report_errors():
        from stallscope.run.load import follow as followed
        from stallscope.run.load import load

        for result in followed(folder) if follow else [load(folder)]:
            if follow and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            if pages:
                from stallscope.views.panels import page_of

                output.print_result(page_of(result.redacted() if redact else result))
            else:
                output.show(result, as_json=as_json, redact=redact)


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_RUN)],
    after: Annotated[list[str], typer.Argument(metavar="AFTER", help="One or more later runs.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit with 3 if the last run significantly exceeds this limit. Examples: "
            "'stall_share > +0.05', 'samples_per_s < -10%'. Repeat for several.",
        ),
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Compare recorded runs of the same training.

    Prints each change with its 95% confidence interval, and differences in settings, versions,
    machine and data.

    Exit codes: 0 no limit is exceeded, 2 wrong input, 3 a limit is exceeded.

    \b
    Examples:
      stallscope compare runs/before runs/after
      stallscope compare runs/main runs/change --fail-if "stall_share > +0.05"
    """  # noqa: D301
    with output.report_errors():
        from stallscope.verbs.compare import compare as compared

        comparison = compared(before, *after)
        beyond = [limit for limit in fail_if or () if comparison.exceeds(limit)]
        output.show(comparison, as_json=as_json)
        if beyond:
            output.print_note(f"limit exceeded: {'; '.join(beyond)}")
            sys.exit(_LIMIT_EXCEEDED)


def trace(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write: .json, or .json.gz (smaller).")
    ],
    *,
    redact: output.Redact = False,
) -> None:
    """Write a saved run as a timeline for Perfetto.

    The timeline shows the loop's steps and waits, and each worker's work on every sample. Arrows
    lead from each batch to its step. Open the file in https://ui.perfetto.dev or chrome://tracing.

    \b
    Examples:
      stallscope trace stallscope-runs/train-20261120-101500 train.json.gz
    """  # noqa: D301
    with output.report_errors():
        from stallscope.run.load import load

        run = load(folder)
        path = (run.redacted() if redact else run).trace(out)
        output.print_note("open the file in https://ui.perfetto.dev or chrome://tracing")
        output.print_result(path)


app.command()(compare)
app.command()(measure.diagnose)
app.command()(measure.flame)
app.command()(lab)
app.command()(notebooks)
app.command()(measure.layouts)
app.command()(measure.record)
app.command()(measure.lines)
app.command()(measure.orders)
app.command(context_settings={"allow_interspersed_args": False})(measure.run)
app.command()(show)
app.command()(measure.storage)
app.command()(trace)
app.command()(measure.tune)
