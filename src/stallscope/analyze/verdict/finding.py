"""How a rule says what it found: title, evidence, how sure, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.advice import next_step
from stallscope.analyze.verdict.exposure import UNATTRIBUTED
from stallscope.diagnoses import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Cause

JUST: Final = 0.5
"""Confidence of a rule that is only just met."""
_MANY_STEPS: Final = 30
"""From so many steps on, a run is no longer called short."""


def clear(value: float, limit: float, sure: float) -> float:
    """How clearly a rule is met: `JUST` at its limit, 1 where nobody would doubt it.

    Args:
        value: what was measured.
        limit: where the rule begins to hold.
        sure: where it holds for sure; may lie below the limit.
    """
    way = (value - limit) / (sure - limit)
    return min(max(JUST + (1 - JUST) * way, 0.0), 1.0)


def trust(facts: Facts) -> float:
    """How far the measurement itself can be trusted (0 to 1), whatever it says.

    It is short, or something else had the cores, or it does not explain the stalls.
    """
    short = min(facts.steps / _MANY_STEPS, 1.0)
    disturbed = max(facts.others_share - limits.FOREIGN, 0.0)
    # Of a worker that hardly ever has a core, it cannot be told which stage would compute
    queued = (facts.use.queued_share or 0.0) if disturbed else 0.0
    calm = min(1 - disturbed / 2, limits.BEARABLE - queued)
    return max(min(0.5 + short / 2, calm, 1 - facts.exposure.of(UNATTRIBUTED)), 0.0)


def finding(  # noqa: PLR0913 - the fields of a finding
    cause: Cause,
    facts: Facts,
    what: str,
    *,
    severity: float,
    clearly: float,
    evidence: Mapping[str, float | None],
    where: str = "",
) -> Finding:
    """A finding of this cause.

    Args:
        cause: what it is.
        facts: what is known.
        what: words and numbers for the title.
        severity: share (0 to 1) of the loop's time that it costs.
        clearly: how clearly (0 to 1) its rule is met.
        evidence: numbers with their names; those that are not known are left out.
        where: a stage, or a line of the user's, for the next step.
    """
    return Finding(
        code=cause.code,
        title=cause.title.format(what=what),
        severity=min(max(severity, 0.0), 1.0),
        evidence={name: float(value) for name, value in evidence.items() if value is not None},
        confidence=min(clearly, trust(facts)),
        next_step=next_step(cause.code, where, facts.line_of(where)),
    )
