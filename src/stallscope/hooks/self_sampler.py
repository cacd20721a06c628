"""Sampler of a process's own stacks: the replacement for py-spy where that may not attach.

A thread of a worker looks for a request in the recording's folder. While the request file exists,
the thread samples; then it writes the result beside the request. This module avoids `open`, which
is hooked, the user's random generators, and libraries that hang forked children.
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
    from collections.abc import Callable, Iterator
    from pathlib import Path


REQUEST: Final = "sampling.json"
RESULT: Final = ".sampled"
"""Ending of a result's file: `PID-NUMBER.sampled`."""
_LOOK_EVERY_S: Final = 0.05
_END_S: Final = 1.0
"""Seconds that an ending process waits for its result to be written."""
_JITTER: Final = 0.25
"""Share of the period by which samples vary, so that they do not lock to the program's rhythm."""
_SWITCH_S: Final = 1e-4
"""Switch interval of threads during sampling. With Python's default of 5 ms, the sampler would only
get the GIL when a thread releases it by itself: in compiled code and before a wait."""
_SETTLE_S: Final = 1e-4
"""Pause between the stacks and the threads' states: a thread that lost the GIL to the sampler then
runs again, and a thread that released it to wait is waiting."""
_IDLE: Final = frozenset({"_wait_for_tstate_lock", "accept", "poll", "recv", "select", "wait"})
"""Innermost functions that wait, for systems without thread states."""

_CODE_AND_LINE: Final = attrgetter("f_code", "f_lineno")

Stack = list[tuple[Any, "int | None"]]
"""Code and line of each frame, innermost first."""
Frame = tuple[str, str, int]
"""Function, file, line."""


@dataclass(frozen=True)
class Request:
    """Request to sample stacks."""

    number: int
    """Number of the request, so that no process answers it twice."""
    rate_hz: float
    """Samples per second."""
    seconds: float
    """Duration of sampling."""
    idle: bool = False
    """True to sample waiting threads, too."""


@dataclass
class Sampled:
    """Stacks of one process."""

    frames: list[Frame] = field(default_factory=list)
    """Distinct frames."""
    threads: dict[str, list[list[int]]] = field(default_factory=dict)
    """Stacks of each thread in order: numbers of frames, outermost first."""
    looks: int = 0
    """Number of samples taken."""


def serve_requests(folder: Path) -> Callable[[], None]:
    """Answer requests in this folder from now on, as long as the folder exists.

    Returns:
        Function for the end of the process, which lets a running answer be written.
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


def request(folder: Path, sampling: Request) -> None:
    """Request samples from every process that serves this folder."""
    with whole_file(folder / REQUEST) as file:
        file.write(json.dumps(asdict(sampling)).encode())


def withdraw(folder: Path) -> None:
    """End the request: processes stop sampling and write their results."""
    with suppress(FileNotFoundError):
        os.unlink(folder / REQUEST)  # noqa: PTH108 - like this whole module: without hooked functions


def _stand_by(folder: str, ending: threading.Event) -> None:
    def goes_on() -> bool:
        return os.path.exists(request_path) and not ending.is_set()  # noqa: PTH110

    request_path, answered = f"{folder}/{REQUEST}", -1
    while os.path.isdir(folder) and not ending.wait(_LOOK_EVERY_S):  # noqa: PTH112
        with suppress(OSError, ValueError, TypeError):
            sampling = Request(**_read(request_path))
            if sampling.number != answered:
                answered = sampling.number
                result = sample(sampling, goes_on)
                with whole_file(f"{folder}/{os.getpid()}-{sampling.number}{RESULT}") as file:
                    file.write(json.dumps(asdict(result)).encode())


def sample(sampling: Request, goes_on: Callable[[], bool]) -> Sampled:
    """Sample the stacks of this process's other threads for the requested time.

    Args:
        sampling: rate and duration.
        goes_on: called before each sample; False ends sampling early.
    """
    switch_interval_s, states = sys.getswitchinterval(), _States()
    sampled = Sampled()
    numbers: dict[tuple[Any, int | None], int] = {}
    sys.setswitchinterval(_SWITCH_S)
    try:
        for _ in _moments(sampling, goes_on):
            stacks = _stacks()
            time.sleep(_SETTLE_S)
            for ident, stack in stacks.items():
                if sampling.idle or not states.is_idle(ident, stack):
                    keys = [numbers.setdefault(frame, len(numbers)) for frame in reversed(stack)]
                    sampled.threads.setdefault(str(ident), []).append(keys)
            sampled.looks += 1
    finally:
        sys.setswitchinterval(switch_interval_s)
        states.close()
    sampled.frames = [
        (str(getattr(code, "co_qualname", code.co_name)), code.co_filename, line or 0)
        for code, line in numbers
    ]
    return sampled


def _moments(sampling: Request, goes_on: Callable[[], bool]) -> Iterator[None]:
    """Yield when it is time for a sample."""
    rng, period = random.Random(), 1 / sampling.rate_hz  # noqa: S311 - a generator of its own
    due = time.perf_counter()
    end = due + sampling.seconds
    while goes_on() and (now := time.perf_counter()) < end:
        time.sleep(max(due + period * rng.uniform(-_JITTER, _JITTER) - now, 0))
        yield
        due = max(due + period, time.perf_counter() - period)


def _stacks() -> dict[int, Stack]:
    """Return the frames of each other thread, innermost first."""
    stacks = {}
    with no_collection():  # see `interrupts`: CPython holds its lock of all threads
        for ident in set(sys._current_frames()) - {threading.get_ident()}:
            with suppress(KeyError):  # the thread has ended
                stacks[ident] = _stack(ident)
    return stacks


def _stack(ident: int) -> Stack:
    """Return code and line of each frame of a thread, read atomically.

    Every iterator here is compiled code, which holds the GIL from the first frame to the last.
    Between two lines of Python another thread may run. Then `f_back` of a frame that has returned
    can point anywhere: CPython 3.11 returned a function for a frame.
    """
    innermost = islice(map(itemgetter(ident), iter(sys._current_frames, None)), 1)
    outwards = accumulate(chain(innermost, repeat("f_back")), getattr)
    return list(map(_CODE_AND_LINE, takewhile(truth, outwards)))


class _States:
    """States of threads: running (or ready) or idle, from Linux; elsewhere from the stack."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def is_idle(self, ident: int, stack: Stack) -> bool:
        """Return True if a thread waits; call it right after reading the thread's stack."""
        file = self._files.get(ident)
        if file is None:
            file = self._files[ident] = self._open(ident)
        if file < 0:
            return stack[0][0].co_name in _IDLE
        try:
            state = os.pread(file, 512, 0).rpartition(b")")[2].split()[0]
        except (OSError, IndexError):  # the thread has ended
            return True
        return state not in (b"R", b"D")

    def _open(self, ident: int) -> int:
        native_ids = {thread.ident: thread.native_id for thread in threading.enumerate()}
        try:
            return os.open(f"/proc/self/task/{native_ids[ident]}/stat", os.O_RDONLY)
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
