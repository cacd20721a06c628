"""The command that looks for a faster pipeline with the same data: `orders`."""

# `Annotated` is read while the program runs: no `from __future__ import annotations` here.
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stallscope.cli.output import FORMS, hint, plainly, say
from stallscope.errors import StallscopeError


def orders(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{FORMS}.")],
    *,
    alternative: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FACTORY",
            help="A rewrite of an op, such as RandomMask=train:FasterMask: a class or a function "
            "that makes it, called without arguments. May be given again.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples on which orders are compared.")
    ] = 16,
    budget: Annotated[
        float, typer.Option(metavar="S", min=0, help="Stop after so many seconds.")
    ] = 60.0,
    code: Annotated[
        bool, typer.Option("--code", help="Print the code of the best pipeline, and only that.")
    ] = False,
) -> None:
    """Look for an order of the transforms that gives the same data in less time.

    Every order's data is compared with that of the pipeline as it is, on the same random numbers.
    The fastest ones are measured in the loader's workers.

    Modules of the current folder can be imported, as with python -m.

    \b
    Examples:
      stallscope orders sample
      stallscope orders train:make_loader --alternative RandomMask=train:FasterMask
      stallscope orders train:make_loader --code
    """  # noqa: D301
    with plainly():
        sys.path.insert(0, str(Path.cwd()))  # also for what the user's module imports later
        from stallscope.experiments.orders import orders as compare

        found = compare(
            target,
            alternatives=_alternatives(alternative or []) or None,
            samples=samples,
            budget_s=budget,
        )
        if code:
            _say_code(found)
        else:
            say(found)


def _say_code(found: Any) -> None:
    """The code of the best pipeline; a hint where there is none."""
    if found.best is None:
        hint(str(found).splitlines()[0])
        return
    codes = dict(found.trials.select("trial", "code").iter_rows())
    if codes[found.best["trial"]]:
        say(codes[found.best["trial"]])
    else:
        hint(f"no code for: {found.best['change']}. In Python, .apply(loader) makes this loader")


def _alternatives(given: list[str]) -> dict[str, list[Any]]:
    """What replaces each op; several may be given for one."""
    found: dict[str, list[Any]] = {}
    for name, op in map(_alternative, given):
        found.setdefault(name, []).append(op)
    return found


def _alternative(given: str) -> tuple[str, Any]:
    """The op that is replaced, and what replaces it."""
    from stallscope.measure import factory

    name, equals, text = given.partition("=")
    if not (name and equals and factory.is_factory(text)):
        raise StallscopeError(
            f"--alternative {given}: give NAME=package.module:factory, such as "
            "RandomMask=train:FasterMask"
        )
    return name, factory.call(factory.find(text), text)
