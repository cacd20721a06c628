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


@contextmanager
def cprofile() -> Iterator[None]:
    """The standard library's profiler."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()


def viztracer(**settings: Any) -> Callable[[], Any]:
    """VizTracer, started and stopped; its events are thrown away."""
    tracer = importlib.import_module("viztracer").VizTracer(verbose=0, **settings)

    @contextmanager
    def switch() -> Iterator[None]:
        tracer.start()
        try:
            yield
        finally:
            tracer.stop()
            tracer.clear()

    return switch


def line_profiler(folder: ImageFolder) -> Callable[[], Any]:
    """line_profiler on `__getitem__`, the loader and every transform."""
    profiler = importlib.import_module("line_profiler").LineProfiler()
    profiler.add_function(type(folder).__getitem__)
    profiler.add_function(folder.loader)
    for op in folder.transform.transforms:
        cls = type(op)
        profiler.add_function(getattr(cls, "forward", cls.__call__))

    @contextmanager
    def switch() -> Iterator[None]:
        profiler.enable_by_count()
        try:
            yield
        finally:
            profiler.disable_by_count()

    return switch


def pyinstrument() -> Callable[[], Any]:
    """Start pyinstrument at its own rate, one sample a millisecond."""
    module = importlib.import_module("pyinstrument")

    @contextmanager
    def switch() -> Iterator[None]:
        with module.Profiler():
            yield

    return switch


def yappi() -> Callable[[], Any]:
    """Start yappi on the CPU clock."""
    module = importlib.import_module("yappi")

    @contextmanager
    def switch() -> Iterator[None]:
        module.start()
        try:
            yield
        finally:
            module.stop()
            module.clear_stats()

    return switch
