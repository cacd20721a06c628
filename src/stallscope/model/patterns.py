"""Patterns of stalls: reasons for the stalls of a training loop, each with a p-value.

Events at some steps (a slow sample or worker, a new file or epoch, garbage) are tested as reasons.
Coincidences of frequent events and frequent stalls are weak evidence, so the test gives the
probability of as many coincidences by chance; and the event must have been long enough. The reason
that explains most is taken first, then the rest is tested again. An event explains more than the
rhythm of the workers. Long waits by chance are called irregular.

Each rank (`loop`) is tested separately; the same pattern on several ranks is one row. P-values are
corrected for all tests, of all reasons on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.columns import Column, Schema
from stallscope.model.reasons import (
    CLEARLY,
    Explained,
    Residual,
    StepSeries,
    explain,
    ordinal,
    wait_reasons,
)
from stallscope.model.thresholds import CHANCE, MENTIONED, MOSTLY, NEARLY_ALL, SEVERAL, STANDS_OUT
from stallscope.stats import LEAST, log_binomial_bound
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.model.reasons import Evidence, Reason

MOST_EPISODES: Final = 0.75
"""Share of waiting steps of the null hypothesis: at most as many."""
HEAVY: Final = 0.1
"""Share of the stalls that count as the longest."""
NEARLY: Final = 0.8
"""Least share of a general pattern that a preferred, more specific pattern explains."""
MOST: Final = 12
"""Most patterns of one rank."""
PATTERNS: Final = Schema(
    "One row per pattern, by the stall time that it explains, longest first.",
    Column("pattern", pl.String),
    Column("title", pl.String),
    Column("stalls", pl.Int64, "stalls that it explains, over all ranks"),
    Column("stalled_s", pl.Float64, "their total time"),
    Column("share", pl.Float64, "share (0 to 1) of all stalled time"),
    Column("chance", pl.Float64, "probability by chance; null: not tested"),
    Column("rank", pl.Int16, "rank with most of these stalls"),
    Column("steps", pl.List(pl.Int32), "steps of this rank with the pattern"),
    Column("named", pl.List(pl.Int32), "steps that the title names"),
)


def patterns(evidence: Evidence) -> pl.DataFrame:
    """Find out why the training loop stalls when it does: columns of `PATTERNS`."""
    own, rows, lost_s = list(evidence.by_rank()), [], 0.0
    for rank, own_evidence in own:
        loop = StepSeries(own_evidence)
        steps = loop.keys["step"].to_numpy()
        lost_s += float(loop.stall_s.sum())
        reasons = wait_reasons(loop, own_evidence)
        for each in _explain_waits(loop, reasons, len(own)):
            explained, named = (steps[which].tolist() for which in (each.all, each.named))
            its_s = float(loop.stall_s[each.all].sum())
            about = (each.code, each.title, len(explained), its_s, None, each.chance, rank)
            rows.append((*about, explained, named, each.subject))
    table = pl.DataFrame(rows, {**PATTERNS, "subject": pl.String}, orient="row")
    sums = pl.col("stalls", "stalled_s").sum()
    # Of equal patterns, the smallest p-value counts on a rank, and over ranks the largest
    on_rank = (
        table.sort("stalled_s", descending=True, maintain_order=True)
        .group_by("pattern", "subject", "rank", maintain_order=True)
        .agg(
            pl.col("title", "named").first(),
            pl.col("chance").min(),
            pl.col("steps").explode().sort(),
            sums,
            most_s=pl.col("stalled_s").first(),
        )
    )
    ranks, all_ranks = pl.col("rank").n_unique(), pl.lit(len(own))
    alone = pl.format(" (rank {})", pl.col("rank").first())
    on = pl.when(ranks == 1).then(alone).otherwise(pl.format(" ({} of {} ranks)", ranks, all_ranks))
    return (
        on_rank.sort("most_s", descending=True, maintain_order=True)
        .group_by("pattern", "subject", maintain_order=True)
        .agg(
            pl.col("title").first() + (on if len(own) > 1 else pl.lit("")),
            pl.col("rank", "steps", "named").first(),
            pl.col("chance").max(),
            sums,
        )
        .with_columns(share=(pl.col("stalled_s") / lost_s).clip(upper_bound=1.0))
        .sort("stalled_s", descending=True, maintain_order=True)
        .select(pl.col(name).cast(kind) for name, kind in PATTERNS.items())
    )


def _explain_waits(loop: StepSeries, reasons: list[Reason], ranks: int) -> list[Explained]:
    """Take the best explanation, test the rest again, until no reason is significant."""
    left = Residual(loop.stall_s, np.ones(loop.size, dtype=bool))
    possible = [reason for reason in reasons if np.count_nonzero(reason.marked) >= reason.fewest]
    tests = ranks * (len({reason.code for reason in possible}) + 1)
    chosen: list[Explained] = []
    while len(chosen) < MOST:
        tried = (explain(reason, left, tests) for reason in possible)
        candidates = [each for each in tried if each is not None]
        candidates += _workers_together(loop, left, tests)
        if not candidates:
            break
        chosen.append(_best(candidates, left.seconds))
        left = left.without(chosen[-1].all)
    if (always := _constant(left)) is not None:
        chosen, left = [*chosen, always], left.without(always.all)
    return chosen + _irregular(left, float(loop.stall_s.sum()))


def _best(candidates: list[Explained], seconds: np.ndarray) -> Explained:
    """Return the explanation to take first: the one with the most time, with two exceptions.

    An explanation of far longer times goes first, as slow samples in a rhythm of small waits. So
    does a more specific explanation (earlier in the list) of nearly the same steps.
    """
    most = max(candidates, key=lambda each: float(seconds[each.all].sum()))

    def stands_out(each: Explained) -> bool:
        rest = most.named & ~each.all
        far_s = STANDS_OUT * np.median(seconds[rest]) if rest.any() else np.inf
        is_other = (each.code, each.subject) != (most.code, most.subject)
        return is_other and bool(np.median(seconds[each.all]) >= far_s)

    if outside := [each for each in candidates if stands_out(each)]:
        return _best(outside, seconds)
    enough_s = NEARLY * float(seconds[most.all].sum())
    return next(
        each for each in candidates if float(seconds[each.all & most.all].sum()) >= enough_s
    )


def _workers_together(loop: StepSeries, left: Residual, tests: int) -> Iterator[Explained]:
    """Yield stalls that return with each round of the workers, which then are awaited together."""
    levels, workers = left.levels(), loop.num_workers
    for stalled in sorted(levels, key=np.count_nonzero) if workers > 1 else ():
        chance, starts = rhythm(stalled, left.free, workers)
        if (chance := chance * len(levels) * tests) < CHANCE:
            took = seconds(float(np.median(left.seconds[starts])))
            title = f"Every {ordinal(workers)} step waits {took}{_round(loop, starts)}"
            explained = left.with_rounds(starts, workers)
            yield Explained("workers_together", "", title, explained, starts, chance)


def rhythm(flags: np.ndarray, free: np.ndarray, period: int) -> tuple[float, np.ndarray]:
    """Test whether flagged steps return after a period.

    The test counts pairs: events that follow another event exactly `period` steps later, compared
    with pairs at the distances from 2 to just below its double. So the phase may drift (an epoch
    that is no multiple of the period), lengths of waits do not matter, and slow trends with the
    distance cancel on both sides: stalls come in bursts, in which every short distance is more
    frequent than after shuffling. A run of steps counts as one event, at its first step.
    `tests/model/test_patterns.py` counts the false alarms.

    Args:
        flags: True for each step that is an event.
        free: True for each step that may be an event; other steps are skipped.
        period: in steps, at least 2.

    Returns:
        The probability of the rhythm by chance, and a mask of the events in it.
    """
    if flags.size <= 2 * period:
        return 1.0, np.zeros(flags.size, dtype=bool)
    places = np.flatnonzero(free)
    flagged = flags[places]
    events = np.zeros(flags.size, dtype=bool)
    events[places[flagged & ~np.append(False, flagged[:-1])]] = True
    pair = events[period:] & events[:-period]
    starts = np.append(pair, np.zeros(period, bool)) | np.append(np.zeros(period, bool), pair)
    if np.count_nonzero(starts) < max(SEVERAL, MOSTLY * np.count_nonzero(events)):
        return 1.0, starts
    hits, rooms = _pairs(events, 2 * period), _pairs(free, 2 * period)
    hit, own, tries, room = hits[period], rooms[period], hits[2:].sum(), rooms[2:].sum()
    if hit / own < CLEARLY * (tries - hit) / max(room - own, 1):
        return 1.0, starts
    [log_chance] = log_binomial_bound(*np.array([[hit], [tries], [own / room]]))
    return max(float(np.exp(log_chance)), LEAST), starts


def _pairs(events: np.ndarray, most: int) -> np.ndarray:
    """Count the pairs of events that lie 0, 1, ... `most - 1` steps apart."""
    spectrum = np.fft.rfft(events.astype(float), 2 * max(events.size, most))
    counts: np.ndarray = np.rint(np.fft.irfft(np.abs(spectrum) ** 2)[:most])
    return counts


def _round(loop: StepSeries, starts: np.ndarray) -> str:
    """Return the reason for the workers' rhythm in words."""
    workers = loop.num_workers
    if not np.isfinite(loop.made_s).any():
        return f", and there are {workers} workers: they probably finish together"
    # A worker sends a batch while it makes the next, so the longer of the two counts
    takes_s, to_do = float(np.nanmedian(loop.made_s)), "make"
    if np.isfinite(loop.sent_s).any() and float(np.nanmedian(loop.sent_s)) > takes_s:
        takes_s, to_do = float(np.nanmedian(loop.sent_s)), "send"
    rounds = np.flatnonzero(starts)[:, None] + np.arange(workers)
    ready_ns = loop.ready_ns[rounds[rounds[:, -1] < loop.size]]
    ready_ns = ready_ns[np.isfinite(ready_ns).all(axis=1)]
    spread_s = np.ptp(ready_ns, axis=1) / 1e9
    # Together: all batches of a round are ready within half the time for one
    if spread_s.size and float(np.median(spread_s)) <= MOSTLY * takes_s:
        return f": the {workers} workers finish together, then all are awaited"
    return (
        f", once in a round of the {count(workers, 'worker')}: each takes {seconds(takes_s)} to "
        f"{to_do} a batch, {count(workers, 'step')} take {seconds(workers * loop.typical_s)}"
    )


def _constant(left: Residual) -> Explained | None:
    """Return the constant wait of nearly every step; None where waits differ or are few."""
    lengths = left.seconds[left.flags]
    steps = int(np.count_nonzero(left.free))
    if not lengths.size or lengths.size < NEARLY_ALL * steps:
        return None
    hits, tries = np.array([lengths.size]), np.array([steps])
    log_chance = log_binomial_bound(hits, tries, np.array([MOST_EPISODES]))[0]
    chance = max(float(np.exp(log_chance)), LEAST)
    low_s, median_s, high_s = (float(limit) for limit in np.quantile(lengths, (0.25, 0.5, 0.75)))
    if chance >= CHANCE or high_s > STANDS_OUT * low_s:
        return None
    who = f"{share(lengths.size / steps)} of the steps wait"
    who = "Every step waits" if lengths.size == steps else who
    title = f"{who} {seconds(median_s)}: the loader is slower than the step throughout"
    return Explained("constant", "", title, left.flags, left.flags, chance)


def _irregular(left: Residual, total_s: float) -> list[Explained]:
    """Return the unexplained stalls where they are long enough; they have no p-value."""
    lengths = np.sort(left.seconds[left.flags])[::-1]
    if lengths.size < SEVERAL or lengths.sum() < MENTIONED * total_s:
        return []
    few = max(round(HEAVY * lengths.size), 1)
    longest = "longest one is" if few == 1 else f"longest {few} of them are"
    title = (
        f"{count(lengths.size, 'stall')} without a clear pattern, {seconds(float(lengths.sum()))} "
        f"in all (median {seconds(float(np.median(lengths)))}; the {longest} "
        f"{share(lengths[:few].sum() / lengths.sum())} of it)"
    )
    return [Explained("irregular", "stall", title, left.flags, left.flags, None)]
