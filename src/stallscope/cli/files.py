"""Commands around files: `lab` and `notebooks` copy notebooks, `show` and `trace` read a result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from stallscope.cli.output import (
    FORMS,
    AsJson,
    Redact,
    print_note,
    print_result,
    report_errors,
    shown,
)

_LIMIT_EXCEEDED: Final = 3
_CLEAR: Final = "\x1b[2J\x1b[H"
"""Codes that clear a terminal."""
_RUN: Final = "Folder or address (s3://...) of a run."
LAST: Final = f"{FORMS}. Default: the target of the last time, else 'sample'."
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace changed notebooks, too; your copies are moved aside."),
]


def lab(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help=LAST)] = None,
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
            metavar="N", min=1, max=65535, help="Port. Default: the first free port from 8888."
        ),
    ] = None,
) -> None:
    """Copy the guided notebooks and open them in JupyterLab.

    JupyterLab listens on 127.0.0.1 only and requires the token in its address. Ctrl-C ends
    JupyterLab and its kernels. Only --force replaces notebooks that you changed.

    \b
    Examples:
      stallscope lab
      stallscope lab ~/photos --dir photos-check
      stallscope lab train:make_loader --no-browser --port 8890
    """  # noqa: D301
    with report_errors():
        from stallscope.lab.notebooks import copy_notebooks
        from stallscope.lab.server import open_lab

        copies = copy_notebooks(folder, target, force=force)
        print_note(f"notebooks in {copies.folder}", *copies.notes)
        first = copies.notebooks[0]
        open_lab(copies.folder, first, browser=not no_browser, port=port, announce=_announce)


def notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for your copies.")],
    target: Annotated[str | None, typer.Option(metavar="TARGET", help=LAST)] = None,
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
    with report_errors():
        from stallscope.lab.notebooks import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        print_note(*copies.notes)
        print_result(*copies.notebooks)


def _announce(address: str) -> None:
    print_note("JupyterLab is running; Ctrl-C stops JupyterLab")
    print_result(address)


def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    *,
    redact: Redact = False,
    as_json: AsJson = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Repeat until the recorded process ends.")
    ] = False,
    pages: Annotated[bool, typer.Option("--pages", hidden=True)] = False,
) -> None:
    """Print a saved run, or another result: where the time goes, and what the loop waits for.

    Also works during the recording.

    \b
    Examples:
      stallscope show stallscope-runs/train-20261120-101500
      stallscope show --follow stallscope-runs/train-20261120-101500
    """  # noqa: D301
    with report_errors():
        from stallscope.load import follow as followed
        from stallscope.load import load

        for result in followed(folder) if follow else [load(folder)]:
            if follow and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            view = shown(result, as_json=as_json and not pages, redact=redact)
            if pages:
                from stallscope.views.run_panels import page_of

                view = page_of(result.redacted() if redact else result)
            print_result(view)


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_RUN)],
    after: Annotated[list[str], typer.Argument(metavar="AFTER", help="Later runs.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit with 3 if the last run significantly exceeds the limit, such as "
            "'stall_share > +0.05' or 'samples_per_s < -10%'. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare recorded runs of one training: each change with its 95% confidence interval.

    Lists other differences first: settings, versions, machine, data. Exits with 0, 3 if a limit is
    exceeded, and 2 for an unusable input.

    \b
    Examples:
      stallscope compare runs/before runs/after
      stallscope compare runs/main runs/change --fail-if "stall_share > +0.05"
    """  # noqa: D301
    with report_errors():
        from stallscope.compare.compare import compare as compared

        comparison = compared(before, *after)
        beyond = [limit for limit in fail_if or () if comparison.exceeds(limit)]
        print_result(shown(comparison, as_json=as_json))
        if beyond:
            print_note(f"limit exceeded: {'; '.join(beyond)}")
            sys.exit(_LIMIT_EXCEEDED)


def trace(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new .json, or a smaller .json.gz.")
    ],
    *,
    redact: Redact = False,
) -> None:
    """Write a saved run as a timeline for Perfetto.

    The timeline shows the loop's steps and waits, each worker's work on every sample, and an
    arrow from each batch to its step; open it in https://ui.perfetto.dev or chrome://tracing.

    \b
    Examples:
      stallscope trace stallscope-runs/train-20261120-101500 train.json.gz
    """  # noqa: D301
    with report_errors():
        from stallscope.load import load

        run = load(folder)
        path = (run.redacted() if redact else run).trace(out)
        print_note("open the file in https://ui.perfetto.dev or chrome://tracing")
        print_result(path)
