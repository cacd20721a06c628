"""Samplers of several processes: py-spy, or the processes themselves where it may not attach.

Nothing here waits: the training loop goes on, and polls `is_over` between its steps.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import psutil

from stallscope import pyspy_calls
from stallscope.errors import UnsupportedError
from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import RESULT, Request, SelfSampler
from stallscope.interrupts import held_back
from stallscope.pyspy_calls import PySpyCall
from stallscope.run.stacks import WORKER_LOOP, StackFrame
from stallscope.units import count
from stallscope.verbs.flame.result import IN_PROCESS, PY_SPY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from stallscope.verbs.flame.result import FlameConditions


_GRACE_S: Final = 5.0
"""Seconds that py-spy may take, after its time, to write its result."""
_LATE_S: Final = 1.0
"""Seconds that a worker may begin and end late, on a busy machine ..."""
_WRITE_S: Final = 2.0
"""... and then take to write its result."""
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, IndexError)
_MOST_PROCESSES: Final = 512
_AT_ONCE: Final = 16
"""Dumps that run at the same time: a training is going on."""
_numbers = itertools.count()

Thread = list[list[StackFrame]]
"""The stacks of a thread in the order in which they were taken; the outermost frame first."""
Process = tuple["int | None", int]
"""Number of the worker (None: no worker, or an unknown number) and process id."""


class StackSampler:
    """Samples several processes at once, for `conditions.seconds`; writes into a private folder."""

    name: str

    def __init__(
        self, processes: Sequence[Process], conditions: FlameConditions, folder: Path
    ) -> None:
        self.processes = list(processes)
        self.why_not: dict[int, str] = {}
        """Reason why stacks are missing, by process id."""
        self.refused = ""
        """Reason why no process could be sampled; else empty."""
        self.remedy = ""
        self.seconds = 0.0
        self.notes: list[str] = []
        self._conditions, self._folder = conditions, folder
        self._began: float | None = None
        self._ended = False

    def read(self, pid: int) -> list[Thread]:
        """Return the stacks of a process, by thread; adds to `why_not` where they are missing."""
        raise NotImplementedError

    def _end(self) -> bool:
        """Record the end; False: the end was recorded before."""
        if self._ended:
            return False
        self._ended = True
        if self._began is not None:
            self.seconds = min(time.monotonic() - self._began, self._conditions.seconds)
        return True


class Spy(StackSampler):
    """Sampler with py-spy: dumps each process to see if it can be sampled, then records."""

    name = PY_SPY

    def __init__(
        self, processes: Sequence[Process], conditions: FlameConditions, folder: Path
    ) -> None:
        super().__init__(processes, conditions, folder)
        self._program = pyspy_calls.executable()
        self._dumps: dict[int, PySpyCall] = {}
        self._records: dict[int, PySpyCall] = {}

    def __enter__(self) -> Self:
        if self._program is None:
            self.refused = "py-spy is not installed for this Python"
            self.remedy = "pip install py-spy"
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            for call in (*self._dumps.values(), *self._records.values()):
                call.kill()

    @property
    def is_over(self) -> bool:
        """True if sampling has ended; starts the next phase if it is due."""
        if self.refused or self._program is None:
            return True
        if self._began is not None:
            if time.monotonic() > self._began + self._conditions.seconds:
                self._finish()
            return all(call.is_over for call in self._records.values())
        for _, pid in self.processes:
            if pid not in self._dumps:
                with held_back():
                    self._dumps[pid] = pyspy_calls.dump(self._program, pid, self._folder)
        if all(call.is_over for call in self._dumps.values()):
            self._learn()
            if not self.refused:
                self._record()
        return False

    def stop(self) -> None:
        """Stop sampling and wait briefly for the stacks sampled so far."""
        with held_back():
            for call in self._dumps.values():
                call.kill()
            self._finish()
            while not all(call.is_over for call in self._records.values()):
                time.sleep(0.01)

    def _finish(self) -> None:
        if self._end():
            for call in self._records.values():
                call.tell_to_end()

    def _learn(self) -> None:
        calls = self._dumps.values()
        self.why_not = {
            pid: pyspy_calls.why_not(call) for pid, call in self._dumps.items() if not call.worked
        }
        if len(self.why_not) == len(calls):
            self.refused = next(iter(self.why_not.values()), "there is no process")
            self.remedy = "a newer version may support this Python: pip install --upgrade py-spy"
            if any(pyspy_calls.is_refused(call) or call.timed_out for call in calls):
                self.remedy = pyspy_calls.what_would_allow()

    def _record(self) -> None:
        self._began, conditions = time.monotonic(), self._conditions
        seconds = math.ceil(conditions.seconds)
        arguments = [
            *("record", "--rate", str(max(round(conditions.rate_hz), 1))),
            *("--duration", str(seconds), "--format", "speedscope", "--full-filenames"),
            "--native" if conditions.native else "--nonblocking",
            *["--idle"] * conditions.idle,
            *["--gil"] * conditions.gil,
        ]
        for pid in self._dumps.keys() - self.why_not:
            output = ("--pid", str(pid), "--output", str(self._path(pid)))
            command, bound_s = [str(self._program), *arguments, *output], seconds + _GRACE_S
            with held_back():
                self._records[pid] = PySpyCall(command, self._folder, f"record-{pid}", bound_s)

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.speedscope"

    def read(self, pid: int) -> list[Thread]:
        """Return the stacks of a process from py-spy's file."""
        call, path = self._records.get(pid), self._path(pid)
        if call is None:
            return []
        try:
            # https://www.speedscope.app/file-format-schema.json
            written = json.loads(path.read_text(encoding="utf-8"))
            frames = [
                (frame["name"], frame.get("file") or "?", frame.get("line") or 0)
                for frame in written["shared"]["frames"]
            ]
            samples = [profile["samples"] for profile in written["profiles"]]
            threads = _threads(frames, samples)
        except _UNREADABLE:
            self.why_not[pid] = f"it ended, or py-spy lost it: {call.message or 'no message'}"
            return []
        finally:
            path.unlink(missing_ok=True)  # another recording of the same process may follow
        if "behind in sampling" in call.message:
            self.notes.append(f"py-spy was late on pid {pid}: its shares may be inaccurate")
        return threads


def _threads(frames: Iterable[Any], threads: Iterable[list[list[int]]]) -> list[Thread]:
    stack_frames = [StackFrame(str(name), str(file), int(line)) for name, file, line in frames]
    return [[[stack_frames[number] for number in stack] for stack in stacks] for stacks in threads]


class InProcess(StackSampler):
    """Sampler in which the workers that watch the folder, or this process, sample themselves.

    Its stacks have no native frames, and it cannot see which thread holds the GIL.
    """

    name = IN_PROCESS

    def __init__(
        self, processes: Sequence[Process], conditions: FlameConditions, folder: Path
    ) -> None:
        super().__init__(processes, conditions, folder)
        self._own = SelfSampler(folder)
        self._request = Request(
            next(_numbers), conditions.rate_hz, conditions.seconds, conditions.idle
        )

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self_sampler.request(self._folder, self._request)
        if any(pid == os.getpid() for _, pid in self.processes):
            self._own.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._withdraw()
        self._own.end()

    def _withdraw(self) -> None:
        if self._end():
            self_sampler.withdraw(self._folder)

    @property
    def is_over(self) -> bool:
        """True if sampling has ended."""
        late_s = time.monotonic() - (self._began or 0.0) - self._request.seconds - _LATE_S
        if late_s > 0:
            self._withdraw()
        return late_s > _WRITE_S or all(self._path(pid).exists() for _, pid in self.processes)

    def stop(self) -> None:
        """Stop sampling and wait briefly for the stacks sampled so far."""
        self._withdraw()
        deadline = time.monotonic() + _WRITE_S
        while time.monotonic() < deadline and not self.is_over:
            time.sleep(0.01)

    def read(self, pid: int) -> list[Thread]:
        """Return the stacks of a process from its own file."""
        try:
            sampled = json.loads(self._path(pid).read_text(encoding="utf-8"))
            return _threads(sampled["frames"], sampled["threads"].values())
        except _UNREADABLE:
            self.why_not[pid] = "it ended before it had written its stacks"
            return []

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}-{self._request.number}{RESULT}"


# ---- the processes of a training that runs -----------------------------------------------------


def below(pid: int, folder: Path) -> tuple[list[Process], str]:
    """Return the workers below a process, or the process itself, and a note that says which.

    An `UnsupportedError` says that the process does not exist, is not Python, or cannot be read.
    """
    process = _process(pid)
    program = pyspy_calls.executable()
    if program is None:
        raise UnsupportedError(
            f"pid {pid} can only be read by py-spy, which is not installed for this Python: pip "
            "install py-spy"
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


def _dumps(pids: list[int], program: Path, folder: Path) -> dict[int, PySpyCall]:
    calls: dict[int, PySpyCall] = {}
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


def _unreadable(pid: int, process: psutil.Process, call: PySpyCall) -> UnsupportedError:
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
