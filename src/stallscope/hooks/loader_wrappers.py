"""Iterators that other libraries put around a loader: what the loop waits for is these.

They normalise, move or shuffle batches in the main process, after torch's loader has given them,
so a loop waits longer than torch's iterator tells. Where such a library has been imported, the
`__iter__` of its class gives a generator of ours that marks the outermost wait; the waits for the
loader inside of it are marked there as always. Nothing else of the user's object changes.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import ExitStack
from itertools import count, islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from stallscope.after_import import once_imported
from stallscope.hooks.loop_log import AROUND, Mark, epoch_key
from stallscope.hooks.weak import unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stallscope.hooks.loop_log import MarkWriter
    from stallscope.hooks.patches import Patches


CLASSES: Final[dict[str, tuple[str, ...]]] = {
    "timm.data.loader": ("PrefetchLoader",),
    "fastai.data.load": ("DataLoader",),
    "accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"),
    "webdataset.pipeline": ("DataPipeline",),
}
"""What is put around loaders, by the module that defines it. MONAI's ThreadDataLoader is none of
them: its batches come from a thread of its own, so no wait for a loader lies inside of the loop's.
"""


class Wrappers:
    """Marks the waits for what other libraries put around loaders.

    Args:
        marks: where to write.
        loader_waits: whether this thread is waiting for a loader's batch: what is iterated then is
            part of making it.
        patches: what is changed here comes off with them.
    """

    def __init__(
        self, marks: MarkWriter, loader_waits: Callable[[], bool], patches: Patches
    ) -> None:
        self._marks = marks
        self._loader_waits = loader_waits
        self._patches = patches
        self._imports = ExitStack()
        self._numbers = count()
        self._here = threading.local()

    def put_on(self) -> None:
        """Hook the libraries that are there; the others when they are imported."""
        for module in CLASSES:
            hook = functools.partial(self._hook, module)
            self._imports.enter_context(once_imported(module, hook))

    def take_off(self) -> None:
        """Wait for no import any more; the patches are undone by their owner."""
        self._imports.close()

    def is_waiting(self) -> bool:
        """Whether this thread is waiting for a batch."""
        return getattr(self._here, "inside", False) or self._loader_waits()

    def _hook(self, module: str) -> None:
        for name in CLASSES[module]:
            cls = getattr(sys.modules[module], name, None)
            original = vars(cls).get("__iter__") if isinstance(cls, type) else None
            if original is not None:
                self._patches.put(cls, "__iter__", self._around(original))

    @unseen
    def _around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def iterate(wrapper: Any) -> Any:
            if self.is_waiting():  # the stall is the outermost iterator's
                return original(wrapper)
            key = epoch_key(AROUND, next(self._numbers))
            self._marks.mark(Mark.ITER, key)
            made = original(wrapper)
            self._marks.mark(Mark.ITERATED, key)
            # An iterator with more to it than its batches stays what it is.
            plain = isinstance(made, (GeneratorType, islice))
            return self._batches(made, key) if plain else made

        return iterate

    @unseen
    def _batches(self, made: Any, key: int) -> Iterator[Any]:
        """What the library's iterator gives; it is closed when this is."""
        numbers = count()
        try:
            while got := self._next(made, key, numbers):
                yield got.pop()  # a batch that the loop drops must not live on here
        finally:
            if isinstance(made, GeneratorType):
                made.close()

    @unseen
    def _next(self, made: Iterator[Any], key: int, numbers: Iterator[int]) -> list[Any]:
        """The next batch as a list of one; empty at the end."""
        if self.is_waiting():
            return list(islice(made, 1))
        got: list[Any] = []
        self._here.inside = True
        self._marks.mark(Mark.WAIT, key)
        try:
            got += islice(made, 1)
            return got
        finally:
            self._here.inside = False
            if got:
                self._marks.mark(Mark.GOT, key, next(numbers))
            else:
                self._marks.mark(Mark.ENDED, key)
