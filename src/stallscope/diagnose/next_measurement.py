"""What to measure next: what would decide between the causes that are still possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stallscope.diagnose import thresholds
from stallscope.diagnose.exposure import COLLATE, DECODE, FETCH, GETITEM_, TRANSFORM
from stallscope.diagnose.result import COLLATE as COLLATE_CAUSE
from stallscope.diagnose.result import (
    CPU_SATURATED,
    HEALTHY,
    INCONCLUSIVE,
    LOCK,
    MAIN_PROCESS,
    ONE_TRANSFORM,
    SENDING,
    STORAGE_BANDWIDTH,
    STORAGE_LATENCY,
    TRANSFORMS,
)
from stallscope.diagnose.result import DECODE as DECODE_CAUSE

if TYPE_CHECKING:
    from collections.abc import Collection

    from stallscope.diagnose.facts import Facts
    from stallscope.diagnose.result import Finding


LOOP: Final = "loop"
ONE_WORKER: Final = "one worker"
WAITING_STACKS: Final = "stacks of waiting workers"
LADDER: Final = "ladder"
STACKS: Final = "stacks"

_BY_LADDER: Final = {
    one.code
    for one in (
        *(HEALTHY, STORAGE_LATENCY, DECODE_CAUSE, ONE_TRANSFORM, TRANSFORMS, COLLATE_CAUSE),
        *(SENDING, CPU_SATURATED, MAIN_PROCESS),
    )
}
"""What a ladder can confirm or refute: it takes such costs away."""
_BY_ONE_WORKER: Final = {
    one.code
    for one in (
        *(STORAGE_LATENCY, STORAGE_BANDWIDTH, LOCK, ONE_TRANSFORM, TRANSFORMS, COLLATE_CAUSE),
        *(DECODE_CAUSE, CPU_SATURATED, INCONCLUSIVE),
    )
}
"""What looks different when there is one worker: waiting for what is shared."""
_HAS_LINES: Final = {ONE_TRANSFORM.code, COLLATE_CAUSE.code}
"""What lies in the user's own code, so that a line can be named."""


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
        and verdict.code in _BY_ONE_WORKER
        and waits >= thresholds.WAITS_FOR_EACH_OTHER
    ):
        possible.append(Question(ONE_WORKER, "do the workers wait for something that they share?"))
    if facts.is_shared:
        possible.append(Question(WAITING_STACKS, "is it a lock, or storage, that they share?"))
    unsure = verdict.confidence < thresholds.SURE and verdict.code in _BY_LADDER
    open_still = verdict.code == INCONCLUSIVE.code and facts.others_share < thresholds.FOREIGN
    open_still = open_still and facts.steps >= thresholds.FEWEST_STEPS
    if facts.setup.has_step and (unsure or open_still):  # without one it cannot go all the way
        possible.append(Question(LADDER, "what does the loader cost, with an interval?"))
    if verdict.code in _HAS_LINES:
        possible.append(Question(STACKS, "which line of the code is it?"))
    return next((one for one in possible if one.phase not in asked), None)
