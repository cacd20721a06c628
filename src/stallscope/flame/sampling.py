"""Sampling the stacks of a loader's workers in its steady state, while it goes on.

A loader that ends before the time asked for is over begins again. Where py-spy may not attach, the
workers sample themselves. Workers of a process that runs already are found by their stacks, in
which torch's worker loop gives their number; that process is only read.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import psutil

from stallscope.errors import TargetError, UnsupportedError
from stallscope.flame import pyspy
from stallscope.flame.fallback import InProcess
from stallscope.flame.pyspy import WORKER_LOOP, Spy, StackFrame, collapsed, what_would_allow
from stallscope.flame.result import IN_PROCESS, PY_SPY, SAMPLES, WINDOW_S, Flame, FlameConditions
from stallscope.hooks.patches import under
from stallscope.interrupts import held_back
from stallscope.loops.timed_loop import started
from stallscope.loops.training_loop import ProgressBar
from stallscope.machine import machine
from stallscope.stages import STEP
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stallscope.flame.pyspy import How, Seen
    from stallscope.hooks.probe import Probe
    from stallscope.loops.timed_loop import TimedLoop


class StackCounts:
    """How often each stack was seen, in which process and which window.

    Args:
        rate_hz: samples a second of each process.
    """

    def __init__(self, rate_hz: float) -> None:
        self._in_window = max(round(rate_hz * WINDOW_S), 1)
        self._count: Counter[tuple[Any, ...]] = Counter()
        self._windows: dict[int, int] = {}
        self.processes: set[int] = set()
        """Of which something was read, be it that they did nothing."""

    def add(self, by: Spy | InProcess) -> list[str]:
        """Count what was seen.

        Returns:
            Sentences on processes of which there is nothing.
        """
        if by.refused:
            return []
        said = list(by.notes)
        for seen in by.read():
            if seen.why_not:
                who = "the process" if seen.worker is None else f"worker {seen.worker}"
                said.append(f"{who} (pid {seen.pid}) was not sampled: {seen.why_not}")
            else:
                self.processes.add(seen.pid)
                self._add(seen)
        return said

    def _add(self, seen: Seen) -> None:
        known: dict[tuple[StackFrame, ...], tuple[str | None, str] | None] = {}
        first = last = self._windows.get(seen.pid, 0)
        for thread in seen.threads:
            for place, stack in enumerate(_readable(thread, known)):
                window = first + place // self._in_window
                self._count[(seen.worker, seen.pid, window, *stack)] += 1
                last = max(last, window + 1)
        self._windows[seen.pid] = last

    def flame(self, circumstances: FlameConditions, notes: Sequence[str]) -> Flame:
        """What is known by now."""
        rows = [(*key, hits) for key, hits in self._count.items()]
        samples = pl.DataFrame(rows, SAMPLES, orient="row")
        said = list(notes)
        if not rows:
            said.append(
                "no stack was seen: the workers waited all the time (idle=True shows where), or "
                "had no time to be seen"
            )
        return Flame(samples, circumstances, tuple(dict.fromkeys(said)))


def _readable(
    thread: list[list[StackFrame]],
    known: dict[tuple[StackFrame, ...], tuple[str | None, str] | None],
) -> Iterator[tuple[str | None, str]]:
    """Stage and collapsed form of each stack that is of interest."""
    for stack in thread:
        key = tuple(stack)
        if key not in known:
            known[key] = collapsed(stack)
        found = known[key]
        if found is not None:
            yield found


def circumstances_of(name: str, how: How, processes: Sequence[Process]) -> FlameConditions:
    """What a flame says of itself.

    Args:
        name: what the user pointed at.
        how: how to sample.
        processes: the ones that are sampled; empty where that is not known yet.
    """
    return FlameConditions(
        name=name,
        how=PY_SPY,
        num_workers=sum(number is not None for number, _ in processes),
        machine=machine(),
        **vars(how if processes else replace(how, seconds=0.0)),
    )


class _Passing(ProgressBar):
    """A bar over the seconds."""

    def move(self) -> None:
        """Show how many have passed."""
        passed = min(int(self.format_dict["elapsed"]), int(self.total))
        if passed > self.n:
            self.update(passed - self.n)


def passing(name: str, seconds: float) -> _Passing:
    """A bar over so many seconds."""
    title = f"flame of {name}"
    return _Passing(total=math.ceil(seconds), desc=title, unit="s", leave=False, delay=0.5)


_ENOUGH: Final = 0.98
"""Of the time asked for."""
_PATIENCE_S: Final = 10.0
"""So much longer than asked for a loader that ends again and again may take."""


class SamplingLoop:
    """One recording of a loader, over as many starts of it as that takes.

    Args:
        loop: what goes on meanwhile.
        name: what the user called it.
        how: how to sample.
        notes: sentences that the result is to carry.
    """

    def __init__(self, loop: TimedLoop, name: str, how: How, notes: list[str]) -> None:
        self._loop = loop
        self._how = how
        self._notes = notes
        self._hits = StackCounts(how.rate_hz)
        self._circumstances = circumstances_of(name, how, [])
        self._use = _with_stage(loop)
        self._sampled_s = 0.0
        self._refused = False
        self._used = 0

    def run(self, probe: Probe, folder: Path) -> None:
        """Sample until the time asked for is full; a loader that ends before begins again."""
        began, starts, warmup = time.monotonic(), 0, self._loop.warmup
        with closing(passing(self._circumstances.name, self._how.seconds)) as bar:
            while self._left_s > self._how.seconds * (1 - _ENOUGH):
                starts += 1
                before = self._used
                with started(self._loop) as batches:
                    if self._warm_up(batches, warmup):
                        self._sample(batches, probe, folder, bar)
                    elif warmup:
                        warmup = 0
                        self._notes.append(
                            "the loader is too short for a steady state: its start is in it"
                        )
                if self._used == before:
                    break
                if time.monotonic() > began + 2 * self._how.seconds + _PATIENCE_S:
                    break
        self._say_how_it_went(starts)

    @property
    def _left_s(self) -> float:
        return self._how.seconds - self._sampled_s

    def _warm_up(self, batches: Iterator[Any], number: int) -> bool:
        """Use batches that are not sampled; whether there may be more."""
        return all(self._step(batches) for _ in range(number))

    def _step(self, batches: Iterator[Any]) -> bool:
        """One step; false where there is no batch any more."""
        for batch in batches:
            self._use(batch)
            self._used += 1
            return True
        return False

    def _sample(self, batches: Iterator[Any], probe: Probe, folder: Path, bar: Any) -> None:
        """Sample for the time that is left, or until the batches end."""
        processes: list[Process] = [*probe.workers()] or [(None, os.getpid())]
        how = replace(self._how, seconds=self._left_s)
        if not self._refused:
            spy = Spy(processes, how, folder)
            self._watch(spy, batches, bar)
            if not spy.refused:
                return
            self._fall_back(spy)
        self._watch(InProcess(processes, how, folder), batches, bar)

    def _watch(self, by: Spy | InProcess, batches: Iterator[Any], bar: Any) -> None:
        with ExitStack() as stack:
            stack.enter_context(by)
            stack.callback(self._keep, by)
            stack.callback(by.stop)  # also after an error: what was seen is not lost
            while not by.is_over and self._step(batches):
                bar.move()

    def _keep(self, by: Spy | InProcess) -> None:
        self._notes += self._hits.add(by)
        self._sampled_s += by.seconds
        self._circumstances = replace(
            self._circumstances,
            how=by.name,
            seconds=self._sampled_s,
            num_workers=sum(seen.worker is not None for seen in by.seen),
        )

    def _fall_back(self, spy: Spy) -> None:
        self._refused = True
        self._notes.append(
            f"sampled by the {IN_PROCESS}, not by {PY_SPY} ({spy.refused}): {spy.remedy}"
        )
        self._notes.append(
            f"the {IN_PROCESS} sees a thread where it lets go of Python's lock: compiled code that "
            "keeps the lock shows at the line after it"
        )
        left_out = [name for name in ("native", "gil") if getattr(self._how, name)]
        if left_out:
            self._notes.append(f"the {IN_PROCESS} has no {' and no '.join(left_out)}")
        self._how = replace(self._how, native=False, gil=False)
        self._circumstances = replace(self._circumstances, native=False, gil=False)

    def _say_how_it_went(self, starts: int) -> None:
        if not self._used:
            raise TargetError(
                f"{self._circumstances.name} gave no batch: there is nothing to sample"
            )
        if self._sampled_s < self._how.seconds * _ENOUGH:
            self._notes.append(
                f"{seconds(self._sampled_s)} were sampled, not {seconds(self._how.seconds)}: "
                f"the loader gave {count(self._used, 'batch')}"
            )
        if starts > 1:
            self._notes.append(f"the loader is short: it was started {starts} times")

    def result(self) -> Flame:
        """What is known by now."""
        notes = list(self._notes)
        if self._hits.processes and not self._circumstances.num_workers:
            notes.append("num_workers=0: the main process was sampled, the step is in it")
        return self._hits.flame(self._circumstances, notes)


def _with_stage(loop: TimedLoop) -> Callable[[Any], None]:
    """Uses a batch, under a frame that says that this is the step."""

    def use(batch: Any) -> None:
        if loop.step is not None:
            loop.step(loop.device.move(batch))

    return under(STEP, use)


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
    program = pyspy.executable()
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
    """Each process below it that lives, and its parent."""
    found: dict[int, int] = {}
    with suppress(psutil.Error):
        for child in process.children(recursive=True)[:_MOST_PROCESSES]:
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found[child.pid] = child.ppid()
    return found


def _asked(pids: list[int], program: Path, folder: Path) -> dict[int, pyspy.PySpyCall]:
    """Each process's own dump, all made at once."""
    calls: dict[int, pyspy.PySpyCall] = {}
    try:
        for pid in pids:
            with held_back():
                calls[pid] = pyspy.dump(program, pid, folder, with_locals=True)
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
    if pyspy.is_refused(call) or call.timed_out:
        raise UnsupportedError(
            f"pid {pid} cannot be looked into ({pyspy.why_not(call)}): {what_would_allow()}"
        )
    raise UnsupportedError(
        f"pid {pid} ({_name(process)}) is no Python process that py-spy can read "
        f"({pyspy.why_not(call)}): give the pid of the process that trains; where it is one, "
        "`pip install --upgrade py-spy`"
    )


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return "unknown"
