"""The libraries that have an adapter, hooked when they have been imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from stallscope.probe.adapters import fastai, huggingface, webdataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.probe.patches import Patches
    from stallscope.probe.recorder import Recorder

_ADAPTERS: Final[dict[str, Callable[[Recorder, Patches], None]]] = {
    "webdataset.pipeline": webdataset.hook,
    "datasets.iterable_dataset": huggingface.hook_iterable,
    "datasets.formatting.formatting": huggingface.hook_formatter,
    "fastai.data.load": fastai.hook,
}
"""What hooks a library, by the module that must have been imported."""


class Adapters:
    """Hooks every library once, as soon as it is there."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._waiting = dict(_ADAPTERS)

    def hook(self) -> None:
        """Hook what has been imported by now."""
        for module in [name for name in self._waiting if name in sys.modules]:
            hook = self._waiting.pop(module)
            try:
                hook(self._recorder, self._patches)
            except Exception as error:  # noqa: BLE001 - another version: the user's run goes on
                library = module.partition(".")[0]
                self._recorder.note(f"the stages of {library} are not seen here ({error!r})")


def samples(recorder: Recorder, fetcher: Any) -> Any:
    """What stands in for the iterator of an iterable dataset: every `next` is a sample, or a batch.

    Args:
        recorder: of the batch at work.
        fetcher: torch's, with `dataset` and `dataset_iter`.
    """
    if fastai.makes_samples(fetcher.dataset):
        return fastai.Batches(recorder, fetcher.dataset_iter)
    return recorder.iterator(fetcher.dataset_iter)
