"""fastai: its loader gives torch an iterable dataset that makes whole batches by itself."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from stallscope.eventlog import Tag
from stallscope.stages import COLLATE, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.probe.patches import Patches
    from stallscope.probe.recorder import Recorder


def hook(recorder: Recorder, patches: Patches) -> None:
    """Make every item a sample, every transform a stage, and tell the collating."""
    cls = sys.modules["fastai.data.load"].DataLoader
    patches.put(cls, "do_item", _item(recorder, cls.do_item))
    patches.put(cls, "create_batch", recorder.call(cls.create_batch, recorder.key(COLLATE)))
    module = sys.modules.get("fasttransform.transform") or sys.modules["fastcore.transform"]
    transform = module.Transform
    patches.put(transform, "_call", _transform(recorder, transform, transform._call))


def makes_samples(dataset: Any) -> bool:
    """Whether this is what fastai gives torch: an iterable of batches, whose samples are seen."""
    cls = type(dataset)
    return (cls.__module__, cls.__name__) == ("fastai.data.load", "_FakeLoader")


class Batches:
    """An iterator whose every `next` is a batch; only its end is written."""

    def __init__(self, recorder: Recorder, batches: Iterator[Any]) -> None:
        self._recorder = recorder
        self._batches = batches

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._recorder.mark(Tag.EXHAUSTED)
            raise


def _item(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def do_item(self: Any, index: Any) -> Any:
        return recorder.sample(functools.partial(original, self), index)

    return do_item


def _transform(recorder: Recorder, cls: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Every transform's work is a stage by the name of its class, or of its function."""

    def key_of(transform: Any) -> int:
        name = transform.name if type(transform) is cls else type(transform).__name__
        return recorder.key(Stage(name, "transform"))

    timed = recorder.method(original, None, recorder.key(Stage("Transform", "transform")), key_of)

    @functools.wraps(original)
    def call(self: Any, method: str, *args: Any, **named: Any) -> Any:
        idle = self.split_idx is not None and named.get("split_idx") != self.split_idx
        works = method == "encodes" and not idle and hasattr(self, method)
        if works and recorder.at_work() and self.name != "noop":
            return timed(self, method, *args, **named)
        return original(self, method, *args, **named)

    return call
