"""Rule of all comparisons: a factor, its interval, and one of four words.

Loops are compared in pairs of neighbouring blocks, and the logarithms of their ratios are averaged.
Blocks of one start share memory placement and cores, so two starts of the same loader differ by
more than their blocks show. Their usual difference is known (`START_SPREAD`). The observed spread
of a few starts is added to it, as in an inverse-gamma prior of a variance (Gelman et al., "Bayesian
Data Analysis", 3rd edition, 2.6). So even a single start gets an interval.

Samples are compared in pairs, and their ratio of sums is resampled. Pairs of several processes are
compared like starts of loops: large blocks of memory can cost one process twice as much as another.

A comparison is tested after each pair, and ends when it is settled. Repeated tests find more false
differences, so a difference is claimed at a higher level (by `CHANCE`) than that of the shown
interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from scipy.special import stdtrit

from stallscope.columns import Column, Schema
from stallscope.model.thresholds import CHANCE
from stallscope.stats import DRAWS, LEVEL, SEED
from stallscope.units import duration, speedup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FASTER: Final = "faster"
SLOWER: Final = "slower"
SAME: Final = "no significant difference"
"""Words for a difference that may be chance."""
OPEN: Final = "not settled"

ALIKE: Final = 0.05
"""Largest distance from 1 of a factor that is no difference: starts differ by as much."""
START_SPREAD: Final = 0.03
"""Standard deviation of the logarithm of the ratio of two starts of the same loader. Set by hand:
five pairs of starts on two cores gave 0.97, 0.96, 1.07, 1.01 and 1.01."""
START_DOF, _UNSURE_DOF = 4, 1
"""Weight of `START_SPREAD`, in observed starts; the second where each start has one block, so that
the noise of blocks is unknown. On a virtual machine with shared cores, starts differed by 9 to 12%,
and a weight of 8 led to three false claims (`tests/benchmarks/power.py`)."""
SAMPLES_SPREAD: Final = 0.01
"""Standard deviation of the logarithm of a factor of samples beyond that of its pairs, from memory
placement and time of day."""
SAMPLES_SHARE: Final = 0.04
"""The same, as a share of the logarithm: where the parts of a sample vary from run to run, a ratio
near 1 hardly does. Set by hand: nine runs of a comparison of 1.43x differed by 2.0%, their pairs
predicted 1.0% (`tests/benchmarks/power.py`)."""
LITTLE: Final = 1.15
"""A speedup below this is seldom worth a change: an interval that ends there is an answer."""
BLOCKS: Final = Schema(
    "One row per slice of a variant's steady state; those of one start and sweep are adjacent.",
    Column("variant", pl.Int32),
    Column("start", pl.Int32, "start of all variants"),
    Column("sweep", pl.Int32, "sweep over all variants"),
    Column("seconds", pl.Float64, is_divisor=True),
    Column("step_s", pl.Float64, "time in the step; null without a step"),
    Column("samples", pl.Int32, is_divisor=True),
    Column("cpu_s", pl.Float64, "CPU time of this process and the variant's workers"),
    Column("others_share", pl.Float64, "share of the cores that other processes used"),
    nullable="step_s",
)

AS_IT_IS: Final = 0
"""Baseline of all variants."""
CI: Final = f"{LEVEL:.0%} CI"
"""Name of an interval in sentences."""
AS_FAST: Final = 0.97
"""Least ratio of two rates that count as equally fast: then the simpler one is recommended."""
_FARTHEST: Final = math.log(1e3)
"""Largest logarithm of an interval's end over its value."""


class Factor(NamedTuple):
    """Speedup of one variant over another, and its word."""

    factor: float
    low: float | None
    """Ends of the 95% interval; None with less than two pairs."""
    high: float | None
    says: str
    """One of the four words."""

    @property
    def is_settled(self) -> bool:
        """True where more pairs would hardly change the word."""
        return self.says != OPEN

    @property
    def half_width(self) -> float:
        """Relative half-width of the interval; `inf` where there is none."""
        return Rate(self.factor, self.low, self.high).half_width


UNKNOWN: Final = Factor(1.0, None, None, OPEN)


def of_starts(starts: Iterable[Sequence[float]]) -> Factor:
    """Compare loops by the logarithms of a speedup in pairs of neighbouring blocks, by start."""
    groups = [np.asarray(logs, float) for logs in starts if len(logs)]
    if not groups:
        return UNKNOWN
    value, spread, dof = _centre(groups)
    if spread is None:
        return Factor(math.exp(value), None, None, OPEN)
    return _judged(value, spread, dof)


def _centre(groups: list[Any]) -> tuple[float, float | None, float]:
    """Return mean over starts, standard error (None: a single block) and degrees of freedom."""
    means = np.array([group.mean() for group in groups])
    value, count = float(means.mean()), len(groups)
    inner = sum(map(len, groups)) - count
    if not inner and count < 2:  # noqa: PLR2004 - a single one has no spread
        return value, None, 0
    variance, usual = START_SPREAD**2, float(START_DOF if inner else _UNSURE_DOF)
    if inner:  # degrees of freedom of a sum of variances, after Satterthwaite (1946)
        inner_squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        noise = inner_squares / inner * float(np.mean([1 / len(group) for group in groups]))
        usual = (variance + noise) ** 2 / (variance**2 / START_DOF + noise**2 / inner)
        variance += noise
    seen = float(((means - value) ** 2).sum())
    dof = usual + count - 1
    return value, math.sqrt((usual * variance + seen) / dof / count), dof


def _reach(error: float, dof: float, level: float = LEVEL) -> float:
    """Return the half-width of an interval, by Student's t."""
    return float(stdtrit(dof, (1 + level) / 2)) * error


def _judged(value: float, error: float, dof: float) -> Factor:
    reach, claimed = _reach(error, dof), _reach(error, dof, 1 - CHANCE)
    low, high = (math.exp(value + side * min(reach, _FARTHEST)) for side in (-1, 1))
    says = OPEN
    if low >= 1 - ALIKE and high <= 1 + ALIKE:
        says = SAME
    elif abs(value) > claimed and abs(value) > math.log1p(ALIKE) / 2:
        says = FASTER if value > 0 else SLOWER
    return Factor(math.exp(value), low, high, says)


def of_samples(
    slower_s: Sequence[float], faster_s: Sequence[float], starts: Sequence[int] | None = None
) -> Factor:
    """Compare the costs of samples: seconds of each by the first variant, and by the second.

    `starts` tells in which start of a process each pair was measured; None: all in one.
    """
    pairs = np.column_stack([slower_s, faster_s])
    total = len(pairs)
    if not total or not pairs.sum(axis=0).all():
        return UNKNOWN
    if starts is not None and len(set(starts)) > 1:
        parts = (pairs[np.equal(starts, start)].sum(axis=0) for start in sorted(set(starts)))
        return of_starts([math.log(slower / faster)] for slower, faster in parts)
    value = math.log(pairs[:, 0].sum() / pairs[:, 1].sum())
    if total < 2:  # noqa: PLR2004 - a single one has no spread
        return Factor(math.exp(value), None, None, OPEN)
    weights = np.random.default_rng(SEED).multinomial(total, np.full(total, 1 / total), DRAWS)
    sums = np.maximum(weights @ pairs, 1e-12)
    drawn = float(np.log(sums[:, 0] / sums[:, 1]).std(ddof=1)) * math.sqrt(total / (total - 1))
    return _judged(value, math.hypot(drawn, _known_spread(value)), total - 1)


def _known_spread(value: float) -> float:
    return math.hypot(SAMPLES_SPREAD, SAMPLES_SHARE * value)


def known_reach(factor: float) -> float:
    """Return the half-width of a factor's interval after infinitely many pairs of samples."""
    return _reach(_known_spread(math.log(factor)), math.inf)


def of_rates(faster: Rate, slower: Rate) -> Factor | None:
    """Compare two rates whose intervals do not overlap; None where they do."""
    if None in (faster.low, faster.high, slower.low, slower.high):
        return None
    low, high = faster.low / slower.high, faster.high / slower.low  # type: ignore[operator]
    if low < 1 + ALIKE and high > 1 / (1 + ALIKE):
        return None
    says = FASTER if low > 1 else SLOWER
    return Factor(faster.value / slower.value, low, high, says)


def gain_text(factor: float, low: float | None, high: float | None, what: str = "") -> str:
    """Return a speedup with its interval: '1.90× the throughput (95% CI 1.81-2.00)'."""
    if low is None or high is None:
        return f"{speedup(factor)} {what}".strip()
    # As many digits as the interval has: 1.26 as "1.3" would lie outside of 1.23 to 1.29
    return f"{factor:.2f}× {what}".strip() + f" ({CI} {low:.2f}-{high:.2f})"


def open_title(
    kind: str, best: str, factor: Factor, highs: Iterable[float | None], took_s: float
) -> str:
    """Return the title where nothing tried is faster for sure: how much it can gain at most.

    `kind` is a noun for what was tried, `highs` the upper ends of all intervals (None: without).
    """
    gain = gain_text(*factor[:3])
    highest = max(math.inf if high is None else high for high in highs)
    if highest < LITTLE:
        return f"No {kind} gains more than {highest:.2f}× (best: {best}, {gain})"
    budget = duration(budget_for(factor, took_s))
    if factor.factor <= 1:
        return f"No {kind} was faster (best: {best}, {gain}); to be sure set budget_s to {budget}"
    return f"Not settled: {best} gives {gain}; set budget_s to {budget}"


def budget_for(factor: Factor, used_s: float) -> float:
    """Return the expected seconds in all that settle a comparison that is open so far.

    The width of an interval falls with the square root of the number of measurements.
    """
    if factor.low is None or factor.high is None:
        return 3 * used_s
    reach = math.log(factor.high / factor.low) / 2
    wanted = max(abs(math.log(factor.factor)) / 1.5, ALIKE)
    return used_s * min(max((reach / wanted) ** 2, 1.5), 20.0)


@dataclass(frozen=True)
class Rate:
    """Value with the ends of its 95% interval; None where unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float:
        """Relative half-width of the interval; `inf` where there is none."""
        if self.low is None or self.high is None:
            return math.inf
        return max(self.high / self.value, self.value / self.low) - 1

    def moved_to(self, value: float) -> Rate:
        """Return the same relative interval around another value."""
        scale = value / self.value
        ends = (None if end is None else end * scale for end in (self.low, self.high))
        return Rate(value, *ends)


def mean_of(values: Sequence[float]) -> Rate:
    """Return the mean of independent values."""
    mean = float(np.mean(values))
    if len(values) < 2:  # noqa: PLR2004 - a single one has no spread
        return Rate(mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = _reach(error, len(values) - 1)
    return Rate(mean, max(mean - reach, 0.0), mean + reach)


def rate_of(starts: Iterable[Sequence[tuple[float, float]]]) -> Rate | None:
    """Return a rate per second, from amount and seconds of blocks, by start; None: no block."""
    groups = [np.asarray(blocks, float) for blocks in starts if len(blocks)]
    if not groups:
        return None
    amount, seconds = np.concatenate(groups).sum(axis=0)
    rate = float(amount / seconds)
    _, error, dof = _centre([np.log(blocks[:, 0] / blocks[:, 1]) for blocks in groups])
    if error is None:
        return Rate(rate)
    reach = min(_reach(error, dof), _FARTHEST)
    return Rate(rate, rate * math.exp(-reach), rate * math.exp(reach))


# ---- comparison of blocks ----------------------------------------------------------------------


class LoopBlock(NamedTuple):
    """Slice of a variant's steady state; columns of `BLOCKS`."""

    variant: int
    start: int
    sweep: int
    seconds: float
    step_s: float | None
    samples: int
    cpu_s: float
    others_share: float


def compared(blocks: Iterable[LoopBlock], variant: int, base: int = AS_IT_IS) -> Factor:
    """Return the speedup of a variant over a baseline, from neighbouring blocks of both."""
    blocks = list(blocks)
    logs = {
        (block.variant, block.start, block.sweep): math.log(block.samples / block.seconds)
        for block in blocks
    }
    starts: dict[int, list[float]] = {}
    for (number, start, sweep), log in logs.items():
        if number == variant and (base, start, sweep) in logs:
            starts.setdefault(start, []).append(log - logs[base, start, sweep])
    factor = of_starts(starts.values())
    mine, theirs = rate(blocks, variant), rate(blocks, base)
    if factor.says == OPEN and mine is not None and theirs is not None:
        return of_rates(mine, theirs) or factor
    return factor


def rate(blocks: Iterable[LoopBlock], variant: int) -> Rate | None:
    """Return samples per second of a variant; None where it was not measured."""
    starts: dict[int, list[tuple[float, float]]] = {}
    for block in blocks:
        if block.variant == variant:
            starts.setdefault(block.start, []).append((block.samples, block.seconds))
    return rate_of(starts.values())


def rates(blocks: Iterable[LoopBlock]) -> dict[int, Rate]:
    """Return samples per second of each measured variant.

    The rate of a variant is its factor times the baseline's rate, so that a page shows a factor
    that is the ratio of its rates.
    """
    blocks = list(blocks)
    variants = sorted({block.variant for block in blocks})
    rates_ = {variant: own for variant in variants if (own := rate(blocks, variant))}
    now = rates_.get(AS_IT_IS)
    for variant in variants:
        gain = compared(blocks, variant)
        if now and variant != AS_IT_IS and gain.low is not None:
            rates_[variant] = rates_[variant].moved_to(now.value * gain.factor)
    return rates_


def blocks_of(table: pl.DataFrame) -> list[LoopBlock]:
    """Return the rows of a table with the columns of `BLOCKS`."""
    return [LoopBlock(*row) for row in table.rows()]
