"""Computing apart: no thread of ours that a fork would lose runs in the user's process.

polars starts threads with its first computation. A process that is forked afterwards believes that
it has them, and has none, so a dataset that uses polars in its workers waits there for ever, in
a later measurement and in the user's own training. So tables are computed in a short-lived child
of this process, which has all data at hand, and whose result comes back pickled. A frame that is
unpickled, read or printed starts no thread.

Where such threads run already, because the user's own code has used polars, or where nobody forks,
there is nothing to keep, and what is asked for is computed here. So it is where the child fails in
any way: an error then comes as it would have come.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import re
import select
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

import psutil

from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_LOOK_EVERY_S: Final = 1.0
_MOST_IDLE: Final = 5
"""So many looks without any CPU time used: the child waits for a lock that a thread held when it
was forked, and that nobody will open."""
_OF_POLARS: Final = re.compile(r"polars-\d|tokio-rt-worker|async-executor-")
"""Names of threads that its first computation starts, whichever it is. Those that it starts when it
is imported (polars-ooc-, jemalloc_bg_) hinder nobody."""
_is_child = False


def computed_apart(compute: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorate a function that uses polars, and whose result can be pickled."""

    @functools.wraps(compute)
    def computed(*args: _Given.args, **named: _Given.kwargs) -> _Result:
        return apart(lambda: compute(*args, **named))

    return computed


def apart(compute: Callable[[], _Result]) -> _Result:
    """Return what a function computes with polars, without a thread that stays.

    Args:
        compute: changes nothing in this process; called again, here, where the child fails.
    """
    if _is_child or not _forks_workers() or polars_runs():
        return compute()
    answer: list[_Result] = []
    with suppress(Exception):
        answer.append(_from_child(compute))
    return answer[0] if answer else compute()


def polars_runs() -> bool:
    """Whether threads of polars' run in this process; false where that cannot be seen.

    Those of its runtime for files have the name that all have which are tokio's.
    """
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has just ended
            if _OF_POLARS.match(name.read_text()):
                return True
    return False


def _forks_workers() -> bool:
    """Whether workers are forked here, unless a loader asks for something else."""
    if not sys.platform.startswith("linux"):
        return False
    chosen = multiprocessing.get_start_method(allow_none=True)  # asking fixes no choice
    return (chosen or multiprocessing.get_all_start_methods()[0]) == "fork"


class Later(Generic[_Result]):
    """What a function computes apart while this process goes on; at once where that cannot be.

    Args:
        compute: as for `apart`.
    """

    def __init__(self, compute: Callable[[], _Result]) -> None:
        self._compute = compute
        self._child: _Child[_Result] | None = None
        if not (_is_child or not _forks_workers() or polars_runs()):
            with suppress(OSError):
                self._child = _Child(compute)

    def is_ready(self) -> bool:
        """Whether `result` would not wait."""
        return self._child is None or self._child.is_ready()

    def result(self) -> _Result:
        """Wait for it, and return it; computed here where the child fails."""
        answer: list[_Result] = []
        if self._child is not None:
            with suppress(Exception):
                answer.append(self._child.answer())
            self.end()
        return answer[0] if answer else self._compute()

    def end(self) -> None:
        """Wait for it no more."""
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _from_child(compute: Callable[[], _Result]) -> _Result:
    child = _Child(compute)
    try:
        return child.answer()
    finally:
        child.end()


class _Child(Generic[_Result]):
    """A fork of this process that computes something."""

    def __init__(self, compute: Callable[[], _Result]) -> None:
        self._receiver, sender = os.pipe()
        self._parts: list[bytes] = []
        self._pid = 0
        self._asks = select.poll()  # `select.select` knows no descriptor above 1,023
        self._asks.register(self._receiver)
        try:
            with held_back(), warnings.catch_warnings():
                # Python warns that other threads may hold locks: see `_MOST_IDLE`
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
                if self._pid == 0:
                    _answer(compute, sender)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(sender)

    def is_ready(self) -> bool:
        """Take what it has sent by now; whether that was all."""
        while self._asks.poll(0):
            part = os.read(self._receiver, 1 << 20)
            if not part:
                return True
            self._parts.append(part)
        return False

    def answer(self) -> _Result:
        """Wait for all that it sends.

        Raises:
            EOFError: it uses no CPU, and will never send anything.
        """
        used_s, idle = -1.0, 0
        while not self.is_ready():
            if self._asks.poll(_LOOK_EVERY_S * 1000):
                continue
            before_s, used_s = used_s, _cpu_s(self._pid)
            idle = idle + 1 if used_s == before_s else 0
            if idle >= _MOST_IDLE:
                raise EOFError
        answer: _Result = pickle.loads(b"".join(self._parts))  # noqa: S301 - our own child made it
        return answer

    def end(self) -> None:
        """End it, and let nothing of it remain."""
        with held_back():
            os.close(self._receiver)
            if self._pid:
                with suppress(OSError):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)


def _answer(compute: Callable[[], object], sender: int) -> None:
    """Compute in the child, send the result, and end without a trace."""
    global _is_child  # noqa: PLW0603 - this process is another one
    status = 1
    try:
        _is_child = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        gc.disable()  # what is held in cycles is the parent's to end: iterators with their workers
        with os.fdopen(sender, "wb") as file:
            pickle.dump(compute(), file, pickle.HIGHEST_PROTOCOL)
        status = 0
    finally:
        os._exit(status)


def _cpu_s(pid: int) -> float:
    with suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    return 0.0
