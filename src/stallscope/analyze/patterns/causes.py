"""Things that happened at some steps, tested for being the reason why the loop stood still there.

That one thing comes with another says little where both are frequent, so it is asked how probable
so many coincidences are when neither has to do with the other, and what happened must have taken
long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.analyze.patterns.chance import hypergeometric_tail
from stallscope.analyze.patterns.rhythm import rhythm
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.analyze.patterns.unexplained import Unexplained

SURE: Final = 0.01
"""What is more probable than this to be an accident is not claimed."""
LIFT: Final = 2.0
"""Where a cause is at work, standing still is so many times as frequent as elsewhere; so most of
it is no coincidence."""
ENOUGH: Final = 0.5
"""A cause took at least this share of the time for which the loop stood still."""
MOSTLY: Final = 0.8
"""This share of the steps has a rhythm when all are said to."""
THROUGHOUT: Final = 0.5
"""A rhythm that fills less of the run is there only at times."""


@dataclass(frozen=True, eq=False)
class Found:
    """Steps at which the loop stood still, and why."""

    code: str
    """Kind of pattern."""
    subject: str
    """What tells it from others of its kind: a worker, the name of a part, a period."""
    title: str
    """One sentence with numbers."""
    explained: np.ndarray
    """Of each step, whether this is why the loop stood still there."""
    named: np.ndarray
    """Of each step, whether it is one of those that the title speaks of; the others that are
    explained follow these."""
    chance: float | None
    """Probability that this is an accident; None where nothing is claimed."""
    period: int | None = None
    """Steps from one time to the next; None where there is no rhythm."""


@dataclass(frozen=True, eq=False)
class Stops:
    """The steps that a title speaks of."""

    named: np.ndarray
    """Of each step, whether the title speaks of it."""
    seconds: np.ndarray
    """For how long the loop stood still at each step."""
    period: int | None
    """Steps from one time to the next."""

    @property
    def count(self) -> int:
        """How many steps."""
        return int(np.count_nonzero(self.named))

    @property
    def typical(self) -> str:
        """For how long the loop stood still there (median), in words."""
        return self.median(self.seconds)

    def median(self, values: np.ndarray) -> str:
        """Median over these steps, in words."""
        return seconds(float(np.median(values[self.named])))

    def subject(self, one: str, several: str) -> str:
        """As in "Every 4th step waits" or "3 steps wait".

        Args:
            one: the verb for one step.
            several: the verb for several.
        """
        if self.period is None:
            return f"{count(self.count, 'step')} {one if self.count == 1 else several}"
        at_times = self.count * self.period < THROUGHOUT * self.named.size
        every = f"very {ordinal(self.period)} step {one}"
        return f"At times e{every}" if at_times else f"E{every}"


@dataclass(frozen=True, eq=False)
class Cause:
    """Something that happened at some steps; arrays with one value a step."""

    code: str
    """Kind of pattern."""
    marked: np.ndarray
    """The steps at which it happened."""
    title: Callable[[Stops], str]
    """One sentence about the steps that it explains."""
    known: np.ndarray | None = None
    """The steps of which it is known whether it happened; None: all."""
    enough_s: np.ndarray | None = None
    """For how long it can have held up the loop at each step; None: not known."""
    enough: float = ENOUGH
    """The share of a stop that it must be able to account for."""
    subject: str = ""
    """What tells it from others of its kind."""
    fewest: int = 3
    """It explains at least so many steps, or nothing."""
    reach: int = 1
    """Standing still within so many steps from there belongs to it, when it is not longer."""
    tried: int = 1
    """Of how many of its kind it is the best; they share the doubt."""
    doubt: float = 0.0
    """Chance of being wrong that is there before any step is looked at."""
    measured: bool = False
    """It was measured only where the loop stood still, so that only `doubt` speaks."""

    def chance_at(self, still: np.ndarray, free: np.ndarray) -> float:
        """The chance that it has nothing to do with standing still.

        Args:
            still: the steps at which the loop stood still.
            free: the steps that nothing else explains.
        """
        if self.measured:
            return 0.0
        known = free if self.known is None else free & self.known
        total, marked, drawn, both = (
            int(np.count_nonzero(mask & known))
            for mask in (known, self.marked, still, self.marked & still)
        )
        if both * (total - marked) < LIFT * (drawn - both) * marked:
            return 1.0
        return hypergeometric_tail(total=total, marked=marked, drawn=drawn, both=both)

    def explained_of(self, still: np.ndarray, left: Unexplained) -> np.ndarray:
        """The steps that it explains, of those at which the loop stood still."""
        here = still & self.marked
        if self.enough_s is not None:
            here = here & (self.enough_s >= self.enough * left.seconds)
        return left.with_rounds(here, self.reach)


def explain(cause: Cause, left: Unexplained, tests: int) -> Found | None:
    """What a cause explains of the rest; None where it explains nothing for sure.

    Args:
        cause: what happened.
        left: where the loop stood still, as far as nothing else explains it.
        tests: how many causes are tried, that share the doubt.
    """
    levels = left.levels()
    candidates = []
    for still in levels:
        alone = cause.chance_at(still, left.free) * len(levels) * cause.tried + cause.doubt
        explained = cause.explained_of(still, left)
        enough = np.count_nonzero(still & cause.marked & explained) >= cause.fewest
        if enough and alone * tests < SURE:
            candidates.append((float(left.seconds[explained].sum()), alone * tests, explained))
    if not candidates:
        return None
    _, chance, explained = max(candidates, key=lambda found: found[0])
    period = period_of(explained, left, chance)
    named = explained & cause.marked
    title = cause.title(Stops(named, left.seconds, period))
    return Found(cause.code, cause.subject, title, explained, named, chance, period)


def period_of(explained: np.ndarray, left: Unexplained, chance: float) -> int | None:
    """The rhythm of these steps, if they have one for sure."""
    found = rhythm(explained, left.free)
    if found is None or found.chance + chance >= SURE:
        return None
    return found.period if found.starts.size >= MOSTLY * np.count_nonzero(explained) else None


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number // 10 % 10 == 1
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"
