"""The command line: parse, call, print. torch, polars and Jupyter load only when a command runs.

Each command is a function in one of the modules beside this one.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from stallscope.cli import files, measure
from stallscope.cli.output import print_result, report_errors

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

    with report_errors(script=True):
        outcome = start()
    end_with(outcome)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes a positional
    if wanted:
        from stallscope import __version__

        print_result(f"stallscope {__version__}")
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


app.command()(files.compare)
app.command()(measure.diagnose)
app.command()(measure.flame)
app.command()(files.lab)
app.command()(files.notebooks)
app.command()(measure.layouts)
app.command()(measure.record)
app.command()(measure.lines)
app.command()(measure.orders)
app.command(context_settings={"allow_interspersed_args": False})(measure.run)
app.command()(files.show)
app.command()(measure.storage)
app.command()(files.trace)
app.command()(measure.tune)
