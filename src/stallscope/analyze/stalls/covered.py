"""How much of a stretch of time is covered by intervals: of one process, of one rank.

Answered for all stretches at once, by a running total of what is covered and two look-ups in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def apart(starts_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Make intervals disjoint: each begins when all before it have ended, and may become empty.

    Args:
        starts_ns: when they begin, ascending.
        ends_ns: when they end.

    Returns:
        The new starts, ascending, and the new ends.
    """
    before_ns = np.maximum.accumulate(ends_ns)[:-1]
    starts_ns = np.append(starts_ns[:1], np.maximum(starts_ns[1:], before_ns))
    return starts_ns, np.maximum(starts_ns, ends_ns)


@dataclass(frozen=True)
class Line:
    """Many groups' times laid end to end on one line, so that one sort serves them all."""

    low_ns: int
    """The earliest time of any group."""
    width_ns: int
    """From there to the latest."""

    @classmethod
    def over(cls, starts_ns: np.ndarray, ends_ns: np.ndarray) -> Line:
        """A line that is long enough for these intervals."""
        if not starts_ns.size:
            return cls(0, 0)
        low_ns = int(starts_ns.min())
        return cls(low_ns, max(int(ends_ns.max()) - low_ns, 0))

    def place(self, group: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """Where on the line a time of a group (0, 1, 2...) is."""
        along_ns = np.clip(time_ns - self.low_ns, 0, self.width_ns)
        place: np.ndarray = group * (self.width_ns + 1) + along_ns
        return place


class Covered:
    """The time that is covered by at least one interval of a group.

    Args:
        group: a number for each interval.
        starts_ns: when it begins.
        ends_ns: when it ends.
    """

    def __init__(self, group: np.ndarray, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        self._groups = np.unique(group)
        self._line = Line.over(starts_ns, ends_ns)
        number = np.searchsorted(self._groups, group)
        starts, ends = self._line.place(number, starts_ns), self._line.place(number, ends_ns)
        order = np.argsort(starts, kind="stable")
        self._starts, self._ends = apart(starts[order], ends[order])
        self._before_ns = np.cumsum(self._ends - self._starts) - (self._ends - self._starts)

    def within(self, group: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """How much of each stretch is covered by its group's intervals, ns."""
        if not self._groups.size:
            return np.zeros(group.size, dtype=np.int64)
        number = np.minimum(np.searchsorted(self._groups, group), self._groups.size - 1)
        covered_ns = self._until(self._line.place(number, end_ns))
        covered_ns -= self._until(self._line.place(number, begin_ns))
        return np.where(self._groups[number] == group, covered_ns, 0)

    def _until(self, place: np.ndarray) -> np.ndarray:
        """What is covered from the beginning of the line to a place."""
        last = np.searchsorted(self._starts, place, side="right") - 1
        inside = np.minimum(place, self._ends[last]) - self._starts[last]
        return np.where(last >= 0, self._before_ns[last] + inside, 0)
