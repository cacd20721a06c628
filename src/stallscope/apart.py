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
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

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


def _from_child(compute: Callable[[], _Result]) -> _Result:
    receiver, sender = os.pipe()
    pid = 0
    try:
        with held_back(), warnings.catch_warnings():
            # Python warns that other threads may hold locks: see `_MOST_IDLE`
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                _answer(compute, sender)
        os.close(sender)
        sender = -1
        answer: _Result = pickle.loads(_read(receiver, pid))  # noqa: S301 - our own child made it
        return answer
    finally:
        with held_back():
            os.close(receiver)
            if sender >= 0:
                os.close(sender)
            if pid:
                _end(pid)


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


def _read(receiver: int, pid: int) -> bytes:
    """All that the child sends.

    Raises:
        EOFError: it uses no CPU, and will never send anything.
    """
    parts: list[bytes] = []
    used_s, idle = -1.0, 0
    while True:
        if select.select([receiver], [], [], _LOOK_EVERY_S)[0]:
            part = os.read(receiver, 1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
            continue
        before_s, used_s = used_s, _cpu_s(pid)
        idle = idle + 1 if used_s == before_s else 0
        if idle >= _MOST_IDLE:
            raise EOFError


def _cpu_s(pid: int) -> float:
    with suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    return 0.0


def _end(pid: int) -> None:
    """End a child, and let nothing of it remain."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
