"""A process samples its own stacks: the stand-in for py-spy where that may not attach.

A worker stands by in a thread that looks for a request in the recording's folder. While the request
lies there, it samples; what it saw then lies beside it. Nothing here uses `open`, which is hooked,
a random generator that is the user's, or a library that hangs forked children.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, itemgetter, truth
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import whole_file
from stallscope.hooks.failures import Failures
from stallscope.interrupts import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


REQUEST: Final = "sampling.json"
RESULT: Final = ".sampled"
"""Ending of a result's file: `PID-NUMBER.sampled`."""
_LOOK_EVERY_S: Final = 0.05
_END_S: Final = 1.0
"""So long a process that ends waits for its own answer."""
_JITTER: Final = 0.25
"""Of the time between two samples, so that they do not march in step with what they look at."""
_SWITCH_S: Final = 1e-4
"""A thread that holds Python's lock gives it up when it is asked for so long. With Python's 5 ms,
every look would come when the lock is let go of by itself: in compiled code and before a wait."""
_SETTLE_S: Final = 1e-4
"""After a look, before the threads' states are read: whoever gave up the lock for the look runs
again, and whoever gave it up to wait is waiting."""
_IDLE: Final = frozenset({"_wait_for_tstate_lock", "accept", "poll", "recv", "select", "wait"})
"""Innermost functions that wait, where the system does not tell what a thread does."""

_CODE_AND_LINE: Final = attrgetter("f_code", "f_lineno")

Stack = list[tuple[Any, "int | None"]]
"""Code and line of each frame, the innermost first."""
Frame = tuple[str, str, int]
"""Function, file, line."""


@dataclass(frozen=True)
class Request:
    """Request to sample stacks."""

    number: int
    """Of the request, so that none is answered twice."""
    rate_hz: float
    """Samples a second."""
    seconds: float
    """For how long."""
    idle: bool = False
    """Whether to sample waiting threads, too."""


@dataclass
class Sampled:
    """Stacks of one process."""

    frames: list[Frame] = field(default_factory=list)
    """Each once."""
    threads: dict[str, list[list[int]]] = field(default_factory=dict)
    """For each thread its stacks in order: numbers of frames, the outermost first."""
    looks: int = 0
    """Number of samples taken."""


def serve_requests(folder: Path) -> Callable[[], None]:
    """Answer requests in this folder from now on, as long as it is there.

    Returns:
        What to call at the end of the process, so that a begun answer is written down.
    """
    ending = threading.Event()
    stand_by = Failures(folder).passing("the stacks of a worker", _stand_by)
    thread = threading.Thread(
        target=stand_by, args=(str(folder), ending), name="stallscope sampler", daemon=True
    )
    thread.start()

    def end() -> None:
        ending.set()
        thread.join(_END_S)

    return end


def request(folder: Path, asked: Request) -> None:
    """Ask every process that stands by there."""
    with whole_file(folder / REQUEST) as file:
        file.write(json.dumps(asdict(asked)).encode())


def withdraw(folder: Path) -> None:
    """Let them stop, and leave what they have."""
    with suppress(FileNotFoundError):
        os.unlink(folder / REQUEST)  # noqa: PTH108 - as everything here: past any hook


def _stand_by(folder: str, ending: threading.Event) -> None:
    def going() -> bool:
        return os.path.exists(asked_path) and not ending.is_set()  # noqa: PTH110

    asked_path, answered = f"{folder}/{REQUEST}", -1
    while os.path.isdir(folder) and not ending.wait(_LOOK_EVERY_S):  # noqa: PTH112
        with suppress(OSError, ValueError, TypeError):
            asked = Request(**_read(asked_path))
            if asked.number != answered:
                answered = asked.number
                seen = sample(asked, going)
                with whole_file(f"{folder}/{os.getpid()}-{asked.number}{RESULT}") as file:
                    file.write(json.dumps(asdict(seen)).encode())


def sample(asked: Request, going: Callable[[], bool]) -> Sampled:
    """Look at the stacks of this process's other threads until the time is over.

    Args:
        asked: what to sample.
        going: asked before each look; false ends it early.
    """
    switch_interval_s, states = sys.getswitchinterval(), _States()
    sys.setswitchinterval(_SWITCH_S)
    try:
        return _sample(asked, going, states)
    finally:
        sys.setswitchinterval(switch_interval_s)
        states.close()


def _sample(asked: Request, going: Callable[[], bool], states: _States) -> Sampled:
    seen = Sampled()
    numbers: dict[tuple[Any, int | None], int] = {}
    rng, period = random.Random(), 1 / asked.rate_hz  # noqa: S311 - a generator of its own
    due = time.perf_counter()
    end = due + asked.seconds
    while going() and (now := time.perf_counter()) < end:
        time.sleep(max(due + period * rng.uniform(-_JITTER, _JITTER) - now, 0))
        stacks = _stacks()
        time.sleep(_SETTLE_S)
        for ident, stack in stacks.items():
            if asked.idle or not states.is_idle(ident, stack):
                keys = [numbers.setdefault(frame, len(numbers)) for frame in reversed(stack)]
                seen.threads.setdefault(str(ident), []).append(keys)
        seen.looks += 1
        due = max(due + period, time.perf_counter() - period)
    seen.frames = [(_name(code), code.co_filename, line or 0) for code, line in numbers]
    return seen


def _stacks() -> dict[int, Stack]:
    """Of each other thread its frames, the innermost first."""
    found = {}
    with no_collection():  # see `interrupts`: CPython's lock of all threads is held meanwhile
        for ident in set(sys._current_frames()) - {threading.get_ident()}:
            with suppress(KeyError):  # it has ended meanwhile
                found[ident] = _stack(ident)
    return found


def _stack(ident: int) -> Stack:
    """Code and line of each frame of a thread, read in one go.

    Every iterator in here is compiled code, so Python's lock is held from the first frame to the
    last. Between two lines of Python it may change hands, and then `f_back` of a frame that has
    meanwhile returned can lead anywhere: CPython 3.11 gave a function for a frame.
    """
    innermost = islice(map(itemgetter(ident), iter(sys._current_frames, None)), 1)
    outwards = accumulate(chain(innermost, repeat("f_back")), getattr)
    return list(map(_CODE_AND_LINE, takewhile(truth, outwards)))


def _name(code: Any) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


class _States:
    """States of threads: running (or ready) or idle, from Linux; elsewhere from the stack."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def is_idle(self, ident: int, stack: Stack) -> bool:
        """Return whether a thread waits; to be asked soon after its stack was read."""
        file = self._files.get(ident)
        if file is None:
            file = self._files[ident] = self._open(ident)
        if file < 0:
            return stack[0][0].co_name in _IDLE
        try:
            state = os.pread(file, 512, 0).rpartition(b")")[2].split()[0]
        except (OSError, IndexError):  # it has ended
            return True
        return state not in (b"R", b"D")

    def _open(self, ident: int) -> int:
        known = {thread.ident: thread.native_id for thread in threading.enumerate()}
        try:
            return os.open(f"/proc/self/task/{known[ident]}/stat", os.O_RDONLY)
        except (OSError, KeyError):
            return -1

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            if file >= 0:
                os.close(file)


def _read(path: str) -> Any:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return json.loads(os.read(descriptor, 1 << 16))
    finally:
        os.close(descriptor)
