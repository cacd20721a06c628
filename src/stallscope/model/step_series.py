"""Steps of one rank as arrays: stalls, and their rhythm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.attribution import find_stalls, hidden_known
from stallscope.stats import LEAST, log_binomial_bound

if TYPE_CHECKING:
    from collections.abc import Iterator


BATCH: Final = ("epoch", "batch")
_TABLES: Final = ("steps", "parts", "samples", "deliveries", "side_spans")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tables about the steps of one rank or of several."""

    steps: pl.DataFrame
    """Columns of `run.STEPS`, after the warm-up, in order."""
    parts: pl.DataFrame
    """Columns of `model.attribution.PARTS`."""
    samples: pl.DataFrame
    """Columns of `Run.samples`."""
    deliveries: pl.DataFrame
    """Columns of `run.DELIVERIES`."""
    side_spans: pl.DataFrame
    """Columns of `run.decode.SPANS`: spans of the training loops."""
    num_workers: int = 0
    """Worker processes of each rank's loader; 0: the main process loads."""

    def by_rank(self) -> Iterator[tuple[int, Evidence]]:
        """Yield each rank with its own rows."""
        for rank in self.steps["rank"].unique().sort():
            own = {name: getattr(self, name).filter(rank=rank) for name in _TABLES}
            yield rank, replace(self, **own)


@dataclass(frozen=True, eq=False)
class StepSeries:
    """Steps of one rank; arrays have a value per step, NaN where it was not observed."""

    keys: pl.DataFrame
    """`step, epoch, batch` of each step."""
    epoch: np.ndarray
    batch: np.ndarray
    worker: np.ndarray
    """Worker that made the batch; -1 for the main process."""
    waits_from_ns: np.ndarray
    """Begin of the wait, with the loader's restart before it; 0 where unknown."""
    has_batch_ns: np.ndarray
    """End of the wait; 0 where unknown."""
    restart_s: np.ndarray
    """Restart of the loader before an epoch's first step; 0 for other steps."""
    stall_s: np.ndarray
    """Length of the stall; 0 where the loop did not stall."""
    busy_s: np.ndarray
    """Time until the next wait; plus, for a device that works behind the host, the part of the wait
    in which the device had work."""
    made_s: np.ndarray
    """Time to make the batch in its worker."""
    sent_s: np.ndarray
    """Time to send the batch, in a thread of the worker's."""
    ready_ns: np.ndarray
    """Time when the batch was sent; when it was made, where sending was not recorded."""
    num_workers: int
    """Worker processes; 0: the main process loads."""

    @classmethod
    def of(cls, evidence: Evidence) -> StepSeries:
        """Return the arrays of one rank's tables."""
        waits = find_stalls(evidence.steps).select("step", "stall_s").unique("step", keep="first")
        steps = evidence.steps.join(waits, on="step", how="left", maintain_order="left")
        steps = hidden_known(steps).with_columns(
            pl.col("restart_s", "stall_s", "hidden_s").fill_null(0.0),
            pl.col("start_ns", "end_ns").fill_null(0),
            pl.col("worker").fill_null(-1),
            used_s=pl.sum_horizontal("step_s", "other_s"),
        )
        columns = {name: steps[name].to_numpy() for name in steps.columns}
        times = evidence.deliveries.select(
            *BATCH,
            made_s=(pl.col("made_ns") - pl.col("taken_ns")) / 1e9,
            sent_s=(pl.col("sent_ns") - pl.col("pickle_ns")) / 1e9,
            ready_ns=pl.coalesce("sent_ns", "made_ns"),
        )
        keys = steps.select("step", *BATCH)
        made_s, sent_s, ready_ns = of_batches(keys, times, "made_s", "sent_s", "ready_ns")
        restart_ns = np.rint(columns["restart_s"] * 1e9).astype(np.int64)
        return cls(
            keys=keys,
            epoch=columns["epoch"],
            batch=columns["batch"],
            worker=columns["worker"],
            waits_from_ns=columns["start_ns"] - restart_ns,
            has_batch_ns=columns["end_ns"],
            restart_s=columns["restart_s"],
            stall_s=columns["stall_s"],
            busy_s=columns["used_s"] + columns["hidden_s"],
            made_s=made_s,
            sent_s=sent_s,
            ready_ns=ready_ns,
            num_workers=evidence.num_workers,
        )

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.keys.height

    @property
    def is_whole(self) -> np.ndarray:
        """Mask of batches that characterise their worker: recorded, and not an epoch's last.

        The last batch may have fewer samples, and is the same worker's in every epoch.
        """
        whole: np.ndarray = np.isfinite(self.made_s) & (self.batch < self.batch.max(initial=0))
        return whole

    @property
    def typical_s(self) -> float:
        """Median time to use a batch."""
        return float(np.median(self.busy_s)) if self.size else 0.0


def of_batches(keys: pl.DataFrame, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
    """Return columns of a table of batches, at each batch's step."""
    rows = table.unique(BATCH, keep="first", maintain_order=True)
    joined = keys.join(rows, on=BATCH, how="left", maintain_order="left")
    return [joined[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]


LONGEST: Final = 200
"""Longest period to test, in steps."""
FEWEST: Final = 3
"""Fewest events of a rhythm."""
TYPICAL: Final = 0.5
"""Least share of events with another event exactly a period earlier or later."""
EXPECTED: Final = 0.8
"""Share of the significance level that an expected period may use."""
CLEARER: Final = 2.0
"""Least ratio of the frequency of a period to that of the distances around it."""


@dataclass(frozen=True, eq=False)
class Rhythm:
    """Events that return after a fixed number of steps."""

    period: int
    """Steps from one event to the next."""
    chance: float
    """Probability of the rhythm by chance, corrected for the number of tested periods."""
    starts: np.ndarray
    """Places of the events' steps (the first step of each run)."""


def rhythm(
    flags: np.ndarray, free: np.ndarray | None = None, expected: int = 0, *, tests: int = 1
) -> Rhythm | None:
    """Return the period of flagged steps; None where no period is clear.

    The test counts pairs: events that follow another event exactly `period` steps later, compared
    with pairs at neighbouring distances. So the phase may drift (an epoch that is no multiple of
    the period), and lengths of waits do not matter: a heavy tail cannot look like a rhythm.

    The comparison uses neighbouring distances, not shuffled events, because stalls come in bursts:
    in bursts, every short distance is more frequent than after shuffling, and would count as a
    period. For the same reason a run of steps counts as one event, at its first step.
    `tests/model/test_periodicity.py` counts the false alarms.

    Args:
        flags: True for each step that is an event.
        free: True for each step that may be an event; other steps are skipped. Default: all steps.
        expected: a likely period, which gets most of the significance level; 0: none.
        tests: number of tests, for the correction of the p-value.

    Returns:
        The rhythm with the smallest p-value.
    """
    free = np.ones(flags.size, dtype=bool) if free is None else free
    events = _first_of_runs(flags & free, free)
    longest = min(LONGEST, (flags.size - 1) // 2)
    if np.count_nonzero(events) < FEWEST or longest < 2:  # noqa: PLR2004 - a single step is no period
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
    """Return the first step of each run of flagged steps; steps that are not free are skipped."""
    places = np.flatnonzero(free)
    flagged = flags[places]
    first = np.zeros(flags.size, dtype=bool)
    first[places[flagged & ~np.append(False, flagged[:-1])]] = True
    return first


def _doubts(
    events: np.ndarray, free: np.ndarray, periods: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithm of each period's p-value, and whether the period is clear enough.

    A period is compared with the distances from 2 to just below its double. This range has no
    multiples of the period, and slow trends with the distance (bursts) cancel on both sides.
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
    """Count the pairs of events that lie 0, 1, ... `most - 1` steps apart."""
    spectrum = np.fft.rfft(events.astype(float), 2 * max(events.size, most))
    counts: np.ndarray = np.rint(np.fft.irfft(np.abs(spectrum) ** 2)[:most])
    return counts


def _weights(periods: np.ndarray, expected: int) -> np.ndarray:
    """Return the Bonferroni factor of each period; the expected period has the smallest."""
    if expected not in periods:
        return np.full(periods.size, float(periods.size))
    rest = max(periods.size - 1, 1) / (1 - EXPECTED)
    return np.where(periods == expected, 1 / EXPECTED, rest)


def _in_rhythm(events: np.ndarray, period: int) -> np.ndarray:
    """Return the events with another event a period earlier or later."""
    pair = events[period:] & events[:-period]
    both = np.zeros(events.size, dtype=bool)
    both[period:] |= pair
    both[:-period] |= pair
    return np.flatnonzero(both)
