"""Which finding is the verdict: what has to be mended first, and nothing where nothing is wrong.

The order, and why:

1. A run that is too short carries no judgement.
2. Starting workers, the loop's own work and copies, where they take more than all waiting does.
3. A loop that hardly waits is healthy.
4. Stalls that nothing explains carry no judgement.
5. What the loop waits for: see `stalled`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.analyze.verdict import limits, loop, machine, processing, storage, workers
from stallscope.analyze.verdict.finding import JUST, clear, finding
from stallscope.analyze.verdict.stalled import inconclusive, no_cause, why_it_waits
from stallscope.diagnoses import (
    COPY,
    CPU_SATURATED,
    HEALTHY,
    INCONCLUSIVE,
    MAIN_PROCESS,
    START_UP,
    TOO_LITTLE_PREFETCH,
)
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.analyze.verdict.setup import Setup
    from stallscope.diagnoses import Finding

    Found = dict[str, Finding]

_DOUBTFUL = 0.3
"""A finding that is less sure than this is no verdict."""


def judge(facts: Facts) -> tuple[Finding, ...]:
    """The verdict, and whatever else was found, what costs most first.

    Used-up cores stand last: they are what the other findings do, and not one more cause.

    Args:
        facts: what was measured.
    """
    missing = too_short(facts)
    if missing:
        return (inconclusive(facts, missing, "more batches, or a larger budget_s"),)
    found = findings(facts)
    verdict = _first(facts, found)
    if verdict.code == HEALTHY.code and not facts.setup.has_step:
        why = "no step was given, and the loader alone gives batches without a pause"
        verdict = inconclusive(facts, why, "give the step, or ss.simulated_step(seconds)")
    if verdict.confidence < _DOUBTFUL and verdict.code not in (INCONCLUSIVE.code, HEALTHY.code):
        what = f"{verdict.title}; but this is doubtful"
        verdict = inconclusive(facts, what, "measure again on a machine that does nothing else")
    rest = [one for one in found.values() if one.code != verdict.code and _is_worth(one)]
    if verdict.code == HEALTHY.code:
        rest = [one for one in rest if one.code in (START_UP.code, MAIN_PROCESS.code, COPY.code)]
    return (verdict, *sorted(rest, key=lambda one: (one.code == CPU_SATURATED.code, -one.severity)))


def _is_worth(one: Finding) -> bool:
    """Whether a finding is worth a line beside the verdict.

    That workers keep up is no cause beside another one.
    """
    heavy = one.severity >= limits.WORTH and one.confidence >= JUST
    return heavy and one.code != TOO_LITTLE_PREFETCH.code


def findings(facts: Facts) -> Found:
    """What each rule says, by code."""
    waits = facts.stall_share >= limits.HEALTHY
    every = [
        workers.start_up(facts),
        _longest(
            loop.no_worker(facts) if waits else None,
            loop.own_parts(facts),
            loop.computes_in_python(facts),
            loop.idle_device(facts),
        ),
        loop.copies(facts),
    ]
    if waits:
        every += [
            *machine.memory(facts),
            workers.slow_worker(facts),
            workers.slow_samples(facts),
            machine.oversubscription(facts),
            storage.lock(facts),
            storage.storage(facts),
            workers.too_few(facts),
            *processing.works(facts),
            machine.cpu_saturated(facts),
            workers.too_little_prefetch(facts),
        ]
    return {one.code: one for one in every if one is not None}


def fewest_steps(setup: Setup) -> int:
    """Steps of the steady state below which there is no verdict."""
    return max(limits.FEWEST_STEPS, limits.ROUNDS * setup.num_workers)


def too_short(facts: Facts) -> str:
    """Why there was too little to judge by; '' where there was enough."""
    wanted = fewest_steps(facts.setup)
    if facts.time is None:
        return "no step of the loop was seen"
    if facts.steps >= wanted or facts.starts.share >= limits.DOMINATES:
        return ""
    return (
        f"{count(facts.steps, 'step')} after the warm-up, and {wanted} are needed: "
        f"{count(wanted - facts.steps, 'batch', 'es')} more"
    )


def healthy(facts: Facts) -> Finding:
    """That the loop hardly waits."""
    low_enough = clear(facts.stall_high, limits.HEALTHY, limits.HEALTHY / 2)
    gain = facts.gain
    agreed = gain is not None and gain.is_none
    return finding(
        HEALTHY,
        facts,
        f"it stands still {share(facts.stall_share)} of the time",
        severity=0.0,
        clearly=max(low_enough, 0.9 if agreed else 0.6),
        evidence={
            "stall_share": facts.stall_share,
            "stall_share_low": facts.stall_low,
            "stall_share_high": facts.stall_high,
            "headroom_factor": gain.factor if gain else None,
            "headroom_factor_low": gain.low if gain else None,
            "headroom_factor_high": gain.high if gain else None,
        },
    )


def _first(facts: Facts, found: Found) -> Finding:
    """The verdict; see the module's text for the order."""
    beside = [found[one.code] for one in (START_UP, COPY) if one.code in found]
    own = found.get(MAIN_PROCESS.code)
    if own is not None and (facts.setup.num_workers or own.severity > facts.stall_share):
        beside.append(own)
    costly = max(beside, key=lambda one: one.severity, default=None)
    if costly is not None and costly.severity >= facts.stall_share:
        return costly
    if facts.stall_share < limits.HEALTHY or _is_little(facts):
        return healthy(facts)
    verdict = why_it_waits(facts, found)
    is_little = verdict is None or verdict.severity < limits.WORTH
    gains = facts.gain is not None and facts.gain.is_above(limits.HEALTHY)
    if _is_near(facts) and is_little and not gains:
        return healthy(facts)  # what waits longest is next to nothing
    return verdict or no_cause(facts)


def _is_little(facts: Facts) -> bool:
    """Whether the stalls are hardly above what matters, and what the ladder could gain is below.

    The ladder decides: it measures the gain itself, and in a loop without a recorder.
    """
    return _is_near(facts) and facts.gain is not None and facts.gain.is_below(limits.HEALTHY)


def _is_near(facts: Facts) -> bool:
    return facts.stall_share < 2 * limits.HEALTHY


def _longest(*ones: Finding | None) -> Finding | None:
    return max((one for one in ones if one), key=lambda one: one.severity, default=None)
