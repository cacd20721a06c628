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
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.hooks import find_ops
from stallscope.hooks.event_log import Tag
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
    """Make every item a sample, every transform a stage, and tell the collating."""
    cls = sys.modules["fastai.data.load"].DataLoader
    original = cls.do_item

    @functools.wraps(original)
    def do_item(self: Any, index: Any) -> Any:
        return recorder.sample(functools.partial(original, self), index)

    patches.put(cls, "do_item", do_item)
    patches.put(cls, "create_batch", recorder.call(cls.create_batch, recorder.key(COLLATE)))
    module = sys.modules.get("fasttransform.transform") or sys.modules["fastcore.transform"]
    transform = module.Transform
    patches.put(transform, "_call", _transform(recorder, transform, transform._call))


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
            with self._recorder.log.failures.within("the ends of iterators"):
                self._recorder.mark(Tag.EXHAUSTED)
            raise


def _transform(recorder: Recorder, cls: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Every transform's work is a stage by the name of its class, or of its function."""

    def key_of(transform: Any) -> int:
        name = transform.name if type(transform) is cls else type(transform).__name__
        return recorder.key(Stage(name, "transform"))

    timed = recorder.method(original, None, recorder.key(Stage("Transform", "transform")), key_of)

    @functools.wraps(original)
    def call(self: Any, method: str, *args: Any, **named: Any) -> Any:
        try:
            idle = self.split_idx is not None and named.get("split_idx") != self.split_idx
            works = method == "encodes" and not idle and hasattr(self, method)
            works = works and recorder.at_work() and self.name != "noop"
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            works = False
            recorder.log.failures.note("the transforms of fastai", error)
        return (timed if works else original)(self, method, *args, **named)

    return call


class StageIterator:
    """An iterator of the library's whose every `next` is a span of one stage.

    Args:
        recorder: of the thread that makes the batches.
        key: of the stage.
        inner: the library's own iterator; everything but `next` goes there.
    """

    def __init__(self, recorder: Recorder, key: int, inner: Iterator[Any]) -> None:
        self._inner = inner
        # Its end is no exception here: that would be a failed sample.
        self._next = recorder.call(functools.partial(next, inner, _END), key)

    def __iter__(self) -> StageIterator:
        return self

    def __next__(self) -> Any:
        item = self._next()
        if item is _END:
            raise StopIteration
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _staged(recorder: Recorder, made: Iterator[Any], key: Callable[[], int]) -> Iterator[Any]:
    """The iterator as a stage, or itself where that fails."""
    try:
        return StageIterator(recorder, key(), made)
    except Exception as error:  # noqa: BLE001 - ours is never the user's
        recorder.log.failures.note("the iterators of a library", error)
        return made


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
        view = timed.copy(self, "transform") if recorder.at_work() else self
        return original(view, table)

    patches.put(cls, "format_batch", format_batch)


def _nested(
    recorder: Recorder, original: Callable[..., Any], keys: dict[type, int], inherited: int
) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any, *args: Any, **named: Any) -> Any:
        made = iter(original(self, *args, **named))
        return _staged(recorder, made, lambda: keys.get(type(self), inherited))

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
        try:
            return self._copy(holder, name)
        except Exception as error:  # noqa: BLE001 - ours is never the user's
            self._recorder.log.failures.note("the functions that are mapped", error)
            return holder

    def _copy(self, holder: Any, name: str) -> Any:
        function = getattr(holder, name)
        # `filter` calls the user's through its own
        own = getattr(holder, "mask_function", function)
        plain = find_ops.is_function(function) and not inspect.iscoroutinefunction(own)
        if not plain or self._records(function) or get_ident() != self._home:
            return holder
        called = find_ops.name_of(own)
        stage = find_ops.stage_of(find_ops.Slot(holder, name, own, called))
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


def hook_webdataset(recorder: Recorder, patches: Patches) -> None:
    """Make every stage of every pipeline a stage of the recording."""
    cls = sys.modules["webdataset.pipeline"].DataPipeline
    original = cls.invoke

    @functools.wraps(original)
    def invoke(self: Any, step: Any, *args: Any, **named: Any) -> Any:
        made = original(self, step, *args, **named)
        # A loader's iterator is hooked where the loop waits for it.
        if isinstance(step, DataLoader) or not hasattr(type(made), "__next__"):
            return made
        return _staged(recorder, made, lambda: recorder.key(_stage_in(self.pipeline, step)))

    patches.put(cls, "invoke", invoke)


def _stage_in(steps: list[Any], step: Any) -> Stage:
    """The stage of a step, numbered where a pipeline has two of one name."""
    stage, place = _webdataset_stage_of(step), 1
    for earlier in steps:
        if earlier is step:
            break
        place += _webdataset_stage_of(earlier) == stage
    if place == 1 or stage.kind in ("fetch", "decode", "collate"):
        return stage
    return stage._replace(name=f"{stage.name} #{place}")


def _webdataset_stage_of(step: Any) -> Stage:
    """Name and kind of one step: a curried function, a function, or an object of a class."""
    function = getattr(step, "f", step)
    name = find_ops.name_of(function).strip("_")
    if name == "batched":
        return COLLATE
    mapped = _mapped(name, step)
    if type(mapped).__name__ == "Decoder":  # what `WebDataset.decode` maps
        return Stage("decode", "decode")
    if find_ops.is_function(mapped):  # an op is a stage of its own
        called = find_ops.name_of(mapped)
        return find_ops.stage_of(find_ops.Slot(step, name, mapped, called))
    return Stage(name, _WEBDATASET_KINDS.get(name, "other"))


def _mapped(name: str, step: Any) -> Any:
    """What a step maps, where that is one function or object."""
    if _WEBDATASET_KINDS.get(name) != "transform":
        return None
    args, named = getattr(step, "args", ()), getattr(step, "kw", {})
    given = [
        *(args[:1] if name == "map" else args),
        *(value for key, value in named.items() if key != "handler"),
    ]
    return given[0] if len(given) == 1 else None


_ADAPTERS: Final[dict[str, Callable[[Recorder, Patches], None]]] = {
    "webdataset.pipeline": hook_webdataset,
    "datasets.iterable_dataset": hook_iterable,
    "datasets.formatting.formatting": hook_formatter,
    "fastai.data.load": hook_fastai,
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
                self._recorder.log.failures.note(f"the stages of {module.partition('.')[0]}", error)


def samples(recorder: Recorder, fetcher: Any) -> Any:
    """What stands in for the iterator of an iterable dataset: every `next` is a sample, or a batch.

    Args:
        recorder: of the batch at work.
        fetcher: torch's, with `dataset` and `dataset_iter`.
    """
    cls = type(fetcher.dataset)
    # What fastai gives torch: an iterable of batches, whose samples are seen in it
    if (cls.__module__, cls.__name__) == ("fastai.data.load", "_FakeLoader"):
        return Batches(recorder, fetcher.dataset_iter)
    return recorder.iterator(fetcher.dataset_iter)
