"""The one sentence on top: where a sample's time goes. No judgement; it says what was measured.

It stands over the table and the picture, so it is written in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.stages import BATCH, FETCH, GETITEM
from stallscope.units import share

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.analyze.profile import Profile, StageTimes

NOTHING: Final = "No batch was recorded from beginning to end: there is nothing to show"

ALIKE: Final = 0.85
"""A second stage that takes this share of the first is named beside it."""
OUTSTANDING: Final = 0.2
"""Below this share of a sample's time, no stage stands out."""
WORTH_A_REMARK: Final = 0.1
"""Share of a sample's time from which on `getitem` needs an explanation."""
MOSTLY: Final = 0.5

COMPUTING_KINDS: Final = ("decode", "transform", "collate")
NOTICED: Final = 0.03
"""Share of a sample's time from which on a stage's waiting is looked at."""
CROWDED: Final = 0.25
"""When every computing stage waits so much, the machine was busy with something else."""
FEWEST_WAITING: Final = 3


def headline(profile: Profile, name: Callable[[str], str] = str) -> str:
    """One sentence: the longest stage's share of a sample's time, and what reading takes.

    Args:
        profile: where the time goes.
        name: makes a stage's name fit to be shown.
    """
    if not profile.stages:
        return NOTHING
    named = _leaders(profile.stages)
    words = [_word(stage, name) for stage in named]
    sentence = _takes(named, words, profile.unit)
    sentence += _nature(named[0]) if len(named) == 1 else ""
    sentence += _reading(profile, named, name)
    starts_with_a_word = named[0].stage == FETCH.name or sentence.startswith("no stage")
    return sentence[0].upper() + sentence[1:] if starts_with_a_word else sentence


def remarks(profile: Profile) -> tuple[str, ...]:
    """Sentences that a reader of the numbers needs, beside the headline."""
    named = _leaders(profile.stages) if profile.stages else []
    explained = named[0].stage if len(named) == 1 else ""
    said = [
        f"getitem takes {share(stage.share)}{_nature(stage)}"
        for stage in profile.stages
        if _is_getitem(stage) and stage.share >= WORTH_A_REMARK and stage.stage != explained
    ]
    return tuple(said + _crowded(profile))


def _crowded(profile: Profile) -> list[str]:
    """Decoding and transforms do not wait by themselves: together they tell of a busy machine."""
    computing = [
        stage
        for stage in profile.stages
        if stage.kind in COMPUTING_KINDS and stage.cpu_share is not None and stage.share >= NOTICED
    ]
    waiting = [stage.waiting_share or 0.0 for stage in computing]
    if len(waiting) < FEWEST_WAITING or min(waiting) < CROWDED:
        return []
    least = share(min(waiting))
    remark = (
        f"every computing stage was off the CPU for {least} of its time or more: the CPUs were "
        "probably shared with something else, which makes all times longer"
    )
    return [remark]


def _leaders(stages: tuple[StageTimes, ...]) -> list[StageTimes]:
    """The longest stage, and the next one where the two are alike."""
    first, *rest = stages
    alike = rest and first.share >= OUTSTANDING and rest[0].share >= ALIKE * first.share
    return [first, rest[0]] if alike else [first]


def _takes(named: list[StageTimes], words: list[str], unit: str) -> str:
    shares = [share(stage.share) for stage in named]
    if len(named) > 1:
        if shares[0] == shares[1]:
            return f"{words[0]} and {words[1]} each take {shares[0]} of a {unit}'s time"
        return f"{words[0]} and {words[1]} take {shares[0]} and {shares[1]} of a {unit}'s time"
    if named[0].share < OUTSTANDING:
        return f"no stage stands out: the longest, {words[0]}, takes {shares[0]} of a {unit}'s time"
    return f"{words[0]} takes {shares[0]} of a {unit}'s time"


def _word(stage: StageTimes, name: Callable[[str], str]) -> str:
    words = {FETCH.name: "reading", BATCH.name: "work between samples"}
    return words.get(stage.stage) or name(stage.stage)


def _is_getitem(stage: StageTimes) -> bool:
    return stage.stage == GETITEM.name and stage.kind == GETITEM.kind


def _nature(stage: StageTimes) -> str:
    """Whether the stage computes or waits, where that matters for what it means."""
    waiting = stage.waiting_share
    mostly_waiting = waiting is not None and waiting >= MOSTLY
    if _is_getitem(stage):
        if mostly_waiting:
            return ", mostly waiting: probably reading through an open file object"
        computing = "" if waiting is None else ", mostly computing"
        return f"{computing}: code of the dataset's own that no hook can name"
    if mostly_waiting:
        return ", mostly waiting"
    return ", mostly computing" if stage.stage == FETCH.name and waiting is not None else ""


def _reading(profile: Profile, named: list[StageTimes], name: Callable[[str], str]) -> str:
    """What reading takes; where it leads already, what comes after it."""
    if any(stage.kind == FETCH.kind for stage in named):
        rest = [stage for stage in profile.stages if all(stage is not one for one in named)]
        return f"; {_word(rest[0], name)} takes {share(rest[0].share)}" if rest else ""
    if _is_getitem(named[0]) and (named[0].waiting_share or 0) >= MOSTLY:
        return ""  # most of the reading is probably in there
    taken = [stage.share for stage in profile.stages if stage.kind == FETCH.kind]
    return f"; reading takes {share(sum(taken))}" if taken else "; no reading was seen"
