"""py-spy as a guest in several processes: asked first with `dump`, and never left behind.

Nothing here waits: the training loop goes on, and whoever records looks in now and then. A refused
`record` can hang, so it is only made where a `dump` under a timeout has worked.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stallscope.interrupts import held_back
from stallscope.measure import spycall
from stallscope.measure.attaching import what_would_allow
from stallscope.measure.frames import Frame
from stallscope.measure.spycall import Call

if TYPE_CHECKING:
    from collections.abc import Sequence
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


@dataclass
class Seen:
    """What was seen in one process."""

    worker: int | None
    """Its number in its loader; None: no worker."""
    pid: int
    threads: list[list[list[Frame]]] = field(default_factory=list)
    """Of each thread its stacks, in the order in which they were taken; outermost frame first."""
    why_not: str = ""
    """Why there is nothing, in words; empty where there is."""


class Spy:
    """Looks into several processes at once.

    Args:
        processes: number of each worker (None for another process) and its process id.
        how: how to sample.
        folder: private, for what py-spy writes.
    """

    name = "py-spy"

    def __init__(self, processes: Sequence[tuple[int | None, int]], how: How, folder: Path) -> None:
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
        self._program = spycall.executable()
        self._dumps: dict[int, Call] = {}
        self._records: dict[int, Call] = {}
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
                self._dumps[seen.pid] = spycall.dump(self._program, seen.pid, self._folder)

    def _learn(self) -> None:
        """From the dumps: who can be looked into."""
        for seen in self.seen:
            call = self._dumps[seen.pid]
            if not call.worked:
                seen.why_not = spycall.why_not(call)
        if all(seen.why_not for seen in self.seen):
            self.refused = self.seen[0].why_not if self.seen else "there is no process"
            self.remedy = (
                what_would_allow()
                if any(spycall.is_refused(call) or call.timed_out for call in self._dumps.values())
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
                    self._records[seen.pid] = Call(
                        arguments, self._folder, f"record-{seen.pid}", bound_s
                    )

    def _tell_to_end(self) -> None:
        if not self._told:
            self._told = True
            if self._began is not None:
                self.seconds = min(time.monotonic() - self._began, self._how.seconds)
            for call in self._records.values():
                call.tell_to_end()

    def _read(self, seen: Seen, call: Call) -> None:
        path = self._folder / f"{seen.pid}.speedscope"
        try:
            seen.threads = _threads(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            seen.why_not = "it ended, or py-spy lost it: " + (call.said or "no word")
            return
        finally:
            path.unlink(missing_ok=True)  # another recording of the same process may follow
        if "behind in sampling" in call.said:
            self.notes.append(f"py-spy came late to pid {seen.pid}: its shares may be inaccurate")


def _threads(speedscope: Any) -> list[list[list[Frame]]]:
    """Of each thread its stacks. Format: https://www.speedscope.app/file-format-schema.json."""
    frames = [
        Frame(str(one["name"]), str(one.get("file") or "?"), int(one.get("line") or 0))
        for one in speedscope["shared"]["frames"]
    ]
    return [
        [[frames[number] for number in stack] for stack in profile["samples"]]
        for profile in speedscope["profiles"]
    ]
