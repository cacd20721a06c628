"""Where the loop stood still for a reason that is not known yet: where patterns are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

SPIKE: Final = 3.0
"""A spike is longer than so many times the median, ..."""
FENCE: Final = 3.0
"""... or than the median by so many times the distance of the quartiles (J. Tukey's far out) ..."""
ABOVE: Final = 1.5
"""... and so many times the median."""
HIGH: Final = 0.9
"""Another level is half of the length that this share of them does not exceed."""


@dataclass(frozen=True, eq=False)
class Unexplained:
    """Where the loop stood still, as far as no pattern explains it yet."""

    seconds: np.ndarray
    """For how long, at each step; 0 where it did not, or where that is explained."""
    free: np.ndarray
    """Of each step, whether it may still be explained."""

    @classmethod
    def of(cls, seconds: np.ndarray) -> Unexplained:
        """Nothing is explained yet."""
        return cls(seconds, np.ones(seconds.size, dtype=bool))

    @property
    def flags(self) -> np.ndarray:
        """The steps at which it stood still."""
        return self.seconds > 0

    def without(self, explained: np.ndarray) -> Unexplained:
        """What is left when these steps are explained."""
        return Unexplained(np.where(explained, 0.0, self.seconds), self.free & ~explained)

    def levels(self) -> list[np.ndarray]:
        """Which steps to look at: all that stood still, and only those that stand out of them.

        Where nearly every step waits, or small waits lie between the long ones, the reason of the
        long ones shows among them alone.
        """
        lengths = self.seconds[self.flags]
        if not lengths.size:
            return []
        low, middle, high = (float(limit) for limit in np.quantile(lengths, (0.25, 0.5, 0.75)))
        fence = max(middle + FENCE * (high - low), ABOVE * middle)
        limits = (0.0, min(fence, SPIKE * middle), float(np.quantile(lengths, HIGH)) / 2)
        chosen = {mask.tobytes(): mask for mask in (self.seconds > limit for limit in limits)}
        return [mask for mask in chosen.values() if mask.any()]

    def with_rounds(self, starts: np.ndarray, length: int) -> np.ndarray:
        """These steps, and what follows each within so many steps and is not longer than it."""
        found: np.ndarray = starts & self.flags
        limits = np.where(found, self.seconds, 0.0)
        for _ in range(length - 1):
            limits = np.append(0.0, limits[:-1])
            found = found | (self.flags & (self.seconds <= limits))
        return found

    def with_runs(self, starts: np.ndarray, still: np.ndarray, longest: int) -> np.ndarray:
        """These steps and those right after each, up to so many, while all of them are still."""
        found: np.ndarray = starts & still
        last = found
        for _ in range(longest - 1):
            last = np.append(False, last[:-1]) & still
            found = found | last
        return found
