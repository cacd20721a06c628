"""Paired comparisons on a machine that others use too.

Whatever is compared is measured side by side: in every block each condition does the same work
once, in a new random order. A block gives one ratio per condition, so a slow spell of the machine
slows both sides of a ratio. The ratios' centre is Hodges and Lehmann's (the median of the means of
all pairs), its interval is that of Wilcoxon's signed-rank test; both are taken of the logarithms.
Outliers do not move them, and no shape of the noise is assumed but its symmetry.

Hollander and Wolfe, "Nonparametric Statistical Methods", sections 3.1 to 3.3.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tqdm import tqdm

T = TypeVar("T")

NORMAL_95 = 1.959964
"""Standard deviations on either side that hold 95% of a normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A centre and its 95% interval."""

    centre: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def interval(self, form: str = ".3f") -> str:
        """The interval as text, each end in a format."""
        if not math.isfinite(self.high):
            return "too few blocks"
        return f"[{self.low:{form}}, {self.high:{form}}]"


def in_turns(
    measures: Mapping[str, Callable[[], T]], blocks: int, *, named: str = "comparing"
) -> dict[str, list[T]]:
    """Measure each under its name once a block, in a new random order.

    Args:
        measures: each gives one measurement.
        blocks: how many there are.
        named: the progress bar's text.
    """
    taken: dict[str, list[T]] = {name: [] for name in measures}
    for _ in tqdm(range(blocks), desc=named, unit="block", leave=False):
        for name in random.sample(list(measures), len(measures)):
            taken[name].append(measures[name]())
    return taken


def centre(values: np.ndarray) -> Estimate:
    """Hodges and Lehmann's centre of the values, with its signed-rank interval.

    Args:
        values: one a block, shape (blocks,); fewer than 6 have no interval.
    """
    count = values.size
    first, second = np.triu_indices(count)
    walsh = np.sort((values[first] + values[second]) / 2)
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    cut = math.floor(walsh.size / 2 - NORMAL_95 * spread)
    few = cut < 1
    low, high = (-math.inf, math.inf) if few else (walsh[cut - 1], walsh[-cut])
    return Estimate(float(np.median(walsh)), float(low), float(high))


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """The typical ratio of paired measurements, both of shape (blocks,)."""
    logs = centre(np.log(np.asarray(numerator, float) / np.asarray(denominator, float)))
    return Estimate(*(float(np.exp(log)) for log in (logs.centre, logs.low, logs.high)))
