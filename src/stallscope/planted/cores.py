"""Too few workers for the cores, too few cores for the work, too many threads for the cores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stallscope.errors import UnsupportedError
from stallscope.planted import yardsticks
from stallscope.planted.base import NAMES, Two, with_work
from stallscope.planted.recipe import Op
from stallscope.units import seconds

if TYPE_CHECKING:
    from stallscope.planted.base import Given
    from stallscope.planted.recipe import Recipe

_HEALTHY: Final = 0.5
"""Share of the workers' time, or of the cores', that a healthy loader takes."""
_READ: Final = 0.35
_MOST_THREADS: Final = 64
_SPARE: Final = 0.67
"""Share of the step that the loader may take without the cause, where that is measured."""


def too_few_workers(base: Recipe, given: Given) -> Two:
    """One worker where it takes several, and cores with nothing to do.

    Its work is of all sorts; on a small machine more of it waits, so that the cores would do.
    """
    workers = max(given.cores // 8, 1)
    load = given.strength  # of the few workers' time
    computes = min(1 - _READ, 0.6 * given.cores / (load * workers))
    few = with_work(replace(base, workers=workers), load, given.draw, read=1 - computes)
    return Two(replace(few, workers=math.ceil(workers * load / _HEALTHY)), few)


def cpu_saturated(base: Recipe, given: Given) -> Two:
    """Work of all sorts that computes, in as many workers as there are cores, or in twice as many.

    In the first case the step computes, too, so that it also takes longer than it would alone.
    Without the cause the same work takes half of what the step leaves of the cores.
    """
    computes = given.draw.random() < 0.5  # noqa: PLR2004 - a coin
    step_cores = 1.0 if computes else 0.0
    names = given.draw.sample(NAMES, 3)
    workers = given.cores if computes else 2 * given.cores
    busy = replace(base, workers=workers, busy_step=computes)
    left_s = max(given.cores - step_cores, 0.1) * base.step_s
    whole_s = (given.strength * given.cores - step_cores) * base.step_s
    return Two(_even(busy, names, _HEALTHY * left_s), _even(busy, names, whole_s))


def _even(recipe: Recipe, names: list[str], whole_s: float) -> Recipe:
    """So much CPU time for a batch, none of its sorts much more than the others."""
    each_s = whole_s / recipe.batch
    return replace(
        recipe,
        read_s=0.0,
        parse_s=0.3 * each_s,
        ops=tuple(Op(name, 0.13 * each_s) for name in names),
        collate_s=0.31 * whole_s,
    )


def oversubscription(base: Recipe, given: Given) -> Two:
    """A transform that computes in parallel, with threads for eight times the cores a worker.

    The step is as long as the machine asks for: the loader's own time for a batch, by the strength.

    Raises:
        UnsupportedError: on this machine so many threads hardly cost anything.
    """
    threads = min(8 * given.cores, _MOST_THREADS)
    loop = replace(
        with_work(replace(base, workers=min(base.workers, 4)), 0.0, given.draw),
        regions=given.draw.randint(20, 40),
    )
    alone_s = yardsticks.batch_s(loop)
    together_s = yardsticks.batch_s(replace(loop, threads=threads))
    if together_s * _SPARE < given.strength * alone_s:
        raise UnsupportedError(
            f"here a batch takes {seconds(alone_s)} with 1 thread a worker and "
            f"{seconds(together_s)} with {threads}: that is no loop that is "
            f"{given.strength:g} times as slow; take a smaller strength, or a quieter machine"
        )
    healthy = with_work(replace(loop, step_s=together_s / given.strength), 0.05, given.draw)
    return Two(healthy, replace(healthy, threads=threads))
