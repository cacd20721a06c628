"""Standing still in a rhythm, all the time, or without any pattern: what is left to say.

These are looked at when nothing that happened at the steps explains them better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope.analyze.patterns.causes import ENOUGH, SURE, Found, Stops
from stallscope.analyze.patterns.chance import LEAST, log_binomial_bound
from stallscope.analyze.patterns.rhythm import FEWEST, rhythm
from stallscope.analyze.patterns.step_causes import times_longer
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from stallscope.analyze.patterns.rhythm import Rhythm
    from stallscope.analyze.patterns.standstill import Loop
    from stallscope.analyze.patterns.unexplained import Unexplained

RHYTHMS: Final = ("workers_together", "periodic", "periodic_step")
"""Patterns that are nothing but a rhythm: what is found of one later is part of it."""
NEARLY_ALL: Final = 0.9
"""At least this share of the steps waits when every step is said to."""
MOST: Final = 0.75
"""The chance of being wrong then: that no more than this share of the steps waits."""
ALIKE: Final = 3.0
"""Waits are alike when the upper quartile is not more times the lower one than this."""
SUBSTANTIAL: Final = 0.1
"""Share of all the time of standing still from which on what has no pattern is spoken of."""
TOGETHER: Final = 0.5
"""Workers finish together when the batches of one round are ready within this share of the time
that making one takes."""
HEAVY: Final = 0.1
"""The share of the stalls that are called the longest ones."""


def recurring_waits(loop: Loop, left: Unexplained, tests: int) -> list[Found]:
    """Stalls in a rhythm, the longest first: that of the workers, or one of unknown reason."""
    return [_waits(loop, left, *one) for one in _rhythms(left, tests, loop.num_workers)]


def _waits(loop: Loop, left: Unexplained, still: np.ndarray, beat: Rhythm) -> Found:
    starts = _mask(beat.starts, loop.size)
    stops = Stops(starts, left.seconds, beat.period)
    waits = f"{stops.subject('waits', 'wait')} {stops.typical}"
    if beat.period == loop.num_workers:
        explained = left.with_rounds(starts, beat.period)
        title = f"{waits}{_round(loop, starts)}"
        return Found("workers_together", "", title, explained, starts, beat.chance, beat.period)
    explained = left.with_runs(starts, still, beat.period)
    title = f"{waits}; nothing that was recorded explains it"
    return Found("periodic", str(beat.period), title, explained, starts, beat.chance, beat.period)


def recurring_steps(
    loop: Loop, parts: dict[str, np.ndarray], left: Unexplained, tests: int
) -> list[Found]:
    """Long steps in a rhythm, the longest first; their reason has no name."""
    return [_long_steps(loop, parts, left, *one) for one in _rhythms(left, tests)]


def _long_steps(
    loop: Loop, parts: dict[str, np.ndarray], left: Unexplained, still: np.ndarray, beat: Rhythm
) -> Found:
    starts = _mask(beat.starts, loop.size)
    stops = Stops(starts, left.seconds, beat.period)
    times = f"{times_longer(loop, starts)} times as long as usual ({stops.typical} more)"
    title = f"{stops.subject('is', 'are')} {times}, {_where(parts, stops)}"
    explained = left.with_runs(starts, still, beat.period)
    return Found(
        "periodic_step", str(beat.period), title, explained, starts, beat.chance, beat.period
    )


def constant(left: Unexplained) -> Found | None:
    """Nearly every step waits, about equally long; None where that is not so."""
    lengths = left.seconds[left.flags]
    steps = int(np.count_nonzero(left.free))
    if not lengths.size or lengths.size < NEARLY_ALL * steps:
        return None
    hits, tries = np.array([lengths.size]), np.array([steps])
    chance = max(float(np.exp(log_binomial_bound(hits, tries, np.array([MOST]))[0])), LEAST)
    low_s, median_s, high_s = (float(limit) for limit in np.quantile(lengths, (0.25, 0.5, 0.75)))
    if chance >= SURE or high_s > ALIKE * low_s:
        return None
    who = (
        "Every step waits"
        if lengths.size == steps
        else f"{share(lengths.size / steps)} of the steps wait"
    )
    title = f"{who} {seconds(median_s)}: the loader is slower than the step throughout"
    return Found("constant", "", title, left.flags, left.flags, chance)


def irregular(left: Unexplained, total_s: float, noun: str) -> list[Found]:
    """What no pattern explains, where it is much; no chance, as nothing is claimed of it.

    Args:
        left: where the loop stood still, as far as nothing explains it.
        total_s: for how long it stood still in all.
        noun: what one of these times is called.
    """
    lengths = np.sort(left.seconds[left.flags])[::-1]
    if lengths.size < FEWEST or lengths.sum() < SUBSTANTIAL * total_s:
        return []
    few = max(round(HEAVY * lengths.size), 1)
    longest = "longest one is" if few == 1 else f"longest {few} of them are"
    many = f"{count(lengths.size, noun)} without a clear pattern"
    title = (
        f"{many}, {seconds(float(lengths.sum()))} in all "
        f"(median {seconds(float(np.median(lengths)))}; the {longest} "
        f"{share(lengths[:few].sum() / lengths.sum())} of it)"
    )
    return [Found("irregular", noun, title, left.flags, left.flags, None)]


def _rhythms(left: Unexplained, tests: int, expected: int = 0) -> list[tuple[np.ndarray, Rhythm]]:
    """The rhythms that are sure, and the steps in which each was found, the fewest steps first."""
    levels = sorted(left.levels(), key=np.count_nonzero)
    found = ((still, rhythm(still, left.free, expected)) for still in levels)
    paid = [(still, beat.less_sure(len(levels) * tests)) for still, beat in found if beat]
    return [(still, beat) for still, beat in paid if beat.chance < SURE]


def _round(loop: Loop, starts: np.ndarray) -> str:
    """Why it is the workers' rhythm, as far as is known when their batches were ready."""
    workers = loop.num_workers
    if not np.isfinite(loop.made_s).any():
        return f", and there are {workers} workers: they probably finish together"
    takes_s, to_do = _slower(loop)
    rounds = np.flatnonzero(starts)[:, None] + np.arange(workers)
    ready_ns = loop.ready_ns[rounds[rounds[:, -1] < loop.size]]
    ready_ns = ready_ns[np.isfinite(ready_ns).all(axis=1)]
    spread_s = np.ptp(ready_ns, axis=1) / 1e9
    if spread_s.size and float(np.median(spread_s)) <= TOGETHER * takes_s:
        return f": the {workers} workers finish together, then all are awaited"
    return (
        f", once in a round of the {workers} workers: each takes {seconds(takes_s)} to {to_do} a "
        f"batch, {workers} steps take {seconds(workers * loop.typical_s)}"
    )


def _slower(loop: Loop) -> tuple[float, str]:
    """What a worker takes longer for, as it makes a batch while it sends the one before."""
    made_s = float(np.nanmedian(loop.made_s))
    sent_s = float(np.nanmedian(loop.sent_s)) if np.isfinite(loop.sent_s).any() else 0.0
    return (sent_s, "send") if sent_s > made_s else (made_s, "make")


def _where(parts: dict[str, np.ndarray], stops: Stops) -> str:
    """In which part of the step most of the additional time lies, if that has a name."""
    unknown = "in your own code (a checkpoint or logging?)"
    excess_s = {
        name: np.median(took_s[stops.named]) - np.median(took_s) for name, took_s in parts.items()
    }
    name = max(excess_s, key=lambda part: excess_s[part], default="")
    much_s = ENOUGH * np.median(stops.seconds[stops.named])
    return f"mostly in {name}" if excess_s.get(name, 0.0) > much_s else unknown


def _mask(places: np.ndarray, size: int) -> np.ndarray:
    mask = np.zeros(size, dtype=bool)
    mask[places] = True
    return mask
