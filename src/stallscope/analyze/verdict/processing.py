"""Work on samples that takes long: decoding, one transform, all of them, collate, sending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.exposure import (
    COLLATE,
    DECODE,
    GETITEM_,
    SENDING,
    TRANSFORM,
    WORK,
    Part,
)
from stallscope.analyze.verdict.finding import clear, finding
from stallscope.diagnoses import COLLATE as COLLATE_CAUSE
from stallscope.diagnoses import DECODE as DECODE_CAUSE
from stallscope.diagnoses import ONE_TRANSFORM, TRANSFORMS
from stallscope.diagnoses import SENDING as SENDING_CAUSE
from stallscope.units import seconds, share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Finding

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
    most = max(_WORK, key=lambda name: groups.get(name, 0.0))
    if not work:
        return None
    if groups.get(most, 0.0) >= limits.DOMINATES * work:
        return most
    first, second = (*(part.share for part in parts[:2]), 0.0)[:2]
    ahead = first >= limits.LEADS * work and first >= limits.AHEAD * second
    return parts[0].group if ahead else None


def groups_of(code: str) -> tuple[str, ...]:
    """The groups of work that a cause is about; none for causes of another kind."""
    return _GROUPS.get(code, ())


def works(facts: Facts) -> list[Finding]:
    """A finding for each group of work that holds enough of the stalls, the largest first."""
    found = []
    for group, part in facts.exposure.groups().items():
        if part < limits.NOTED:
            break
        if group == SENDING and facts.stall_share * part < limits.PASSING:
            continue
        if group in _CAUSES:
            found.append(_of_group(facts, group, part))
        elif group == TRANSFORM or (group == GETITEM_ and _computes(facts)):
            found.append(_of_transforms(facts))
    return found


def _computes(facts: Facts) -> bool:
    """Whether the dataset's own code works; where it waits, that is for what it reads."""
    waits = facts.exposure.waiting(GETITEM_)
    return waits < limits.DOMINATES * facts.exposure.of(GETITEM_)


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
    if most.share >= limits.ONE_OF_MANY * part:
        each = facts.stage_s.get(most.stage)
        name = "__getitem__ itself" if most.group == GETITEM_ else most.stage
        return finding(
            ONE_TRANSFORM,
            facts,
            f"{name} holds {share(most.share)} of the stalls, {seconds(each)} a sample",
            severity=facts.stall_share * most.share,
            clearly=min(
                _clearly(facts, most.share), clear(most.share / part, limits.ONE_OF_MANY, 0.75)
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


def _longest(facts: Facts, groups: tuple[str, ...]) -> Part:
    longest = [facts.exposure.longest(group) for group in groups]
    return max((part for part in longest if part), key=lambda part: part.share)


def _clearly(facts: Facts, part: float) -> float:
    """Whether it dominates, and whether the ladder agrees where there is one."""
    alone = clear(part, limits.NOTED, limits.DOMINATES + 0.15)
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
