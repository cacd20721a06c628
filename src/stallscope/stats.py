"""How probable it is that a pattern is an accident, and how sure a share is.

Probabilities are exact or by formula. Intervals of shares of samples are resampled by windows, in
each process apart, because neighbouring samples look alike (Efron and Tibshirani, "An Introduction
to the Bootstrap", 1993, chapter 8), always with the same draws. A few windows make percentile
intervals too narrow; they are widened as Student's t is wider than the normal. Without enough
windows it is Wilson's interval (Journal of the American Statistical Association 22, 1927), which
takes samples as independent.
"""

from __future__ import annotations

import math
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray


LEVEL: Final = 0.95
"""Of every interval that the package shows."""
INTERVAL: Final = f"{LEVEL:.0%} interval"
"""What an interval is called."""
ENDS: Final = (round(50 * (1 - LEVEL), 6), round(50 * (1 + LEVEL), 6))
"""The percentiles that it ends at."""
_Z: Final = round(NormalDist().inv_cdf((1 + LEVEL) / 2), 6)
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


if TYPE_CHECKING:
    Floats = NDArray[np.float64]

RESAMPLED: Final = "windows"
WILSON: Final = "Wilson"
FEWEST_FREE: Final = 4
"""Windows beyond one for each process; with fewer there is nothing to resample."""
_DRAWS: Final = 1_000
_SEED: Final = 20_270_529


def intervals(hits: Floats, samples: Floats, processes: list[int]) -> tuple[Floats, Floats, str]:
    """The intervals of shares at `LEVEL`.

    Args:
        hits: of each window and function, shape (windows, functions).
        samples: of each window in all, shape (windows,).
        processes: of each window, a number for its process.

    Returns:
        The lower and upper ends, each of shape (functions,), between 0 and 1; how it was done.
    """
    strata = [np.flatnonzero(np.asarray(processes) == one) for one in dict.fromkeys(processes)]
    free = len(processes) - len(strata)
    count = float(samples.sum())
    shares = hits.sum(axis=0) / count
    if free < FEWEST_FREE:
        return *wilson(shares, count), WILSON
    rng = np.random.default_rng(_SEED)
    weights = np.zeros((_DRAWS, len(processes)))
    for rows in strata:
        weights[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), _DRAWS)
    drawn = (weights @ hits) / (weights @ samples)[:, None]
    low, high = np.percentile(drawn, ENDS, axis=0)
    wider = sqrt(len(processes) / free) * _t(free) / _Z
    low = np.clip(shares - (shares - low).clip(0) * wider, 0, 1)
    high = np.clip(shares + (high - shares).clip(0) * wider, 0, 1)
    # Where all windows say the same, resampling them says nothing
    same = high - low <= 0
    alike = _independent(shares[~same], (high - low)[~same], count, len(processes))
    low_all, high_all = wilson(shares, alike)
    return np.where(same, low_all, low), np.where(same, high_all, high), RESAMPLED


def _independent(shares: Floats, widths: Floats, count: float, windows: int) -> float:
    """As how many independent samples these are, judged by the intervals of other shares."""
    inside = (shares > 0) & (shares < 1)
    if not inside.any():
        return windows
    shares, errors = shares[inside], widths[inside] / 2 / _Z
    return float(np.clip((shares * (1 - shares) / errors**2).min(), windows, max(count, windows)))


def wilson(shares: Floats, count: float) -> tuple[Floats, Floats]:
    """Wilson's interval of shares of so many independent samples."""
    middle = shares + _Z**2 / (2 * count)
    reach = _Z * np.sqrt(shares * (1 - shares) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return ((middle - reach) / scale).clip(0, 1), ((middle + reach) / scale).clip(0, 1)


def _t(free: int) -> float:
    """Student's t at the upper end, by Cornish and Fisher (Abramowitz and Stegun 26.7.5)."""
    return (
        _Z
        + (_Z**3 + _Z) / (4 * free)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2)
        + (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * free**3)
    )


_INTERVAL_DRAWS: Final = 1000
_INTERVAL_SEED: Final = 20_260_101
_FEWEST_BLOCKS: Final = 4


def stall_interval(steps: pl.DataFrame, stalls: pl.DataFrame, block: int) -> tuple[float, float]:
    """The interval of the share of stalls, by resampling blocks of steps.

    (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 8.) From 0 to 1 where
    there are too few blocks to tell.

    Args:
        steps: columns of `run.STEPS`.
        stalls: columns of `analyze.stalls.exposed.STALLS`, of these steps.
        block: steps that depend on each other: a round of the workers.
    """
    known = steps.drop_nulls(["wait_s", "start_ns"]).join(
        stalls.select("rank", "step", "stall_s"), on=["rank", "step"], how="left"
    )
    blocks = known.height // max(block, 1)
    if blocks < _FEWEST_BLOCKS:
        return 0.0, 1.0
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    pairs = known.select(pl.col("stall_s").fill_null(0.0), period_s.alias("period_s")).to_numpy()
    sums = pairs[: blocks * block].reshape(blocks, block, 2).sum(axis=1)
    drawn = np.random.default_rng(_INTERVAL_SEED).integers(blocks, size=(_INTERVAL_DRAWS, blocks))
    totals = sums[drawn].sum(axis=1)
    shares = totals[:, 0] / np.maximum(totals[:, 1], 1e-12)
    low, high = np.percentile(shares, ENDS)
    return float(low), float(min(high, 1.0))
