"""Getting the recorder into the processes that make the batches, and beside the loop.

For workers, torch's worker loop is replaced by an entry of ours, which hooks the worker and then
runs the original. It can be pickled, so that spawned workers get it, too; it gets the original by
module and name. The user's loader and its `worker_init_fn` are left alone. Both queues are in hand
there: the one that brings the tasks, and the one whose feeder thread sends the batches.

With `num_workers=0` the same hooks go on in this process. The loop's own side is hooked at torch's
iterators. Everything comes off again at the end of the `with` block.
"""

from __future__ import annotations

import ctypes
import inspect
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import sys
import threading
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker

from stallscope.errors import UnsupportedError
from stallscope.files import wants_room
from stallscope.hooks.device_time import DeviceMarks
from stallscope.hooks.event_log import MAIN, Mark, ProcessLog, stop_hooks
from stallscope.hooks.fetchers import Hooks
from stallscope.hooks.hot_path import Recorder
from stallscope.hooks.iterators import Iteration, Iterations
from stallscope.hooks.loader_access import shut_down, value_of
from stallscope.hooks.patches import Patches, around, in_this_process
from stallscope.hooks.recording_folder import OUTER, epoch_key
from stallscope.hooks.self_sampler import SelfSampler
from stallscope.hooks.training_step import StepParts
from stallscope.interrupts import held_back, no_collection
from stallscope.stages import PIN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from torch import nn
    from typing_extensions import Self

    from stallscope.hooks.device_time import AsyncDevice
    from stallscope.hooks.recording_folder import LogPlace
    from stallscope.stages import Stage


_queues: Any = multiprocessing.queues
_PR_SET_PTRACER: Final = 0x59616D61
_watched: list[Any] = []
"""Loaders that are being recorded; known by themselves, because a user's class may define `==`."""


class Probe:
    """Hooks loaders of this process for the length of a `with` block.

    Without `loaders` these are all, also those that are made later. `living` iterators were made
    before and are measured, too. A `scoped` probe also measures what is iterated inside of its own
    `inside`: the loaders inside of one that is none of torch's. Of `modules`, forward passes are
    marked, too.
    """

    def __init__(
        self,
        place: LogPlace,
        loaders: Iterable[Any] | None,
        *,
        living: Iterable[Any] = (),
        scoped: bool = False,
        modules: Iterable[nn.Module] = (),
    ) -> None:
        self._place, self._scoped = place, scoped
        self._loaders = None if loaders is None else list(loaders)
        self._living, self._modules = list(living), list(modules)
        self.works_behind: AsyncDevice | None = None
        """Device of a recording's own steps, if it is known beforehand."""
        self.failures = place.failures
        self._patches = Patches(self.failures)
        self._here = threading.local()
        self._hooks: Hooks | None = None
        self._epoch = -1
        self._threads = WeakSet(threading.enumerate())
        self._pid = os.getpid()
        self._switch = threading.RLock()
        self._ended = False

    def __enter__(self) -> Self:
        self._watches = [loader for loader in self._loaders or () if isinstance(loader, DataLoader)]
        if any(_is_among(loader, _watched) for loader in self._watches):
            raise UnsupportedError(
                "this loader is already being recorded; end that recording first"
            )
        with wants_room(self._place.folder):
            self.marks = ProcessLog(self._place, MAIN)
        self.device = DeviceMarks(self.marks, self.works_behind)
        self._iterations = Iterations(
            self.marks, self._wants, self._starts, self._patches, self._adopts
        )
        if not self._scoped:  # else its own loop says more
            self._iterations.device = self.device
        self._windows = SelfSampler(self._place.folder, self._place.origin_ns)
        if self._place.samples_stacks:
            self._iterations.sample_stacks = self.failures.passing(
                "the stacks of the loop", self._windows.begin
            )
        self._parts = StepParts(self.marks, self._iterations.waits, self._patches)
        try:
            with held_back():
                self._put_on()
        except BaseException:  # an interrupt that was held back, say
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            if self in in_this_process:  # and not in a forked child that has come here, too
                self.retire()
                with self.failures.within("the end of the hooks in workers"):
                    stop_hooks(self._place)

    def _put_on(self) -> None:
        in_this_process.add(self)
        _watched.extend(self._watches)
        for missing, put_on in (
            ("the waits of the loop", self._iterations.put_on),
            ("the parts of a step", partial(self._parts.put_on, self._modules)),
            ("what the workers do", partial(self._put_entry, torch_worker)),
            ("when the device was idle", self.device.look),
            ("the copies into pinned memory", self._hook_pinning),
        ):
            with self.failures.within(missing):
                put_on()

    def retire(self, *, close: bool = True) -> None:
        """Take everything off and write nothing from now on; a forked child closes no log."""
        if close:
            with self._switch:  # a thread may be hooking this process
                self._ended = True
        _watched[:] = [loader for loader in _watched if not _is_among(loader, self._watches)]
        hooks = self._hooks
        for take_off in (
            partial(self.device.end, here=close),
            partial(self._patches.undo, search=close),
            partial(self._windows.retire, close=close),
            *([] if hooks is None else [partial(hooks.retire, close=close)]),
            partial(self.marks.retire, close=close),
        ):  # each by itself, whatever becomes of the others
            self.failures.insist("removing the hooks", take_off)
        in_this_process.discard(self)  # last: until then another try takes the rest off
        if close:  # whoever is in a circle with a loader lets its workers end late
            self._loaders, self._watches, self._living = [], [], []

    # ---- the recording's own loop -----------------------------------------------------------

    def begin(self, loader: Any) -> Iterator[Any]:
        """Start an iterator of the loader; what is iterated inside of it is measured, too."""
        self._epoch += 1
        key = epoch_key(OUTER, self._epoch)
        mark = self.failures.passing("the epochs", self.marks.mark)
        mark(Mark.ITER, key)
        # An interrupt while a worker is started would leave it behind, or get lost in the fork.
        with held_back():
            iterator: Iterator[Any] = self.inside(iter, loader)
        mark(Mark.ITERATED, key)
        return iterator

    def batches(self, iterator: Iterator[Any]) -> Generator[Any, None, None]:
        """Yield the batches of the iterator that was begun last, each with its wait."""
        epoch = Iteration(epoch_key(OUTER, self._epoch), 0)
        return self._iterations.batches(iterator, epoch, "the waits of the loop")

    def inside(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Call something that may start iterators: they are measured."""
        self._here.inside = True
        try:
            return call(argument)
        finally:
            self._here.inside = False

    def part(self, stage: Stage) -> Callable[[], None]:
        """Begin a part of the recording's own step; return what to call at its end."""
        missing = f"the parts of a step called '{stage.name}'"
        with self.failures.within(missing):
            if (end := self._parts.begin(stage)) is not None:
                return self.failures.passing(missing, end)
        return lambda: None

    @property
    def forked(self) -> bool:
        """Return whether this is a child of the process that records: polars would hang."""
        return os.getpid() != self._pid

    def raised(self, error: BaseException) -> bool:
        """Return whether this exception came out of a wait for a batch."""
        return hasattr(self, "_iterations") and self._iterations.raised(error)

    def workers(self) -> list[tuple[int, int]]:
        """Return number in its loader and process id of each worker of the living iterators."""
        return [
            (number, process.pid)
            for iterator in self._iterations.living()
            for number, process in enumerate(value_of(iterator, "_workers") or ())
            if process.pid is not None and process.is_alive()
        ]

    def shut_down(self) -> None:
        """End the workers of all iterators that were made meanwhile, whoever still holds them."""
        if self in in_this_process:  # and not in a forked child: they are its parent's
            for iterator in self._iterations.living():
                shut_down(iterator)

    # ---- what is measured -------------------------------------------------------------------

    def _wants(self, loader: Any) -> bool:
        if self._loaders is None or _is_among(loader, self._loaders):
            return True
        # A thread that is new was started by the target, most likely.
        elsewhere = threading.current_thread() not in self._threads
        inside = getattr(self._here, "inside", False) or self._iterations.waits.stack
        return self._scoped and bool(elsewhere or inside)

    def _adopts(self, iterator: Any) -> bool:
        return self._loaders is None or _is_among(iterator, self._living)

    def _starts(self, iterator: Any, iteration: Iteration | None) -> None:
        """Prepare for an iterator: its workers are the next processes of this thread."""
        self._here.starting = None if iteration is None else iteration.key
        with self.failures.within("the stacks of the loop"):
            self._windows.end()  # no thread of ours where workers are forked
        if iteration is None:
            return
        module = sys.modules.get(type(iterator).__module__)
        if module is not None and hasattr(module, "_worker_loop"):
            with self.failures.within("what the workers do"):
                self._put_entry(module)
        if not iteration.workers:
            with self.failures.within("samples made in the main process"), self._switch:
                if self._hooks is None and not self._ended:
                    task, share = self._iterations.waiting_for, self._place.cost_share
                    self._hooks = Hooks(Recorder(self.marks), task, cost_share=share)
                    in_this_process.add(self._hooks)
                    self._hooks.put_on()

    def _put_entry(self, module: Any) -> None:
        original = module._worker_loop
        if not (isinstance(original, WorkerEntry) and original.belongs_to(self._place)):
            # The workers that start in a thread are those of the iterator that it starts
            here = self._here
            entry = WorkerEntry(self._place, original, lambda: getattr(here, "starting", None))
            self._patches.put(module, "_worker_loop", entry)

    def _hook_pinning(self) -> None:
        """Mark torch's `pin_memory`, which calls itself for what is inside of a batch."""

        def begin(*_: Any, **__: Any) -> Callable[[], None] | None:
            if getattr(self._here, "pins", False):
                return None
            end_part = self.marks.begin(PIN)
            self._here.pins = True
            return end_part

        def end(end_part: Callable[[], None], *_: Any) -> None:
            self._here.pins = False
            end_part()

        missing = "the copies into pinned memory"
        pin = around(torch_pin.pin_memory, begin, end, self.failures, missing)
        self._patches.put(torch_pin, "pin_memory", pin)


def _is_among(loader: Any, loaders: list[Any]) -> bool:
    return any(loader is each for each in loaders)


# ---- in a worker ---------------------------------------------------------------------------------


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
            with failures.within("removing the hooks in a worker"):
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
        ends.callback(failures.insist, "removing the hooks in a worker", hooks.retire)
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
            pickles = failures.passing(missing, partial(self._pickles, data_queue))
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
