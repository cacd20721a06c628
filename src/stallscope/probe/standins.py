"""What stands in for a dataset while one of its batches is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset

from stallscope.probe.unseen import unseen
from stallscope.stages import GETITEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.probe.recorder import Recorder


def asked_by_bulk(dataset: Any) -> Iterator[Any]:
    """The datasets whose `__getitem__` a `__getitems__` calls: itself, or that of its subset."""
    yield dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
        yield dataset


class DatasetStandIn:
    """A dataset whose every sample is recorded, or every batch where it gives whole batches."""

    def __init__(self, dataset: Any, recorder: Recorder, whole: bool) -> None:  # noqa: FBT001
        self._dataset = dataset
        self._recorder = recorder
        self._whole = whole

    @unseen
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


def is_one(index: Any) -> bool:
    """Whether a sampler's index names one sample and not a list of them."""
    if isinstance(index, (list, tuple, slice)):
        return False
    return not getattr(index, "ndim", 0)
