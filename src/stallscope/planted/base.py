"""The healthy loop that a cause is planted into; its numbers are drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.planted.recipe import Op, Recipe

if TYPE_CHECKING:
    from random import Random


class Two(NamedTuple):
    """A loop without its cause and with it."""

    without: Recipe
    """Healthy."""
    spoilt: Recipe
    """The same with the cause, and nothing else."""


@dataclass(frozen=True)
class Given:
    """What a cause is planted by."""

    draw: Random
    """Its numbers."""
    cores: int
    """That the loop's processes may use."""
    strength: float
    """How many times as long as its step a step with its wait is to take."""


STEP_S: Final = (0.012, 0.035)
"""Between these; a timer of the operating system is exact to a tenth of a millisecond."""
LOAD: Final = (0.25, 0.45)
"""Share of the workers' time that the work takes; a loader is healthy up to two thirds."""
BATCHES: Final = (4, 8, 12, 16)
NAMES: Final = ("Blur", "Warp", "Recolour", "AddNoise", "Sharpen")
_READ, _PARSE, _COLLATE = 0.35, 0.1, 0.1
"""Shares of a batch's work; the rest are the transforms."""


def base(draw: Random, cores: int) -> Recipe:
    """A loop whose workers make batches faster than it uses them.

    Args:
        draw: the numbers.
        cores: that its processes may use; as many workers.
    """
    recipe = Recipe(
        step_s=draw.uniform(*STEP_S),
        batch=draw.choice(BATCHES),
        workers=cores,
        seed=draw.randrange(1 << 30),
    )
    return with_work(recipe, draw.uniform(*LOAD), draw)


def with_work(recipe: Recipe, load: float, draw: Random, read: float = _READ) -> Recipe:
    """The recipe with work that keeps its workers busy for a share of their time.

    Args:
        recipe: its step, its batch and its workers count.
        load: the share.
        draw: the shares of its three transforms.
        read: share of the work that waits for storage.
    """
    whole_s = load * recipe.workers * recipe.step_s
    each_s = whole_s / recipe.batch
    parts = [draw.uniform(0.8, 1.2) for _ in range(3)]
    ops_s = (1 - read - _PARSE - _COLLATE) * each_s
    names = draw.sample(NAMES, 3)
    return replace(
        recipe,
        read_s=read * each_s,
        parse_s=_PARSE * each_s,
        ops=tuple(
            Op(name, ops_s * part / sum(parts)) for name, part in zip(names, parts, strict=True)
        ),
        collate_s=_COLLATE * whole_s,
    )


def few(recipe: Recipe, draw: Random, workers: int, load: float, read: float = _READ) -> Recipe:
    """The recipe with so many workers, each of them busy for a share of its time."""
    return with_work(replace(recipe, workers=workers), load, draw, read)


def missing_s(recipe: Recipe, strength: float) -> float:
    """How much longer a batch has to take its worker, for the loop to take so much longer.

    Args:
        recipe: the loop as it is.
        strength: how many times as long as its step a step with its wait is to take.
    """
    made_s = recipe.batch_wait_s(0, worker=1) + recipe.batch_cpu_s(0)
    return max(strength * recipe.workers * recipe.step_s - made_s, 0.0)
