"""The command line: parse, call, print. torch, polars and Jupyter load only when a command runs.

A command is a function; the rooms beside this one hold them by what they are for.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from stallscope.cli.files import compare, lab, notebooks, show, trace
from stallscope.cli.measure import (
    Script,
    diagnose,
    flame,
    layouts,
    lines,
    orders,
    record,
    run,
    storage,
    tune,
)
from stallscope.cli.output import print_result, report_errors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; a script that it asks for runs here, where nothing catches."""
    hook = sys.excepthook
    try:
        app(prog_name="stallscope")
    except Script as script:
        start = script.start
    except SystemExit:  # all is said: Ctrl-C has nothing to end but libraries' own last words
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    sys.excepthook = hook  # typer has put in its own
    from stallscope.run.script import end_with

    with report_errors(script=True):
        ended = start()
    end_with(ended)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's way to call it
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
    """Why PyTorch training starves for data, measured inside the DataLoader's workers.

    \b
    Examples:
      stallscope lab                       guided notebooks, on sample photographs
      stallscope lab ~/photos              ... on your folder of images
      stallscope lab train:make_loader     ... on the loader that your function returns
      stallscope diagnose ~/photos         what keeps a training from its data, in a minute
      stallscope record ~/photos           a table of where the time goes
      stallscope lines train:make_loader   which lines of your dataset and transforms take it
      stallscope orders train:make_loader  the fastest order of transforms with the same data
      stallscope tune train:make_loader    how many workers, and what else to set
      stallscope storage ~/photos          what the disk gives, cold and warm
      stallscope layouts ~/photos          the same data as tar shards, LMDB, smaller images
      stallscope run train.py --epochs 1   what your script's loop waits for
      stallscope compare before after      what changed from one such run to the next
      stallscope flame 4711                what the workers of a training that runs are doing
    """  # noqa: D301 - \b is click's


app.command()(compare)
app.command()(diagnose)
app.command()(flame)
app.command()(lab)
app.command()(notebooks)
app.command()(layouts)
app.command()(record)
app.command()(lines)
app.command()(orders)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(show)
app.command()(storage)
app.command()(trace)
app.command()(tune)
