"""Computing with polars in a child process, so that no thread of polars runs in the user's.

polars starts threads with its first computation. A process that is forked afterwards believes that
it has them, and has none, so a dataset that uses polars in its workers waits there for ever, in
a later measurement and in the user's own training. So tables are computed in a short-lived fork
of this process, which has all data at hand, and whose result comes back pickled. A frame that is
unpickled, read or printed starts no thread.

Where such threads run already, because the user's own code has used polars, or where nobody forks,
there is nothing to protect, and the result is computed here. So it is where the child fails in any
way: an error then comes as it would have come.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import re
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import psutil

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LOOK_EVERY_S: Final = 1.0
_MOST_IDLE: Final = 5
"""Looks without any CPU time used: the child waits for a lock that a thread held when it was
forked, and that nobody will open."""
_POLARS_THREADS: Final = re.compile(r"polars-\d|tokio-rt-worker|async-executor-")
"""Names of threads that its first computation starts; its runtime for files has the names of tokio.
Threads that it starts when it is imported (polars-ooc-, jemalloc_bg_) hinder nobody."""
_is_child = False


def computed_apart(compute: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function that uses polars, and whose result can be pickled."""

    @functools.wraps(compute)
    def computed(*args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        return apart(lambda: compute(*args, **named))

    return computed


def computed_once(compute: Callable[[Any], _Result]) -> Callable[[Any], _Result]:
    """Decorate a method without arguments as `computed_apart` does; an object keeps its result."""
    name = f"_{compute.__name__}"

    @functools.wraps(compute)
    def computed(owner: Any) -> _Result:
        attributes = vars(owner)
        if name not in attributes:
            attributes[name] = apart(lambda: compute(owner))
        result: _Result = attributes[name]
        return result

    return computed


def apart(compute: Callable[[], _Result]) -> _Result:
    """Return what a function computes with polars, without a thread that stays.

    It must change nothing in this process: it is called again, here, where the child fails.
    """
    return Later(compute).result()


def polars_runs() -> bool:
    """Return whether threads of polars run in this process; False where that cannot be seen."""
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has just ended
            if _POLARS_THREADS.match(name.read_text()):
                return True
    return False


def _forks_workers() -> bool:
    """Return whether workers are forked here, unless a loader asks for something else."""
    if not sys.platform.startswith("linux"):
        return False
    chosen = multiprocessing.get_start_method(allow_none=True)  # asking fixes no choice
    return (chosen or multiprocessing.get_all_start_methods()[0]) == "fork"


class Later(Generic[_Result]):
    """Result of a function (see `apart`) that a fork of this process computes meanwhile."""

    def __init__(self, compute: Callable[[], _Result]) -> None:
        self._compute = compute
        self._process: Any = None
        if _is_child or not _forks_workers() or polars_runs():
            return
        context = multiprocessing.get_context("fork")
        try:
            with held_back(), warnings.catch_warnings():
                # Python warns that other threads may hold locks: see `_MOST_IDLE`
                warnings.simplefilter("ignore", DeprecationWarning)
                self._receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_answer, args=(self._compute, sender))
                process.start()
                self._process = process
                sender.close()
        except (OSError, AssertionError):  # no process left, or a daemon, which may not
            return
        except KeyboardInterrupt:  # it was held back
            self.end()
            raise

    def is_ready(self) -> bool:
        """Return whether `result` would not wait."""
        return self._process is None or self._receiver.poll()

    def result(self) -> _Result:
        """Wait for the result, and return it; compute it here where the child fails."""
        answer: list[_Result] = []
        try:
            if self._process is not None:
                with suppress(Exception):
                    answer.append(self._received())
        finally:
            self.end()
        return answer[0] if answer else self._compute()

    def _received(self) -> _Result:
        """Wait for the child's answer; EOFError if it uses no CPU, and will never send any."""
        used_s, idle = -1.0, 0
        while not self._receiver.poll(_LOOK_EVERY_S):
            before_s, used_s = used_s, sum(psutil.Process(self._process.pid).cpu_times()[:2])
            idle = idle + 1 if used_s == before_s else 0
            if idle >= _MOST_IDLE:
                raise EOFError
        answer: _Result = self._receiver.recv()
        return answer

    def end(self) -> None:
        """End the child, if there is one."""
        with held_back():
            process, self._process = self._process, None
            if process is not None:
                self._receiver.close()
                process.kill()
                process.join()
                process.close()


def _answer(compute: Callable[[], object], sender: Any) -> None:
    """Compute in the child, send the result, and end without a trace."""
    global _is_child  # noqa: PLW0603 - this process is another one
    status = 1
    try:
        _is_child = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        gc.disable()  # what is held in cycles is the parent's to end: iterators with their workers
        sender.send_bytes(pickle.dumps(compute(), pickle.HIGHEST_PROTOCOL))
        status = 0
    finally:
        os._exit(status)
