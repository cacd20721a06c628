"""The tables of a run, each worked out from what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.analyze import summary
from stallscope.analyze.patterns.evidence import Evidence
from stallscope.analyze.patterns.find import patterns as find_patterns
from stallscope.analyze.stalls import exposed as exposures
from stallscope.analyze.stalls.standing import Standing, standing

if TYPE_CHECKING:
    from stallscope.run import Run

_BATCH: Final = ["rank", "epoch", "batch"]


def work(run: Run) -> pl.DataFrame:
    """The spans of the workers' own work in the steady state."""
    steady = run.batches.filter("steady").select("rank", "pid", "epoch", "batch")
    return summary.of_batches(run.all_spans, steady)


def spans(run: Run, *, steady: bool) -> pl.DataFrame:
    """The spans of the workers' own work, and then those beside it."""
    if not steady:
        return pl.concat([run.all_spans, run.side_spans])
    return pl.concat([run.work, _beside(run)])


def _beside(run: Run) -> pl.DataFrame:
    """The spans beside the workers' work that belong to a steady step."""
    steady = run.steps().select(_BATCH).unique()
    return run.side_spans.join(steady, on=_BATCH, how="semi", maintain_order="left")


def samples(run: Run, *, steady: bool) -> pl.DataFrame:
    """One row a sample, see `summary.samples`."""
    return summary.samples(run.work if steady else run.all_spans, run.all_samples)


def stages(run: Run) -> pl.DataFrame:
    """One row a stage, see `summary.STAGES`."""
    stood = run.exposed() if run.all_steps.height else None
    return summary.of_loop(summary.stages(run.work), summary.stages(_beside(run)), stood)


def stood_still(run: Run) -> Standing:
    """Why the loop stood still in the steady state."""
    return standing(run.steps(), run.waits, run.deliveries, run.all_spans, run.side_spans)


def resources(run: Run) -> pl.DataFrame:
    """The samples that end in the steady state of their rank; none where no loop was seen."""
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
    ends = (
        run.steps()
        .group_by("rank")
        .agg(
            first_ns=pl.col("start_ns").min(),
            last_ns=(pl.col("end_ns") + (used_s * 1e9).cast(pl.Int64)).max(),
        )
    )
    inside = pl.col("end_ns").is_between("first_ns", "last_ns") | pl.col("value").is_null()
    within = run.all_resources.join(ends, on="rank", maintain_order="left").filter(inside)
    return within.drop("first_ns", "last_ns")


def exposed(parts: pl.DataFrame) -> pl.DataFrame:
    """All stalls together, see `exposed.EXPOSED`."""
    return exposures.table(parts)


def patterns(run: Run) -> pl.DataFrame:
    """When and why the loop stands still, over all steps after the warm-up."""
    steps = run.all_steps.filter(run.all_steps["step"] >= run.settings.warmup)
    found = standing(steps, run.waits, run.deliveries, run.all_spans, run.side_spans)
    evidence = Evidence(
        steps=steps,
        parts=found.parts,
        samples=run.samples(steady=False),
        deliveries=run.deliveries,
        side_spans=run.side_spans,
        num_workers=run.settings.num_workers,
    )
    return find_patterns(evidence)
