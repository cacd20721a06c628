"""Getting the recorder into the processes that make the batches, and beside the loop.

For workers, torch's worker loop is replaced by an entry of ours; with `num_workers=0` the same
hooks go on in this process. The loop's own side is hooked at torch's iterators. Everything comes
off again at the end of the `with` block.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker

from stallscope.errors import UnsupportedError, WorkspaceError
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
from stallscope.hooks.worker import WorkerEntry
from stallscope.interrupts import held_back
from stallscope.stages import PIN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from torch import nn
    from typing_extensions import Self

    from stallscope.hooks.device_time import AsyncDevice
    from stallscope.hooks.recording_folder import LogPlace
    from stallscope.stages import Stage


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
                "this loader is being recorded already; end that recording before the next one"
            )
        try:
            self.marks = ProcessLog(self._place, MAIN)
        except OSError as error:
            raise WorkspaceError(
                f"no room for the event log of the loop in {self._place.folder} "
                f"({error.strerror or error}): free some space, or set TMPDIR to a folder on a "
                "local disk"
            ) from error
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
            self.failures.insist("taking the hooks off", take_off)
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
        epoch = Iteration(OUTER, self._epoch, 0)
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
        begin_pin, end_pin = self.marks.part(PIN)

        def begin(*_: Any, **__: Any) -> bool | None:
            if getattr(self._here, "pins", False):
                return None
            self.marks.put(begin_pin)
            self._here.pins = True
            return True

        def end(*_: Any) -> None:
            self._here.pins = False
            self.marks.put(end_pin)

        missing = "the copies into pinned memory"
        pin = around(torch_pin.pin_memory, begin, end, self.failures, missing)
        self._patches.put(torch_pin, "pin_memory", pin)


def _is_among(loader: Any, loaders: list[Any]) -> bool:
    return any(loader is each for each in loaders)
