"""Why the training loop stands still when it does: patterns, each with a chance of being wrong.

What only looks like a pattern is not claimed: long waits by chance are called irregular. Each rank
is looked at by itself; what is found on several of them is one row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stallscope.analyze.patterns.evidence import Evidence
from stallscope.analyze.patterns.explanations import why_it_waits, why_steps_are_long
from stallscope.analyze.patterns.recurring import RHYTHMS
from stallscope.analyze.patterns.standstill import loop_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from polars._typing import PolarsDataType

    from stallscope.analyze.patterns.causes import Found
    from stallscope.analyze.patterns.standstill import Loop

    Schema = dict[str, PolarsDataType]

__all__ = ["PATTERNS", "Evidence", "Pattern", "patterns"]

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


@dataclass(frozen=True)
class Pattern:
    """Why the loop stood still at some steps of one rank."""

    code: str
    """Kind of pattern."""
    subject: str
    """What tells it from others of its kind: a worker, the name of a part, a period."""
    title: str
    """One sentence with numbers."""
    side: str
    """Whether the loop waited for data ("wait") or a step was long ("step")."""
    rank: int
    """Rank in a distributed run."""
    steps: tuple[int, ...]
    """The steps that it explains."""
    named: tuple[int, ...]
    """Those of them that the title speaks of."""
    stalled_s: float
    """For how long the loop stood still there."""
    period: int | None
    """Steps from one time to the next; None where there is no rhythm."""
    chance: float | None
    """Probability that it is an accident; None where nothing is claimed."""


def patterns(evidence: Evidence) -> pl.DataFrame:
    """Why the training loop stands still when it does.

    Args:
        evidence: what is known about the steps.

    Returns:
        Columns of `PATTERNS`; empty where the loop does not stand still.
    """
    found: list[Pattern] = []
    still_s = 0.0
    own = list(evidence.by_rank())
    for rank, known in own:
        loop = loop_of(known)
        waits = why_it_waits(loop, known, len(own))
        found += [_pattern(one, rank, "wait", loop) for one in waits]
        steps = why_steps_are_long(loop, known, len(own))
        found += [_pattern(one, rank, "step", loop) for one in steps]
        still_s += loop.still_s
    rows = [_row(same, still_s, len(own)) for same in _alike(found)]
    table = pl.DataFrame(rows, PATTERNS, orient="row")
    return table.sort("stalled_s", descending=True, maintain_order=True)


def _pattern(found: Found, rank: int, side: str, loop: Loop) -> Pattern:
    seconds = loop.stall_s if side == "wait" else loop.long_s
    return Pattern(
        code=found.code,
        subject=found.subject,
        title=found.title,
        side=side,
        rank=rank,
        steps=_steps(loop, found.explained),
        named=_steps(loop, found.named),
        stalled_s=float(seconds[found.explained].sum()),
        period=found.period,
        chance=found.chance,
    )


def _steps(loop: Loop, which: np.ndarray) -> tuple[int, ...]:
    return tuple(loop.keys["step"].to_numpy()[which].tolist())


def _alike(found: Iterable[Pattern]) -> list[list[Pattern]]:
    """The same pattern on several ranks together, the rank with most of it first."""
    groups: dict[tuple[str, str, str, int], list[Pattern]] = {}
    seen: Counter[tuple[str, str, str, int]] = Counter()
    for one in found:
        kind = (one.side, one.code, one.subject)
        here = (*kind, one.rank)
        again = 0 if one.code in RHYTHMS else seen[here]
        seen[here] += 1
        groups.setdefault((*kind, again), []).append(one)
    return [sorted(group, key=lambda one: -one.stalled_s) for group in groups.values()]


def _row(same: list[Pattern], total_s: float, ranks: int) -> dict[str, object]:
    first = same[0]
    stalled_s = sum(one.stalled_s for one in same)
    return {
        "pattern": first.code,
        "title": first.title + _on({one.rank for one in same}, ranks),
        "stalls": sum(len(one.steps) for one in same),
        "stalled_s": stalled_s,
        "share": min(stalled_s / total_s, 1.0),
        "period": first.period,
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
        if one.chance is not None:
            least[one.rank] = min(one.chance, least.get(one.rank, 1.0))
    return max(least.values(), default=None)


def _on(where: set[int], ranks: int) -> str:
    """Which ranks a sentence is about, where there are several."""
    if ranks == 1:
        return ""
    if len(where) == 1:
        return f" (rank {next(iter(where))})"
    return f" ({len(where)} of {ranks} ranks)"
