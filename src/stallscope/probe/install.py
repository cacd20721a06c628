"""Getting the recorder into the processes that make the batches.

For workers, torch's worker loop is replaced while the loader starts them, by an entry that can be
pickled and that gets the original by module and name; the user's loader and its `worker_init_fn`
are left alone. With `num_workers=0` the same hooks go on in this process and come off again.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import struct
import threading
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope.errors import UnsupportedError
from stallscope.eventlog import Header, LogWriter
from stallscope.interrupts import held_back
from stallscope.probe.fetchers import Hooks
from stallscope.probe.patches import Patches
from stallscope.probe.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

_watched: WeakSet[DataLoader[Any]] = WeakSet()
"""Loaders that are being recorded."""
MAIN: int = -1
"""Worker id of the main process in the log."""


@dataclass(frozen=True)
class LogPlace:
    """Where the processes of one recording put their logs."""

    folder: Path
    """Private folder of the recording."""
    capacity: int
    """Words of each log."""

    def open(self, worker: int) -> LogWriter:
        """A new log of this process. Raises OSError where there is no room."""
        born_ns = perf_counter_ns()
        name = f"{os.getpid()}-{worker}-{born_ns}.events"
        path = self.folder / name
        return LogWriter(path, worker=worker, born_ns=born_ns, capacity=self.capacity)

    def logs(self) -> list[Path]:
        """All logs that there are by now."""
        return sorted(self.folder.glob("*.events"))

    def stop(self) -> None:
        """Turn off the hooks of workers that live on."""
        for path in self.logs():
            with path.open("r+b") as log:
                log.seek(Header.STOP * 8)
                log.write(struct.pack("q", 1))


class Probe:
    """Hooks the loaders of this process for the length of a `with` block.

    Args:
        place: where the logs go.
        loader: the one to measure.
        epochs_ns: gets `perf_counter_ns()` of each start of an iterator.
    """

    def __init__(
        self, place: LogPlace, loader: DataLoader[Any], epochs_ns: list[int] | None = None
    ) -> None:
        self._place = place
        self._loader = loader
        self._patches = Patches()
        self._hooks: Hooks | None = None
        self._fetchers: WeakSet[Any] = WeakSet()
        self._epochs_ns = [] if epochs_ns is None else epochs_ns

    def __enter__(self) -> Self:
        if self._loader in _watched:
            raise UnsupportedError(
                "this loader is being recorded already; end that recording before the next one"
            )
        _watched.add(self._loader)
        original = DataLoader._get_iterator
        probe = self

        @functools.wraps(original)
        def get_iterator(loader: DataLoader[Any]) -> Any:
            if loader is not probe._loader:
                return original(loader)
            with held_back():
                return probe._iterator(functools.partial(original, loader))

        self._patches.put(DataLoader, "_get_iterator", get_iterator)
        return self

    def __exit__(self, *_: object) -> None:
        with held_back():
            _watched.discard(self._loader)
            self._patches.undo()
            if self._hooks is not None:
                self._hooks.retire()
                _in_this_process.discard(self._hooks)
            self._place.stop()

    def _iterator(self, start: Any) -> Any:
        """A new iterator of the loader, with the recorder inside."""
        epoch = len(self._epochs_ns)
        self._epochs_ns.append(perf_counter_ns())
        if self._loader.num_workers:
            entry = Patches()
            with _starting:
                entry.put(torch_worker, "_worker_loop", WorkerEntry(self._place, epoch))
                try:
                    return start()
                finally:
                    entry.undo()
        iterator = start()
        if self._hooks is None:
            self._hooks = Hooks(Recorder(self._place.open(MAIN)), self._is_mine)
            self._hooks.put_on()
            _in_this_process.add(self._hooks)
        self._fetchers.add(iterator._dataset_fetcher)
        self._hooks.begin_epoch(epoch)
        return iterator

    def _is_mine(self, fetcher: Any) -> bool:
        """Whether the loader's own fetcher is at work; counts its batches."""
        if fetcher not in self._fetchers or self._hooks is None:
            return False
        self._hooks.number += 1
        return True


_starting = threading.Lock()
"""Two threads that start workers at once would take each other's entry for the original."""
_in_this_process: WeakSet[Hooks] = WeakSet()


def _take_off_in_child() -> None:
    """A process forked meanwhile must not write into its parent's log."""
    for hooks in list(_in_this_process):
        hooks.retire(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_off_in_child)


class WorkerEntry:
    """Stands in for torch's worker loop: hooks the worker, then runs the original."""

    def __init__(self, place: LogPlace, epoch: int) -> None:
        self._place = place
        self._epoch = epoch
        self._loop: Callable[..., None] | None = torch_worker._worker_loop
        self._home = (self._loop.__module__, self._loop.__qualname__)

    def __getstate__(self) -> dict[str, Any]:
        # The function cannot be pickled while something else stands under its name.
        return {**vars(self), "_loop": None}

    def __call__(self, *args: Any) -> None:
        """Run as the target of the worker's process, with torch's arguments."""
        module, name = self._home
        original = self._loop or getattr(import_module(module), name)
        given = inspect.signature(original).bind(*args).arguments
        try:
            log = self._place.open(given["worker_id"])
        except OSError:  # no room: the user's batches matter more, and the run says so
            original(*args)
            return
        hooks = Hooks(Recorder(log))
        _in_this_process.add(hooks)
        hooks.begin_epoch(self._epoch)
        hooks.put_on()
        given["index_queue"] = _IndexQueue(given["index_queue"], hooks, log, self._epoch)
        original(*given.values())


class _IndexQueue:
    """A worker's queue of tasks, read over torch's shoulder: the number of the batch is there."""

    def __init__(self, queue: Any, hooks: Hooks, log: LogWriter, epoch: int) -> None:
        self._queue = queue
        self._hooks = hooks
        self._header = log.header
        self._epoch = epoch

    def get(self, *args: Any, **named: Any) -> Any:
        """The next task, as torch's queue gives it."""
        if not self._header[Header.READY_NS]:
            self._header[Header.READY_NS] = perf_counter_ns()
        task = self._queue.get(*args, **named)
        if isinstance(task, tuple) and task and isinstance(task[0], int):
            self._hooks.number = task[0]
        elif type(task).__name__ == "_ResumeIteration":  # the next epoch of persistent workers
            self._epoch += 1
            self._hooks.begin_epoch(self._epoch)
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def supported(loader: Any) -> DataLoader[Any]:
    """The loader itself, or one sentence why it cannot be measured.

    Raises:
        UnsupportedError: not a plain DataLoader, or its workers are not forked.
    """
    kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if not isinstance(loader, DataLoader):
        raise UnsupportedError(
            f"{kind} is not a torch.utils.data.DataLoader; this version measures DataLoaders and "
            "their subclasses only. Give the DataLoader inside of it, if there is one"
        )
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        raise UnsupportedError(
            f"{kind} makes its own iterators (`_get_iterator`), which this version does not hook. "
            "Give a plain DataLoader over the same dataset"
        )
    if any(isinstance(held, _BaseDataLoaderIter) for held in _others(loader)):
        raise UnsupportedError(
            f"this {kind} keeps an iterator of its own, whose workers live already and cannot be "
            "hooked any more. Give a plain DataLoader over the same dataset"
        )
    if loader.num_workers and (method := start_method(loader)) != "fork":
        raise UnsupportedError(
            f"the loader starts its workers by {method!r}; this version measures forked workers "
            "and num_workers=0 only. Give a loader with multiprocessing_context='fork' or with "
            "num_workers=0"
        )
    return loader


def _others(loader: DataLoader[Any]) -> list[Any]:
    """What a loader holds beside torch's own iterator of persistent workers."""
    return [value for name, value in vars(loader).items() if name != "_iterator"]


def start_method(loader: DataLoader[Any]) -> str:
    """How the loader starts its workers: fork, spawn or forkserver.

    Asking leaves Python's own default unset, so that it can still be chosen afterwards.
    """
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def shut_down(iterator: Any) -> None:
    """End the workers of an iterator now, whoever still holds a reference to it."""
    if hasattr(iterator, "_shutdown_workers"):
        with held_back():
            iterator._shutdown_workers()
