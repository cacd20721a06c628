"""Loaders of the shapes that other libraries give them, without those libraries."""

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from support.loaders import Noise


class Repeats:
    """A batch sampler's batches without an end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Infinite(DataLoader):
    """Goes on with one iterator from epoch to epoch, and ends it when it is gone: Ultralytics'."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        object.__setattr__(self, "batch_sampler", Repeats(self.batch_sampler))
        self.iterator: Any = None

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self) -> None:
        if getattr(self, "iterator", None) is not None and self.num_workers:
            self.iterator._shutdown_workers()


class InfiniteAtOnce(Infinite):
    """The same in earlier versions: its workers start when it is made."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.iterator = super()._get_iterator()


class PatchQueue(Dataset):
    """Cuts samples out of what a loader makes that nobody but its iterator holds: torchio's Queue.

    It is iterated with `num_workers=0`, because the inner loader has workers of its own.
    """

    def __init__(self, dataset: Any, patches: int = 4, num_workers: int = 1, *, late: bool = False):
        self.dataset_of_volumes, self.patches, self.num_workers = dataset, patches, num_workers
        self.kept: list[torch.Tensor] = []
        self.volumes: Any = None if late else self.start()

    def __len__(self) -> int:
        return len(self.dataset_of_volumes) * self.patches

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.kept:
            volume = self.next_volume()
            self.kept += [volume + patch for patch in range(self.patches)]
        return self.kept.pop()

    def start(self) -> Any:
        return iter(DataLoader(self.dataset_of_volumes, None, num_workers=self.num_workers))

    def next_volume(self) -> torch.Tensor:
        """The next volume; the inner loader starts anew when it is exhausted."""
        try:
            self.volumes = self.volumes or self.start()
            return next(self.volumes)
        except StopIteration:
            self.volumes = self.start()
            return next(self.volumes)


class Grouped(IterableDataset):
    """Batches of samples that are alike, out of a loader's samples: detectron2's."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self._buckets: list[list[Any]] = [[], []]

    def __iter__(self) -> Iterator[list[Any]]:
        for sample in self.dataset:
            bucket = self._buckets[int(sample[0]) % 2]
            bucket.append(sample)
            if len(bucket) == self.batch_size:
                batch = bucket[:]
                bucket.clear()
                yield batch


class Node:
    """A stage whose batches come from a thread that lives until it is told to end: torchdata's."""

    __module__ = "torchdata.nodes.odd"

    def __init__(self, source: Any) -> None:
        self.source = source
        self._it: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self._it is not None:
            self._it._shutdown()
        self._it = NodeThread(self.source)
        return self._it


class NodeThread:
    """Thread of a node, which reads its source ahead."""

    __module__ = "torchdata.nodes.odd"

    def __init__(self, source: Any) -> None:
        self._stop, self._queue = threading.Event(), queue.Queue(2)
        self._thread = threading.Thread(target=self._read, args=(iter(source),))
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._queue.get()
        if batch is None:
            raise StopIteration
        return batch

    def _read(self, batches: Any) -> None:
        for batch in itertools.chain(batches, [None]):
            while not self._stop.is_set():
                with contextlib.suppress(queue.Full):
                    self._queue.put(batch, timeout=0.01)
                    break

    def _shutdown(self) -> None:
        self._stop.set()
        self._thread.join()


def infinite(kind: type[Infinite] = Infinite, **named: Any) -> Infinite:
    """A loader that goes on, over four batches."""
    return kind(Noise(16), 4, **{"num_workers": 1, **named})
