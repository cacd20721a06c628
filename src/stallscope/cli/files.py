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

_BEYOND: Final = 3
_CLEAR: Final = "\x1b[2J\x1b[H"
"""What clears a terminal."""
_RUN: Final = "A run's folder, or its address (s3://...)."
LAST: Final = f"{FORMS}. By default the one of the last time, else 'sample'."
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace notebooks that you changed, too; yours are put aside."),
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
    with report_errors():
        from stallscope.lab.notebooks import copy_notebooks
        from stallscope.lab.server import open_lab

        copies = copy_notebooks(folder, target, force=force)
        print_note(f"notebooks in {copies.folder}", *copies.notes)
        first = copies.notebooks[0]
        open_lab(copies.folder, first, browser=not no_browser, port=port, announce=_announce)


def notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made where it does not exist.")],
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
    print_note("JupyterLab is running; Ctrl-C ends it")
    print_result(address)


def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    *,
    redact: Redact = False,
    as_json: AsJson = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Again and again, until its process has ended.")
    ] = False,
    pages: Annotated[bool, typer.Option("--pages", hidden=True)] = False,
) -> None:
    """Print a saved run, or another result: where the time goes, and what the loop waits for.

    A run can be looked at while it is recorded, too.

    \b
    Examples:
      stallscope show stallscope-runs/train-20261120-101500
      stallscope show --follow stallscope-runs/train-20261120-101500
    """  # noqa: D301
    with report_errors():
        from stallscope.load import follow as followed
        from stallscope.load import load

        for found in followed(folder) if follow else [load(folder)]:
            if follow and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            view = shown(found, as_json=as_json and not pages, redact=redact)
            if pages:
                from stallscope.views.run_panels import page_of

                view = page_of(found.redacted() if redact else found)
            print_result(view)


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_RUN)],
    after: Annotated[list[str], typer.Argument(metavar="AFTER", help="Later ones.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit with 3 where the last run is beyond it for sure, such as "
            "'stall_share > +0.05' or 'samples_per_s < -10%'. May be given again.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what changed between recorded runs of one training, by how much, and how sure that is.

    Names first what else is not the same: settings, versions, machine, data. Exits with 0, with 3
    where a limit is passed, and with 2 for an input that cannot be used.

    \b
    Examples:
      stallscope compare runs/before runs/after
      stallscope compare runs/main runs/change --fail-if "stall_share > +0.05"
    """  # noqa: D301
    with report_errors():
        from stallscope.compare.compare import compare as compared

        found = compared(before, *after)
        beyond = [limit for limit in fail_if or () if found.exceeds(limit)]
        print_result(shown(found, as_json=as_json))
        if beyond:
            print_note(f"beyond its limit: {'; '.join(beyond)}")
            sys.exit(_BEYOND)


def trace(
    folder: Annotated[str, typer.Argument(metavar="DIR", help=_RUN)],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new .json, or a smaller .json.gz.")
    ],
    *,
    redact: Redact = False,
) -> None:
    """Write a saved run as a timeline that Perfetto opens.

    It shows the steps of the loop with their waits, what each worker did in every sample, and an
    arrow from each batch to the step that used it; see https://ui.perfetto.dev or chrome://tracing.

    \b
    Examples:
      stallscope trace stallscope-runs/train-20261120-101500 train.json.gz
    """  # noqa: D301
    with report_errors():
        from stallscope.load import load

        found = load(folder)
        written = (found.redacted() if redact else found).trace(out)
        print_note("open it in https://ui.perfetto.dev or chrome://tracing")
        print_result(written)
