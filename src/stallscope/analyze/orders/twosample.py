"""Can simple statistics tell two random pipelines apart? A test over samples, both drawn anew.

A flip and a random crop give other data in the other order on the same draws, and yet the same
distribution. For each sample both pipelines are drawn several times; statistics of each draw are
averaged, and the two averages of one sample make a pair. If the pipelines draw from the same
distribution, the sign of each pair's difference is a toss of a coin: the test turns the signs of
all statistics of a sample together, and compares the largest of the statistics' t values with what
it is then (Westfall and Young, "Resampling-Based Multiple Testing", 1993, chapter 2). Passing is no
proof of equality, so the smallest shift that the test would probably have seen is given with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STATISTICS: Final = (
    "mean",
    "spread",
    "lowest",
    "highest",
    "detail",
    "left minus right",
    "top minus bottom",
    "middle minus edge",
)
"""Of one draw; detail is the mean difference between neighbours, which resizing changes."""
LEVEL: Final = 0.002
"""So often equal distributions are told apart by mistake: a verdict is given for many orders."""
FEWEST_PAIRS: Final = 11
"""Of fewer the signs can be turned in so few ways that no result is below the level."""
_TURNS: Final = 8_000
_SEED: Final = 20_240_229
_POWER: Final = 0.84
"""Normal quantile of a power of 80%."""


class Verdict(NamedTuple):
    """What the test has shown."""

    distinguished: bool
    statistic: str
    """The one with the largest t value."""
    pairs: int
    """Samples that were compared."""
    smallest_share: float
    """The smallest shift of the mean that it would have seen four times of five, as a share (0 to
    1) of the values' spread."""


def statistics(values: NDArray[np.generic]) -> Floats:
    """The statistics of one draw, shape (len(STATISTICS),).

    Args:
        values: an image with its two spatial axes last or first, or an array of any shape.
    """
    x = values.astype(np.float64)
    plane = _plane(x)
    height, width = plane.shape
    detail = np.abs(np.diff(plane, axis=0)).mean() if height > 1 else 0.0
    detail += np.abs(np.diff(plane, axis=1)).mean() if width > 1 else 0.0
    half_w, half_h = width // 2, height // 2
    sides = plane[:, :half_w].mean() - plane[:, -half_w:].mean() if half_w else 0.0
    ends = plane[:half_h].mean() - plane[-half_h:].mean() if half_h else 0.0
    inner = plane[height // 4 : -(height // 4) or None, width // 4 : -(width // 4) or None]
    found = (x.mean(), x.std(), x.min(), x.max(), detail, sides, ends, inner.mean() - plane.mean())
    return np.asarray(found, dtype=np.float64)


def compare(original: Floats, other: Floats) -> Verdict:
    """Test whether the statistics of two pipelines differ.

    Args:
        original: of the pipeline as it is, shape (samples, draws, statistics).
        other: of the new one, likewise, drawn independently.
    """
    gaps = other.mean(axis=1) - original.mean(axis=1)
    pairs = len(gaps)
    moving = np.abs(gaps).max(axis=0) > 1e-12 * (1 + np.abs(original).max(axis=(0, 1)))
    spread = float(original[..., 1].mean()) or 1.0
    error = float(gaps[:, 0].std(ddof=1)) / math.sqrt(pairs) if pairs > 1 else math.inf
    if not moving.any():
        return Verdict(False, STATISTICS[0], pairs, 0.0)  # noqa: FBT003 - a value
    seen = _t_values(gaps[None][..., moving])[0]
    rng = np.random.default_rng(_SEED)
    signs = rng.choice([-1.0, 1.0], size=(_TURNS, pairs))
    turned = _t_values((signs[:, :, None] * gaps[None])[..., moving]).max(axis=1)
    limit = float(np.quantile(turned, 1 - LEVEL))
    which = np.flatnonzero(moving)[int(seen.argmax())]
    smallest = (limit + _POWER) * error / spread
    return Verdict(bool(seen.max() > limit), STATISTICS[int(which)], pairs, smallest)


def _t_values(gaps: Floats) -> Floats:
    """Absolute t values, shape (turns, statistics), of gaps of shape (turns, pairs, statistics)."""
    mean, spread = gaps.mean(axis=1), gaps.std(axis=1, ddof=1)
    floor = 1e-12 + 1e-9 * np.abs(gaps).max(axis=1)
    result: Floats = np.abs(mean) / np.maximum(spread, floor) * math.sqrt(gaps.shape[1])
    return result


def _plane(x: Floats) -> Floats:
    """The values as one plane: channels averaged, anything else as a single row."""
    most_channels = 4
    if x.ndim == 3 and x.shape[0] <= most_channels:  # noqa: PLR2004 - channels first
        plane: Floats = x.mean(axis=0)
    elif x.ndim == 3 and x.shape[-1] <= most_channels:  # noqa: PLR2004 - channels last
        plane = x.mean(axis=-1)
    elif x.ndim == 2:  # noqa: PLR2004 - a plane
        plane = x
    else:
        plane = x.reshape(1, -1)
    return plane
