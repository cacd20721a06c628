"""The commands that open the guided notebooks: `lab` and `notebooks`."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
from pathlib import Path
from typing import Annotated

import typer

from stallscope.cli.output import FORMS, hint, plainly, say

Force = Annotated[
    bool,
    typer.Option("--force", help="Replace notebooks that you changed, too; yours are put aside."),
]


def lab(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help=f"{FORMS}. By default the one of the last time, else 'sample'."
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
    with plainly():
        from stallscope.jupyter import open_lab
        from stallscope.lab import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        hint(f"notebooks in {copies.folder}", *copies.notes)
        first = copies.notebooks[0]
        open_lab(copies.folder, first, browser=not no_browser, port=port, announce=_announce)


def notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made where it does not exist.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help=f"{FORMS}. By default the one of the last time, else 'sample'."
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
    with plainly():
        from stallscope.lab import copy_notebooks

        copies = copy_notebooks(folder, target, force=force)
        hint(*copies.notes)
        say(*copies.notebooks)


def _announce(address: str) -> None:
    hint("JupyterLab is running; Ctrl-C ends it")
    say(address)
