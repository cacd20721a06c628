"""A verdict about a loop that was recorded: a training that was watched, or a saved run.

The rules are those of a live diagnosis. What only another measurement can tell (one worker alone,
stacks, a ladder) is named as missing. Of several ranks each is judged for itself, and the one that
waits longest leads: the others wait for it, in a collective of their own steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.apart import apart
from stallscope.diagnose.accounting import accounting
from stallscope.diagnose.facts import Facts, Setup, facts
from stallscope.diagnose.result import SPENT, Diagnosis, DiagnosisConditions
from stallscope.diagnose.verdict import judge, next_question
from stallscope.errors import ArgumentError
from stallscope.load import is_result, load
from stallscope.run.result import Run
from stallscope.stalls.thresholds import HARDLY
from stallscope.units import count, share

if TYPE_CHECKING:
    from stallscope.diagnose.result import Finding

_MOSTLY: Final = 0.8
"""Of the steps, in which the same rank waits longest."""


def recorded_run(target: Any) -> Run | None:
    """The run that is meant, where a target is one or the folder of one; None for any other.

    Raises:
        ArgumentError: the folder holds another result.
        RunFormatError: it is damaged.
    """
    if isinstance(target, Run):
        return target
    if not isinstance(target, str | Path) or not is_result(Path(target).expanduser()):
        return None
    found = load(Path(target).expanduser())
    if not isinstance(found, Run):
        kind = type(found).__name__.lower()
        raise ArgumentError(f"{target} holds a result of ss.{kind}, and no run: ss.load reads it")
    return found


def diagnose_run(run: Run) -> Diagnosis:
    """Say why the loop of a recorded run waited for data, or that it did not."""
    judged = apart(lambda: _judged(run))
    length_ns = int(run.all_steps["end_ns"].max() or 0)  # type: ignore[arg-type]  # integers
    settings = run.settings
    open_still = "; ".join(judged.missing)
    why = f"left open by a recording: {open_still}" if open_still else "nothing was left open"
    spent = [("loop", length_ns / 1e9, "the run as it was recorded"), ("stop", 0.0, why)]
    return Diagnosis(
        findings=judged.findings,
        run=run,
        accounts=judged.accounts,
        spent=pl.DataFrame(spent, SPENT, orient="row"),
        circumstances=DiagnosisConditions(
            name=settings.name,
            device=run.device or "CPU",
            simulated_step_s=settings.simulated_step_s,
            has_step=settings.has_step,
            num_workers=settings.num_workers,
            machine=run.machine,
            budget_s=0.0,
            wall_s=length_ns / 1e9,
        ),
        notes=(*judged.notes, *run.notes),
    )


class _Judged(NamedTuple):
    """What a recorded run says."""

    findings: tuple[Finding, ...]
    accounts: pl.DataFrame
    missing: list[str]
    """What another measurement would tell."""
    notes: list[str]


def _judged(run: Run) -> _Judged:
    """Judge each rank, and take the one that waits longest."""
    setup = _setup(run)
    each = {rank: facts(one, setup) for rank, one in _ranks(run).items()}
    slowest = max(each, key=lambda rank: each[rank].stall_share)
    known = each.pop(slowest)
    findings = judge(known)
    notes = []
    if each:
        notes = [_about_ranks(run, slowest, known, each)]
    if each and known.stall_share >= max(one.stall_share for one in each.values()) + HARDLY:
        first, *others = findings
        title = f"rank {slowest}, which the others wait for: {first.title}"
        findings = (replace(first, title=title), *others)
    missing: dict[str, str] = {}
    while (question := next_question(known, findings, missing)) is not None:
        missing[question.phase] = question.why
    told = [f"{why} ({phase})" for phase, why in missing.items()]
    return _Judged(findings, accounting(known), told, notes)


def _ranks(run: Run) -> dict[int, Run]:
    """The run of each rank."""
    ranks = run.all_steps["rank"].unique().sort().to_list()
    if len(ranks) <= 1:
        return {next(iter(ranks), 0): run}
    tables = [table.field for table in Run._contents.tables]  # noqa: SLF001 - of a result
    of_rank = [field for field in tables if "rank" in getattr(run, field).columns]
    return {
        rank: replace(
            run,
            **{field: getattr(run, field).filter(pl.col("rank") == rank) for field in of_rank},
        )
        for rank in ranks
    }


def _about_ranks(run: Run, slowest: int, known: Facts, others: dict[int, Facts]) -> str:
    """How long ranks wait, and whether it is always the same one."""
    stalled = run.stalls().select("epoch", "batch").unique()
    waits = run.steps().select("rank", "epoch", "batch", "wait_s").drop_nulls()
    waits = waits.join(stalled, on=["epoch", "batch"], how="semi")
    alike = waits.filter(pl.len().over("epoch", "batch") == len(others) + 1)
    last = alike.sort("wait_s").group_by("epoch", "batch").last()
    same = float((last["rank"] == slowest).mean() or 0.0) if last.height else 0.0  # type: ignore[arg-type]  # a share
    stalls = [one.stall_share for one in others.values()]
    between = " to ".join(dict.fromkeys((share(min(stalls)), share(max(stalls)))))
    said = (
        f"rank {slowest} stalls {share(known.stall_share)} of the time, "
        f"{count(len(others), 'other rank')} {between}"
    )
    if same >= _MOSTLY:
        said += f"; it waits longest in {share(same)} of the steps in which one stalls"
    return said


def _setup(run: Run) -> Setup:
    """How the loader was set up, as the run has it."""
    settings = run.settings
    return Setup(
        num_workers=settings.num_workers,
        cores=float(run.machine.get("cores") or 1),
        prefetch_factor=settings.prefetch_factor,
        persistent=settings.persistent_workers,
        has_step=settings.has_step,
        simulated=settings.simulated_step_s is not None,
        streams=settings.streams,
        on_gpu=run.device is not None and settings.simulated_step_s is None,
    )
