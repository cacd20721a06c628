"""Waits and epochs of the training loop: hooks on torch's iterators, in the process that trains.

Each iterator of a loader that is measured writes marks: when the loop waits, which batch it gets,
which worker was asked for it and when, when it arrived. The hooks lie on the classes of the
iterators, because an iterator asks its workers for batches before anybody has got hold of it.

What other libraries put around loaders normalises, moves or shuffles batches in the main process,
after torch's loader has given them, so a loop waits longer than torch's iterator shows. Where such
a library has been imported, the `__iter__` of its class gives a generator of ours that marks the
outermost wait. Nothing else of the user's object changes.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from stallscope.hooks.device_time import Edge
from stallscope.hooks.event_log import Mark, numbers
from stallscope.hooks.loader_access import described, value_of
from stallscope.hooks.patches import around, unseen
from stallscope.hooks.recording_folder import AROUND, epoch_key, loader_and_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from stallscope.hooks.device_time import DeviceMarks
    from stallscope.hooks.event_log import ProcessLog
    from stallscope.hooks.patches import Patches

LOADER_WRAPPERS: Final[dict[str, tuple[str, ...]]] = {
    "timm.data.loader": ("PrefetchLoader",),
    "fastai.data.load": ("DataLoader",),
    "accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"),
    "webdataset.pipeline": ("DataPipeline",),
}
"""Wrappers of loaders, by the module that defines them. MONAI's ThreadDataLoader is none of
them: its batches come from a thread of its own, so no wait for a loader lies inside of the loop's.
"""


class Waits(threading.local):
    """The waits for a batch that this thread is in (iteration, iterator), the innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Iteration, Any]] = []


@dataclass(eq=False)
class Iteration:
    """One epoch of a loader: what is known of an iterator while it lives."""

    key: int
    """Loader and epoch, see `epoch_key`."""
    workers: int
    """0: the batches are made in this process."""
    fresh: bool = True
    """Its first epoch has not begun yet."""
    resetting: bool = False
    """Inside of `_reset`: that of a base class is part of it."""
    yielded: int = 0
    """Batches so far, where they are made in this process."""
    arrived: int = -1
    """The batch that arrived last."""
    pins: bool = False
    """True if the thread that pins its batches is known."""

    def restart(self, key: int) -> None:
        """Begin the next epoch."""
        self.key = key
        self.yielded, self.arrived, self.pins = 0, -1, False


class Iterations:
    """Hooks the iterators of the loaders that are measured, and what other libraries put around.

    `wanted` tells whether a loader is measured, when it makes an iterator. `starting` is called
    with each iterator that is about to start, measured (or None): its workers' processes come next
    in this thread. `adopts` tells whether to measure the waits of an iterator that lives already,
    whose workers cannot be hooked any more.
    """

    def __init__(
        self,
        marks: ProcessLog,
        wanted: Callable[[Any], bool],
        starting: Callable[[Any, Iteration | None], None],
        patches: Patches,
        adopts: Callable[[Any], bool],
    ) -> None:
        self._marks, self._failures, self._patches = marks, marks.failures, patches
        self._wanted, self._starting, self._adopts = wanted, starting, adopts
        self.device: DeviceMarks | None = None
        """Gets the begin and end of the outermost waits; None: the recording's own loop reports
        them, and what other libraries put around loaders is not watched."""
        self.sample_stacks: Callable[[], object] | None = None
        """Goes on sampling stacks of this process, which is not forked now."""
        self._known: WeakKeyDictionary[Any, Iteration] = WeakKeyDictionary()
        self._loaders: dict[int, tuple[ref[Any], tuple[Any, ...]]] = {}
        """Each by its number, and what makes another one alike."""
        self._epochs: defaultdict[int, Iterator[int]] = defaultdict(count)
        self.waits = Waits()
        self._met: set[type] = set()
        self._raised = 0
        self._lock = threading.RLock()  # threads may make iterators at once
        self._methods = {
            "__next__": ("the waits of the loop", self._wait, self._got),
            "_reset": ("the epochs", self._before_reset, self._after_reset),
            "_try_put_index": ("which worker was asked for a batch", self._ask, self._asked),
            "_get_data": ("when batches arrived", self._iteration_of, self._arrived),
        }
        """Recorded part of the run for each hooked method, and functions before and after it."""

    def put_on(self) -> None:
        """Hook torch's iterators; those of other libraries when they are made."""
        self._hook(_BaseDataLoaderIter, "__init__", "a loader", self._begin, None)
        for cls in (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter):
            self._meet(cls)
        for module in LOADER_WRAPPERS if self.device is not None else ():
            missing = f"the waits for {module.partition('.')[0]}"
            self._patches.when_imported(module, missing, partial(self._hook_wrappers, module))

    def waiting_for(self, fetcher: Any) -> Iteration | None:
        """Return the iteration whose batch this thread waits for, if this fetcher makes it."""
        stack = self.waits.stack
        if not stack:
            return None
        iteration, iterator = stack[-1]
        return iteration if value_of(iterator, "_dataset_fetcher") is fetcher else None

    def living(self) -> list[Any]:
        """Return the iterators that were made and are still held by somebody."""
        return list(self._known)

    def raised(self, error: BaseException) -> bool:
        """Return whether this exception came out of the wait that was left last by one."""
        return id(error) == self._raised

    def _hook(self, cls: type, name: str, missing: str, before: Any, after: Any) -> None:
        with self._failures.within(missing):
            hooked = around(vars(cls)[name], before, after, self._failures, missing)
            self._patches.put(cls, name, hooked)

    def _meet(self, kind: type) -> None:
        """Hook the methods of a class of iterators, each where it is defined."""
        for cls in kind.__mro__[:-1]:
            if cls not in self._met:
                self._met.add(cls)
                for name in self._methods.keys() & vars(cls).keys():
                    self._hook(cls, name, *self._methods[name])

    # ---- iterators --------------------------------------------------------------------------

    def _begin(self, iterator: Any, loader: Any, *_: Any, **__: Any) -> None:
        iteration = None
        with self._failures.within("a loader"):
            if self._wanted(loader):
                with self._lock:
                    self._meet(type(iterator))
                workers = value_of(loader, "num_workers") or 0
                iteration = self._iteration(loader, workers)
                self._known[iterator] = iteration
                self._marks.mark(Mark.ITER, iteration.key)
        self._starting(iterator, iteration)  # else its workers would be those of the one before

    def _iteration(self, loader: Any, workers: int) -> Iteration:
        """Number a loader, and its epoch that begins.

        The number may be that of a loader that this one takes the place of: a script may make its
        loader anew for each epoch, with the same kind of dataset, read in the same way.
        """
        about = described(loader)
        types = [type(value_of(loader, name)) for name in ("dataset", "sampler")]
        alike = (*types, *about.values())
        with self._lock:
            alive_or_alike = [
                number
                for number, (there, others) in self._loaders.items()
                if there() is loader or (there() is None and others == alike)
            ]
            number = alive_or_alike[0] if alive_or_alike else len(self._loaders) + 1
            if not alive_or_alike:
                self._marks.say(loader=number, **about)
            self._loaders[number] = ref(loader), alike
            return Iteration(self._next_epoch(number), workers)

    def _next_epoch(self, loader: int) -> int:
        return epoch_key(loader, next(self._epochs[loader]))

    def _iteration_of(self, iterator: Any, *_: Any, **__: Any) -> Iteration | None:
        return self._known.get(iterator) or self._adopted(iterator)

    def _adopted(self, iterator: Any) -> Iteration | None:
        """Measure an iterator that was made before; what its workers do is not seen."""
        # One without this is half made
        if not hasattr(iterator, "_sampler_iter") or not self._adopts(iterator):
            return None
        iteration = self._iteration(iterator, iterator._num_workers)
        iteration.fresh, iteration.yielded = False, iterator._num_yielded
        self._known[iterator] = iteration
        if iteration.workers:
            self._marks.say(
                note=f"workers of a loader over {type(iterator._dataset).__name__} started before "
                "the recording: only the loop's waits are recorded"
            )
        return iteration

    # ---- their methods: the loop waits for a batch ------------------------------------------

    def _wait(self, iterator: Any) -> Iteration | None:
        iteration, stack = self._iteration_of(iterator), self.waits.stack
        if iteration is None or any(iteration is inner for inner, _ in stack):
            return None  # not measured, or a base class's own
        if not iteration.pins:
            iteration.pins = True
            if thread := value_of(iterator, "_pin_memory_thread"):
                self._marks.mark(Mark.PINS, iteration.key, numbers(thread.ident or 0, 0))
        return self._enter(iteration, iterator)

    def _enter(self, iteration: Iteration, iterator: Any) -> Iteration:
        stack, device = self.waits.stack, self.device
        self._marks.mark(Mark.WAIT, iteration.key)
        if device is not None and device.on and not stack:
            device.edge(Edge.NOTHING)
        stack.append((iteration, iterator))
        return iteration

    def _got(self, iteration: Iteration, _: Any, error: BaseException | None) -> None:
        stack, device = self.waits.stack, self.device
        _, iterator = stack.pop()
        if error is not None:
            self._raised = id(error)
            if not isinstance(error, StopIteration):
                iteration.yielded += 1  # the next batch is another one
            self._marks.mark(Mark.ENDED, iteration.key)
            return
        self._marks.mark(Mark.GOT, iteration.key, _number_of_batch(iteration, iterator))
        if self.sample_stacks is not None:
            self.sample_stacks()
        if device is not None and not stack:
            if device.on:
                device.edge(Edge.STEP)
            elif device.looks:
                device.look()

    # ---- a worker is asked for a batch, unless none is left; a batch comes from the workers ---

    def _ask(self, iterator: Any, *_: Any, **__: Any) -> tuple[Any, ...] | None:
        iteration = self._iteration_of(iterator)
        return None if iteration is None else (iteration, iterator, iterator._send_idx)

    def _asked(self, begun: tuple[Any, ...], _: Any, error: BaseException | None) -> None:
        iteration, iterator, task = begun
        if error is None and iterator._send_idx > task:
            worker = iterator._task_info[task][0]
            self._marks.mark(Mark.ASKED, iteration.key, numbers(task, worker))

    def _arrived(self, iteration: Iteration, data: Any, error: BaseException | None) -> None:
        if error is None and type(data[0]) is int:  # else word that they are ready
            iteration.arrived = data[0]
            self._marks.mark(Mark.ARRIVED, iteration.key, data[0])

    # ---- an epoch begins; the iterator of persistent workers has more than one --------------

    def _before_reset(self, iterator: Any, *_: Any, **__: Any) -> Iteration | None:
        iteration = self._iteration_of(iterator)
        if iteration is None or iteration.resetting:
            return None
        if not iteration.fresh:
            iteration.restart(self._next_epoch(loader_and_epoch(iteration.key)[0]))
            self._marks.mark(Mark.ITER, iteration.key)
        iteration.fresh, iteration.resetting = False, True
        return iteration

    def _after_reset(self, iteration: Iteration, _: Any, __: BaseException | None) -> None:
        iteration.resetting = False
        self._marks.mark(Mark.ITERATED, iteration.key)

    # ---- what other libraries put around loaders --------------------------------------------

    def _hook_wrappers(self, module: str) -> None:
        for name in LOADER_WRAPPERS[module]:
            cls = getattr(sys.modules[module], name, None)
            original = vars(cls).get("__iter__") if isinstance(cls, type) else None
            if original is not None:
                self._patches.put(cls, "__iter__", self._iterating(original))

    @unseen
    def _iterating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        missing, epochs = "the waits for a library's loader", count()

        def begin() -> Iteration | None:
            if self.waits.stack:  # the stall is the outermost iterator's
                return None
            iteration = Iteration(epoch_key(AROUND, next(epochs)), 0)
            self._marks.mark(Mark.ITER, iteration.key)
            return iteration

        def marked(batches: Any, iteration: Iteration) -> Any:
            self._marks.mark(Mark.ITERATED, iteration.key)
            # An iterator with more to it than its batches stays what it is
            plain = isinstance(batches, (GeneratorType, islice))
            return self.batches(batches, iteration, missing) if plain else None

        begins = self._failures.passing(missing, begin)
        marks = self._failures.passing(missing, marked)

        @functools.wraps(original)
        def iterate(wrapper: Any) -> Any:
            iteration = begins()
            batches = original(wrapper)
            return batches if iteration is None else marks(batches, iteration) or batches

        return iterate

    @unseen
    def batches(
        self, batches: Any, iteration: Iteration, missing: str
    ) -> Generator[Any, None, None]:
        """Yield what an iterator around loaders gives, each with its wait; closing it closes both.

        Where marking the waits fails, the run lacks what is `missing`.
        """

        def begin(iterator: Any) -> Iteration | None:
            return None if self.waits.stack else self._enter(iteration, iterator)

        advance = around(next, begin, self._got, self._failures, missing)
        try:
            while True:
                try:
                    batch = [advance(batches)]
                except StopIteration:
                    return
                yield batch.pop()  # a batch that the loop drops must not live on here
        finally:
            if isinstance(batches, GeneratorType):
                batches.close()


def _number_of_batch(iteration: Iteration, iterator: Any) -> int:
    if not iteration.workers:
        iteration.yielded += 1
        return iteration.yielded - 1
    in_order = getattr(iterator, "_in_order", True)  # torch 2.6 made that a choice
    return iterator._rcvd_idx - 1 if in_order else iteration.arrived
