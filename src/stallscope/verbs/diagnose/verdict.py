"""Choice of the verdict: the finding to fix first, or none where nothing is wrong.

The order of `judge`, and why:

1. A run that is too short carries no judgement, but of what made it short: a late first step. A
   loop that stalls for most of its time needs fewer steps.
2. Starting workers, the loop's own work and copies, where they take more than all waiting does.
3. Workers without which the loop would be faster, however short its single waits are; what goes
   by with them, too, unless their start is most of an epoch.
4. A loop that hardly waits is healthy, unless its step is slower for the workers beside it (too
   many threads, full cores; a ladder tells), or their memory grows.

and of `rank_findings`, for a loop that waits:

5. Stalls that nothing explains carry no judgement.
6. Memory that is full, workers that have nothing to do, all do the same or are kept from the
   cores.
7. What is no work on samples, where it is most of the stalls: the loop's own part (all of it, when
   there is no worker), pinning, sending, starting.
8. One thing among equals: one worker, single samples. The others are quick enough, so their stages
   are not the cause.
9. Too many threads: all stages' times are longer for it.
10. Workers that keep up on average, though nothing keeps a core from them: speed is not the cause.
11. Waiting for a lock: all that is behind it takes longer.
12. Workers that are too few while cores are free, if more would be enough; unless nearly all is
    waiting for storage.
13. Waiting for storage, and then the work that leads, also where the cores are saturated: it is
    what there is to be fixed.
14. Where no part of the work leads, the function of the user's below which most of it happens.
15. Cores that are saturated by work of which no part leads.

`next_question` names the measurement that decides most. `side_notes` states rare events that are no
finding.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.model import thresholds
from stallscope.model.exposure import CROWDED, DIGITS, READING
from stallscope.model.loop_time import UNKNOWN
from stallscope.model.thresholds import HARDLY, OTHERS
from stallscope.units import capital, count, share
from stallscope.verbs.diagnose import causes
from stallscope.verbs.diagnose.causes import CAUSES, WAITING
from stallscope.verbs.diagnose.own_code import unhooked_code
from stallscope.verbs.diagnose.rules import IN_WORKERS, JUST, finding, findings, late_begin
from stallscope.verbs.diagnose.work import (
    conversions,
    findings_of_work,
    is_unseen,
    of_calling_code,
    resize_of_large_images,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stallscope.errors import NoBatchError
    from stallscope.model.exposure import Group
    from stallscope.verbs.diagnose.causes import Cause
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.result import Finding
    from stallscope.verbs.diagnose.setup import Setup

    ByCause = dict[Cause, Finding]

LOOP: Final = "loop"
ONE_WORKER: Final = "one worker"
WAITING_STACKS: Final = "stacks of waiting workers"
LADDER: Final = "ladder"
STACKS: Final = "stacks"
LOOP_STACKS: Final = "stacks of the loop"
BATCH: Final = "one batch"
MEMORY: Final = "memory"

_WORKS: Final = {causes.DECODE, causes.ONE_TRANSFORM, causes.TRANSFORMS, causes.COLLATE}
_BY_LADDER: Final = {
    *(*_WORKS, causes.HEALTHY, causes.STORAGE_LATENCY),
    *(causes.SENDING, causes.CPU_SATURATED, causes.MAIN_PROCESS),
}
"""Causes that a ladder can confirm or refute: it removes their costs."""
_BY_ONE_WORKER: Final = {
    *(*_WORKS, causes.STORAGE_LATENCY, causes.STORAGE_BANDWIDTH, causes.LOCK),
    *(causes.CPU_SATURATED, causes.INCONCLUSIVE),
}
"""Causes that look different with one worker: waits for a shared resource."""
_NO_STALLS: Final = {causes.MAIN_PROCESS, causes.COPY}
"""Causes in which the loop does not wait."""
_OF_WORK: Final = {causes.CPU_SATURATED, causes.TOO_FEW_WORKERS, causes.OVERSUBSCRIPTION}
"""Causes that follow from the work on samples, whatever work that is."""
_HAS_LINES: Final = {causes.ONE_TRANSFORM, causes.COLLATE}
"""Causes in the user's own code, where stacks can name a line."""


_LEADS: Final = re.compile(r" (?:is|are) the bottleneck: ")
"""Part of a title that is true of the verdict alone: a loop has one bottleneck."""


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return the verdict, and whatever else was found, what costs most first.

    Saturated cores stand last: they are what the other findings do, and not one more cause.
    """
    missing = too_short(facts)
    if missing and (late := late_begin(facts)):
        return (replace(late, confidence=1.0),)  # certain, however few steps follow
    if missing:
        return (inconclusive(facts, missing, "record more batches, or raise budget_s"),)
    if facts.time is not None and not facts.time.is_known:
        return (inconclusive(facts, UNKNOWN, "use a single torch device that has events"),)
    by_cause = find(facts)
    verdict = _first(facts, by_cause)
    if verdict.cause == causes.HEALTHY and (late := late_begin(facts)):
        verdict = late  # nothing else is wrong with this loop
    if verdict.cause == causes.HEALTHY and not facts.setup.has_step:
        why = "no step was given, and the loader alone makes batches without a pause"
        verdict = inconclusive(facts, why, "pass the step, or ss.simulated_step(seconds)")
    claims = verdict.cause not in (causes.INCONCLUSIVE, causes.HEALTHY)
    if claims and verdict.confidence < thresholds.DOUBTFUL:
        what = f"{verdict.title}; but this is doubtful"
        again = "measure again on an idle machine; if the result is the same: "
        verdict = inconclusive(facts, what, again + verdict.next_step)
    rest = [each for each in by_cause.values() if each.cause != verdict.cause and _is_worth(each)]
    if verdict.cause.groups:  # full cores are what that work does, and no second cost
        rest = [each for each in rest if each.cause != causes.CPU_SATURATED]
    if verdict.cause == causes.HEALTHY:
        beside = (causes.START_UP, causes.MAIN_PROCESS, causes.COPY)
        rest = [each for each in rest if each.cause in beside]
    verdict, *rest = (_of_an_epoch(each, facts) for each in (verdict, *rest))
    rest.sort(key=lambda each: (each.cause == causes.CPU_SATURATED, _by_cost(each)))
    return verdict, *(replace(each, title=_LEADS.sub(": ", each.title, 1)) for each in rest)


def find(facts: Facts) -> ByCause:
    """Ask each rule; of several findings with one code, the one that costs most stays."""
    by_cause: ByCause = {}
    waits = facts.stall_share >= HARDLY or facts.is_slowed
    for each in (*findings(facts), *(findings_of_work(facts) if waits else ())):
        before = by_cause.get(each.cause)
        if before is None or each.severity > before.severity:
            by_cause[each.cause] = each
    return by_cause


def side_notes(facts: Facts, findings: Iterable[Finding]) -> list[str]:
    """Say what happens once or now and then: a loop that starts late, and a validation."""
    notes, late = [], late_begin(facts)
    if late is not None and all(each.cause != late.cause for each in findings):
        notes.append(f"{late.title}; {late.next_step}")
    if facts.validation_share >= thresholds.NOTED:
        notes.append(
            f"A loop over another loader (validation?) takes {share(facts.validation_share)} of "
            "the time. The verdict leaves it out: diagnose that loader separately"
        )
    return notes


def _of_an_epoch(each: Finding, facts: Facts) -> Finding:
    """Take its share of an epoch, where that begins slowly; of the steady state otherwise."""
    if each.cause in (causes.START_UP, causes.INCONCLUSIVE):
        return each
    severity = each.severity
    if facts.begin_share and each.cause not in _NO_STALLS:
        # Of all stalls, those in which epochs begin are a finding of their own
        severity = min(severity, max(facts.lost_share - facts.begin_share, 0.0))
    return replace(each, severity=severity * facts.epoch_factor)


def _by_cost(each: Finding) -> tuple[float, float, int]:
    """Return a key that orders by cost, then by confidence, then by the order of the causes."""
    place = list(CAUSES).index(each.code)
    return -round(each.severity, DIGITS), -round(each.confidence, DIGITS), place


def _is_worth(each: Finding) -> bool:
    """Return whether a finding is worth a line beside the verdict.

    That workers keep up is no cause beside another one; memory that grows costs no time yet.
    """
    costs = each.severity >= thresholds.NOTABLE or each.cause == causes.MEMORY_GROWS
    return costs and each.confidence >= JUST and each.cause != causes.TOO_LITTLE_PREFETCH


def fewest_steps(setup: Setup) -> int:
    """Return the steps of the steady state below which there is no verdict."""
    return max(thresholds.FEWEST_STEPS, thresholds.ROUNDS * setup.num_workers)


def too_short(facts: Facts) -> str:
    """Say why there was too little to judge by; '' where there was enough."""
    wanted = fewest_steps(facts.setup)
    if facts.time is None:
        return "no step of the loop was seen"
    # Few steps are enough where the whole interval of the stalls is above half of the time
    waits = facts.stall_low >= thresholds.MOSTLY
    if waits or facts.steps >= wanted or facts.starts.share >= thresholds.MOSTLY:
        return ""
    return f"{count(facts.steps, 'step')} after the warm-up, and {wanted} are needed"


def healthy(facts: Facts) -> Finding:
    """Say that the loop hardly waits."""
    line, part = facts.loop_line, share(facts.loop_code_share)
    code = f", and computes in {line} for {part} of it" if line else ""
    helps = f"; if that is no part of the model: {IN_WORKERS}" if line else ""
    hardly = "hardly waits" if facts.stall_share < HARDLY else "waits little"
    words = {"code": code, "helps": helps, "line": line, "hardly": hardly}
    return finding(causes.HEALTHY, facts, **words)


def inconclusive(
    facts: Facts, why: str, remedy: str, cause: Cause = causes.INCONCLUSIVE
) -> Finding:
    """Say that nothing can be said, and why."""
    unclear = finding(cause, facts, why=why, remedy=remedy)
    return replace(unclear, confidence=1.0)  # that it cannot be told is sure


def no_batch(facts: Facts, error: NoBatchError) -> Finding:
    """Say that a batch never came, whatever the loop did before."""
    what = str(error).partition(". ")[0]
    return inconclusive(facts, capital(what), "fix that, or raise budget_s", causes.NOT_THE_LOOP)


def _first(facts: Facts, by_cause: ByCause) -> Finding:
    """Choose the verdict; see the module's text for the order."""
    beside = [by_cause[cause] for cause in (causes.START_UP, causes.COPY) if cause in by_cause]
    if facts.release_share >= thresholds.OWN_PART and causes.SENDING in by_cause:
        beside.append(by_cause[causes.SENDING])
    own = by_cause.get(causes.MAIN_PROCESS)
    if own is not None and (facts.setup.num_workers or own.severity > facts.stall_share):
        beside.append(own)
    if facts.has_needless_workers:  # without them none is started, though indices are drawn
        starts = facts.starts.is_drawing or facts.starts.share >= thresholds.MOSTLY
        rest = (each for each in beside if starts or each.cause != causes.START_UP)
        return max((by_cause[causes.SENDING], *rest), key=lambda each: each.severity)
    costly = max(beside, key=lambda each: _of_an_epoch(each, facts).severity, default=None)
    if costly is not None:
        stalls = max(facts.stall_share - facts.begin_share, 0.0) * facts.epoch_factor
        if _of_an_epoch(costly, facts).severity >= stalls:
            return costly
    # The ladder decides: it measures the gain itself, and in a loop without a recorder
    gain = facts.gain
    gains_little = gain is not None and gain.is_little
    grows = by_cause.get(causes.MEMORY_GROWS)
    if facts.stall_share < HARDLY or (_is_near(facts) and gains_little):
        # What slows the step beside the workers, though the loop hardly waits for them
        cores = by_cause.get(causes.CPU_SATURATED) if facts.is_slowed else None
        return by_cause.get(causes.OVERSUBSCRIPTION) or cores or grows or healthy(facts)
    verdict = rank_findings(facts, by_cause)
    is_little = verdict is None or verdict.severity < thresholds.NOTABLE
    if _is_near(facts) and is_little and not (facts.gain and facts.gain.is_above(HARDLY)):
        return grows or healthy(facts)  # what waits longest is next to nothing
    if verdict is not None:
        return verdict
    why = f"the loop stalls {share(facts.stall_share)} of the time, and no cause stands out"
    return inconclusive(facts, why, "3_cached_baseline removes one cost after the other")


def _is_near(facts: Facts) -> bool:
    return facts.stall_share < 2 * HARDLY


def rank_findings(facts: Facts, by_cause: ByCause) -> Finding | None:
    """Return the verdict about a loop that stalls; None where no cause stands out."""

    def first(*wanted: Cause) -> Finding | None:
        return next((by_cause[cause] for cause in wanted if cause in by_cause), None)

    unexplained = facts.exposure.of("unattributed")
    if unexplained > thresholds.OWN_PART:
        if facts.flame and (code := unhooked_code(facts.flame)):
            words = {"own": share(code.share), "does": f", computing: {code.does}"}
            unhooked = finding(causes.UNHOOKED_CODE, facts, None, code, **words)
            return replace(unhooked, confidence=min(code.share, thresholds.UNSEEN))
        why = f"nothing that was recorded explains {share(unexplained)} of the stalls"
        return inconclusive(facts, why, "put ss.stage('...') around your own code, to name it")
    if facts.others_share >= OTHERS and _is_left(facts) < HARDLY:
        return _disturbed(facts, by_cause)
    works = [each for each in by_cause.values() if each.cause.groups]
    leads = "decode" if resize_of_large_images(facts) else facts.exposure.leading
    return (
        first(causes.MEMORY_PRESSURE, causes.SHM, causes.IDLE_WORKERS, causes.REPEATED_WORK)
        or first(causes.FEW_CORES)
        or _of_parts(facts, by_cause)
        or first(causes.SLOW_WORKER, causes.SLOW_SAMPLES, causes.OVERSUBSCRIPTION)
        or _that_keeps_up(facts, by_cause)
        or first(causes.LOCK)
        or _storage(facts, by_cause)
        or first(causes.TOO_FEW_WORKERS)
        or next((each for each in works if leads in each.cause.groups), None)
        or of_calling_code(facts)
        or first(causes.CPU_SATURATED)
        or min(works, key=_by_cost, default=None)
    )


def _of_parts(facts: Facts, by_cause: ByCause) -> Finding | None:
    """Return what most of the stalls is, where that is no work on samples."""
    if not facts.setup.num_workers and not facts.has_helpers:
        return by_cause.get(causes.MAIN_PROCESS)
    # Crowded or not: what is left of a part that a busy machine makes longer has to be much, too
    least = max(thresholds.MOSTLY * (1 - facts.exposure.of(CROWDED)), thresholds.LEADS)
    here = least
    # The training process computes more than any of its workers does
    is_busy = (facts.use.loop_cpu or 0.0) >= (facts.use.worker_cpu or 1.0)
    if is_busy and facts.exposure.leads("main"):
        here = thresholds.NOTED  # receiving batches and waiting for a core are this process's, too
    parts: tuple[tuple[Group, Cause, float], ...] = (
        ("main", causes.MAIN_PROCESS, here),
        ("sending", causes.SENDING, least),
        ("pin", causes.COPY, thresholds.MOSTLY),
        ("start", causes.START_UP, thresholds.MOSTLY),
    )
    most = [cause for part, cause, limit in parts if facts.exposure.of(part) >= limit]
    return next((by_cause[cause] for cause in most if cause in by_cause), None)


def _that_keeps_up(facts: Facts, by_cause: ByCause) -> Finding | None:
    """Say why workers that are fast enough, each with a core for itself, are late all the same."""
    if facts.pace.free_load > thresholds.KEEPS_UP:
        return None
    queued, crowded = facts.use.queued_share or 0.0, facts.exposure.of(CROWDED)
    # Batches that compute may take different times only because others have the cores at times
    batch_s = facts.making.batch_s if facts.making else 0.0
    computes = facts.waiting_s < thresholds.MOSTLY * batch_s
    varies = computes and facts.others_share >= OTHERS
    if queued < thresholds.NOTED and crowded < thresholds.LEADS and not varies:
        return by_cause.get(causes.TOO_LITTLE_PREFETCH)
    if causes.CPU_SATURATED in by_cause:
        return None  # what uses the cores comes first
    if facts.others_share < OTHERS:  # they are in each other's way, and keep up
        return by_cause.get(causes.TOO_LITTLE_PREFETCH)
    return _disturbed(facts, by_cause)


def _is_left(facts: Facts) -> float:
    """Return the share of the loop's time that stalls would take if nobody waited for a core.

    Workers that could not keep up even then hold the loop up, and so does what the main process
    does between two steps: a shorter wait is a larger share of a shorter loop.
    """
    left, load = facts.stall_share * facts.exposure.free, facts.pace.free_load
    if facts.making is None:
        return left
    if not facts.setup.num_workers:
        return min(left, load / (1 + load))  # it makes a batch, then uses it
    behind = max(1 - 1 / load, 0.0) if load else 0.0
    here = left * facts.exposure.of("main") / max(1 - facts.exposure.of(CROWDED), 1e-9)
    return max(left, behind, here / (1 - facts.stall_share + here) if here else 0.0)


def _disturbed(facts: Facts, by_cause: ByCause) -> Finding:
    """Say that other processes have the cores; memory grows whoever has them."""
    if causes.MEMORY_GROWS in by_cause:
        return by_cause[causes.MEMORY_GROWS]
    queued = facts.use.queued_share or 0.0
    why = (
        f"Other processes have {share(facts.others_share)} of the cores. Without them the loop "
        f"would hardly wait: its batches wait for a core {share(queued)} of the time"
    )
    return inconclusive(
        facts, why, "give this loop cores of its own, and measure again", causes.NOT_THE_LOOP
    )


def _storage(facts: Facts, by_cause: ByCause) -> Finding | None:
    """Return storage, if its waiting dominates or reading is well ahead of everything else.

    Too few workers come first where more would be enough, unless there is next to nothing but
    waiting.
    """
    waits = by_cause.get(causes.STORAGE_LATENCY) or by_cause.get(causes.STORAGE_BANDWIDTH)
    waiting = facts.exposure.waiting(*READING)
    enough = causes.TOO_FEW_WORKERS in by_cause and waiting < thresholds.ALONE
    if waits is None or enough:
        return None
    lead = facts.exposure.leading
    is_ahead = lead in READING and lead not in facts.exposure.own
    return waits if is_ahead or waiting >= thresholds.MOSTLY else None


class Question(NamedTuple):
    """A measurement, and what it is to decide."""

    phase: str
    why: str


def next_question(
    facts: Facts, findings: tuple[Finding, ...], asked: Collection[str]
) -> Question | None:
    """Return the measurement that decides most and was not asked; None where nothing is open."""
    verdict, setup = findings[0], facts.setup
    cause, growth = verdict.cause, facts.memory_growth
    has_several = setup.num_workers > 1 and cause in _BY_ONE_WORKER
    waits = facts.exposure.waiting(*WAITING) >= thresholds.WAITS_FOR_EACH_OTHER
    may_leak = cause in (causes.MEMORY_GROWS, causes.HEALTHY, causes.INCONCLUSIVE)
    grows = may_leak and growth is not None and growth.may_matter
    unseen = cause == causes.STORAGE_LATENCY and is_unseen(facts)
    possible = (
        (has_several and waits, ONE_WORKER, "do the workers wait for a shared resource?"),
        (grows, MEMORY, "does the workers' memory keep growing?"),
        (facts.is_shared or unseen, WAITING_STACKS, "what do the workers wait for, and where?"),
        # sooner than a ladder is
        (_has_lines(facts, verdict), STACKS, "which line of the code is it?"),
        (_is_unseen_work(facts, verdict), STACKS, "what do the loader's own processes compute?"),
        (has_several and setup.streams, ONE_WORKER, "does each worker do the work of all?"),
        (
            _is_for_the_loop(facts, verdict),
            LOOP_STACKS,
            "what does the training process compute itself?",
        ),
        (_may_be_smaller(facts, verdict), BATCH, "would fewer bytes be enough?"),
        # without a step a ladder cannot go all the way
        (
            setup.has_step and _is_open(facts, verdict),
            LADDER,
            "what does the loader cost, with an interval?",
        ),
    )
    questions = (Question(phase, why) for is_possible, phase, why in possible if is_possible)
    return next((question for question in questions if question.phase not in asked), None)


def _has_lines(facts: Facts, verdict: Finding) -> bool:
    """Return whether the verdict is about code that only stacks can name."""
    is_about_work = bool(verdict.cause.groups) or verdict.cause in _OF_WORK
    return (
        verdict.cause in _HAS_LINES
        or _makes_batches_here(verdict)
        or (is_about_work and facts.exposure.of("getitem") >= thresholds.NOTED)
        or (is_about_work and facts.runs_often is not None and facts.exposure.leading is None)
        or (verdict.cause == causes.DECODE and facts.megapixels is None)
        or (verdict.cause == causes.SLOW_SAMPLES and bool(facts.slow_stage))
    )


def _is_unseen_work(facts: Facts, verdict: Finding) -> bool:
    unseen = facts.exposure.of("unattributed") > thresholds.OWN_PART
    return verdict.cause == causes.INCONCLUSIVE and facts.time is not None and unseen


def _makes_batches_here(verdict: Finding) -> bool:
    return verdict.cause == causes.MAIN_PROCESS and "num_workers_count" in verdict.evidence


def _is_for_the_loop(facts: Facts, verdict: Finding) -> bool:
    """Return whether it is the loop's own process that takes the time, in code to be named."""
    if verdict.cause == causes.MAIN_PROCESS:
        return not _makes_batches_here(verdict)
    # Where the model is known, the step is what is left of it
    computes = min(facts.use.loop_cpu or 0.0, facts.own_parts.get("step", 0.0))
    return computes >= max(thresholds.OWN_PART, verdict.severity) and not facts.setup.simulated


def _may_be_smaller(facts: Facts, verdict: Finding) -> bool:
    """Return whether the verdict is about what takes less where a batch has fewer bytes."""
    if verdict.cause == causes.SENDING:
        return not facts.has_needless_workers
    if verdict.cause == causes.MAIN_PROCESS:  # letting go of large batches is the loop's, too
        outside = facts.own_parts.get("other", 0.0)
        return facts.setup.num_workers > 0 and outside >= thresholds.OWN_PART
    makes_floats = verdict.cause in (causes.ONE_TRANSFORM, causes.TRANSFORMS)
    return verdict.cause == causes.COLLATE or (makes_floats and bool(conversions(facts)))


def _is_open(facts: Facts, verdict: Finding) -> bool:
    """Return whether a ladder would decide something."""
    unsure = verdict.confidence < thresholds.SURE and verdict.cause in _BY_LADDER
    unclear = verdict.cause == causes.INCONCLUSIVE and facts.others_share < OTHERS
    unclear = unclear and facts.steps >= thresholds.FEWEST_STEPS
    # Where the stalls may be as short as a healthy loop's, what there is to gain decides
    claims = verdict.cause not in (causes.HEALTHY, causes.MEMORY_GROWS)
    may_be_healthy = claims and _is_near(facts) and facts.stall_low < HARDLY
    # The step may be slower for the workers beside it
    queued = facts.use.loop_queued_share or 0.0
    crowd = facts.threads_per_core >= thresholds.MANY_THREADS or queued >= thresholds.NOTABLE
    may_be_slowed = facts.setup.num_workers > 0 and facts.stall_share < HARDLY and crowd
    return unsure or unclear or may_be_healthy or may_be_slowed
