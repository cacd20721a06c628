"""How sure a share of samples is.

Neighbouring samples of a process look alike, so a recording with windows is resampled by windows,
in each process apart (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 8).
A few windows make percentile intervals too narrow; they are widened as Student's t is wider than
the normal. Without enough windows it is Wilson's interval (Journal of the American Statistical
Association 22, 1927), which takes samples as independent.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESAMPLED: Final = "windows"
WILSON: Final = "Wilson"
FEWEST_FREE: Final = 4
"""Windows beyond one for each process; with fewer there is nothing to resample."""
_DRAWS: Final = 1_000
_SEED: Final = 20_270_529
_ENDS: Final = (2.5, 97.5)
_Z: Final = 1.959964


def intervals(hits: Floats, samples: Floats, processes: list[int]) -> tuple[Floats, Floats, str]:
    """The 95% intervals of shares.

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
    low, high = np.percentile(drawn, _ENDS, axis=0)
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
    """Wilson's 95% interval of shares of so many independent samples."""
    middle = shares + _Z**2 / (2 * count)
    reach = _Z * np.sqrt(shares * (1 - shares) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return ((middle - reach) / scale).clip(0, 1), ((middle + reach) / scale).clip(0, 1)


def _t(free: int) -> float:
    """Student's t at 97.5%, by Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5)."""
    return (
        _Z
        + (_Z**3 + _Z) / (4 * free)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2)
        + (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * free**3)
    )
