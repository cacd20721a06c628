"""A loader's samples made in this process, piece by piece, so that a piece can be made twice.

A piece is a batch of fewer samples than the loader's: a comparison needs several of them.
"""

from __future__ import annotations

import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import BatchSampler, DataLoader

from stallscope.errors import TargetError
from stallscope.measure.cache.loaders import GoingOn, OverAndOver, is_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES: Final = 8
"""Into so many the samples are cut, where there are enough of them."""


class Pieces:
    """Which samples are made, and the making.

    Args:
        loader: torch's own.
        samples: how many in all; whole batches where the loader's batch sampler is the user's own.

    Raises:
        TargetError: the sampler gives nothing.
    """

    def __init__(self, loader: DataLoader[Any], samples: int) -> None:
        self._loader = loader
        self._batches = loader.batch_sampler is not None
        self.stream = is_stream(loader)
        """Whether the samples come as they come, and none can be made twice."""
        self.unit = "sample" if self._batches else "batch"
        """What one index stands for, as far as is known."""
        self.all: list[Any] = list(self._cut(samples))
        """For each piece its indices, or the one."""
        if not self.all:
            raise TargetError("the loader's sampler gives no index, so there is no sample to make")
        self._going: Iterator[Any] | None = None

    def _cut(self, samples: int) -> Iterator[Any]:
        loader, size = self._loader, max(1, samples // PIECES)
        batch_sampler: Any = loader.batch_sampler
        if not self._batches:
            yield from [None] * samples if self.stream else islice(GoingOn(loader.sampler), samples)
        elif self.stream:
            size = min(size, loader.batch_size or size)
            yield from _slices([None] * samples, size)
        elif type(batch_sampler) is BatchSampler:
            size = min(size, loader.batch_size or size)
            batches = GoingOn(batch_sampler)
            indices = (index for batch in batches for index in batch)
            yield from _slices(list(islice(indices, samples)), size)
        else:
            made = 0
            for batch in GoingOn(batch_sampler):
                if made >= samples:
                    return
                yield batch
                made += self.count(batch)

    def count(self, piece: Any) -> int:
        """How many samples a piece has; one where an index stands for all of it."""
        return len(piece) if self._batches else 1

    def restart(self) -> None:
        """Begin a stream anew with the next piece: generators keep the code they began with."""
        self._going = None

    def prepare(self, piece: Any) -> Iterator[Any]:
        """An iterator whose next batch is this piece; a stream's is always the same one."""
        if not self.stream:
            return iter(self._copy([piece]))
        if self._going is None:
            self._going = iter(self._copy(OverAndOver([piece])))
        return self._going

    def _copy(self, sampler: Any) -> DataLoader[Any]:
        clone = copy.copy(self._loader)
        vars(clone).update(  # torch forbids to set some of them
            num_workers=0,
            timeout=0,
            prefetch_factor=None,
            pin_memory=False,
            persistent_workers=False,
            _iterator=None,
        )
        vars(clone)["batch_sampler" if self._batches else "sampler"] = sampler
        return clone


def _slices(indices: list[Any], size: int) -> Iterator[list[Any]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))
