"""`stallscope run`: a script that knows nothing of it, recorded from its first import of torch on.

It runs in this process as `python SCRIPT` or `python -m MODULE` would run it: as `__main__`, with
its own arguments and import path, and it ends as ever, with the same output, traceback and exit
code. Nothing heavy is imported before it starts, since what it sets in `os.environ` ahead of its
own imports must still have its effect.

The run goes into one folder a launch, in it one a rank. The ranks must name that folder alike
before they have met: on one machine they have a launcher in common, so its birth is in the name. It
is the nearest ancestor that is no rank itself (it was started without `RANK`), because each rank
may have a shell or another wrapper of its own in between.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import runpy
import shutil
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import (
    ArgumentError,
    RunFormatError,
    StallscopeError,
    TargetError,
    WorkspaceError,
)
from stallscope.files import locked
from stallscope.hooks.patches import once_imported
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from stallscope.run.result import Run


RUNS: Final = Path("stallscope-runs")
"""Where runs go that were given no folder."""


def run_script(
    script: str,
    args: Sequence[str],
    *,
    module: bool,
    watching: Callable[[], AbstractContextManager[object]],
) -> BaseException | None:
    """Run a script, or a folder or zip file with a `__main__.py`, or a module.

    Args:
        script: its path, or with `module` its dotted name.
        args: its arguments.
        module: run it as `python -m` does.
        watching: entered just before the script's code runs and left after it, also in a process
            that the script forked. What goes wrong in leaving it is told on stderr and changes
            nothing.

    Returns:
        What the script ended with, for `end_with`; None if it came to its last line.

    Raises:
        TargetError: there is no such script.
    """
    try:
        start = (_module if module else _file)(script, args)
    except StallscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - it does not compile
        return error.with_traceback(None)
    watch = watching()
    watch.__enter__()
    ended = None
    try:
        start()
    except BaseException as error:  # noqa: BLE001 - raised again by `end_with`
        trace = error.__traceback__
        ended = error.with_traceback(trace and trace.tb_next)  # behind our own frame
    _leave(watch)
    return ended


def end_with(error: BaseException | None) -> None:
    """Let this process end as the interpreter ends one after that exception.

    To be called where nothing catches it on its way out of the program. It is shown as if it had
    not passed any frame but the script's own.
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
    """Make everything ready for a file, or for a folder or a zip file."""
    path = Path.cwd() / script
    if not path.exists():
        raise TargetError(
            f"there is no script {script!r}: give the path of one, or -m with a module's name"
        )
    if pkgutil.get_importer(str(path)) is not None:  # a folder or a zip file
        _become_main([script, *args])
        if not _is_safe():
            del sys.path[0]
        sys.path.insert(0, str(path))
        return partial(runpy._run_module_as_main, "__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        source = path.read_bytes()
    except OSError as error:
        raise TargetError(f"script {script!r} cannot be read ({error.strerror})") from error
    code = compile(source, path, "exec", dont_inherit=True)
    names = _become_main([script, *args])
    names["__file__"] = str(path)
    if not _is_safe():
        sys.path[0] = str(path.resolve().parent)
    return partial(exec, code, names)


def _module(name: str, args: Sequence[str]) -> Callable[[], object]:
    """Make everything ready for a module; what else can be wrong with its name, Python tells."""
    if not _is_safe():
        sys.path[0] = str(Path.cwd())
    top = name.partition(".")[0]
    try:
        found = importlib.util.find_spec(top)
    except ValueError:  # no name, or one of a module that was never imported
        found = None
    if found is None:
        raise TargetError(
            f"there is no module {name!r} (no {top!r} in {Path.cwd()} nor installed): give a "
            "module's dotted name, or without -m the path of a script"
        )
    _become_main(["-m", *args])
    return partial(runpy._run_module_as_main, name)  # type: ignore[attr-defined]  # noqa: SLF001


def _become_main(argv: list[str]) -> dict[str, Any]:
    """Put a new `__main__` in the place of ours; its globals."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = argv
    return vars(main)


def _is_safe() -> bool:
    """Return whether Python keeps the script's folder out of the import path (-P and -I)."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _leave(watch: AbstractContextManager[object]) -> None:
    """End the watching; whatever happens here, the script's own end stays what it was."""
    left = False
    try:
        with held_back():
            watch.__exit__(None, None, None)
            left = True
    except BaseException as error:  # noqa: BLE001 - told, unless it came too late to matter
        if not left:
            _tell(error)


def _tell(error: BaseException, means: str = "the run may not be saved whole") -> None:
    """Say on stderr, if there still is one, what went wrong, and what that means."""
    if sys.stderr is None:  # `print` would take stdout
        return
    said = str(error) if isinstance(error, StallscopeError) else means
    with suppress(Exception):
        if not isinstance(error, StallscopeError | KeyboardInterrupt):  # a mistake of ours
            traceback.print_exception(error, chain=False)
        print(f"stallscope: {said}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def watching(
    folder: Path, *, name: str, warmup: int, done: Callable[[Run | None], None]
) -> Iterator[None]:
    """Record every DataLoader of this process while the block runs, and save the run at its end.

    Nothing heavy is imported before the script imports torch. What was recorded lies in the folder
    all the time, so that it can be loaded also when the process is killed.

    Args:
        folder: for the run; made if need be.
        name: what is recorded, in the user's words.
        warmup: steps at the start that are kept apart.
        done: gets the run when it is saved; None where no loader was iterated.

    Raises:
        WorkspaceError: the folder cannot be written, or has no room.
    """
    logs, pid = folder / "logs", os.getpid()
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkspaceError(f"no run can be written into {folder} ({error.strerror})") from error
    begun: list[Any] = []
    with locked(folder) as is_ours:
        if not is_ours:
            raise WorkspaceError(f"another process saves into {folder}: give a new folder")
        try:
            with once_imported("torch", lambda: _begin(begun, logs, name, warmup)):
                yield
        finally:
            if os.getpid() == pid:  # a forked child that gets here must not end its parent's
                for recorder in reversed(begun):
                    recorder.__exit__(None, None, None)
                done(_saved(folder, logs))


def _begin(begun: list[Any], logs: Path, name: str, warmup: int) -> None:
    """Record into this folder from now on; the script imports torch whatever comes of that.

    Args:
        begun: gets the recorders that have to be left at the end.
        logs: the folder.
        name: what is recorded.
        warmup: steps at the start that are kept apart.
    """
    try:
        from stallscope.files import log_capacity
        from stallscope.hooks.event_log import RecordingInfo
        from stallscope.hooks.log_place import LogPlace
        from stallscope.hooks.probe import Probe
        from stallscope.run.resource_sampler import Sampler

        place = LogPlace(logs, log_capacity(logs, 8))
        probe, sampler = Probe(place, None), Sampler(place)
        probe.__enter__()
        begun.append(probe)
        with place.failures.within("what the run says of itself"):
            RecordingInfo(name=name, warmup=warmup).write_to(probe.marks)
        sampler.__enter__()
        begun.append(sampler)
    except Exception as error:  # noqa: BLE001 - the script goes on without us
        _tell(error, "this script is not recorded")


def _saved(folder: Path, logs: Path) -> Run | None:
    """Save the run and return it; None where there is none."""
    run = None
    if any(logs.glob("*.events")):
        from stallscope.hooks.log_place import LogPlace
        from stallscope.run.read_logs import collect

        found = collect(LogPlace(logs, 0)).run
        if found.all_steps.height or found.all_spans.height:
            run = found
            run.save(folder)
    shutil.rmtree(logs, ignore_errors=True)
    if run is None:
        with suppress(OSError):  # the script may have put something of its own there
            folder.rmdir()
    return run


def out_folder(script: str, out: Path | None) -> Path:
    """Return the folder of this process's run; absolute, as a script may change the current one.

    One process alone: `out`, or else a new `stallscope-runs/<script>-<time>`, made at once, so that
    two that start in the same second have two. One of several ranks (`RANK` and `WORLD_SIZE` are
    set, as by torchrun): `rank<r>` inside of that folder; the time is that of the launch. When
    torchrun starts the ranks again, `-restart<n>` follows.

    Args:
        script: path or module name of the script.
        out: the folder that the user asked for.

    Raises:
        ArgumentError: the ranks have nothing in common to name the folder by.
        RunFormatError: the folder cannot be made.
    """
    name = Path(os.path.abspath(script)).name.removesuffix(".py")  # noqa: PTH100 - ends ".."
    if _number("WORLD_SIZE") < 2:  # noqa: PLR2004
        return Path.cwd() / (out or _new(RUNS / f"{name}-{_stamp(time.time())}"))
    folder = Path.cwd() / (out or RUNS / f"{name}-{_launch()}")
    if again := _number("TORCHELASTIC_RESTART_COUNT"):
        folder = folder.with_name(f"{folder.name}-restart{again}")
    return folder / f"rank{_number('RANK')}"


def _new(folder: Path, number: int = 1) -> Path:
    """Make a folder of that name, or where it is taken of `-2`, `-3` and so on."""
    name = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
    try:
        name.mkdir(parents=True)
    except FileExistsError:
        return _new(folder, number + 1)
    except OSError as error:
        raise RunFormatError(
            f"no folder for the run can be made in {Path.cwd() / RUNS} ({error.strerror}): give "
            "one with --out"
        ) from error
    return name


def _launch() -> str:
    """Name this launch by what all of its ranks know, and those of other launches do not."""
    if _number("LOCAL_WORLD_SIZE") in (0, _number("WORLD_SIZE")):  # all on this machine
        born_s = _launcher_born_s()
        if born_s is not None:
            return _stamp(born_s)
    elif (job := os.environ.get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return job.replace(os.sep, "-")
    raise ArgumentError(
        f"these {_number('WORLD_SIZE')} ranks cannot tell by themselves that they belong together: "
        "give them a new folder in common with --out, or torchrun an --rdzv-id"
    )


def _launcher_born_s() -> float | None:
    """Return when the nearest ancestor that is no rank was started, in s since 1970, or None."""
    import psutil  # takes milliseconds: only where there are ranks

    for process in psutil.Process().parents():
        with suppress(psutil.Error):  # one of another user, say, is no rank
            if "RANK" in process.environ():
                continue
        with suppress(psutil.Error):
            return float(process.create_time())
    return None


def _stamp(seconds: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _number(name: str) -> int:
    """Return an environment variable of the launcher's; 0 where it is not set, or no number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0
