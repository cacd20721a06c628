"""The command that looks into a training which runs already: `flame`."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
from pathlib import Path
from typing import Annotated, Final

import typer

from stallscope.cli.output import check_file, hint, plainly, say

_ENDINGS: Final = (".html", ".svg", ".json")


def flame(  # noqa: PLR0913 - the command's options
    pid: Annotated[int, typer.Argument(metavar="PID", help="Of the training.")],
    *,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to sample.")] = 5.0,
    rate: Annotated[
        float, typer.Option(metavar="HZ", help="Samples a second, of each process.")
    ] = 50.0,
    native: Annotated[
        bool, typer.Option("--native", help="Frames of compiled code, too; slows it down.")
    ] = False,
    idle: Annotated[bool, typer.Option("--idle", help="Threads that wait, too.")] = False,
    gil: Annotated[
        bool, typer.Option("--gil", help="Only threads that hold Python's lock.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the flamegraph: .html, .svg, or .json for speedscope."
        ),
    ] = None,
) -> None:
    """Sample the DataLoader workers of a training that runs, and print where their time goes.

    The training is left running as it is. Without workers the process itself is sampled.

    \b
    Examples:
      stallscope flame 4711
      stallscope flame 4711 --seconds 20 --out workers.html
    """  # noqa: D301
    with plainly():
        check_file("--out", out, _ENDINGS)
        from stallscope.experiments.flame import flame as sampled

        seen = sampled(pid=pid, seconds=seconds, rate_hz=rate, native=native, idle=idle, gil=gil)
        if out is not None:
            hint(f"written to {seen.export(out)}")
        say(seen)
