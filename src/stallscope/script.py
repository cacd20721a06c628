"""Somebody's script, run in this process as `python SCRIPT` or `python -m MODULE` would run it.

The script must not notice: it is `__main__`, with its own arguments, import path and globals, and
it ends as ever, with the same output, traceback and exit code. Nothing heavy is imported before it
starts, since what it sets in `os.environ` ahead of its own imports must still have its effect.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.util
import os
import pkgutil
import runpy
import sys
import traceback
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stallscope.errors import StallscopeError, TargetError
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType


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
        watching: entered just before the script's code runs and left after it, as a `with` block
            around it would be. What goes wrong in leaving it is told on stderr and changes nothing.
            In a process that the script forked it is not left at all.

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
    process, watch = os.getpid(), watching()
    watch.__enter__()  # no `with`: a forked process must not leave it
    ended = _run(start)
    if os.getpid() == process:
        _leave(watch, ended)
    else:
        # A generator that waits inside of a `with` block would be ended when it is collected.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(watch))
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
        sys.excepthook, sys.last_traceback = hook, trace
        hook(kind, error.with_traceback(trace), trace)

    if not isinstance(error, SystemExit):
        sys.excepthook = show
    raise error


def _file(script: str, args: Sequence[str]) -> Callable[[], object]:
    """Make everything ready for a file, as pymain_run_python in CPython's Modules/main.c does."""
    path = os.path.join(Path.cwd(), script)  # noqa: PTH118 - not made shorter by Python either
    if not os.path.exists(path):  # noqa: PTH110 - its "./" matters
        raise TargetError(
            f"there is no script {script!r}: give the path of one, or -m with a module's name"
        )
    if pkgutil.get_importer(path) is not None:  # a folder or a zip file
        _become_main([script, *args])
        if not _is_safe():
            del sys.path[0]
        sys.path.insert(0, path)
        return partial(runpy._run_module_as_main, "__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TargetError(f"script {script!r} cannot be read ({error.strerror})") from error
    code = compile(source, path, "exec", dont_inherit=True)
    names = _become_main([script, *args])
    loader = SourceFileLoader("__main__", path)
    names.update(__file__=path, __cached__=None, __loader__=loader)
    if not _is_safe():
        sys.path[0] = str(Path(path).resolve().parent)
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
    names = vars(main)
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    names["__builtins__"] = builtins
    return names


def _is_safe() -> bool:
    """Whether Python keeps the script's folder out of the import path (its options -P and -I)."""
    return bool(getattr(sys.flags, "safe_path", sys.flags.isolated))


def _run(start: Callable[[], object]) -> BaseException | None:
    """What a script ends with; the traceback begins behind our own frame."""
    try:
        start()
    except BaseException as error:  # noqa: BLE001 - raised again by `end_with`
        trace = error.__traceback__
        return error.with_traceback(trace and trace.tb_next)
    return None


def _leave(watch: AbstractContextManager[object], ended: BaseException | None) -> None:
    """End the watching; whatever happens here, the script's own end stays what it was."""
    left = False
    kind, trace = (None, None) if ended is None else (type(ended), ended.__traceback__)
    try:
        with held_back():
            watch.__exit__(kind, ended, trace)
            left = True
    except BaseException as error:  # noqa: BLE001 - told, unless it came too late to matter
        if not left and error is not ended:
            _tell(error)
    if ended is not None:
        ended.__traceback__ = trace


def _tell(error: BaseException) -> None:
    """Say on stderr, if there still is one, what went wrong in saving the run."""
    said = str(error) if isinstance(error, StallscopeError) else "the run may not be saved whole"
    with suppress(Exception):
        if not isinstance(error, StallscopeError | KeyboardInterrupt):  # a mistake of ours
            traceback.print_exception(error, chain=False)
        print(f"stallscope: {said}", file=sys.stderr, flush=True)  # noqa: T201
