"""Whether a sample's size explains its time: a rank correlation and the sentence that it allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

FEWEST: Final = 20
"""With fewer samples no sentence about them is made."""
FEWEST_SIZES: Final = 5
"""With fewer different sizes neither."""
WEAK: Final = 0.3
STRONG: Final = 0.6
"""Bounds of the absolute rank correlation (a convention: it squares to 9% and 36%)."""


@dataclass(frozen=True)
class Explained:
    """What size says about time."""

    rho: float | None
    """Spearman's rank correlation; None where it says nothing."""
    n: int
    """Number of samples."""
    different: int
    """Number of different sizes."""
    sentence: str
    """What may be said."""


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None where one is constant.

    Source: Spearman, "The Proof and Measurement of Association between Two Things" (1904).
    """
    ranks = np.vstack([_ranks(x), _ranks(y)])
    if x.size < 2 or not ranks.std(axis=1).all():  # noqa: PLR2004 - one point has no correlation
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def explain(sizes: np.ndarray, times_s: np.ndarray, what: str) -> Explained:
    """Say whether size explains time.

    Args:
        sizes: one for each sample, in any unit.
        times_s: seconds for each sample.
        what: the size in words, as "file size".
    """
    n, different = int(sizes.size), int(np.unique(sizes).size)
    if n < FEWEST:
        few = f"too few samples ({n}) to say whether the {what} explains the time"
        return Explained(None, n, different, few)
    if different == 1:
        same = f"all samples have the same {what}: it explains no difference"
        return Explained(None, n, different, same)
    if different < FEWEST_SIZES:
        few = f"only {different} different values of {what}: too few to say what it explains"
        return Explained(None, n, different, few)
    rho = spearman(sizes, times_s)
    told = f"{_verdict(rho or 0.0, what)} (Spearman {rho or 0.0:.2f}, n = {n:,})"
    return Explained(rho, n, different, told)


def _verdict(rho: float, what: str) -> str:
    if abs(rho) < WEAK:
        return f"the time is not explained by the {what}"
    if rho < 0:
        return f"samples with a larger {what} take less time, so it is not what makes them slow"
    return f"the {what} explains {'much' if rho >= STRONG else 'a part'} of the time"
