"""Samples from memory instead of a dataset's, and how they get there.

They are made by the loader's own workers and come back pickled, in one piece a batch: as tensors,
each would need a file descriptor.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from stallscope.measure.cache.cuts import Cut
from stallscope.measure.cache.values import compact, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.measure.cache.cuts import Unfinished


class _InPlaceOf:
    """Stands in for a dataset: a `worker_init_fn` finds the dataset's attributes on it.

    Args:
        dataset: the user's.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


class Capturing(_InPlaceOf):
    """Gives each sample twice: finished, and before its transforms (None where it has no cut).

    Args:
        dataset: map-style.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._cut = Cut(dataset)

    def __getitem__(self, index: Any) -> tuple[Any, Unfinished | None]:
        if not self._cut:
            return self._dataset[index], None
        return self._cut.make(lambda: self._dataset[index])

    def __getitems__(self, indices: list[Any]) -> list[tuple[Any, Unfinished | None]]:
        if not self._cut and callable(getattr(self._dataset, "__getitems__", None)):
            return [(sample, None) for sample in self._dataset.__getitems__(indices)]
        return [self[index] for index in indices]


def packed(samples: Any) -> bytes:
    """The samples of a batch in one piece; a collate function."""
    return pickle.dumps(compact(samples), pickle.HIGHEST_PROTOCOL)


def unpacked(batch: bytes) -> Any:
    """What `packed` packed, in this same recording."""
    return pickle.loads(batch)  # noqa: S301 - our own workers made it a moment ago


class Finished(_InPlaceOf):
    """A map-style dataset of finished samples, by their number.

    Args:
        dataset: the user's.
        samples: what to give.
    """

    def __init__(self, dataset: Any, samples: list[Any]) -> None:
        super().__init__(dataset)
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> Any:
        return shell(self._samples[number])


class Unfinishing(_InPlaceOf):
    """A map-style dataset that does the transforms alone, on what went into them.

    Args:
        dataset: the user's.
        halves: the samples before their transforms.
    """

    def __init__(self, dataset: Any, halves: list[Unfinished]) -> None:
        super().__init__(dataset)
        self._cut = Cut(dataset)
        self._halves = halves
        self._copies = any(half.changed for half in halves)

    def __len__(self) -> int:
        return len(self._halves)

    def __getitem__(self, number: int) -> Any:
        return self._cut.finish(self._halves[number], copies=self._copies)


class FinishedStream(_InPlaceOf, IterableDataset[Any]):
    """A stream of finished samples without an end; each worker begins at another place.

    Args:
        dataset: the user's.
        samples: what to give.
    """

    def __init__(self, dataset: Any, samples: list[Any]) -> None:
        super().__init__(dataset)
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first = worker.id * len(self._samples) // worker.num_workers if worker else 0
        while True:
            for sample in self._samples[first:]:
                yield shell(sample)
            first = 0
