"""Whether something happens every so many steps, and the chance that it only looks like it.

What is counted is pairs: how often one event follows another exactly `period` steps later, compared
with how often it follows after any other distance around that one. So a phase that drifts does no
harm (an epoch that is no multiple of the period), and how long a wait was plays no part: a heavy
tail cannot look like a rhythm.

The comparison is with the neighbouring distances and not with shuffled events, because stalls come
in bursts: of bursts, every short distance is more frequent than in any shuffled order, and each of
them would be called a period. For the same reason a run of steps counts as one event, at its first
step. `tests/stalls/test_periodicity.py` counts the false alarms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stallscope.stats import LEAST, log_binomial_bound

LONGEST: Final = 200
"""The longest period that is looked for, in steps."""
FEWEST: Final = 3
"""Fewer events have no rhythm."""
TYPICAL: Final = 0.5
"""At least this share of the events has another one exactly a period earlier or later."""
EXPECTED: Final = 0.8
"""An expected period may take this share of the chance of being wrong."""
CLEARER: Final = 2.0
"""A distance of one period is so many times as frequent as the distances around it."""


@dataclass(frozen=True, eq=False)
class Rhythm:
    """Events that return after a fixed number of steps."""

    period: int
    """Steps from one to the next."""
    chance: float
    """Probability that they do so by accident; that many periods were tried is paid for."""
    starts: np.ndarray
    """The steps at which they happen (the first one of a run), by their places."""


def rhythm(
    flags: np.ndarray, free: np.ndarray | None = None, expected: int = 0, *, tests: int = 1
) -> Rhythm | None:
    """The period in which steps are flagged; None where none of the periods is clear.

    Args:
        flags: of every step, whether it is an event.
        free: of every step, whether it can be one; the others are passed over. All can by default.
        expected: a period that would be no surprise, for which most of the doubt is kept; 0: none.
        tests: as one of so many that are looked for, which share the doubt.

    Returns:
        The rhythm that is the least probable accident, whatever its chance.
    """
    free = np.ones(flags.size, dtype=bool) if free is None else free
    events = _first_of_runs(flags & free, free)
    longest = min(LONGEST, (flags.size - 1) // 2)
    if np.count_nonzero(events) < FEWEST or longest < 2:  # noqa: PLR2004 - one step is no period
        return None
    periods = np.arange(2, longest + 1)
    logs, clear = _doubts(events, free, periods)
    logs += np.log(_weights(periods, expected))
    for place in np.argsort(logs, kind="stable"):
        period = int(periods[place])
        starts = _in_rhythm(events, period)
        if logs[place] >= 0:
            return None
        if clear[place] and starts.size >= max(FEWEST, TYPICAL * np.count_nonzero(events)):
            chance = max(float(np.exp(logs[place])), LEAST) * tests
            return Rhythm(period, min(chance, 1.0), starts)
    return None


def _first_of_runs(flags: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Of every step, whether it is flagged and the free one before it is not."""
    places = np.flatnonzero(free)
    flagged = flags[places]
    first = np.zeros(flags.size, dtype=bool)
    first[places[flagged & ~np.append(False, flagged[:-1])]] = True
    return first


def _doubts(
    events: np.ndarray, free: np.ndarray, periods: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each period, the logarithm of its chance alone, and whether it is clear enough.

    A period is compared with the distances from 2 to just below its double. There its multiples do
    not lie, and what changes slowly with the distance (bursts) is the same on both sides.
    """
    most = 2 * int(periods[-1])
    hits, room = _pairs(events, most), _pairs(free, most)
    tries, rooms = (
        np.cumsum(counts)[2 * periods - 1] - counts[:2].sum() for counts in (hits, room)
    )
    hit, own = hits[periods], np.maximum(room[periods], 1)
    others = (tries - hit) / np.maximum(rooms - own, 1)
    logs = log_binomial_bound(hit, tries, own / np.maximum(rooms, 1))
    return logs, hit / own >= CLEARER * others


def _pairs(events: np.ndarray, most: int) -> np.ndarray:
    """How many pairs of events lie 0, 1, ... `most - 1` steps apart."""
    spectrum = np.fft.rfft(events.astype(float), 2 * max(events.size, most))
    counts: np.ndarray = np.rint(np.fft.irfft(np.abs(spectrum) ** 2)[:most])
    return counts


def _weights(periods: np.ndarray, expected: int) -> np.ndarray:
    """By how much each period pays for all that are tried (Bonferroni), the expected one least."""
    if expected not in periods:
        return np.full(periods.size, float(periods.size))
    rest = max(periods.size - 1, 1) / (1 - EXPECTED)
    return np.where(periods == expected, 1 / EXPECTED, rest)


def _in_rhythm(events: np.ndarray, period: int) -> np.ndarray:
    """The places of the events that have another one a period earlier or later."""
    pair = events[period:] & events[:-period]
    both = np.zeros(events.size, dtype=bool)
    both[period:] |= pair
    both[:-period] |= pair
    return np.flatnonzero(both)
