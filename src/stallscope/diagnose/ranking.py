"""Which finding is the verdict: what has to be mended first, and nothing where nothing is wrong.

The order, and why:

1. A run that is too short carries no judgement.
2. Starting workers, the loop's own work and copies, where they take more than all waiting does.
3. A loop that hardly waits is healthy.
4. Stalls that nothing explains carry no judgement.
5. What the loop waits for: see `stalled`.

Why a loop waits: which of the findings has to be mended first.

The order, and why:

1. Stalls that nothing explains carry no judgement.
2. What is no work on samples, where it is most of the stalls: the loop's own part (all of it, when
   there is no worker), pinning, sending, starting.
3. One thing among equals: one worker, single samples. The others are quick enough, so their stages
   are not the cause.
4. Threads in each other's way: all stages' times are longer for it.
5. Workers that keep up on average, or would if they had a core each: speed is not the cause.
6. Waiting for a lock: all that is behind it takes longer.
7. Workers that are too few while cores are free, if more would be enough; unless nearly all is
   waiting for storage.
8. Waiting for storage, and then the stage that dominates, also where the cores are used up: it is
   what there is to be mended.
9. Cores that are used up by work in which no stage dominates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stallscope.diagnose import rules, thresholds, worker_rules
from stallscope.diagnose.exposure import (
    CROWDED,
    DIGITS,
    FETCH,
    GETITEM_,
    MAIN,
    PIN,
    SENDING,
    START,
    UNATTRIBUTED,
)
from stallscope.diagnose.findings import JUST, clear, finding
from stallscope.diagnose.result import (
    CAUSES,
    COPY,
    CPU_SATURATED,
    HEALTHY,
    INCONCLUSIVE,
    LOCK,
    MAIN_PROCESS,
    MEMORY_PRESSURE,
    OVERSUBSCRIPTION,
    SHM,
    SLOW_SAMPLES,
    SLOW_WORKER,
    START_UP,
    STORAGE_BANDWIDTH,
    STORAGE_LATENCY,
    TOO_FEW_WORKERS,
    TOO_LITTLE_PREFETCH,
)
from stallscope.diagnose.result import SENDING as SENDING_CAUSE
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.diagnose.batch_times import Setup
    from stallscope.diagnose.facts import Facts
    from stallscope.diagnose.result import Cause, Finding


if TYPE_CHECKING:
    CauseFindings = dict[str, Finding]


def inconclusive(facts: Facts, why: str, remedy: str) -> Finding:
    """That nothing can be said, and why."""
    found = finding(
        INCONCLUSIVE,
        facts,
        why,
        severity=facts.stall_share,
        clearly=1.0,
        evidence={
            "stall_share": facts.stall_share if facts.time else None,
            "unattributed_share": facts.exposure.of(UNATTRIBUTED) if facts.time else None,
            "other_processes_share": facts.others_share,
            "steps_count": facts.steps,
        },
        where=remedy,
    )
    return replace(found, confidence=1.0)  # that it cannot be told is sure


def no_cause(facts: Facts) -> Finding:
    """That a loop stalls, and nothing of what it waits for stands out."""
    return inconclusive(
        facts,
        f"the loop stands still {share(facts.stall_share)} of the time, and no cause stands out",
        "03_cached_baseline takes one cost after the other away",
    )


def rank_findings(facts: Facts, found: CauseFindings) -> Finding | None:
    """The verdict about a loop that stalls; None where no cause stands out.

    Args:
        facts: what was measured.
        found: what each rule says, by code.
    """

    def first(*causes: Cause) -> Finding | None:
        return next((found[one.code] for one in causes if one.code in found), None)

    unexplained = facts.exposure.of(UNATTRIBUTED)
    if unexplained > thresholds.UNEXPLAINED:
        why = f"nothing that was recorded explains {share(unexplained)} of the stalls"
        return inconclusive(facts, why, "ss.stage('...') around your own code names it")
    if facts.others_share >= thresholds.FOREIGN and _is_left(facts) < thresholds.HEALTHY:
        return _disturbed(facts)
    verdict = first(MEMORY_PRESSURE, SHM) or _of_parts(facts, found)
    verdict = verdict or first(SLOW_WORKER, SLOW_SAMPLES, OVERSUBSCRIPTION)
    verdict = verdict or _that_keeps_up(facts, found)
    verdict = verdict or first(LOCK) or _storage(facts, found) or first(TOO_FEW_WORKERS)
    return verdict or _of_work(facts, found) or first(CPU_SATURATED) or _most_work(found)


def _of_parts(facts: Facts, found: CauseFindings) -> Finding | None:
    """What most of the stalls is, where that is no work on samples."""
    if not facts.setup.num_workers:
        return found.get(MAIN_PROCESS.code)
    # Crowded or not: what is left of a part that a busy machine makes longer has to be much, too
    least = max(thresholds.DOMINATES * (1 - facts.exposure.of(CROWDED)), thresholds.LEADS)
    parts = (
        (MAIN, MAIN_PROCESS, least),
        (SENDING, SENDING_CAUSE, least),
        (PIN, COPY, thresholds.DOMINATES),
        (START, START_UP, thresholds.DOMINATES),
    )
    most = [cause.code for part, cause, limit in parts if facts.exposure.of(part) >= limit]
    return next((found[code] for code in most if code in found), None)


def _that_keeps_up(facts: Facts, found: CauseFindings) -> Finding | None:
    """Why workers that are fast enough, each with a core for itself, are late all the same."""
    if facts.free_load > thresholds.KEEPS_UP:
        return None
    queued, crowded = facts.use.queued_share or 0.0, facts.exposure.of(CROWDED)
    if queued < thresholds.QUEUES and crowded < thresholds.LEADS and not _varies_with_cores(facts):
        return found.get(TOO_LITTLE_PREFETCH.code)
    if CPU_SATURATED.code in found:
        return found[CPU_SATURATED.code]
    if facts.others_share < thresholds.FOREIGN:  # they are in each other's way, and keep up
        return found.get(TOO_LITTLE_PREFETCH.code)
    return _disturbed(facts)


def _varies_with_cores(facts: Facts) -> bool:
    """Whether batches may take different times only because others have the cores at times."""
    batch_s = facts.making.batch_s if facts.making else 0.0
    computes = facts.waiting_s < thresholds.DOMINATES * batch_s
    return computes and facts.others_share >= thresholds.FOREIGN


def _is_left(facts: Facts) -> float:
    """Share (0 to 1) of the loop's time that stalls would take if nobody waited for a core."""
    left = facts.stall_share * facts.exposure.free
    if facts.setup.num_workers or facts.making is None:
        return left
    return min(left, facts.free_load / (1 + facts.free_load))  # it makes a batch, then uses it


def _disturbed(facts: Facts) -> Finding:
    """That the loop waits because other processes have the cores."""
    queued = facts.use.queued_share or 0.0
    why = (
        f"other processes have {share(facts.others_share)} of the cores, and without them the "
        f"loop would hardly wait (who makes its batches waits for a core {share(queued)} of the "
        "time)"
    )
    return inconclusive(facts, why, "measure again on a machine that does nothing else")


def _storage(facts: Facts, found: CauseFindings) -> Finding | None:
    """Storage, if its waiting dominates or reading is well ahead of everything else.

    Too few workers come first where that would be enough, unless there is next to nothing but
    waiting.
    """
    waits = found.get(STORAGE_LATENCY.code) or found.get(STORAGE_BANDWIDTH.code)
    if waits is None:
        return None
    waiting = facts.exposure.waiting(FETCH, GETITEM_)
    if TOO_FEW_WORKERS.code in found and waiting < thresholds.WAITS_ALONE:
        return None
    ahead = rules.leading(facts) in (FETCH, GETITEM_)
    return waits if ahead or waiting >= thresholds.DOMINATES else None


def _of_work(facts: Facts, found: CauseFindings) -> Finding | None:
    """The finding about the group of work that leads."""
    group = rules.leading(facts)
    return next((one for one in found.values() if group in rules.groups_of(one.code)), None)


def _most_work(found: CauseFindings) -> Finding | None:
    """Whatever group of work holds most."""
    works = [one for one in found.values() if rules.groups_of(one.code)]
    return min(works, key=_by_cost, default=None)


if TYPE_CHECKING:
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
    return (verdict, *sorted(rest, key=lambda one: (one.code == CPU_SATURATED.code, _by_cost(one))))


def _by_cost(one: Finding) -> tuple[float, float, int]:
    """Key of an order: what costs most first, then what is surer, then the order of the causes."""
    place = list(CAUSES).index(one.code)
    return -round(one.severity, DIGITS), -round(one.confidence, DIGITS), place


def _is_worth(one: Finding) -> bool:
    """Whether a finding is worth a line beside the verdict.

    That workers keep up is no cause beside another one.
    """
    heavy = one.severity >= thresholds.WORTH and one.confidence >= JUST
    return heavy and one.code != TOO_LITTLE_PREFETCH.code


def findings(facts: Facts) -> Found:
    """What each rule says, by code."""
    waits = facts.stall_share >= thresholds.HEALTHY
    every = [
        worker_rules.start_up(facts),
        _longest(
            rules.no_worker(facts) if waits else None,
            rules.own_parts(facts),
            rules.computes_in_python(facts),
            rules.idle_device(facts),
        ),
        rules.copies(facts),
    ]
    if waits:
        every += [
            *rules.memory(facts),
            worker_rules.slow_worker(facts),
            worker_rules.slow_samples(facts),
            rules.oversubscription(facts),
            rules.lock(facts),
            rules.storage(facts),
            worker_rules.too_few(facts),
            *rules.works(facts),
            rules.cpu_saturated(facts),
            worker_rules.too_little_prefetch(facts),
        ]
    return {one.code: one for one in every if one is not None}


def fewest_steps(setup: Setup) -> int:
    """Steps of the steady state below which there is no verdict."""
    return max(thresholds.FEWEST_STEPS, thresholds.ROUNDS * setup.num_workers)


def too_short(facts: Facts) -> str:
    """Why there was too little to judge by; '' where there was enough."""
    wanted = fewest_steps(facts.setup)
    if facts.time is None:
        return "no step of the loop was seen"
    if facts.steps >= wanted or facts.starts.share >= thresholds.DOMINATES:
        return ""
    return (
        f"{count(facts.steps, 'step')} after the warm-up, and {wanted} are needed: "
        f"{count(wanted - facts.steps, 'batch', 'es')} more"
    )


def healthy(facts: Facts) -> Finding:
    """That the loop hardly waits."""
    low_enough = clear(facts.stall_high, thresholds.HEALTHY, thresholds.HEALTHY / 2)
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
    if facts.stall_share < thresholds.HEALTHY or _is_little(facts):
        return healthy(facts)
    verdict = rank_findings(facts, found)
    is_little = verdict is None or verdict.severity < thresholds.WORTH
    gains = facts.gain is not None and facts.gain.is_above(thresholds.HEALTHY)
    if _is_near(facts) and is_little and not gains:
        return healthy(facts)  # what waits longest is next to nothing
    return verdict or no_cause(facts)


def _is_little(facts: Facts) -> bool:
    """Whether the stalls are hardly above what matters, and what the ladder could gain is below.

    The ladder decides: it measures the gain itself, and in a loop without a recorder.
    """
    return _is_near(facts) and facts.gain is not None and facts.gain.is_below(thresholds.HEALTHY)


def _is_near(facts: Facts) -> bool:
    return facts.stall_share < 2 * thresholds.HEALTHY


def _longest(*ones: Finding | None) -> Finding | None:
    return max((one for one in ones if one), key=lambda one: one.severity, default=None)
