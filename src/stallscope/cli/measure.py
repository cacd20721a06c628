"""Commands that measure: `record`, `diagnose`, `tune`, `storage` and so on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping  # noqa: TC003 - typer evaluates `Annotated`
from contextlib import AbstractContextManager  # noqa: TC003 - likewise
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import stallscope
from stallscope.cli import output
from stallscope.errors import StallscopeError
from stallscope.files import temporary_folder
from stallscope.units import BUDGET_S, WARMUP, count, said_by

Target = Annotated[str, typer.Argument(metavar="TARGET", help=f"{output.FORMS}.")]
Step = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Seconds of a training step. A timer stands for the step if the target has none.",
    ),
]
Budget = Annotated[float, typer.Option(metavar="S", min=0, help="Time limit in seconds.")]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a report into one HTML file."),
]


def _measure(
    verb: str,
    options: Mapping[str, Any],
    spec: str | None = None,
    step_s: float | None = None,
    *,
    check: Callable[[], None] | None = None,
    **show: Any,
) -> Any:
    """Measure and show the result, or the partial result after an error or Ctrl-C.

    `check` is called first: it refuses a file that cannot be written.
    """
    with output.report_errors():
        if check is not None:
            check()
        temporary_folder()  # before an import of torch's fails for want of it
        function = getattr(stallscope, verb)
        if spec is not None:
            _add_import_path(spec)
        with output.showing_partial(_PARTS.get(verb, verb), partial(output.show, **show)):
            targets = () if spec is None else (_target(spec, step_s),)
            result = function(*targets, **options)
        output.show(result, **show)
        return result


_PARTS: Final = {"record": "run", "diagnose": "diagnosis", "tune": "tuning"}
"""Attributes of an exception with the partial result; other verbs' have the name of the verb."""


def _add_import_path(spec: str) -> None:
    """Make modules of the current folder importable from now on, if the target is code.

    Called after stallscope's own imports: a file in the folder could hide one of its modules.
    """
    from stallscope.targets.target import names_code

    here = str(Path.cwd())
    if names_code(spec):
        sys.path.insert(0, here)
    elif here not in sys.path:  # spawned processes (also a forkserver) would search it first
        os.environ["PYTHONSAFEPATH"] = "1"


def _target(spec: str, step_s: float | None) -> object:
    from stallscope.targets.target import simulated_step, target
    from stallscope.verbs.diagnose.recorded import recorded_run

    run = recorded_run(spec)
    loaded = target(spec) if run is None else None
    if step_s is None:
        return loaded or run
    if loaded is None:
        raise StallscopeError(f"--step {step_s}: {spec} is a recorded run; leave --step out")
    if loaded.step is not None:
        raise StallscopeError(f"--step {step_s}: {spec!r} has its own step; leave --step out")
    return target(loaded, step=simulated_step(step_s))


def record(  # noqa: PLR0913 - the command's options
    target: Target,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the run in a new folder."),
    ] = None,
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of recorded batches, after the warm-up.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of warm-up batches.")
    ] = WARMUP,
    budget: Budget = BUDGET_S,
    *,
    as_json: output.AsJson = False,
) -> None:
    """Record a loader, and print where the time goes.

    Times every stage of every sample in the workers. The warm-up does not count.

    \b
    Examples:
      stallscope record sample
      stallscope record train:make_loader --batches 200 --out runs/before
    """  # noqa: D301
    save = None if out is None else lambda run: f"saved in {run.save(out)}"
    options = {"batches": batches, "warmup": warmup, "budget_s": budget}
    with output.report_errors(), output.own_folder(out):
        _measure("record", options, target, as_json=as_json, save=save)


def lines(
    target: Target,
    function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Class, method or function, such as MyTransform. Repeat for several. Default: "
            "your slowest functions.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Number of samples.")] = 32,
    budget: Budget = BUDGET_S,
    *,
    as_json: output.AsJson = False,
) -> None:
    """Time each line of your dataset, transforms and collate.

    Loads the samples one by one in this process, without workers.

    \b
    Examples:
      stallscope lines sample
      stallscope lines train:make_loader --function RandomMask --samples 64
    """  # noqa: D301
    options = {"functions": function, "samples": samples, "budget_s": budget}
    _measure("lines", options, target, as_json=as_json)


class Script(BaseException):
    """Exception that carries a script out of typer, which treats some exceptions specially."""

    def __init__(self, start: Callable[[], BaseException | None]) -> None:
        self.start = start


def run(  # noqa: PLR0913 - the command's options
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")
    ] = None,
    *,
    module: Annotated[
        bool, typer.Option("-m", help="Run SCRIPT as a module, like python -m.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="New folder for the run. Default: a folder in stallscope-runs."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of warm-up steps.")
    ] = WARMUP,
    html: Html = None,
) -> None:
    """Run a training script, record its loaders, give a verdict.

    The script itself does not change: it prints and ends as usual. Afterwards stallscope prints
    its verdict on stderr. stallscope show reads the run at any time, also after a kill.
    Under torchrun each rank has its own folder.

    \b
    Examples:
      stallscope run train.py --epochs 1
      stallscope run --out before -m package.train --lr 0.1
      torchrun --nproc-per-node 8 -m stallscope run train.py
      stallscope show before
      stallscope diagnose before
    """  # noqa: D301
    with output.report_errors(script=True):
        output.check_file("--html", html, (".html",))
        from stallscope.run.script import out_folder, run_script, watching

        report = html and html.absolute()  # a script may change the current folder

        def watch() -> AbstractContextManager[None]:
            folder = out_folder(script, out)  # raises first if there is no script
            output.check_folder(folder)
            done = partial(_recorded, folder, report)
            return watching(folder, name=Path(script).name, warmup=warmup, done=done)

        raise Script(partial(run_script, script, args or [], module=module, watching=watch))


def _recorded(folder: Path, html: Path | None, run: Any) -> None:
    from stallscope.run.script import children_of

    if run is None and any(folder.glob("rank*")):
        from stallscope.run.load import load

        run = load(folder)
    if run is None:
        output.print_note("nothing was recorded: no batch of a DataLoader was seen")
        return
    output.print_note(f"{count(run.all_steps.height, 'step')} recorded: stallscope show {folder}")
    if (children := children_of(folder)).exists():
        output.print_note(f"processes that it started: stallscope diagnose {children}")
    if folder.name.startswith("rank"):  # only all ranks together show who waits for whom
        output.print_note(f"the verdict of all ranks: stallscope diagnose {folder.parent}")
        return
    try:
        from stallscope.verbs.diagnose.recorded import diagnose_run
        from stallscope.views.diagnosis import brief

        diagnosis = diagnose_run(run)
        output.print_note(*brief(diagnosis))
        if html is not None:
            output.print_note(f"written to {diagnosis.export(html)}")
    except Exception as error:  # noqa: BLE001 - the run is saved, and the script's exit stays
        output.print_note(f"no verdict ({said_by(error)}): stallscope diagnose {folder}")


_CAUSE: Final = 3
_EXIT_CODES: Final = {"healthy": 0, "inconclusive": 4}
"""Exit codes of `diagnose`; 1 is an exception of the user's code, 2 an unusable input."""


def diagnose(  # noqa: PLR0913 - the command's options
    target: Target,
    *,
    step: Step = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device to copy each batch to, such as cuda:0."),
    ] = None,
    budget: Budget = BUDGET_S,
    html: Html = None,
    as_json: output.AsJson = False,
    redact: Annotated[
        bool, typer.Option("--redact", help=f"{output.REDACT} Reports have no charts.")
    ] = False,
) -> None:
    """Find out why a training loop waits for data.

    TARGET may also be the folder of a recorded run, or the folder with the runs of all ranks.

    Exit codes: 0 nothing is wrong, 2 wrong input, 3 a cause was found, 4 the cause is unclear.

    \b
    Examples:
      stallscope diagnose ~/photos --step 0.1
      stallscope diagnose train:make_loader_and_step --html report.html
      stallscope diagnose train:make_loader_and_step --json --redact > verdict.json
    """  # noqa: D301
    save = (
        None if html is None else lambda result: f"written to {result.export(html, redact=redact)}"
    )
    check = partial(output.check_file, "--html", html, (".html",))
    show = {"as_json": as_json, "redact": redact, "save": save}
    options = {"device": device, "budget_s": budget}
    diagnosis = _measure("diagnose", options, target, step, check=check, **show)
    sys.exit(_EXIT_CODES.get(diagnosis.verdict.code, _CAUSE))


def tune(
    target: Target,
    *,
    step: Step = None,
    budget: Budget = BUDGET_S,
    as_json: output.AsJson = False,
) -> None:
    """Find faster loader settings, such as the number of workers.

    Records the loop once and predicts the speedup of other settings. Then measures the best ones.

    \b
    Examples:
      stallscope tune ~/photos --step 0.1
      stallscope tune train:make_loader_and_step
    """  # noqa: D301
    _measure("tune", {"budget_s": budget}, target, step, as_json=as_json)


def storage(
    target: Target,
    *,
    step: Step = None,
    budget: Budget = BUDGET_S,
    as_json: output.AsJson = False,
    redact: output.Redact = False,
) -> None:
    """Measure how fast a loader's files can be read.

    Reads files from the disk and from the page cache, and writes nothing.

    \b
    Examples:
      stallscope storage ~/photos --step 0.1
      stallscope storage train:make_loader_and_step --json
    """  # noqa: D301
    _measure("storage", {"budget_s": budget}, target, step, as_json=as_json, redact=redact)


def layouts(  # noqa: PLR0913 - the command's options
    target: Target,
    *,
    step: Step = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=16, help="Largest number of samples to write.")
    ] = 256,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder on the data's disk for the temporary files."),
    ] = None,
    budget: Budget = BUDGET_S,
    as_json: output.AsJson = False,
    redact: output.Redact = False,
) -> None:
    """Compare files with tar shards, LMDB, HDF5, smaller images.

    Writes some samples into a temporary folder in each format, and measures how fast they are
    read.

    \b
    Examples:
      stallscope layouts ~/photos --step 0.1
      stallscope layouts train:make_loader_and_step --samples 2000 --folder /data
    """  # noqa: D301
    options = {"samples": samples, "budget_s": budget, "folder": folder}
    _measure("layouts", options, target, step, as_json=as_json, redact=redact)


def orders(
    target: Target,
    *,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples for the comparison of orders.")
    ] = 16,
    tolerance: Annotated[
        str,
        typer.Option(
            metavar="GRADE",
            help="Allowed difference of the data: 'identical', 'rounding' or '8-bit rounding'.",
        ),
    ] = "rounding",
    budget: Budget = BUDGET_S,
    as_json: output.AsJson = False,
) -> None:
    """Find a faster order of the transforms with the same data.

    Runs every order on the same samples and random numbers, and compares its data with the
    original's. Then measures the fastest orders in the loader's workers.

    \b
    Examples:
      stallscope orders sample
      stallscope orders train:make_loader --tolerance "8-bit rounding"
    """  # noqa: D301
    options = {"samples": samples, "tolerance": tolerance, "budget_s": budget}
    _measure("orders", options, target, as_json=as_json)


def flame(  # noqa: PLR0913 - the command's options
    pid: Annotated[int, typer.Argument(metavar="PID", help="Process id of a running training.")],
    *,
    seconds: Annotated[float, typer.Option(metavar="S", help="Sampling time in seconds.")] = 5.0,
    rate: Annotated[
        float, typer.Option(metavar="HZ", help="Samples per second and process.")
    ] = 50.0,
    native: Annotated[
        bool, typer.Option("--native", help="Sample compiled code, too. Slows the training down.")
    ] = False,
    idle: Annotated[bool, typer.Option("--idle", help="Sample waiting threads, too.")] = False,
    gil: Annotated[
        bool, typer.Option("--gil", help="Sample only threads that hold the GIL.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the flamegraph as .html, or as .json for speedscope."
        ),
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Sample the workers of a running training.

    Prints your functions with their share of the time. The training goes on. A training without
    workers is sampled in its main process.

    \b
    Examples:
      stallscope flame 4711
      stallscope flame 4711 --seconds 20 --out workers.html
    """  # noqa: D301
    save = None if out is None else lambda flame: f"written to {flame.export(out)}"
    check = partial(output.check_file, "--out", out, (".html", ".json"))
    options = {"pid": pid, "seconds": seconds, "rate_hz": rate}
    options |= {"native": native, "idle": idle, "gil": gil}
    _measure("flame", options, check=check, as_json=as_json, save=save)
