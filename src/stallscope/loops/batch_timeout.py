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
from typing import TYPE_CHECKING, Any, Final

import psutil
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope import pyspy_calls
from stallscope.errors import STACK, NoBatchError, add_notes
from stallscope.files import INSTALLED, workspace
from stallscope.hooks.loader_access import start_method, value_of
from stallscope.interrupts import held_back, kept_from_children
from stallscope.targets.loaders import find_loaders
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


GRACE_S: Final = 30.0
"""Seconds that a batch may take after the budget: workers may have to start and import."""
_TORCH_SAYS: Final = "DataLoader timed out after"
_WORKER_LOOP: Final = "_worker_loop"
_OWN_HOOKS: Final = str(Path(__file__).parents[1] / "hooks")


@dataclass
class _TimeLimit:
    """Limit of the waits of one measurement, over all its loops."""

    budget_s: float
    remedy: str
    deadline_s: float
    """End of the budget (`time.monotonic`)."""
    others: set[Any] = field(default_factory=lambda: set(multiprocessing.active_children()))
    """Processes that were there before: workers of the user's own loops among them."""
    most_s: float = math.inf
    """No wait is longer than this, whatever the budget is."""
    timeouts: set[float] = field(default_factory=set)
    """All timeouts until now, whole seconds; a shorter one is the user's own."""

    def wait_s(self) -> float:
        """Return how long a wait that begins now may take."""
        left_s = max(self.deadline_s - time.monotonic(), 0.0)
        wait_s = float(math.ceil(min(left_s + GRACE_S, self.most_s)))
        self.timeouts.add(wait_s)
        return wait_s


_limit: ContextVar[_TimeLimit | None] = ContextVar("time limit", default=None)


@contextmanager
def time_limit(budget_s: float, remedy: str = "give it a larger budget_s") -> Iterator[None]:
    """End each wait for a batch in this block some time after the budget; the outer block counts.

    Only a wait that outlasts the budget is ended. `remedy` is for a loader that is only slow.
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
            wait_s = limit.wait_s()
            vars(owner)["timeout"] = min(vars(owner).get("timeout") or wait_s, wait_s)
    # A fork server that starts here would keep them from Ctrl-C for as long as it lives
    served = any(start_method(each) == "forkserver" for each in loaders)
    with nullcontext() if served else kept_from_children():
        yield


def limited(iterator: Any) -> Generator[Any, None, None]:
    """Yield the batches of a loader's own iterator; a `NoBatchError` ends too long a wait."""
    limit = _limit.get()
    if limit is None:
        yield from iterator
        return
    is_ours = value_of(iterator, "_timeout") in limit.timeouts
    while True:
        began_s = time.monotonic()
        if is_ours:
            vars(iterator)["_timeout"] = limit.wait_s()
        try:
            batch = [next(iterator)]
        except StopIteration:
            return
        except RuntimeError as error:
            if str(error) not in {f"{_TORCH_SAYS} {each} seconds" for each in limit.timeouts}:
                add_notes(error, _ended(iterator))
                raise
            raise _no_batch(limit, iterator, time.monotonic() - began_s) from None
        yield batch.pop()  # a batch that the loop drops must not live on here


def _ended(iterator: Any) -> list[str]:
    """Return a line for each worker that has ended by itself, which torch does not explain."""
    codes = [value_of(worker, "exitcode") for worker in value_of(iterator, "_workers") or ()]
    return [
        f"stallscope: worker {number} ended by itself with exit code {code}: look for the exit in "
        "worker_init_fn, the dataset and their libraries"
        for number, code in enumerate(codes)
        if code and code > 0
    ]


def _no_batch(limit: _TimeLimit, iterator: Any, waited_s: float) -> NoBatchError:
    """Kill the workers that were waited for, and return the error that describes them."""
    workers = [
        child
        for child in multiprocessing.active_children()
        if child.daemon and child not in limit.others
    ]
    try:
        return _described(limit, _owing(iterator, workers), waited_s)
    finally:
        with suppress(RuntimeError), held_back():  # torch raises when a worker is killed
            for worker in workers:
                worker.kill()
                worker.join()


def _owing(iterator: Any, workers: list[Any]) -> tuple[int, Any, str] | None:
    """Return the worker that is waited for: its number, its process, and what it owes."""
    iterators = [iterator]
    if not value_of(iterator, "_workers"):  # something of a library's, which holds the one of torch
        iterators = [
            each for each in gc.get_objects() if issubclass(type(each), _BaseDataLoaderIter)
        ]
    for each in iterators:
        with suppress(AttributeError, KeyError, IndexError, TypeError):
            asked = each._rcvd_idx  # noqa: SLF001
            task = each._task_info.get(asked)  # noqa: SLF001 - with a batch where it has come
            number = task[0] if task and len(task) == 1 else 0
            worker = each._workers[number]  # noqa: SLF001
            if worker in workers:
                return number, worker, f"batch {asked}" if task else "its first answer"
    return None


def _described(
    limit: _TimeLimit, owing: tuple[int, Any, str] | None, waited_s: float
) -> NoBatchError:
    took = f"no batch came for {seconds(waited_s)}, past the budget of {seconds(limit.budget_s)}"
    advice = f"If it is only slow, {limit.remedy}"
    if owing is None:
        return NoBatchError(f"{took}; no worker is known to owe one. {advice}")
    number, worker, batch = owing
    frames, why_not = _dumped(worker.pid)
    names = [f"{name} ({_short(file)}:{line})" for name, file, line in frames]
    if not frames:
        where = f"its stack cannot be read ({why_not}); it is {status_of(worker)}"
    elif frames[0][0].rpartition(".")[2] == "get" and "multiprocessing" in frames[0][1]:
        where = (
            "waits for its next task: that batch could not be sent. See its output above; batches "
            "must be picklable"
        )
    else:
        where = f"is in {names[-1]} ({status_of(worker)})"
    error = NoBatchError(
        f"{took}: worker {number} (pid {worker.pid}) owes {batch} and {where}. All workers of this "
        f"loader were terminated. {advice}"
    )
    if names:
        stack = "\n".join(f"    {name}" for name in names)
        vars(error)["__notes__"] = [f"{STACK}worker {number}:\n{stack}"]
    return error


def _dumped(pid: int) -> tuple[list[tuple[str, str, int]], str]:
    """Return function, file and line of each frame of the worker's loop; else why there is none."""
    program = pyspy_calls.executable()
    if program is None:
        return [], "py-spy is not installed for this Python"
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
        return [], "none of its threads is in torch's worker loop"
    return [], "py-spy could not be run"


def status_of(process: Any) -> str:
    """Return the system's word for what a process does: sleeping, stopped, running; or 'gone'."""
    try:
        return str(psutil.Process(process.pid).status())
    except psutil.Error:
        return "gone"


def _short(file: str) -> str:
    """Shorten a library's file to its path from the package on, another to its name."""
    if installed := [*INSTALLED.finditer(file)]:
        return file[installed[-1].end() + 1 :].replace("\\", "/")
    return os.path.basename(file)  # noqa: PTH119 - may be any name, such as <frozen runpy>
