"""py-spy as a guest in several processes, and what stands in for it where it may not attach.

Over 500 lines, as probing, attaching and refusal belong to one tool. Nothing here waits: the
training loop goes on, and whoever records looks in now and then. A refused `record` can hang, so it
is only made where a `dump` under a timeout has worked; a refusal names the setting that would allow
it. Then the processes sample themselves: `InProcess` has the face of `Spy` and gives such stacks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stallscope.flame.classify import StackFrame
from stallscope.hooks import self_sampler
from stallscope.hooks.self_sampler import RESULT, Request
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self


DUMP_S: Final = 3.0
"""So long a `dump` may take; it takes a quarter of a second."""
_MORE_DUMPS: Final = 5
"""So often it is made again: it reads stacks that change meanwhile, and may fail by that."""
_END_S: Final = 2.0
"""So long it may take where it is told to end."""


class PySpyCall:
    """One run of py-spy, with an end. Hold interrupts back until it is kept where it gets killed.

    Args:
        arguments: of py-spy.
        folder: for its output.
        name: of its files there.
        bound_s: it is killed after so long.
        more: so often it is made again, within that time, where it fails without being refused.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, name: str, bound_s: float, more: int = 0
    ) -> None:
        self._arguments = arguments
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._deadline = time.monotonic() + bound_s
        self._more = more
        self.timed_out = False
        self._make()

    def _make(self) -> None:
        with held_back(), self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(  # noqa: S603 - py-spy, and numbers
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )

    @property
    def is_over(self) -> bool:
        """Whether it has ended; ends it where its time is over."""
        if self._process.poll() is not None:
            if self._more and not self.worked and not is_refused(self):
                self._more -= 1
                self._make()
                return False
            return True
        if time.monotonic() < self._deadline:
            return False
        self.timed_out = True
        self.kill()
        return True

    @property
    def worked(self) -> bool:
        """Whether it ended well."""
        return self._process.poll() == 0 and not self.timed_out

    @property
    def out(self) -> str:
        """What it printed."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def said(self) -> str:
        """What it has to say, without the trace of its own stack."""
        text = self._err.read_text(encoding="utf-8", errors="replace")
        return text.partition("Stack backtrace:")[0].strip()

    def tell_to_end(self) -> None:
        """As Ctrl-C does: it writes down what it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._deadline = min(self._deadline, time.monotonic() + _END_S)

    def kill(self) -> None:
        """End it now."""
        self._more = 0
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def executable() -> Path | None:
    """The py-spy that belongs to this Python, else the one on the PATH; None: there is none."""
    beside = Path(sys.executable).parent
    for folder in (beside, beside / "Scripts"):
        for name in ("py-spy", "py-spy.exe"):
            if (folder / name).is_file():
                return folder / name
    found = shutil.which("py-spy")
    return Path(found) if found else None


def dump(program: Path, pid: int, folder: Path, *, with_locals: bool = False) -> PySpyCall:
    """Ask for the stacks of a process, once."""
    arguments = [str(program), "dump", "--nonblocking", "--json", "--pid", str(pid)]
    arguments += ["--locals"] * with_locals
    return PySpyCall(arguments, folder, f"dump-{pid}", DUMP_S, _MORE_DUMPS)


def is_refused(call: PySpyCall) -> bool:
    """Whether py-spy was not allowed to look."""
    said = call.said.lower()
    return any(word in said for word in ("permission denied", "not permitted", "elevated", "sudo"))


def why_not(call: PySpyCall) -> str:
    """Why a call came to nothing, in words."""
    if call.timed_out:
        return f"py-spy got no answer within {DUMP_S:.0f} s"
    if is_refused(call):
        return "py-spy may not attach"
    said = call.said
    first = said.removeprefix("Error: ").partition("\n")[0].rstrip(". ")
    with suppress(ValueError):
        first = first[: first.index(" Check that the process is running")].rstrip(". ")
    return f"py-spy could not read it ({first or 'it ended without a word'})"


_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
_SUDO_SCOPE: Final = 2
_NEVER_SCOPE: Final = 3


def what_would_allow() -> str:
    """The setting to change, as a sentence without its full stop."""
    if sys.platform == "darwin":
        return "macOS lets only root attach: start this Python with sudo to use py-spy"
    if sys.platform == "win32":
        return "start this Python as administrator to use py-spy"
    said = []
    scope = _ptrace_scope()
    if scope == _NEVER_SCOPE:
        said.append(
            "kernel.yama.ptrace_scope is 3, which forbids attaching until the machine starts anew "
            "with a lower value"
        )
    elif scope:
        root = " (2 allows root alone)" if scope == _SUDO_SCOPE else ""
        said.append(
            f"kernel.yama.ptrace_scope is {scope}{root}: `sudo sysctl kernel.yama.ptrace_scope=0` "
            "lets py-spy attach"
        )
    if any(map(os.path.exists, _CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ:
        said.append(
            "this is a container: start it with `--cap-add SYS_PTRACE` (Kubernetes: "
            'securityContext.capabilities.add: ["SYS_PTRACE"]) to let py-spy attach'
        )
    return "; ".join(said) or (
        "neither kernel.yama.ptrace_scope nor a container is in the way that could be seen: run as "
        "the user of that process or with sudo, or allow SYS_PTRACE"
    )


def _ptrace_scope() -> int:
    with suppress(OSError, ValueError):
        return int(_SCOPE.read_text())
    return 0


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
        self._program = executable()
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
                self._dumps[seen.pid] = dump(self._program, seen.pid, self._folder)

    def _learn(self) -> None:
        """From the dumps: who can be looked into."""
        for seen in self.seen:
            call = self._dumps[seen.pid]
            if not call.worked:
                seen.why_not = why_not(call)
        if all(seen.why_not for seen in self.seen):
            self.refused = self.seen[0].why_not if self.seen else "there is no process"
            self.remedy = (
                what_would_allow()
                if any(is_refused(call) or call.timed_out for call in self._dumps.values())
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
            seen.threads = from_speedscope(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            seen.why_not = "it ended, or py-spy lost it: " + (call.said or "no word")
            return
        finally:
            path.unlink(missing_ok=True)  # another recording of the same process may follow
        if "behind in sampling" in call.said:
            self.notes.append(f"py-spy came late to pid {seen.pid}: its shares may be inaccurate")


def from_speedscope(found: Any) -> list[Thread]:
    """Of each thread its stacks. Format: https://www.speedscope.app/file-format-schema.json."""
    frames = [
        (frame["name"], frame.get("file") or "?", frame.get("line") or 0)
        for frame in found["shared"]["frames"]
    ]
    return _threads(frames, [profile["samples"] for profile in found["profiles"]])


def _threads(frames: Iterable[Any], threads: Iterable[list[list[int]]]) -> list[Thread]:
    """Of each thread its stacks, from the numbers of their frames.

    py-spy reads the memory of a process that goes on, and now and then a name that is torn: what
    cannot be printed, or ends a frame in a collapsed stack, is left out of it.
    """
    known = [StackFrame(_clean(name), _clean(file), int(line)) for name, file, line in frames]
    return [[[known[number] for number in stack] for stack in stacks] for stacks in threads]


def _clean(text: object) -> str:
    return "".join(
        c if c.isprintable() and c != ";" else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )


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
