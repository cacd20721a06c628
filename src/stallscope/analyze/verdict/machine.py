"""What the machine lacks: cores, memory, shared memory; or it is busy with something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stallscope.analyze.verdict import limits
from stallscope.analyze.verdict.finding import clear, finding
from stallscope.diagnoses import CPU_SATURATED, MEMORY_PRESSURE, OVERSUBSCRIPTION, SHM
from stallscope.resources import MEMORY
from stallscope.resources import SHM as SHM_RESOURCE
from stallscope.units import share

if TYPE_CHECKING:
    from stallscope.analyze.verdict.facts import Facts
    from stallscope.diagnoses import Finding

_USUAL_THREADS: Final = 3
"""Of every worker of torch: one that makes batches, one that sends, one that hands out memory."""


def oversubscription(facts: Facts) -> Finding | None:
    """Each worker computes with several threads, and together they are many more than cores."""
    use, setup = facts.use, facts.setup
    extra = facts.extra_threads_share
    if not setup.num_workers or use.threads is None or extra is None:
        return None
    many = setup.num_workers * max(use.threads - _USUAL_THREADS, 0) / setup.cores
    if many < limits.MANY_THREADS or extra < limits.EXTRA_THREADS:
        return None
    return finding(
        OVERSUBSCRIPTION,
        facts,
        f"{use.threads:.0f} threads in each of {setup.num_workers} workers on {setup.cores:g} "
        f"cores, {share(extra)} of the workers' CPU time is theirs",
        severity=facts.stall_share,
        clearly=min(clear(many, limits.MANY_THREADS, 4.0), clear(extra, limits.EXTRA_THREADS, 0.5)),
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
    if own is None or facts.cpu_load < limits.KEEPS_UP:
        return None
    used = own / setup.cores
    if used + facts.others_share < limits.USED_UP:
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
        f"workers and loop {needed}{others if facts.others_share >= limits.FOREIGN else ''}",
        severity=facts.stall_share,
        clearly=clear(facts.cpu_load, limits.KEEPS_UP, 1.2),
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
