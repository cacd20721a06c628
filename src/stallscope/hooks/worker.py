"""Stand-in for torch's worker loop: it hooks the worker, then runs the original.

It can be pickled, so that spawned workers get it, too; it gets the original by module and name. The
user's loader and its `worker_init_fn` are left alone. Both queues are in hand here: the one that
brings the tasks, and the one whose feeder thread sends the batches.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import sys
import threading
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stallscope.hooks.event_log import Mark, ProcessLog
from stallscope.hooks.fetchers import Hooks
from stallscope.hooks.hot_path import Recorder
from stallscope.hooks.patches import around, in_this_process
from stallscope.hooks.self_sampler import SelfSampler
from stallscope.interrupts import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.recording_folder import LogPlace


_queues: Any = multiprocessing.queues
_PR_SET_PTRACER: Final = 0x59616D61


class WorkerEntry:
    """Stands in for a worker loop, or for another recording's entry, where two run at once.

    `starting` returns loader and epoch of the worker that starts, None where it is not measured.
    """

    def __init__(
        self, place: LogPlace, original: Callable[..., None], starting: Callable[[], int | None]
    ) -> None:
        self._place, self._original, self._starting = place, original, starting
        self._pid: int | None = os.getpid()

    def belongs_to(self, place: LogPlace) -> bool:
        """Return whether this entry, or one beneath it, writes there."""
        inner = self._original
        return self._place == place or (isinstance(inner, WorkerEntry) and inner.belongs_to(place))

    def __getstate__(self) -> dict[str, Any]:
        original = self._original
        state: dict[str, Any] = {"place": self._place, "key": self._starting()}
        if isinstance(original, WorkerEntry):
            return {**state, "original": original, "home": None}
        # The function cannot be pickled while something else stands under its name.
        return {**state, "original": None, "home": (original.__module__, original.__qualname__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        key, home, self._pid = state["key"], state["home"], None
        self._place, self._starting = state["place"], lambda: key
        self._original = state["original"] or getattr(import_module(home[0]), home[1])

    def __call__(self, *args: Any) -> None:
        """Run as the target of the worker's process, with torch's arguments."""
        key, original = self._starting(), self._original
        if key is None or self._pid == os.getpid():  # not measured, or a thread for a process
            original(*args)
            return
        failures, ends = self._place.failures, ExitStack()
        with failures.within("what a worker does"), no_collection():  # of what was the parent's
            self._put_on(key, args, ends)
        try:
            original(*args)
        finally:
            with failures.within("taking the hooks off in a worker"):
                ends.close()

    def _put_on(self, key: int, args: tuple[Any, ...], ends: ExitStack) -> None:
        """Hook this worker; `ends` take it off again, the last one first."""
        loop, failures = self._original, self._place.failures
        while isinstance(loop, WorkerEntry):
            loop = loop._original
        let_creator_attach()
        arguments = inspect.signature(loop).bind(*args).arguments
        place = self._place
        if place.stands_by or place.samples_stacks:
            origin_ns = place.origin_ns if place.samples_stacks else None
            with failures.within("the stacks of a worker"):
                sampler = SelfSampler(place.folder, origin_ns)
                sampler.begin()
                ends.callback(failures.passing("the stacks of a worker", sampler.end))
        try:
            log = ProcessLog(self._place, arguments["worker_id"])
        except OSError:  # no room: the user's batches matter more, and the run says so
            return
        # The thread that sends is joined at the end of the process: only then is there no mark left
        retire = failures.passing("the end of a worker's log", log.retire)
        multiprocessing.util.Finalize(None, retire, exitpriority=-100)
        hooks = Hooks(Recorder(log), cost_share=self._place.cost_share)
        ends.callback(failures.insist, "taking the hooks off in a worker", hooks.retire)
        in_this_process.add(hooks)
        tasks = Tasks(hooks, log, key)
        with failures.within("the epochs of a worker"):
            hooks.begin_epoch(key)
        with failures.within("what a worker does"):
            hooks.put_on()
        with failures.within("the stages of libraries"):
            hooks._libraries.hook()  # takes long: it belongs to the worker's start, to no batch
        tasks.watch(arguments["index_queue"], arguments["data_queue"])


def let_creator_attach() -> None:
    """Let the process that created this one look into it, and what that starts.

    Under Yama's ptrace_scope 1, Ubuntu's default, a process may look only into its own descendants:
    py-spy, a sibling of the worker, is refused, unless the worker names an ancestor of py-spy's.
    See prctl(2), PR_SET_PTRACER.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(Exception):  # a kernel without Yama refuses, which is as good
        # Not getppid(): of a process made by a fork server that is the server.
        creator = multiprocessing.parent_process()
        pid = os.getppid() if creator is None or creator.pid is None else creator.pid
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


class Tasks:
    """Reads a worker's queues over torch's shoulder: which batch comes and goes, and when."""

    def __init__(self, hooks: Hooks, log: ProcessLog, key: int) -> None:
        self._hooks, self._log, self._key = hooks, log, key
        self._is_ready = False
        self._sending = threading.local()

    def watch(self, index_queue: Any, data_queue: Any) -> None:
        """Hook both queues; they are this process's own objects."""
        failures, missing = self._log.failures, "when a worker takes and sends batches"
        index_queue.get = around(index_queue.get, self._waits, self._take, failures, missing)
        data_queue.put = around(data_queue.put, self._put, None, failures, missing)
        if hasattr(data_queue, "_send_bytes"):  # read when the feeder thread starts
            send, sending = data_queue._send_bytes, self._sending

            def sends(*_: Any, **__: Any) -> int | None:
                return getattr(sending, "number", None)

            data_queue._send_bytes = around(send, sends, self._sent, failures, missing)
            pickles = failures.passing(missing, functools.partial(self._pickles, data_queue))
            _queues._ForkingPickler = _watched_pickler(_queues._ForkingPickler, pickles)

    def _waits(self, *_: Any, **__: Any) -> bool:
        if not self._is_ready:
            self._is_ready = True
            self._log.mark(Mark.READY, self._key)
        return True

    def _take(self, _: object, task: Any, error: BaseException | None) -> None:
        number = None if error is not None else _number(task)
        if number is not None:
            self._hooks.number = number
            self._log.mark(Mark.TAKEN, self._key, number)
        elif type(task).__name__ == "_ResumeIteration":  # the next epoch of persistent workers
            self._key += 1
            self._hooks.begin_epoch(self._key)

    def _put(self, data: Any, *_: Any, **__: Any) -> None:
        number = _number(data)
        if number is not None:
            self._log.mark(Mark.MADE, self._key, number)

    def _pickles(self, data_queue: Any, data: Any) -> None:
        """Note that the feeder thread of this queue begins to pickle; the user may have others."""
        ours = threading.current_thread() is data_queue._thread
        self._sending.number = number = _number(data) if ours else None
        if number is not None:
            self._log.mark(Mark.PICKLE, self._key, number)

    def _sent(self, number: int, _: Any, error: BaseException | None) -> None:
        if error is None:
            self._log.mark(Mark.SENT, self._key, number)


def _watched_pickler(original: Any, pickles: Callable[[Any], object]) -> type:
    """Make a class of Python's pickler of what goes through queues, which reports each begin."""

    class Pickler(original):  # type: ignore[misc]
        @classmethod
        def dumps(cls, sent: Any, protocol: Any = None) -> Any:
            pickles(sent)
            return original.dumps(sent, protocol)

    return Pickler


def _number(message: Any) -> int | None:
    is_task = isinstance(message, tuple) and message and type(message[0]) is int
    return message[0] if is_task else None
