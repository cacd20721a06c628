"""The libraries that have an adapter, hooked when they have been imported.

- fastai's loader gives torch an iterable dataset that makes whole batches by itself.
- Hugging Face's `datasets` nests iterators in one another, with the functions that they map: each
  `next` is a span, and what it pulls from the iterator inside is not its own time.
- webdataset has a pipeline of generators, each of them a stage: `DataPipeline.invoke` makes the
  iterator of one stage out of that of the stage before it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from itertools import takewhile
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.hooks import find_ops
from stallscope.hooks.event_log import Tag
from stallscope.hooks.hot_path import IteratorStandIn
from stallscope.stages import COLLATE, GETITEM, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.hot_path import Recorder
    from stallscope.hooks.patches import Patches


_END: Final = object()
_KINDS: Final = dict.fromkeys(("Examples", "Arrow", "RebatchedArrow"), "fetch")
"""Kind of an iterator by its class's name, without what all of them have; the others pass examples
on. To format is not to decode: text has no decoder, and an image's is seen by itself."""
_CALLED: Final = {"Mapped": "map", "Filtered": "filter", "Formatted": "format"}
"""The user's word for what a class does besides calling the user's function."""
_WEBDATASET_KINDS: Final = {
    **dict.fromkeys(("tar_file_expander", "tarfile_samples", "tarfile_to_samples"), "fetch"),
    **dict.fromkeys(("StreamingOpen", "FileCache", "cached_tarfile_samples"), "fetch"),
    **dict.fromkeys(("decode", "xdecode"), "decode"),
    **dict.fromkeys(("map", "map_dict", "map_tuple"), "transform"),
}
"""Kind of a stage by the name of its function or class; the others only pass samples on."""


def hook_fastai(recorder: Recorder, patches: Patches) -> None:
    """Make every item a sample, every transform a stage, and record the collating."""
    cls = sys.modules["fastai.data.load"].DataLoader
    original = cls.do_item

    @functools.wraps(original)
    def do_item(self: Any, index: Any) -> Any:
        return recorder.sample(functools.partial(original, self), index)

    patches.put(cls, "do_item", do_item)
    patches.put(cls, "create_batch", recorder.call(cls.create_batch, recorder.key(COLLATE)))
    module = sys.modules.get("fasttransform.transform") or sys.modules["fastcore.transform"]
    patches.put(module.Transform, "_call", _transform(recorder, module.Transform))


def _transform(recorder: Recorder, cls: Any) -> Callable[..., Any]:
    """Make every transform's work a stage by the name of its class, or of its function."""
    original = cls._call

    def key_of(transform: Any) -> int:
        name = transform.name if type(transform) is cls else type(transform).__name__
        return recorder.key(Stage(name, "transform"))

    def works(self: Any, method: str, named: dict[str, Any]) -> bool:
        idle = self.split_idx is not None and named.get("split_idx") != self.split_idx
        can = method == "encodes" and not idle and hasattr(self, method)
        return can and recorder.at_work() and self.name != "noop"

    timed = recorder.call(original, recorder.key(Stage("Transform", "transform")), key_of=key_of)
    is_work = recorder.failures.passing("the transforms of fastai", works)

    @functools.wraps(original)
    def call(self: Any, method: str, *args: Any, **named: Any) -> Any:
        return (timed if is_work(self, method, named) else original)(self, method, *args, **named)

    return call


def stage_iterator(recorder: Recorder, key: int, inner: Iterator[Any]) -> Iterator[Any]:
    """Return an iterator of the library's whose every `next` is a span of one stage."""
    # Its end is no exception here: that would be a failed sample.
    following = recorder.call(functools.partial(next, inner, _END), key)

    def advance() -> Any:
        item = following()
        if item is _END:
            raise StopIteration
        return item

    return IteratorStandIn(inner, advance)


def _staging(recorder: Recorder) -> Callable[[Iterator[Any], Callable[[], int]], Iterator[Any]]:
    """Return a function that makes an iterator a stage; where that fails it returns the same."""

    def make(items: Iterator[Any], key: Callable[[], int]) -> Iterator[Any]:
        return stage_iterator(recorder, key(), items)

    staged = recorder.failures.passing("the iterators of a library", make)
    return lambda iterator, key: staged(iterator, key) or iterator


def hook_iterable(recorder: Recorder, patches: Patches) -> None:
    """Make every iterator of an iterable dataset a stage, and every function that is mapped."""
    module = sys.modules["datasets.iterable_dataset"]
    base, mapped = module._BaseExamplesIterable, module.MappedExamplesIterable
    classes = [base, *subclasses(base)]
    keys = {cls: recorder.key(_stage_of(cls)) for cls in classes}
    copied, staged = _with_timed(recorder), _staging(recorder)

    def generating(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def generate(self: Any, *args: Any, **named: Any) -> Any:
            yield from original(copied(self, "function"), *args, **named)

        return generate

    def nested(original: Callable[..., Any], inherited: int) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(self: Any, *args: Any, **named: Any) -> Any:
            iterator = iter(original(self, *args, **named))
            return staged(iterator, lambda: keys.get(type(self), inherited))

        return start

    for name in ("_iter", "_iter_arrow"):
        patches.put(mapped, name, generating(vars(mapped)[name]))
    for cls in classes:
        for name in {"__iter__", "_iter_arrow"} & vars(cls).keys():
            patches.put(cls, name, nested(vars(cls)[name], keys[cls]))


def hook_formatter(recorder: Recorder, patches: Patches) -> None:
    """Make the function of `set_transform` a stage; an op of a class is one already."""
    cls = sys.modules["datasets.formatting.formatting"].CustomFormatter
    original, copied = cls.format_batch, _with_timed(recorder)

    @functools.wraps(original)
    def format_batch(self: Any, table: Any) -> Any:
        return original(copied(self, "transform") if recorder.at_work() else self, table)

    patches.put(cls, "format_batch", format_batch)


def _with_timed(recorder: Recorder) -> Callable[[Any, str], Any]:
    """Return a function that copies an object, with a recording function in the user's place.

    The object itself may be shared, compared or pickled: it keeps the user's function. Where there
    is none to record, or that fails, it returns the object.
    """
    home = get_ident()
    hook = recorder.call(functools.partial(int), recorder.key(GETITEM)).__code__

    def copied(holder: Any, name: str) -> Any:
        function = getattr(holder, name)
        # `filter` calls the user's through its own
        own = getattr(holder, "mask_function", function)
        plain = find_ops.is_function(function) and not inspect.iscoroutinefunction(own)
        # It may be a hook already, because the dataset holds it, too: one of a partial, or another
        is_ours = type(function).__module__.startswith("stallscope.")
        is_ours = is_ours or getattr(function, "__code__", None) is hook
        if not plain or is_ours or get_ident() != home:
            return holder
        stage = find_ops.stage_of(find_ops.Slot(holder, name, own, find_ops.name_of(own)))
        view = copy.copy(holder)
        setattr(view, name, recorder.call(function, recorder.key(stage)))
        return view

    copies = recorder.failures.passing("the functions that are mapped", copied)

    def copied_or_same(holder: Any, name: str) -> Any:
        view = copies(holder, name)
        return holder if view is None else view

    return copied_or_same


def _stage_of(cls: type) -> Stage:
    name = cls.__name__.replace("ExamplesIterable", "").strip("_") or "Examples"
    return Stage(_CALLED.get(name, name), _KINDS.get(name, "other"))


def subclasses(cls: type) -> list[type]:
    """Return all classes below a class."""
    direct: list[type] = type.__subclasses__(cls)
    return [below for sub in direct for below in (sub, *subclasses(sub))]


def hook_webdataset(recorder: Recorder, patches: Patches) -> None:
    """Make every stage of every pipeline a stage of the recording."""
    cls = sys.modules["webdataset.pipeline"].DataPipeline
    original, staged = cls.invoke, _staging(recorder)

    @functools.wraps(original)
    def invoke(self: Any, step: Any, *args: Any, **named: Any) -> Any:
        items = original(self, step, *args, **named)
        # A loader's iterator is hooked where the loop waits for it.
        if isinstance(step, DataLoader) or not hasattr(type(items), "__next__"):
            return items
        return staged(items, lambda: recorder.key(_stage_in(self.pipeline, step)))

    patches.put(cls, "invoke", invoke)


def _stage_in(steps: list[Any], step: Any) -> Stage:
    """Return the stage of a step, numbered where a pipeline has two of one name."""
    stage = _webdataset_stage_of(step)
    earlier = takewhile(lambda each: each is not step, steps)
    place = 1 + sum(_webdataset_stage_of(each) == stage for each in earlier)
    if place == 1 or stage.kind in ("fetch", "decode", "collate"):
        return stage
    return stage._replace(name=f"{stage.name} #{place}")


def _webdataset_stage_of(step: Any) -> Stage:
    name = find_ops.name_of(getattr(step, "f", step)).strip("_")
    if name == "batched":
        return COLLATE
    kind = _WEBDATASET_KINDS.get(name, "other")
    args, named = getattr(step, "args", ()), getattr(step, "kw", {})
    args = args[:1] if name == "map" else args
    mapped = [*args, *(value for key, value in named.items() if key != "handler")]
    if kind == "transform" and len(mapped) == 1:
        (function,) = mapped
        if type(function).__name__ == "Decoder":  # what `WebDataset.decode` maps
            return Stage("decode", "decode")
        if find_ops.is_function(function):  # an op is a stage of its own
            called = find_ops.name_of(function)
            return find_ops.stage_of(find_ops.Slot(step, name, function, called))
    return Stage(name, kind)


ADAPTERS: Final[dict[str, Callable[[Recorder, Patches], None]]] = {
    "webdataset.pipeline": hook_webdataset,
    "datasets.iterable_dataset": hook_iterable,
    "datasets.formatting.formatting": hook_formatter,
    "fastai.data.load": hook_fastai,
}
"""Function that hooks a library, by the module that must have been imported."""


def samples(recorder: Recorder, fetcher: Any) -> Any:
    """Return a stand-in for a fetcher's iterator of an iterable dataset, which is recorded."""
    cls, items = type(fetcher.dataset), fetcher.dataset_iter

    def advance() -> Any:
        try:
            return next(items)
        except StopIteration:
            with recorder.failures.within("the ends of iterators"):
                recorder.mark(Tag.EXHAUSTED)
            raise

    # What fastai gives torch: an iterable of batches, whose samples are seen in it
    if (cls.__module__, cls.__name__) == ("fastai.data.load", "_FakeLoader"):
        return IteratorStandIn(items, advance)
    a_sample = functools.partial(recorder.sample, items.__next__, None, call=True)
    return IteratorStandIn(items, a_sample)
