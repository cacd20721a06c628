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

import functools
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from stallscope.hooks.device_time import Edge
from stallscope.hooks.event_log import Mark, numbers
from stallscope.hooks.loader_access import described, value_of
from stallscope.hooks.log_place import AROUND, epoch_key
from stallscope.hooks.patches import ByIdentity, around, once_imported, unseen
from stallscope.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.device_time import DeviceMarks
    from stallscope.hooks.event_log import ProcessLog
    from stallscope.hooks.patches import Patches

    _Method = Callable[..., Any]
    _Failed = Callable[[BaseException], None]

_HOOKED: Final = {
    "__next__": "the waits of the loop",
    "_reset": "the epochs",
    "_try_put_index": "which worker was asked for a batch",
    "_get_data": "when batches arrived",
}
"""Methods of iterators, and what of a run each tells."""
LOADER_WRAPPERS: Final[dict[str, tuple[str, ...]]] = {
    "timm.data.loader": ("PrefetchLoader",),
    "fastai.data.load": ("DataLoader",),
    "accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"),
    "webdataset.pipeline": ("DataPipeline",),
}
"""What is put around loaders, by the module that defines it. MONAI's ThreadDataLoader is none of
them: its batches come from a thread of its own, so no wait for a loader lies inside of the loop's.
"""


class Waits(threading.local):
    """The waits for a batch that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Iteration | None, Any]] = []
        """The iteration, None around other libraries' loaders; and the iterator."""


class Loaders:
    """Numbers loaders, and their epochs; any thread may ask.

    Args:
        marks: where to write what is known of a loader.
    """

    def __init__(self, marks: ProcessLog) -> None:
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
        alike = (
            type(value_of(loader, "dataset")),
            type(value_of(loader, "sampler")),
            *about.values(),
        )
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
        adopts: whether to measure the waits of an iterator that lives already; its workers cannot
            be hooked any more.
    """

    def __init__(
        self,
        marks: ProcessLog,
        wanted: Callable[[Any], bool],
        starting: Callable[[Any, Iteration | None], None],
        patches: Patches,
        *,
        adopts: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        self._marks = marks
        self._failures = marks.failures
        self.device: DeviceMarks | None = None
        """Told where the outermost waits begin and end, where nobody else does that."""
        self._adopts = adopts
        self._wanted = wanted
        self._starting = starting
        self._patches = patches
        self._known: ByIdentity[Iteration] = ByIdentity()
        self._loaders = Loaders(marks)
        self.waits = Waits()
        self._met: set[type] = set()
        self._raised = 0
        self._lock = threading.RLock()  # threads may make iterators at once

    def put_on(self) -> None:
        """Hook torch's iterators; those of other libraries when they are made."""
        base, workers = _BaseDataLoaderIter, _MultiProcessingDataLoaderIter
        with self._failures.within("the loaders"):
            failed = partial(self._failures.note, "a loader")
            begins = around(base.__init__, self._begin, None, failed)
            self._patches.put(base, "__init__", begins)
        with self._failures.within("holding interrupts back"):
            failed = partial(self._failures.note, "holding interrupts back")
            starts = around(workers.__init__, _hold_back, _let_go, failed)
            self._patches.put(workers, "__init__", starts)
        for cls in (workers, _SingleProcessDataLoaderIter):
            self._meet(cls)

    def waiting_for(self, fetcher: Any) -> Iteration | None:
        """The iteration whose batch this thread waits for, if it is this fetcher that makes it."""
        stack = self.waits.stack
        if not stack:
            return None
        iteration, iterator = stack[-1]
        return iteration if getattr(iterator, "_dataset_fetcher", None) is fetcher else None

    def living(self) -> list[Any]:
        """The iterators that were made and are still held by somebody."""
        return self._known.living()

    def raised(self, error: BaseException) -> bool:
        """Whether this exception came out of the wait that was left last by one."""
        return id(error) == self._raised

    # ---- iterators --------------------------------------------------------------------------

    def _begin(self, iterator: Any, loader: Any, *_: Any, **__: Any) -> None:
        iteration = None
        with self._failures.within("a loader"):
            if self._wanted(loader):
                iteration = self._begun(iterator, loader)
        self._starting(iterator, iteration)  # else its workers would be those of the one before

    def _begun(self, iterator: Any, loader: Any) -> Iteration:
        workers = value_of(loader, "num_workers") or 0
        with self._lock:
            self._meet(type(iterator))
        iteration = Iteration(*self._loaders.begin(loader), workers)
        self._known.put(iterator, iteration)
        self._marks.mark(Mark.ITER, iteration.key)
        return iteration

    def _adopted(self, iterator: Any) -> Iteration | None:
        """An iterator that was made before; what its workers do is not seen."""
        # One without this is half made
        if not hasattr(iterator, "_sampler_iter") or not self._adopts(iterator):
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

    # ---- their methods ----------------------------------------------------------------------

    def _meet(self, kind: type) -> None:
        """Hook the methods of a class of iterators, each where it is defined."""
        for cls in kind.__mro__[:-1]:
            if cls in self._met:
                continue
            self._met.add(cls)
            for name, missing in _HOOKED.items():
                if name in vars(cls):
                    with self._failures.within(missing):
                        failed = partial(self._failures.note, missing)
                        hooked = getattr(self, f"_around_{name.strip('_')}")
                        self._patches.put(cls, name, hooked(vars(cls)[name], failed))

    # Between two steps of a loop nothing of ours is in the caches, and each function that is called
    # then costs a microsecond or two. So a hook that runs in each step is one function.

    @unseen
    def _around_next(self, original: _Method, failed: _Failed) -> _Method:  # noqa: C901 - as above
        """The loop waits for a batch."""
        waits, known, adopted = self.waits, self._known.get, self._adopted
        mark, given = self._marks.mark, _given
        wait, got, epoch_ends, pins = Mark.WAIT, Mark.GOT, self._epoch_ends, self._pins
        device, nothing, step = self.device, Edge.NOTHING, Edge.STEP

        @functools.wraps(original)
        def hook(iterator: Any) -> Any:  # noqa: C901 - as above
            begun = None
            try:
                stack, iteration = waits.stack, known(iterator) or adopted(iterator)
                if iteration is not None and not (
                    stack and any(iteration is inner for inner, _ in stack)  # a base class's own
                ):
                    if not iteration.pins:
                        pins(iteration, iterator)
                    mark(wait, iteration.key)
                    if device is not None and device.on and not stack:
                        device.edge(nothing)
                    stack.append((iteration, iterator))
                    begun = iteration
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                failed(error)
            if begun is None:
                return original(iterator)
            try:
                batch = original(iterator)
            except BaseException as raised:
                try:
                    stack.pop()
                    epoch_ends(begun, raised)
                except Exception as error:  # noqa: BLE001 - as above
                    failed(error)
                raise
            try:
                stack.pop()
                mark(got, begun.key, given(begun, iterator))
                if device is not None and not stack:
                    if device.on:
                        device.edge(step)
                    elif device.looks:
                        device.look()
            except Exception as error:  # noqa: BLE001 - as above
                failed(error)
            return batch

        return hook

    def _pins(self, iteration: Iteration, iterator: Any) -> None:
        iteration.pins = True
        if thread := getattr(iterator, "_pin_memory_thread", None):
            self._marks.mark(Mark.PINS, iteration.key, numbers(thread.ident or 0, 0))

    def _epoch_ends(self, iteration: Iteration, error: BaseException) -> None:
        """There was no batch, or something was raised."""
        self._raised = id(error)
        if not isinstance(error, StopIteration):
            iteration.given += 1  # the next batch is another one
        self._marks.mark(Mark.ENDED, iteration.key)

    @unseen
    def _around_try_put_index(self, original: _Method, failed: _Failed) -> _Method:
        """The loop asks a worker for a batch, unless there is nothing left to ask for."""
        known, adopted = self._known.get, self._adopted
        mark, asked = self._marks.mark, Mark.ASKED

        @functools.wraps(original)
        def hook(iterator: Any, *rest: Any, **named: Any) -> Any:
            iteration = None
            try:
                task, iteration = iterator._send_idx, known(iterator) or adopted(iterator)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                failed(error)
            result = original(iterator, *rest, **named)
            if iteration is not None:
                try:
                    if iterator._send_idx > task:
                        mark(asked, iteration.key, numbers(task, iterator._task_info[task][0]))
                except Exception as error:  # noqa: BLE001 - as above
                    failed(error)
            return result

        return hook

    @unseen
    def _around_get_data(self, original: _Method, failed: _Failed) -> _Method:
        """Something comes from the workers: a batch, or word that they are ready."""
        known, adopted = self._known.get, self._adopted
        mark, arrived = self._marks.mark, Mark.ARRIVED

        @functools.wraps(original)
        def hook(iterator: Any, *rest: Any, **named: Any) -> Any:
            got = original(iterator, *rest, **named)
            try:
                iteration = known(iterator) or adopted(iterator)
                if iteration is not None and type(got[0]) is int:
                    iteration.arrived = got[0]
                    mark(arrived, iteration.key, got[0])
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                failed(error)
            return got

        return hook

    def _around_reset(self, original: _Method, failed: _Failed) -> _Method:
        def begin(iterator: Any, *_: Any, **__: Any) -> Iteration | None:
            iteration = self._known.get(iterator) or self._adopted(iterator)
            return None if iteration is None else self._before_reset(iteration)

        return around(original, begin, self._reset, failed)

    def _before_reset(self, iteration: Iteration) -> Iteration | None:
        """An epoch begins; the iterator of persistent workers has more than one."""
        if iteration.resetting:
            return None
        if not iteration.fresh:
            iteration.restart(self._loaders.next_epoch(iteration.loader))
            self._marks.mark(Mark.ITER, iteration.key)
        iteration.fresh, iteration.resetting = False, True
        return iteration

    def _reset(self, iteration: Iteration, _: Any, __: BaseException | None) -> None:
        iteration.resetting = False
        self._marks.mark(Mark.ITERATED, iteration.key)


def _hold_back(*_: Any, **__: Any) -> ExitStack:
    """An interrupt while a worker starts would leave it behind."""
    with ExitStack() as held:
        held.enter_context(held_back())
        return held.pop_all()


def _let_go(held: ExitStack, *_: Any) -> None:
    held.close()


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
        waits: what is iterated while this thread waits for a batch is part of making it.
        patches: what is changed here comes off with them.
        device: told where these waits begin and end.
    """

    def __init__(
        self, marks: ProcessLog, waits: Waits, patches: Patches, device: DeviceMarks
    ) -> None:
        self._marks = marks
        self._failures = marks.failures
        self._waits = waits
        self._device = device
        self._patches = patches
        self._imports = ExitStack()
        self._numbers = count()

    def put_on(self) -> None:
        """Hook the libraries that are there; the others when they are imported."""
        for module in LOADER_WRAPPERS:
            missing = f"the waits for {module.partition('.')[0]}"
            hook = self._failures.passing(missing, partial(self._hook, module))
            with self._failures.within(missing):
                self._imports.enter_context(once_imported(module, hook))

    def take_off(self) -> None:
        """Wait for no import any more; the patches are undone by their owner."""
        self._imports.close()

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
            key, plain = None, False
            try:
                if not self._waits.stack:  # else the stall is the outermost iterator's
                    key = epoch_key(AROUND, next(self._numbers))
                    self._marks.mark(Mark.ITER, key)
            except Exception as error:  # noqa: BLE001 - ours is never the user's
                self._failures.note("the waits for a library's loader", error)
            made = original(wrapper)
            if key is None:
                return made
            try:
                self._marks.mark(Mark.ITERATED, key)
                # An iterator with more to it than its batches stays what it is.
                plain = isinstance(made, (GeneratorType, islice))
            except Exception as error:  # noqa: BLE001 - as above
                self._failures.note("the waits for a library's loader", error)
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
        got: list[Any] = []
        marked = False
        try:
            if not (stack := self._waits.stack):
                self._marks.mark(Mark.WAIT, key)
                self._device.edge(Edge.NOTHING)
                stack.append((None, made))
                marked = True
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self._failures.note("the waits for a library's loader", error)
        try:
            got += islice(made, 1)
            return got
        finally:
            if marked:
                stack.pop()
                try:
                    if got:
                        self._marks.mark(Mark.GOT, key, next(numbers))
                        self._device.edge(Edge.STEP)
                    else:
                        self._marks.mark(Mark.ENDED, key)
                except Exception as error:  # noqa: BLE001 - as above
                    self._failures.note("the waits for a library's loader", error)
