"""Findings in existing results, without measuring anything."""

from dataclasses import replace
from typing import Any

from stallscope import Flame, Ladder, Run
from stallscope.verbs.diagnose.facts import Facts, facts, gain_of, with_stacks
from stallscope.verbs.diagnose.result import Finding
from stallscope.verbs.diagnose.setup import Setup
from stallscope.verbs.diagnose.verdict import judge


def judged(
    measured: Facts | Run, ladder: Ladder | None = None, flame: Flame | None = None, **setup: Any
) -> tuple[Finding, ...]:
    """Return the findings, the verdict first.

    Args:
        measured: the loop as it is, or what the rules know of it.
        ladder: if one was measured.
        flame: if stacks were taken.
        setup: fields of `Setup`; without, two cores and the run's own workers.
    """
    if isinstance(measured, Facts):
        return judge(measured)
    workers = measured.settings.num_workers
    usual = {"num_workers": workers, "cores": 2.0, "prefetch_factor": 2 if workers else None}
    evidence = facts(measured, Setup(**{**usual, **setup}))
    if ladder is not None:
        evidence = replace(evidence, gain=gain_of(ladder))
    return judge(evidence if flame is None else with_stacks(evidence, flame))
