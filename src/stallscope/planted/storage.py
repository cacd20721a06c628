"""Storage that is slow to answer, or gives too few bytes a second."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stallscope.planted.arithmetic import MEAN_BYTES
from stallscope.planted.base import Two, missing_s, with_work

if TYPE_CHECKING:
    from stallscope.planted.base import Given
    from stallscope.planted.recipe import Recipe

_LITTLE: Final = 0.2
"""Share of the workers' time that is not waiting for bytes."""


def storage_latency(base: Recipe, given: Given) -> Two:
    """Every sample waits as long for storage, whatever its size: a sleep where it is read."""
    more_s = missing_s(base, given.strength) / base.batch
    return Two(base, replace(base, read_s=base.read_s + more_s))


def storage_bandwidth(base: Recipe, given: Given) -> Two:
    """All workers together get so many bytes a second; more of them would get no more.

    Photographs are read, and each then waits until its bytes would have come through a pipe that
    all workers share.
    """
    healthy = replace(with_work(base, _LITTLE, given.draw), reads_files=True)
    bytes_per_s = base.batch * MEAN_BYTES / (given.strength * base.step_s)
    return Two(healthy, replace(healthy, bytes_per_s=bytes_per_s))
