"""A recipe as a loader and a step: its samples, its transforms, its batches, and all together.

Workers that are started can import all of it. What is called CPU time is burned, and what is called
waiting is slept, so that a cost is what its recipe says on any machine.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from support.planted_costs import BusyOp, busy, waiting
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    default_collate,
    get_worker_info,
)

from planted.recipe import Recipe
from planted.sound import NAMES
from stallscope.hooks.training_step import stage
from stallscope.loops.devices import Cpu
from stallscope.loops.training_loop import TimedLoop, started
from stallscope.targets.images import torchvision_transforms, worker_settings
from stallscope.targets.sample import photographs
from stallscope.targets.target import SimulatedStep, simulated_step

# --- samples --------------------------------------------------------------------------------------


class Storage:
    """A disk or a share that gives so many bytes a second, to all workers together.

    Args:
        bytes_per_s: that.
        context: how the workers are started (a context of multiprocessing).
    """

    def __init__(self, bytes_per_s: float, context: Any) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at = context.Value("d", 0.0)  # of the clock that all processes share

    def send(self, size: int) -> None:
        """Wait until this many bytes have come; later requests are served later."""
        with self.free_at.get_lock():
            now = time.monotonic()
            until = max(self.free_at.value, now) + size / self.bytes_per_s
            self.free_at.value = until
        waiting(until - now)


class PlantedSamples(Dataset[Any]):
    """Samples that cost what a recipe says: float32 tensors, filled with their index.

    Args:
        recipe: what they cost.
        transform: made of its ops.
        paths: photographs, where it reads any.
        storage: where they come from; None: as fast as they are read.
    """

    def __init__(
        self,
        recipe: Recipe,
        transform: Callable[[Any], Any],
        paths: tuple[str, ...] = (),
        storage: Storage | None = None,
    ) -> None:
        self.recipe = recipe
        self.transform = transform
        self.paths = paths
        self.storage = storage

    def __len__(self) -> int:
        return self.recipe.epoch * self.recipe.batch

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index))

    def load(self, index: int) -> Any:
        """Return the data of one sample: an undecoded image, or a tensor."""
        recipe = self.recipe
        waiting(self.wait_s(index))
        busy(recipe.parse_s)
        if recipe.slow and recipe.slow.computes and recipe.is_slow(index):
            busy(recipe.slow.extra_s)
        image = self.read(self.paths[index % len(self.paths)]) if self.paths else None
        if recipe.decodes:
            return image
        if recipe.values != _VALUES:  # nobody writes into large ones, which would take as long
            return torch.empty(recipe.values)
        return torch.full((3, 8, 8), float(index))

    def wait_s(self, index: int) -> float:
        """Return the seconds that storage takes for this sample."""
        recipe, worker = self.recipe, get_worker_info()
        wait_s = recipe.read_s * recipe.factor(index // recipe.batch)
        if recipe.slow and not recipe.slow.computes and recipe.is_slow(index):
            wait_s += recipe.slow.extra_s
        return wait_s + (recipe.slow_worker_s if worker and worker.id == 0 else 0.0)

    def read(self, path: str) -> Any:
        """A photograph of the sample data, not yet decoded."""
        from PIL import Image

        if self.storage:
            self.storage.send(len(Path(path).read_bytes()))
        elif not self.recipe.decodes:
            Path(path).read_bytes()
        return Image.open(path) if self.recipe.decodes else None


class Shards(IterableDataset[Any]):
    """The same samples as a stream in shards; each worker reads the samples of its own shards.

    Args:
        samples: those.
        shards: how many; a worker beyond them has none.
    """

    def __init__(self, samples: PlantedSamples, shards: int) -> None:
        self.samples = samples
        self.shards = shards

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first = worker.id if worker else 0
        places = range(first, len(self.samples), self.shards) if first < self.shards else ()
        return (self.samples[place] for place in places)


_VALUES: Final = 3 * 8 * 8


# --- transforms -----------------------------------------------------------------------------------


OPS: Final = {name: type(name, (BusyOp,), {"__module__": __name__}) for name in NAMES}
"""Transforms that compute, each a class of its own."""
globals().update(OPS)  # a started worker imports them by their names


class Corner:
    """A corner of an image, as a tensor; whoever touches its pixels first decodes it."""

    def __call__(self, image: Any) -> torch.Tensor:
        corner = np.asarray(image.convert("RGB").crop((0, 0, 8, 8)), dtype=np.float32)
        return torch.from_numpy(corner).permute(2, 0, 1).contiguous()


class Lookup:
    """A transform that only one worker at a time may be in: a shared file, a shared index.

    Args:
        seconds: how long it takes.
        computes: whether it computes so long; else it waits.
        lock: of all workers; None: each may be in it whenever it likes.
    """

    def __init__(self, seconds: float, lock: Any, *, computes: bool) -> None:
        self.seconds = seconds
        self.computes = computes
        self.lock = lock

    def __call__(self, sample: Any) -> Any:
        alone: AbstractContextManager[Any] = self.lock or nullcontext()
        with alone:
            (busy if self.computes else waiting)(self.seconds)
        return sample


class Smooth:
    """A library's transform that computes in parallel, with torch's threads.

    In a thread of its own: OpenMP's threads do not survive a fork, and whoever was forked from a
    process that had some hangs with more than one (github.com/pytorch/pytorch/issues/17199).

    Args:
        regions: parallel regions for each sample.
    """

    VALUES: Final = 66_000
    """Numbers that it works on: enough for torch to ask for its threads at all (2 * 32,768,
    `at::internal::GRAIN_SIZE`), and so few that they mostly wait for each other."""

    def __init__(self, regions: int) -> None:
        self.regions = regions

    def __call__(self, sample: Any) -> Any:
        thread = threading.Thread(target=self.compute)
        thread.start()
        thread.join()
        return sample

    def compute(self) -> None:
        work = torch.ones(self.VALUES)
        for _ in range(self.regions):
            work = torch.sin(work)


# --- batches, workers and the loop ----------------------------------------------------------------


@dataclass(frozen=True)
class Collate:
    """Makes a batch: one tensor, a list of tensors, or numpy arrays (which are pickled)."""

    cpu_s: float
    """CPU time that it takes besides, seconds."""
    sending: str
    """See `recipe.Sending`."""

    def __call__(self, samples: list[Any]) -> Any:
        busy(self.cpu_s)
        if self.sending == "tensor":
            return default_collate(samples)
        return samples if self.sending == "list" else [sample.numpy() for sample in samples]


@dataclass(frozen=True)
class Start:
    wait_s: float
    """Waits, as for an import from slow storage, seconds."""
    threads: int
    """Takes so many threads for torch; what a library does that does not know of the others."""
    cores: int | None
    """Runs on the first so many cores only, as a scheduler's settings may have it."""

    def __call__(self, worker: int) -> None:
        waiting(self.wait_s)
        if self.cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.cores])
        if self.threads > 1:
            torch.set_num_threads(self.threads)


class SlowSampler(SequentialSampler):
    """Indices in their order; drawing a batch of them takes the main process so much CPU time."""

    def __init__(self, dataset: Any, batch: int, cpu_s: float) -> None:
        super().__init__(dataset)
        self.batch = batch
        self.cpu_s = cpu_s

    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(super().__iter__()):
            if place % self.batch == 0:
                busy(self.cpu_s)
            yield index


@dataclass(frozen=True)
class LoggingStep(SimulatedStep):
    """A simulated step, and logging in the main process after it."""

    logging_s: float = 0.0
    """CPU time of logging, seconds."""

    def __call__(self, batch: Any) -> None:
        super().__call__(batch)
        with stage("logging"):
            busy(self.logging_s)


# --- all together ---------------------------------------------------------------------------------


def build(recipe: Recipe) -> tuple[DataLoader[Any], Callable[[Any], object]]:
    """The loader and the step of a recipe; nothing is started.

    Raises:
        TargetError: torchvision is missing, or the sample data.
    """
    settings = _settings(recipe)
    context = multiprocessing.get_context(settings["multiprocessing_context"])
    dataset: Any = _dataset(recipe, context)
    if recipe.workers == 0:
        settings.pop("multiprocessing_context")
    if recipe.sampler_s:
        settings["sampler"] = SlowSampler(dataset, recipe.batch, recipe.sampler_s)
    collate = Collate(recipe.collate_s, recipe.sending)
    if recipe.shards is not None:
        dataset = Shards(dataset, recipe.shards)
    return DataLoader(dataset, recipe.batch, collate_fn=collate, **settings), _step(recipe)


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = {"multiprocessing_context": "spawn", **worker_settings(recipe.workers or 1)}
    settings["num_workers"] = recipe.workers
    if recipe.workers:
        settings |= {"prefetch_factor": recipe.prefetch, "persistent_workers": recipe.persistent}
    if recipe.init_s or recipe.threads > 1 or recipe.worker_cores:
        settings["worker_init_fn"] = Start(recipe.init_s, recipe.threads, recipe.worker_cores)
    return settings


def _dataset(recipe: Recipe, context: Any) -> PlantedSamples:
    storage = None if recipe.bytes_per_s is None else Storage(recipe.bytes_per_s, context)
    paths: tuple[str, ...] = ()
    if recipe.reads_files:
        paths = tuple(file.path for file in photographs())
    return PlantedSamples(recipe, _transform(recipe, context), paths, storage)


def _transform(recipe: Recipe, context: Any) -> Callable[[Any], Any]:
    ops: list[Any] = [Corner()] if recipe.decodes else []
    ops += [OPS[op.name](op.cpu_s, op.name) for op in recipe.ops]
    if recipe.lock_s:
        lock = context.Lock() if recipe.is_locked else None
        ops.append(Lookup(recipe.lock_s, lock, computes=recipe.lock_computes))
    if recipe.regions:
        ops.append(Smooth(recipe.regions))
    return torchvision_transforms().Compose(ops or [BusyOp(0.0)])  # type: ignore[no-any-return]


def _step(recipe: Recipe) -> Callable[[Any], object]:
    if recipe.busy_step:
        return BusyOp(recipe.step_s, "step")
    if recipe.logging_s:
        return LoggingStep(recipe.step_s, logging_s=recipe.logging_s)
    return simulated_step(recipe.step_s)


# --- what this machine takes for work that cannot be told in CPU seconds beforehand ---------------


_PHOTOGRAPHS: Final = 12
_LEAST_S: Final = 0.5
_FEWEST: Final = 8
_LONGEST_S: Final = 5.0


@lru_cache(maxsize=1)
def decode_s() -> float:
    """CPU time of decoding a photograph of the sample data, seconds on average."""
    from PIL import Image

    files = photographs()[:_PHOTOGRAPHS]
    began = 0.0
    for _ in range(2):  # the first time also loads the decoder and fills the caches
        began = time.thread_time()
        for file in files:
            Image.open(file.path).convert("RGB")
    return (time.thread_time() - began) / len(files)


def batch_s(recipe: Recipe) -> float:
    """Return the seconds of the recipe's loader for a batch that the loop uses at once."""
    with _batches(recipe) as batches:
        for _ in islice(batches, recipe.workers * (1 + recipe.prefetch)):
            pass
        began, number = time.perf_counter(), 0
        for number, _ in enumerate(batches, 1):
            took_s = time.perf_counter() - began
            if took_s > _LONGEST_S or (number >= _FEWEST and took_s > _LEAST_S):
                break
        return (time.perf_counter() - began) / max(number, 1)


@contextmanager
def _batches(recipe: Recipe) -> Iterator[Any]:
    loader, _ = build(recipe)
    with started(TimedLoop(loader, Cpu())) as batches:
        yield batches
