"""A recipe as a loader and a step."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from stallscope.demo import BusyOp
from stallscope.measure.folder import torchvision_v2, worker_settings
from stallscope.measure.sample import photographs
from stallscope.measure.simulated import simulated_step
from stallscope.planted.batches import Collate, LoggingStep, SlowSampler, Start
from stallscope.planted.ops import OPS, Corner, Lookup, Smooth
from stallscope.planted.samples import PlantedSamples, Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.planted.recipe import Recipe


def build(recipe: Recipe) -> tuple[DataLoader[Any], Callable[[Any], object]]:
    """The loader and the step of a recipe; nothing is started.

    Raises:
        TargetError: torchvision is missing, or the sample data.
    """
    settings = _settings(recipe)
    dataset = _dataset(recipe, multiprocessing.get_context(settings["multiprocessing_context"]))
    if recipe.workers == 0:
        settings.pop("multiprocessing_context")
    if recipe.sampler_s:
        settings["sampler"] = SlowSampler(dataset, recipe.batch, recipe.sampler_s)
    collate = Collate(recipe.collate_s, recipe.sending)
    return DataLoader(dataset, recipe.batch, collate_fn=collate, **settings), _step(recipe)


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = {"multiprocessing_context": "spawn", **worker_settings(recipe.workers or 1)}
    settings["num_workers"] = recipe.workers
    if recipe.start_method:
        settings["multiprocessing_context"] = recipe.start_method
    if recipe.workers:
        settings |= {"prefetch_factor": recipe.prefetch, "persistent_workers": recipe.persistent}
    if recipe.init_s or recipe.threads > 1:
        settings["worker_init_fn"] = Start(recipe.init_s, recipe.threads)
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
    return torchvision_v2().Compose(ops or [BusyOp(0.0)])  # type: ignore[no-any-return]


def _step(recipe: Recipe) -> Callable[[Any], object]:
    if recipe.busy_step:
        return BusyOp(recipe.step_s, "step")
    if recipe.logging_s:
        return LoggingStep(recipe.step_s, recipe.logging_s)
    return simulated_step(recipe.step_s)
