"""Hooking torch's fetchers: where a batch is made, in a worker and in the main process alike.

Around the original `fetch`, the dataset, its iterator and the collate function are replaced by
recording stand-ins and put back in a `finally`; nothing outside of torch's fetcher sees them.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import threading
import traceback
import weakref
from operator import getitem
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.utils.data import Subset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from stallscope.hooks import libraries
from stallscope.hooks.event_log import TIME, Header, Mark, Tag
from stallscope.hooks.find_ops import Ops
from stallscope.hooks.library_calls import Libraries
from stallscope.hooks.loader_access import DatasetOf
from stallscope.hooks.patches import Patches, around, under, unseen
from stallscope.hooks.recording_folder import is_chosen
from stallscope.hooks.training_step import garbage_callback, listeners
from stallscope.stages import BATCH, COLLATE, GARBAGE, GETITEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.iterators import Iteration


_WORD_NS: Final = (200, 2000)
"""Least and highest cost of a word with the hook around it: in a row
(`tests/benchmarks/overhead.py`), and between ops that use the caches."""
_SELDOM: Final = 8
"""From one recorded batch in so many on, the hooks come off in between. Where they go on and off at
every other batch, that costs more than a hook that only calls its original: Python forgets what it
has learned of the calls of a class that changes."""
_CROWDING: Final = 150
"""Time between two words over the time by which that makes a word dearer. An estimate: it gives
0.8% of the CPU time for the sample data and for case B, where paired batches of 32 samples gave
0.7% to 1.3% on a busy machine; `tests/benchmarks/overhead.py` shows if it is low."""
_FIRST_BATCHES: Final = 8
"""The first batches of a process are always recorded: they tell what recording costs."""
_MISSING: Final = "what is recorded of each batch"
_REPLACED: Final = frozenset({"dataset", "dataset_iter", "collate_fn"})


def _dataset_stand_in(dataset: Any, recorder: Recorder, *, whole: bool) -> DatasetOf:
    """Record every sample of a dataset, or every batch where it gives whole batches."""
    key = recorder.key(GETITEM)
    get = getattr(dataset, "__getitem__", functools.partial(getitem, dataset))
    sample = recorder.of_batch(get, key) if whole else functools.partial(recorder.sample, get)
    stand_in = DatasetOf(dataset, sample)
    bulk = getattr(dataset, "__getitems__", None)
    if bulk and not _asks_by_sample(dataset):
        vars(stand_in)["__getitems__"] = recorder.of_batch(bulk, key)
    return stand_in


def _asks_by_sample(dataset: Any) -> bool:
    """Return whether `__getitems__` is torch's of a `Subset`, and gets its samples one by one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not hasattr(dataset, "__getitems__")


def _index_in(error: BaseException, dataset: Any) -> Any:
    """Return the index of the sample that raised in a batch without hooks: its frame has it."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is code and code.co_argcount > 1:
            return frame.f_locals.get(code.co_varnames[1])
    return None


class _Begun(NamedTuple):
    """A batch at work."""

    attributes: dict[str, Any]
    before: dict[str, Any]
    """Those whose place a stand-in may take."""
    first_word: int | None
    """Place of its first word in the log; None: the batch is not recorded."""
    samples: int
    began_ns: int


class Hooks:
    """All hooks of one process.

    `task` returns what a fetcher is to make now, None where that is not measured. Without this
    function, who calls sets `number` and begins the epochs.
    """

    def __init__(
        self,
        recorder: Recorder,
        task: Callable[[Any], Iteration | None] | None = None,
        cost_share: float = math.inf,
    ) -> None:
        self.number = -1
        """Number of the batch at work in its epoch."""
        self.failures = failures = recorder.failures
        self._recorder, self._task, self._cost_share = recorder, task, cost_share
        self._epoch = 0
        self._busy = self._retired = False
        self._switch = threading.RLock()
        self._fetchers, self._inside = Patches(failures), Patches(failures)
        self._libraries = Libraries(recorder, self._inside)
        self._ops = Ops(recorder, self._inside)
        self._modules_seen = 0
        self._datasets: dict[int, Any] = {}
        self._batches = 0
        self._costs: list[float] = []
        self._every = 1

    def put_on(self) -> None:
        """Hook torch's fetchers; the rest follows at the first batch, when the dataset is known."""
        for cls in (_MapDatasetFetcher, _IterableDatasetFetcher):
            with self.failures.within(_MISSING):
                self._fetchers.put(cls, "fetch", self._fetch(cls.fetch))
        for module, hook in libraries.ADAPTERS.items():  # before the dataset's iterator is made
            missing = f"the stages of {module.partition('.')[0]}"
            put_on = functools.partial(hook, self._recorder, self._fetchers)
            self._fetchers.when_imported(module, missing, put_on)
        begin_garbage = functools.partial(self._recorder.begin, GARBAGE)
        self._fetchers.add(listeners, self._recorder)
        self._fetchers.add(gc.callbacks, garbage_callback(begin_garbage, self.failures))

    def take_off(self) -> None:
        """Leave everything as it was before `put_on`."""
        search = self._task is not None  # this is no worker
        for hooks in (self._fetchers, self._inside):
            undo = functools.partial(hooks.undo, search=search)
            self.failures.insist("removing the hooks", undo)

    def retire(self, *, close: bool = True) -> None:
        """Take everything off and stop writing, see `Recorder.retire`."""
        self.failures.insist("removing the hooks", self.take_off)
        if not close:  # in a forked child, where a thread that is no more may hold the lock
            self._recorder.retire()
            return
        with self._switch:
            self._retired = True
            if not self._busy:  # else another thread makes a batch, and retires after that
                self._datasets = {}  # whoever is in a circle with one lets its workers end late
                self._recorder.retire()

    def begin_epoch(self, key: int) -> None:
        """Begin an epoch, to which all later batches belong: see `recording_folder.epoch_key`."""
        self.number, self._epoch = -1, key

    # ---- one batch ------------------------------------------------------------------------------

    @unseen
    def _fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        takes = self.failures.passing(_MISSING, self._takes)
        close = self.failures.passing("the end of a log", self._recorder.retire)
        hook = around(original, self._begins, self._ends, self.failures, _MISSING)
        recorded = under(BATCH, hook)

        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            if not takes(fetcher):
                return original(fetcher, index)
            try:
                return recorded(fetcher, index)
            finally:
                self._busy = False
                if self._retired:  # meanwhile, by another thread
                    close()

        return fetch

    def _begins(self, fetcher: Any, index: Any) -> _Begun:
        attributes, recorder, first = vars(fetcher), self._recorder, None
        before = {name: attributes[name] for name in _REPLACED & attributes.keys()}
        samples, began_ns = recorder.samples, recorder.clock()
        with self.failures.within(_MISSING):
            if self._is_wanted(fetcher):
                self._stand_in(fetcher, index)
                began_ns = recorder.clock()
                first = recorder.enter_batch(self.number)
        if first is None:
            attributes.update(before)
        return _Begun(attributes, before, first, samples, began_ns)

    def _ends(self, begun: _Begun, _: Any, error: BaseException | None) -> None:
        """Put everything back, and weigh what recording has cost."""
        begun.attributes.update(begun.before)
        if begun.first_word is not None:
            with self.failures.within("the ends of batches"):
                samples = self._recorder.samples - begun.samples
                words = self._recorder.leave_batch(begun.first_word, is_complete=error is None)
                self._weigh(words, samples, self._recorder.clock() - begun.began_ns)
        elif error is not None and not isinstance(error, StopIteration):  # the end of a stream
            with self.failures.within("where an exception came from"):
                self._recorder.failed(_index_in(error, begun.before["dataset"]))
        if self._task is not None:
            self._mark(Mark.MADE)

    def _takes(self, fetcher: Any) -> bool:
        """Return whether a batch is to be recorded; then none other is until it is made.

        A loader inside of a dataset makes its batches while one of ours is at work. One in another
        thread would write into the same log.
        """
        with self._switch:
            if self._busy or self._retired:
                return False
            if self._task is not None:  # learn which batch it is
                task = self._task(fetcher)
                if task is None:
                    return False
                if task.key != self._epoch:
                    self.begin_epoch(task.key)
                self.number = task.yielded
                self._mark(Mark.TAKEN)  # of a worker, its queues say so
            self._busy = True  # nothing that could fail comes after
            return True

    def _mark(self, what: Mark) -> None:
        self._recorder.log.mark(what, self._epoch, self.number)

    def _is_wanted(self, fetcher: Any) -> bool:
        """Count a batch, and return whether it is to be recorded."""
        log = self._recorder.log
        # The clock of enter words overflows after 3.2 days, so the recorder stops after 1.6
        is_late = self._recorder.clock() - log.started_ns > TIME // 2
        if log.here().header[Header.STOP] or is_late:
            if is_late:
                self._recorder.note("a worker's clock was full: its later batches are not recorded")
            self.take_off()
            return False
        number, self._batches = self._batches, self._batches + 1
        if number >= _FIRST_BATCHES and not is_chosen(number, self._every):
            if self._every >= _SELDOM:
                self._inside.suspend()
            self._recorder.mark(Tag.SKIPPED, max(self.number, 0))
            return False
        self._inside.resume()
        self._hook_imported()
        if id(fetcher.dataset) not in self._datasets:
            self._meet(fetcher.dataset)
        return True

    def _hook_imported(self) -> None:
        """Hook what has been imported by now; costs nothing when nothing has been since."""
        if len(sys.modules) == self._modules_seen:
            return
        for hook in (self._libraries.hook, self._ops.hook_containers):
            with self.failures.within("the stages of libraries"):
                hook()
        self._modules_seen = len(sys.modules)

    def _weigh(self, words: int, samples: int, batch_ns: int) -> None:
        """Learn from a batch what recording costs, and how often to record."""
        if samples:
            self._recorder.choose_cpu_every(words / samples, batch_ns / samples)
        if self._batches <= _FIRST_BATCHES:
            fastest, slowest = _WORD_NS
            word_ns = min(slowest, fastest + batch_ns / words / _CROWDING)
            self._costs.append(words * word_ns / max(batch_ns, 1))
        if self._batches == _FIRST_BATCHES:
            self._every = max(1, math.ceil(median(self._costs) / self._cost_share))
            self._recorder.log.say(every=self._every)

    # ---- the dataset ----------------------------------------------------------------------------

    def _meet(self, dataset: Any) -> None:
        number, seen = id(dataset), self._datasets
        try:  # its id is its own for as long as it lives; a training may make one for each loader
            seen[number] = weakref.ref(dataset, lambda _: seen.pop(number, None))
        except TypeError:  # a class with slots
            seen[number] = dataset
        with self.failures.within("the ops of a dataset"):
            self._ops.hook(dataset)

    def _stand_in(self, fetcher: Any, index: Any) -> None:
        """Put recording stand-ins where the fetcher finds its dataset and its collate function."""
        recorder = self._recorder
        fetcher.collate_fn = recorder.of_batch(fetcher.collate_fn, recorder.key(COLLATE))
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = libraries.samples(recorder, fetcher)
        else:
            # A sampler's index may name one sample, or a list of them
            is_many: Any = isinstance(index, (list, tuple, slice)) or getattr(index, "ndim", 0)
            whole = not fetcher.auto_collation and bool(is_many)
            fetcher.dataset = _dataset_stand_in(fetcher.dataset, recorder, whole=whole)
