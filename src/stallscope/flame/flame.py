"""`ss.flame`: where in the code the workers' time goes, from stacks of all of them at once.

Samples a loader in its steady state, while a private copy of the loader goes on; or a training that
runs already and is only read. The workers of a training are found by their stacks, in which torch's
worker loop tells their number.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import psutil

from stallscope import pyspy_calls
from stallscope.bench.measurement import Measurement
from stallscope.errors import ArgumentError, UnsupportedError
from stallscope.files import log_capacity, workspace
from stallscope.flame.pyspy import Process, Spy
from stallscope.flame.result import FlameConditions
from stallscope.flame.sampling import SamplingLoop, StackCounts
from stallscope.hooks.loader_access import end
from stallscope.hooks.log_place import LogPlace
from stallscope.hooks.probe import Probe
from stallscope.interrupts import held_back
from stallscope.isolation import isolated
from stallscope.loops import cached_loaders
from stallscope.loops.batch_timeout import limited, time_limit
from stallscope.loops.timed_loop import TimedLoop
from stallscope.machine import machine, require_single_rank
from stallscope.run.stacks import WORKER_LOOP
from stallscope.targets import target as targets
from stallscope.targets.loaders import find_loaders
from stallscope.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.flame.result import Flame


_LONGEST_S: Final = 3600.0
_LEAST_S: Final = 10.0
"""Least time limit, seconds, after which a wait for a batch is called a hang."""
_FASTEST_HZ: Final = 1000
_NATIVE_HZ: Final = 29
"""Highest rate with native frames, as each sample then stops the process."""
_MOST_PROCESSES: Final = 512
_AT_ONCE: Final = 16
"""Dumps that run at the same time: a training is going on."""


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
    """Sample the stacks of all DataLoader workers with py-spy while the loop runs.

    With a target, iterates a shallow copy of the loader and samples its steady state. Afterwards
    restores all random generators, the samplers and everything that `step` trains, and stops the
    workers. Where py-spy may not attach, the workers sample themselves, and a note names the
    setting that would allow py-spy. An exception of the dataset or the step passes unchanged; its
    attribute `flame` holds the stacks sampled before. With `pid`, the running training is only
    read and not stopped.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`. With `num_workers=0` the
            main process is sampled.
        step: uses one batch; the target's by default.
        pid: instead of a target, the process id of a running training; samples the workers below
            this process, or the process itself if it has none.
        seconds: sampling time.
        rate_hz: samples per second of each process, 1 to 1000.
        native: sample frames of compiled code, too. Each sample then pauses its process, so the
            rate is at most 29 per second.
        idle: sample threads that wait, too.
        gil: sample only threads that hold Python's lock.

    Raises:
        ArgumentError: `seconds`, `rate_hz` or `pid` has no valid value, or neither a target nor a
            `pid` is given.
        TargetError: the target cannot be iterated, or yields no batch.
        UnsupportedError: `pid` has ended, is not Python, or may not be read; the loader keeps a
            generator in the middle of an epoch; this process is one of several ranks.
        WorkspaceError: the logs do not fit on the disk.
        NoBatchError: no batch arrived within `seconds` (at least 10) and a grace period.
    """
    longest = f"a number above 0, at most {_LONGEST_S:g}"
    _check("seconds", seconds, longest, lambda value: 0 < value <= _LONGEST_S)
    fastest = f"a number from 1 to {_FASTEST_HZ}"
    _check("rate_hz", rate_hz, fastest, lambda value: 1 <= value <= _FASTEST_HZ)
    conditions = FlameConditions(
        machine=machine(),
        rate_hz=min(float(rate_hz), _NATIVE_HZ) if native else float(rate_hz),
        seconds=float(seconds),
        native=bool(native),
        idle=bool(idle),
        gil=bool(gil),
    )
    if pid is not None:
        if target is not None or step is not None:
            raise ArgumentError("pid= cannot be combined with a target or a step")
        _check("pid", pid, "the number of a process", lambda n: isinstance(n, int) and n > 0)
        return _of_process(pid, replace(conditions, name=f"pid {pid}"))
    if target is None:
        raise ArgumentError("what to sample? Give a loader, or pid= of a running training")
    require_single_rank()
    return _of_target(targets.target(target, step=step), conditions)


def loop_flame(target: targets.Target, seconds: float) -> Flame:
    """Sample the main process, not its workers: the step and the code around it.

    Stacks begin inside the loop, without its callers. Otherwise like `flame`.
    """
    conditions = FlameConditions(machine=machine(), seconds=seconds)
    return _of_target(target, conditions, of_loop=True)


def _check(name: str, value: Any, wanted: str, fits: Callable[[Any], bool]) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not fits(value):
        raise ArgumentError(f"{name}={value!r}: give {wanted}")


def _measurement(conditions: FlameConditions) -> Measurement:
    measurement = Measurement("flame", conditions.seconds)
    if conditions.native:
        measurement.note(
            f"native frames: each sample paused its process ({conditions.rate_hz:g} per second), "
            "which slows the process down"
        )
    return measurement.of(conditions.name)


# ---- a loader -----------------------------------------------------------------------------------


def _of_target(
    target: targets.Target, conditions: FlameConditions, *, of_loop: bool = False
) -> Flame:
    measurement = _measurement(replace(conditions, name=target.name))
    with (
        time_limit(max(conditions.seconds, _LEAST_S), remedy="sample for more seconds"),
        isolated(target) as target,  # noqa: PLR1704 - its private form
        workspace() as folder,
        measurement,
    ):
        loader = cached_loaders.going_on(target.loader)
        place = LogPlace(
            folder,
            log_capacity(folder, max(target.num_workers, 1)),
            stands_by=True,
            cost_share=math.inf,  # every sampled stack needs its stage
        )
        probe = Probe(place, find_loaders(loader), scoped=True)
        loop = replace(TimedLoop.of(target), batches=_Hooked(loader, probe.begin, probe.inside))
        hits = StackCounts(conditions.rate_hz, of_loop=of_loop)
        named = replace(conditions, name=target.name)
        session = SamplingLoop(loop, named, measurement, hits)
        measurement.result = lambda: None if probe.forked else session.result(target.notes)
        with probe:
            session.run(probe, folder)
        return session.result(target.notes)


class _Hooked:
    """A loader whose iterators are created by the probe, so that the probe can record them."""

    def __init__(self, loader: Any, begin: Callable[..., Any], inside: Callable[..., Any]) -> None:
        self.loader = loader
        self._begin, self._inside = begin, inside

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._begin(self.loader))

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        batches = limited(iterator)
        try:
            while batch := self._inside(list, islice(batches, 1)):
                yield batch.pop()
        finally:
            # An error that reports where a worker hangs needs the worker alive up to here
            end(iterator)


# ---- a training that runs -----------------------------------------------------------------------


def _of_process(pid: int, conditions: FlameConditions) -> Flame:
    with workspace() as folder, _measurement(conditions) as measurement:
        processes, message = below(pid, folder)
        measurement.note(message)
        workers = sum(number is not None for number, _ in processes)
        conditions = replace(conditions, num_workers=workers)
        hits = StackCounts(conditions.rate_hz)
        measurement.result = lambda: hits.flame(conditions, measurement.notes)
        with Spy(processes, conditions, folder) as spy:
            try:
                while not spy.is_over:
                    time.sleep(0.02)
                    measurement.now("sampling stacks")
            finally:
                spy.stop()
                for note in hits.add(spy):
                    measurement.note(note)
        if spy.refused:
            raise UnsupportedError(f"pid {pid} cannot be sampled: {spy.refused}; {spy.remedy}")
        if not hits.processes:
            raise UnsupportedError(
                f"pid {pid} could not be sampled, its workers have ended "
                f"({spy.stacks[0].why_not}): call again while an epoch is running"
            )
        return hits.flame(conditions, measurement.notes)


def below(pid: int, folder: Path) -> tuple[list[Process], str]:
    """Return the workers below a process, or the process itself, and a note that says which.

    Raises:
        UnsupportedError: the process does not exist, is not Python, or cannot be read.
    """
    process = _process(pid)
    program = pyspy_calls.executable()
    if program is None:
        raise UnsupportedError(
            f"pid {pid} can only be read by py-spy, which is not installed beside this Python: "
            "pip install py-spy"
        )
    parents: dict[int, int] = {}
    with suppress(psutil.Error):
        for child in process.children(recursive=True)[:_MOST_PROCESSES]:
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    parents[child.pid] = child.ppid()
    calls = _dumps([pid, *parents], program, folder)
    numbers: dict[int, int | None] = {}
    for each, call in calls.items():
        with suppress(ValueError, KeyError, TypeError):
            is_worker, number = _worker_number(json.loads(call.out))
            if is_worker:
                numbers[each] = number
    if pid in numbers:
        return [(numbers[pid], pid)], f"pid {pid} is itself a worker of a DataLoader"
    # A process forked by a worker has the worker's loop in its stack, too
    own = sorted(each for each in numbers if parents[each] not in numbers)
    if own:
        workers: list[Process] = [(numbers[each], each) for each in own]
        if None in numbers.values():  # a loader starts its workers in order
            workers = list(enumerate(own))
        return sorted(workers), f"{count(len(own), 'worker')} found below pid {pid}"
    if not calls[pid].worked:
        raise _unreadable(pid, process, calls[pid])
    none = "none was started, the epoch has ended, or num_workers=0"
    return [(None, pid)], (
        f"pid {pid} has no DataLoader workers now ({none}): the process itself was sampled"
    )


def _process(pid: int) -> psutil.Process:
    with suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process
    raise _gone(pid)


def _gone(pid: int) -> UnsupportedError:
    return UnsupportedError(
        f"there is no process with pid {pid}: the process has ended, or the pid is wrong"
    )


def _dumps(pids: list[int], program: Path, folder: Path) -> dict[int, pyspy_calls.PySpyCall]:
    """Dump the stacks of several processes, a few at the same time."""
    calls: dict[int, pyspy_calls.PySpyCall] = {}
    with ExitStack() as ends:
        for pid in pids:
            with held_back():
                calls[pid] = pyspy_calls.dump(program, pid, folder, with_locals=True)
                ends.callback(calls[pid].kill)
            most = _AT_ONCE if len(calls) < len(pids) else 1
            while sum(not call.is_over for call in calls.values()) >= most:
                time.sleep(0.01)
    return calls


def _worker_number(threads: Any) -> tuple[bool, int | None]:
    """Return if a dump is a worker's, and the number among the arguments of torch's loop."""
    for frame in (frame for thread in threads for frame in thread["frames"]):
        file = str(frame["filename"]).replace("\\", "/")
        if frame["name"] == "_worker_loop" and file.endswith(WORKER_LOOP):
            values = {variable["name"]: variable["repr"] for variable in frame.get("locals") or ()}
            number = str(values.get("worker_id"))
            return True, int(number) if number.isdecimal() else None
    return False, None


def _unreadable(pid: int, process: psutil.Process, call: pyspy_calls.PySpyCall) -> UnsupportedError:
    """Return the error for a process that has ended, is not Python, or may not be read."""
    if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
        return _gone(pid)
    why_not, name = pyspy_calls.why_not(call), "unknown"
    if pyspy_calls.is_refused(call) or call.timed_out:
        remedy = pyspy_calls.what_would_allow()
        return UnsupportedError(f"pid {pid} cannot be read ({why_not}): {remedy}")
    with suppress(psutil.Error):
        name = str(process.name())
    return UnsupportedError(
        f"py-spy cannot read pid {pid} ({name}) as a Python process ({why_not}): give the pid of "
        "the training process; if it is, `pip install --upgrade py-spy`"
    )
