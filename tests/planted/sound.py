"""Healthy loops: those that get a cause, and those that look like one.

What could be taken for a cause is there in each of `HEALTHY` (waiting, slow samples, no worker at
all), and hidden behind the step. All numbers are drawn from a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from planted.recipe import Op, Recipe, SlowSamples


class Two(NamedTuple):
    """A loop without its cause and with it."""

    without: Recipe
    """Healthy."""
    spoilt: Recipe
    """The same with the cause, and nothing else."""


@dataclass(frozen=True)
class Given:
    """Conditions of planting a cause."""

    draw: Random
    """Random numbers."""
    cores: int
    """Cores that the loop's processes may use."""
    strength: float
    """Target duration of a step with its wait, relative to the step alone."""


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
    """Return the extra seconds for a batch in its worker that slow the loop down by `strength`.

    Args:
        recipe: the loop as it is.
        strength: how many times as long as its step a step with its wait is to take.
    """
    each_s = recipe.read_s + recipe.parse_s + sum(op.cpu_s for op in recipe.ops)
    made_s = recipe.batch * each_s + recipe.collate_s
    return max(strength * recipe.workers * recipe.step_s - made_s, 0.0)


# --- kinds ----------------------------------------------------------------------------------------


def balanced(base: Recipe, draw: Random) -> Recipe:
    """Workers for all cores, busy for up to 60% of their time."""
    return with_work(base, draw.uniform(0.3, 0.6), draw)


def hidden_storage(base: Recipe, draw: Random) -> Recipe:
    """Storage is slow, and enough workers wait for it."""
    return few(base, draw, 4, draw.uniform(0.4, 0.6), read=0.85)


def hidden_spread(base: Recipe, draw: Random) -> Recipe:
    """Batches take very different times, and many are made ahead."""
    return replace(few(base, draw, 3, 0.4, read=0.9), spread=0.8, prefetch=12)


def hidden_samples(base: Recipe, draw: Random) -> Recipe:
    """Single samples are slow, and enough is made ahead."""
    slow = SlowSamples(draw.randint(80, 150), 2 * base.step_s, computes=False)
    return replace(few(base, draw, 3, 0.25), slow=slow, prefetch=4)


def hardly_any_work(base: Recipe, draw: Random) -> Recipe:
    """No worker, and next to nothing to do."""
    light = few(base, draw, 1, 0.01, read=0.0)  # a sleep that short takes ten times as long
    return replace(light, workers=0)


def short_epochs(base: Recipe, draw: Random) -> Recipe:
    """Epochs are short, and the workers live on."""
    return replace(few(base, draw, 2, 0.1), epoch=draw.randint(20, 30), persistent=True)


def photographs(base: Recipe, draw: Random) -> Recipe:
    """Photographs are read and decoded, a few for each step."""
    return replace(few(base, draw, base.workers, 0.1), batch=1, reads_files=True, decodes=True)


def one_large_transform(base: Recipe, draw: Random) -> Recipe:
    """One transform takes most of a sample's time, which the workers have to spare."""
    calm = with_work(base, 0.1, draw)
    heavy = Op("Warp", 0.4 * base.workers * base.step_s / base.batch)
    return replace(calm, ops=(heavy,))


HEALTHY: tuple[Callable[[Recipe, Random], Recipe], ...] = (
    balanced,
    hidden_storage,
    hidden_spread,
    hidden_samples,
    hardly_any_work,
    short_epochs,
    photographs,
    one_large_transform,
)
"""Kinds of healthy loops."""
