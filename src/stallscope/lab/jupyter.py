"""Jupyter: the server that `stallscope lab` runs, and the magic `%%stallscope` above a cell.

The server is in this process, local to this machine, and with a token. Every user of the machine
can read a command line, so token and settings are given in Python. They override settings of the
user's that turn the token off.
"""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import stallscope as ss
from stallscope.files import workspace

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path


def open_lab(
    folder: Path,
    notebook: Path,
    *,
    browser: bool = True,
    port: int | None = None,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Run JupyterLab with a notebook until Ctrl-C, SIGTERM or SIGHUP, which end its kernels, too.

    Args:
        folder: root of JupyterLab's file browser.
        notebook: file in that folder to open.
        browser: let JupyterLab open the user's browser.
        port: port of JupyterLab; None: the first free port from 8888.
        announce: called with the address and token as soon as JupyterLab listens.

    Raises:
        StallscopeError: JupyterLab does not start; its output shows the reason.
    """
    # relative paths would mean other folders for a kernel
    modules = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, modules))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this interpreter's kernel comes first
    token = secrets.token_hex(24)
    options = [
        "--log-level=WARN",
        "--LabApp.log_level=WARN",
        "--LabApp.news_url=None",  # else a dialog offers news and covers the page
        f"--IdentityProvider.token={token}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.allow_root=True",  # root is the usual user of a container
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.root_dir={folder}",
        *([] if port is None else [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]),
        str(notebook),
    ]
    with workspace() as private:
        os.chdir(private)  # Jupyter runs settings of the current folder, which may be code
        from jupyterlab.labapp import LabApp

        try:
            server = LabApp.initialize_server(options)
        except SystemExit as error:
            raise ss.StallscopeError(
                "JupyterLab did not start, its output is above; the notebooks are copied"
            ) from error
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: server.stop(from_signal=True))
        place = quote(notebook.relative_to(folder).as_posix())
        address = f"{server.connection_url}lab/tree/{place}?token={token}"
        server.io_loop.add_callback(announce, address)  # after those that begin to listen
        server.start()


def register(shell: Any) -> None:
    """Add the magic to a shell of IPython."""
    from IPython.core.magic_arguments import MagicArgumentParser

    untyped: Any = MagicArgumentParser
    parser = untyped("%%stallscope")
    parser.add_argument("--html", metavar="FILE", help="write the report there, too")
    parser.add_argument("--save", metavar="FOLDER", help="save the run, for ss.load and ss.compare")

    def cell_magic(line: str, cell: str) -> None:
        """Run a cell, record every DataLoader in it, and show verdict and timeline.

        %%stallscope [--html FILE] [--save FOLDER]
        """
        _run_cell(shell, parser.parse_argstring(line), cell)

    shell.register_magic_function(cell_magic, "cell", "stallscope")


def _run_cell(shell: Any, options: Namespace, cell: str) -> None:
    """Run a cell, show its verdict, and raise its error, so that the traceback is shown last."""
    held: list[tuple[Any, Any, list[str]]] = []
    show_traceback = shell._showtraceback  # noqa: SLF001 - what frontends of IPython override
    shell._showtraceback = lambda *shown: held.append(shown)  # noqa: SLF001
    try:
        with ss.instrumented() as watch:
            outcome = shell.run_cell(cell)
    finally:
        shell._showtraceback = show_traceback  # noqa: SLF001
    error = outcome.error_before_exec or outcome.error_in_exec
    traceback = held.pop()[2] if error and held else None
    for shown in held:  # of errors that the cell survived, as in `%run`
        show_traceback(*shown)
    try:
        _show(watch.run, options)
    except ss.StallscopeError as reason:
        if not error:
            print(f"stallscope: {reason}")  # noqa: T201 - to the cell's output, as %%time does
    if traceback:

        def render_once() -> list[str]:
            del error._render_traceback_
            return traceback

        with suppress(AttributeError):  # a class with slots: the traceback has our frames, too
            error._render_traceback_ = render_once
    if error:
        raise error


def _show(run: ss.Run, options: Namespace) -> None:
    """Show the diagnosis of a run, and save what the options request."""
    from IPython import display

    if run.steps(steady=False).is_empty():
        raise ss.StallscopeError(
            "the cell iterated no DataLoader: put %%stallscope above the cell with the training "
            "loop"
        )
    diagnosis = ss.diagnose(run)
    show: Any = display.display
    show(diagnosis, diagnosis.plot("timeline"))
    if options.html:
        diagnosis.export(options.html)
    if options.save:
        run.save(options.save)
