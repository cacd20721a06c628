"""Hooking the fetchers: where torch makes a batch, in a worker and in the main process alike.

Around the original `fetch`, the dataset, its iterator and the collate function are replaced by
recording stand-ins and put back in a `finally`; nothing outside of torch's fetcher sees them.
"""

from __future__ import annotations

import contextlib
import functools
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import Subset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from stallscope.eventlog import LONGEST_NS, Header, Tag
from stallscope.probe import failures
from stallscope.probe.libraries import Libraries
from stallscope.probe.patches import Patches
from stallscope.probe.transforms import Ops
from stallscope.stages import GETITEM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.probe.recorder import Recorder

_COST_SHARE: Final = 0.004
"""Recording may cost this share of the batches' time; else only every k-th batch is recorded. Less
than half of the promised 1%: a word's cost is an estimate, and going on and off costs, too."""
_WORD_NS: Final = (200, 1400)
"""What a word costs with the hook around it: in a row (`tests/benchmarks/span_cost.py`), and
between ops that use the caches (`tests/benchmarks/overhead.py`)."""
_CROWDING: Final = 80
"""Time between two words over the time by which that makes a word dearer."""
_FIRST_BATCHES: Final = 8
"""The first batches of a process are always recorded: they tell what recording costs."""


class Hooks:
    """All hooks of one process.

    Args:
        recorder: writes the log of this thread.
        mine: whether a fetcher belongs to a loader that is measured.
    """

    def __init__(self, recorder: Recorder, mine: Callable[[object], bool] = lambda _: True) -> None:
        self.number = -1
        """Number of the batch at work in its epoch."""
        self._recorder = recorder
        self._mine = mine
        self._fetchers = Patches()
        self._inside = Patches()
        self._libraries = Libraries(recorder, self._inside)
        self._ops = Ops(recorder, self._inside)
        self._datasets: dict[int, Any] = {}
        self._indices: Iterator[Any] = iter(())
        self._batches = 0
        self._costs: list[float] = []
        self._every = 1

    def put_on(self) -> None:
        """Hook torch's fetchers; the rest follows at the first batch, when the dataset is known."""
        for cls in (_MapDatasetFetcher, _IterableDatasetFetcher):
            self._fetchers.put(cls, "fetch", self._fetch(cls.fetch))

    def take_off(self) -> None:
        """Leave everything as it was before `put_on`."""
        self._fetchers.undo()
        self._inside.undo()

    def retire(self, *, close: bool = True) -> None:
        """Take everything off and stop writing, see `Recorder.retire`."""
        self.take_off()
        self._recorder.retire(close=close)

    def begin_epoch(self, number: int) -> None:
        """All later batches belong to this epoch."""
        self.number = -1
        self._recorder.mark(Tag.EPOCH, number)

    # ---- one batch ------------------------------------------------------------------------------

    def _fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record torch's `fetch` of one batch."""

        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            # A loader inside of a dataset makes its batches while one of ours is at work.
            if self._recorder.at_work() or not self._mine(fetcher):
                return original(fetcher, index)
            if not self._begins(fetcher):
                with failures.located(self._recorder, fetcher):
                    return original(fetcher, index)
            before = dict(vars(fetcher))
            self._stand_in(fetcher, index)
            samples, began = self._recorder.pace.samples, self._recorder.clock()
            first_word = self._recorder.enter_batch(self.number)
            made = False
            try:
                batch = original(fetcher, index)
                made = True
                return batch
            finally:
                for name in _REPLACED & before.keys():
                    setattr(fetcher, name, before[name])
                words = self._recorder.leave_batch(first_word, made=made)
                samples = self._recorder.pace.samples - samples
                self._weigh(words, samples, self._recorder.clock() - began)

        return fetch

    def _begins(self, fetcher: Any) -> bool:
        """Count a batch; whether it is to be recorded."""
        header = self._recorder.log.header
        if header[Header.STOP] or self._recorder.clock() - header[Header.BORN_NS] > LONGEST_NS:
            self.take_off()
            return False
        number, self._batches = self._batches, self._batches + 1
        if number >= _FIRST_BATCHES and number % self._every:
            self._inside.suspend()
            self._recorder.mark(Tag.SKIPPED, max(self.number, 0))
            return False
        self._inside.resume()
        self._libraries.hook()
        if id(fetcher.dataset) not in self._datasets:
            self._meet(fetcher.dataset)
        return True

    def _weigh(self, words: int, samples: int, batch_ns: int) -> None:
        """Learn from a batch what recording costs, and how often to record."""
        if samples:
            self._recorder.choose_cpu_every(words / samples, batch_ns / samples)
        if self._batches <= _FIRST_BATCHES:
            fastest, slowest = _WORD_NS
            word_ns = min(slowest, fastest + batch_ns / words / _CROWDING)
            self._costs.append(words * word_ns / max(batch_ns, 1))
        if self._batches == _FIRST_BATCHES:
            self._every = max(1, ceil(median(self._costs) / _COST_SHARE))
            self._recorder.log.header[Header.EVERY] = self._every

    # ---- the dataset ----------------------------------------------------------------------------

    def _meet(self, dataset: Any) -> None:
        """Hook a dataset that was not seen before."""
        self._datasets[id(dataset)] = dataset  # kept, so that the id stays its own
        self._ops.hook(dataset)
        if getattr(dataset, "__getitems__", None):
            for cls in {type(inner) for inner in _asked_by_bulk(dataset)}:
                if hasattr(cls, "__getitem__"):
                    with contextlib.suppress(Exception):  # made in C: its samples are not seen
                        self._inside.put(cls, "__getitem__", self._getitem(cls, dataset))

    def _getitem(self, cls: Any, outermost: Any) -> Callable[..., Any]:
        """`__getitem__` of a dataset whose samples are made inside of `__getitems__`."""
        original: Callable[[Any, Any], Any] = cls.__getitem__
        recorder, subset = self._recorder, isinstance(outermost, Subset)

        @functools.wraps(original)
        def hook(dataset: Any, index: Any) -> Any:
            if recorder.in_sample():  # an inner dataset's
                return original(dataset, index)
            # A Subset asks for its samples in order, by the inner dataset's own numbers.
            known = next(self._indices, None) if subset and dataset is not outermost else index
            get = functools.partial(original, dataset, index)
            return recorder.sample(get, known, call=True)

        return hook

    def _stand_in(self, fetcher: Any, index: Any) -> None:
        """Put recording stand-ins where the fetcher finds its dataset and its collate function."""
        recorder = self._recorder
        fetcher.collate_fn = recorder.collate(fetcher.collate_fn)
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = recorder.iterator(fetcher.dataset_iter)
        else:
            whole = not fetcher.auto_collation and not _is_one(index)
            fetcher.dataset = _DatasetStandIn(fetcher.dataset, recorder, whole)
            # Only what can be read without being used up.
            self._indices = iter(index if isinstance(index, (list, tuple)) else ())


_REPLACED: Final = frozenset({"dataset", "dataset_iter", "collate_fn"})


def _asked_by_bulk(dataset: Any) -> Iterator[Any]:
    """The datasets whose `__getitem__` a `__getitems__` calls: itself, or that of its subset."""
    yield dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        yield dataset


class _DatasetStandIn:
    """A dataset whose every sample is recorded, or every batch where it gives whole batches."""

    def __init__(self, dataset: Any, recorder: Recorder, whole: bool) -> None:  # noqa: FBT001
        self._dataset = dataset
        self._recorder = recorder
        self._whole = whole

    def __getitem__(self, index: Any) -> Any:
        if self._whole:
            return self._recorder.call(self._dataset.__getitem__, self._key())(index)
        return self._recorder.sample(self._dataset.__getitem__, index)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._dataset, name)
        if name == "__getitems__" and value:
            return self._recorder.call(value, self._key())
        return value

    def _key(self) -> int:
        return self._recorder.key(GETITEM)


def _is_one(index: Any) -> bool:
    """Whether a sampler's index names one sample and not a list of them."""
    if isinstance(index, (list, tuple, slice)):
        return False
    return not getattr(index, "ndim", 0)
