"""Commands that measure: `record`, `diagnose`, `tune`, `storage` and their like."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable  # noqa: TC003 - `Annotated` is read while it runs
from contextlib import AbstractContextManager  # noqa: TC003 - likewise
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from stallscope.cli.output import (
    FORMS,
    REDACT,
    AsJson,
    Redact,
    check_file,
    check_folder,
    kept_until_then,
    new_folder,
    print_note,
    print_result,
    print_then,
    report_errors,
    shown,
)
from stallscope.errors import StallscopeError
from stallscope.units import BUDGET_S, count, said_by

Target = Annotated[str, typer.Argument(metavar="TARGET", help=f"{FORMS}.")]
Step = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="A simulated training step of S seconds, for a target without a step of its own: "
        "a timer in place of a device.",
    ),
]
Budget = Annotated[float, typer.Option(metavar="S", min=0, help="Take at most S seconds.")]


class Script(BaseException):
    """Carries a script out of typer, which has a use of its own for some exceptions."""

    def __init__(self, start: Callable[[], BaseException | None]) -> None:
        self.start = start


def _let_import(*targets: str) -> None:
    """Let modules of the current folder be imported from now on, where a target is code.

    Not before our own are: a file of the folder, which may be anybody's, may have the name of one.
    """
    from stallscope.targets.factory import names_code

    if any(map(names_code, targets)):
        sys.path.insert(0, str(Path.cwd()))
    else:  # processes that Python starts anew (spawn, forkserver) look there first of themselves
        os.environ["PYTHONSAFEPATH"] = "1"


def record(  # noqa: PLR0913 - the command's options
    target: Target,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run in a new folder, for stallscope.load."),
    ] = None,
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches in the steady state.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Batches to skip before it, as warm-up.")
    ] = 4,
    budget: Budget = BUDGET_S,
    *,
    as_json: AsJson = False,
) -> None:
    """Record a loader, and print where the time goes.

    Measures what the workers do with every sample; the table shows the steady state.

    \b
    Examples:
      stallscope record sample
      stallscope record train:make_loader --batches 200 --out runs/before
    """  # noqa: D301
    with report_errors(), new_folder(out):
        from stallscope.run.record import record as record_run

        _let_import(target)

        def keep(run: Any) -> None:
            save = None if out is None else lambda: f"saved in {run.save(out)}"
            print_then(shown(run, as_json=as_json), save)

        with kept_until_then("run", keep):
            run = record_run(target, batches=batches, warmup=warmup, budget_s=budget)
        keep(run)


def lines(
    target: Target,
    function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A class, a method or a function, such as MyTransform; may be repeated. Default: "
            "those of your own that take the most time.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Different samples that are made.")
    ] = 32,
    budget: Budget = BUDGET_S,
    *,
    as_json: AsJson = False,
) -> None:
    """Time the lines of a dataset, its transforms and its collate function.

    Makes samples in this process, one after the other; the listing shows the share of each line.

    \b
    Examples:
      stallscope lines sample
      stallscope lines train:make_loader --function RandomMask --samples 64
    """  # noqa: D301
    with report_errors():
        from stallscope.lines.lines import lines as time_lines

        _let_import(target)

        def keep(found: Any) -> None:
            print_result(shown(found, as_json=as_json))

        with kept_until_then("lines", keep):
            found = time_lines(target, functions=function or None, samples=samples, budget_s=budget)
        keep(found)


def run(  # noqa: PLR0913 - the command's options
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
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report: one file that needs no network."),
    ] = None,
) -> None:
    """Run a script as it is, record every DataLoader that it iterates, and say what it waited for.

    The script behaves, prints and ends as ever; the verdict follows on stderr. What was recorded
    can be looked at while it runs, and also after it was killed. Under torchrun there is one run
    folder a rank.

    \b
    Examples:
      stallscope run train.py --epochs 1
      stallscope run --out before -m package.train --lr 0.1
      torchrun --nproc-per-node 8 -m stallscope run train.py
      stallscope show before
      stallscope diagnose before
    """  # noqa: D301
    with report_errors(script=True):
        check_file("--html", html, (".html",))
        from stallscope.run.script import out_folder, run_script, watching

        report = html and html.absolute()  # a script may change the current folder

        def watch() -> AbstractContextManager[None]:
            folder = out_folder(script, out)  # not before it is known that there is a script
            check_folder(folder)
            done = partial(_recorded, folder, report)
            return watching(folder, name=Path(script).name, warmup=warmup, done=done)

        raise Script(partial(run_script, script, args or [], module=module, watching=watch))


def _recorded(folder: Path, html: Path | None, found: Any) -> None:
    """Say where the run lies, and what it shows."""
    if found is None:
        print_note("the script iterated no DataLoader: nothing was recorded")
        return
    print_note(f"{count(found.all_steps.height, 'step')} recorded: stallscope show {folder}")
    if folder.name.startswith("rank"):  # one of several: together they say who waits for whom
        print_note(f"the verdict of all ranks: stallscope diagnose {folder.parent}")
        return
    try:
        from stallscope.diagnose.recorded import diagnose_run
        from stallscope.views.diagnosis import brief

        diagnosis = diagnose_run(found)
        print_note(*brief(diagnosis))
        if html is not None:
            print_note(f"written to {diagnosis.export(html)}")
    except Exception as error:  # noqa: BLE001 - the run is saved, and the script ends as it did
        print_note(f"no verdict ({said_by(error)}): stallscope diagnose {folder}")


_CAUSE: Final = 3
_ENDS: Final = {"healthy": 0, "inconclusive": 4}
"""How the command ends; 1 is an exception of the user's code, 2 an input that cannot be used."""


def diagnose(  # noqa: PLR0913 - the command's options
    target: Target,
    *,
    step: Step = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move each batch there, such as cuda:0.")
    ] = None,
    budget: Budget = BUDGET_S,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report: one file that needs no network."),
    ] = None,
    as_json: AsJson = False,
    redact: Annotated[
        bool, typer.Option("--redact", help=f"{REDACT} A report has no pictures then.")
    ] = False,
) -> None:
    """Find out why a training loop waits for data, with the numbers behind the verdict.

    TARGET may also be the folder of a recorded run, or of the runs of all ranks.

    Exits with 0 if nothing is wrong, 3 if a cause was found, 4 if the cause is unclear, and 2 for
    an input that cannot be used. A function that returns (loader, step) brings its own step.

    \b
    Examples:
      stallscope diagnose ~/photos --step 0.1
      stallscope diagnose train:make_loader_and_step --html report.html
      stallscope diagnose train:make_loader_and_step --json --redact > verdict.json
    """  # noqa: D301
    with report_errors():
        check_file("--html", html, (".html",))
        from stallscope.diagnose.diagnose import diagnose as find

        _let_import(target)

        def keep(found: Any) -> None:
            export = partial(found.export, redact=redact)
            save = None if html is None else lambda: f"written to {export(html)}"
            print_then(shown(found, as_json=as_json, redact=redact), save)

        with kept_until_then("diagnosis", keep):
            found = find(_target(target, step), device=device, budget_s=budget)
        keep(found)
        sys.exit(_ENDS.get(found.verdict.code, _CAUSE))


def _target(spec: str, step_s: float | None) -> object:
    """The target, with a simulated step where one is asked for."""
    from stallscope.diagnose.recorded import recorded_run
    from stallscope.targets.target import simulated_step, target

    if (run := recorded_run(spec)) is not None:
        if step_s is not None:
            raise StallscopeError(f"--step {step_s}: {spec} is a recorded run; leave it out")
        return run
    if step_s is None:
        return target(spec)
    found = target(spec)
    if found.step is not None:
        raise StallscopeError(f"--step {step_s}: {spec!r} brings a step of its own; leave it out")
    return target(found, step=simulated_step(step_s))


def tune(
    target: Target,
    *,
    step: Step = None,
    budget: Budget = BUDGET_S,
    apply_code: Annotated[
        bool,
        typer.Option("--apply-code", help="Print the line with the best setting, and only that."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict what other settings of a loader would give, and measure the few that matter.

    Records the loop once; the best settings are then measured in turn with the loader as it is.

    \b
    Examples:
      stallscope tune ~/photos --step 0.1
      stallscope tune train:make_loader_and_step
      stallscope tune train:make_loader_and_step --apply-code
    """  # noqa: D301
    with report_errors():
        from stallscope.tune.tune import tune as search

        _let_import(target)

        def keep(found: Any) -> None:
            if apply_code and not found.code:
                print_note(str(found).splitlines()[0])
            elif apply_code:
                print_result(found.code)
            else:
                print_result(shown(found, as_json=as_json))

        with kept_until_then("tuning", keep):
            found = search(_target(target, step), budget_s=budget)
        keep(found)


def storage(
    target: Target,
    *,
    step: Step = None,
    budget: Budget = BUDGET_S,
    as_json: AsJson = False,
    redact: Redact = False,
) -> None:
    """Measure what the storage under a loader's files gives, beside what the loader asks for.

    Only reads. For cold readings the kernel is asked to let the pieces go that are read next.

    \b
    Examples:
      stallscope storage ~/photos --step 0.1
      stallscope storage train:make_loader_and_step --json
    """  # noqa: D301
    with report_errors():
        from stallscope.storage.storage import storage as measure

        _let_import(target)

        def keep(found: Any) -> None:
            print_result(shown(found, as_json=as_json, redact=redact))

        with kept_until_then("storage", keep):
            found = measure(_target(target, step), budget_s=budget)
        keep(found)


def layouts(  # noqa: PLR0913 - the command's options
    target: Target,
    *,
    step: Step = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=16, help="Samples that are written, at most.")
    ] = 256,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the temporary folder is made: the data's disk."),
    ] = None,
    budget: Budget = BUDGET_S,
    as_json: AsJson = False,
    redact: Redact = False,
) -> None:
    """Compare the data as files, tar shards, LMDB and HDF5, and with images made smaller.

    Some samples are written into a temporary folder, and read by each layout's own library.

    \b
    Examples:
      stallscope layouts ~/photos --step 0.1
      stallscope layouts train:make_loader_and_step --samples 2000 --folder /data
    """  # noqa: D301
    with report_errors():
        from stallscope.storage.layouts import layouts as compare

        _let_import(target)

        def keep(found: Any) -> None:
            print_result(shown(found, as_json=as_json, redact=redact))

        with kept_until_then("layouts", keep):
            found = compare(_target(target, step), samples=samples, budget_s=budget, folder=folder)
        keep(found)


def orders(  # noqa: PLR0913 - the command's options
    target: Target,
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
    tolerance: Annotated[
        str,
        typer.Option(
            metavar="GRADE",
            help="How far data may be from the original's: 'identical', 'rounding' or "
            "'8-bit rounding'.",
        ),
    ] = "rounding",
    budget: Budget = BUDGET_S,
    code: Annotated[
        bool, typer.Option("--code", help="Print the code of the best pipeline, and only that.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search for an order of the transforms that gives the same data in less time.

    Compares the data of every order with that of the pipeline as it is, on the same random
    numbers, and measures the fastest orders in the loader's workers.

    \b
    Examples:
      stallscope orders sample
      stallscope orders train:make_loader --alternative RandomMask=train:FasterMask
      stallscope orders train:make_loader --code
    """  # noqa: D301
    with report_errors():
        from stallscope.orders.orders import orders as compare

        _let_import(target, *(one.partition("=")[2] for one in alternative or ()))
        given = _alternatives(alternative or []) or None

        def show(found: Any) -> None:
            if code:  # stdout is for code alone
                print_note(str(found))
            else:
                print_result(shown(found, as_json=as_json))

        with kept_until_then("orders", show):
            found = compare(
                target, alternatives=given, samples=samples, tolerance=tolerance, budget_s=budget
            )
        codes = dict(found.trials.select("trial", "code").iter_rows())
        best = found.best()
        if not code:
            show(found)
        elif best is None:
            print_note(str(found).splitlines()[0])
        elif codes[best["trial"]]:
            print_result(codes[best["trial"]])
        else:
            print_note(
                f"no code for: {best['change']}. In Python, .apply(loader) makes this loader"
            )


def _alternatives(given: list[str]) -> dict[str, list[Any]]:
    """What replaces each op; several may be given for one."""
    from stallscope.targets import factory

    found: dict[str, list[Any]] = {}
    for option in given:
        name, equals, text = option.partition("=")
        if not (name and equals and factory.is_factory(text)):
            raise StallscopeError(
                f"--alternative {option}: give NAME=package.module:factory, such as "
                "RandomMask=train:FasterMask"
            )
        found.setdefault(name, []).append(factory.call(factory.find(text), text))
    return found


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
    as_json: AsJson = False,
) -> None:
    """Sample the DataLoader workers of a training that runs, and print where their time goes.

    Leaves the training running as it is. Without workers, samples the process itself.

    \b
    Examples:
      stallscope flame 4711
      stallscope flame 4711 --seconds 20 --out workers.html
    """  # noqa: D301
    with report_errors():
        check_file("--out", out, (".html", ".svg", ".json"))
        from stallscope.flame.flame import flame as sampled

        how: dict[str, Any] = {"rate_hz": rate, "native": native, "idle": idle, "gil": gil}

        def keep(seen: Any) -> None:
            save = None if out is None else lambda: f"written to {seen.export(out)}"
            print_then(shown(seen, as_json=as_json), save)

        with kept_until_then("flame", keep):
            seen = sampled(pid=pid, seconds=seconds, **how)
        keep(seen)
