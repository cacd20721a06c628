"""Workers that wait: for storage, for its bandwidth, or for each other.

Work on samples that takes long: decoding, one transform, all of them, collate, sending.

The loop itself: what it does besides waiting and training, copies, a device that is idle.

What the machine lacks: cores, memory, shared memory; or it is busy with something else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stallscope.diagnose import thresholds
from stallscope.diagnose.exposure import (
    COLLATE,
    DECODE,
    FETCH,
    GETITEM_,
    MAIN,
    PIN,
    SENDING,
    TRANSFORM,
    WORK,
    StagePart,
)
from stallscope.diagnose.findings import clear, finding, next_step
from stallscope.diagnose.result import COLLATE as COLLATE_CAUSE
from stallscope.diagnose.result import (
    COPY,
    CPU_SATURATED,
    LOCK,
    MAIN_PROCESS,
    MEMORY_PRESSURE,
    ONE_TRANSFORM,
    OVERSUBSCRIPTION,
    SHM,
    STORAGE_BANDWIDTH,
    STORAGE_LATENCY,
    TRANSFORMS,
)
from stallscope.diagnose.result import DECODE as DECODE_CAUSE
from stallscope.diagnose.result import SENDING as SENDING_CAUSE
from stallscope.stages import GETITEM, MEMORY
from stallscope.stages import SHM as SHM_RESOURCE
from stallscope.units import seconds, share, size

if TYPE_CHECKING:
    from stallscope.diagnose.facts import Facts
    from stallscope.diagnose.result import Finding


READING = (FETCH, GETITEM_)
"""Where reading shows; in `getitem` it is reading that no hook could name."""


def lock(facts: Facts) -> Finding | None:
    """Workers wait for each other: what they wait for is shared, and it is no storage."""
    waits = facts.exposure.waiting(*READING, TRANSFORM, COLLATE, DECODE)
    if waits < thresholds.WAITS_FOR_EACH_OTHER or facts.setup.num_workers < 2:  # noqa: PLR2004 - each other
        return None
    if not facts.is_shared or not _is_lock(facts):
        return None
    where = _longest_waiting(facts)
    return finding(
        LOCK,
        facts,
        f"{share(waits)} of the stalls is waiting in {where}, and one worker alone takes "
        f"{_alone(facts)}",
        severity=facts.stall_share * facts.exposure.of(TRANSFORM, COLLATE, DECODE, *READING),
        clearly=_clearly_lock(facts, waits),
        evidence={**_waiting(facts), "lock_frames_share": facts.lock_frames},
        where=where,
    )


def storage(facts: Facts) -> Finding | None:
    """Reading waits, and not for the CPU: for storage that is slow to answer, or that is full."""
    waits = facts.exposure.waiting(*READING)
    if waits < thresholds.NOTED:
        return None
    if facts.is_shared and _is_lock(facts):
        return None
    full = _is_full(facts)
    cause = STORAGE_BANDWIDTH if full else STORAGE_LATENCY
    if not full and _is_unseen(facts):
        return _unseen(facts, waits)
    rate = facts.reading.bytes_per_s
    with_rate = f" at {size(rate)}/s" if rate else ""
    each = f"{seconds(facts.reading.sample_s)} a sample" if facts.reading.sample_s else "unseen"
    shared = f", and one worker alone takes {_alone(facts)}" if facts.is_shared is not None else ""
    return finding(
        cause,
        facts,
        f"{share(waits)} of the stalls is waiting in reading ({each}{with_rate}){shared}",
        severity=facts.stall_share * facts.exposure.of(*READING),
        clearly=min(clear(waits, thresholds.NOTED, 0.6), 0.8 if facts.is_shared is None else 1.0),
        evidence=_waiting(facts)
        | {
            "read_bytes_per_s": rate,
            "disk_busy_share": facts.use.disk_busy_share,
            "by_size_share": facts.reading.by_size,
        },
    )


def _is_unseen(facts: Facts) -> bool:
    """Whether what waits is the dataset's own code, in which nothing was seen to read."""
    in_fetch, in_own = facts.exposure.waiting(FETCH), facts.exposure.waiting(GETITEM_)
    return in_own > in_fetch and (facts.use.disk_busy_share or 0.0) < thresholds.FULL_DISK


def _unseen(facts: Facts, waits: float) -> Finding:
    """The dataset's own code waits: most often it reads, by what has no hook, but maybe not."""
    each = facts.stage_s.get(GETITEM.name)
    with_each = f", {seconds(each)} a sample" if each else ""
    found = finding(
        STORAGE_LATENCY,
        facts,
        "",
        severity=facts.stall_share * facts.exposure.of(*READING),
        clearly=min(clear(waits, thresholds.NOTED, 0.6), thresholds.UNSEEN),
        evidence=_waiting(facts) | {"disk_busy_share": facts.use.disk_busy_share},
    )
    title = (
        f"__getitem__ itself waits, not for the CPU ({share(waits)} of the stalls{with_each}): "
        "for a file that was open before, the network, a lock or a sleep"
    )
    step = next_step("waits-unseen", line=facts.line_of(GETITEM.name))
    return replace(found, title=title, next_step=step)


def _is_full(facts: Facts) -> bool:
    """Whether it is the number of bytes that takes the time, or a device that is busy."""
    busy = (facts.use.disk_busy_share or 0.0) >= thresholds.FULL_DISK
    return facts.is_shared is True or (busy and facts.is_shared is not False)


def _is_lock(facts: Facts) -> bool:
    """Whether what is shared is a lock and not storage."""
    if facts.lock_frames is not None:
        return facts.lock_frames >= thresholds.LOCK_FRAMES
    reads = facts.exposure.waiting(*READING)
    others = facts.exposure.waiting(TRANSFORM, COLLATE, DECODE)
    return others > reads


def _clearly_lock(facts: Facts, waits: float) -> float:
    seen = 0.7 if facts.lock_frames is None else 1.0
    return min(clear(waits, thresholds.WAITS_FOR_EACH_OTHER, 0.45), seen)


def _longest_waiting(facts: Facts) -> str:
    parts = facts.exposure.parts
    return max(parts, key=lambda part: part.share * part.waiting).stage


def _alone(facts: Facts) -> str:
    alone, making = facts.alone_s, facts.making
    if not alone or making is None:
        return "as long"
    many = facts.setup.num_workers
    return f"{seconds(alone)} for a batch, each of {many} takes {seconds(making.usual_s)}"


def _waiting(facts: Facts) -> dict[str, float | None]:
    return {
        "stall_share": facts.stall_share,
        "waiting_share": facts.exposure.waiting(*READING, TRANSFORM, COLLATE, DECODE),
        "fetch_exposed_share": facts.exposure.of(FETCH),
        "batch_s": facts.making.usual_s if facts.making else None,
        "batch_alone_s": facts.alone_s,
    }


_CAUSES = {DECODE: DECODE_CAUSE, COLLATE: COLLATE_CAUSE, SENDING: SENDING_CAUSE}
_WORK = (*WORK, SENDING)
_GROUPS = {
    DECODE_CAUSE.code: (DECODE,),
    COLLATE_CAUSE.code: (COLLATE,),
    SENDING_CAUSE.code: (SENDING,),
    ONE_TRANSFORM.code: (TRANSFORM, GETITEM_),
    TRANSFORMS.code: (TRANSFORM, GETITEM_),
}
_WORDS = {DECODE: "decoding", COLLATE: "collate", SENDING: "sending and receiving batches"}


def leading(facts: Facts) -> str | None:
    """The group of work that dominates, or whose longest stage is well ahead; None: none.

    Shares are of the work alone: what threads waited for cores is the same for all of it.
    """
    parts = [part for part in facts.exposure.parts if part.group in _WORK]
    work = sum(part.share for part in parts)
    groups = facts.exposure.groups()
    most = next((name for name in groups if name in _WORK), None)  # the largest
    if not work or most is None:
        return None
    if groups[most] >= thresholds.DOMINATES * work:
        return most
    first, second = (*(part.share for part in parts[:2]), 0.0)[:2]
    ahead = first >= thresholds.LEADS * work and first >= thresholds.AHEAD * second
    return parts[0].group if ahead else None


def groups_of(code: str) -> tuple[str, ...]:
    """The groups of work that a cause is about; none for causes of another kind."""
    return _GROUPS.get(code, ())


def works(facts: Facts) -> list[Finding]:
    """A finding for each group of work that holds enough of the stalls, the largest first."""
    found = []
    for group, part in facts.exposure.groups().items():
        if part < thresholds.NOTED:
            break
        if group == SENDING and facts.stall_share * part < thresholds.PASSING:
            continue
        if group in _CAUSES:
            found.append(_of_group(facts, group, part))
        elif group == TRANSFORM or (group == GETITEM_ and _computes(facts)):
            found.append(_of_transforms(facts))
    return found


def _computes(facts: Facts) -> bool:
    """Whether the dataset's own code works; where it waits, that is for what it reads."""
    waits = facts.exposure.waiting(GETITEM_)
    return waits < thresholds.DOMINATES * facts.exposure.of(GETITEM_)


def _of_group(facts: Facts, group: str, part: float) -> Finding:
    stage = facts.exposure.longest(group)
    each = facts.stage_s.get(stage.stage if stage else "")
    unit = "sample" if group == DECODE else "batch"
    with_each = f", {seconds(each)} a {unit}" if each else ""
    return finding(
        _CAUSES[group],
        facts,
        f"{_WORDS[group]} holds {share(part)} of the stalls{with_each}",
        severity=facts.stall_share * part,
        clearly=_clearly(facts, part),
        evidence=_evidence(facts, {f"{group}_exposed_share": part}),
        where=stage.stage if stage else "",
    )


def _of_transforms(facts: Facts) -> Finding:
    groups = (TRANSFORM, GETITEM_) if _computes(facts) else (TRANSFORM,)
    part, most = facts.exposure.of(*groups), _longest(facts, groups)
    if most.share >= thresholds.ONE_OF_MANY * part:
        each = facts.stage_s.get(most.stage)
        name = "__getitem__ itself" if most.group == GETITEM_ else most.stage
        return finding(
            ONE_TRANSFORM,
            facts,
            f"{name} holds {share(most.share)} of the stalls, {seconds(each)} a sample",
            severity=facts.stall_share * most.share,
            clearly=min(
                _clearly(facts, most.share), clear(most.share / part, thresholds.ONE_OF_MANY, 0.75)
            ),
            evidence=_evidence(
                facts,
                {"transform_exposed_share": most.share, "all_transforms_exposed_share": part},
            ),
            where=most.stage,
        )
    return finding(
        TRANSFORMS,
        facts,
        f"they hold {share(part)} of the stalls, the longest ({most.stage}) {share(most.share)}",
        severity=facts.stall_share * part,
        clearly=_clearly(facts, part),
        evidence=_evidence(
            facts,
            {"all_transforms_exposed_share": part, "longest_transform_exposed_share": most.share},
        ),
    )


def _longest(facts: Facts, groups: tuple[str, ...]) -> StagePart:
    longest = [facts.exposure.longest(group) for group in groups]
    return max((part for part in longest if part), key=lambda part: part.share)


def _clearly(facts: Facts, part: float) -> float:
    """Whether it dominates, and whether the ladder agrees where there is one."""
    alone = clear(part, thresholds.NOTED, thresholds.DOMINATES + 0.15)
    return min(alone, 0.6) if facts.gain is not None and facts.gain.is_none else alone


def _evidence(facts: Facts, more: dict[str, float]) -> dict[str, float | None]:
    gain = facts.gain
    return {
        "stall_share": facts.stall_share,
        **more,
        "headroom_factor": gain.factor if gain else None,
        "headroom_factor_low": gain.low if gain else None,
        "headroom_factor_high": gain.high if gain else None,
    }


_REST: Final = ("step", "other")
"""What lies outside of all parts that have a name."""
_SAMPLER: Final = "the loader's own work in it (a sampler, bookkeeping)"


def no_worker(facts: Facts) -> Finding | None:
    """The main process makes the batches itself, so the device waits for each of them."""
    if facts.setup.num_workers or not facts.exposure.parts or not facts.setup.has_step:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"it makes the batches itself (num_workers=0), which takes {share(facts.stall_share)} of "
        "the loop's time",
        severity=facts.stall_share,
        clearly=clear(facts.stall_share, thresholds.HEALTHY, 0.2),
        evidence={"stall_share": facts.stall_share, "num_workers_count": 0},
        where=f"num_workers={max(int(facts.setup.cores) - 1, 1)} or so",
    )


def own_parts(facts: Facts) -> Finding | None:
    """Parts of the loop that are neither waiting for workers nor the model take long."""
    parts = {name: part for name, part in facts.own_parts.items() if name not in _REST}
    parts["code outside of the model"] = facts.own_parts.get("other", 0.0)
    if facts.model_share:  # the model is known, so the rest of the step is something else
        parts["code outside of the model"] += facts.own_parts.get("step", 0.0)
    if facts.setup.num_workers:
        parts[_SAMPLER] = facts.stall_share * facts.exposure.of(MAIN)
    whole, longest = sum(parts.values()), max(sorted(parts), key=lambda name: parts[name])
    if whole < thresholds.OWN_PART:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"{longest} takes {share(parts[longest])} of the loop's time",
        severity=whole,
        clearly=clear(whole, thresholds.OWN_PART, 0.35),
        evidence={
            "own_parts_share": whole,
            "model_share": facts.model_share,
            "stall_share": facts.stall_share,
            "loop_cpu_share": facts.use.loop_cpu,
        },
        where=f"make {longest} cheaper, rarer, or do it in a thread or beforehand",
    )


def computes_in_python(facts: Facts) -> Finding | None:
    """The step waits for the device for a part of its time, and computes in Python for another.

    Only where the model cannot be seen (no module within reach) and the device is not the CPU's
    own: a step that computes without a pause may be a model on the CPU.
    """
    cpu, setup = facts.use.loop_cpu, facts.setup
    if facts.model_share or cpu is None or setup.simulated or setup.on_gpu or not setup.has_step:
        return None
    if not setup.num_workers or facts.time is None:
        return None
    step = facts.own_parts.get("step", 0.0)
    wanted = cpu + (facts.use.loop_queued_share or 0.0)  # computes, or would if it had a core
    if not min(cpu, step) >= thresholds.OWN_PART or wanted > thresholds.ALL_COMPUTING * step:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"for {share(cpu)} of the loop's time it computes, and the step waits for the rest",
        severity=min(cpu, step),
        clearly=clear(cpu, thresholds.OWN_PART, 0.5),
        evidence={"loop_cpu_share": cpu, "step_share": step, "stall_share": facts.stall_share},
        where="put ss.stage('...') around logging and callbacks, and see which takes the time",
    )


def idle_device(facts: Facts) -> Finding | None:
    """Batches are there and the GPU is idle all the same: the host is too slow for it."""
    busy = facts.use.gpu_busy_share
    if not facts.setup.on_gpu or busy is None or busy >= thresholds.IDLE_DEVICE:
        return None
    if facts.stall_share >= thresholds.HEALTHY:
        return None
    return finding(
        MAIN_PROCESS,
        facts,
        f"no batch is missing, and the GPU is busy for {share(busy)} of the time only",
        severity=1 - busy,
        clearly=clear(busy, thresholds.IDLE_DEVICE, 0.2),
        evidence={"gpu_busy_share": busy, "stall_share": facts.stall_share},
        where="profile the step: .item(), logging, kernels that are too small",
    )


def copies(facts: Facts) -> Finding | None:
    """Copying batches to the device, or to pinned memory, takes a good part of the loop."""
    if facts.time is None:
        return None
    direct = facts.time.share(facts.time.h2d_s)
    pinning = facts.stall_share * facts.exposure.of(PIN)
    if direct + pinning < thresholds.OWN_PART:
        return None
    return finding(
        COPY,
        facts,
        f"{share(direct + pinning)} of the loop's time",
        severity=direct + pinning,
        clearly=clear(direct + pinning, thresholds.OWN_PART, 0.4),
        evidence={"copy_share": direct, "pin_share": pinning, "stall_share": facts.stall_share},
    )


_USUAL_THREADS: Final = 3
"""Of every worker of torch: one that makes batches, one that sends, one that hands out memory."""


def oversubscription(facts: Facts) -> Finding | None:
    """Each worker computes with several threads, and together they are many more than cores."""
    use, setup = facts.use, facts.setup
    extra = facts.extra_threads_share
    if not setup.num_workers or use.threads is None or extra is None:
        return None
    many = setup.num_workers * max(use.threads - _USUAL_THREADS, 0) / setup.cores
    if many < thresholds.MANY_THREADS or extra < thresholds.EXTRA_THREADS:
        return None
    return finding(
        OVERSUBSCRIPTION,
        facts,
        f"{use.threads:.0f} threads in each of {setup.num_workers} workers on {setup.cores:g} "
        f"cores, {share(extra)} of the workers' CPU time is theirs",
        severity=facts.stall_share,
        clearly=min(
            clear(many, thresholds.MANY_THREADS, 4.0), clear(extra, thresholds.EXTRA_THREADS, 0.5)
        ),
        evidence={
            "stall_share": facts.stall_share,
            "worker_threads_count": use.threads,
            "threads_per_core_count": many,
            "extra_threads_cpu_share": extra,
        },
    )


def cpu_saturated(facts: Facts) -> Finding | None:
    """What workers and loop compute for a batch takes all cores longer than the step lasts."""
    setup, use = facts.setup, facts.use
    own = use.own_cores(setup.num_workers)
    if own is None or facts.cpu_load < thresholds.KEEPS_UP:
        return None
    used = own / setup.cores
    if used + facts.others_share < thresholds.USED_UP:
        return None  # the cores would be too few, but something else is in the way before them
    if used < facts.others_share:
        return None  # it is not this loop that uses them up
    others = f"; other processes had {share(facts.others_share)} of them"
    is_known = setup.has_step and facts.cpu_load < float("inf")
    needed = (
        f"need {facts.cpu_load:.1f} times what {setup.cores:g} cores give in a step"
        if is_known
        else f"use {own:.1f} of {setup.cores:g} cores"
    )
    return finding(
        CPU_SATURATED,
        facts,
        f"workers and loop {needed}{others if facts.others_share >= thresholds.FOREIGN else ''}",
        severity=facts.stall_share,
        clearly=clear(facts.cpu_load, thresholds.KEEPS_UP, 1.2),
        evidence={
            "stall_share": facts.stall_share,
            "cpu_load_factor": facts.cpu_load if is_known else None,
            "cores_used_share": used,
            "queued_share": use.queued_share,
        },
    )


def memory(facts: Facts) -> list[Finding]:
    """Memory, or shared memory, was used up while the loop stood still."""
    causes = {MEMORY: MEMORY_PRESSURE, SHM_RESOURCE: SHM}
    return [
        finding(
            causes[row["resource"]],
            facts,
            f"{share(row['mean_share'])} of it, while the loop stood still",
            severity=facts.stall_share,
            clearly=0.7,
            evidence={"used_share": row["mean_share"], "stall_share": facts.stall_share},
        )
        for row in facts.used_up
        if row["resource"] in causes
    ]
