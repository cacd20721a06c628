"""Every rule of the verdict: what each cause would show in the numbers, one function for each.

A rule returns a finding with its evidence, or None where it does not hold; which of the findings
is the verdict says `verdict`. Over 500 lines, because there are more than twenty causes and a
reader compares their rules: helpers first, then waiting, work on samples, the loop, the machine,
workers.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from stallscope import stages
from stallscope.diagnose import causes
from stallscope.diagnose.own_code import COLLECTS, OTHER, READS
from stallscope.diagnose.result import Finding
from stallscope.model import thresholds
from stallscope.model.exposure import (
    COLLATE,
    DECODE,
    DIGITS,
    FETCH,
    GETITEM_,
    MAIN,
    PIN,
    SENDING,
    TRANSFORM,
    UNATTRIBUTED,
    WORK,
    StagePart,
)
from stallscope.model.thresholds import HARDLY, OTHERS, SATURATED, SLOW_WORKER
from stallscope.units import count, duration, seconds, share, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.diagnose.causes import Cause
    from stallscope.diagnose.facts import Facts
    from stallscope.run.worker_memory import MemoryGrowth

JUST: Final = 0.5
"""Confidence of a rule that is only just met."""
_MANY_STEPS: Final = 30
"""From so many steps on, a run is no longer called short."""
READING = (FETCH, GETITEM_)
"""Where reading shows; in `getitem` it is reading that no hook could name."""
_CAUSE_OF = {DECODE: causes.DECODE, COLLATE: causes.COLLATE, SENDING: causes.SENDING}
_WORK = (*WORK, SENDING)
_FLOATS_OF = {COLLATE: causes.COLLATE_FLOATS, SENDING: causes.SENDING_FLOATS}
_GROUPS = {
    causes.DECODE: (DECODE,),
    causes.COLLATE: (COLLATE,),
    causes.SENDING: (SENDING,),
    causes.ONE_TRANSFORM: (TRANSFORM, *READING),
    causes.TRANSFORMS: (TRANSFORM, *READING),
}
_WORDS = {DECODE: "decoding", COLLATE: "collate", SENDING: "sending and receiving batches"}
_REST: Final = ("step", "other")
"""What lies outside of all parts that have a name."""
_SAMPLER: Final = "the loader's own work in it ({}, bookkeeping)"
_SAMPLERS: Final = (
    "draw indices beforehand or with arrays, not one by one in each step, and leave what a sampler "
    "or a wrapper of the loader computes to the dataset or to collate_fn, which the workers run"
)
_MOST_NAMED: Final = 3
"""Parts of the work in one title."""
_AT_ONCE: Final = (
    "take all samples of a batch by one index: __getitems__(indices) in the dataset, or "
    "sampler=BatchSampler(...) with batch_size=None"
)
"""What helps where samples are so small that handling them one by one is what takes the time."""
IN_WORKERS: Final = (
    "leave it to the workers (in the dataset, or in collate_fn), do it for a whole batch at once, "
    "or, where it is logging or a metric, only every so many steps"
)
"""What helps where the training process computes beside its model."""
_PLAIN_COLLATE: Final = "no Python loop over samples, tensors of one size"
_LESS_TO_DECODE: Final = (
    "store less of each sample (images smaller, sound in pieces, video with more key frames), "
    "decode only what is used, or use a faster decoder"
)
_CONVERTS: Final = re.compile(r"(ToTensor|Normalize|ToDtype|ConvertImageDtype|ToFloat)\b")
_MAKES_SMALLER: Final = re.compile(r"resiz|crop|max_?size|thumbnail|rescale", re.IGNORECASE)
_RESIZES: Final = re.compile(r"resiz|max_?size|thumbnail", re.IGNORECASE)
_SPACES: Final = {stages.MEMORY: causes.MEMORY_PRESSURE, stages.SHM: causes.SHM}
_SLOW_WORKER: Final = "slow_worker"
_SLOW_SAMPLES: Final = "slow_samples"


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
    disturbed = max(facts.others_share - OTHERS, 0.0)
    # Of a worker that hardly ever has a core, it cannot be told what it waits for
    is_sure = not disturbed or facts.computes_too_much
    queued = 0.0 if is_sure else facts.use.queued_share or 0.0
    calm = min(1 - disturbed / 2, thresholds.BEARABLE - queued)
    return max(min(0.5 + short / 2, calm, 1 - facts.exposure.of(UNATTRIBUTED)), 0.0)


_OF_SAMPLES: Final = {
    *(causes.STORAGE_LATENCY.code, causes.STORAGE_BANDWIDTH.code, causes.LOCK.code),
    *(causes.DECODE.code, causes.ONE_TRANSFORM.code),
}
"""Causes that a cache of samples takes away."""


def _repeats(facts: Facts) -> str:
    """That a sample reads, or decodes, many times, in words; '' where none does."""
    stage, many = max(facts.calls.items(), key=lambda one: one[1], default=("", 0.0))
    noted = facts.exposure.of(FETCH, DECODE) >= thresholds.NOTED
    if not noted or many < thresholds.MANY_CALLS:
        return ""
    what = "leave out what it does not use (columns, rows, frames), store the rest together"
    who = "04_worker_flamegraphs shows who asks for it"
    return f"{stage} is done {many:.0f} times for each sample: {what}; {who}; "


def _kept(facts: Facts) -> str:
    """That the dataset's cache is lost with its workers, in words; '' where it is not."""
    cache = facts.setup.cache
    if not cache or not facts.starts.again or facts.setup.persistent:
        return ""
    lost = "what {} keeps is lost when the workers end with the epoch"
    return f"persistent_workers=True: {lost.format(cache)}; or fill it beforehand; "


def finding(  # noqa: PLR0913 - the fields of a finding
    cause: Cause,
    facts: Facts,
    what: str,
    *,
    clearly: float,
    evidence: Mapping[str, float | None],
    severity: float | None = None,
    where: str = "",
    stage: str = "",
    line: str = "",
) -> Finding:
    """A finding of this cause.

    Args:
        cause: what it is.
        facts: what is known.
        what: words and numbers for the title.
        clearly: how clearly (0 to 1) its rule is met.
        evidence: numbers with their names, beside the share of stalls and the ladder's headroom;
            those that are not known are left out.
        severity: share (0 to 1) of the loop's time that it costs; None: all of the stalls but the
            begins of epochs.
        where: for the next step: a setting, what helps.
        stage: whose function of the user's the next step names, where one is known.
        line: a function that it names instead.
    """
    own, gain = facts.own_code(stage), facts.gain
    stalls = facts.stall_share - facts.begin_share
    kept = _kept(facts) + _repeats(facts) if cause.code in _OF_SAMPLES else ""
    whole = {
        "stall_share": facts.stall_share if facts.time else None,
        **evidence,
        "headroom_factor": gain.factor if gain else None,
        "headroom_factor_low": gain.low if gain else None,
        "headroom_factor_high": gain.high if gain else None,
    }
    return Finding(
        code=cause.code,
        title=cause.title.format(what=what),
        severity=min(max(stalls if severity is None else severity, 0.0), 1.0),
        evidence={name: float(value) for name, value in whole.items() if value is not None},
        confidence=min(clearly, trust(facts)),
        next_step=kept + cause.next_step(where or stage, line or (own.place if own else "")),
    )


def lock(facts: Facts) -> Finding | None:
    """Workers wait for each other: what they wait for is shared, and it is no storage."""
    waits = facts.exposure.waiting(*READING, TRANSFORM, COLLATE, DECODE)
    if waits < thresholds.WAITS_FOR_EACH_OTHER or facts.setup.num_workers < 2:  # noqa: PLR2004 - each other
        return None
    if not _is_lock(facts):
        return None
    stage = max(facts.exposure.parts, key=lambda part: part.share * part.waiting).stage
    own = facts.own_code(stage)
    seen, how = facts.use.file_lock_share or 0.0, ""
    if seen >= thresholds.LOCK_FRAMES:
        how = f", and they wait at a lock of a file {share(seen)} of their time"
    elif facts.is_shared:
        how = f", and one worker alone takes {_alone(facts)}"
    return finding(
        causes.LOCK,
        facts,
        f"{share(waits)} of the stalls is waiting in {own.place if own else stage}{how}",
        severity=facts.stall_share * facts.exposure.of(TRANSFORM, COLLATE, DECODE, *READING),
        clearly=min(
            clear(waits, thresholds.WAITS_FOR_EACH_OTHER, 0.45),
            thresholds.UNSEEN if facts.lock_frames is None else 1.0,
        ),
        evidence={
            **_waiting(facts),
            "lock_frames_share": facts.lock_frames,
            "file_lock_share": facts.use.file_lock_share,
        },
        stage=stage,
    )


def storage(facts: Facts) -> Finding | None:
    """Reading waits, and not for the CPU: for storage that is slow to answer, or that is full."""
    waits = facts.exposure.waiting(*READING)
    if waits < thresholds.NOTED or _is_lock(facts):
        return None
    if is_unseen(facts):  # also what is shared may be anything: a busy machine, a connection
        return _unseen(facts, waits)
    rate = facts.reading.bytes_per_s
    with_rate = f" at {size(rate)}/s" if rate else ""
    each = f"{seconds(facts.reading.sample_s)} per sample" if facts.reading.sample_s else "unseen"
    shared = f", and one worker alone takes {_alone(facts)}" if facts.is_shared is not None else ""
    return finding(
        causes.STORAGE_BANDWIDTH if _is_full(facts) else causes.STORAGE_LATENCY,
        facts,
        f"{share(waits)} of the stalls is waiting in reading ({each}{with_rate}){shared}",
        severity=facts.stall_share * facts.exposure.of(*READING),
        clearly=min(clear(waits, thresholds.NOTED, 0.6), 0.8 if facts.is_shared is None else 1.0),
        evidence=_waiting(facts)
        | {
            "read_bytes_per_s": rate,
            "disk_busy_share": facts.use.disk_busy_share,
            **_given(facts),
        },
    )


def _given(facts: Facts) -> dict[str, float | None]:
    """What a measurement of the storage adds to the evidence."""
    known = facts.setup.storage
    best = known.best if known else None
    if known is None or best is None:
        return {}
    return {
        "storage_cold_samples_per_s": best["requests_per_s"],
        "storage_cold_readers": best["readers"],
        "storage_spare_factor": known.spare,
        "page_cache_share": known.circumstances.resident_share,
    }


def is_unseen(facts: Facts) -> bool:
    """Whether what waits is the dataset's own code, in which nothing was seen to read."""
    in_fetch, in_own = facts.exposure.waiting(FETCH), facts.exposure.waiting(GETITEM_)
    return in_own > in_fetch and (facts.use.disk_busy_share or 0.0) < SATURATED


def _unseen(facts: Facts, waits: float) -> Finding:
    """The dataset's own code waits: most often it reads, by what has no hook, but maybe not."""
    stage = stages.GETITEM.name
    each, own = facts.each(stage), facts.own_code(stage)
    what = f"{share(waits)} of the stalls{each and f', {each}'}"
    return finding(
        causes.OWN_CODE_WAITS if own else causes.WAITS_UNSEEN,
        facts,
        f"{what}, in {own.place}: {own.does}" if own else what,
        severity=facts.stall_share * facts.exposure.of(*READING),
        clearly=min(clear(waits, thresholds.NOTED, 0.6), 1.0 if own else thresholds.UNSEEN),
        evidence=_waiting(facts) | {"disk_busy_share": facts.use.disk_busy_share},
        where=own.call.remedy if own else "",
        stage=stage,
    )


def _is_full(facts: Facts) -> bool:
    """Whether it is the number of bytes that takes the time, or a device that is busy.

    A measurement of the device tells more than workers do: those that take turns at one that
    answers requests one by one share it, too, and it has bytes to spare.
    """
    known = facts.setup.storage
    if known is not None and known.is_full is not None:
        return known.is_full
    busy = (facts.use.disk_busy_share or 0.0) >= SATURATED
    return facts.is_shared is True or (busy and facts.is_shared is not False)


def _is_lock(facts: Facts) -> bool:
    """Whether workers wait for a lock and not for storage: it was seen, or it is concluded."""
    if (facts.use.file_lock_share or 0.0) >= thresholds.LOCK_FRAMES:
        return True
    if facts.lock_frames is not None:
        return facts.lock_frames >= thresholds.LOCK_FRAMES
    if not facts.is_shared:
        return False
    reads = facts.exposure.waiting(*READING)
    others = facts.exposure.waiting(TRANSFORM, COLLATE, DECODE)
    return others > reads


def _alone(facts: Facts) -> str:
    alone, making = facts.alone_s, facts.making
    if not alone or making is None:
        return "as long"
    many = facts.setup.num_workers
    return f"{seconds(alone)} for a batch, each of {many} takes {seconds(making.usual_s)}"


def _waiting(facts: Facts) -> dict[str, float | None]:
    return {
        "waiting_share": facts.exposure.waiting(*READING, TRANSFORM, COLLATE, DECODE),
        "fetch_exposed_share": facts.exposure.of(FETCH),
        "batch_s": facts.making.usual_s if facts.making else None,
        "batch_alone_s": facts.alone_s,
    }


def leading(facts: Facts) -> str | None:
    """The group of work that dominates, or whose longest stage is well ahead; None: none.

    Shares are of the work alone: what threads waited for cores is the same for all of it. What the
    dataset computes around its transforms counts with them, as it does in their finding.
    """
    parts = [part for part in facts.exposure.parts if part.group in _WORK]
    work = sum(part.share for part in parts)
    groups = {name: part for name, part in facts.exposure.groups().items() if name in _WORK}
    if not work or not groups:
        return None
    if GETITEM_ in own_groups(facts) and groups.get(TRANSFORM, 0.0) > groups.get(GETITEM_, 0.0):
        groups[TRANSFORM] += groups.pop(GETITEM_, 0.0)
    most = max(groups, key=lambda name: round(groups[name], DIGITS))  # of equal ones the first
    if groups[most] >= thresholds.UNEVEN * work:
        return most
    first, second = (*(part.share for part in parts[:2]), 0.0)[:2]
    ahead = first >= thresholds.LEADS * work and first >= thresholds.AHEAD * second
    return parts[0].group if ahead else None


def groups_of(cause: Cause) -> tuple[str, ...]:
    """The groups of work that a cause is about; none for causes of another kind."""
    return _GROUPS.get(cause, ())


def works(facts: Facts) -> list[Finding]:
    """A finding for each group of work that holds enough of the stalls, the largest first."""
    found = []
    for group, part in facts.exposure.groups().items():
        if part < thresholds.NOTED:
            break
        if group == SENDING and facts.stall_share * part < thresholds.PASSING:
            continue
        if group in _CAUSE_OF:
            found.append(_of_group(facts, group, part))
        elif group in own_groups(facts):
            found.append(_of_transforms(facts))
    return found


def own_groups(facts: Facts) -> tuple[str, ...]:
    """Transforms, and what of the dataset's own code computes; where it waits, it does not."""

    def computes(group: str) -> bool:
        return facts.exposure.waiting(group) < thresholds.DOMINATES * facts.exposure.of(group)

    return (TRANSFORM, *(group for group in READING if computes(group)))


def _of_group(facts: Facts, group: str, part: float) -> Finding:
    longest = facts.exposure.longest(group)
    stage = longest.stage if longest else ""
    each, own = facts.each(stage), facts.own_code(stage)
    with_each = each and f", {each}"
    cause, what = _CAUSE_OF[group], f"{_WORDS[group]} holds {share(part)} of the stalls{with_each}"
    plain = _AT_ONCE if _is_small(facts) else _PLAIN_COLLATE
    where = plain if group == COLLATE else ""
    if group == DECODE and (resize := resize_of_large_images(facts)):
        cause, what = causes.LARGE_IMAGES, f"{what}, and {resize.stage} {share(resize.share)}"
    elif group == DECODE and facts.megapixels is None:
        cause, where = causes.DECODE_OTHER, _LESS_TO_DECODE
    is_known = own is not None and own.call is not OTHER
    if group in _FLOATS_OF and facts.holds_scaled_bytes and not is_known:
        cause, what = _FLOATS_OF[group], what + _floats(facts)
    elif own and where:
        known = group == COLLATE or own.call is not OTHER
        what += f", in {own.place}: {own.does}" if known else f", in {own.place}"
        where = own.call.remedy if known else where
    return finding(
        cause,
        facts,
        what,
        severity=facts.stall_share * part,
        clearly=_clearly(facts, part),
        evidence={f"{group}_exposed_share": part},
        where=where,
        stage=stage,
    )


def resize_of_large_images(facts: Facts) -> StagePart | None:
    """The transform that makes large images small, where that and decoding are most of the work."""
    parts = facts.exposure.parts
    resizes = (part for part in parts if part.group == TRANSFORM and _RESIZES.search(part.stage))
    most = max(resizes, key=lambda part: part.share, default=None)
    decodes = facts.exposure.of(DECODE)
    if most is None or min(most.share, decodes) < thresholds.NOTED:
        return None
    is_most = most.share + decodes >= thresholds.DOMINATES * facts.exposure.of(*_WORK)
    large = (facts.megapixels or 0.0) >= thresholds.LARGE_MEGAPIXELS
    return most if is_most and large else None


def _of_transforms(facts: Facts) -> Finding:
    """What is done to samples: by the dataset's own code, by one transform, or by all of them."""
    groups = own_groups(facts)
    own_part = facts.exposure.of(*groups[1:])
    whole = own_part + facts.exposure.of(TRANSFORM)
    if own_part >= thresholds.ONE_OF_MANY * whole:
        return _of_own_code(facts, _longest(facts, groups[1:]).stage, own_part, whole)
    if facts.holds_scaled_bytes and (found := _of_conversion(facts)):
        return found
    groups = tuple(group for group in groups if group != FETCH)
    part, most = facts.exposure.of(*groups), _longest(facts, groups)
    if most.share >= thresholds.ONE_OF_MANY * part:
        own = facts.own_code(most.stage)
        called = own.call if own and own.call is not OTHER else None
        does = f": {own.does}" if own and own.does != OTHER.does else ""
        cause = causes.OWN_TRANSFORM if called else causes.ONE_TRANSFORM
        if most.stage == stages.GARBAGE.name:
            cause, called, own = causes.GARBAGE, COLLECTS, facts.own_code(stages.GETITEM.name)
            does = f", called by {own.place}" if own and own.call is COLLECTS else ""
        return finding(
            cause,
            facts,
            f"{most.stage} holds {share(most.share)} of the stalls, {facts.each(most.stage)}{does}",
            severity=facts.stall_share * most.share,
            clearly=_clearly_one(facts, most.share, part),
            evidence=_of_one(most.share, part),
            where=called.remedy if called else "",
            stage=most.stage,
        )
    own = facts.own_code(stages.GETITEM.name) if GETITEM_ in groups else None
    holds = "they hold" if own is None else "it holds"
    named = own is not None and facts.exposure.of(GETITEM_) >= thresholds.NOTED
    return finding(
        causes.WORK_AND_OWN_CODE if own and named else causes.TRANSFORMS,
        facts,
        f"{holds} {share(part)} of the stalls, most in {_longest_of(facts, groups)}",
        severity=facts.stall_share * part,
        clearly=_clearly(facts, part),
        evidence={
            "all_transforms_exposed_share": part,
            "longest_transform_exposed_share": most.share,
        },
        where=f"{own.place}: {own.call.remedy}" if own and named else _less_first(facts),
    )


def _less_first(facts: Facts) -> str:
    """What makes the rest of the work on images cheaper; no crop where one comes first already."""
    names = [part.stage for part in facts.exposure.parts]
    of_images = facts.megapixels is not None or any(map(_MAKES_SMALLER.search, names))
    last = "make floats of uint8 last; "
    if not of_images or _MAKES_SMALLER.search(facts.first_transform or ""):
        return last
    return f"crop or resize first, so that the rest works on less, and {last}"


def _longest_of(facts: Facts, groups: tuple[str, ...]) -> str:
    """The longest parts of the work with their shares; the user's own code by its function."""
    said = []
    for part in facts.exposure.parts:
        if part.group in groups and part.share >= thresholds.NOTED_PART:
            own = facts.own_code(part.stage) if part.group == GETITEM_ else None
            does = f", {own.does}" if own and own.does != OTHER.does else ""
            said.append(f"{own.place if own else part.stage} ({share(part.share)}{does})")
    return ", ".join(said[:_MOST_NAMED])


def conversions(facts: Facts) -> list[StagePart]:
    """The transforms that make floats out of images, where they are most of all transforms."""
    found = [part for part in facts.exposure.parts if _CONVERTS.match(part.stage)]
    is_most = sum(part.share for part in found) >= thresholds.ONE_OF_MANY * facts.exposure.of(
        TRANSFORM, GETITEM_
    )
    return found if is_most else []


def _of_conversion(facts: Facts) -> Finding | None:
    """Floats that uint8 would hold are made, which the device would do sooner."""
    found = conversions(facts)
    if not found:
        return None
    part = sum(one.share for one in found)
    names = " and ".join(one.stage for one in found)
    return finding(
        causes.CONVERSION,
        facts,
        f"{names} hold{'s' * (len(found) == 1)} {share(part)} of the stalls{_floats(facts)}",
        severity=facts.stall_share * part,
        clearly=_clearly(facts, part),
        evidence=_of_one(part, facts.exposure.of(TRANSFORM, GETITEM_)),
    )


def _floats(facts: Facts) -> str:
    """How many bytes uint8 would save, in words; empty where it would not."""
    if facts.batch is None or not facts.holds_scaled_bytes:
        return ""
    floats, as_uint8 = size(facts.batch.floats), size(facts.batch.as_uint8)
    return f"; {floats} a batch are floats that {as_uint8} of uint8 would hold"


def _of_own_code(facts: Facts, stage: str, own_part: float, part: float) -> Finding:
    """What the dataset computes itself, and the function of the user's that does."""
    each, own = facts.each(stage), facts.own_code(stage)
    unnamed = "__getitem__ itself" if stage == stages.GETITEM.name else "reading"
    place = own.place if own else unnamed
    call = own.call if own else READS if stage in stages.READING_WORDS else OTHER
    does = f", computing: {own.does}" if own else ""
    if facts.threads_compute and call is OTHER:
        does = ", computing in threads of its own, as a codec does"
    return finding(
        causes.OWN_CODE,
        facts,
        f"{place} holds {share(own_part * (own.share if own else 1.0))} of the stalls"
        f"{each and f', {each}'}{does}",
        severity=facts.stall_share * own_part,
        clearly=_clearly_one(facts, own_part, part),
        evidence=_of_one(own_part, part),
        where=_AT_ONCE if _is_small(facts) and call is OTHER else call.remedy,
        stage=stage,
    )


def _clearly_one(facts: Facts, most: float, part: float) -> float:
    return min(_clearly(facts, most), clear(most / part, thresholds.ONE_OF_MANY, 0.75))


def _of_one(most: float, part: float) -> dict[str, float]:
    return {"transform_exposed_share": most, "all_transforms_exposed_share": part}


def _longest(facts: Facts, groups: tuple[str, ...]) -> StagePart:
    longest = [facts.exposure.longest(group) for group in groups]
    return max((part for part in longest if part), key=lambda part: part.share)


def _clearly(facts: Facts, part: float) -> float:
    """Whether it dominates, and whether the ladder agrees where there is one."""
    return _agreed(facts, clear(part, thresholds.NOTED, thresholds.DOMINATES + 0.15))


def _agreed(facts: Facts, alone: float) -> float:
    """How clearly a rule is met that a ladder, where there is one, may not agree with."""
    return min(alone, 0.6) if facts.gain is not None and facts.gain.is_none else alone


def no_worker(facts: Facts) -> Finding | None:
    """The main process makes the batches itself, so the device waits for each of them."""
    if facts.setup.num_workers or not facts.exposure.parts or not facts.setup.has_step:
        return None
    slowed, largest = _slowed_by_threads(facts), _largest(facts)
    own = facts.own_code(largest.stage) if largest else None
    part = f"; the largest part of it is {largest.stage}" if largest else ""
    many = max(int(facts.setup.cores) - 1, 1)
    return finding(
        causes.MAIN_PROCESS,
        facts,
        f"it makes the batches itself (num_workers=0), which takes {share(facts.stall_share)} of "
        f"the loop's time{slowed and f' with one torch thread; {slowed}'}"
        f"{part}{f', in {own.place}: {own.does}' if own else ''}",
        clearly=clear(facts.stall_share, HARDLY, 0.2),
        evidence={
            "num_workers_count": 0,
            **_thread_times(facts),
        },
        where=f"{f'{_AT_ONCE}; ' if _is_small(facts) else ''}num_workers={many} or so"
        f"{_kept_alive(facts)}{f'; {own.call.remedy}' if own else ''}",
        stage=largest.stage if own and largest else "",
    )


def _kept_alive(facts: Facts) -> str:
    """What to add to `num_workers` where an epoch is hardly longer than starting some takes."""
    making, batches = facts.making, facts.setup.epoch_batches
    epoch_s = making.period_s * batches if making and batches else math.inf
    if epoch_s > thresholds.SHORT_EPOCH_S:
        return ""
    return f" with persistent_workers=True, as an epoch takes {seconds(epoch_s)}"


def needless_workers(facts: Facts) -> Finding | None:
    """A batch is made in less time than the loop waits for its sending and receiving."""
    handover = facts.making.handover if facts.making else None
    saved = facts.needless_share
    if handover is None or not facts.has_needless_workers:
        return None
    return finding(
        causes.NEEDLESS_WORKERS,
        facts,
        f"sending and receiving a batch takes the loop {seconds(handover.received_s)}, and making "
        f"it takes {seconds(facts.pace.own_batch_s)}",
        severity=max(saved, facts.stall_share * facts.exposure.of(SENDING)),
        clearly=_agreed(facts, clear(saved, thresholds.PASSING, 0.2)),
        evidence={
            "num_workers_count": facts.setup.num_workers,
            "batch_make_s": facts.pace.own_batch_s,
            "batch_receive_s": handover.received_s,
        },
        where=f", and {_AT_ONCE}" if _is_small(facts) else "",
    )


def own_threads(facts: Facts) -> Finding | None:
    """The main process makes batches more slowly with its torch threads than with one."""
    times, slowed = facts.own_threads, _slowed_by_threads(facts)
    if times is None or not slowed or not facts.setup.has_step:
        return None
    use_s = facts.making.use_s if facts.making else 0.0
    return finding(
        causes.MAIN_PROCESS,
        facts,
        slowed,
        severity=times.cost_s / (times.own_s + use_s),
        clearly=clear(times.own_s / times.one_s, thresholds.SLOWED, 3.0),
        evidence={"num_workers_count": 0, **_thread_times(facts)},
        where="workers, which have one thread each, or torch.set_num_threads(1) in the dataset",
    )


def _thread_times(facts: Facts) -> dict[str, float]:
    times = facts.own_threads
    return {"batch_own_threads_s": times.own_s, "batch_one_thread_s": times.one_s} if times else {}


def _slowed_by_threads(facts: Facts) -> str:
    """Both times of a batch in words; "" where they do not differ for sure."""
    times = facts.own_threads
    if times is None or not times.cost_s:
        return ""
    return (
        f"a batch takes {seconds(times.own_s)} with your loop's {times.threads} torch threads, "
        f"and {seconds(times.one_s)} with one"
    )


def own_parts(facts: Facts) -> Finding | None:
    """Parts of the loop that are neither waiting for workers nor the model take long."""
    parts = {name: part for name, part in facts.own_parts.items() if name not in _REST}
    parts["code outside of the model"] = facts.own_parts.get("other", 0.0) - facts.release_share
    sampler = _SAMPLER.format(facts.setup.sampler or "a sampler")
    if facts.model_share:  # the model is known, so the rest of the step is something else
        parts["code outside of the model"] += facts.own_parts.get("step", 0.0)
    if facts.setup.num_workers:
        parts[sampler] = facts.stall_share * facts.exposure.of(MAIN)
    whole, longest = sum(parts.values()), max(sorted(parts), key=lambda name: parts[name])
    if whole < thresholds.OWN_PART:
        return None
    rarer = f"make {longest} cheaper, rarer, or do it in a thread or beforehand"
    return _of_the_loop(
        facts,
        f"{longest} takes {share(parts[longest])} of the loop's time",
        severity=whole,
        clearly=clear(whole, thresholds.OWN_PART, 0.35),
        evidence={
            "own_parts_share": whole,
            "model_share": facts.model_share,
            "loop_cpu_share": facts.use.loop_cpu,
        },
        helps=_SAMPLERS if longest == sampler else rarer,
    )


def _of_the_loop(  # noqa: PLR0913 - the fields of a finding
    facts: Facts,
    what: str,
    *,
    severity: float,
    clearly: float,
    evidence: Mapping[str, float | None],
    helps: str,
) -> Finding:
    """What the training process does itself; stacks of it say in which function, and what helps."""
    own, line = facts.loop_code, loop_line(facts)
    if own is not None and line:
        what += f"; {share(own.share)} of what it computes is in {line}: {own.does}"
        helps = helps if helps is _SAMPLERS else IN_WORKERS
        helps = helps if own.call is OTHER else f"{own.call.remedy}; {helps}"
    return finding(
        causes.MAIN_PROCESS,
        facts,
        what,
        severity=severity,
        clearly=clearly,
        evidence=evidence,
        where=helps,
        line=line,
    )


def loop_line(facts: Facts) -> str:
    """The function in which the training process computes beside its model; '' for none."""
    is_much = facts.loop_code_share >= thresholds.OWN_PART
    return facts.loop_code.place if facts.loop_code and is_much else ""


def is_busy_here(facts: Facts) -> bool:
    """Whether the training process computes more than any of its workers does."""
    return (facts.use.loop_cpu or 0.0) >= (facts.use.worker_cpu or 1.0)


def releases(facts: Facts) -> Finding | None:
    """Letting go of batches that workers sent takes a good part of the loop: they are large."""
    part = facts.release_share
    if facts.batch is None or part < thresholds.OWN_PART:
        return None
    return finding(
        causes.SENDING_FLOATS if facts.holds_scaled_bytes else causes.SENDING,
        facts,
        f"giving back the shared memory of a batch ({size(facts.batch.all)}) takes the loop "
        f"{seconds(facts.batch.release_s)}, {share(part)} of its time{_floats(facts)}",
        severity=part + facts.stall_share * facts.exposure.of(SENDING, COLLATE),
        clearly=clear(part, thresholds.OWN_PART, 0.35),
        evidence={"release_share": part},
    )


def computes_in_python(facts: Facts) -> Finding | None:
    """The step waits for the device for a part of its time, and computes in Python for another.

    Only where the model cannot be seen (no module within reach) and the device is not the CPU's
    own: a step that computes without a pause may be a model on the CPU, unless stacks show what it
    calls instead.
    """
    cpu, setup = facts.use.loop_cpu, facts.setup
    if facts.model_share or cpu is None or setup.simulated or setup.on_gpu or not setup.has_step:
        return None
    if not setup.num_workers or facts.time is None:
        return None
    step = facts.own_parts.get("step", 0.0)
    wanted = cpu + (facts.use.loop_queued_share or 0.0)  # computes, or would if it had a core
    is_all = wanted > thresholds.ALL_COMPUTING * step
    code = facts.loop_code if loop_line(facts) else None
    is_named = code is not None and code.call is not OTHER
    if min(cpu, step) < thresholds.OWN_PART or (is_all and not is_named):
        return None
    return _of_the_loop(
        facts,
        f"for {share(min(cpu, step))} of the loop's time it computes"
        f"{'' if is_all else ', and the step waits for the rest'}",
        severity=min(facts.loop_code_share if is_all else cpu, step),
        clearly=clear(cpu, thresholds.OWN_PART, 0.5),
        evidence={"loop_cpu_share": cpu, "step_share": step},
        helps="put ss.stage('...') around logging and callbacks, and see which takes the time",
    )


def idle_device(facts: Facts) -> Finding | None:
    """Batches are there and the device is idle all the same: the host is too slow for it."""
    setup = facts.setup
    by_driver = facts.use.gpu_busy_share if setup.on_gpu else None
    by_events = facts.device_busy_share if setup.on_gpu or setup.simulated else None
    told = [one for one in (by_driver, by_events) if one is not None]
    busy = min(told, default=1.0)
    if busy >= thresholds.IDLE_DEVICE:
        return None
    if facts.stall_share >= HARDLY:
        return None
    return _of_the_loop(
        facts,
        f"no batch is missing, and the {'GPU' if setup.on_gpu else 'device'} is busy for "
        f"{share(busy)} of the time only",
        severity=1 - busy,
        clearly=clear(busy, thresholds.IDLE_DEVICE, 0.2),
        evidence={"gpu_busy_share": by_driver, "device_busy_share": by_events},
        helps="05_when_data_is_not_it: .item(), logging, kernels that are too small",
    )


def copies(facts: Facts) -> Finding | None:
    """Copying batches to the device, or to pinned memory, takes a good part of the loop."""
    if facts.time is None:
        return None
    direct = facts.device_copy_share
    if direct is None:
        direct = facts.time.share(facts.time.h2d_s)
    pinning = facts.stall_share * facts.exposure.of(PIN)
    if direct + pinning < thresholds.OWN_PART:
        return None
    return finding(
        causes.COPY,
        facts,
        f"{share(direct + pinning)} of the loop's time",
        severity=direct + pinning,
        clearly=clear(direct + pinning, thresholds.OWN_PART, 0.4),
        evidence={"copy_share": direct, "pin_share": pinning},
    )


def oversubscription(facts: Facts) -> Finding | None:
    """Each worker computes with several threads, and together they are many more than cores."""
    use, setup = facts.use, facts.setup
    extra = facts.extra_threads_share
    if not setup.num_workers or use.threads is None or extra is None:
        return None
    many = facts.threads_per_core
    least = thresholds.EXTRA_THREADS / (2 if many >= thresholds.CROWDS_OF_THREADS else 1)
    if many < thresholds.MANY_THREADS or extra < least:
        return None
    return finding(
        causes.OVERSUBSCRIPTION,
        facts,
        f"{use.threads:.0f} threads in each of {count(setup.num_workers, 'worker')} on "
        f"{setup.cores:g} cores, {share(extra)} of the workers' CPU time is theirs",
        severity=facts.lost_share,
        clearly=min(clear(many, thresholds.MANY_THREADS, 4.0), clear(extra, least, 0.5)),
        evidence={
            "worker_threads_count": use.threads,
            "threads_per_core_count": many,
            "extra_threads_cpu_share": extra,
        },
    )


def cpu_saturated(facts: Facts) -> Finding | None:
    """What workers and loop compute for a batch takes all cores longer than the step lasts."""
    setup, use = facts.setup, facts.use
    own = use.own_cores(setup.num_workers)
    if own is None or facts.pace.cpu_load < thresholds.KEEPS_UP:
        return None
    used = own / setup.cores
    if used + facts.others_share < thresholds.CORES_SHORT:
        return None  # the cores would be too few, but something else is in the way before them
    if used < facts.others_share:
        return None  # it is not this loop that saturates them
    others = f"; other processes had {share(facts.others_share)} of them"
    largest = _largest(facts)
    is_known = setup.has_step and facts.pace.cpu_load < float("inf")
    needed = (
        f"need {facts.pace.cpu_load:.1f} times what {setup.cores:g} cores give in a step"
        if is_known
        else f"use {own:.1f} of {setup.cores:g} cores"
    )
    return finding(
        causes.SLOWS_THE_STEP if facts.is_slowed else causes.CPU_SATURATED,
        facts,
        f"workers and loop {needed}"
        f"{f'; the largest part is {largest.stage}, {share(largest.share)}' if largest else ''}"
        f"{others if facts.others_share >= OTHERS else ''}",
        severity=facts.lost_share,
        clearly=clear(facts.pace.cpu_load, thresholds.KEEPS_UP, 1.2),
        evidence={
            "cpu_load_factor": facts.pace.cpu_load if is_known else None,
            "cores_used_share": used,
            "queued_share": use.queued_share,
        },
        where=f" ({largest.stage})" if largest else "",
    )


def _largest(facts: Facts) -> StagePart | None:
    return next((part for part in facts.exposure.parts if part.group in WORK), None)


def _is_small(facts: Facts) -> bool:
    """Whether samples are so small that handling them one by one takes longer than they do."""
    return 0 < facts.spikes.usual_s < thresholds.SMALL_SAMPLE_S


def memory(facts: Facts) -> list[Finding]:
    """Memory, or shared memory, was saturated while the loop stalled."""
    return [
        finding(
            _SPACES[row["resource"]],
            facts,
            f"{share(row['mean_share'])} of it, while the loop stalled",
            clearly=0.7,
            evidence={"used_share": row["mean_share"]},
        )
        for row in facts.saturated
        if row["resource"] in _SPACES
    ]


def memory_growth(facts: Facts) -> Finding | None:
    """The workers' memory grows all the time, which ends a training later than it slows it."""
    growth = facts.memory_growth
    if growth is None or not growth.matters:
        return None
    return finding(
        causes.MEMORY_COPIES if growth.copied else causes.MEMORY_GROWS,
        facts,
        growth.rate() + _until_epoch_ends(facts, growth),
        severity=0.0,
        clearly=clear(growth.grown_bytes, growth.least_bytes, 2 * growth.least_bytes),
        evidence={
            "growth_bytes_per_s": growth.bytes_per_s,
            "growth_bytes": growth.grown_bytes,
            "copied_share": growth.copied_share,
            "full_in_s": growth.left_s,
        },
    )


def _until_epoch_ends(facts: Facts, growth: MemoryGrowth) -> str:
    """That workers which end with the epoch give their memory back, where they do so in time."""
    batches, steps = facts.setup.epoch_batches, facts.time.steps if facts.time else 0
    if facts.setup.persistent or not batches or not facts.time or not steps or not growth.left_s:
        return ""
    epoch_s = batches * facts.time.total_s / steps
    back = "; but the workers end with the epoch, in {} at most, and give it back"
    return back.format(duration(epoch_s)) if epoch_s < growth.left_s else ""


def too_few(facts: Facts) -> Finding | None:
    """Workers compute without a pause, cores are free, and more workers would be enough."""
    setup, making, use = facts.setup, facts.making, facts.use
    own = use.own_cores(setup.num_workers)
    if not setup.num_workers or making is None or own is None or use.worker_cpu is None:
        return None
    wanted = facts.enough_workers
    if wanted is None:
        return None
    free = max(1 - own / setup.cores, 0.0)
    return finding(
        causes.TOO_FEW_WORKERS,
        facts,
        f"{count(setup.num_workers, 'worker')} of {setup.cores:g} cores, each busy "
        f"{share(making.busy_share)} of the time; {wanted} would keep up",
        clearly=clear(free, 0.1, 0.35),
        evidence={
            "load_factor": making.load,
            "worker_busy_share": making.busy_share,
            "cores_free_share": free,
            "workers_wanted_count": wanted,
        },
        where=f" from {setup.num_workers} to {wanted}",
    )


def idle_workers(facts: Facts) -> Finding | None:
    """Fewer workers make batches than were started, and they cannot keep up."""
    setup, making = facts.setup, facts.making
    if making is None or making.workers >= setup.num_workers or making.load < thresholds.KEEPS_UP:
        return None
    return finding(
        causes.IDLE_WORKERS,
        facts,
        f"{making.workers} of {count(setup.num_workers, 'worker')} make all batches, busy "
        f"{share(making.busy_share)} of the time",
        clearly=clear(making.load, thresholds.KEEPS_UP, 1.2),
        evidence={
            "load_factor": making.load,
            "active_workers_count": making.workers,
        },
    )


def repeated_work(facts: Facts) -> Finding | None:
    """Each worker goes through the whole stream, and leaves what it has made to the others."""
    alone_s, workers = facts.alone_computed_s, facts.setup.num_workers
    if not alone_s or not facts.is_repeated:
        return None
    ratio, works = facts.computed_s / alone_s, facts.exposure.of(*WORK)
    longest = _largest(facts)
    return finding(
        causes.REPEATED_WORK,
        facts,
        f"each of {workers} computes {seconds(facts.computed_s)} for a batch, one worker alone "
        f"{seconds(alone_s)}",
        severity=facts.stall_share * works,
        clearly=clear(ratio / workers, thresholds.REPEATED, 0.95),
        evidence={
            "batch_cpu_s": facts.computed_s,
            "batch_alone_cpu_s": alone_s,
        },
        stage=longest.stage if longest else "",
    )


def few_cores(facts: Facts) -> Finding | None:
    """Workers may run on fewer cores than there are, and wait for those."""
    use, setup = facts.use, facts.setup
    queued, own = use.queued_share or 0.0, use.own_cores(setup.num_workers)
    if use.worker_cores is None or own is None or use.worker_cores >= int(setup.cores):
        return None
    crowded = queued >= thresholds.QUEUES and own / setup.cores < thresholds.CORES_SHORT
    if not crowded or setup.num_workers <= use.worker_cores:
        return None
    return finding(
        causes.FEW_CORES,
        facts,
        f"each may run on {count(int(use.worker_cores), 'core')} of {setup.cores:g}, and waits for "
        f"one {share(queued)} of the time",
        clearly=clear(queued, thresholds.QUEUES, 0.3),
        evidence={
            "queued_share": queued,
            "worker_cores_count": use.worker_cores,
        },
    )


def slow_worker(facts: Facts) -> Finding | None:
    """One worker takes much longer than the others, nearly always, and the loop waits for it."""
    making, by_worker = facts.making, facts.making.by_worker if facts.making else {}
    if making is None or len(by_worker) < 2:  # noqa: PLR2004 - one and the others
        return None
    slow = max(sorted(by_worker), key=lambda one: by_worker[one].median_s)
    own, rest = by_worker[slow], [times for one, times in by_worker.items() if one != slow]
    rest_s = float(np.median([times.median_s for times in rest]))
    ratio = own.median_s / rest_s if rest_s else 1.0
    part = max(facts.patterns.get(_SLOW_WORKER, 0.0), facts.stalled_by_worker.get(slow, 0.0))
    # A worker that shares its core with another process is slower, though nothing is wrong with it
    least = SLOW_WORKER * (1 + min(facts.others_share * facts.setup.cores, 1.0))
    if ratio < least or part < thresholds.WAITS_FOR_IT:
        return None
    if own.low_s <= float(np.median([times.high_s for times in rest])):
        return None  # batches differ more than workers do: one that met the longer ones is not slow
    if own.median_s * facts.pace.queue_free <= thresholds.KEEPS_UP * making.workers * making.use_s:
        return None  # it is slower than the others, and still quick enough
    return finding(
        causes.SLOW_WORKER,
        facts,
        f"worker {slow} takes {seconds(own.median_s)} for a batch, the others "
        f"{seconds(rest_s)}; {share(part)} of the stalls wait for it",
        severity=facts.stall_share * part,
        clearly=min(clear(ratio, least, 1.2 * least), clear(part, thresholds.WAITS_FOR_IT, 0.9)),
        evidence={
            "slow_worker_stall_share": part,
            "slow_worker_batch_s": own.median_s,
            "others_batch_s": rest_s,
        },
    )


def slow_samples(facts: Facts) -> Finding | None:
    """Single samples that take far longer than the others hold up the loop."""
    spikes, followed = facts.spikes, facts.patterns.get(_SLOW_SAMPLES, 0.0)
    # Or, where the pattern is not sure: their part of the samples' part of the stalls
    part = max(followed, spikes.share * facts.exposure.of(FETCH, DECODE, TRANSFORM, GETITEM_))
    without = facts.pace.free_load * (1 - spikes.share)
    if spikes.count < thresholds.FEWEST_SPIKES or part < thresholds.LEADS or without > 1.0:
        return None
    if spikes.share <= 1 - facts.pace.queue_free:
        return None  # samples in which a worker had to wait for a core
    told = facts.titles.get(_SLOW_SAMPLES, "").partition(":")[2]
    named = f":{told}" if told else ""
    own = facts.own_code(slow_stage(facts))
    if own is not None:
        named += f"; most of it in {own.place}: {own.does}"
    return finding(
        causes.SLOW_SAMPLES,
        facts,
        f"one in {spikes.one_in:.0f} takes {seconds(spikes.typical_s)}, the usual one "
        f"{seconds(spikes.usual_s)}{named}",
        severity=facts.stall_share * part,
        clearly=clear(part, thresholds.LEADS, 0.5),
        evidence={
            "slow_samples_stall_share": part,
            "slow_samples_work_share": spikes.share,
            "slow_sample_s": spikes.typical_s,
            "usual_sample_s": spikes.usual_s,
        },
        where=f"; {own.call.remedy}" if own and own.call is not OTHER else "",
        line=own.place if own else "",
    )


def slow_stage(facts: Facts) -> str:
    """The stage in which slow samples are most of all samples' work; '' where they are less."""
    largest = _largest(facts) if facts.spikes.share >= thresholds.DOMINATES else None
    return largest.stage if largest else ""


def too_little_prefetch(facts: Facts) -> Finding | None:
    """On average the workers keep up; the stalls are where batches took longer than usual."""
    making, setup = facts.making, facts.setup
    if making is None or not setup.num_workers:
        return None
    if max(facts.pace.free_load, facts.pace.cpu_load) > thresholds.KEEPS_UP:
        return None
    if facts.exposure.of(*WORK) < thresholds.LEADS:  # the batches were made in time
        return None
    ahead = setup.prefetch_factor
    if ahead and setup.epoch_batches and ahead * setup.num_workers >= setup.epoch_batches:
        return None  # a whole epoch is asked for at its beginning: there is no more to prefetch
    many = count(ahead * setup.num_workers, "batch") if ahead else ""
    batches = f"{many} ahead" if many else "what is ahead"
    more = 2 * ahead if ahead else None
    return finding(
        causes.TOO_LITTLE_PREFETCH,
        facts,
        f"they need {share(facts.pace.free_load)} of the time that the step leaves them, {batches} "
        "is not enough for the slow ones",
        clearly=clear(facts.pace.free_load, thresholds.KEEPS_UP, 0.7),
        evidence={
            "load_factor": making.load,
            "batch_mean_s": making.batch_s,
            "batch_median_s": making.usual_s,
            "prefetch_factor_count": ahead,
        },
        where=f" from {ahead} to {more} or more" if more else "",
    )


def late_begin(facts: Facts) -> Finding | None:
    """The loop takes many batches before its first step gets one."""
    starts = facts.starts
    if starts.before < thresholds.TAKEN_BEFORE:
        return None
    taken = count(starts.before, "batch")
    return finding(
        causes.LATE_BEGIN,
        facts,
        f"{seconds(starts.before_s)} go by before its first step, in which {taken} are taken from "
        "the loader",
        severity=starts.share,
        clearly=1.0,
        evidence={"start_s": starts.before_s, "taken_before_count": starts.before},
    )


def start_up(facts: Facts) -> Finding | None:
    """Every epoch begins with starting workers, and that takes a good part of it."""
    starts = facts.starts
    if not starts.slow_share:
        return None
    seen = clear(starts.share, thresholds.STARTS, 0.3)
    cause, where = causes.START_UP, ""
    drawn_by = facts.setup.sampler or facts.setup.drawn_by
    fills = starts.is_drawing or starts.is_filling  # workers that live on make new iterators first
    if facts.setup.streams and fills:
        cause = causes.START_OF_STREAM
    elif starts.is_drawing:
        cause, where = causes.SLOW_DRAWS, drawn_by and f", by {drawn_by}"
    if starts.batches and starts.batches <= thresholds.HARDLY_AN_EPOCH and not starts.ended:
        cause = causes.NEW_ITERATORS
        where = facts.setup.sampler and f", in {facts.setup.sampler}"
    return finding(
        cause,
        facts,
        f"{seconds(starts.extra_s)} before an epoch of {seconds(starts.epoch_s)}{where}",
        severity=starts.share,
        clearly=seen
        if starts.epochs > 1 or starts.share > thresholds.DOMINATES
        else min(seen, 0.8),
        evidence={
            "start_share": starts.share,
            "start_s": starts.extra_s,
            "first_sample_s": starts.first_s,
            "epoch_s": starts.epoch_s,
            "epochs_seen_count": starts.epochs,
        },
    )
