"""Other ways to find out where a pipeline's time goes, each as a switch to be put on for a batch.

A peer that times ops gets them as our recorder does: the dataset's `__getitem__`, its loader,
every transform and the collate function. A peer that times functions is set up as its
documentation says.
"""

import copy
import cProfile
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time_ns
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose

Around = Callable[[str, Callable[[Any], Any]], Callable[[Any], Any]]


class Wrapped:
    """A folder of images whose every op goes through a wrapper; the user's objects stay as is."""

    def __init__(self, folder: ImageFolder, around: Around) -> None:
        inner = copy.copy(folder)
        inner.loader = around("loader", folder.loader)
        ops = [around(type(op).__name__, op) for op in folder.transform.transforms]
        inner.transform = Compose(ops)
        self._get = around("getitem", inner.__getitem__)
        self.collate = around("collate", default_collate)

    def __getitem__(self, index: int) -> Any:
        return self._get(index)


def labelled(name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A call inside of torch's `record_function`."""

    def op(x: Any) -> Any:
        with record_function(name):
            return call(x)

    return op


def appending(path: Path) -> Around:
    """Calls that append a line of text to a file each, opened anew, as LotusTrace does."""

    def around(name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def op(x: Any) -> Any:
            began = time_ns()
            result = call(x)
            with path.open("a") as file:
                file.write(f"{name},{began},{time_ns() - began}\n")
            return result

        return op

    return around


def installed(name: str, make: Callable[[], Any]) -> Any:
    """Return a peer's switch; None, and a sentence, where the peer is not installed."""
    try:
        return make()
    except ModuleNotFoundError:
        print(f"{name} is not installed: left out")
        return None


os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it prints a line at each start and stop


@contextmanager
def torch_profiler() -> Iterator[None]:
    """`torch.profiler` over the CPU; what it gathered is thrown away."""
    with profile(activities=[ProfilerActivity.CPU]):
        yield


def _switch(start: Callable[[], object], *stops: Callable[[], object]) -> Callable[[], Any]:
    """Return a switch that starts a peer and stops it; what it gathered is thrown away."""

    @contextmanager
    def switch() -> Iterator[None]:
        start()
        try:
            yield
        finally:
            for stop in stops:
                stop()

    return switch


def cprofile() -> Any:
    """Return a switch of the standard library's profiler, a new one each time."""
    profiler = cProfile.Profile()
    return _switch(profiler.enable, profiler.disable)()


def viztracer(**settings: Any) -> Callable[[], Any]:
    tracer = importlib.import_module("viztracer").VizTracer(verbose=0, **settings)
    return _switch(tracer.start, tracer.stop, tracer.clear)


def line_profiler(folder: ImageFolder) -> Callable[[], Any]:
    """line_profiler on `__getitem__`, the loader and every transform."""
    profiler = importlib.import_module("line_profiler").LineProfiler()
    profiler.add_function(type(folder).__getitem__)
    profiler.add_function(folder.loader)
    for op in folder.transform.transforms:
        cls = type(op)
        profiler.add_function(getattr(cls, "forward", cls.__call__))
    return _switch(profiler.enable_by_count, profiler.disable_by_count)


def pyinstrument() -> Callable[[], Any]:
    """Return pyinstrument at its own rate, one sample a millisecond."""
    return importlib.import_module("pyinstrument").Profiler


def yappi() -> Callable[[], Any]:
    """Return yappi on the CPU clock."""
    module = importlib.import_module("yappi")
    return _switch(module.start, module.stop, module.clear_stats)
