"""`ss.flame`: where in the code the workers' time goes, from stacks of all of them at once.

Of a loader, in its steady state and while a private copy of it goes on; or of a training that runs
already and is only read. The workers of that one are found by their stacks, in which torch's worker
loop gives their number.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from stallscope import pyspy_calls
from stallscope.errors import ArgumentError, UnsupportedError
from stallscope.files import log_capacity, workspace
from stallscope.flame.classify import own_folders
from stallscope.flame.pyspy import How, Process, Spy
from stallscope.flame.sampling import (
    WORKER_LOOP,
    SamplingLoop,
    StackCounts,
    circumstances_of,
    passing,
)
from stallscope.hooks.loader_access import end
from stallscope.hooks.loop_log import LogPlace
from stallscope.hooks.probe import Probe
from stallscope.interrupts import held_back
from stallscope.isolation import isolated
from stallscope.loops import cached_loaders
from stallscope.loops.batch_timeout import limited, time_limit
from stallscope.loops.timed_loop import TimedLoop
from stallscope.machine import require_single_rank
from stallscope.run.read_logs import note
from stallscope.targets import target as targets
from stallscope.targets.loaders import find_loaders
from stallscope.targets.object_graph import LoaderCallables
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.utils.data import DataLoader

    from stallscope.flame.result import Flame


_LONGEST_S: Final = 3600.0
_LEAST_S: Final = 10.0
"""So long a loop that is sampled may take at least before a wait in it can be called a hang."""
_FASTEST_HZ: Final = 1000
_NATIVE_HZ: Final = 29
"""With native frames a process is stopped for each sample; a rate that others have lived with."""


def flame(  # noqa: PLR0913 - the public signature
    target: Any = None,
    step: Callable[[Any], object] | None = None,
    *,
    pid: int | None = None,
    seconds: float = 5.0,
    rate_hz: float = 50,
    native: bool = False,
    idle: bool = False,
    gil: bool = False,
) -> Flame:
    """Sample the stacks of all DataLoader workers at once, by py-spy, while the loop goes on.

    With a target, a shallow copy of the loader is iterated; only its steady state is sampled.
    Afterwards all random generators, the samplers and what `step` trains are as they were, and the
    workers are gone. Where py-spy may not attach, the workers sample themselves, and the result
    says so, and which setting would allow py-spy. An exception of the dataset's or of the step's
    passes unchanged; its attribute `flame` holds what was seen before. With `pid`, a training that
    runs already is only read, and goes on.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`. With `num_workers=0` the
            main process is sampled.
        step: uses one batch; the target's by default.
        pid: instead of a target, the process id of a training that runs; the workers below it are
            sampled, or the process itself where it has none.
        seconds: how long to sample.
        rate_hz: samples a second of each process, 1 to 1000.
        native: frames of compiled code, too. Each sample then stops its process for a moment, so at
            most 29 a second are taken.
        idle: threads that wait, too.
        gil: only threads that hold Python's lock.

    Raises:
        ArgumentError: `seconds`, `rate_hz` or `pid` cannot be used, or it is not clear what to
            sample.
        TargetError: the target is nothing that can be iterated, or gave no batch.
        UnsupportedError: `pid` is gone, not Python, or may not be looked into; a loader that keeps
            a generator in the middle of an epoch; more than one rank.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come within `seconds`, 10 at least, and a grace.
    """
    longest = f"a number above 0, at most {_LONGEST_S:g}"
    _check("seconds", seconds, longest, lambda given: 0 < given <= _LONGEST_S)
    fastest = f"a number from 1 to {_FASTEST_HZ}"
    _check("rate_hz", rate_hz, fastest, lambda given: 1 <= given <= _FASTEST_HZ)
    rate = min(float(rate_hz), _NATIVE_HZ) if native else float(rate_hz)
    how = How(rate, float(seconds), bool(native), bool(idle), bool(gil))
    said = []
    if native:
        said.append(
            f"native frames: each process was stopped for each sample ({how.rate_hz:g} a second), "
            "which slows it down"
        )
    if pid is not None:
        if target is not None or step is not None:
            raise ArgumentError("pid= is a training that runs by itself: give it alone")
        _check("pid", pid, "the number of a process", lambda n: isinstance(n, int) and n > 0)
        return _of_process(pid, how, said)
    if target is None:
        raise ArgumentError("what to sample? Give a loader, or pid= of a training that runs")
    require_single_rank()
    return _of_target(targets.target(target, step=step), how, said)


def _check(name: str, value: Any, wanted: str, fits: Callable[[Any], bool]) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not fits(value):
        raise ArgumentError(f"{name}={value!r}: give {wanted}")


def _of_process(pid: int, how: How, said: list[str]) -> Flame:
    with workspace() as folder:
        processes, found = below(pid, folder)
        hits, notes = StackCounts(how.rate_hz, _own_folders(pid)), [*said, *found]
        circumstances = circumstances_of(f"pid {pid}", how, processes)
        with Spy(processes, how, folder) as spy, closing(passing(f"pid {pid}", how.seconds)) as bar:
            try:
                while not spy.is_over:
                    time.sleep(0.02)
                    bar.move()
            except BaseException as error:
                spy.stop()
                notes += hits.add(spy)
                _leave_with(error, hits.flame(circumstances, notes))
                raise
            spy.stop()
        notes += hits.add(spy)
    if spy.refused:
        raise UnsupportedError(f"pid {pid} cannot be sampled: {spy.refused}; {spy.remedy}")
    if not hits.processes:
        raise UnsupportedError(
            f"nothing of pid {pid} could be sampled, its workers ended meanwhile "
            f"({spy.seen[0].why_not}): call again while an epoch is running"
        )
    return hits.flame(circumstances, notes)


def _own_folders(pid: int) -> tuple[str, ...]:
    """Where the code of another process's user lies; nothing where that cannot be told."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        scripts = [one for one in process.cmdline()[1:] if one.endswith(".py")]
        return own_folders(process.cwd(), *scripts[:1])
    return ()


def _own_here(loaders: Iterable[DataLoader[Any]]) -> tuple[str, ...]:
    """Where the code of this process's user lies."""
    script = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    code = (one.co_filename for loader in loaders for one in LoaderCallables(loader).functions)
    return own_folders(str(Path.cwd()), script, tuple(dict.fromkeys(code)))


def loop_flame(target: targets.Target, seconds: float) -> Flame:
    """Sample the process that trains, not its workers: its step, and what it makes of batches.

    Stacks begin within the loop: whoever started it is no part of it. Otherwise as `flame`.
    """
    return _of_target(target, How(seconds=seconds), [], of_loop=True)


def _of_target(
    target: targets.Target, how: How, said: list[str], *, of_loop: bool = False
) -> Flame:
    with (
        time_limit(max(how.seconds, _LEAST_S), remedy="sample for more seconds"),
        isolated(target) as target,  # noqa: PLR1704 - its private form
        workspace() as folder,
    ):
        loader = cached_loaders.going_on(target.loader)
        place = LogPlace(
            folder,
            log_capacity(folder, max(target.num_workers, 1)),
            stands_by=True,
            cost_share=math.inf,  # of every sampled stack the stage is wanted
        )
        loaders = find_loaders(loader)
        probe = Probe(place, loaders, scoped=True)
        loop = replace(TimedLoop.of(target), batches=_Hooked(loader, probe.begin, probe.inside))
        stacks = StackCounts(how.rate_hz, _own_here(loaders), of_loop=of_loop)
        session = SamplingLoop(loop, target.name, how, said, stacks)
        try:
            with probe:
                session.run(probe, folder)
        except BaseException as error:
            probe.__exit__()
            if not probe.forked:
                _leave_with(error, session.result(target.told()))
            raise
        return session.result(target.told())


class _Hooked:
    """A loader whose iterators are begun by the probe, so that it sees what is inside of them."""

    def __init__(self, loader: Any, begin: Callable[..., Any], inside: Callable[..., Any]) -> None:
        self.loader = loader
        self._begin = begin
        self._inside = inside

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._begin(self.loader))

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            # Here, too: an error has to say where a worker stands before it is ended
            yield from self._each(limited(iterator))
        finally:
            end(iterator)

    def _each(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while got := self._inside(list, islice(iterator, 1)):
            yield got.pop()


def _leave_with(error: BaseException, seen: Flame) -> None:
    vars(error)["flame"] = seen  # past any __setattr__ of a frozen exception
    note(error, ["stallscope: what was sampled before is this exception's attribute `flame`"])


_MOST_PROCESSES: Final = 512
_AT_ONCE: Final = 16
"""Dumps that run beside each other: a training is going on."""


def below(pid: int, folder: Path) -> tuple[list[Process], list[str]]:
    """The workers below a process, itself where there are none, and sentences on what was found.

    Raises:
        UnsupportedError: there is no such process, it is not Python, not the user's, or cannot be
            looked into.
    """
    process = _process(pid)
    program = pyspy_calls.executable()
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
        f"pid {pid} has no DataLoader workers now ({none}): the process itself was sampled"
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
    found: dict[int, int] = {}
    with suppress(psutil.Error):
        for child in process.children(recursive=True)[:_MOST_PROCESSES]:
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found[child.pid] = child.ppid()
    return found


def _asked(pids: list[int], program: Path, folder: Path) -> dict[int, pyspy_calls.PySpyCall]:
    """Each process's own dump, all made at once."""
    calls: dict[int, pyspy_calls.PySpyCall] = {}
    try:
        for pid in pids:
            with held_back():
                calls[pid] = pyspy_calls.dump(program, pid, folder, with_locals=True)
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
    if pyspy_calls.is_refused(call) or call.timed_out:
        why_not, remedy = pyspy_calls.why_not(call), pyspy_calls.what_would_allow()
        raise UnsupportedError(f"pid {pid} cannot be looked into ({why_not}): {remedy}")
    raise UnsupportedError(
        f"pid {pid} ({_name(process)}) is no Python process that py-spy can read "
        f"({pyspy_calls.why_not(call)}): give the pid of the process that trains; where it is one, "
        "`pip install --upgrade py-spy`"
    )


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return "unknown"
