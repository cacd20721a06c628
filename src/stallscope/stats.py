"""Statistics: p-values of patterns, and confidence intervals of shares.

Neighbouring samples and steps look alike, so blocks of them are resampled, following the structure
of the data (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 8). Every draw
has the same seed: the same run always gets the same answer.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

# Here, not in the functions: forked children run them, and each would import scipy again.
# `scipy.stats` takes four times as long and 70 MB, so the functions below replace it.
from scipy.special import betaln, rel_entr, stdtrit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


LEVEL: Final = 0.95
"""Confidence level of every interval."""
INTERVAL: Final = f"{LEVEL:.0%} interval"
"""Words for an interval."""
LEAST: Final = 1e-12
"""Smallest p-value: a test's assumptions about a machine are never that certain."""
WINDOWS: Final = "windows"
WILSON: Final = "Wilson"
"""Methods of an interval, see `share_intervals`."""

_UPPER: Final = (1 + LEVEL) / 2
ENDS: Final = (round(100 * (1 - _UPPER), 6), round(100 * _UPPER, 6))
"""Percentiles at the ends of an interval."""
_Z: Final = round(NormalDist().inv_cdf(_UPPER), 6)
DRAWS: Final = 2_000
"""Resamplings for an interval."""
SEED: Final = 20_240_229
"""Seed of our own draws: the same measurements give the same result."""
FEWEST: Final = 4
"""Blocks, or windows beyond the first of each process, that resampling needs."""


class Estimate(NamedTuple):
    """Value with the ends of its interval."""

    value: float
    low: float
    high: float

    def wider(self, down: float, up: float) -> Estimate:
        """Add independent relative errors to the interval; `down` is negative or zero."""
        low = self.value * math.hypot(1 - self.low / self.value, down)
        high = self.value * math.hypot(self.high / self.value - 1, up)
        return Estimate(self.value, max(self.value - low, 0.0), self.value + high)

    def over(self, base: Estimate) -> Estimate:
        """Return the ratio to an independent estimate."""
        ratio = self.value / base.value
        down = math.hypot(1 - self.low / self.value, base.high / base.value - 1)
        up = math.hypot(self.high / self.value - 1, 1 - base.low / base.value)
        return Estimate(ratio, ratio * max(1 - down, 0.0), ratio * (1 + up))


def hypergeometric_tail(*, total: int, marked: int, drawn: int, both: int) -> float:
    """Return the chance that at least `both` of the drawn are marked, under independence.

    The exact tail of the hypergeometric distribution (Fisher's exact test, one-sided).
    """
    overlaps = np.arange(max(both, marked + drawn - total), min(marked, drawn) + 1)
    logs = (
        _log_choose(marked, overlaps)
        + _log_choose(total - marked, drawn - overlaps)
        - _log_choose(total, drawn)
    )
    return _probability(float(np.exp(logs).sum()))


def log_binomial_bound(hits: np.ndarray, tries: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return an upper bound of the log of the chance of at least so many hits.

    The bound of Chernoff and Hoeffding (W. Hoeffding, "Probability inequalities for sums of bounded
    random variables", 1963, theorem 1). Zero (a chance of 1) unless the hits exceed the expected
    number, by the chance (`share`) of a hit per try.
    """
    seen = hits / np.maximum(tries, 1)
    expected = np.clip(share, 1e-12, 1 - 1e-12)
    distance = rel_entr(seen, expected) + rel_entr(1 - seen, 1 - expected)
    return np.where(seen > expected, -tries * distance, 0.0)


def rank_sum_tail(higher: np.ndarray, lower: np.ndarray) -> float:
    """Return the chance that `higher` exceeds `lower` this much at random.

    Mann and Whitney's test, one-sided, by its normal approximation with correction for ties and
    continuity. 1 if either is empty.
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


def _log_choose(of: int, chosen: NDArray[np.int64] | int) -> Any:
    return -math.log(of + 1) - betaln(of - chosen + 1, chosen + 1)


def _probability(value: float) -> float:
    return min(max(value, LEAST), 1.0)


def stall_interval(steps: pl.DataFrame, stalls: pl.DataFrame, block: int) -> tuple[float, float]:
    """Return the interval of the stall share; 0 to 1 with too few blocks.

    `block` is the number of steps that depend on each other: a round of the workers.
    """
    timed = steps.drop_nulls(["wait_s", "start_ns"]).join(
        stalls.select("rank", "step", "stall_s"), on=["rank", "step"], how="left"
    )
    blocks = timed.height // max(block, 1)
    if blocks < FEWEST:
        return 0.0, 1.0
    period_s = pl.sum_horizontal("wait_s", "restart_s", "h2d_s", "step_s", "other_s")
    pairs = timed.select(pl.col("stall_s").fill_null(0.0), period_s.alias("period_s")).to_numpy()
    sums = _resampled([pairs[: blocks * block].reshape(blocks, block, 2).sum(axis=1)])
    low, high = np.percentile(sums[:, 0] / np.maximum(sums[:, 1], 1e-12), ENDS)
    return float(low), min(float(high), 1.0)


def share_intervals(
    hits: Floats, samples: Floats, processes: Sequence[int]
) -> tuple[Floats, Floats, str]:
    """Return the intervals of shares of samples that were taken in windows of time.

    Windows are resampled, separately for each process. Few windows make percentile intervals too
    narrow; they are widened by the ratio of Student's t to the normal. With too few windows,
    Wilson's interval replaces them, which assumes independent samples.

    Args:
        hits: samples per window and function, shape (windows, functions).
        samples: all samples per window, shape (windows,).
        processes: number of the process per window.

    Returns:
        Lower and upper ends of each function, between 0 and 1; the method.
    """
    which = np.asarray(processes)
    groups = [which == process for process in dict.fromkeys(processes)]
    free = len(which) - len(groups)
    count = float(samples.sum())
    shares = hits.sum(axis=0) / count
    if free < FEWEST:
        return *wilson(shares, count), WILSON
    columns = np.column_stack([samples, hits])
    sums = _resampled([columns[rows] for rows in groups])
    low, high = np.percentile(sums[:, 1:] / sums[:, :1], ENDS, axis=0)
    wider = math.sqrt(len(which) / free) * t_quantile(free) / _Z
    low = np.clip(shares - (shares - low).clip(0) * wider, 0, 1)
    high = np.clip(shares + (high - shares).clip(0) * wider, 0, 1)
    # Resampling equal windows gives an interval of width 0: there, Wilson's interval is of the
    # effective number of independent samples, from the other shares' intervals
    same, windows = high - low <= 0, len(which)
    inside = ~same & (shares > 0) & (shares < 1)
    errors = (high - low)[inside] / 2 / _Z
    alike = (shares[inside] * (1 - shares[inside]) / errors**2).min(initial=max(count, windows))
    low_all, high_all = wilson(shares, max(alike, windows) if inside.any() else windows)
    return np.where(same, low_all, low), np.where(same, high_all, high), WINDOWS


def wilson(shares: Floats, count: float) -> tuple[Floats, Floats]:
    """Return Wilson's interval of shares of `count` independent samples.

    (Journal of the American Statistical Association 22, 1927.)
    """
    middle = shares + _Z**2 / (2 * count)
    reach = _Z * np.sqrt(shares * (1 - shares) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return ((middle - reach) / scale).clip(0, 1), ((middle + reach) / scale).clip(0, 1)


def t_quantile(free: int) -> float:
    """Return Student's t at the upper end of an interval, for `free` degrees of freedom."""
    return float(stdtrit(free, _UPPER))


def _resampled(groups: Sequence[Floats]) -> Floats:
    """Return the sums of all rows in each draw, shape (draws, columns), resampled in each group."""
    rng = np.random.default_rng(SEED)
    drawn: list[Floats] = [
        rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=DRAWS) @ rows
        for rows in groups
    ]
    return sum(drawn[1:], drawn[0])
