"""Why one rank's loop stands still: what explains most first, then what is left again.

What happened at the very steps (a slow sample, a garbage collection) is a better explanation than a
rhythm alone, and wins where it explains nearly as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.analyze.patterns.causes import Found, explain
from stallscope.analyze.patterns.recurring import (
    constant,
    irregular,
    recurring_steps,
    recurring_waits,
)
from stallscope.analyze.patterns.step_causes import parts_s, step_causes
from stallscope.analyze.patterns.unexplained import SPIKE, Unexplained
from stallscope.analyze.patterns.wait_causes import wait_causes

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.analyze.patterns.causes import Cause
    from stallscope.analyze.patterns.evidence import Evidence
    from stallscope.analyze.patterns.standstill import Loop

    Recurring = Callable[[Unexplained, int], list[Found]]

NEARLY: Final = 0.8
"""A more specific pattern is preferred when it explains this share of what the other one does."""
MOST: Final = 12
"""More patterns are not looked for on one side of one rank."""


def why_it_waits(loop: Loop, evidence: Evidence, ranks: int) -> list[Found]:
    """Why the loop waits for data.

    Args:
        loop: the steps of one rank.
        evidence: what is known about them.
        ranks: how many ranks are looked at, that share the doubt.
    """
    causes = wait_causes(loop, evidence)
    recurring: Recurring = lambda left, tests: recurring_waits(loop, left, tests)  # noqa: E731
    found, left = _one_by_one(Unexplained.of(loop.stall_s), causes, recurring, ranks)
    always = constant(left)
    if always is not None:
        found, left = [*found, always], left.without(always.explained)
    return found + irregular(left, loop.still_s, "stall")


def why_steps_are_long(loop: Loop, evidence: Evidence, ranks: int) -> list[Found]:
    """Why some steps take far longer than the others.

    Args:
        loop: the steps of one rank.
        evidence: what is known about them.
        ranks: how many ranks are looked at, that share the doubt.
    """
    parts = parts_s(loop, evidence.side_spans)
    causes = step_causes(loop, parts)
    recurring: Recurring = lambda left, tests: recurring_steps(loop, parts, left, tests)  # noqa: E731
    found, left = _one_by_one(Unexplained.of(loop.long_s), causes, recurring, ranks)
    return found + irregular(left, loop.still_s, "long step")


def _one_by_one(
    left: Unexplained, causes: list[Cause], recurring: Recurring, ranks: int
) -> tuple[list[Found], Unexplained]:
    """Take what explains most, look at the rest again, until nothing explains any more for sure."""
    possible = [cause for cause in causes if np.count_nonzero(cause.marked) >= cause.fewest]
    tests = ranks * (len({cause.code for cause in possible}) + 1)
    found: list[Found] = []
    while len(found) < MOST:
        tried = [explain(cause, left, tests) for cause in possible]
        candidates = [one for one in tried if one is not None] + recurring(left, tests)
        if not candidates:
            break
        found.append(_best(candidates, left.seconds))
        left = left.without(found[-1].explained)
    return found, left


def _best(candidates: list[Found], seconds: np.ndarray) -> Found:
    """The one to take first.

    It is the one that explains most, unless the times of another one stand far out of those that
    it names: out of a rhythm of small waits, the slow samples. A more specific one, which comes
    earlier in the list, is preferred where it explains nearly all of the same.
    """
    most = max(candidates, key=lambda one: float(seconds[one.explained].sum()))
    outside = [
        one
        for one in candidates
        if (one.code, one.subject) != (most.code, most.subject)
        and _stands_out(one.explained, most.named, seconds)
    ]
    if outside:
        return _best(outside, seconds)
    enough_s = NEARLY * float(seconds[most.explained].sum())
    return next(
        one
        for one in candidates
        if float(seconds[one.explained & most.explained].sum()) >= enough_s
    )


def _stands_out(high: np.ndarray, low: np.ndarray, seconds: np.ndarray) -> bool:
    """Whether one pattern's times are spikes beside those of another one."""
    rest = low & ~high
    return bool(rest.any() and np.median(seconds[high]) >= SPIKE * np.median(seconds[rest]))
