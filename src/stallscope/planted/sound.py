"""Loops in which nothing is wrong, each of another kind.

What could be taken for a cause is there in each of them (waiting, slow samples, no worker at all),
and hidden behind the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stallscope.planted.base import few, with_work
from stallscope.planted.recipe import Op, SlowSamples

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from stallscope.planted.recipe import Recipe


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
"""Every kind."""
