"""Setup of a loader that the rules need: from the loader itself, or from a run.

Only objects of the parent process and the text of classes are looked at: nothing is called or read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from stallscope.hooks.find_ops import place_of
from stallscope.hooks.loader_access import value_of
from stallscope.loops.devices import device_of
from stallscope.machine import cores_available
from stallscope.targets.loaders import epoch_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.run.result import Run
    from stallscope.targets.target import Target


_MANY: Final = 1000
"""Entries of a function's cache from which on it may hold a dataset."""
_NOT_THE_USERS: Final = {"torch", "builtins", "typing"}
"""Packages whose classes keep no samples."""
_READS: Final[tuple[str, ...]] = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Methods in which reading begins."""
_FIRST: Final = 8
"""Entries of a container that are looked into."""
_DEEPEST: Final = 5
"""Datasets inside of datasets that are looked at."""


@dataclass(frozen=True)
class Setup:
    """Settings of the loader, as far as they can be read."""

    num_workers: int = 0
    """Worker processes; 0: the main process loads."""
    cores: float = 1.0
    prefetch_factor: int | None = None
    """Batches that each worker makes ahead; None without workers, or where it is not known."""
    persistent: bool = False
    pinned: bool = False
    in_order: bool = True
    epoch_batches: int | None = None
    """Batches of an epoch; None where the loader has no length."""
    has_step: bool = True
    simulated: bool = False
    on_gpu: bool = False
    cache: str = ""
    """Cache of the dataset for samples that were read, as `self.attribute`; empty: none."""
    holds_objects: bool = True
    """False: the dataset keeps no thousands of Python objects, so workers copy none of them."""
    streams: bool = False
    """True: each worker takes its part of a stream."""
    sampler: str = ""
    """Method of the user's sampler, or of a wrapper around the loader, as
    `class.method (file:line)`; empty for torch's."""
    drawn_by: str = ""
    """Class of the sampler that draws indices, torch's or the user's; empty: not known."""
    inside: str = ""
    """Words for the place of the loader with these workers, where the dataset owns it."""
    sends_state: bool = False
    """True: each batch carries its dataset's state, as torchdata's StatefulDataLoader has it."""

    @property
    def keep_alive(self) -> str:
        """Return the setting that keeps workers alive; '' where they live on already."""
        return "" if self.persistent else f"persistent_workers=True{self.inside}"


def setup_of(target: Target) -> Setup:
    """Read how the loader of a target is set up."""
    loaders = target.loaders
    serving = [loader for loader in loaders if value_of(loader, "num_workers")]
    datasets = [value_of(loader, "dataset") for loader in serving]
    samplers = [value_of(loader, "sampler") for loader in serving]
    return Setup(
        num_workers=target.num_workers,
        cores=float(cores_available()),
        prefetch_factor=next((value_of(loader, "prefetch_factor") for loader in serving), None),
        persistent=any(value_of(loader, "persistent_workers") for loader in loaders),
        pinned=any(value_of(loader, "pin_memory") for loader in loaders),
        in_order=all(value_of(loader, "in_order") is not False for loader in loaders),
        epoch_batches=epoch_length(target.loader),
        has_step=target.step is not None,
        cache=next(filter(None, map(cache_of, datasets)), ""),
        holds_objects=any(it is None or holds_objects(it) for it in datasets or [None]),
        streams=any(isinstance(dataset, IterableDataset) for dataset in datasets),
        simulated=target.simulated_step_s is not None,
        on_gpu=device_of(target).counts_kernels,
        sampler=next(filter(None, map(_place_of_iter, _drawing(target))), ""),
        drawn_by=next((type(sampler).__name__ for sampler in samplers), ""),
        inside="" if serving else " of the loader inside the dataset",
        sends_state=any(map(_sends_state, serving)),
    )


def setup_of_run(run: Run) -> Setup:
    """Read the same from a recorded run, which knows less."""
    settings = run.settings
    return Setup(
        num_workers=settings.num_workers,
        cores=float(run.machine.get("cores") or 1),
        prefetch_factor=settings.prefetch_factor,
        persistent=settings.persistent_workers,
        has_step=settings.has_step,
        simulated=settings.simulated_step_s is not None,
        streams=settings.streams,
        on_gpu=run.device is not None and settings.simulated_step_s is None,
    )


def _drawing(target: Target) -> Iterator[Any]:
    """Yield what may compute in the main process for each batch: a wrapper, then the samplers."""
    if target.loaders and not isinstance(target.loader, DataLoader):
        yield target.loader
    for loader in target.loaders:
        of_batches = value_of(loader, "batch_sampler")
        yield from (of_batches, value_of(of_batches, "sampler"), value_of(loader, "sampler"))


def _sends_state(loader: Any) -> bool:
    keeps_state = hasattr(type(value_of(loader, "dataset")), "state_dict")
    return keeps_state and value_of(loader, "snapshot_every_n_steps") == 1


def _place_of_iter(drawing: Any) -> str:
    """Say where `__iter__` is written that is not torch's; '' where it is, or is not Python."""
    method = getattr(type(drawing), "__iter__", None)
    if isinstance(method, FunctionType) and method.__module__.partition(".")[0] != "torch":
        return f"{type(drawing).__name__}.__iter__ ({place_of(method.__code__)})"
    return ""


def cache_of(dataset: Any) -> str:
    """Name where a dataset keeps what it has read: an attribute, or a function with a cache.

    Workers that end with the epoch take such a cache along.

    Returns:
        '' for a dataset without one, or with one that is full before workers start.
    """
    with suppress(Exception):  # objects of other people: any of these may raise
        return next(_caches(dataset), "")
    return ""


def holds_objects(dataset: Any) -> bool:
    """Return whether thousands of Python objects hang on a dataset, as far as can be seen.

    Reading one writes its reference count. The first entries of a container stand for the rest.
    """
    seen, level = set[int](), [dataset]
    for _ in range(_DEEPEST):
        inside: list[Any] = []
        for value in level:
            try:
                if _has_many(value):
                    return True
                inside += _parts_of(value)
            except Exception:  # noqa: BLE001, PERF203 - objects of other people: any may raise
                return True
        level = [value for value in inside if id(value) not in seen]
        seen |= set(map(id, level))
    return False


def _has_many(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return len(value) >= _MANY
    if isinstance(value, np.ndarray):
        return value.dtype.hasobject and value.size >= _MANY
    if type(value).__module__.partition(".")[0] != "pandas" or not hasattr(value, "dtypes"):
        return False
    return len(value) >= _MANY and object in getattr(value.dtypes, "values", [value.dtypes])


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return islice(value.values(), _FIRST)
    if isinstance(value, (list, tuple, set, frozenset)):
        return islice(value, _FIRST)
    return () if isinstance(value, (type, ModuleType)) else getattr(value, "__dict__", {}).values()


def _caches(dataset: Any) -> Iterator[str]:
    for _ in range(_DEEPEST):
        attributes = getattr(dataset, "__dict__", {})
        for name in _stored_in(type(dataset)):
            match attributes.get(name):  # not every sample is in there yet
                case dict() as cache if len(cache) < len(dataset):
                    yield f"self.{name}"
                case list() as cache if any(entry is None for entry in cache):
                    yield f"self.{name}"
        for cls in _own_classes(type(dataset)):
            for name, method in vars(cls).items():
                if hasattr(method, "cache_parameters"):  # `functools.cache` or `lru_cache`
                    most = method.cache_parameters()["maxsize"]
                    if most is None or most >= _MANY:
                        yield f"{cls.__name__}.{name}"
        if "dataset" not in attributes:
            return
        dataset = attributes["dataset"]


def _own_classes(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if each.__module__.partition(".")[0] not in _NOT_THE_USERS]


def _stored_in(cls: type) -> tuple[str, ...]:
    """Find attributes under whose keys reading a sample stores: `self.x[key] = ...`.

    What other methods store, as a constructor or `fit`, is there before workers start.
    """
    methods: dict[str, ast.FunctionDef] = {}
    for own in _own_classes(cls):
        tree = ast.parse(textwrap.dedent(inspect.getsource(own)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, node)
    attributes: dict[str, None] = {}
    called: list[str] = [name for name in _READS if name in methods]
    for name in called:  # grows meanwhile
        for node in ast.walk(methods[name]):
            match node:
                case ast.Assign(
                    targets=[*_, ast.Subscript(ast.Attribute(ast.Name("self"), stored))]
                ):
                    attributes[stored] = None
                case ast.Attribute(ast.Name("self"), other) if other in methods:
                    called += [] if other in called else [other]
    return tuple(attributes)
