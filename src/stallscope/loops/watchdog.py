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
import threading
import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope import pyspy_calls
from stallscope.apart import polars_runs
from stallscope.errors import NoBatchError
from stallscope.hooks.probe import shut_down
from stallscope.interrupts import held_back
from stallscope.isolation.workspace import workspace
from stallscope.targets.object_graph import thawed
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


GRACE_S: float = 10.0
"""After the budget, so long a batch may take, ..."""
START_GRACE_S: float = 30.0
"""... the first one, for which workers start and import, ..."""
_TIMES_LONGEST: Final = 4
"""... and where batches take longer, so many times as long as the longest one until then."""
_LOOK_EVERY_S: Final = 1.0
_ENDING_S: Final = 7.0
"""So long a wait may go on whose workers were killed: torch looks every five seconds."""
WAKE: Final[int] = getattr(signal, "SIGRTMAX", 0)
"""The signal that ends a wait which is none of torch's; 0 where the system has none to spare. Not
SIGINT, which a process ignores that a shell has started with `&`, or treats in its own way."""
_WORKER_LOOP: Final = "_worker_loop"
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

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.longest_s: float | None = None
        """The longest wait until now; None before the first batch."""
        self.others = {process.pid for process in multiprocessing.active_children()}
        """Processes that were there before: workers of the user's own loops among them."""
        self._deadline_s = time.monotonic() + budget_s

    def ends_s(self, since_s: float) -> float:
        """When a wait that began then (`time.monotonic`) has lasted too long."""
        grace_s = START_GRACE_S
        if self.longest_s is not None:
            grace_s = max(GRACE_S, _TIMES_LONGEST * self.longest_s)
        return max(self._deadline_s, since_s) + grace_s


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)


@contextmanager
def within(budget_s: float) -> Iterator[None]:
    """Let no wait for a batch in this block go on without an end; of nested ones the outer counts.

    Args:
        budget_s: for the whole block, seconds. Only a wait that outlasts it is ever ended.
    """
    if _patience.get() is not None:
        yield
        return
    token = _patience.set(_Patience(budget_s))
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
    began_s, here, begun = time.monotonic(), (os.getpid(), threading.get_ident()), 0
    start = BaseProcess.start

    def start_in_time(process: BaseProcess) -> None:
        nonlocal begun
        now_s = time.monotonic()
        if (os.getpid(), threading.get_ident()) == here:  # not in a worker, which may start some
            if now_s > patience.ends_s(began_s):
                raise _slow_start(begun, now_s - began_s, patience.budget_s)
            begun += 1
        start(process)

    BaseProcess.start = start_in_time  # type: ignore[assignment,method-assign]
    try:
        yield
    except NoBatchError:
        _end_half_made()
        raise
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


def _slow_start(begun: int, took_s: float, budget_s: float) -> NoBatchError:
    return NoBatchError(
        f"{count(begun, 'worker')} took {seconds(took_s)} to start, past the budget of "
        f"{seconds(budget_s)}, and not all had started. Workers that are not forked get a pickled "
        "copy of the dataset, one after the other: let it hold what says where samples are, not "
        "the samples; give it fewer workers; or give a larger budget_s"
    )


def _end_half_made() -> None:
    """End the workers of an iterator that has not started all of them: none has a task yet."""
    for one in _iterators():
        if not hasattr(one, "_workers_status"):
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


class _Lookout:
    """Looks on while one loop waits."""

    def __init__(self, patience: _Patience) -> None:
        self._patience = patience
        self._loop = threading.current_thread()
        self._since_s: float | None = None  # None: the loop does not wait
        self._error: NoBatchError | None = None
        self._switch = threading.Lock()
        in_main = self._loop is threading.main_thread()
        self._can_wake = in_main and WAKE != 0 and signal.getsignal(WAKE) is not None

    def next(self, batches: Iterator[Any]) -> list[Any] | None:
        """The next batch as a list of one; None at the end."""
        began_s = self._since_s = time.monotonic()
        try:
            return [next(batches)]
        except StopIteration:
            return None
        except BaseException:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            with self._switch:
                self._since_s = None
            waited_s = time.monotonic() - began_s
            self._patience.longest_s = max(self._patience.longest_s or 0.0, waited_s)

    @contextmanager
    def looking_on(self) -> Iterator[None]:
        """Have a thread that looks on; no worker may be forked inside."""
        done = threading.Event()
        thread = threading.Thread(
            target=self._look_on, args=(done,), name="stallscope watchdog", daemon=True
        )
        with self._waking():
            try:
                with suppress(RuntimeError):  # no room for one more thread: nobody looks on
                    thread.start()
                yield
            finally:
                done.set()
                if thread.ident is not None:
                    with held_back():
                        thread.join()

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
        pause_s = 0.0
        while not done.wait(pause_s):
            since_s = self._since_s
            now_s = time.monotonic()
            left_s = _LOOK_EVERY_S if since_s is None else self._patience.ends_s(since_s) - now_s
            if left_s <= 0 and since_s is not None:
                self._end(since_s, done)
            pause_s = min(max(left_s, 0.01), _LOOK_EVERY_S)

    def _end(self, since_s: float, done: threading.Event) -> None:
        """End a wait, if it is still the same when it is known where the worker stands."""
        iterators = [one for one in _iterators() if not self._patience.others & _pids(one)]
        error = _error(iterators, time.monotonic() - since_s, self._patience.budget_s)
        with self._switch:
            if self._since_s != since_s or done.is_set():
                return
            self._error = error
            for one in iterators:
                _kill(one)
        if not done.wait(_ENDING_S) and self._since_s == since_s:
            if self._can_wake:  # a wait of another kind, or for a worker that cannot be killed
                signal.pthread_kill(self._loop.ident or 0, WAKE)
            done.wait()


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


def _error(iterators: list[Any], waited_s: float, budget_s: float) -> NoBatchError:
    """What to say of a wait."""
    took = f"no batch came for {seconds(waited_s)}, past the budget of {seconds(budget_s)}"
    owing = next(filter(None, map(_owing, iterators)), None)
    if owing is None:
        return NoBatchError(
            f"{took}; no worker is known that would have to send one. If the loader is only slow, "
            "give it a larger budget_s"
        )
    number, pid, asked = owing
    place = _where(pid)
    error = NoBatchError(
        f"{took}: worker {number} (pid {pid}) owes {asked} and {place.text}. All workers of this "
        f"loader were ended. {_remedy(place)}"
    )
    if place.stack:
        stack = "\n".join(f"    {frame}" for frame in place.stack)
        vars(error)["__notes__"] = [f"stallscope: the stack of worker {number}:\n{stack}"]
    return error


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


def _where(pid: int) -> _Whereabouts:
    """Read where a worker stands, by py-spy; else what the system knows of it."""
    frames, why_not = _dumped(pid)
    state = _state(pid)
    if not frames:
        return _Whereabouts(f"its stack cannot be read ({why_not}){state and f'; {state}'}")
    names = [f"{name} ({_short(file)}:{line})" for name, file, line in frames]
    own = [name for name, (_, file, _) in zip(names, frames, strict=True) if _is_own(file)]
    called = f", called by {own[-1]}" if own and own[-1] != names[-1] else ""
    return _Whereabouts(f"stands in {names[-1]}{called}{state and f' ({state})'}", tuple(names))


def _remedy(place: _Whereabouts) -> str:
    """What to do, as a sentence."""
    if any(_POLARS in frame for frame in place.stack) and polars_runs():
        return (
            "polars had been used in this process before the worker was forked, which has none of "
            "its threads and waits for them: give the loader "
            'multiprocessing_context="forkserver", or use polars in the workers alone'
        )
    return "If it is only slow, give it a larger budget_s"


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
    return file.startswith(str(Path(__file__).parents[1] / "hooks"))


def _is_own(file: str) -> bool:
    """Whether it is code of the user's: none of Python's, none that was installed."""
    return not (
        any(part in file for part in _INSTALLED)
        or file.startswith((str(Path(os.__file__).parent), "<"))
    )
