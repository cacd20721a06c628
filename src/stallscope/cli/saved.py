"""The commands that look at a saved run: `show` and `trace`."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
from pathlib import Path
from typing import Annotated

import typer

from stallscope.cli.output import hint, plainly, say


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
) -> None:
    """Print a saved run: where the time goes, and what the loop waits for.

    \b
    Examples:
      stallscope show stallscope-runs/train-20261120-101500
    """  # noqa: D301
    with plainly():
        from stallscope.experiments.load import load

        say(load(folder))


def trace(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new .json, or a smaller .json.gz.")
    ],
) -> None:
    """Write a saved run as a timeline that Perfetto opens.

    It shows the steps of the loop with their waits, what each worker did in every sample, and an
    arrow from each batch to the step that used it; see https://ui.perfetto.dev or chrome://tracing.

    \b
    Examples:
      stallscope trace stallscope-runs/train-20261120-101500 train.json.gz
    """  # noqa: D301
    with plainly():
        from stallscope.experiments.load import load

        written = load(folder).trace(out)
        hint("open it in https://ui.perfetto.dev or chrome://tracing")
        say(written)
