"""The commands that measure: `record` a loader, its `lines`, `run` a script."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from stallscope.cli.output import FORMS, hint, plainly, say
from stallscope.errors import StallscopeError
from stallscope.units import count


class Script(BaseException):
    """Carries a script out of typer, which has a use of its own for some exceptions."""

    def __init__(self, start: Callable[[], BaseException | None]) -> None:
        self.start = start


def record(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{FORMS}.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run in a new folder, for stallscope.load."),
    ] = None,
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches in the steady state.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Batches before that, kept apart.")
    ] = 4,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0, help="Stop after so many seconds.")
    ] = 60.0,
) -> None:
    """Record a loader, and print where the time goes.

    What the workers do with every sample is measured; the table shows the steady state.

    Modules of the current folder can be imported, as with python -m.

    \b
    Examples:
      stallscope record sample
      stallscope record train:make_loader --batches 200 --out runs/before
    """  # noqa: D301
    with plainly():
        _check_out(out)
        sys.path.insert(0, str(Path.cwd()))  # also for what the user's module imports later
        from stallscope.experiments.record import record as record_run

        try:
            run = record_run(target, batches=batches, warmup=warmup, budget_s=budget)
        except BaseException as error:
            try:
                _save(getattr(error, "run", None), out, "what was recorded until then is")
            except StallscopeError as failed:  # the user's own exception says more
                hint(str(failed))
            raise
        _save(run, out, "saved")
        say(run)


def lines(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{FORMS}.")],
    function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A class, a method or a function, such as MyTransform; may be given again. By "
            "default your own that take the most time.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples whose lines are timed.")
    ] = 32,
) -> None:
    """Time the lines of a dataset, its transforms and its collate function.

    Samples are made in this process, one after the other. The listing shows each line's share.

    Modules of the current folder can be imported, as with python -m.

    \b
    Examples:
      stallscope lines sample
      stallscope lines train:make_loader --function RandomMask --samples 64
    """  # noqa: D301
    with plainly():
        sys.path.insert(0, str(Path.cwd()))  # also for what the user's module imports later
        from stallscope.experiments.lines import lines as time_lines

        say(time_lines(target, functions=function or None, samples=samples))


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Its own arguments.")
    ] = None,
    *,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as with python -m.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run there, by default in stallscope-runs."),
    ] = None,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Steps at the start, kept apart.")
    ] = 4,
) -> None:
    """Run a script as it is, and record every DataLoader that it iterates.

    The script behaves, prints and ends as ever. What was recorded can be looked at while it runs,
    and also after it was killed. Under torchrun there is one run folder a rank.

    \b
    Examples:
      stallscope run train.py --epochs 1
      stallscope run --out before -m package.train --lr 0.1
      torchrun --nproc-per-node 8 -m stallscope run train.py
      stallscope show before
    """  # noqa: D301
    with plainly():
        from stallscope.experiments.watch import watching
        from stallscope.runfolder import out_folder
        from stallscope.script import run_script

        def watch() -> AbstractContextManager[None]:
            folder = out_folder(script, out)  # not before it is known that there is a script
            _check_out(folder)
            return watching(
                folder, name=Path(script).name, warmup=warmup, done=partial(_recorded, folder)
            )

        raise Script(partial(run_script, script, args or [], module=module, watching=watch))


def _recorded(folder: Path, found: Any) -> None:
    if found is None:
        hint("the script iterated no DataLoader: nothing was recorded")
    else:
        hint(f"{count(found.all_steps.height, 'step')} recorded: stallscope show {folder}")


def _check_out(out: Path | None) -> None:
    """Say now, not after the recording, that it cannot be saved there."""
    if out is None:
        return
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise StallscopeError(f"--out {out} holds something already: give a new folder")
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise StallscopeError(
            f"--out {out} cannot be written ({error.strerror or error}): give another folder"
        ) from error


def _save(run: Any, out: Path | None, what: str) -> None:
    if run is not None and out is not None:
        hint(f"{what} in {run.save(out)}")
