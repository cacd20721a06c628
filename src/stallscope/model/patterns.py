"""Patterns: why the training loop stalls when it does, each with a chance of being wrong.

What explains most comes first, then what is left is looked at again. What happened at the very
steps (a slow sample, a garbage collection) is a better explanation than a rhythm alone. What only
looks like a pattern is not claimed: long waits by chance are called irregular. Each rank (`loop`)
is looked at by itself; what is found on several of them is one row. All `tests`, of so many causes
on so many `ranks`, share the doubt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.causes import (
    ExplainedStalls,
    Stops,
    explain,
    parts_s,
    step_causes,
    times_longer,
    wait_causes,
)
from stallscope.model.step_series import FEWEST, SPIKE, Evidence, Residual, loop_of, rhythm
from stallscope.model.thresholds import CAUSE_SHARE, CHANCE
from stallscope.stats import LEAST, log_binomial_bound
from stallscope.units import count, seconds, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stallscope.model.causes import PatternCause
    from stallscope.model.step_series import Rhythm, StepSeries
    from stallscope.store import Schema

    Recurring = Callable[[Residual, int], list[ExplainedStalls]]


RHYTHMS: Final = ("workers_together", "periodic", "periodic_step")
"""Patterns that are nothing but a rhythm: what is found of one later is part of it."""
NEARLY_ALL: Final = 0.9
"""At least this share of the steps waits when every step is said to."""
MOST_EPISODES: Final = 0.75
"""The chance of being wrong then: that no more than this share of the steps waits."""
ALIKE: Final = 3.0
"""Waits are alike when the upper quartile is not more times the lower one than this."""
SUBSTANTIAL: Final = 0.1
"""Share of all stalled time from which on what has no pattern is spoken of."""
TOGETHER: Final = 0.5
"""Workers finish together when the batches of one round are ready within this share of the time
that making one takes."""
HEAVY: Final = 0.1
"""The share of the stalls that are called the longest ones."""

NEARLY: Final = 0.8
"""A more specific pattern is preferred when it explains this share of what the other one does."""
MOST: Final = 12
"""More patterns are not looked for on one side of one rank."""
PATTERNS: Schema = {
    "pattern": pl.String,
    "title": pl.String,
    "stalls": pl.Int64,
    "stalled_s": pl.Float64,
    "share": pl.Float64,
    "period": pl.Int32,
    "chance": pl.Float64,
    "side": pl.Enum(("wait", "step")),
    "rank": pl.Int16,
    "steps": pl.List(pl.Int32),
    "named": pl.List(pl.Int32),
}
"""One row a pattern, the one that explains most first. `stalls`: the stalls, or the long steps,
that it explains, over all ranks; `stalled_s`: how long they are, or by how much longer than usual;
`share` (0 to 1) of all such time; `period` in steps, null where there is no rhythm; `chance`: the
probability that it is an accident, null where nothing is claimed; `side`: whether the loop waited
for data or a step was long; `steps`: which steps, of `rank` (the rank with most of it); `named`:
those of them that the title speaks of; the others lie beside these."""


def recurring_waits(loop: StepSeries, left: Residual, tests: int) -> list[ExplainedStalls]:
    """Stalls in a rhythm, the longest first: that of the workers, or one of unknown reason."""
    found = []
    for stalled, beat, stops in _rhythms(left, tests, loop.num_workers):
        waits = f"{stops.subject('waits', 'wait')} {stops.typical}"
        code, subject = "periodic", str(beat.period)
        if beat.period == loop.num_workers:
            code, subject = "workers_together", ""
            explained = left.with_rounds(stops.named, beat.period)
            title = f"{waits}{_round(loop, stops.named)}"
        else:
            explained = left.with_runs(stops.named, stalled, beat.period)
            title = f"{waits}; nothing that was recorded explains it"
        sure = (beat.chance, beat.period)
        found.append(ExplainedStalls(code, subject, title, explained, stops.named, *sure))
    return found


def recurring_steps(
    loop: StepSeries, parts: dict[str, np.ndarray], left: Residual, tests: int
) -> list[ExplainedStalls]:
    """Long steps in a rhythm, the longest first; their reason has no name."""
    found = []
    for stalled, beat, stops in _rhythms(left, tests):
        times = times_longer(loop, stops.named)
        longer = f"{times} times as long as usual ({stops.typical} more)"
        title = f"{stops.subject('is', 'are')} {longer}, {_where(parts, stops)}"
        explained = left.with_runs(stops.named, stalled, beat.period)
        about = ("periodic_step", str(beat.period), title, explained, stops.named)
        found.append(ExplainedStalls(*about, beat.chance, beat.period))
    return found


def constant(left: Residual) -> ExplainedStalls | None:
    """Nearly every step waits, about equally long; None where that is not so."""
    lengths = left.seconds[left.flags]
    steps = int(np.count_nonzero(left.free))
    if not lengths.size or lengths.size < NEARLY_ALL * steps:
        return None
    hits, tries = np.array([lengths.size]), np.array([steps])
    chance = max(
        float(np.exp(log_binomial_bound(hits, tries, np.array([MOST_EPISODES]))[0])), LEAST
    )
    low_s, median_s, high_s = (float(limit) for limit in np.quantile(lengths, (0.25, 0.5, 0.75)))
    if chance >= CHANCE or high_s > ALIKE * low_s:
        return None
    who = (
        "Every step waits"
        if lengths.size == steps
        else f"{share(lengths.size / steps)} of the steps wait"
    )
    title = f"{who} {seconds(median_s)}: the loader is slower than the step throughout"
    return ExplainedStalls("constant", "", title, left.flags, left.flags, chance)


def irregular(left: Residual, total_s: float, noun: str) -> list[ExplainedStalls]:
    """What no pattern explains, where it is much; no chance, as nothing is claimed of it.

    Args:
        left: where the loop stalled, as far as nothing explains it.
        total_s: for how long it stalled in all.
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
    return [ExplainedStalls("irregular", noun, title, left.flags, left.flags, None)]


def _rhythms(
    left: Residual, tests: int, expected: int = 0
) -> Iterator[tuple[np.ndarray, Rhythm, Stops]]:
    """The rhythms that are sure, of the fewest steps first: where each was found, and its steps."""
    levels = sorted(left.levels(), key=np.count_nonzero)
    for stalled in levels:
        beat = rhythm(stalled, left.free, expected, tests=len(levels) * tests)
        if beat is not None and beat.chance < CHANCE:
            starts = np.isin(np.arange(stalled.size), beat.starts)
            yield stalled, beat, Stops(starts, left.seconds, beat.period)


def _round(loop: StepSeries, starts: np.ndarray) -> str:
    """Why it is the workers' rhythm, as far as is known when their batches were ready."""
    workers = loop.num_workers
    if not np.isfinite(loop.made_s).any():
        return f", and there are {workers} workers: they probably finish together"
    # A worker makes a batch while it sends the one before: what takes longer counts
    takes_s, to_do = float(np.nanmedian(loop.made_s)), "make"
    if np.isfinite(loop.sent_s).any() and float(np.nanmedian(loop.sent_s)) > takes_s:
        takes_s, to_do = float(np.nanmedian(loop.sent_s)), "send"
    rounds = np.flatnonzero(starts)[:, None] + np.arange(workers)
    ready_ns = loop.ready_ns[rounds[rounds[:, -1] < loop.size]]
    ready_ns = ready_ns[np.isfinite(ready_ns).all(axis=1)]
    spread_s = np.ptp(ready_ns, axis=1) / 1e9
    if spread_s.size and float(np.median(spread_s)) <= TOGETHER * takes_s:
        return f": the {workers} workers finish together, then all are awaited"
    whose = "each takes" if workers > 1 else "it takes"
    return (
        f", once in a round of the {count(workers, 'worker')}: {whose} {seconds(takes_s)} to "
        f"{to_do} a batch, {count(workers, 'step')} take {seconds(workers * loop.typical_s)}"
    )


def _where(parts: dict[str, np.ndarray], stops: Stops) -> str:
    """In which part of the step most of the additional time lies, if that has a name."""
    unknown = "in your own code (a checkpoint or logging?)"
    excess_s = {
        name: np.median(took_s[stops.named]) - np.median(took_s) for name, took_s in parts.items()
    }
    name = max(excess_s, key=lambda part: excess_s[part], default="")
    much_s = CAUSE_SHARE * np.median(stops.seconds[stops.named])
    return f"mostly in {name}" if excess_s.get(name, 0.0) > much_s else unknown


def explain_waits(loop: StepSeries, evidence: Evidence, ranks: int) -> list[ExplainedStalls]:
    """Why the loop waits for data."""
    causes = wait_causes(loop, evidence)
    recurring = partial(recurring_waits, loop)
    found, left = _one_by_one(Residual.of(loop.stall_s), causes, recurring, ranks)
    always = constant(left)
    if always is not None:
        found, left = [*found, always], left.without(always.explained)
    return found + irregular(left, loop.lost_s, "stall")


def explain_long_steps(loop: StepSeries, evidence: Evidence, ranks: int) -> list[ExplainedStalls]:
    """Why some steps take far longer than the others."""
    parts = parts_s(loop, evidence.side_spans)
    causes = step_causes(loop, parts)
    recurring = partial(recurring_steps, loop, parts)
    found, left = _one_by_one(Residual.of(loop.long_s), causes, recurring, ranks)
    return found + irregular(left, loop.lost_s, "long step")


def _one_by_one(
    left: Residual, causes: list[PatternCause], recurring: Recurring, ranks: int
) -> tuple[list[ExplainedStalls], Residual]:
    """Take what explains most, look at the rest again, until nothing explains any more for sure."""
    possible = [cause for cause in causes if np.count_nonzero(cause.marked) >= cause.fewest]
    tests = ranks * (len({cause.code for cause in possible}) + 1)
    found: list[ExplainedStalls] = []
    while len(found) < MOST:
        tried = [explain(cause, left, tests) for cause in possible]
        candidates = [one for one in tried if one is not None] + recurring(left, tests)
        if not candidates:
            break
        found.append(_best(candidates, left.seconds))
        left = left.without(found[-1].explained)
    return found, left


def _best(candidates: list[ExplainedStalls], seconds: np.ndarray) -> ExplainedStalls:
    """The one to take first.

    It is the one that explains most, unless the times of another one stand far out of those that
    it names: out of a rhythm of small waits, the slow samples. A more specific one, which comes
    earlier in the list, is preferred where it explains nearly all of the same.
    """
    most = max(candidates, key=lambda one: float(seconds[one.explained].sum()))
    outside = [
        one
        for one in candidates
        if (one.code, one.subject) != (most.code, most.subject)
        and _stands_out(one.explained, most.named, seconds)
    ]
    if outside:
        return _best(outside, seconds)
    enough_s = NEARLY * float(seconds[most.explained].sum())
    return next(
        one
        for one in candidates
        if float(seconds[one.explained & most.explained].sum()) >= enough_s
    )


def _stands_out(high: np.ndarray, low: np.ndarray, seconds: np.ndarray) -> bool:
    """Whether one pattern's times are spikes beside those of another one."""
    rest = low & ~high
    return bool(rest.any() and np.median(seconds[high]) >= SPIKE * np.median(seconds[rest]))


@dataclass(frozen=True, eq=False)
class Pattern:
    """Why one rank's loop stalled, or had long steps, at some of its steps."""

    found: ExplainedStalls
    side: str
    """Whether the loop waited for data ("wait") or a step was long ("step")."""
    rank: int
    """Rank in a distributed run."""
    steps: list[int]
    """Numbers of the steps that it explains."""
    named: list[int]
    """Those of them that the title speaks of."""
    lost_s: float
    """How long the stalls are, or by how much the steps are longer than usual."""


def patterns(evidence: Evidence) -> pl.DataFrame:
    """Why the training loop stalls when it does.

    Returns:
        Columns of `PATTERNS`; empty where the loop does not stall.
    """
    found: list[Pattern] = []
    lost_s = 0.0
    own = list(evidence.by_rank())
    for rank, known in own:
        loop = loop_of(known)
        waits = explain_waits(loop, known, len(own))
        found += [_pattern(one, rank, "wait", loop) for one in waits]
        steps = explain_long_steps(loop, known, len(own))
        found += [_pattern(one, rank, "step", loop) for one in steps]
        lost_s += loop.lost_s
    rows = [_row(same, lost_s, len(own)) for same in _alike(found)]
    table = pl.DataFrame(rows, PATTERNS, orient="row")
    return table.sort("stalled_s", descending=True, maintain_order=True)


def _pattern(found: ExplainedStalls, rank: int, side: str, loop: StepSeries) -> Pattern:
    lost_s = loop.stall_s if side == "wait" else loop.long_s
    steps = loop.keys["step"].to_numpy()
    explained, named = (steps[which].tolist() for which in (found.explained, found.named))
    return Pattern(found, side, rank, explained, named, float(lost_s[found.explained].sum()))


def _alike(patterns: Iterable[Pattern]) -> list[list[Pattern]]:
    """The same pattern on several ranks together, the rank with most of it first."""
    groups: dict[tuple[str, str, str, int], list[Pattern]] = {}
    seen: Counter[tuple[str, str, str, int]] = Counter()
    for one in patterns:
        kind = (one.side, one.found.code, one.found.subject)
        here = (*kind, one.rank)
        again = 0 if one.found.code in RHYTHMS else seen[here]
        seen[here] += 1
        groups.setdefault((*kind, again), []).append(one)
    return [sorted(group, key=lambda one: -one.lost_s) for group in groups.values()]


def _row(same: list[Pattern], total_s: float, ranks: int) -> dict[str, object]:
    first = same[0]
    stalled_s = sum(one.lost_s for one in same)
    where = sorted({one.rank for one in same})
    on = f" (rank {where[0]})" if len(where) == 1 else f" ({len(where)} of {ranks} ranks)"
    return {
        "pattern": first.found.code,
        "title": first.found.title + (on if ranks > 1 else ""),
        "stalls": sum(len(one.steps) for one in same),
        "stalled_s": stalled_s,
        "share": min(stalled_s / total_s, 1.0),
        "period": first.found.period,
        "chance": _chance(same),
        "side": first.side,
        "rank": first.rank,
        "steps": sorted(step for one in same if one.rank == first.rank for step in one.steps),
        "named": first.named,
    }


def _chance(same: list[Pattern]) -> float | None:
    """The chance of the rank where it is least sure; on a rank, the first finding counts."""
    least: dict[int, float] = {}
    for one in same:
        if one.found.chance is not None:
            least[one.rank] = min(one.found.chance, least.get(one.rank, 1.0))
    return max(least.values(), default=None)
