"""Which finding is the verdict: what has to be mended first, and nothing where nothing is wrong.

The order, and why:

1. A run that is too short carries no judgement.
2. Starting workers, the loop's own work and copies, where they take more than all waiting does.
3. A loop that hardly waits is healthy.
4. Stalls that nothing explains carry no judgement.
5. What is no work on samples, where it is most of the stalls: the loop's own part (all of it, when
   there is no worker), pinning, sending, starting.
6. One thing among equals: one worker, single samples. The others are quick enough, so their stages
   are not the cause.
7. Threads in each other's way: all stages' times are longer for it.
8. Workers that keep up on average, or would if they had a core each: speed is not the cause.
9. Waiting for a lock: all that is behind it takes longer.
10. Workers that are too few while cores are free, if more would be enough; unless nearly all is
    waiting for storage.
11. Waiting for storage, and then the stage that dominates, also where the cores are used up: it is
    what there is to be mended.
12. Cores that are used up by work in which no stage dominates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.analyze.verdict import limits, loop, machine, processing, storage, workers
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
from stallscope.analyze.verdict.finding import JUST, clear, finding
from stallscope.diagnoses import (
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
from stallscope.diagnoses import SENDING as SENDING_CAUSE
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Cause, Finding

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
    heavy = one.severity >= limits.HEALTHY and one.confidence >= JUST
    return heavy and one.code != TOO_LITTLE_PREFETCH.code


def findings(facts: Facts) -> Found:
    """What each rule says, by code."""
    every = [
        workers.start_up(facts),
        _longest(loop.own_parts(facts), loop.computes_in_python(facts), loop.idle_device(facts)),
        loop.copies(facts),
    ]
    if facts.stall_share >= limits.HEALTHY:
        every += [
            *machine.memory(facts),
            loop.no_worker(facts),
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


def too_short(facts: Facts) -> str:
    """Why there was too little to judge by; '' where there was enough."""
    wanted = max(limits.FEWEST_STEPS, limits.ROUNDS * facts.setup.num_workers)
    if facts.time is None:
        return "no step of the loop was seen"
    if facts.steps >= wanted or facts.starts.share >= limits.DOMINATES:
        return ""
    return (
        f"{count(facts.steps, 'step')} after the warm-up, and {wanted} are needed: "
        f"{count(wanted - facts.steps, 'batch', 'es')} more"
    )


def inconclusive(facts: Facts, why: str, remedy: str) -> Finding:
    """That nothing can be said, and why."""
    return finding(
        INCONCLUSIVE,
        facts,
        why,
        severity=facts.stall_share * facts.exposure.of(UNATTRIBUTED),
        clearly=1.0,
        evidence={
            "stall_share": facts.stall_share if facts.time else None,
            "unattributed_share": facts.exposure.of(UNATTRIBUTED) if facts.time else None,
            "other_processes_share": facts.others_share,
            "steps_count": facts.steps,
        },
        where=remedy,
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
    if own is not None and facts.setup.num_workers:
        beside.append(own)
    costly = max(beside, key=lambda one: one.severity, default=None)
    if costly is not None and costly.severity >= facts.stall_share:
        return costly
    if facts.stall_share < limits.HEALTHY or _is_within_noise(facts):
        return healthy(facts)
    return _of_stalls(facts, found)


def _is_within_noise(facts: Facts) -> bool:
    """Whether the stalls may be below what matters, and the ladder finds nothing to be gained."""
    return facts.stall_low < limits.HEALTHY and facts.gain is not None and facts.gain.is_none


def _of_stalls(facts: Facts, found: Found) -> Finding:
    """Why the loop waits."""

    def first(*causes: Cause) -> Finding | None:
        return next((found[one.code] for one in causes if one.code in found), None)

    unexplained = facts.exposure.of(UNATTRIBUTED)
    if unexplained > limits.UNEXPLAINED:
        why = f"nothing that was recorded explains {share(unexplained)} of the stalls"
        return inconclusive(facts, why, "ss.stage('...') around your own code names it")
    verdict = first(MEMORY_PRESSURE, SHM) or _of_parts(facts, found)
    verdict = verdict or first(SLOW_WORKER) or _one_of_many(facts, found)
    verdict = verdict or first(OVERSUBSCRIPTION) or _that_keeps_up(facts, found)
    verdict = verdict or first(LOCK) or _storage(facts, found) or first(TOO_FEW_WORKERS)
    verdict = verdict or _of_work(facts, found) or first(CPU_SATURATED) or _most_work(found)
    return verdict or inconclusive(
        facts,
        f"the loop stands still {share(facts.stall_share)} of the time, and no cause stands out",
        "03_cached_baseline takes one cost after the other away",
    )


def _of_parts(facts: Facts, found: Found) -> Finding | None:
    """What most of the stalls is, where that is no work on samples."""
    if not facts.setup.num_workers:
        return found.get(MAIN_PROCESS.code)
    parts = ((MAIN, MAIN_PROCESS), (PIN, COPY), (SENDING, SENDING_CAUSE), (START, START_UP))
    most = [cause.code for part, cause in parts if facts.exposure.of(part) >= limits.DOMINATES]
    return next((found[code] for code in most if code in found), None)


def _one_of_many(facts: Facts, found: Found) -> Finding | None:
    """Slow samples, if they are most of it or what keeps the workers from keeping up."""
    slow = found.get(SLOW_SAMPLES.code)
    if slow is None or slow.severity < limits.DOMINATES * facts.stall_share:
        return None
    return slow


def _that_keeps_up(facts: Facts, found: Found) -> Finding | None:
    """Why workers that are fast enough, each with a core for itself, are late all the same."""
    if facts.free_load > limits.KEEPS_UP:
        return None
    queued, crowded = facts.use.queued_share or 0.0, facts.exposure.of(CROWDED)
    if queued < limits.QUEUES and crowded < limits.LEADS:
        return found.get(TOO_LITTLE_PREFETCH.code)
    if CPU_SATURATED.code in found:
        return found[CPU_SATURATED.code]
    why = (
        f"other processes have {share(facts.others_share)} of the cores, and without them the "
        f"workers would keep up (they wait for a core {share(queued)} of their time)"
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


def _longest(*ones: Finding | None) -> Finding | None:
    return max((one for one in ones if one), key=lambda one: one.severity, default=None)
