"""`%%stallscope` above a cell: its training loop runs unchanged, and the verdict follows."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import stallscope as ss

if TYPE_CHECKING:
    from argparse import Namespace


class CellStoppedError(Exception):
    """Error without output that ends Run All; IPython has already shown the cell's own error."""

    def _render_traceback_(self) -> list[str]:
        return []


def register(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def cell_magic(line: str, cell: str) -> None:
        """Run a cell, record every DataLoader in it, and show verdict and timeline.

        %%stallscope [--html FILE] [--save FOLDER]
        """
        _run_cell(shell, _options().parse_args(line.split()), cell)

    shell.register_magic_function(cell_magic, "cell", "stallscope")


def _options() -> ArgumentParser:
    parser = ArgumentParser("%%stallscope", exit_on_error=False)
    parser.add_argument("--html", metavar="FILE", help="write the report there, too")
    parser.add_argument("--save", metavar="FOLDER", help="save the run, for ss.load and ss.compare")
    return parser


def _run_cell(shell: Any, options: Namespace, cell: str) -> None:
    with ss.instrumented() as watch:
        outcome = shell.run_cell(cell)
    try:
        _show(watch.run, options)
    except ss.StallscopeError as error:
        print(f"stallscope: {error}")  # noqa: T201 - to the cell's output, as %%time does
    if not outcome.success:
        raise CellStoppedError


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
