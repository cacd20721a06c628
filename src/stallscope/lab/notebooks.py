"""Notebooks: copies of the guided ones, the server that shows them, and the magic `%%stallscope`.

A copy belongs to the user. A notebook that is there stays as it is, unless the user asks for a new
one; a file that is replaced is moved aside first, so nothing is lost. The target is in one file,
`my_target.py`, with the training step and the device; the notebooks name that file's function as
their TARGET.

The server is in this process, local to this machine, and with a token. Every user of the machine
can read a command line, so token and settings are given in Python. They override settings of the
user's that turn the token off.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import stallscope as ss
from stallscope.errors import StallscopeError
from stallscope.files import is_address, packaged_folder, read_file, whole_file, workspace
from stallscope.targets.target import IN_NOTEBOOKS, is_factory
from stallscope.units import TARGETS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

_MODULE: Final = "my_target.py"
"""File with the target of all notebooks; users may edit their copy."""
_SET: Final = 'TARGET = "sample"'
"""Line of `my_target.py` that sets the target; the notebooks have the same line in JSON."""
_IMPORT: Final = "import stallscope as ss\n"
_ASIDE: Final = "earlier"
_GLOB: Final = frozenset("*?[{")


@dataclass(frozen=True)
class Copies:
    """User's folder of notebooks, with notes on replaced and kept files."""

    folder: Path
    notebooks: tuple[Path, ...]
    """All guided notebooks in the folder, sorted by name."""
    notes: tuple[str, ...]
    """Sentences on files that were kept, or moved aside."""


def copy_notebooks(folder: Path, target: str | None = None, *, force: bool = False) -> Copies:
    """Copy the guided notebooks into a folder, and `my_target.py`, which sets their target.

    Args:
        folder: created if necessary.
        target: string as for `ss.target`; None: the target of the last time, else "sample".
        force: replace notebooks that differ, too, after moving them aside.

    Raises:
        StallscopeError: the folder cannot be written, or the target does not exist.
    """
    folder, source = plain_path(folder), packaged_folder("notebooks")
    if folder.resolve() == source.resolve():
        raise StallscopeError(f"{folder} holds stallscope's own notebooks: give another folder")
    module = folder / _MODULE
    module_text = _pointed_module(source / _MODULE, target or "sample")
    guided = sorted(source.glob("*.ipynb"))
    notes, unchanged = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target is None and os.path.lexists(module):
            notes.append(f"the target is that of {module}")
        elif not _is_same(module, module_text):
            notes += _place(module, module_text)
        for path in guided:
            copy, text = folder / path.name, _pointed_notebook(path)
            if os.path.lexists(copy) and _is_same(copy, text):
                continue
            if os.path.lexists(copy) and not force:
                unchanged.append(path.name)
            else:
                notes += _place(copy, text)
    except OSError as error:
        raise StallscopeError(
            f"the notebooks cannot be copied into {folder}: {error.strerror or error}",
        ) from error
    if unchanged:
        notes.append(
            f"kept, because you changed them: {', '.join(unchanged)}; --force replaces them"
        )
    return Copies(folder, tuple(folder / path.name for path in guided), tuple(notes))


def _pointed_notebook(path: Path) -> str:
    """Return a guided notebook that measures the target of `my_target.py`."""
    pointed = f'TARGET = "{IN_NOTEBOOKS}"'
    return read_file(path).decode().replace(json.dumps(_SET)[1:-1], json.dumps(pointed)[1:-1])


def _pointed_module(path: Path, target: str) -> str:
    """Return the source of `my_target.py` for a target.

    Raises:
        StallscopeError: the target is a path that does not exist.
    """
    target, import_from = resolved(target)
    source = read_file(path).decode().replace(_SET, f"TARGET = {target!r}", 1)
    if import_from is None:
        return source
    here = f"\nsys.path.insert(0, {import_from!r})  # your module is here\n"
    return source.replace(_IMPORT, f"import sys\n\n{_IMPORT}{here}", 1)


def resolved(target: str) -> tuple[str, str | None]:
    """Resolve a target that a user typed in the current folder.

    Returns:
        The target with absolute paths, and the folder of the module of a `package.module:factory`;
        None if the module is installed.

    Raises:
        StallscopeError: the target is a path that does not exist.
    """
    if target == "sample" or is_address(target):
        return target, None
    path = plain_path(target)
    try:
        is_there = path.exists()
    except PermissionError as error:
        raise StallscopeError(f"{error.filename!r} cannot be read") from error
    if is_factory(target) and not is_there:
        here, top = Path.cwd(), target.partition(":")[0].partition(".")[0]
        is_here = (here / top).is_dir() or (here / f"{top}.py").is_file()
        return target, str(here) if is_here else None
    if not target or not (_GLOB & set(target) or is_there):
        raise StallscopeError(
            f"there is no {target!r} (looked in {str(Path.cwd())!r}): a target is {TARGETS}, or "
            "'package.module:factory'",
        )
    return str(path), None


def plain_path(path: str | Path) -> Path:
    """Return an absolute path without `~` and `..`; symbolic links are kept."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - resolve follows links


def _is_same(path: Path, text: str) -> bool:
    """Return True if a file has these contents; outputs of a notebook do not count."""
    try:
        return bool(_contents(read_file(path).decode()) == _contents(text))
    except (OSError, ValueError):  # there is none, or it is no file
        return False


def _contents(text: str) -> Any:
    """Return types and sources of a notebook's cells, or any other text as it is."""
    try:
        cells = json.loads(text)["cells"]
        return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, TypeError, KeyError):
        return text


def _place(path: Path, text: str) -> list[str]:
    """Write a file; move an older one aside, and say so."""
    notes = []
    if os.path.lexists(path):
        folder = path.parent / _ASIDE
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise StallscopeError(
                f"{folder} is a link, so files cannot be moved there: give another folder"
            )
        number = 1
        while os.path.lexists(aside := folder / f"{path.stem}.{number}{path.suffix}"):
            number += 1
        path.rename(aside)
        notes = [f"{path.name} is new; the previous file is now {aside.relative_to(path.parent)}"]
    with whole_file(path) as file:
        file.write(text.encode())
    return notes


# JupyterLab, and the magic


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
            raise StallscopeError(
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
    except StallscopeError as reason:
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
        raise StallscopeError(
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
