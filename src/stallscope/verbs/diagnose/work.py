"""Conditions of the causes about work on samples and batches: storage, a lock, and each stage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stallscope import stages
from stallscope.model import thresholds
from stallscope.model.exposure import READING, WORK
from stallscope.model.thresholds import SATURATED
from stallscope.units import MOST_NAMED, capital, seconds, share, size
from stallscope.verbs.diagnose import causes
from stallscope.verbs.diagnose.causes import WAITING
from stallscope.verbs.diagnose.facts import MAKES_SMALLER
from stallscope.verbs.diagnose.own_code import CALLS, COLLECTS, OTHER, calling_code, reading_call
from stallscope.verbs.diagnose.rules import AT_ONCE, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.model.exposure import Group, StagePart
    from stallscope.verbs.diagnose.causes import Cause
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.own_code import OwnCode
    from stallscope.verbs.diagnose.result import Finding
    from stallscope.verbs.diagnose.rules import Numbers, Words


_LESS_TO_DECODE: Final = (
    "decode only what is used, or use a faster decoder; store smaller images, sound in pieces, "
    "video with more key frames"
)
_CONVERTS: Final = re.compile(r"(ToTensor|Normalize|ToDtype|ConvertImageDtype|ToFloat)\b")
_RESIZES: Final = re.compile(r"resiz|max_?size|thumbnail", re.IGNORECASE)


def findings_of_work(facts: Facts) -> Iterator[Finding]:
    """Yield what workers wait for, then each group of work that holds enough, the largest first."""
    is_lock, waits = _is_lock(facts), facts.exposure.waiting(*READING)
    is_long = facts.exposure.waiting(*WAITING) >= thresholds.WAITS_FOR_EACH_OTHER
    if is_lock and is_long and facts.setup.num_workers > 1:
        cause = causes.LOCK_OF_DATABASE if _is_database(facts) else causes.LOCK
        yield finding(cause, facts, **_lock(facts))
    if not is_lock and waits >= thresholds.NOTED:
        cause, words = _storage(facts)
        words["waits"] = share(waits)
        yield finding(cause, facts, **words)
    for group, part in facts.exposure.groups().items():
        is_passing = group == "sending" and facts.stall_share * part < thresholds.PASSING
        if part < thresholds.NOTED or is_passing:
            continue
        if group in ("decode", "collate", "sending"):
            cause, words = _OF_GROUP[group](facts)
            yield finding(cause, facts, **words)
        elif group in facts.exposure.own:
            yield _of_transforms(facts)


def _lock(facts: Facts) -> Words:
    stage = max(facts.exposure.parts, key=lambda part: part.share * part.waiting).stage
    in_file, how = facts.use.file_lock_share or 0.0, ""
    if in_file >= thresholds.OWN_PART:
        how = f"; they wait at a lock of a file {share(in_file)} of their time"
    elif facts.is_shared:
        how = f"; {_alone(facts)}"
    return {"how": how, "stage": stage}


def _storage(facts: Facts) -> tuple[Cause, Words]:
    """Say whether storage is slow, full, or only concluded from own code that waits."""
    if is_unseen(facts):  # also what is shared may be anything: a busy machine, a connection
        stage = stages.GETITEM.name
        cause = causes.OWN_CODE_WAITS if facts.own_code(stage) else causes.WAITS_UNSEEN
        return cause, {"stage": stage}
    rate, sample_s = facts.fetched_bytes_per_s, facts.fetch_s
    each = f", {seconds(sample_s)} per sample" if sample_s else ""
    alone = f"; {_alone(facts)}" if facts.is_shared is not None else ""
    words = {"each": f"{each}{f', {size(rate)}/s' if rate else ''}", "alone": alone}
    is_busy = (facts.use.disk_busy_share or 0.0) >= SATURATED
    is_full = facts.is_shared or (is_busy and facts.is_shared is None)
    return causes.STORAGE_BANDWIDTH if is_full else causes.STORAGE_LATENCY, words


def is_unseen(facts: Facts) -> bool:
    """Return whether the dataset's own code waits, in which nothing was seen to read."""
    in_fetch, in_own = facts.exposure.waiting("fetch"), facts.exposure.waiting("getitem")
    return in_own > in_fetch and (facts.use.disk_busy_share or 0.0) < SATURATED


def _is_lock(facts: Facts) -> bool:
    """Return whether workers wait for a lock: it was seen, or it is concluded."""
    if (facts.use.file_lock_share or 0.0) >= thresholds.OWN_PART or _is_database(facts):
        return True
    if facts.lock_frames is not None:
        return facts.lock_frames >= thresholds.OWN_PART
    reads = facts.exposure.waiting(*READING)
    return (
        facts.is_shared is True and facts.exposure.waiting("transform", "collate", "decode") > reads
    )


def _is_database(facts: Facts) -> bool:
    """Return whether the workers hold each other up at a database, which waits in C, unseen."""
    own = facts.own_code(stages.GETITEM.name) if facts.is_shared and is_unseen(facts) else None
    return own is not None and own.call is CALLS["database"]


def _alone(facts: Facts) -> str:
    if not facts.alone_s or facts.making is None:
        return "one worker alone takes as long"
    each = f"each of {facts.setup.num_workers} takes {seconds(facts.making.usual_s)}"
    return f"one worker alone takes {seconds(facts.alone_s)} per batch, {each}"


def _decode(facts: Facts) -> tuple[Cause, Words]:
    own, words = _longest_stage(facts, "decode")
    if resize := resize_of_large_images(facts):
        return causes.LARGE_IMAGES, {**words, "resize": f"{resize.stage} {share(resize.share)}"}
    if facts.megapixels is not None:
        return causes.DECODE, words
    if own and own.call is not OTHER:
        return causes.DECODE_OTHER, words | {"where": f", in {own.place}: {own.does}"}
    where = f", in {own.place}" if own else ""
    return causes.DECODE_OTHER, words | {"where": where, "remedy": _LESS_TO_DECODE}


def _collate(facts: Facts) -> tuple[Cause, Words]:
    own, words = _longest_stage(facts, "collate")
    if facts.holds_scaled_bytes and (own is None or own.call is OTHER):
        return causes.COLLATE, words
    words["floats"] = ""
    if own:
        return causes.COLLATE, words | {"where": f", in {own.place}: {own.does}"}
    plain = "stack tensors of one size, without a Python loop over samples"
    return causes.COLLATE, words | {"remedy": AT_ONCE if facts.has_small_samples else plain}


def _sending(facts: Facts) -> tuple[Cause, Words]:
    own, words = _longest_stage(facts, "sending")
    is_known = own is not None and own.call is not OTHER
    if facts.holds_scaled_bytes and not is_known:
        return causes.SENDING, words
    less = " (uint8 images)" if facts.has_images else ""
    return causes.SENDING, words | {"floats": "", "less": less}


_OF_GROUP: Final = {"decode": _decode, "collate": _collate, "sending": _sending}


def _longest_stage(facts: Facts, group: Group) -> tuple[OwnCode | None, Words]:
    """Return the user's function in the longest stage of a group, and words about that."""
    stage = facts.exposure.longest(group).stage
    return facts.own_code(stage), {"stage": stage}


def resize_of_large_images(facts: Facts) -> StagePart | None:
    """Find the transform that makes large images small, if it and decoding are most of the work."""
    parts = facts.exposure.parts
    resizes = (part for part in parts if part.group == "transform" and _RESIZES.search(part.stage))
    most, decodes = next(resizes, None), facts.exposure.of("decode")
    if most is None or min(most.share, decodes) < thresholds.NOTED:
        return None
    is_most = most.share + decodes >= thresholds.MOSTLY * facts.exposure.of(*WORK, "sending")
    return most if is_most and (facts.megapixels or 0.0) >= thresholds.LARGE_MEGAPIXELS else None


def _of_transforms(facts: Facts) -> Finding:
    """Make a finding of work on samples: by own code, by one transform, or by all of them."""
    groups = facts.exposure.own
    own_part = facts.exposure.of(*groups[1:])
    whole = own_part + facts.exposure.of("transform")
    if own_part >= thresholds.ONE_OF_MANY * whole:
        words = _own_code(facts, facts.exposure.longest(*groups[1:]).stage, own_part)
        return finding(causes.OWN_CODE, facts, _one_of(facts, own_part, whole), **words)
    if facts.holds_scaled_bytes and (converts := conversions(facts)):
        whole = facts.exposure.of("transform", "getitem")
        part = sum(each.share for each in converts)
        names = " and ".join(each.stage for each in converts)
        words = {"stages": f"{names} take{'s' * (len(converts) == 1)}"}
        return finding(causes.CONVERSION, facts, _one_of(facts, part, whole), **words)
    groups = tuple(group for group in groups if group != "fetch")
    part, most = facts.exposure.of(*groups), facts.exposure.longest(*groups)
    if most.share >= thresholds.ONE_OF_MANY * part:
        cause, words = _one_transform(facts, most)
        return finding(cause, facts, _one_of(facts, most.share, part), **words)
    own = facts.own_code(stages.GETITEM.name) if "getitem" in groups else None
    cause, words = causes.TRANSFORMS, {"remedy": _less_first(facts)}
    if own is not None and facts.exposure.of("getitem") >= thresholds.NOTED:
        words = {"place": own.place, "remedy": own.call.remedy}
        cause = causes.WORK_AND_OWN_CODE
    words["longest"] = _named(facts, groups)
    return finding(cause, facts, _one_of(facts, most.share, part), **words)


def of_calling_code(facts: Facts) -> Finding | None:
    """Make a finding of the function that runs stages many times a sample; None: there is none."""
    own = calling_code(facts.flame) if facts.flame else None
    if own is None or not facts.runs_often:
        return None
    (stage, runs), whole = facts.runs_often, facts.exposure.of(*WORK)
    part, how_often = own.share * whole, f"{runs:.0f}"
    words = {"own": share(part), "stage": stage, "runs": how_often}
    return finding(causes.CALLING_CODE, facts, _one_of(facts, part, whole), own, **words)


def _one_of(facts: Facts, most: float, part: float) -> Numbers:
    """Return what one transform holds of the stalls, and all of them together."""
    return {
        "transform_exposed_share": most,
        "longest_transform_exposed_share": most,
        "all_transforms_exposed_share": part,
        "one_of_transforms_share": most / part if part else 0.0,
        "transform_share": facts.stall_share * most,
        "transforms_share": facts.stall_share * part,
    }


def _one_transform(facts: Facts, most: StagePart) -> tuple[Cause, Words]:
    """Say which transform it is, or that it is the garbage collector of the workers."""
    own = facts.own_code(most.stage)
    words = {"stage": most.stage}
    if most.stage == stages.GARBAGE.name:
        own = facts.own_code(stages.GETITEM.name)
        by = f", called by {own.place}" if own and own.call is COLLECTS else ""
        return causes.GARBAGE, {**words, "does": by, "remedy": COLLECTS.remedy}
    words["does"] = f": {own.does}" if own and own.does != OTHER.does else ""
    is_known = own is not None and own.call is not OTHER
    return causes.OWN_TRANSFORM if is_known else causes.ONE_TRANSFORM, words


def _own_code(facts: Facts, stage: str, own_part: float) -> Words:
    """Say what the dataset computes itself, and in which function of the user's."""
    own = facts.own_code(stage)
    unnamed = capital(stages.READING_WORDS.get(stage, "__getitem__ itself"))
    call = own.call if own else reading_call(stage) if stage in stages.READING_WORDS else OTHER
    does = f", computing: {own.does}" if own else ""
    if facts.threads_compute and call is OTHER:
        does = ", computing in threads of its own, as a codec does"
        if facts.has_helpers:
            does = f", computing in processes of its own ({facts.use.helper_cores:.1f} cores)"
    return {
        "place": own.place if own else unnamed,
        "own": share(own_part * (own.share if own else 1.0)),
        "does": does,
        "remedy": AT_ONCE if facts.has_small_samples and call is OTHER else call.remedy,
        "stage": stage,
    }


def _less_first(facts: Facts) -> str:
    """Say what makes the rest of the work on images cheaper; '' for data that is no image."""
    is_small = MAKES_SMALLER.search(facts.first_transform or "")
    first = "" if is_small else "crop or resize first, so that the rest works on less; "
    return f"{first}convert uint8 to float last; " if facts.has_images else ""


def _named(facts: Facts, groups: tuple[Group, ...]) -> str:
    """Name the longest parts of the work with their shares; own code by its function."""
    named: list[str] = []
    for part in facts.exposure.parts:
        if part.group in groups and part.share >= thresholds.NOTABLE:
            own = facts.own_code(part.stage) if part.group == "getitem" else None
            does = f", {own.does}" if own and own.does != OTHER.does else ""
            alone = "" if named else "alone "
            named.append(f"{own.place if own else part.stage} {alone}{share(part.share)}{does}")
    return ", ".join(named[:MOST_NAMED])


def conversions(facts: Facts) -> list[StagePart]:
    """Find the transforms that make floats out of images, where they are most of all transforms."""
    parts = [part for part in facts.exposure.parts if _CONVERTS.match(part.stage)]
    whole = facts.exposure.of("transform", "getitem")
    is_most = sum(part.share for part in parts) >= thresholds.ONE_OF_MANY * whole
    return parts if is_most else []
