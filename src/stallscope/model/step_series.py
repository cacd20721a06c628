"""One rank's steps as arrays, and where among them the loop stalls or a step is long.

There are two ways to lose time: the loop waits for data (a stall), or a step takes far longer than
the others do (a long step: a checkpoint, logging, validation, garbage collection). `Residual` is
what of it no pattern explains yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.attribution import find_stalls, hidden_known
from stallscope.model.thresholds import LONG, LONGER_S
from stallscope.stats import LEAST, log_binomial_bound

if TYPE_CHECKING:
    from collections.abc import Iterator


_BATCH: Final = ("epoch", "batch")
SPIKE: Final = 3.0
"""A spike is longer than so many times the median, ..."""
FENCE: Final = 3.0
"""... or than the median by so many times the distance of the quartiles (J. Tukey's far out) ..."""
ABOVE: Final = 1.5
"""... and so many times the median."""
HIGH: Final = 0.9
"""Another level is half of the length that this share of them does not exceed."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about the steps of one rank or of several."""

    steps: pl.DataFrame
    """Columns of `run.STEPS`, after the warm-up, in order."""
    parts: pl.DataFrame
    """Columns of `model.attribution.PARTS`."""
    samples: pl.DataFrame
    """What `Run.samples` gives."""
    deliveries: pl.DataFrame
    """Columns of `run.DELIVERIES`."""
    side_spans: pl.DataFrame
    """Columns of `run.decode.SPANS`: those of the training loops."""
    num_workers: int = 0
    """Worker processes of each rank's loader; 0: the main process loads."""

    def by_rank(self) -> Iterator[tuple[int, Evidence]]:
        """Each rank and what is known about it alone."""
        for rank in self.steps["rank"].unique().sort():
            tables = ("steps", "parts", "samples", "deliveries", "side_spans")
            own = {name: getattr(self, name).filter(rank=rank) for name in tables}
            yield rank, replace(self, **own)


@dataclass(frozen=True, eq=False)
class StepSeries:
    """One rank's steps; every array has one value a step."""

    keys: pl.DataFrame
    """`step, epoch, batch` of each step."""
    epoch: np.ndarray
    """Number of the epoch."""
    batch: np.ndarray
    """Number of the batch in its epoch."""
    worker: np.ndarray
    """The worker that made the batch; -1 where the main process did."""
    waits_from_ns: np.ndarray
    """When the wait began, with the loader's restart before it; 0 where that is not known."""
    has_batch_ns: np.ndarray
    """When the wait ended; 0 where that is not known."""
    uses_until_ns: np.ndarray
    """When the step was over."""
    restart_s: np.ndarray
    """What the loader's restart took; 0 but for an epoch's first step."""
    stall_s: np.ndarray
    """Length of the stall; 0 where the loop did not stall."""
    busy_s: np.ndarray
    """What using the batch took, and all else until the next wait; of a device that works behind
    the host also what of the wait it still had work."""
    made_s: np.ndarray
    """What making the batch took in its worker; NaN where that was not seen."""
    sent_s: np.ndarray
    """What sending it took, in a thread of the worker's; NaN where that was not seen."""
    ready_ns: np.ndarray
    """When it had been sent, or made where that was not seen; NaN where neither was."""
    num_workers: int
    """Worker processes; 0: the main process loads."""

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.keys.height

    @property
    def is_whole(self) -> np.ndarray:
        """Of each step, whether making its batch tells of its worker: seen, and no epoch's last.

        That one may have fewer samples, and is the same worker's in every epoch.
        """
        whole: np.ndarray = np.isfinite(self.made_s) & (self.batch < self.batch.max(initial=0))
        return whole

    @property
    def typical_s(self) -> float:
        """What using a batch takes: the median."""
        return float(np.median(self.busy_s)) if self.size else 0.0

    @property
    def long_s(self) -> np.ndarray:
        """How much longer than usual the long steps took; 0 where the step was not long."""
        excess_s = self.busy_s - self.typical_s
        is_long = (self.busy_s > LONG * self.typical_s) & (excess_s > LONGER_S)
        return np.where(is_long, excess_s, 0.0)

    @property
    def lost_s(self) -> float:
        """For how long it stalled in all, both ways."""
        return float(self.stall_s.sum() + self.long_s.sum())

    def of_batches(self, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
        """Numbers of a table with a row a batch, at each batch's step; NaN where there is none."""
        return _of_batches(self.keys, table, *columns)


def _of_batches(keys: pl.DataFrame, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
    rows = table.unique(_BATCH, keep="first", maintain_order=True)
    found = keys.join(rows, on=_BATCH, how="left", maintain_order="left")
    return [found[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]


def loop_of(evidence: Evidence) -> StepSeries:
    """The steps of one rank, as arrays."""
    waits = find_stalls(evidence.steps).select("step", "stall_s").unique("step", keep="first")
    steps = evidence.steps.join(waits, on="step", how="left", maintain_order="left").with_columns(
        pl.col("restart_s", "stall_s", "h2d_s").fill_null(0.0),
        pl.col("start_ns", "end_ns").fill_null(0),
        pl.col("worker").fill_null(-1),
    )
    keys = steps.select("step", *_BATCH)
    made = evidence.deliveries.select(
        *_BATCH,
        made_s=(pl.col("made_ns") - pl.col("taken_ns")) / 1e9,
        sent_s=(pl.col("sent_ns") - pl.col("pickle_ns")) / 1e9,
        ready_ns=pl.coalesce("sent_ns", "made_ns"),
    )
    made_s, sent_s, ready_ns = _of_batches(keys, made, "made_s", "sent_s", "ready_ns")
    restart_s, h2d_s, stall_s = (
        steps[name].to_numpy() for name in ("restart_s", "h2d_s", "stall_s")
    )
    used_s = steps.select(pl.sum_horizontal("step_s", "other_s")).to_series().to_numpy()
    hidden_s = hidden_known(steps)["hidden_s"].fill_null(0.0).to_numpy()
    has_batch_ns = steps["end_ns"].to_numpy()
    return StepSeries(
        keys=keys,
        epoch=steps["epoch"].to_numpy(),
        batch=steps["batch"].to_numpy(),
        worker=steps["worker"].to_numpy(),
        waits_from_ns=steps["start_ns"].to_numpy() - _whole_ns(restart_s),
        has_batch_ns=has_batch_ns,
        uses_until_ns=has_batch_ns + _whole_ns(used_s + h2d_s),
        restart_s=restart_s,
        stall_s=stall_s,
        busy_s=used_s + hidden_s,
        made_s=made_s,
        sent_s=sent_s,
        ready_ns=ready_ns,
        num_workers=evidence.num_workers,
    )


def _whole_ns(durations_s: np.ndarray) -> np.ndarray:
    return np.rint(durations_s * 1e9).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Residual:
    """Where the loop stalled, as far as no pattern explains it yet."""

    seconds: np.ndarray
    """For how long, at each step; 0 where it did not, or where that is explained."""
    free: np.ndarray
    """Of each step, whether it may still be explained."""

    @classmethod
    def of(cls, seconds: np.ndarray) -> Residual:
        """Nothing is explained yet."""
        return cls(seconds, np.ones(seconds.size, dtype=bool))

    @property
    def flags(self) -> np.ndarray:
        """The steps at which it stalled."""
        return self.seconds > 0

    def without(self, explained: np.ndarray) -> Residual:
        """What is left when these steps are explained."""
        return Residual(np.where(explained, 0.0, self.seconds), self.free & ~explained)

    def levels(self) -> list[np.ndarray]:
        """Which steps to look at: all that stalled, and only those that stand out of them.

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

    def with_runs(self, starts: np.ndarray, stalled: np.ndarray, longest: int) -> np.ndarray:
        """These steps and those right after each, up to so many, while all of them stall."""
        found: np.ndarray = starts & stalled
        last = found
        for _ in range(longest - 1):
            last = np.append(False, last[:-1]) & stalled
            found = found | last
        return found


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

    What is counted is pairs: how often one event follows another exactly `period` steps later,
    compared with how often it follows after any other distance around that one. So a phase that
    drifts does no harm (an epoch that is no multiple of the period), and how long a wait was plays
    no part: a heavy tail cannot look like a rhythm.

    The comparison is with the neighbouring distances and not with shuffled events, because stalls
    come in bursts: of bursts, every short distance is more frequent than in any shuffled order, and
    each of them would be called a period. For the same reason a run of steps counts as one event,
    at its first step. `tests/model/test_periodicity.py` counts the false alarms.

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
