"""Whether two pipelines give the same data: on the same draws, value by value, then by statistics.

The order of the questions (`OrderEvaluator.judge`) matters. Equal digests are identical. Else the
values are compared: other types, dtypes or shapes are different, whatever the values. Nearly equal
values are close.

Where values are far apart but the pipelines draw random numbers, a test over samples asks whether
simple statistics can tell them apart: a flip and a random crop give other data in the other order
on the same draws, and yet the same distribution. For each sample both pipelines are drawn several
times; statistics of each draw are averaged, and the two averages of one sample make a pair. If the
pipelines draw from the same distribution, the sign of each pair's difference is a toss of a coin:
the test turns the signs of all statistics of a sample together, and compares the largest of the
statistics' t values with what it is then (Westfall and Young, "Resampling-Based Multiple Testing",
1993, chapter 2). Passing is no proof of equality, so the smallest shift that the test would
probably have seen is given with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stallscope.orders.digests import digest, leaves_of
from stallscope.orders.result import CLOSE, DIFFERENT, IDENTICAL, Equivalence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stallscope.orders.digests import Leaf
    from stallscope.orders.run_ops import OpInput

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]

CLOSE_PSNR_DB: Final = 40.0
"""What differs less is hard to see; lossy image codecs are called transparent from about here on
(Salomon, "Data Compression", 2007, section 4.2)."""
CLOSE_SHARE: Final = 0.1
"""Of the values' range: where a single value differs by more, samples are not close."""
_BYTE: Final = 255.0
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


def compare_outputs(original: Sequence[OpInput], other: Sequence[OpInput]) -> Equivalence:
    """Compare what two pipelines gave; their digests may differ although all values agree."""
    mine, theirs = ([one.value for one in outputs] for outputs in (original, other))
    found = compare_samples(list(map(leaves_of, mine)), list(map(leaves_of, theirs)))
    if found.equivalence == IDENTICAL and digest(mine) != digest(theirs):
        return found._replace(equivalence=DIFFERENT, why="another type, structure or attribute")
    return found


def compare_samples(
    original: Sequence[Sequence[Leaf]], other: Sequence[Sequence[Leaf]]
) -> Equivalence:
    """Compare samples, each a list of leaves.

    Args:
        original: of the pipeline as it is.
        other: of the new one, of the same samples on the same draws.
    """
    samples = list(zip(original, other, strict=True))
    for mine, theirs in samples:
        why = _unlike(mine, theirs)
        if why:
            return Equivalence(DIFFERENT, why=why)
    largest, lowest_db, largest_share = 0.0, math.inf, 0.0
    for one, new in (pair for mine, theirs in samples for pair in zip(mine, theirs, strict=True)):
        if one.values is None or new.values is None:
            continue
        gap, peak = _gap(one.values, new.values), _range(one.values)
        here = float(gap.max(initial=0.0))
        if not math.isfinite(here):
            return Equivalence(DIFFERENT, why="a value is not a number in one of them only")
        if here:
            largest = max(largest, here)
            largest_share = max(largest_share, here / peak if peak else math.inf)
            usual = here * math.sqrt(np.mean((gap / here) ** 2))  # the square of `here` may be 0
            psnr_db = 20 * math.log10(peak / usual) if peak else -math.inf
            lowest_db = min(lowest_db, psnr_db)
    if not largest:
        return Equivalence(IDENTICAL)
    is_close = lowest_db >= CLOSE_PSNR_DB and largest_share <= CLOSE_SHARE
    psnr = lowest_db if math.isfinite(lowest_db) else None
    return Equivalence(CLOSE if is_close else DIFFERENT, largest, psnr)


def _unlike(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> str:
    """What is not of one kind, in words; "" where all is."""
    if len(mine) != len(theirs):
        return f"a sample holds {len(theirs)} values instead of {len(mine)}"
    for a, b in zip(mine, theirs, strict=True):
        if a.kind != b.kind:
            return f"{b.kind} instead of {a.kind}"
        if a.plain != b.plain:
            return f"{b.plain:.40} instead of {a.plain:.40}"
    return ""


def _gap(a: Array, b: Array) -> NDArray[np.float64]:
    """Differences at each place; infinite where one is no number and the other is."""
    one, other = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap: NDArray[np.float64] = np.abs(one - other)
    gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    return np.nan_to_num(gap, nan=np.inf)


def _range(a: Array) -> float:
    """What the largest possible difference is: 255 for bytes, else what the values span."""
    if a.dtype == np.uint8:
        return _BYTE
    finite = a.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.max() - finite.min()) if finite.size else 0.0


class DrawTest(NamedTuple):
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
    """Take the statistics of one draw, shape (len(STATISTICS),).

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


def compare_draws(original: Floats, other: Floats) -> DrawTest:
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
        return DrawTest(False, STATISTICS[0], pairs, 0.0)  # noqa: FBT003 - a value
    seen = _t_values(gaps[None][..., moving])[0]
    rng = np.random.default_rng(_SEED)
    signs = rng.choice([-1.0, 1.0], size=(_TURNS, pairs))
    turned = _t_values((signs[:, :, None] * gaps[None])[..., moving]).max(axis=1)
    limit = float(np.quantile(turned, 1 - LEVEL))
    which = np.flatnonzero(moving)[int(seen.argmax())]
    smallest = (limit + _POWER) * error / spread
    return DrawTest(bool(seen.max() > limit), STATISTICS[int(which)], pairs, smallest)


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
