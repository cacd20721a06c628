"""Sampler of a process's own stacks: in short windows while a training is watched, or on request.

Nothing may attach to a training that is only watched, so each of its processes samples itself, in
windows that become rarer with time. On request the sampler replaces py-spy where that may not
attach: a thread looks for a request in the recording's folder. While the request file exists, the
thread samples; then it writes the result beside the request.

This module avoids `open`, which is hooked, the user's random generators, and libraries that hang
forked children.
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
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, itemgetter, truth
from typing import TYPE_CHECKING, Any, Final

from stallscope.files import whole_file
from stallscope.hooks.patches import in_this_process
from stallscope.hooks.recording_folder import Failures
from stallscope.interrupts import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


REQUEST: Final = "sampling.json"
RESULT: Final = ".sampled"
"""Ending of a result's file: `PID-NUMBER.sampled`."""
WINDOW: Final = ".window"
"""Ending of the file of a window's stacks: `PID-BEGIN.window`."""
WINDOW_S: Final = 0.5
_GAP_S: Final = 4.0
"""From one window to the next, at least (to the first, half of it) ..."""
_GAP_SHARE: Final = 0.1
"""... and this share of the time since the recording began: a day has a hundred windows."""
WINDOW_HZ: Final = 40.0
_WINDOW_SHARE: Final = 0.02
"""Share of a core that sampling may take in a window; deep stacks are sampled less often."""
_CPU_SHARE: Final = 0.002
"""Share of the process's CPU time above which a window is left out."""
_MISSING: Final = "the stacks of a process"
_LOOK_EVERY_S: Final = 0.05
_END_S: Final = 1.0
"""Seconds that an ending process waits for its result to be written."""
_JITTER: Final = 0.25
"""Share of the period by which samples vary, so that they do not lock to the program's rhythm."""
SWITCH_S: Final = 1e-4
"""Switch interval of threads during sampling. With Python's default of 5 ms, the sampler would only
get the GIL when a thread releases it by itself (in compiled code, before a wait), and would see
these most. So long is the pause between the stacks and the threads' states, too: a thread that lost
the GIL to the sampler then runs again, and a thread that released it to wait is waiting."""
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
    seconds: float
    idle: bool = False
    cost_share: float = 1.0
    """Share of a core that sampling may take; above, samples become rarer."""


@dataclass
class Sampled:
    """Stacks of one process."""

    frames: list[Frame] = field(default_factory=list)
    threads: dict[str, list[list[int]]] = field(default_factory=dict)
    """Stacks of each thread in order: numbers of frames, outermost first."""
    waits: dict[str, list[bool]] = field(default_factory=dict)
    """For each stack, whether the thread waited."""
    main: str = ""
    began_ns: int = 0


def request(folder: Path, sampling: Request) -> None:
    """Request samples from every process that serves this folder."""
    with whole_file(folder / REQUEST) as file:
        file.write(json.dumps(asdict(sampling)).encode())


def withdraw(folder: Path) -> None:
    """End the request: processes stop sampling and write their results."""
    with suppress(FileNotFoundError):
        os.unlink(folder / REQUEST)  # noqa: PTH108 - like this whole module: without hooked functions


class SelfSampler:
    """Samples the stacks of this process in a thread of its own: on request, or in short windows.

    All processes of a recording have the same windows, so that a worker that lives for seconds is
    sampled, too: they count from its begin (`origin_ns`). None: on request, as long as its folder
    exists. No fork meets the thread where `end` is called before workers are started.
    """

    def __init__(self, folder: Path, origin_ns: int | None = None) -> None:
        self.failures = Failures(folder)
        self._folder, self._origin_ns = str(folder), origin_ns
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._switch_s = self._used_s = 0.0
        self._began_s = time.process_time()

    def begin(self) -> None:
        """Sample from now on; does nothing if it does so already."""
        if self._thread is None:
            in_this_process.add(self)
            self._switch_s, self._ending = sys.getswitchinterval(), threading.Event()
            origin_ns = self._origin_ns
            run = self._serve if origin_ns is None else partial(self._sample_windows, origin_ns)
            self._thread = threading.Thread(
                target=self.failures.passing(_MISSING, run),
                args=(self._ending,),
                name="stallscope sampler",
                daemon=True,
            )
            self._thread.start()

    def end(self) -> None:
        """Stop, and let what was sampled be written; `begin` goes on."""
        thread, self._thread = self._thread, None
        in_this_process.discard(self)
        self._ending.set()
        if thread is not None:
            thread.join(_END_S)

    def retire(self, *, close: bool = True) -> None:
        """Stop. A forked child (`close=False`) has no thread, but a window's switch interval."""
        if close:
            self.end()
        elif self._thread is not None:
            sys.setswitchinterval(self._switch_s)
            self._thread = None

    def _serve(self, ending: threading.Event) -> None:
        def goes_on() -> bool:
            return os.path.exists(request_path) and not ending.is_set()  # noqa: PTH110

        request_path, answered = f"{self._folder}/{REQUEST}", -1
        while os.path.isdir(self._folder) and not ending.wait(_LOOK_EVERY_S):  # noqa: PTH112
            with suppress(OSError, ValueError, TypeError):
                sampling = Request(**_read(request_path))
                if sampling.number != answered:
                    answered = sampling.number
                    self._write(f"{sampling.number}{RESULT}", sample(sampling, goes_on))

    def _sample_windows(self, origin_ns: int, ending: threading.Event) -> None:
        begin_s, before_s = _GAP_S / 2, self._used_s
        while not ending.is_set():
            now_s = (time.perf_counter_ns() - origin_ns) / 1e9
            is_over = now_s >= begin_s + WINDOW_S or ending.wait(max(begin_s - now_s, 0.0))
            computed_s = time.process_time() - self._began_s
            if not is_over and self._used_s <= _CPU_SHARE * computed_s:
                left_s = begin_s + WINDOW_S - max(now_s, begin_s)
                window = Request(0, WINDOW_HZ, left_s, idle=True, cost_share=_WINDOW_SHARE)
                sampled = sample(window, lambda: not ending.is_set(), ending.wait)
                self._write(f"{sampled.began_ns}{WINDOW}", sampled)
                self._used_s = before_s + time.thread_time()
            begin_s += max(_GAP_S, _GAP_SHARE * begin_s)

    def _write(self, name: str, sampled: Sampled) -> None:
        with whole_file(f"{self._folder}/{os.getpid()}-{name}") as file:
            file.write(json.dumps(asdict(sampled)).encode())


def sample(
    sampling: Request,
    goes_on: Callable[[], bool],
    pause: Callable[[float], object] = time.sleep,
) -> Sampled:
    """Sample the stacks of this process's other threads for the requested time.

    `goes_on` is called before each sample, and ends sampling early; `pause` waits for the next one.
    """
    switch_interval_s, states = sys.getswitchinterval(), _States()
    sampled = Sampled(main=str(threading.main_thread().ident), began_ns=time.perf_counter_ns())
    numbers: dict[tuple[Any, int | None], int] = {}
    sys.setswitchinterval(SWITCH_S)
    try:
        for _ in _moments(sampling, goes_on, pause):
            stacks = _stacks()
            time.sleep(SWITCH_S)
            for ident, stack in stacks.items():
                is_idle = states.is_idle(ident, stack)
                if sampling.idle or not is_idle:
                    keys = [numbers.setdefault(frame, len(numbers)) for frame in reversed(stack)]
                    sampled.threads.setdefault(str(ident), []).append(keys)
                    sampled.waits.setdefault(str(ident), []).append(is_idle)
    finally:
        sys.setswitchinterval(switch_interval_s)
        states.close()
    sampled.frames = [
        (str(getattr(code, "co_qualname", code.co_name)), code.co_filename, line or 0)
        for code, line in numbers
    ]
    return sampled


def _moments(
    sampling: Request, goes_on: Callable[[], bool], pause: Callable[[float], object]
) -> Iterator[None]:
    rng, period = random.Random(), 1 / sampling.rate_hz  # noqa: S311 - a generator of its own
    due, used = time.perf_counter(), time.thread_time()
    end = due + sampling.seconds
    while goes_on() and (now := time.perf_counter()) < end:
        pause(max(due + period * rng.uniform(-_JITTER, _JITTER) - now, 0))
        yield
        costs, used = time.thread_time() - used, time.thread_time()
        due = max(due + max(period, costs / sampling.cost_share), time.perf_counter() - period)


def _stacks() -> dict[int, Stack]:
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
    descriptor = os.open(path, os.O_RDONLY)  # `files.read_file` opens it through hooked code
    try:
        return json.loads(os.read(descriptor, 1 << 16))
    finally:
        os.close(descriptor)
