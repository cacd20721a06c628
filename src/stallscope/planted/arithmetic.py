"""How long a loop takes, worked out instead of measured.

A loader in virtual time: each worker makes every so manyth batch, so many are asked for ahead, and
the loop takes them in order. Planting uses it to find how much of a cause is needed, and tests use
it to see that the loop is healthy again without the cause, whatever the machine does meanwhile.
What is only known by measuring (sending, decoding, threads) is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.planted.recipe import Recipe

STEPS: Final = 400
"""So many are worked out; enough for what varies between batches."""
MEAN_BYTES: Final = 110_000.0
"""Of a photograph of the sample data."""


def slowdown(recipe: Recipe, cores: int, steps: int = STEPS) -> float:
    """How many times as long as its step alone a loop takes.

    Args:
        recipe: the loop.
        cores: that its processes may use.
        steps: so many are worked out.
    """
    return loop_s(recipe, cores, steps) / recipe.step_s


def loop_s(recipe: Recipe, cores: int, steps: int = STEPS) -> float:
    """Seconds that a step of the loop takes on average, waiting included; args as `slowdown`."""
    clock, first = _Clock(recipe), 2 * recipe.workers  # until there is a steady state
    while len(clock.ends) < first + steps:
        clock.epoch(min(recipe.epoch, first + steps - len(clock.ends)))
    began = clock.ends[first - 1] if first else 0.0
    return max((clock.now - began) / steps, _cpu_s(recipe, steps) / cores)


def amount(recipe_of: Callable[[float], Recipe], strength: float, cores: int, most: float) -> float:
    """The smallest amount of a cause, up to `most`, that slows its loop down so much.

    Args:
        recipe_of: the recipe with so much of the cause.
        strength: the wanted `slowdown`.
        cores: that its processes may use.
        most: where the search ends.
    """
    low, high = 0.0, most
    for _ in range(16):
        middle = (low + high) / 2
        enough = slowdown(recipe_of(middle), cores) >= strength
        low, high = (low, middle) if enough else (middle, high)
    return high


def _cpu_s(recipe: Recipe, steps: int) -> float:
    """CPU time of all processes for one step."""
    made_s = sum(map(recipe.batch_cpu_s, range(steps))) / steps
    locked_s = recipe.batch * recipe.lock_s if recipe.lock_computes else 0.0
    step_s = recipe.step_s if recipe.busy_step else 0.0
    return made_s + locked_s + recipe.logging_s + recipe.sampler_s + step_s


@dataclass
class _Clock:
    """The clocks of the loop, of its workers, and of what they share."""

    recipe: Recipe
    now: float = 0.0
    asked: int = 0
    """Batches of all epochs."""
    alone_until: float = 0.0
    """When what the workers share is free."""
    lanes: dict[int, float] = field(default_factory=dict)
    """When each worker has nothing more to do."""
    ends: list[float] = field(default_factory=list)
    """Of each step."""

    def epoch(self, batches: int) -> None:
        """Use so many batches."""
        recipe = self.recipe
        if self.ends and not recipe.persistent:
            self.now += recipe.init_s
        lanes = max(recipe.workers, 1)
        self.lanes = dict.fromkeys(range(lanes), self.now)
        made: list[float] = []
        for number in range(batches):
            # asked for when the batch that many places before it was taken
            while len(made) < min(batches, number + max(recipe.prefetch * recipe.workers, 1)):
                made.append(self._make(len(made) % lanes))
            self.now = max(self.now + recipe.sampler_s, made[number])
            self.now += recipe.step_s + recipe.logging_s
            self.ends.append(self.now)

    def _make(self, lane: int) -> float:
        recipe, batch = self.recipe, self.asked
        self.asked += 1
        begin = max(self.now, self.lanes[lane])
        shared_s = recipe.batch_alone_s(MEAN_BYTES)
        if shared_s:
            begin = max(begin, self.alone_until) + shared_s
            self.alone_until = begin
        own_s = recipe.batch_wait_s(batch, lane) + recipe.batch_cpu_s(batch)
        unlocked_s = 0.0 if recipe.is_locked else recipe.batch * recipe.lock_s
        self.lanes[lane] = begin + own_s + unlocked_s
        return self.lanes[lane]
