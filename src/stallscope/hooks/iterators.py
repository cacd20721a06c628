"""What the training loop does: hooks on torch's iterators, in the process that trains.

Each iterator of a loader that is measured writes marks: when the loop waits, which batch it gets,
which worker was asked for it and when, when it arrived. The hooks lie on the classes of the
iterators, because an iterator asks its workers for batches before anybody has got hold of it.

What other libraries put around loaders normalises, moves or shuffles batches in the main process,
after torch's loader has given them, so a loop waits longer than torch's iterator tells. Where such
a library has been imported, the `__iter__` of its class gives a generator of ours that marks the
outermost wait. Nothing else of the user's object changes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from stallscope.after_import import once_imported
from stallscope.hooks.loop_log import AROUND, Mark, epoch_key
from stallscope.hooks.patches import ByIdentity, unseen
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.loop_log import MarkWriter
    from stallscope.hooks.patches import Patches


_HOOKED: Final = ("__next__", "_reset", "_try_put_index", "_get_data")
LOADER_WRAPPERS: Final[dict[str, tuple[str, ...]]] = {
    "timm.data.loader": ("PrefetchLoader",),
    "fastai.data.load": ("DataLoader",),
    "accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"),
    "webdataset.pipeline": ("DataPipeline",),
}
"""What is put around loaders, by the module that defines it. MONAI's ThreadDataLoader is none of
them: its batches come from a thread of its own, so no wait for a loader lies inside of the loop's.
"""


class Loaders:
    """Numbers loaders, and their epochs; any thread may ask.

    Args:
        marks: where to write what is known of a loader.
    """

    def __init__(self, marks: MarkWriter) -> None:
        self._marks = marks
        self._loaders: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        self._epochs: dict[int, int] = {}
        self._lock = threading.RLock()

    def begin(self, loader: Any) -> tuple[int, int]:
        """An epoch of a loader begins: its numbers."""
        with self._lock:
            number = self._number(loader)
            return number, self.next_epoch(number)

    def next_epoch(self, loader: int) -> int:
        """Number of the epoch of a loader that begins now."""
        self._epochs[loader] = self._epochs.get(loader, -1) + 1
        return self._epochs[loader]

    def _number(self, loader: Any) -> int:
        """The loader's number: its own, or that of the one that it takes the place of.

        A script may make its loader anew for each epoch: the same kind of dataset, read in the same
        way, and the one before is no more.
        """
        about = described(loader)
        alike = (type(held(loader, "dataset")), type(held(loader, "sampler")), *about.values())
        for key, (there, number) in list(self._loaders.items()):
            if there() is loader:
                return number
            if key[:-1] == alike and there() is None:
                self._loaders[key] = (ref(loader), number)
                return number
        number = len(self._loaders) + 1
        self._loaders[(*alike, number)] = (ref(loader), number)
        self._marks.say(loader=number, **about)
        return number


def described(loader: Any) -> dict[str, Any]:
    """What a reader of the run has to know of a loader, as JSON takes it."""
    batch_size = held(loader, "batch_size")
    return {
        "kind": type(loader).__name__,
        "dataset": type(held(loader, "dataset")).__name__,
        "num_workers": held(loader, "num_workers") or 0,
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        # fastai's loader makes batches inside of what torch takes for its dataset
        "whole": not held(loader, "_auto_collation") and type(loader).__name__ != "_FakeLoader",
        "lived": isinstance(loader, _BaseDataLoaderIter),  # before the recording began
    }


def held(loader: Any, name: str) -> Any:
    """What a loader holds; where it is gone, its iterator has the same under another name."""
    for known in (name, f"_{name}"):
        with contextlib.suppress(Exception):  # a property of the user's, or their `__getattr__`
            return getattr(loader, known)
    return None


@dataclass(eq=False)
class Iteration:
    """One epoch of a loader: what is known of an iterator while it lives."""

    loader: int
    """Number of the loader in the recording."""
    epoch: int
    """Of the loader, from 0."""
    workers: int
    """0: the batches are made in this process."""
    fresh: bool = True
    """Its first epoch has not begun yet."""
    resetting: bool = False
    """Inside of `_reset`: that of a base class is part of it."""
    given: int = 0
    """Batches so far, where they are made in this process."""
    arrived: int = -1
    """The batch that arrived last."""
    pins: bool = False
    """Whether the thread that pins its batches is known."""
    key: int = field(init=False)
    """Loader and epoch as one number; asked for several times a step, so it is kept."""

    def __post_init__(self) -> None:
        self.key = epoch_key(self.loader, self.epoch)

    def restart(self, epoch: int) -> None:
        """The next epoch begins."""
        self.epoch, self.key = epoch, epoch_key(self.loader, epoch)
        self.given, self.arrived, self.pins = 0, -1, False


class Iterations:
    """Hooks the iterators of the loaders that are measured.

    Args:
        marks: where to write.
        wanted: whether a loader is measured; asked when it makes an iterator.
        starting: told of each iterator that is about to start, measured (or None): its workers'
            processes come next in this thread.
        patches: what is changed here comes off with them.
        adopts: also measure the waits of iterators that live already; their workers cannot be
            hooked any more.
    """

    def __init__(
        self,
        marks: MarkWriter,
        wanted: Callable[[Any], bool],
        starting: Callable[[Any, Iteration | None], None],
        patches: Patches,
        *,
        adopts: bool = False,
    ) -> None:
        self._marks = marks
        self._adopts = adopts
        self._wanted = wanted
        self._starting = starting
        self._patches = patches
        self._known: ByIdentity[Iteration] = ByIdentity()
        self._loaders = Loaders(marks)
        self._here = threading.local()
        self._met: set[type] = set()
        self._raised = 0
        self._lock = threading.RLock()  # threads may make iterators at once

    @unseen
    def put_on(self) -> None:
        """Hook torch's iterators; those of other libraries when they are made."""
        original = _BaseDataLoaderIter.__init__

        @functools.wraps(original)
        def init(iterator: Any, loader: Any, *args: Any, **named: Any) -> None:
            self._begin(iterator, loader)
            original(iterator, loader, *args, **named)

        starts = _MultiProcessingDataLoaderIter.__init__

        @functools.wraps(starts)
        def start(iterator: Any, *args: Any, **named: Any) -> None:
            with held_back():  # an interrupt while a worker starts would leave it behind
                starts(iterator, *args, **named)

        self._patches.put(_BaseDataLoaderIter, "__init__", init)
        self._patches.put(_MultiProcessingDataLoaderIter, "__init__", start)
        for cls in (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter):
            self._meet(cls)

    def waiting_for(self, fetcher: Any) -> Iteration | None:
        """The iteration whose batch this thread waits for, if it is this fetcher that makes it."""
        stack = self._stack()
        if not stack:
            return None
        iteration, iterator = stack[-1]
        return iteration if getattr(iterator, "_dataset_fetcher", None) is fetcher else None

    def living(self) -> list[Any]:
        """The iterators that were made and are still held by somebody."""
        return self._known.living()

    def is_waiting(self) -> bool:
        """Whether this thread is waiting for a batch."""
        return bool(getattr(self._here, "stack", None))

    def raised(self, error: BaseException) -> bool:
        """Whether this exception came out of the wait that was left last by one."""
        return id(error) == self._raised

    # ---- iterators --------------------------------------------------------------------------

    def _begin(self, iterator: Any, loader: Any) -> None:
        """An iterator is being made."""
        if not self._wanted(loader):
            self._starting(iterator, None)
            return
        workers = held(loader, "num_workers") or 0
        with self._lock:
            self._meet(type(iterator))
        iteration = Iteration(*self._loaders.begin(loader), workers)
        self._known.put(iterator, iteration)
        self._marks.mark(Mark.ITER, iteration.key)
        self._starting(iterator, iteration)

    def _adopted(self, iterator: Any) -> Iteration | None:
        """An iterator that was made before; what its workers do is not seen."""
        if not self._adopts or not hasattr(iterator, "_sampler_iter"):  # half made
            return None
        begun = self._loaders.begin(iterator)
        iteration = Iteration(*begun, iterator._num_workers, fresh=False)
        iteration.given = iterator._num_yielded
        self._known.put(iterator, iteration)
        if iteration.workers:
            self._marks.say(
                note=f"the workers of a loader over {type(iterator._dataset).__name__} lived "
                "already when the recording began: its waits are seen, what they do is not"
            )
        return iteration

    def _stack(self) -> list[tuple[Iteration, Any]]:
        stack: list[tuple[Iteration, Any]] | None = getattr(self._here, "stack", None)
        if stack is None:
            stack = self._here.stack = []
        return stack

    # ---- their methods ----------------------------------------------------------------------

    def _meet(self, kind: type) -> None:
        """Hook the methods of a class of iterators, each where it is defined."""
        for cls in kind.__mro__[:-1]:
            if cls in self._met:
                continue
            self._met.add(cls)
            for name in _HOOKED:
                if name in vars(cls):
                    hook = getattr(self, f"_{name.strip('_')}")
                    self._patches.put(cls, name, self._around(vars(cls)[name], hook))

    @unseen
    def _around(self, original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook around a method, for the iterators that are measured.

        It runs between two steps of the loop, where nothing of it is in the caches: what counts is
        how many functions it calls.
        """
        known, adopted = self._known.get, self._adopted

        @functools.wraps(original)
        def method(iterator: Any, *args: Any, **named: Any) -> Any:
            iteration = known(iterator) or adopted(iterator)
            if iteration is None:
                return original(iterator, *args, **named)
            return hook(iteration, iterator, functools.partial(original, iterator, *args, **named))

        return method

    @unseen
    def _next(self, iteration: Iteration, iterator: Any, original: Callable[[], Any]) -> Any:
        """The loop asks for a batch."""
        stack = self._stack()
        if stack and any(iteration is inner for inner, _ in stack):  # a base class's own
            return original()
        if not iteration.pins and (thread := getattr(iterator, "_pin_memory_thread", None)):
            iteration.pins = True
            self._marks.mark(Mark.PINS, iteration.key, 0, thread.ident or 0)
        stack.append((iteration, iterator))
        self._marks.mark(Mark.WAIT, iteration.key)
        try:
            batch = original()
        except BaseException as error:
            self._marks.mark(Mark.ENDED, iteration.key)
            self._raised = id(error)
            if not isinstance(error, StopIteration):
                iteration.given += 1  # the next batch is another one
            raise
        else:
            self._marks.mark(Mark.GOT, iteration.key, _given(iteration, iterator))
            return batch
        finally:
            stack.pop()

    @unseen
    def _reset(self, iteration: Iteration, _: Any, original: Callable[[], Any]) -> Any:
        """An epoch begins; the iterator of persistent workers has more than one."""
        if iteration.resetting:
            return original()
        if not iteration.fresh:
            iteration.restart(self._loaders.next_epoch(iteration.loader))
            self._marks.mark(Mark.ITER, iteration.key)
        iteration.fresh, iteration.resetting = False, True
        try:
            return original()
        finally:
            iteration.resetting = False
            self._marks.mark(Mark.ITERATED, iteration.key)

    @unseen
    def _try_put_index(
        self, iteration: Iteration, iterator: Any, original: Callable[[], Any]
    ) -> Any:
        """The loop asks a worker for a batch, unless there is nothing left to ask for."""
        task = iterator._send_idx
        result = original()
        if iterator._send_idx > task:
            self._marks.mark(Mark.ASKED, iteration.key, task, iterator._task_info[task][0])
        return result

    @unseen
    def _get_data(self, iteration: Iteration, _: Any, original: Callable[[], Any]) -> Any:
        """Something came from the workers: a batch, or word that they are ready."""
        got = original()
        if type(got[0]) is int:
            iteration.arrived = got[0]
            self._marks.mark(Mark.ARRIVED, iteration.key, got[0])
        return got


def _given(iteration: Iteration, iterator: Any) -> int:
    """Number of the batch that was just given, in its epoch."""
    if not iteration.workers:
        iteration.given += 1
        return iteration.given - 1
    in_order = getattr(iterator, "_in_order", True)  # torch 2.6 made that a choice
    return iterator._rcvd_idx - 1 if in_order else iteration.arrived


class Wrappers:
    """Marks the waits for what other libraries put around loaders.

    Args:
        marks: where to write.
        loader_waits: whether this thread is waiting for a loader's batch: what is iterated then is
            part of making it.
        patches: what is changed here comes off with them.
    """

    def __init__(
        self, marks: MarkWriter, loader_waits: Callable[[], bool], patches: Patches
    ) -> None:
        self._marks = marks
        self._loader_waits = loader_waits
        self._patches = patches
        self._imports = ExitStack()
        self._numbers = count()
        self._here = threading.local()

    def put_on(self) -> None:
        """Hook the libraries that are there; the others when they are imported."""
        for module in LOADER_WRAPPERS:
            hook = functools.partial(self._hook, module)
            self._imports.enter_context(once_imported(module, hook))

    def take_off(self) -> None:
        """Wait for no import any more; the patches are undone by their owner."""
        self._imports.close()

    def is_waiting(self) -> bool:
        """Whether this thread is waiting for a batch."""
        return getattr(self._here, "inside", False) or self._loader_waits()

    def _hook(self, module: str) -> None:
        for name in LOADER_WRAPPERS[module]:
            cls = getattr(sys.modules[module], name, None)
            original = vars(cls).get("__iter__") if isinstance(cls, type) else None
            if original is not None:
                self._patches.put(cls, "__iter__", self._around(original))

    @unseen
    def _around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def iterate(wrapper: Any) -> Any:
            if self.is_waiting():  # the stall is the outermost iterator's
                return original(wrapper)
            key = epoch_key(AROUND, next(self._numbers))
            self._marks.mark(Mark.ITER, key)
            made = original(wrapper)
            self._marks.mark(Mark.ITERATED, key)
            # An iterator with more to it than its batches stays what it is.
            plain = isinstance(made, (GeneratorType, islice))
            return self._batches(made, key) if plain else made

        return iterate

    @unseen
    def _batches(self, made: Any, key: int) -> Iterator[Any]:
        """What the library's iterator gives; it is closed when this is."""
        numbers = count()
        try:
            while got := self._next(made, key, numbers):
                yield got.pop()  # a batch that the loop drops must not live on here
        finally:
            if isinstance(made, GeneratorType):
                made.close()

    @unseen
    def _next(self, made: Iterator[Any], key: int, numbers: Iterator[int]) -> list[Any]:
        """The next batch as a list of one; empty at the end."""
        if self.is_waiting():
            return list(islice(made, 1))
        got: list[Any] = []
        self._here.inside = True
        self._marks.mark(Mark.WAIT, key)
        try:
            got += islice(made, 1)
            return got
        finally:
            self._here.inside = False
            if got:
                self._marks.mark(Mark.GOT, key, next(numbers))
            else:
                self._marks.mark(Mark.ENDED, key)
