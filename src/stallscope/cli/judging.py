"""The command that names the cause: `diagnose`."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from stallscope.cli.output import FORMS, check_file, hint, plainly, say
from stallscope.errors import StallscopeError

HEALTHY, CAUSE, INCONCLUSIVE = 0, 3, 4
"""How the command ends; 1 is an exception of the user's code, 2 an input that cannot be used."""
_ENDS: Final = {"healthy": HEALTHY, "inconclusive": INCONCLUSIVE}
_ENDINGS: Final = (".html",)


def diagnose(  # noqa: PLR0913 - the command's options
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{FORMS}.")],
    *,
    step: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="A simulated training step of so many seconds, for a target without one of its "
            "own: a timer in place of a device.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move each batch there, such as cuda:0.")
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0, help="Take no longer than so many seconds.")
    ] = 60.0,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report: one file, which asks no network."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of text, for programs.")
    ] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out paths and pictures, for others to read.")
    ] = False,
) -> None:
    """Say what keeps a training loop from its data, with the numbers behind it.

    Ends with 0 where nothing is wrong, 3 where a cause was found, 4 where none can be told, and 2
    for an input that cannot be used. A function that returns (loader, step) brings its own step.

    Modules of the current folder can be imported, as with python -m.

    \b
    Examples:
      stallscope diagnose ~/photos --step 0.1
      stallscope diagnose train:make_loader_and_step --html report.html
      stallscope diagnose train:make_loader_and_step --json --redact > verdict.json
    """  # noqa: D301
    with plainly():
        check_file("--html", html, _ENDINGS)
        sys.path.insert(0, str(Path.cwd()))  # also for what the user's module imports later
        from stallscope.experiments.diagnose import diagnose as find

        found = find(_target(target, step), device=device, budget_s=budget)
        say(_json(found, redact=redact) if as_json else _text(found, redact=redact))
        if html is not None:
            hint(f"written to {found.export(html, redact=redact)}")
        sys.exit(_ENDS.get(found.verdict.code, CAUSE))


def _target(spec: str, step_s: float | None) -> object:
    """The target, with a simulated step where one is asked for."""
    from stallscope.measure.simulated import simulated_step
    from stallscope.measure.target import target

    if step_s is None:
        return target(spec)
    found = target(spec)
    if found.step is not None:
        raise StallscopeError(f"--step {step_s}: {spec!r} brings a step of its own; leave it out")
    return target(found, step=simulated_step(step_s))


def _json(found: Any, *, redact: bool) -> str:
    from stallscope.views.findingsjson import as_json

    return as_json(found, redact=redact)


def _text(found: Any, *, redact: bool) -> str:
    if not redact:
        return str(found)
    from stallscope.views.redaction import redacted

    return str(redacted(found))
