"""One sample's way in numbers: every stage's time for each sample, its mean and its share.

This is what the pictures, the table and the headline of a run have in common, so that they
never disagree. A sample's time is all that a worker does for it: its own stages, and its part of
what the worker does for the whole batch (collate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

WORK_KINDS: Final = ("fetch", "decode", "transform", "other", "collate")
"""What a worker does one after the other. Sending runs beside it, in a thread of its own, and the
rest happens in the training loop."""

UNIT_KEYS: Final = ("rank", "pid", "epoch", "batch", "sample")


@dataclass(frozen=True)
class StageTimes:
    """One stage over all samples (or batches)."""

    stage: str
    """Name, as the user's pipeline has it."""
    kind: str
    """One of `stallscope.stages.KINDS`."""
    per: str
    """What `times_s` are per: "sample" or "batch"."""
    times_s: np.ndarray
    """Seconds, one for each sample or batch in which the stage occurred, in recorded order."""
    mean_s: float
    """Seconds a sample on average over all samples, also those without the stage."""
    share: float
    """`mean_s` as a share (0 to 1) of all stages' `mean_s`."""
    cpu_share: float | None
    """Share of the time spent computing; None where CPU time was not read."""
    place: float
    """Where in a sample it happens on average, in seconds from the sample's first span."""

    @property
    def waiting_share(self) -> float | None:
        """Share of the time not spent computing; None where CPU time was not read."""
        return None if self.cpu_share is None else min(max(1 - self.cpu_share, 0.0), 1.0)

    def quantile_s(self, share: float) -> float:
        """The time that this share (0 to 1) of the samples (or batches) does not exceed."""
        return float(np.quantile(self.times_s, share))


@dataclass(frozen=True)
class Profile:
    """Where a sample's time goes."""

    unit: str
    """What is divided by: "sample", or "batch" where samples cannot be told apart."""
    units: int
    """How many of them."""
    workers: int
    """Worker processes that made them; 0: the main process."""
    stages: tuple[StageTimes, ...]
    """The longest first."""

    @property
    def mean_s(self) -> float:
        """Seconds a sample, all stages together."""
        return sum(stage.mean_s for stage in self.stages)


def unit_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Time of each stage in each sample (`sample` null: in each batch).

    Args:
        spans: columns of `analyze.spans.SPANS`.

    Returns:
        `rank, pid, epoch, batch, sample, worker, stage, kind, wall_s, cpu_ns, read_ns, moment_s`:
        the CPU time of the spans where it was read and their wall time, and the middle of the
        stage, from the sample's beginning.
    """
    wall_ns = pl.col("end_ns") - pl.col("start_ns")
    middle_ns = (pl.col("end_ns") + pl.col("start_ns")) / 2 - pl.col("begin_ns")
    return (
        spans.with_columns(pl.col("kind", "stage").cast(pl.String))
        .filter(pl.col("kind").is_in(WORK_KINDS))
        .with_columns(begin_ns=pl.col("start_ns").min().over(UNIT_KEYS))
        .group_by(*UNIT_KEYS, "worker", "stage", "kind", maintain_order=True)
        .agg(
            wall_s=wall_ns.sum() / 1e9,
            cpu_ns=pl.col("cpu_ns").sum(),
            read_ns=wall_ns.filter(pl.col("cpu_ns").is_not_null()).sum(),
            moment_s=(middle_ns * wall_ns).sum() / pl.max_horizontal(wall_ns.sum(), 1) / 1e9,
        )
    )


def profile(spans: pl.DataFrame) -> Profile:
    """Where a sample's time goes, from the spans of a run.

    Args:
        spans: columns of `analyze.spans.SPANS`.
    """
    times = unit_times(spans)
    sampled = times.filter(pl.col("sample").is_not_null())
    unit, counted = ("batch", times) if sampled.is_empty() else ("sample", sampled)
    units = counted.select(UNIT_KEYS).n_unique() if counted.height else 0
    total_s = float(times["wall_s"].sum())
    stages = [_stage(group, units, total_s) for group in _groups(times)]
    stages.sort(key=lambda stage: -stage.mean_s)
    workers = times["worker"].drop_nulls().n_unique()
    return Profile(unit, units, workers, tuple(stages))


def _groups(times: pl.DataFrame) -> list[pl.DataFrame]:
    told = times.with_columns(per=pl.when(pl.col("sample").is_null()).then(1).otherwise(0))
    return told.partition_by("stage", "kind", "per", maintain_order=True)


def _stage(group: pl.DataFrame, units: int, total_s: float) -> StageTimes:
    wall_s = group["wall_s"].to_numpy()
    read_ns = int(group["read_ns"].sum())
    return StageTimes(
        stage=group["stage"][0],
        kind=group["kind"][0],
        per="batch" if group["sample"][0] is None else "sample",
        times_s=wall_s,
        mean_s=float(wall_s.sum()) / units,
        share=float(wall_s.sum()) / total_s if total_s else 0.0,
        cpu_share=int(group["cpu_ns"].sum()) / read_ns if read_ns else None,
        place=float(np.average(group["moment_s"].to_numpy(), weights=np.maximum(wall_s, 1e-12))),
    )
