"""Why a loop waits: which of the findings has to be mended first.

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

from stallscope.analyze.verdict import limits, processing
from stallscope.analyze.verdict.exposure import (
    CROWDED,
    FETCH,
    GETITEM_,
    MAIN,
    PIN,
    SENDING,
    START,
    UNATTRIBUTED,
)
from stallscope.analyze.verdict.finding import finding
from stallscope.diagnoses import (
    COPY,
    CPU_SATURATED,
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
from stallscope.diagnoses import SENDING as SENDING_CAUSE
from stallscope.units import share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Cause, Finding

    Found = dict[str, Finding]


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


def why_it_waits(facts: Facts, found: Found) -> Finding | None:
    """The verdict about a loop that stalls; None where no cause stands out.

    Args:
        facts: what was measured.
        found: what each rule says, by code.
    """

    def first(*causes: Cause) -> Finding | None:
        return next((found[one.code] for one in causes if one.code in found), None)

    unexplained = facts.exposure.of(UNATTRIBUTED)
    if unexplained > limits.UNEXPLAINED:
        why = f"nothing that was recorded explains {share(unexplained)} of the stalls"
        return inconclusive(facts, why, "ss.stage('...') around your own code names it")
    if facts.others_share >= limits.FOREIGN and _is_left(facts) < limits.HEALTHY:
        return _disturbed(facts)
    verdict = first(MEMORY_PRESSURE, SHM) or _of_parts(facts, found)
    verdict = verdict or first(SLOW_WORKER, SLOW_SAMPLES, OVERSUBSCRIPTION)
    verdict = verdict or _that_keeps_up(facts, found)
    verdict = verdict or first(LOCK) or _storage(facts, found) or first(TOO_FEW_WORKERS)
    return verdict or _of_work(facts, found) or first(CPU_SATURATED) or _most_work(found)


def _of_parts(facts: Facts, found: Found) -> Finding | None:
    """What most of the stalls is, where that is no work on samples."""
    if not facts.setup.num_workers:
        return found.get(MAIN_PROCESS.code)
    # Crowded or not: what is left of a part that a busy machine makes longer has to be much, too
    least = max(limits.DOMINATES * (1 - facts.exposure.of(CROWDED)), limits.LEADS)
    parts = (
        (MAIN, MAIN_PROCESS, least),
        (SENDING, SENDING_CAUSE, least),
        (PIN, COPY, limits.DOMINATES),
        (START, START_UP, limits.DOMINATES),
    )
    most = [cause.code for part, cause, limit in parts if facts.exposure.of(part) >= limit]
    return next((found[code] for code in most if code in found), None)


def _that_keeps_up(facts: Facts, found: Found) -> Finding | None:
    """Why workers that are fast enough, each with a core for itself, are late all the same."""
    if facts.free_load > limits.KEEPS_UP:
        return None
    queued, crowded = facts.use.queued_share or 0.0, facts.exposure.of(CROWDED)
    if queued < limits.QUEUES and crowded < limits.LEADS and not _varies_with_cores(facts):
        return found.get(TOO_LITTLE_PREFETCH.code)
    if CPU_SATURATED.code in found:
        return found[CPU_SATURATED.code]
    if facts.others_share < limits.FOREIGN:  # they are in each other's way, and keep up
        return found.get(TOO_LITTLE_PREFETCH.code)
    return _disturbed(facts)


def _varies_with_cores(facts: Facts) -> bool:
    """Whether batches may take different times only because others have the cores at times."""
    batch_s = facts.making.batch_s if facts.making else 0.0
    computes = facts.waiting_s < limits.DOMINATES * batch_s
    return computes and facts.others_share >= limits.FOREIGN


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


def _storage(facts: Facts, found: Found) -> Finding | None:
    """Storage, if its waiting dominates or reading is well ahead of everything else.

    Too few workers come first where that would be enough, unless there is next to nothing but
    waiting.
    """
    waits = found.get(STORAGE_LATENCY.code) or found.get(STORAGE_BANDWIDTH.code)
    if waits is None:
        return None
    waiting = facts.exposure.waiting(FETCH, GETITEM_)
    if TOO_FEW_WORKERS.code in found and waiting < limits.WAITS_ALONE:
        return None
    ahead = processing.leading(facts) in (FETCH, GETITEM_)
    return waits if ahead or waiting >= limits.DOMINATES else None


def _of_work(facts: Facts, found: Found) -> Finding | None:
    """The finding about the group of work that leads."""
    group = processing.leading(facts)
    return next((one for one in found.values() if group in processing.groups_of(one.code)), None)


def _most_work(found: Found) -> Finding | None:
    """Whatever group of work holds most."""
    works = [one for one in found.values() if processing.groups_of(one.code)]
    return max(works, key=lambda one: one.severity, default=None)
