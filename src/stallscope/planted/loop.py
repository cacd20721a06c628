"""What the main process does itself, while its workers wait for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stallscope.planted.base import Two, with_work

if TYPE_CHECKING:
    from stallscope.planted.base import Given
    from stallscope.planted.recipe import Recipe


def main_process(base: Recipe, given: Given) -> Two:
    """No worker at all, logging at every step, or a sampler that computes; drawn from the seed."""
    return given.draw.choice((no_workers, logging, slow_sampler))(base, given)


def no_workers(base: Recipe, given: Given) -> Two:
    """The main process makes the batches itself, which its workers could do meanwhile."""
    load = (given.strength - 1) / base.workers
    healthy = with_work(base, load, given.draw)
    return Two(healthy, replace(healthy, workers=0))


def logging(base: Recipe, given: Given) -> Two:
    """After each step the main process computes, in a part that is named "logging"."""
    return Two(base, replace(base, logging_s=(given.strength - 1) * base.step_s))


def slow_sampler(base: Recipe, given: Given) -> Two:
    """Drawing a batch's indices computes in the main process, before the loop gets its batch."""
    return Two(base, replace(base, sampler_s=(given.strength - 1) * base.step_s))
