"""Verdict about a recorded loop: a training that was watched, or a saved run.

The rules are those of a live diagnosis. A training that was watched has sampled stacks of its own,
which answer what they can. Questions that need another measurement (one worker alone, a ladder) are
listed as missing. Of several ranks each is judged by itself, and the rank that waits longest leads:
the others wait for that rank, in a collective of their own steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.apart import apart
from stallscope.errors import ArgumentError
from stallscope.files import is_address
from stallscope.hooks.self_sampler import WINDOW_HZ, WINDOW_S
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import FEWEST_SAMPLES, HARDLY, NEARLY_ALL
from stallscope.run.load import is_result, load
from stallscope.run.result import Run
from stallscope.store import contents_of
from stallscope.units import count, share
from stallscope.verbs.diagnose.facts import facts, with_stacks
from stallscope.verbs.diagnose.own_code import loop_code
from stallscope.verbs.diagnose.result import SPENT, Diagnosis, DiagnosisConditions
from stallscope.verbs.diagnose.setup import setup_of_run
from stallscope.verbs.diagnose.verdict import (
    LOOP_STACKS,
    STACKS,
    WAITING_STACKS,
    judge,
    next_question,
    side_notes,
)
from stallscope.verbs.flame.result import IN_PROCESS, SAMPLES, Flame, FlameConditions

if TYPE_CHECKING:
    from stallscope.verbs.diagnose.facts import Facts
    from stallscope.verbs.diagnose.result import Finding

_MOSTLY: Final = 0.8
"""Share of steps in which one rank waits longest."""


def recorded_run(target: Any) -> Run | None:
    """Return the run, where a target is a run or its folder; None for any other target.

    Raises:
        ArgumentError: the folder holds another result.
        RunFormatError: it is damaged.
    """
    if isinstance(target, Run):
        return target
    if not isinstance(target, str | Path):
        return None
    place = target if is_address(str(target)) else Path(target).expanduser()
    if not is_result(place):
        return None
    loaded = load(place)
    if not isinstance(loaded, Run):
        kind = type(loaded).__name__.lower()
        raise ArgumentError(f"{target} is a result of ss.{kind}, and no run: ss.load reads it")
    return loaded


def diagnose_run(run: Run) -> Diagnosis:
    """Find out why the loop of a recorded run waited for data, or that it did not."""
    findings, flame, questions, notes = apart(lambda: _judged(run))
    length_ns = int(run.all_steps["end_ns"].max() or 0)  # type: ignore[arg-type]  # integers
    settings = run.settings
    why = "nothing was left open"
    if questions:
        why = f"left open by a recording: {'; '.join(questions)}"
    spent = [("loop", length_ns / 1e9, "the run as it was recorded"), ("stop", 0.0, why)]
    return Diagnosis(
        findings=findings,
        run=run,
        flame=flame,
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
        notes=(*notes, *_one_of_several(run), *run.notes),
    )


def _judged(run: Run) -> tuple[tuple[Finding, ...], Flame | None, list[str], list[str]]:
    """Judge each rank, and take the one that waits longest.

    Returns:
        The findings; stacks of the workers, where the verdict needed them; questions that need
        another measurement; notes.
    """
    setup, ranks = setup_of_run(run), _ranks(run)
    times = {rank: loop_breakdown(each.steps(), each.stalls()) for rank, each in ranks.items()}
    shares = {rank: time.stall_share if time else 0.0 for rank, time in times.items()}
    slowest = max(shares, key=lambda rank: shares[rank])
    own = shares.pop(slowest)
    collected, findings, questions = _questioned(ranks[slowest], facts(ranks[slowest], setup))
    notes = side_notes(collected, findings)
    if shares:
        notes += [_about_ranks(run, slowest, own, shares), *_read_twice(ranks)]
    if shares and own >= max(shares.values()) + HARDLY:
        first, *others = findings
        title = f"rank {slowest}, which the others wait for: {first.title}"
        findings = (replace(first, title=title), *others)
    return findings, collected.flame, questions, notes


def _questioned(run: Run, collected: Facts) -> tuple[Facts, tuple[Finding, ...], list[str]]:
    """Answer by the run's own stacks what they can tell; return what needs a measurement, too."""
    collected = _with_own_stacks(run, collected, WAITING_STACKS) or collected
    asked, missing, findings = set[str](), [], judge(collected)
    while (question := next_question(collected, findings, asked)) is not None:
        asked.add(question.phase)
        answered = _with_own_stacks(run, collected, question.phase)
        if answered is None:
            missing.append(f"{question.why} ({question.phase})")
        else:
            collected = answered
            findings = judge(collected)
    return collected, findings, missing


def _with_own_stacks(run: Run, collected: Facts, phase: str) -> Facts | None:
    """Add the answer that the run's stacks have to a question; None: they have none."""
    if phase not in (STACKS, WAITING_STACKS, LOOP_STACKS):
        return None
    is_loop = pl.col("worker").is_null() & pl.col("stage").is_null()
    chosen = is_loop if phase == LOOP_STACKS else pl.col("stage").is_not_null()
    waiting = phase == WAITING_STACKS
    rows = run.stacks().filter(chosen, pl.lit(waiting) | ~pl.col("waits"))
    if int(rows["hits"].sum()) < FEWEST_SAMPLES:
        return None
    if phase == LOOP_STACKS:
        return replace(collected, loop_code=loop_code(rows))
    window = pl.col("window_ns").rank("dense") - 1
    columns = [pl.col(name).cast(kind) for name, kind in SAMPLES.items()]
    conditions = FlameConditions(
        how=IN_PROCESS,
        num_workers=run.settings.num_workers,
        machine=run.machine,
        rate_hz=WINDOW_HZ,
        seconds=rows["window_ns"].n_unique() * WINDOW_S,
        idle=waiting,
    )
    flame = Flame(rows.with_columns(window=window).select(columns), conditions)
    return with_stacks(collected, flame)


def _ranks(run: Run) -> dict[int, Run]:
    ranks = run.all_steps["rank"].unique().sort().to_list()
    if len(ranks) <= 1:
        return {next(iter(ranks), 0): run}
    tables = contents_of(Run).tables.items()
    of_rank = [field for field, table in tables if "rank" in table.schema]
    return {
        rank: replace(
            run,
            **{field: getattr(run, field).filter(pl.col("rank") == rank) for field in of_rank},
        )
        for rank in ranks
    }


def _one_of_several(run: Run) -> list[str]:
    folder = run._folder  # noqa: SLF001 - see `ss.load`
    if folder is None or not folder.name.startswith("rank"):
        return []
    ranks = sum(is_result(each) for each in folder.absolute().parent.glob("rank*"))
    if ranks <= 1:
        return []
    all_of_them = f"stallscope diagnose {folder.absolute().parent}"
    return [f"one of {ranks} ranks: {all_of_them} shows which rank the others wait for"]


def _about_ranks(run: Run, slowest: int, own: float, others: dict[int, float]) -> str:
    """Describe how long ranks wait, and if the same rank always does."""
    stalled = run.stalls().select("epoch", "batch").unique()
    waits = run.steps().select("rank", "epoch", "batch", "wait_s").drop_nulls()
    waits = waits.join(stalled, on=["epoch", "batch"], how="semi")
    alike = waits.filter(pl.len().over("epoch", "batch") == len(others) + 1)
    last = alike.sort("wait_s").group_by("epoch", "batch").last()
    same = float((last["rank"] == slowest).mean() or 0.0) if last.height else 0.0  # type: ignore[arg-type]  # a share
    stalls = others.values()
    between = " to ".join(dict.fromkeys((share(min(stalls)), share(max(stalls)))))
    text = (
        f"rank {slowest} stalls {share(own)} of the time, "
        f"{count(len(others), 'other rank')} {between}"
    )
    if same >= _MOSTLY:
        text += f"; the rank waits longest in {share(same)} of the steps in which one stalls"
    return text


def _read_twice(ranks: dict[int, Run]) -> list[str]:
    """Note that ranks read the same samples, as without a DistributedSampler."""
    samples_of = {
        rank: set(run.samples().select("epoch", "index").drop_nulls().rows())
        for rank, run in ranks.items()
    }
    first = min(samples_of)
    same = [
        rank
        for rank, samples in samples_of.items()
        if rank != first
        and len(samples) >= FEWEST_SAMPLES
        and len(samples & samples_of[first]) >= NEARLY_ALL * len(samples)
    ]
    if not same:
        return []
    who = count(len(same), "rank")
    return [f"{who} read the same samples as rank {first}: give the loaders a DistributedSampler"]
