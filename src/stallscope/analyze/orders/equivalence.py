"""Whether two pipelines give the same data: on the same draws, value by value.

The order of the questions matters. Equal digests are identical. Else the values are compared: other
types, dtypes or shapes are different, whatever the values. Nearly equal values are close. Where the
values are far apart but the pipelines draw random numbers, `twosample` asks whether both draw from
distributions that simple statistics cannot tell apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stallscope.orderings import CLOSE, DIFFERENT, IDENTICAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.generic]

CLOSE_PSNR_DB: Final = 40.0
"""What differs less is hard to see; lossy image codecs are called transparent from about here on
(Salomon, "Data Compression", 2007, section 4.2)."""
CLOSE_SHARE: Final = 0.1
"""Of the values' range: where a single value differs by more, samples are not close."""
_BYTE: Final = 255.0


class Leaf(NamedTuple):
    """One tensor, array, image or plain value of a sample."""

    kind: str
    """Type, dtype and shape, in words."""
    values: Array | None
    """None for what is no array of numbers."""
    plain: str = ""
    """What it is, where it has no values."""


class Difference(NamedTuple):
    """How far apart two pipelines' samples are."""

    equivalence: str
    """`identical`, `close` or `different`."""
    largest: float | None = None
    """Largest difference of two values at the same place; None where there is none to tell."""
    psnr_db: float | None = None
    """Of the sample that differs most; None: equal values, or none to compare."""
    why: str = ""
    """What differs, in words."""


def compared(original: Sequence[Sequence[Leaf]], other: Sequence[Sequence[Leaf]]) -> Difference:
    """Compare samples, each a list of leaves.

    Args:
        original: of the pipeline as it is.
        other: of the new one, of the same samples on the same draws.
    """
    for mine, theirs in zip(original, other, strict=True):
        why = _unlike(mine, theirs)
        if why:
            return Difference(DIFFERENT, why=why)
    pairs = [
        [(a.values, b.values) for a, b in zip(mine, theirs, strict=True) if a.values is not None]
        for mine, theirs in zip(original, other, strict=True)
    ]
    return _of_values([[(a, b) for a, b in sample if b is not None] for sample in pairs])


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


def _of_values(samples: list[list[tuple[Array, Array]]]) -> Difference:
    largest, lowest, share = 0.0, math.inf, 0.0
    for sample in samples:
        for a, b in sample:
            gap = _gap(a, b)
            peak = _range(a)
            here = float(gap.max(initial=0.0))
            largest = max(largest, here)
            if not math.isfinite(largest):
                return Difference(DIFFERENT, why="a value is not a number in one of them only")
            mean_square = float(np.mean(gap**2)) if gap.size else 0.0
            if mean_square > 0:
                lowest = min(lowest, 10 * math.log10(peak**2 / mean_square) if peak else -math.inf)
            share = max(share, here / peak if peak else math.inf if here else 0.0)
    if lowest == math.inf:
        return Difference(IDENTICAL) if not largest else Difference(CLOSE, largest)
    is_close = lowest >= CLOSE_PSNR_DB and share <= CLOSE_SHARE
    psnr = lowest if math.isfinite(lowest) else None
    return Difference(CLOSE if is_close else DIFFERENT, largest, psnr)


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
