"""Which finding is the verdict: what has to be fixed first, and nothing where nothing is wrong.

The order of `judge`, and why:

1. A run that is too short carries no judgement, but of what made it short: a late first step.
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
14. Cores that are saturated by work of which no part leads.

What is still open says `next_question`: the measurement that decides most. What happens once or
now and then, and is no finding, says `side_notes`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.diagnose import causes, rules
from stallscope.model import thresholds
from stallscope.model.exposure import (
    COLLATE,
    CROWDED,
    DECODE,
    DIGITS,
    FETCH,
    GETITEM_,
    MAIN,
    PIN,
    SENDING,
    START,
    TRANSFORM,
    UNATTRIBUTED,
)
from stallscope.model.loop_time import UNKNOWN
from stallscope.model.thresholds import HARDLY, OTHERS
from stallscope.units import count, share

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stallscope.diagnose.causes import Cause
    from stallscope.diagnose.facts import Facts, Setup
    from stallscope.diagnose.result import Finding
    from stallscope.errors import NoBatchError

    Found = dict[Cause, Finding]

LOOP: Final = "loop"
ONE_WORKER: Final = "one worker"
WAITING_STACKS: Final = "stacks of waiting workers"
LADDER: Final = "ladder"
STACKS: Final = "stacks"
LOOP_STACKS: Final = "stacks of the loop"
BATCH: Final = "one batch"
MEMORY: Final = "memory"

_BY_LADDER: Final = {
    *(causes.HEALTHY, causes.STORAGE_LATENCY, causes.DECODE, causes.ONE_TRANSFORM),
    *(causes.TRANSFORMS, causes.COLLATE, causes.SENDING, causes.CPU_SATURATED),
    causes.MAIN_PROCESS,
}
"""What a ladder can confirm or refute: it takes such costs away."""
_BY_ONE_WORKER: Final = {
    *(causes.STORAGE_LATENCY, causes.STORAGE_BANDWIDTH, causes.LOCK, causes.ONE_TRANSFORM),
    *(causes.TRANSFORMS, causes.COLLATE, causes.DECODE, causes.CPU_SATURATED),
    causes.INCONCLUSIVE,
}
"""What looks different when there is one worker: waiting for what is shared."""
_NO_STALLS: Final = {causes.MAIN_PROCESS, causes.COPY}
"""What the loop does while it does not wait."""
_OF_WORK: Final = {causes.CPU_SATURATED, causes.TOO_FEW_WORKERS, causes.OVERSUBSCRIPTION}
"""What is so because of the work on samples, whichever that is."""
_HAS_LINES: Final = {causes.ONE_TRANSFORM, causes.COLLATE}
"""What lies in the user's own code, so that a line can be named."""


def judge(facts: Facts) -> tuple[Finding, ...]:
    """The verdict, and whatever else was found, what costs most first.

    Saturated cores stand last: they are what the other findings do, and not one more cause.

    Args:
        facts: what was measured.
    """
    missing = too_short(facts)
    if missing and (late := rules.late_begin(facts)):
        return (replace(late, confidence=1.0),)  # that it is so is sure, however few steps follow
    if missing:
        return (inconclusive(facts, missing, "more batches, or a larger budget_s"),)
    if facts.time is not None and not facts.time.is_known:
        return (inconclusive(facts, UNKNOWN, "a device of torch's with events, and one alone"),)
    found = findings(facts)
    verdict = _first(facts, found)
    if verdict.cause == causes.HEALTHY and not facts.setup.has_step:
        why = "no step was given, and the loader alone gives batches without a pause"
        verdict = inconclusive(facts, why, "give the step, or ss.simulated_step(seconds)")
    claims = verdict.cause not in (causes.INCONCLUSIVE, causes.HEALTHY)
    if claims and verdict.confidence < thresholds.DOUBTFUL:
        what = f"{verdict.title}; but this is doubtful"
        again = "measure again on a machine that does nothing else; where it stays so: "
        verdict = inconclusive(facts, what, again + verdict.next_step)
    rest = [one for one in found.values() if one.cause != verdict.cause and _is_worth(one)]
    if rules.groups_of(verdict.cause):  # full cores are what that work does, and no second cost
        rest = [one for one in rest if one.cause != causes.CPU_SATURATED]
    if verdict.cause == causes.HEALTHY:
        beside = (causes.START_UP, causes.MAIN_PROCESS, causes.COPY)
        rest = [one for one in rest if one.cause in beside]
    verdict, *rest = (_of_an_epoch(one, facts) for one in (verdict, *rest))
    cores_last = sorted(rest, key=lambda one: (one.cause == causes.CPU_SATURATED, _by_cost(one)))
    return verdict, *cores_last


def side_notes(facts: Facts, found: Iterable[Finding]) -> list[str]:
    """What happens once or now and then: a loop that starts late, and a validation."""
    notes, late = [], rules.late_begin(facts)
    if late is not None and all(one.cause != late.cause for one in found):
        notes.append(f"{late.title}; {late.next_step}")
    if facts.validation_share >= thresholds.NOTED:
        notes.append(
            f"a loop over another loader (validation, mostly) takes {share(facts.validation_share)}"
            " of the time and is no part of the verdict: whether it waits is to be asked of that "
            "loader by itself"
        )
    return notes


def _of_an_epoch(one: Finding, facts: Facts) -> Finding:
    """With its share of an epoch, where that begins slowly; of the steady state otherwise."""
    if one.cause in (causes.START_UP, causes.INCONCLUSIVE):
        return one
    severity = one.severity
    if facts.begin_share and one.cause not in _NO_STALLS:
        # Of all stalls, those in which epochs begin are a finding of their own
        severity = min(severity, max(facts.lost_share - facts.begin_share, 0.0))
    return replace(one, severity=severity * facts.epoch_factor)


def _by_cost(one: Finding) -> tuple[float, float, int]:
    """Key of an order: what costs most first, then what is surer, then the order of the causes."""
    place = list(causes.CAUSES).index(one.code)
    return -round(one.severity, DIGITS), -round(one.confidence, DIGITS), place


def _is_worth(one: Finding) -> bool:
    """Whether a finding is worth a line beside the verdict.

    That workers keep up is no cause beside another one; memory that grows costs no time yet.
    """
    costs = one.severity >= thresholds.WORTH or one.cause == causes.MEMORY_GROWS
    return costs and one.confidence >= rules.JUST and one.cause != causes.TOO_LITTLE_PREFETCH


def findings(facts: Facts) -> Found:
    """Ask each rule."""
    waits = facts.stall_share >= HARDLY or facts.is_slowed
    every = [
        rules.start_up(facts),
        _longest(
            rules.no_worker(facts) if waits else None,
            rules.own_threads(facts),
            rules.own_parts(facts),
            rules.computes_in_python(facts),
            rules.idle_device(facts),
        ),
        rules.copies(facts),
        rules.oversubscription(facts) if facts.lost_share >= thresholds.WORTH else None,
        rules.memory_growth(facts),
    ]
    if waits:
        every += [
            *rules.memory(facts),
            rules.slow_worker(facts),
            rules.slow_samples(facts),
            rules.idle_workers(facts),
            rules.repeated_work(facts),
            rules.few_cores(facts),
            rules.lock(facts),
            rules.storage(facts),
            rules.too_few(facts),
            *rules.works(facts),
            rules.cpu_saturated(facts),
            rules.too_little_prefetch(facts),
        ]
    # Both say more than that sending takes long
    every += [rules.releases(facts), rules.needless_workers(facts)]
    return {one.cause: one for one in every if one is not None}


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
        f"{count(wanted - facts.steps, 'batch')} more"
    )


def healthy(facts: Facts) -> Finding:
    """That the loop hardly waits."""
    low_enough = rules.clear(facts.stall_high, HARDLY, HARDLY / 2)
    line, part = rules.loop_line(facts), share(facts.loop_code_share)
    gain = facts.gain
    agreed = gain is not None and gain.is_none
    return rules.finding(
        causes.HEALTHY,
        facts,
        f"it stalls {share(facts.stall_share)} of the time"
        f"{f', and computes in {line} for {part} of it' if line else ''}",
        severity=0.0,
        clearly=max(low_enough, 0.9 if agreed else 0.6),
        evidence={
            "stall_share_low": facts.stall_low,
            "stall_share_high": facts.stall_high,
            "device_busy_share": facts.device_busy_share,
        },
        where=f"; where that is no part of the model: {rules.IN_WORKERS}" if line else "",
        line=line,
    )


def _first(facts: Facts, found: Found) -> Finding:
    """The verdict; see the module's text for the order."""
    beside = [found[cause] for cause in (causes.START_UP, causes.COPY) if cause in found]
    if facts.release_share >= thresholds.OWN_PART and causes.SENDING in found:
        beside.append(found[causes.SENDING])
    own = found.get(causes.MAIN_PROCESS)
    if own is not None and (facts.setup.num_workers or own.severity > facts.stall_share):
        beside.append(own)
    if facts.has_needless_workers:  # without them none is started, though indices are drawn
        first = facts.starts.is_drawing or facts.starts.share >= thresholds.DOMINATES
        others = (one for one in beside if first or one.cause != causes.START_UP)
        return max((found[causes.SENDING], *others), key=lambda one: one.severity)
    costly = max(beside, key=lambda one: _of_an_epoch(one, facts).severity, default=None)
    if costly is not None:
        stalls = max(facts.stall_share - facts.begin_share, 0.0) * facts.epoch_factor
        if _of_an_epoch(costly, facts).severity >= stalls:
            return costly
    if facts.stall_share < HARDLY or _is_little(facts):
        return _slowing(facts, found) or found.get(causes.MEMORY_GROWS) or healthy(facts)
    verdict = rank_findings(facts, found)
    is_little = verdict is None or verdict.severity < thresholds.WORTH
    gains = facts.gain is not None and facts.gain.is_above(HARDLY)
    if _is_near(facts) and is_little and not gains:
        # what waits longest is next to nothing
        return found.get(causes.MEMORY_GROWS) or healthy(facts)
    if verdict is not None:
        return verdict
    why = f"the loop stalls {share(facts.stall_share)} of the time, and no cause stands out"
    return inconclusive(facts, why, "03_cached_baseline takes one cost after the other away")


def _slowing(facts: Facts, found: Found) -> Finding | None:
    """What slows the step beside the workers, though the loop hardly waits for them."""
    threads, cores = found.get(causes.OVERSUBSCRIPTION), found.get(causes.CPU_SATURATED)
    return threads or (cores if facts.is_slowed else None)


def _is_little(facts: Facts) -> bool:
    """Whether the stalls are hardly above what matters, and what the ladder could gain is below.

    The ladder decides: it measures the gain itself, and in a loop without a recorder.
    """
    return _is_near(facts) and facts.gain is not None and facts.gain.is_below(HARDLY)


def _is_near(facts: Facts) -> bool:
    return facts.stall_share < 2 * HARDLY


def _longest(*ones: Finding | None) -> Finding | None:
    return max((one for one in ones if one), key=lambda one: one.severity, default=None)


def no_batch(facts: Facts, error: NoBatchError) -> Finding:
    """That a batch never came, whatever the loop did before."""
    what = str(error).partition(". ")[0]
    what = what[0].upper() + what[1:]
    return inconclusive(facts, what, "mend that, or give a larger budget_s", causes.NO_BATCH)


def inconclusive(
    facts: Facts, why: str, remedy: str, cause: Cause = causes.INCONCLUSIVE
) -> Finding:
    """That nothing can be said, and why."""
    found = rules.finding(
        cause,
        facts,
        why,
        clearly=1.0,
        evidence={
            "unattributed_share": facts.exposure.of(UNATTRIBUTED) if facts.time else None,
            "other_processes_share": facts.others_share,
            "steps_count": facts.steps,
        },
        where=remedy,
    )
    return replace(found, confidence=1.0)  # that it cannot be told is sure


def rank_findings(facts: Facts, found: Found) -> Finding | None:
    """The verdict about a loop that stalls; None where no cause stands out.

    Args:
        facts: what was measured.
        found: what each rule says.
    """

    def first(*wanted: Cause) -> Finding | None:
        return next((found[cause] for cause in wanted if cause in found), None)

    unexplained = facts.exposure.of(UNATTRIBUTED)
    if unexplained > thresholds.UNEXPLAINED:
        why = f"nothing that was recorded explains {share(unexplained)} of the stalls"
        return inconclusive(facts, why, "ss.stage('...') around your own code names it")
    if facts.others_share >= OTHERS and _is_left(facts) < HARDLY:
        return _disturbed(facts, found)
    verdict = first(causes.MEMORY_PRESSURE, causes.SHM, causes.IDLE_WORKERS)
    verdict = verdict or first(causes.REPEATED_WORK, causes.FEW_CORES) or _of_parts(facts, found)
    verdict = verdict or first(causes.SLOW_WORKER, causes.SLOW_SAMPLES, causes.OVERSUBSCRIPTION)
    verdict = verdict or _that_keeps_up(facts, found)
    verdict = verdict or first(causes.LOCK) or _storage(facts, found)
    verdict = verdict or first(causes.TOO_FEW_WORKERS)
    return verdict or _of_work(facts, found) or first(causes.CPU_SATURATED) or _most_work(found)


def _of_parts(facts: Facts, found: Found) -> Finding | None:
    """What most of the stalls is, where that is no work on samples."""
    if not facts.setup.num_workers:
        return found.get(causes.MAIN_PROCESS)
    # Crowded or not: what is left of a part that a busy machine makes longer has to be much, too
    least = max(thresholds.DOMINATES * (1 - facts.exposure.of(CROWDED)), thresholds.LEADS)
    here = least
    if rules.is_busy_here(facts) and facts.exposure.leads(MAIN):
        here = thresholds.NOTED  # receiving batches and waiting for a core are this process's, too
    parts = (
        (MAIN, causes.MAIN_PROCESS, here),
        (SENDING, causes.SENDING, least),
        (PIN, causes.COPY, thresholds.DOMINATES),
        (START, causes.START_UP, thresholds.DOMINATES),
    )
    most = [cause for part, cause, limit in parts if facts.exposure.of(part) >= limit]
    return next((found[cause] for cause in most if cause in found), None)


def _that_keeps_up(facts: Facts, found: Found) -> Finding | None:
    """Why workers that are fast enough, each with a core for itself, are late all the same."""
    if facts.pace.free_load > thresholds.KEEPS_UP:
        return None
    queued, crowded = facts.use.queued_share or 0.0, facts.exposure.of(CROWDED)
    if queued < thresholds.QUEUES and crowded < thresholds.LEADS and not _varies_with_cores(facts):
        return found.get(causes.TOO_LITTLE_PREFETCH)
    if causes.CPU_SATURATED in found:
        return None  # what uses the cores comes first
    if facts.others_share < OTHERS:  # they are in each other's way, and keep up
        return found.get(causes.TOO_LITTLE_PREFETCH)
    return _disturbed(facts, found)


def _varies_with_cores(facts: Facts) -> bool:
    """Whether batches may take different times only because others have the cores at times."""
    batch_s = facts.making.batch_s if facts.making else 0.0
    computes = facts.waiting_s < thresholds.DOMINATES * batch_s
    return computes and facts.others_share >= OTHERS


def _is_left(facts: Facts) -> float:
    """Share (0 to 1) of the loop's time that stalls would take if nobody waited for a core.

    Workers that could not keep up even then hold the loop up, and so does what the main process
    does between two steps: a shorter wait is a larger share of a shorter loop.
    """
    left, load = facts.stall_share * facts.exposure.free, facts.pace.free_load
    if facts.making is None:
        return left
    if not facts.setup.num_workers:
        return min(left, load / (1 + load))  # it makes a batch, then uses it
    behind = max(1 - 1 / load, 0.0) if load else 0.0
    here = left * facts.exposure.of(MAIN) / max(1 - facts.exposure.of(CROWDED), 1e-9)
    return max(left, behind, here / (1 - facts.stall_share + here) if here else 0.0)


def _disturbed(facts: Facts, found: Found) -> Finding:
    """That the loop waits because other processes have the cores; memory grows whoever has them."""
    if causes.MEMORY_GROWS in found:
        return found[causes.MEMORY_GROWS]
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
    waits = found.get(causes.STORAGE_LATENCY) or found.get(causes.STORAGE_BANDWIDTH)
    if waits is None:
        return None
    waiting = facts.exposure.waiting(FETCH, GETITEM_)
    if causes.TOO_FEW_WORKERS in found and waiting < thresholds.WAITS_ALONE:
        return None
    lead = rules.leading(facts)
    ahead = lead in rules.READING and lead not in rules.own_groups(facts)
    return waits if ahead or waiting >= thresholds.DOMINATES else None


def _of_work(facts: Facts, found: Found) -> Finding | None:
    group = DECODE if rules.resize_of_large_images(facts) else rules.leading(facts)
    return next((one for one in found.values() if group in rules.groups_of(one.cause)), None)


def _most_work(found: Found) -> Finding | None:
    works = [one for one in found.values() if rules.groups_of(one.cause)]
    return min(works, key=_by_cost, default=None)


def _may_be_slowed(facts: Facts) -> bool:
    """Whether the step may be slower for the workers beside it, which only a ladder tells."""
    queued = facts.use.loop_queued_share or 0.0
    crowd = facts.threads_per_core >= thresholds.MANY_THREADS or queued >= thresholds.LOOP_QUEUES
    return bool(facts.setup.num_workers) and facts.stall_share < HARDLY and crowd


def _is_for_the_loop(facts: Facts, verdict: Finding) -> bool:
    """Whether it is the loop's own process that takes the time, in code that can be named."""
    if verdict.cause == causes.MAIN_PROCESS:
        return not _makes_batches_here(verdict)
    # Where the model is known, the step is what is left of it
    computes = min(facts.use.loop_cpu or 0.0, facts.own_parts.get("step", 0.0))
    least = max(thresholds.OWN_PART, verdict.severity)
    return computes >= least and not facts.setup.simulated


def _is_about_own_code(facts: Facts, verdict: Finding) -> bool:
    """Whether code that no hook can name holds much of what a verdict about work is about."""
    about = bool(rules.groups_of(verdict.cause)) or verdict.cause in _OF_WORK
    return about and facts.exposure.of(GETITEM_) >= thresholds.NOTED


def _makes_batches_here(verdict: Finding) -> bool:
    """Whether it is about a process that makes its batches itself."""
    return verdict.cause == causes.MAIN_PROCESS and "num_workers_count" in verdict.evidence


def _may_be_smaller(facts: Facts, verdict: Finding) -> bool:
    """Whether the verdict is about what takes less where a batch has fewer bytes."""
    if verdict.cause == causes.SENDING:
        return not facts.has_needless_workers
    if verdict.cause == causes.MAIN_PROCESS:  # letting go of large batches is the loop's, too
        return (
            bool(facts.setup.num_workers)
            and facts.own_parts.get("other", 0.0) >= thresholds.OWN_PART
        )
    makes_floats = verdict.cause in (causes.ONE_TRANSFORM, causes.TRANSFORMS)
    return verdict.cause == causes.COLLATE or (makes_floats and bool(rules.conversions(facts)))


class Question(NamedTuple):
    """A measurement, and what it is to decide."""

    phase: str
    why: str


def next_question(
    facts: Facts, findings: tuple[Finding, ...], asked: Collection[str]
) -> Question | None:
    """The measurement that decides most; None where nothing is open.

    Args:
        facts: what is known.
        findings: what is thought by now, the verdict first.
        asked: phases that were tried already.
    """
    verdict = findings[0]
    waits = facts.exposure.waiting(FETCH, GETITEM_, TRANSFORM, COLLATE, DECODE)
    possible = []
    if (
        facts.setup.num_workers > 1
        and verdict.cause in _BY_ONE_WORKER
        and waits >= thresholds.WAITS_FOR_EACH_OTHER
    ):
        possible.append(Question(ONE_WORKER, "do the workers wait for something that they share?"))
    growth = facts.memory_growth
    if verdict.cause == causes.MEMORY_GROWS and growth is not None and growth.may_settle:
        possible.append(Question(MEMORY, "does the workers' memory go on growing?"))
    unseen = verdict.cause == causes.STORAGE_LATENCY and rules.is_unseen(facts)
    if facts.is_shared or unseen:
        possible.append(Question(WAITING_STACKS, "what do the workers wait for, and where?"))
    no_image = verdict.cause == causes.DECODE and facts.megapixels is None
    has_lines = verdict.cause in _HAS_LINES or _makes_batches_here(verdict)
    has_lines = has_lines or _is_about_own_code(facts, verdict)
    is_now_and_then = verdict.cause == causes.SLOW_SAMPLES and bool(rules.slow_stage(facts))
    if has_lines or no_image or is_now_and_then:  # sooner than a ladder is
        possible.append(Question(STACKS, "which line of the code is it?"))
    if facts.setup.streams and facts.setup.num_workers > 1 and verdict.cause in _BY_ONE_WORKER:
        possible.append(Question(ONE_WORKER, "does each worker do the work of all?"))
    if _is_for_the_loop(facts, verdict):
        possible.append(Question(LOOP_STACKS, "what does the training process compute itself?"))
    if _may_be_smaller(facts, verdict):
        possible.append(Question(BATCH, "would fewer bytes hold the same?"))
    unsure = verdict.confidence < thresholds.SURE and verdict.cause in _BY_LADDER
    open_still = verdict.cause == causes.INCONCLUSIVE and facts.others_share < OTHERS
    open_still = open_still and facts.steps >= thresholds.FEWEST_STEPS
    # Where the stalls may be as short as a healthy loop's, what there is to gain decides
    claims = verdict.cause not in (causes.HEALTHY, causes.MEMORY_GROWS)
    may_be_healthy = claims and _is_near(facts) and facts.stall_low < HARDLY
    is_open = unsure or open_still or may_be_healthy or _may_be_slowed(facts)
    if facts.setup.has_step and is_open:  # without a step it cannot go all the way
        possible.append(Question(LADDER, "what does the loader cost, with an interval?"))
    return next((one for one in possible if one.phase not in asked), None)
