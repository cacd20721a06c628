"""How probable it is that a pattern is an accident.

Each function answers for one way of being wrong; none of them draws random numbers, so the same run
always gets the same answer.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

LEAST: Final = 1e-12
"""No chance is given as smaller: what a test assumes about a machine is never that certain."""


def hypergeometric_tail(*, total: int, marked: int, drawn: int, both: int) -> float:
    """The chance that so many of the drawn are marked, when neither has to do with the other.

    The exact tail of the hypergeometric distribution (Fisher's exact test, one-sided).

    Args:
        total: how many there are.
        marked: how many of all are marked.
        drawn: how many of all are drawn.
        both: how many of the drawn are marked; this many or more is the tail.
    """
    most = min(marked, drawn)
    if both > most:
        return LEAST
    overlaps = np.arange(max(both, marked + drawn - total), most + 1)
    logs = (
        _log_choose(marked, overlaps)
        + _log_choose(total - marked, drawn - overlaps)
        - _log_choose(total, np.array([drawn]))
    )
    return _probability(float(np.exp(logs).sum()))


def log_binomial_bound(hits: np.ndarray, tries: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Logarithm of the chance of so many hits or more; never too small, exact for hits only.

    The bound of Chernoff and Hoeffding (W. Hoeffding, "Probability inequalities for sums of bounded
    random variables", 1963, theorem 1). Zero (a chance of one) where the hits are not more than
    expected.

    Args:
        hits: how many of the tries were hits.
        tries: how many tries.
        share: the chance that one try is a hit, between 0 and 1.
    """
    seen = hits / np.maximum(tries, 1)
    expected = np.clip(share, 1e-12, 1 - 1e-12)
    distance = _times_log(seen, seen / expected) + _times_log(1 - seen, (1 - seen) / (1 - expected))
    return np.where(seen > expected, -tries * distance, 0.0)


def rank_sum_tail(higher: np.ndarray, lower: np.ndarray) -> float:
    """The chance that values of one kind come out as much higher than the others as these.

    Mann and Whitney's test, one-sided, by its normal approximation with correction for ties and
    continuity. One where either has no values.
    """
    values = np.concatenate([higher, lower])
    if not higher.size or not lower.size:
        return 1.0
    _, kind, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[kind]
    pairs = higher.size * lower.size
    wins = ranks[: higher.size].sum() - higher.size * (higher.size + 1) / 2
    ties = (counts**3 - counts).sum() / max(values.size * (values.size - 1), 1)
    spread = math.sqrt(pairs / 12 * (values.size + 1 - ties))
    if not spread:
        return 1.0
    return _probability(math.erfc((wins - pairs / 2 - 0.5) / spread / math.sqrt(2)) / 2)


def _log_choose(of: int, chosen: np.ndarray) -> np.ndarray:
    """Logarithm of the number of ways to choose."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, of + 1)))])
    ways: np.ndarray = logs[of] - logs[chosen] - logs[of - chosen]
    return ways


def _times_log(factor: np.ndarray, of: np.ndarray) -> np.ndarray:
    """`factor * log(of)`; zero where the factor is zero."""
    return factor * np.log(np.where(factor > 0, of, 1.0))


def _probability(value: float) -> float:
    return min(max(value, LEAST), 1.0)
