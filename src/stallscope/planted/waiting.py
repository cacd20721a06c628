"""Loaders that are fast enough on average, where one thing that is late holds up the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stallscope.planted.arithmetic import amount
from stallscope.planted.base import Two, few
from stallscope.planted.recipe import SlowSamples

if TYPE_CHECKING:
    from stallscope.planted.base import Given
    from stallscope.planted.recipe import Recipe

_MOST_WORKERS: Final = 4
"""So many make ahead what a late one can hold up; with more, nothing does."""
_AHEAD: Final = 16
_WIDEST: Final = 1.6
"""Beyond this spread, most of the time is in a few batches, which nothing made ahead can hide."""


def too_little_prefetch(base: Recipe, given: Given) -> Two:
    """Batches take very different times, and hardly any is made ahead.

    Whole batches do: no single sample stands out in its own. This cannot be planted as strongly as
    the others: it ends at about 1.6 times the step.
    """
    load = given.draw.uniform(0.55, 0.6)
    steady = replace(few(base, given.draw, _MOST_WORKERS, load, read=0.9), prefetch=1)

    def spread(by: float) -> Recipe:
        return replace(steady, spread=by)

    little = spread(amount(spread, given.strength, given.cores, _WIDEST))
    return Two(replace(little, prefetch=_AHEAD), little)


def slow_samples(base: Recipe, given: Given) -> Two:
    """One sample in some tens takes so long that the loop waits for it, whatever else is ready."""
    healthy = _few(base, given, given.draw.uniform(0.2, 0.3))
    every = base.batch * given.draw.randint(6, 10)
    computes = given.draw.random() < 0.5  # noqa: PLR2004 - a coin

    def slow(extra_s: float) -> Recipe:
        return replace(healthy, slow=SlowSamples(every, extra_s, computes))

    return Two(healthy, slow(amount(slow, given.strength, given.cores, 100 * base.step_s)))


def slow_worker(base: Recipe, given: Given) -> Two:
    """The first worker waits for each of its samples; batches come in turn, so all wait for it."""
    workers = given.draw.randint(3, _MOST_WORKERS)  # most of what they do is to wait
    healthy = few(base, given.draw, workers, given.draw.uniform(0.15, 0.3))

    def slow(more_s: float) -> Recipe:
        return replace(healthy, slow_worker_s=more_s)

    return Two(healthy, slow(amount(slow, given.strength, given.cores, 10 * base.step_s)))


def start_up(base: Recipe, given: Given) -> Two:
    """Workers that take long to start, and start at every short epoch."""
    healthy = replace(_few(base, given, 0.15), epoch=given.draw.randint(14, 20), persistent=True)

    def starting(init_s: float) -> Recipe:
        return replace(healthy, init_s=init_s, persistent=False)

    spoilt = starting(amount(starting, given.strength, given.cores, 100 * base.step_s))
    return Two(replace(spoilt, persistent=True), spoilt)


def _few(base: Recipe, given: Given, load: float, read: float = 0.35) -> Recipe:
    return few(base, given.draw, min(max(base.workers, 2), _MOST_WORKERS), load, read)
