"""Workers that wait: for storage, for its bandwidth, or for each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.advice import next_step
from stallscope.analyze.verdict.exposure import COLLATE, DECODE, FETCH, GETITEM_, TRANSFORM
from stallscope.analyze.verdict.finding import clear, finding
from stallscope.diagnoses import LOCK, STORAGE_BANDWIDTH, STORAGE_LATENCY
from stallscope.stages import GETITEM
from stallscope.units import seconds, share, size

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Finding

READING = (FETCH, GETITEM_)
"""Where reading shows; in `getitem` it is reading that no hook could name."""


def lock(facts: Facts) -> Finding | None:
    """Workers wait for each other: what they wait for is shared, and it is no storage."""
    waits = facts.exposure.waiting(*READING, TRANSFORM, COLLATE, DECODE)
    if waits < limits.WAITS_FOR_EACH_OTHER or facts.setup.num_workers < 2:  # noqa: PLR2004 - each other
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
    if waits < limits.NOTED:
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
        clearly=min(clear(waits, limits.NOTED, 0.6), 0.8 if facts.is_shared is None else 1.0),
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
    return in_own > in_fetch and (facts.use.disk_busy_share or 0.0) < limits.FULL_DISK


def _unseen(facts: Facts, waits: float) -> Finding:
    """The dataset's own code waits: most often it reads, by what has no hook, but maybe not."""
    each = facts.stage_s.get(GETITEM.name)
    with_each = f", {seconds(each)} a sample" if each else ""
    found = finding(
        STORAGE_LATENCY,
        facts,
        "",
        severity=facts.stall_share * facts.exposure.of(*READING),
        clearly=min(clear(waits, limits.NOTED, 0.6), limits.UNSEEN),
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
    busy = (facts.use.disk_busy_share or 0.0) >= limits.FULL_DISK
    return facts.is_shared is True or (busy and facts.is_shared is not False)


def _is_lock(facts: Facts) -> bool:
    """Whether what is shared is a lock and not storage."""
    if facts.lock_frames is not None:
        return facts.lock_frames >= limits.LOCK_FRAMES
    reads = facts.exposure.waiting(*READING)
    others = facts.exposure.waiting(TRANSFORM, COLLATE, DECODE)
    return others > reads


def _clearly_lock(facts: Facts, waits: float) -> float:
    seen = 0.7 if facts.lock_frames is None else 1.0
    return min(clear(waits, limits.WAITS_FOR_EACH_OTHER, 0.45), seen)


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
