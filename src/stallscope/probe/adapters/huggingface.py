"""Hugging Face's `datasets`: iterators nested in one another, and the functions that they map."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from stallscope.probe import pipeline
from stallscope.probe.adapters.nested import StageIterator
from stallscope.stages import GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.probe.patches import Patches
    from stallscope.probe.recorder import Recorder

_KINDS: Final = {
    **dict.fromkeys(("Examples", "Arrow", "RebatchedArrow"), "fetch"),
    "Formatted": "decode",
}
"""Kind of an iterator by its class's name, without what all of them have; the others only pass
examples on."""

_CALLED: Final = {"Mapped": "map", "Filtered": "filter"}
"""The user's word for what a class does besides calling the user's function."""


def hook_iterable(recorder: Recorder, patches: Patches) -> None:
    """Make every iterator of an iterable dataset a stage, and every function that is mapped."""
    module = sys.modules["datasets.iterable_dataset"]
    base, mapped = module._BaseExamplesIterable, module.MappedExamplesIterable
    classes = [base, *_below(base)]
    keys = {cls: recorder.key(_stage_of(cls)) for cls in classes}
    for name in ("_iter", "_iter_arrow"):
        patches.put(mapped, name, _with_timed(recorder, "function", vars(mapped)[name]))
    for cls in classes:
        for name in ("__iter__", "_iter_arrow"):
            if name in vars(cls):
                patches.put(cls, name, _nested(recorder, vars(cls)[name], keys, keys[cls]))


def hook_formatter(recorder: Recorder, patches: Patches) -> None:
    """Make the function of `set_transform` a stage; an op of a class is one already."""
    cls = sys.modules["datasets.formatting.formatting"].CustomFormatter
    original = cls.format_batch
    timed = _Timed(recorder)

    @functools.wraps(original)
    def format_batch(self: Any, table: Any) -> Any:
        return original(timed.copy(self, "transform") if recorder.at_work() else self, table)

    patches.put(cls, "format_batch", format_batch)


def _nested(
    recorder: Recorder, original: Callable[..., Any], keys: dict[type, int], inherited: int
) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any, *args: Any, **named: Any) -> Any:
        key = keys.get(type(self), inherited)
        return StageIterator(recorder, key, iter(original(self, *args, **named)))

    return start


def _with_timed(recorder: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A generator of an object, made of a copy that holds the recording function."""
    timed = _Timed(recorder)

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **named: Any) -> Any:
        yield from original(timed.copy(self, name), *args, **named)

    return generate


class _Timed:
    """Copies of objects, with the recording function in place of the user's.

    The object itself may be shared, compared or pickled: it keeps the user's function.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._home = get_ident()
        self._hook = recorder.call(functools.partial(int), recorder.key(GETITEM)).__code__

    def copy(self, holder: Any, name: str) -> Any:
        """The object with a recording function, or itself where there is none to record."""
        function = getattr(holder, name)
        own = getattr(
            holder, "mask_function", function
        )  # `filter` calls the user's through its own
        plain = pipeline.is_function(function) and not inspect.iscoroutinefunction(own)
        if not plain or self._records(function) or get_ident() != self._home:
            return holder
        called = pipeline.name_of(own)
        stage = pipeline.stage_of(pipeline.Slot(holder, name, own, called))
        view = copy.copy(holder)
        setattr(view, name, self._recorder.call(function, self._recorder.key(stage)))
        return view

    def _records(self, function: Any) -> bool:
        """Whether it is a hook already, because the dataset holds it, too."""
        ours = type(function).__module__.startswith("stallscope.")  # a partial's
        return ours or getattr(function, "__code__", None) is self._hook


def _stage_of(cls: type) -> Stage:
    name = cls.__name__.replace("ExamplesIterable", "").strip("_") or "Examples"
    return Stage(_CALLED.get(name, name), _KINDS.get(name, "other"))


def _below(cls: type) -> list[type]:
    direct: list[type] = type.__subclasses__(cls)
    return [below for sub in direct for below in (sub, *_below(sub))]
