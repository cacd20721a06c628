"""Finding the DataLoader workers below a process that runs already.

A worker is known by its stack: torch's worker loop is in it. Its number is that of the loop's own
argument. The process is only read.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psutil

from stallscope.errors import UnsupportedError
from stallscope.interrupts import held_back
from stallscope.measure import spycall
from stallscope.measure.attaching import what_would_allow
from stallscope.measure.frames import WORKER_LOOP
from stallscope.units import count

if TYPE_CHECKING:
    from pathlib import Path

_MOST_PROCESSES: Final = 512
_AT_ONCE: Final = 16
"""Dumps that run beside each other: a training is going on."""

Process = tuple["int | None", int]
"""Number of the worker (None: no worker, or its number is not known) and process id."""


def below(pid: int, folder: Path) -> tuple[list[Process], list[str]]:
    """The workers below a process; the process itself where there are none.

    Args:
        pid: of the process that trains.
        folder: private, for what py-spy writes.

    Returns:
        The workers, and sentences on what was found.

    Raises:
        UnsupportedError: there is no such process, it is not Python, not the user's, or cannot be
            looked into.
    """
    process = _process(pid)
    program = spycall.executable()
    if program is None:
        raise UnsupportedError(
            f"pid {pid} can only be looked into by py-spy, which is not installed beside this "
            "Python: pip install py-spy"
        )
    found = _workers(_children(process), program, folder)
    if found:
        return found, [f"{count(len(found), 'worker')} found below pid {pid}"]
    threads = _dumped(pid, process, program, folder)
    is_worker, number = _number(threads)
    if is_worker:
        return [(number, pid)], [f"pid {pid} is itself a worker of a DataLoader"]
    none = "none was started, the epoch has ended, or num_workers=0"
    return [(None, pid)], [
        f"pid {pid} has no DataLoader workers now ({none}): the process itself was sampled",
    ]


def _process(pid: int) -> psutil.Process:
    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        owner = process.uids().real if hasattr(process, "uids") else None
    except (psutil.NoSuchProcess, ValueError, OverflowError, TypeError) as error:
        raise _gone(pid) from error
    except psutil.AccessDenied as error:
        raise _not_ours(pid) from error
    if ended:
        raise _gone(pid)
    if owner is not None and os.geteuid() not in (0, owner):
        raise _not_ours(pid)
    return process


def _gone(pid: int) -> UnsupportedError:
    return UnsupportedError(
        f"there is no process with pid {pid}: it has ended, or it has another number"
    )


def _not_ours(pid: int) -> UnsupportedError:
    return UnsupportedError(
        f"pid {pid} belongs to another user: run this as that user, or with sudo"
    )


def _children(process: psutil.Process) -> dict[int, int]:
    """Each process below it that lives, and its parent."""
    found: dict[int, int] = {}
    with suppress(psutil.Error):
        for child in process.children(recursive=True)[:_MOST_PROCESSES]:
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found[child.pid] = child.ppid()
    return found


def _asked(pids: list[int], program: Path, folder: Path) -> dict[int, spycall.Call]:
    """Each process's own dump, all made at once."""
    calls: dict[int, spycall.Call] = {}
    try:
        for pid in pids:
            with held_back():
                calls[pid] = spycall.dump(program, pid, folder, with_locals=True)
        while not all(call.is_over for call in calls.values()):
            time.sleep(0.01)
    finally:
        with held_back():
            for call in calls.values():
                call.kill()
    return calls


def _workers(parents: dict[int, int], program: Path, folder: Path) -> list[Process]:
    found: dict[int, int | None] = {}
    pids = list(parents)
    for first in range(0, len(pids), _AT_ONCE):
        for pid, call in _asked(pids[first : first + _AT_ONCE], program, folder).items():
            with suppress(ValueError, KeyError, TypeError):
                is_worker, number = _number(json.loads(call.out))
                if is_worker:
                    found[pid] = number
    # What a worker forks itself has the worker's loop in its stack, too.
    own = {pid: number for pid, number in found.items() if parents[pid] not in found}
    if None in own.values():  # those of one loader are born in order
        return list(enumerate(sorted(own)))
    return sorted((number, pid) for pid, number in own.items() if number is not None)


def _number(threads: Any) -> tuple[bool, int | None]:
    """Whether a dump is a worker's, and the number in its loop's arguments."""
    for thread in threads:
        for frame in thread["frames"]:
            file = str(frame["filename"]).replace("\\", "/")
            if frame["name"] == "_worker_loop" and file.endswith(WORKER_LOOP):
                values = {one["name"]: one["repr"] for one in frame.get("locals") or ()}
                number = str(values.get("worker_id"))
                return True, int(number) if number.isdecimal() else None
    return False, None


def _dumped(pid: int, process: psutil.Process, program: Path, folder: Path) -> Any:
    """The stacks of a process."""
    call = _asked([pid], program, folder)[pid]
    with suppress(ValueError):
        if call.worked:
            return json.loads(call.out)
    if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
        raise _gone(pid)
    if spycall.is_refused(call) or call.timed_out:
        raise UnsupportedError(
            f"pid {pid} cannot be looked into ({spycall.why_not(call)}): {what_would_allow()}"
        )
    raise UnsupportedError(
        f"pid {pid} ({_name(process)}) is no Python process that py-spy can read "
        f"({spycall.why_not(call)}): give the pid of the process that trains; where it is one, "
        "`pip install --upgrade py-spy`"
    )


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return "unknown"
