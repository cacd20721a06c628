"""Time limit for each wait for a batch: a measurement never hangs because a worker does.

Torch waits for a batch as long as its worker lives, unless its loader has a `timeout`. Loaders of
ours get one, which ends a grace after the budget. Where torch gives up, py-spy reads the stack of
the worker, the workers are killed, and a `NoBatchError` reports which one hung, and where.

Only loops of ours have a limit, never those of a user who is watched passively. A hang in this
process (a sampler, a dataset without workers) is the user's to interrupt.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import time
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope import pyspy_calls
from stallscope.apart import polars_runs
from stallscope.errors import STACK, NoBatchError
from stallscope.files import workspace
from stallscope.hooks.loader_access import start_method, value_of
from stallscope.interrupts import held_back, kept_from_children
from stallscope.targets.loaders import find_loaders
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


GRACE_S: Final = 10.0
"""Seconds that a batch may take after the budget, ..."""
START_GRACE_S: Final = 30.0
"""... the first batch, for which workers start and import, ..."""
_TIMES_LONGEST: Final = 4
"""... and this many times the longest wait until then, if that is more."""
_LOOK_EVERY_S: Final = 5.0
"""Torch looks for dead workers when a timeout is over; the signal of a death may be lost."""
_ROUNDING_S: Final = 0.1
_TORCH_SAYS: Final = "DataLoader timed out after"
_WORKER_LOOP: Final = "_worker_loop"
_OWN_HOOKS: Final = str(Path(__file__).parents[1] / "hooks")
_INSTALLED: Final = ("site-packages", "dist-packages")
_STATES: Final = {
    psutil.STATUS_STOPPED: "it is stopped, as by SIGSTOP",
    psutil.STATUS_TRACING_STOP: "a debugger has stopped it",
    psutil.STATUS_DISK_SLEEP: "it waits for a disk or a network file system",
    psutil.STATUS_RUNNING: "it is computing",
    psutil.STATUS_SLEEPING: "it sleeps",
}


@dataclass
class _TimeLimit:
    """Limit of the waits of one measurement, over all its loops."""

    budget_s: float
    remedy: str
    deadline_s: float
    """End of the budget (`time.monotonic`)."""
    longest_s: float | None = None
    """The longest wait until now; None before the first batch."""
    others: set[Any] = field(default_factory=lambda: set(multiprocessing.active_children()))
    """Processes that were there before: workers of the user's own loops among them."""
    most_s: float = math.inf
    """No wait is longer than this, whatever the budget is."""

    def wait_s(self) -> float:
        """Return how long a wait that begins now may take, seconds."""
        grace_s = START_GRACE_S
        if self.longest_s is not None:
            grace_s = max(GRACE_S, _TIMES_LONGEST * self.longest_s)
        return min(max(self.deadline_s - time.monotonic(), 0.0) + grace_s, self.most_s)


_limit: ContextVar[_TimeLimit | None] = ContextVar("time limit", default=None)


@contextmanager
def time_limit(budget_s: float, remedy: str = "give it a larger budget_s") -> Iterator[None]:
    """End each wait for a batch in this block some time after the budget; the outer block counts.

    Args:
        budget_s: for the whole block, seconds. Only a wait that outlasts it is ever ended.
        remedy: what to do where the loader is only slow.
    """
    if _limit.get() is not None:
        yield
        return
    token = _limit.set(_TimeLimit(budget_s, remedy, time.monotonic() + budget_s))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def waits_at_most(most_s: float) -> Iterator[None]:
    """End each wait for a batch in this block after this time, seconds, where there is a limit."""
    limit = _limit.get()
    if limit is not None:
        limit.most_s = most_s
    try:
        yield
    finally:
        if limit is not None:
            limit.most_s = math.inf


@contextmanager
def starting(loader: Any) -> Iterator[None]:
    """Give workers that start in this block a time limit, and hide Ctrl-C from them."""
    limit = _limit.get()
    loaders = [each for each in find_loaders(loader) if value_of(each, "num_workers")]
    if limit is not None:
        for owner in loaders:  # a private copy, or put back by `private_copy`
            usual_s = vars(owner).get("timeout") or limit.wait_s()
            vars(owner)["timeout"] = min(usual_s, limit.wait_s())
    # A fork server that starts here would keep them from Ctrl-C for as long as it lives
    served = any(start_method(each) == "forkserver" for each in loaders)
    with nullcontext() if served else kept_from_children():
        yield


def limited(iterator: Any) -> Generator[Any, None, None]:
    """Yield the batches of a loader's own iterator; a wait for one that takes too long ends.

    The iterator is asked again each time torch gives up, so nothing may lie between: a generator
    that an exception has passed through is at its end.

    Raises:
        NoBatchError: a batch did not come.
    """
    limit = _limit.get()
    if limit is None:
        yield from iterator
        return
    usual_s = value_of(iterator, "_timeout") or 0.0
    began_s, allowed_s, waited_s = time.monotonic(), limit.wait_s(), 0.0
    while True:
        if usual_s >= allowed_s:
            left_s = max(allowed_s - waited_s, _ROUNDING_S)
            vars(iterator)["_timeout"] = min(left_s, _LOOK_EVERY_S)
        try:
            batch = [next(iterator)]
        except StopIteration:
            return
        except RuntimeError as error:
            waited_s = time.monotonic() - began_s
            if not str(error).startswith(_TORCH_SAYS):
                raise
            if waited_s > allowed_s - _ROUNDING_S:
                raise _no_batch(limit, iterator, waited_s) from None
            if usual_s < allowed_s:  # a shorter timeout of the user's
                raise
            continue
        limit.longest_s = max(limit.longest_s or 0.0, time.monotonic() - began_s)
        yield batch.pop()  # a batch that the loop drops must not live on here
        began_s, allowed_s, waited_s = time.monotonic(), limit.wait_s(), 0.0


def _no_batch(limit: _TimeLimit, iterator: Any, waited_s: float) -> NoBatchError:
    """Kill the workers that were waited for, and return the error that describes them."""
    workers = [
        child
        for child in multiprocessing.active_children()
        if child.daemon and child not in limit.others
    ]
    try:
        return _described(limit, iterator, workers, waited_s)
    finally:
        with suppress(RuntimeError), held_back():  # torch raises when a worker is killed
            for worker in workers:
                worker.kill()
                worker.join()


def _described(
    limit: _TimeLimit, iterator: Any, workers: list[Any], waited_s: float
) -> NoBatchError:
    took = f"no batch came for {seconds(waited_s)}, past the budget of {seconds(limit.budget_s)}"
    advice = f"If it is only slow, {limit.remedy}"
    owing = next(filter(None, map(_owing, _iterators(iterator, workers))), None)
    if owing is None:
        return NoBatchError(f"{took}; no worker is known that would have to send one. {advice}")
    number, pid, batch = owing
    place = _place_of(pid)
    # A stopped worker may hold a lock of them all: that of the queue to the loop
    stopped = [each for each in workers if each.pid != pid and _is_stopped(each.pid)]
    beside = "".join(f"; worker process {each.pid} is stopped, as by SIGSTOP" for each in stopped)
    if polars_runs() and any("(polars/" in frame for frame in place.stack):
        advice = (
            "polars had been used in this process before the worker was forked, which has none of "
            "its threads and waits for them: give the loader "
            'multiprocessing_context="forkserver", or use polars in the workers alone'
        )
    error = NoBatchError(
        f"{took}: worker {number} (pid {pid}) owes {batch} and {place.text}{beside}. All workers "
        f"of this loader were ended. {advice}"
    )
    if place.stack:
        stack = "\n".join(f"    {frame}" for frame in place.stack)
        vars(error)["__notes__"] = [f"{STACK}worker {number}:\n{stack}"]
    return error


def _iterators(iterator: Any, workers: list[Any]) -> Iterator[Any]:
    """Yield the iterators of these workers; something of a library's may hold the one of torch."""
    if value_of(iterator, "_workers"):
        yield iterator
        return
    iterators = [each for each in gc.get_objects() if issubclass(type(each), _BaseDataLoaderIter)]
    for each in iterators:
        if any(worker in workers for worker in value_of(each, "_workers") or ()):
            yield each


def _owing(iterator: Any) -> tuple[int, int, str] | None:
    """Return the worker that is waited for: its number, its process, and what it owes."""
    with suppress(AttributeError, KeyError, IndexError, TypeError):
        asked = iterator._rcvd_idx  # noqa: SLF001
        task = iterator._task_info.get(asked)  # noqa: SLF001 - with a batch where it has come
        number = task[0] if task and len(task) == 1 else 0
        pid = iterator._workers[number].pid  # noqa: SLF001
        return number, pid, f"batch {asked}" if task else "its first answer"
    return None


class _Place(NamedTuple):
    """Current place of a process in its code."""

    text: str
    stack: tuple[str, ...] = ()
    """Its frames, the outermost first; empty where they cannot be read."""


def _place_of(pid: int) -> _Place:
    """Read where a worker stands, by py-spy; else what the system knows of the process."""
    frames, why_not = _dumped(pid)
    state = _state(pid)
    if not frames:
        return _Place(f"its stack cannot be read ({why_not}); {state}")
    names = tuple(f"{name} ({_short(file)}:{line})" for name, file, line in frames)
    own = [name for name, (_, file, _) in zip(names, frames, strict=True) if _is_own(file)]
    if not own and frames[0][0].rpartition(".")[2] == "get":
        text = (
            "waits for its next task: that batch could not be sent. See what it has written "
            "above; what a worker sends is pickled"
        )
        return _Place(text, names)
    called = f", called by {own[-1]}" if own and own[-1] != names[-1] else ""
    return _Place(f"stands in {names[-1]}{called} ({state})", names)


def _dumped(pid: int) -> tuple[list[tuple[str, str, int]], str]:
    """Return function, file and line of each frame of the worker's loop; else why there is none."""
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
                (str(frame["name"]), str(frame["filename"]), int(frame["line"]))
                for frame in reversed(thread["frames"])
            ]
            loops = [place for place, frame in enumerate(frames) if frame[0] == _WORKER_LOOP]
            if loops:
                inner = frames[loops[-1] + 1 :]
                return [frame for frame in inner if not frame[1].startswith(_OWN_HOOKS)], ""
        return [], "no thread of it is in torch's worker loop"
    return [], "py-spy could not be run"


def _state(pid: int) -> str:
    """Describe the state of a process."""
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return "it has ended"
    return _STATES.get(status, f"its state is {status}")


def _is_stopped(pid: int) -> bool:
    return _state(pid) == _STATES[psutil.STATUS_STOPPED]


def _short(file: str) -> str:
    """Shorten a library's file to its path from the package on, another to its name."""
    parts = Path(file).parts
    for place, part in enumerate(parts):
        if part in _INSTALLED:
            return "/".join(parts[place + 1 :])
    return os.path.basename(file)  # noqa: PTH119 - may be any name, such as <frozen runpy>


def _is_own(file: str) -> bool:
    """Return whether this is the user's code: none of Python's, none that was installed."""
    python = str(Path(os.__file__).parent)
    return not any(part in file for part in _INSTALLED) and not file.startswith((python, "<"))
