"""`stallscope run`: record an unchanged script from its first import of torch on.

The script runs in this process as under `python SCRIPT` or `python -m MODULE`: as `__main__`, with
its own arguments and import path. It ends with the same output, traceback and exit code. This
module imports nothing heavy before the script starts, so that variables that the script sets in
`os.environ` ahead of its own imports take effect.

Each launch has one folder, with one folder inside per rank. The ranks must agree on its name before
they can communicate: on one machine they share a launcher, so its start time is in the name.

Under torchrun each rank is a `stallscope run` of its own. A process that the script starts by
itself (with `torch.multiprocessing.spawn`, say) knows nothing of it, so its target is wrapped on
the way: it records once it iterates a DataLoader, into a folder `rank<n>`. The parent saves these
runs when it ends, so that a killed child loses nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import multiprocessing.process
import os
import runpy
import shutil
import sys
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from stallscope import errors
from stallscope.files import locked, system_errors_as
from stallscope.hooks.patches import Patches, forget_imports, once_imported
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from stallscope.run.result import Run


RUNS: Final = Path("stallscope-runs")
"""Default folder of runs."""
_OTHERS: Final = ("multiprocessing.", "concurrent.", "joblib.", "loky.", "torch.utils.data.")
"""Start of the module of a target that is no loop of the user's: pools, managers, workers."""


def run_script(
    script: str,
    args: Sequence[str],
    *,
    module: bool,
    watching: Callable[[], AbstractContextManager[object]],
) -> BaseException | None:
    """Run a script, or a module as `python -m`; return the exception that ended it.

    `watching` is entered just before the script's code runs and left after it, also in a process
    that the script forked. An error while leaving it goes to stderr and changes nothing.

    Raises:
        TargetError: there is no such script.
    """
    try:
        start = (_module if module else _file)(script, args)
    except errors.StallscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - the script does not compile
        return error.with_traceback(None)
    watch = watching()
    watch.__enter__()
    ended = None
    try:
        start()
    except BaseException as error:  # noqa: BLE001 - raised again by `end_with`
        trace = error.__traceback__
        ended = error.with_traceback(trace and trace.tb_next)  # behind our own frame
    left = False
    try:
        with held_back():
            watch.__exit__(None, None, None)
            left = True
    except BaseException as error:  # noqa: BLE001 - reported, unless it came too late to matter
        if not left:
            _tell(error)
    return ended


def end_with(error: BaseException | None) -> None:
    """End this process as the interpreter does after that exception.

    Call it where nothing catches the exception on its way out of the program. The traceback shows
    only the script's own frames.
    """
    if error is None:
        return
    trace, hook = error.__traceback__, sys.excepthook

    def show(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        hook(kind, error.with_traceback(trace), trace)

    if not isinstance(error, SystemExit):
        sys.excepthook = show
    raise error


def _file(script: str, args: Sequence[str]) -> Callable[[], object]:
    path = Path.cwd() / script
    if not path.exists():
        raise errors.TargetError(
            f"there is no script {script!r}: give its path, or -m with a module's name"
        )
    if path.is_char_device():  # a zero device would be read for ever
        raise errors.TargetError(f"{script!r} is a device: give the path of a Python script")
    with system_errors_as(errors.TargetError, f"script {script!r} cannot be read"):
        source = path.read_bytes()
    code = compile(source, path, "exec", dont_inherit=True)
    names = _become_main([script, *args])
    names["__file__"] = str(path)
    sys.path[0] = str(path.resolve().parent)
    return partial(exec, code, names)


def _module(name: str, args: Sequence[str]) -> Callable[[], object]:
    """Prepare a module; Python itself reports other errors in its name."""
    sys.path[0] = str(Path.cwd())
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # no name, or the name of a module that was never imported
        spec = None
    if spec is None:
        raise errors.TargetError(
            f"there is no module {name!r} (no {top!r} in {Path.cwd()} nor installed): give a "
            "module's dotted name, or without -m the path of a script"
        )
    _become_main(["-m", *args])
    return partial(runpy._run_module_as_main, name)  # type: ignore[attr-defined]  # noqa: SLF001


def _become_main(argv: list[str]) -> dict[str, Any]:
    """Replace our `__main__` by a new one; return its globals."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["__mp_main__"] = main  # by this name spawned processes send its classes back
    sys.argv = argv
    return vars(main)


def _tell(error: BaseException, means: str = "the run may not be saved completely") -> None:
    """Report an error and its consequence on stderr, if stderr still exists."""
    if sys.stderr is None:  # `print` would take stdout
        return
    message = str(error) if isinstance(error, errors.StallscopeError) else means
    with suppress(Exception):
        if not isinstance(error, errors.StallscopeError | KeyboardInterrupt):  # a bug of stallscope
            traceback.print_exception(error, chain=False)
        print(f"stallscope: {message}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def watching(
    folder: Path, *, name: str, warmup: int, done: Callable[[Run | None], None]
) -> Iterator[None]:
    """Record every DataLoader of this process while the block runs, and save the run at its end.

    Imports nothing heavy before the script imports torch. The logs are in the folder from the
    start, so that `ss.load` can read them even if the process is killed. `done` gets the saved run;
    None where no loader was iterated.

    Raises:
        WorkspaceError: the folder cannot be written, or has no room.
    """
    logs, pid = folder / "logs", os.getpid()
    with system_errors_as(errors.WorkspaceError, f"no run can be written into {folder}"):
        logs.mkdir(parents=True, exist_ok=True)
    ends = ExitStack()
    with locked(folder) as is_ours:
        if not is_ours:
            raise errors.WorkspaceError(f"another process saves into {folder}: give a new folder")
        try:
            with (
                _recorded_children(children_of(folder), name, warmup) as children,
                once_imported("torch", lambda: _begin(ends, logs, name, warmup)),
            ):
                yield
        finally:
            if os.getpid() == pid:  # a forked child that gets here must not end its parent's
                ends.close()
                run = _saved(folder)
                _save_children(children_of(folder), children, folder if run is None else None)
                done(run)


def children_of(folder: Path) -> Path:
    """Return the folder for processes that a script starts, beside that of its own run."""
    return folder.with_name(f"{folder.name}-children")


def _save_children(place: Path, children: list[Any], instead: Path | None) -> None:
    """Save the runs of processes that the script started; while one still runs, its logs stay.

    `instead` is their new place where the script itself iterated no DataLoader.
    """
    for number, process in enumerate(children):
        folder = place / f"rank{number}"
        if folder.exists() and not process.is_alive():
            _saved(folder)
    if instead is not None and place.exists() and not instead.exists():
        place.rename(instead)


def _begin(ends: ExitStack, logs: Path, name: str, warmup: int, number: int = 0) -> None:
    """Record until `ends`; an error does not stop the script from importing torch.

    `number` of the process is its rank, where no launcher has given it one.
    """
    try:
        from stallscope.files import log_capacity
        from stallscope.hooks.probe import Probe
        from stallscope.hooks.recording_folder import LogPlace, RecordingInfo
        from stallscope.machine import rank
        from stallscope.run.resource_sampler import Sampler

        place = LogPlace(logs, log_capacity(logs), samples_stacks=True)
        probe = ends.enter_context(Probe(place, None))
        with place.failures.within("what the run says of itself"):
            about = RecordingInfo(name=name, warmup=warmup, rank=rank(number))
            probe.marks.say(about=vars(about))
        ends.enter_context(Sampler(place))
    except Exception as error:  # noqa: BLE001 - the script goes on without us
        _tell(error, "this script is not recorded")


def _saved(folder: Path) -> Run | None:
    """Save the run and return it; None where nothing was recorded.

    Raises:
        WorkspaceError: the script has deleted the folder.
    """
    logs = folder / "logs"
    if not logs.is_dir():
        raise errors.WorkspaceError(
            f"{folder} was deleted while the script ran, and the recording with it: give --out a "
            "folder that the script leaves alone"
        )
    run = None
    if any(logs.glob("*.events")):
        from stallscope.hooks.recording_folder import LogPlace
        from stallscope.run.load import collect

        collected = collect(LogPlace(logs, 0)).run
        if collected.all_steps.height or collected.all_spans.height:
            run = collected
            run.save(folder)
    shutil.rmtree(logs, ignore_errors=True)
    if run is None:
        with suppress(OSError):  # the script may have put files of its own there
            folder.rmdir()
    return run


def run_recorded(
    target: Callable[..., Any], about: tuple[Path, str, int, int], /, *args: Any, **named: Any
) -> Any:
    """Run the target of a process, and record the process from its first DataLoader on.

    `about` has the folder of the logs, the name of the run, its warm-up, and the number of the
    process: its rank, where torch.distributed does not know better.
    """
    forget_imports()  # a forked child has those that its parent waits for
    ends, patches = ExitStack(), Patches()
    with once_imported("torch", lambda: _at_first_loader(patches, ends, about)):
        try:
            return target(*args, **named)
        finally:
            patches.undo()
            with suppress(Exception):
                ends.close()


def _at_first_loader(patches: Patches, ends: ExitStack, about: tuple[Path, str, int, int]) -> None:
    """Record from the first DataLoader on: a process without one costs nothing."""
    with suppress(Exception):
        from torch.utils.data import DataLoader

        original = DataLoader.__iter__

        @functools.wraps(original)
        def first(loader: Any) -> Any:
            patches.undo()
            with suppress(Exception):
                about[0].mkdir(parents=True)  # another thread may be first
                _begin(ends, *about)
            return DataLoader.__iter__(loader)

        patches.put(DataLoader, "__iter__", first)


@contextmanager
def _recorded_children(folder: Path, name: str, warmup: int) -> Iterator[list[Any]]:
    """Record the processes that this process starts in the block; yield a list that gets them.

    The n-th process, if it iterates a DataLoader, has its logs in `rank<n>/logs`.
    """
    started: list[Any] = []
    numbers, pid, patches = itertools.count(), os.getpid(), Patches()
    start = multiprocessing.process.BaseProcess.start

    @functools.wraps(start)
    def recorded(process: Any) -> None:
        target = None
        with suppress(Exception):  # a class of the user's: it starts all the same
            is_users = not str(process._target.__module__).startswith(_OTHERS)  # noqa: SLF001
            # Of the user's functions, those in a process that may start workers
            target = process._target if is_users and not process.daemon else None  # noqa: SLF001
        if target is None or os.getpid() != pid:
            start(process)
            return
        number = next(numbers)
        about = folder / f"rank{number}" / "logs", name, warmup, number
        process._target = partial(run_recorded, target, about)  # noqa: SLF001 - no other way in
        try:
            start(process)
        except BaseException:
            process._target = target  # noqa: SLF001
            raise
        started.append(process)

    patches.put(multiprocessing.process.BaseProcess, "start", recorded)
    try:
        yield started
    finally:
        patches.undo()


def out_folder(script: str, out: Path | None) -> Path:
    """Return the folder of this process's run; absolute, as a script may change the current one.

    A single process gets `out`, or else a new `stallscope-runs/<script>-<time>`, created at once,
    so that two processes of the same second get two folders. One of several ranks (`RANK` and
    `WORLD_SIZE` are set, as by torchrun) gets `rank<r>` inside of that folder, with the time of the
    launch. When torchrun starts the ranks again, `-restart<n>` follows.

    Raises:
        ArgumentError: the ranks cannot agree on a name.
        RunFormatError: the folder cannot be created.
    """
    name = Path(os.path.abspath(script)).name.removesuffix(".py")  # noqa: PTH100 - ends ".."
    if _number("WORLD_SIZE") < 2:  # noqa: PLR2004
        return Path.cwd() / (out or _new(RUNS / f"{name}-{_stamp(time.time())}"))
    folder = Path.cwd() / (out or RUNS / f"{name}-{_launch()}")
    if again := _number("TORCHELASTIC_RESTART_COUNT"):
        folder = folder.with_name(f"{folder.name}-restart{again}")
    return folder / f"rank{_number('RANK')}"


def _new(folder: Path, number: int = 1) -> Path:
    """Create a folder of that name, or with `-2`, `-3` and so on where it exists."""
    name = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
    try:
        name.mkdir(parents=True)
    except FileExistsError:
        return _new(folder, number + 1)
    except OSError as error:
        raise errors.RunFormatError(
            f"no folder for the run can be created in {Path.cwd() / RUNS} ({error.strerror}): "
            "choose a folder with --out"
        ) from error
    return name


def _launch() -> str:
    """Return a name that all ranks of this launch share, and no other launch has."""
    if _number("LOCAL_WORLD_SIZE") in (0, _number("WORLD_SIZE")):  # all on this machine
        import psutil  # takes milliseconds: only where there are ranks

        with suppress(psutil.Error):
            return _stamp(psutil.Process(os.getppid()).create_time())
    elif (job := os.environ.get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return job.replace(os.sep, "-")
    raise errors.ArgumentError(
        f"these {_number('WORLD_SIZE')} ranks cannot agree on a folder: give all of them "
        "the same new folder with --out, or give torchrun an --rdzv-id"
    )


def _stamp(seconds: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _number(name: str) -> int:
    """Return a number from the launcher's environment variables; 0 where unset or no number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0
