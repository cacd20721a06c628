"""py-spy as a guest in several processes, and what stands in for it where it may not attach.

Nothing here waits: the training loop goes on, and whoever records looks in now and then. Where
py-spy is refused, the processes sample themselves: `InProcess` has the face of `Spy` and gives such
stacks.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from stallscope import pyspy_calls
from stallscope.flame.classify import StackFrame
from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import RESULT, Request
from stallscope.interrupts import held_back
from stallscope.pyspy_calls import PySpyCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from typing_extensions import Self


_GRACE_S: Final = 5.0
"""So long after its time a recording may take to write down what it saw."""


@dataclass(frozen=True)
class How:
    """How to sample."""

    rate_hz: float = 50.0
    """Samples a second, of each process."""
    seconds: float = 5.0
    """For how long."""
    native: bool = False
    """Frames of compiled code, too: stops the process for each sample."""
    idle: bool = False
    """Threads that wait, too."""
    gil: bool = False
    """Only threads that hold Python's lock."""


Thread = list[list[StackFrame]]
"""The stacks of a thread in the order in which they were taken; the outermost frame first."""


@dataclass
class Seen:
    """What was seen in one process."""

    worker: int | None
    """Its number in its loader; None: no worker."""
    pid: int
    threads: list[Thread] = field(default_factory=list)
    why_not: str = ""
    """Why there is nothing, in words; empty where there is."""


Process = tuple["int | None", int]
"""Number of the worker (None: no worker, or its number is not known) and process id."""


class StackSampler:
    """Samples several processes at once; what is written lies in a private folder."""

    name: str

    def __init__(self, processes: Sequence[Process], how: How, folder: Path) -> None:
        self.seen = [Seen(worker, pid) for worker, pid in processes]
        self.refused = ""
        """Why no process at all could be looked into."""
        self.remedy = ""
        """What would help, where it was refused."""
        self.seconds = 0.0
        """How long was sampled."""
        self.notes: list[str] = []
        self._how = how
        self._folder = folder


class Spy(StackSampler):
    """Looks into processes by py-spy."""

    name = "py-spy"

    def __init__(self, processes: Sequence[Process], how: How, folder: Path) -> None:
        super().__init__(processes, how, folder)
        self._program = pyspy_calls.executable()
        self._dumps: dict[int, PySpyCall] = {}
        self._records: dict[int, PySpyCall] = {}
        self._began: float | None = None
        self._told = False

    def __enter__(self) -> Self:
        try:
            self._ask()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            for call in (*self._dumps.values(), *self._records.values()):
                call.kill()

    # ---- meanwhile ------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for; looks in, and goes on to the next step."""
        if self.refused:
            return True
        if self._began is None:
            if not all(call.is_over for call in self._dumps.values()):
                return False
            self._learn()
            if self.refused:
                return True
            self._record()
        elif time.monotonic() > self._began + self._how.seconds:
            self._tell_to_end()
        return all(call.is_over for call in self._records.values())

    def stop(self) -> None:
        """Take what there is by now; waits a moment for it."""
        with held_back():
            for call in self._dumps.values():
                call.kill()
            self._tell_to_end()
            while not all(call.is_over for call in self._records.values()):
                time.sleep(0.01)

    def read(self) -> list[Seen]:
        """What was seen, of every process that was asked for."""
        for seen in self.seen:
            call = self._records.get(seen.pid)
            if call is not None:
                self._read(seen, call)
        return self.seen

    # ---- py-spy's own words ---------------------------------------------------------------------

    def _ask(self) -> None:
        if self._program is None:
            self.refused = "py-spy is not installed beside this Python"
            self.remedy = "pip install py-spy"
            return
        for seen in self.seen:
            with held_back():
                self._dumps[seen.pid] = pyspy_calls.dump(self._program, seen.pid, self._folder)

    def _learn(self) -> None:
        """From the dumps: who can be looked into."""
        for seen in self.seen:
            call = self._dumps[seen.pid]
            if not call.worked:
                seen.why_not = pyspy_calls.why_not(call)
        if all(seen.why_not for seen in self.seen):
            self.refused = self.seen[0].why_not if self.seen else "there is no process"
            calls = self._dumps.values()
            self.remedy = (
                pyspy_calls.what_would_allow()
                if any(pyspy_calls.is_refused(call) or call.timed_out for call in calls)
                else "a newer one may know this Python: pip install --upgrade py-spy"
            )

    def _record(self) -> None:
        self._began = time.monotonic()
        how = self._how
        flags = [
            "--native" if how.native else "--nonblocking",
            *["--idle"] * how.idle,
            *["--gil"] * how.gil,
        ]
        for seen in self.seen:
            if not seen.why_not:
                path = self._folder / f"{seen.pid}.speedscope"
                arguments = [
                    *(str(self._program), "record", "--pid", str(seen.pid)),
                    *("--rate", str(max(round(how.rate_hz), 1))),
                    *("--duration", str(math.ceil(how.seconds))),
                    *("--format", "speedscope", "--full-filenames", "--output", str(path), *flags),
                ]
                bound_s = math.ceil(how.seconds) + _GRACE_S
                with held_back():
                    self._records[seen.pid] = PySpyCall(
                        arguments, self._folder, f"record-{seen.pid}", bound_s
                    )

    def _tell_to_end(self) -> None:
        if not self._told:
            self._told = True
            if self._began is not None:
                self.seconds = min(time.monotonic() - self._began, self._how.seconds)
            for call in self._records.values():
                call.tell_to_end()

    def _read(self, seen: Seen, call: PySpyCall) -> None:
        path = self._folder / f"{seen.pid}.speedscope"
        try:
            seen.threads = _from_speedscope(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            seen.why_not = "it ended, or py-spy lost it: " + (call.said or "no word")
            return
        finally:
            path.unlink(missing_ok=True)  # another recording of the same process may follow
        if "behind in sampling" in call.said:
            self.notes.append(f"py-spy came late to pid {seen.pid}: its shares may be inaccurate")


def _from_speedscope(found: Any) -> list[Thread]:
    """Of each thread its stacks. Format: https://www.speedscope.app/file-format-schema.json."""
    frames = [
        (frame["name"], frame.get("file") or "?", frame.get("line") or 0)
        for frame in found["shared"]["frames"]
    ]
    return _threads(frames, [profile["samples"] for profile in found["profiles"]])


def _threads(frames: Iterable[Any], threads: Iterable[list[list[int]]]) -> list[Thread]:
    known = [StackFrame(str(name), str(file), int(line)) for name, file, line in frames]
    return [[[known[number] for number in stack] for stack in stacks] for stacks in threads]


_LATE_S: Final = 1.0
"""So much later than asked a worker may be through: on a busy machine it also begins late."""
_WRITES_S: Final = 2.0
"""So long after that it may take to write down what it saw."""
_numbers = count()


class InProcess(StackSampler):
    """Lets the workers that stand by in the folder sample themselves, or this process.

    There are no native frames, and no look at Python's lock.
    """

    name = "in-process sampler"

    def __init__(self, processes: Sequence[Process], how: How, folder: Path) -> None:
        super().__init__(processes, how, folder)
        self._end: Callable[[], None] = lambda: None
        self._asked = Request(next(_numbers), how.rate_hz, how.seconds, how.idle)
        self._began = time.monotonic()
        self._stopped = False

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self_sampler.request(self._folder, self._asked)
        if any(seen.pid == os.getpid() for seen in self.seen):
            self._end = self_sampler.serve_requests(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._withdraw()
        self._end()

    def _withdraw(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.seconds = min(time.monotonic() - self._began, self._asked.seconds)
            self_sampler.withdraw(self._folder)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        late = time.monotonic() - self._began - self._asked.seconds - _LATE_S
        if late > 0:
            self._withdraw()
        return late > _WRITES_S or all(self._path(seen).exists() for seen in self.seen)

    def stop(self) -> None:
        """Take what there is by now; waits a moment for it."""
        self._withdraw()
        deadline = time.monotonic() + _WRITES_S
        while time.monotonic() < deadline and not self.is_over:
            time.sleep(0.01)

    def read(self) -> list[Seen]:
        """What was seen, of every process that was asked for."""
        for seen in self.seen:
            self._read(seen)
        return self.seen

    def _read(self, seen: Seen) -> None:
        try:
            sampled = json.loads(self._path(seen).read_text(encoding="utf-8"))
            seen.threads = _threads(sampled["frames"], sampled["threads"].values())
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            seen.why_not = "it ended before it had written down what it saw"

    def _path(self, seen: Seen) -> Path:
        return self._folder / f"{seen.pid}-{self._asked.number}{RESULT}"
