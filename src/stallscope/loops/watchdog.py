"""An end for a wait that has none: a measurement never hangs because a worker does.

Torch waits for a batch as long as its worker lives. A worker that stands still, be it at a lock
that nobody will open, in a loop without an end or stopped, would keep the loop for ever, and no
budget would end it. So a thread looks on while a loop of ours waits. Where a batch does not come
within the budget and a grace, it reads where the worker stands, and kills the workers of that
loader: then torch's own wait fails, and the loop ends with a `NoBatchError` in its place.

Only loops of ours are watched, never those of a user who is watched passively.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import psutil
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope import pyspy_calls
from stallscope.apart import polars_runs
from stallscope.errors import STACK, NoBatchError
from stallscope.files import workspace
from stallscope.hooks.probe import shut_down
from stallscope.interrupts import held_back, kept_from_children, no_collection
from stallscope.targets.object_graph import thawed
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


GRACE_S: float = 10.0
"""After the budget, so long a batch may take, ..."""
START_GRACE_S: float = 30.0
"""... the first one, for which workers start and import, as long as any of them computes, ..."""
_TIMES_LONGEST: Final = 4
"""... and where batches take longer, so many times as long as the longest one until then."""
_LOOK_EVERY_S: Final = 1.0
_ENDING_S: Final = 7.0
"""So long a wait may go on whose workers were killed: torch looks every five seconds."""
_IDLE_S: Final = 5.0
"""Who waits for so long without computing does not start any more, ..."""
_BUSY_S: Final = 0.02
"""... which is less CPU time than this in a second; threads of ours use some."""
WAKE: Final[int] = getattr(signal, "SIGRTMAX", 0)
"""The signal that ends a wait which is none of torch's; 0 where the system has none to spare. Not
SIGINT, which a process ignores that a shell has started with `&`, or treats in its own way."""
_WORKER_LOOP: Final = "_worker_loop"
_FOR_WORKERS: Final = ("_try_get_data", "_get_data")
"""Where torch's loop waits for its workers; in the second for the thread that pins memory."""
_PACKAGE: Final = str(Path(__file__).parents[1])
_POLARS: Final = "(polars/"
"""How the file of a frame of polars' begins."""
_INSTALLED: Final = ("site-packages", "dist-packages")
_STATES: Final = {
    psutil.STATUS_STOPPED: "it is stopped, as by SIGSTOP",
    psutil.STATUS_TRACING_STOP: "a debugger has stopped it",
    psutil.STATUS_DISK_SLEEP: "it waits for a disk or a network file system",
    psutil.STATUS_RUNNING: "it is computing",
    psutil.STATUS_SLEEPING: "it sleeps",
}


class _Patience:
    """How long a wait of one measurement may take; kept over all its loops."""

    def __init__(self, budget_s: float, remedy: str = "give it a larger budget_s") -> None:
        self.budget_s = budget_s
        self.remedy = remedy
        self.longest_s: float | None = None
        """The longest wait until now; None before the first batch."""
        self.others = {process.pid for process in multiprocessing.active_children()}
        """Processes that were there before: workers of the user's own loops among them."""
        self._deadline_s = time.monotonic() + budget_s

    def ends_s(self, since_s: float, *, starts: bool = False, idle: bool = False) -> float:
        """When a wait that began then (`time.monotonic`) has lasted too long.

        Args:
            since_s: when it began.
            starts: whether it is no usual wait for a batch.
            idle: whether nobody computes whom it is for.
        """
        grace_s = GRACE_S if idle else START_GRACE_S
        if self.longest_s is not None and not starts:
            grace_s = max(GRACE_S, _TIMES_LONGEST * self.longest_s)
        return max(self._deadline_s, since_s) + grace_s


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)


@contextmanager
def within(budget_s: float, **more: str) -> Iterator[None]:
    """Let no wait for a batch in this block go on without an end; of nested ones the outer counts.

    Args:
        budget_s: for the whole block, seconds. Only a wait that outlasts it is ever ended.
        more: `remedy`, what to do where it is only slow, if not to give a larger budget.
    """
    if _patience.get() is not None:
        yield
        return
    token = _patience.set(_Patience(budget_s, **more))
    try:
        yield
    finally:
        _patience.reset(token)


@contextmanager
def starting() -> Iterator[None]:
    """Let the workers that start in this block take no longer than a first batch may.

    A worker that is not forked gets a pickled copy of the dataset before the next one starts, and
    nothing ends such a start. So the next one does not begin where the time is over.

    Raises:
        NoBatchError: it was, before all had started; those that had are gone.
    """
    patience = _patience.get()
    if patience is None:
        yield
        return
    began_s, here = time.monotonic(), (os.getpid(), threading.get_ident())
    begun: list[BaseProcess] = []
    start, watch = BaseProcess.start, _Lookout(patience, starts=True)

    def start_in_time(process: BaseProcess) -> None:
        now_s = time.monotonic()
        if (os.getpid(), threading.get_ident()) == here:  # not in a worker, which may start some
            if now_s > patience.ends_s(began_s):
                raise _slow_start(process, len(begun), now_s - began_s, patience.budget_s)
            begun.append(process)
            watch.went_on()
        with ExitStack() as kept:
            if getattr(process, "_start_method", None) != "forkserver":  # which lives on
                kept.enter_context(kept_from_children())
            start(process)

    BaseProcess.start = start_in_time  # type: ignore[assignment,method-assign]
    try:
        with watch.looking_on(), watch.waiting():
            yield
    except BaseException:
        _end_half_made(begun)
        raise
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


def _slow_start(process: BaseProcess, begun: int, took_s: float, budget_s: float) -> NoBatchError:
    why = (
        "Workers that are not forked get a pickled copy of the dataset, one after the other: let "
        "it hold what says where samples are, not the samples; give it"
    )
    if getattr(process, "_start_method", None) == "fork":
        why = "Give the loader"
    return NoBatchError(
        f"{count(begun, 'worker')} took {seconds(took_s)} to start, past the budget of "
        f"{seconds(budget_s)}, and not all had started. {why} fewer workers; or give a larger "
        "budget_s"
    )


def _end_half_made(begun: list[BaseProcess]) -> None:
    """End what has these workers, which nobody else knows: its making was not over."""
    for one in _iterators() if begun else ():
        if any(process in begun for process in one._workers):  # noqa: SLF001
            if not hasattr(one, "_workers_status"):  # none has a task yet
                _kill(one)
                vars(one)["_workers_status"] = [True] * len(one._workers)  # noqa: SLF001
            shut_down(one)


def watched(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """The same batches; a wait for one that takes too long ends.

    Raises:
        NoBatchError: a batch did not come.
    """
    patience = _patience.get()
    if patience is None:
        yield from batches
        return
    watch = _Lookout(patience)
    with watch.looking_on():
        while (got := watch.next(batches)) is not None:
            yield got.pop()  # a batch that the loop drops must not live on here


@contextmanager
def working() -> Iterator[None]:
    """Let no part of the work of this process in the block take for ever; each calls `went_on`.

    Raises:
        NoBatchError: one did.
    """
    patience = _patience.get()
    if patience is None:
        yield
        return
    watch = _Lookout(patience, starts=True)
    token = _work.set(watch)
    try:
        with watch.looking_on(), watch.waiting():
            yield
    finally:
        _work.reset(token)


def went_on() -> None:
    """Tell who looks on at `working` that a part of the work is done."""
    watch = _work.get()
    if watch is not None:
        watch.went_on()


class _Lookout:
    """Looks on while one loop waits.

    Args:
        patience: how long it may.
        starts: whether its waits are none for a batch of a loop that goes on.
    """

    def __init__(self, patience: _Patience, *, starts: bool = False) -> None:
        self._patience, self._starts = patience, starts
        self._loop = threading.current_thread()
        self._since_s: float | None = None  # None: the loop does not wait
        self._error: NoBatchError | None = None
        self._switch = threading.Lock()
        self._thread: tuple[threading.Thread, threading.Event] | None = None
        in_main = self._loop is threading.main_thread()
        self._can_wake = in_main and WAKE != 0 and signal.getsignal(WAKE) is not None

    def next(self, batches: Iterator[Any]) -> list[Any] | None:
        """The next batch as a list of one; None at the end."""
        with self.waiting():
            try:
                return [next(batches)]
            except StopIteration:
                return None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block is a wait, or several, see `went_on`."""
        self._since_s = time.monotonic()
        try:
            try:
                yield
            finally:
                self._keep(None)
        except BaseException:  # that of `_wake`, which may come as late as in `_keep`
            if self._error is not None:
                raise self._error from None
            raise

    def went_on(self) -> None:
        """A wait is over, and the next one begins."""
        self._keep(time.monotonic())

    def _keep(self, since_s: float | None) -> None:
        began_s, now_s = self._since_s, time.monotonic()
        with self._switch:
            self._since_s = since_s
        if began_s is not None and not self._starts:
            self._patience.longest_s = max(self._patience.longest_s or 0.0, now_s - began_s)

    @contextmanager
    def looking_on(self) -> Iterator[None]:
        """Have a thread that looks on."""
        with self._waking():
            try:
                _living.add(self)
                self.go_on()
                yield
            finally:
                _living.discard(self)
                with held_back():
                    self.pause()

    def pause(self) -> None:
        """Have no thread."""
        if self._thread is not None:
            (thread, done), self._thread = self._thread, None
            done.set()
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()

    def go_on(self) -> None:
        """Have one, again maybe."""
        done = threading.Event()
        thread = threading.Thread(
            target=self._look_on, args=(done,), name="stallscope watchdog", daemon=True
        )
        self._thread = thread, done
        with suppress(RuntimeError):  # no room for one more thread: nobody looks on
            thread.start()

    @contextmanager
    def _waking(self) -> Iterator[None]:
        """Let `WAKE` end a wait of the main thread, and leave its handler as it was."""
        if not self._can_wake:
            yield
            return
        before = signal.signal(WAKE, self._wake)
        try:
            yield
        finally:
            signal.signal(WAKE, signal.SIG_IGN)  # drops one that is still on its way
            signal.signal(WAKE, before)

    def _wake(self, *_: object) -> None:
        if self._error is not None and self._since_s is not None:
            raise KeyboardInterrupt

    # ---- the thread -------------------------------------------------------------------------

    def _look_on(self, done: threading.Event) -> None:
        pause_s = used_s = 0.0
        busy_s = time.monotonic()
        while not done.wait(pause_s):
            since_s, now_s = self._since_s, time.monotonic()
            idle = now_s - busy_s > _IDLE_S
            left_s = _LOOK_EVERY_S
            if since_s is not None:
                left_s = self._patience.ends_s(since_s, starts=self._starts, idle=idle) - now_s
                if left_s <= 0:
                    self._end(since_s, done)
            if self._starts or self._patience.longest_s is None:
                before_s, used_s = used_s, self._cpu_s()
                busy_s = now_s if used_s - before_s > _BUSY_S else busy_s
            pause_s = min(max(left_s, 0.01), _LOOK_EVERY_S)

    def _cpu_s(self) -> float:
        """CPU time of this process, this thread's apart, and of its children."""
        used_s = time.process_time() - time.thread_time()
        children: set[BaseProcess] = vars(multiprocessing.process)["_children"]
        for process in children.copy():  # `active_children` reaps them
            with suppress(psutil.Error):
                used_s += sum(psutil.Process(process.pid).cpu_times()[:2])
        return used_s

    def _end(self, since_s: float, done: threading.Event) -> None:
        """End a wait, if it is still the same when it is known where the worker stands."""
        iterators = [one for one in _iterators() if not self._patience.others & _pids(one)]
        here = _here(self._loop.ident or 0)
        error = _error(iterators, here, time.monotonic() - since_s, self._patience)
        with self._switch:
            if self._since_s != since_s or done.is_set():
                return
            self._error = error
            for one in iterators if here.waits_for_workers else ():
                _kill(one)
        ends_s = time.monotonic() + (_ENDING_S if here.waits_for_workers else 0.0)
        while self._since_s == since_s and not done.wait(max(ends_s - time.monotonic(), 0.0)):
            if self._can_wake:  # a wait of another kind, or for a worker that cannot be killed
                signal.pthread_kill(self._loop.ident or 0, WAKE)
            ends_s = time.monotonic() + _LOOK_EVERY_S  # the user's code may have caught it


_work: ContextVar[_Lookout | None] = ContextVar("work", default=None)
_living: WeakSet[_Lookout] = WeakSet()


def _before_fork() -> None:
    for watch in list(_living):
        watch.pause()


def _after_fork() -> None:
    for watch in list(_living):
        watch.go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_living.clear
    )


def _iterators() -> list[Any]:
    """The iterators of loaders in this process that have workers, whoever holds them."""
    with thawed():
        found = [one for one in gc.get_objects() if issubclass(type(one), _BaseDataLoaderIter)]
    return [
        one
        for one in found
        if getattr(one, "_workers", None) and not getattr(one, "_shutdown", False)
    ]


def _kill(iterator: Any) -> None:
    for process in iterator._workers:  # noqa: SLF001
        with suppress(OSError, ValueError, AttributeError):
            process.kill()


def _pids(iterator: Any) -> set[int | None]:
    return {process.pid for process in iterator._workers}  # noqa: SLF001


def _error(
    iterators: list[Any], here: _Whereabouts, waited_s: float, patience: _Patience
) -> NoBatchError:
    """What to say of a wait."""
    budget_s, only_slow = patience.budget_s, f"If it is only slow, {patience.remedy}"
    took = f"no batch came for {seconds(waited_s)}, past the budget of {seconds(budget_s)}"
    owing = next(filter(None, map(_owing, iterators)), None) if here.waits_for_workers else None
    if owing is None:
        none = "no worker is known that would have to send one"
        error = NoBatchError(
            f"{took}: this process itself {here.text}; {none}. {only_slow}"
            if here.stack
            else f"{took}; {none}. {only_slow}"
        )
        return _with_stack(error, "this process", here)
    number, pid, asked = owing
    place = _where(pid)
    stopped = next((one for one in _stopped(iterators) if one != (number, pid)), None)
    beside = ""
    if stopped:  # with a lock of them all, maybe: that of the queue to the loop
        beside = f"; worker {stopped[0]} (pid {stopped[1]}) is stopped, as by SIGSTOP"
    error = NoBatchError(
        f"{took}: worker {number} (pid {pid}) owes {asked} and {place.text}{beside}. All workers "
        f"of this loader were ended. {_remedy(place) or only_slow}"
    )
    return _with_stack(error, f"worker {number}", place)


def _with_stack(error: NoBatchError, who: str, place: _Whereabouts) -> NoBatchError:
    if place.stack:
        stack = "\n".join(f"    {frame}" for frame in place.stack)
        vars(error)["__notes__"] = [f"{STACK}{who}:\n{stack}"]
    return error


def _stopped(iterators: list[Any]) -> Iterator[tuple[int, int]]:
    """Number and process of each worker that is stopped."""
    for iterator in iterators:
        for number, process in enumerate(iterator._workers):  # noqa: SLF001
            if _state(process.pid) == _STATES[psutil.STATUS_STOPPED]:
                yield number, process.pid


def _owing(iterator: Any) -> tuple[int, int, str] | None:
    """The worker that is waited for: its number, its process, and what it owes."""
    with suppress(AttributeError, KeyError, IndexError, TypeError):
        asked = iterator._rcvd_idx  # noqa: SLF001
        task = iterator._task_info.get(asked)  # noqa: SLF001 - with a batch where it has come
        number = task[0] if task and len(task) == 1 else 0
        pid = iterator._workers[number].pid  # noqa: SLF001
        return number, pid, f"batch {asked}" if task else "its first answer"
    return None


@dataclass(frozen=True)
class _Whereabouts:
    """Where a process stands."""

    text: str
    """In words."""
    stack: tuple[str, ...] = ()
    """Its frames, the outermost first; empty where they cannot be read."""
    in_own_code: bool = False
    """Whether code of the user's is among them."""
    waits_for_workers: bool = True
    """Whether it is torch's loop, waiting for its workers."""


def _here(thread: int) -> _Whereabouts:
    """Read where a thread of this process stands, in what others wrote that we called."""
    with no_collection():
        frame, frames = sys._current_frames().get(thread), []  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # of Python 3.11 and later
        frames.append((name, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    frames.reverse()
    first = next((n for n, (_, file, _) in enumerate(frames) if file.startswith(_PACKAGE)), 0)
    theirs = [one for one in frames[first:] if not one[1].startswith(_PACKAGE)]
    is_waiting = any(
        name.rpartition(".")[2] in _FOR_WORKERS and "torch" in file for name, file, _ in theirs
    )
    return replace(_place_of(theirs, ""), waits_for_workers=is_waiting)


def _where(pid: int) -> _Whereabouts:
    """Read where a worker stands, by py-spy; else what the system knows of it."""
    frames, why_not = _dumped(pid)
    state = _state(pid)
    if not frames:
        return _Whereabouts(f"its stack cannot be read ({why_not}){state and f'; {state}'}")
    place = _place_of(frames, state)
    if frames[0][0].rpartition(".")[2] == "get" and not place.in_own_code:
        return replace(
            place,
            text="waits for its next task: that batch could not be sent. See what it has written "
            "above; what a worker sends is pickled",
        )
    return place


def _place_of(frames: list[tuple[str, str, int]], state: str) -> _Whereabouts:
    """Put into words where somebody stands whose frames these are, the outermost first."""
    if not frames:
        return _Whereabouts(state)
    names = [f"{name} ({_short(file)}:{line})" for name, file, line in frames]
    own = [name for name, (_, file, _) in zip(names, frames, strict=True) if _is_own(file)]
    called = f", called by {own[-1]}" if own and own[-1] != names[-1] else ""
    text = f"stands in {names[-1]}{called}{state and f' ({state})'}"
    return _Whereabouts(text, tuple(names), bool(own))


def _remedy(place: _Whereabouts) -> str:
    """What to do, as a sentence; "" where only its slowness can be the reason."""
    if any(_POLARS in frame for frame in place.stack) and polars_runs():
        return (
            "polars had been used in this process before the worker was forked, which has none of "
            "its threads and waits for them: give the loader "
            'multiprocessing_context="forkserver", or use polars in the workers alone'
        )
    return ""


def _dumped(pid: int) -> tuple[list[tuple[str, str, int]], str]:
    """Function, file and line of each frame of the worker's loop; else why there is none."""
    program = pyspy_calls.executable()
    if program is None:
        return [], "py-spy is not installed beside this Python"
    with suppress(OSError, ValueError, KeyError, TypeError), workspace() as folder:
        call = pyspy_calls.dump(program, pid, folder)
        while not call.is_over:
            time.sleep(0.01)
        if not call.worked:
            return [], pyspy_calls.why_not(call)
        for thread in json.loads(call.out):
            frames = [
                (str(one["name"]), str(one["filename"]), int(one["line"]))
                for one in reversed(thread["frames"])
            ]
            loops = [place for place, frame in enumerate(frames) if frame[0] == _WORKER_LOOP]
            if loops:
                return [one for one in frames[loops[-1] + 1 :] if not _is_ours(one[1])], ""
        return [], "no thread of it is in torch's worker loop"
    return [], "py-spy could not be run"


def _state(pid: int) -> str:
    """What the system says of a process, as a sentence; empty where it says nothing."""
    with suppress(psutil.Error):
        said = _STATES.get(psutil.Process(pid).status(), "")
        if said == _STATES[psutil.STATUS_SLEEPING]:
            return f"{said}{_waits_for(pid)}"
        return said
    return "it has ended"


def _waits_for(pid: int) -> str:
    """Which call of the kernel's a process sleeps in, where that can be read."""
    with suppress(OSError):
        called = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8")
        if called.strip("0"):
            return f" in the kernel's {called}"
    return ""


def _short(file: str) -> str:
    """A file of a library from its package on, another by its name."""
    parts = Path(file).parts
    for place, part in enumerate(parts):
        if part in _INSTALLED:
            return "/".join(parts[place + 1 :])
    return os.path.basename(file)  # noqa: PTH119 - may be any name, such as <frozen runpy>


def _is_ours(file: str) -> bool:
    """Whether it is code of the recorder's."""
    return file.startswith(os.path.join(_PACKAGE, "hooks"))  # noqa: PTH118


def _is_own(file: str) -> bool:
    """Whether it is code of the user's: none of Python's, none that was installed."""
    return not (
        any(part in file for part in _INSTALLED)
        or file.startswith((str(Path(os.__file__).parent), "<"))
    )
