"""Summary of a run's spans by stage and by sample, and the sentence on them.

A sample's time includes its own stages and its part of the worker's time for the whole batch
(collate). Everything follows from `unit_times`, which a run computes once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from stallscope import stages as kinds
from stallscope.columns import Column, Schema
from stallscope.model.thresholds import MOSTLY, NOTED, SMALL
from stallscope.units import LONGEST, capital, printable, share

STAGES: Final = Schema(
    "One row per stage, the longest first; per sample for the stages of a sample, else per batch.",
    Column("stage", pl.String),
    Column("kind", pl.Enum(kinds.KINDS)),
    Column("count", pl.Int64, "samples or batches with this stage"),
    Column("busy_s", pl.Float64, "time in all workers"),
    Column("busy_share", pl.Float64, "share of all stages' busy time"),
    Column("exposed_s", pl.Float64, "stall time of the loop"),
    Column("p50_s", pl.Float64),
    Column("p95_s", pl.Float64),
    Column("p99_s", pl.Float64),
    Column("cpu_share", pl.Float64, "share on a CPU; null: not read"),
)

_ONE_BATCH: Final = ("rank", "pid", "epoch", "batch")
UNIT_KEYS: Final = (*_ONE_BATCH, "sample")
_CODES: Final = 1 << 40
"""Limit above all codes of stages and kinds."""
_PARTS: Final = {f"{kind}_s": kind for kind in kinds.SAMPLE_KINDS}
_WALL_NS: Final = pl.col("end_ns") - pl.col("start_ns")
NOTHING: Final = "No batch was recorded completely: there is nothing to show"

CROWDED: Final = 0.25
"""Waiting share of all computing stages that shows a machine busy with other work."""


def used_until_ns() -> pl.Expr:
    """Return the end of the use of a step's batch, from columns of `run.result.STEPS`."""
    used_s = pl.sum_horizontal("h2d_s", "step_s", "other_s")
    return pl.col("end_ns") + (used_s * 1e9).round().cast(pl.Int64)


def unit_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each stage in each sample, or in each batch outside of its samples.

    The spans come in the order of writing per process: those of a sample are neighbours. `read_ns`
    is the wall time of the spans whose CPU time was read, `moment_s` the middle of the stage, from
    the first span of the sample or batch. `sample` is null outside of samples.
    """
    batch, sample = (_begins(keys).cum_sum().cast(pl.Int64) for keys in (_ONE_BATCH, UNIT_KEYS))
    stage = pl.col("stage").to_physical().cast(pl.Int64) * len(kinds.KINDS)
    middle_ns = (pl.col("start_ns") + pl.col("end_ns")) / 2
    names = (*UNIT_KEYS, "worker", "stage", "kind", "start_ns")
    sums = pl.col("wall_ns", "cpu_ns", "read_ns", "moment").sum()
    units = spans.with_columns(
        unit=pl.when(pl.col("sample").is_null()).then(-batch).otherwise(sample),
        code=stage + pl.col("kind").to_physical(),
        wall_ns=_WALL_NS,
        read_ns=pl.when(pl.col("cpu_ns").is_not_null()).then(_WALL_NS),
    )
    since_ns = middle_ns - pl.col("start_ns").min().over("unit")
    weighted = units.with_columns(moment=since_ns * pl.col("wall_ns"))
    key = pl.col("unit") * _CODES + pl.col("code")  # one key: quicker
    rows = weighted.group_by(key, maintain_order=True)
    moment_s = pl.col("moment") / pl.max_horizontal("wall_ns", 1) / 1e9
    wall_s = (pl.col("wall_ns") / 1e9).alias("wall_s")
    table = rows.agg(pl.first(*names), sums)
    return table.select(*names, "wall_ns", wall_s, "cpu_ns", "read_ns", moment_s=moment_s)


def _begins(keys: tuple[str, ...]) -> pl.Expr:
    """Return whether a key differs from the row before; true in the first row."""
    return pl.any_horizontal(
        pl.col(keys).ne_missing(pl.col(keys).shift()) | (pl.int_range(pl.len()) == 0)
    )


def stages(times: pl.DataFrame) -> pl.DataFrame:
    """Return columns of `STAGES` from those of `unit_times`; `exposed_s` is null, see `of_loop`."""
    shares = {f"p{q}_s": pl.col("wall_s").quantile(q / 100, "linear") for q in (50, 95, 99)}
    # A stage that occurs inside and outside of samples gets two rows
    is_sample = pl.col("sample").is_not_null()
    rows = times.group_by("stage", "kind", in_sample=is_sample, maintain_order=True).agg(
        count=pl.len(),
        busy_s=pl.col("wall_ns").sum() / 1e9,  # integers: their sum is exact
        cpu_share=(pl.col("cpu_ns").sum() / pl.col("read_ns").sum()).fill_nan(None),
        **shares,
    )
    busy_share = pl.col("busy_s") / pl.col("busy_s").sum()
    whole = rows.with_columns(busy_share=busy_share, exposed_s=None)
    table = whole.select(pl.col(name).cast(kind) for name, kind in STAGES.items())
    # Ties by kind and name: the codes of categories depend on what this process read before
    return table.sort("busy_s", "kind", "stage", descending=[True, False, False])


def of_loop(work: pl.DataFrame, side: pl.DataFrame, exposed: pl.DataFrame | None) -> pl.DataFrame:
    """Return the workers' stages, then those beside them, with their part of the stall time.

    `exposed` has columns of `model.attribution.EXPOSED`; None without recorded waits.
    """
    both = pl.concat([work, side.with_columns(busy_share=pl.lit(None, STAGES["busy_share"]))])
    if exposed is None:
        return both
    stalled = exposed.select(stage="part", kind="kind", stalled_s="exposed_s")
    joined = both.join(stalled, on=["stage", "kind"], how="left", maintain_order="left")
    first = pl.int_range(pl.len()).over("stage", "kind") == 0  # a stall counts once for both rows
    stalled_s = pl.when(first).then(pl.col("stalled_s").fill_null(0.0)).otherwise(0.0)
    return joined.with_columns(exposed_s=stalled_s).drop("stalled_s")


def samples(times: pl.DataFrame, described: pl.DataFrame) -> pl.DataFrame:
    """Return the cost of each sample, by part, from `unit_times` and columns of `decode.SAMPLES`.

    `fetch_s`, `decode_s`, `transform_s` and `other_s` add up to `total_s`; `sample` is the place in
    the batch, `slowest` the longest stage.
    """
    keys = ["rank", "epoch", "batch", "sample"]
    wall_ns = pl.col("wall_ns")
    own = times.drop_nulls("sample")
    costs = own.group_by(_begins(UNIT_KEYS).cum_sum().alias("unit"), maintain_order=True).agg(
        pl.first(*keys, "start_ns"),
        **{
            name: wall_ns.filter(pl.col("kind") == kind).sum() / 1e9
            for name, kind in _PARTS.items()
        },
        slowest=pl.col("stage").get(wall_ns.arg_max()).cast(pl.String),
    )
    # `described` has one row per sample, so the join keeps the number of rows
    joined = costs.join(described, on=keys, how="left", maintain_order="left")
    order = ["epoch", "batch", "worker", "index", "start_ns", *_PARTS, "total_s"]
    about = ["sample", "slowest", "path", "width", "height", "bytes", "rank"]
    return joined.with_columns(total_s=pl.sum_horizontal(*_PARTS)).select(*order, *about)


@dataclass(frozen=True)
class StageTimes:
    """Times of a stage over all samples (or batches)."""

    stage: str
    """Name in the user's pipeline."""
    kind: str
    """One of `stallscope.stages.KINDS`."""
    per: str
    """Unit of `times_s`: "sample" or "batch"."""
    times_s: np.ndarray
    """Seconds in each sample or batch with this stage, in recorded order."""
    mean_s: float
    """Mean seconds per sample over all samples, also those without the stage."""
    share: float
    """`mean_s` as a share (0 to 1) of all stages' `mean_s`."""
    cpu_share: float | None
    """Share of the time spent computing; None where CPU time was not read."""
    place: float
    """Mean position in a sample, in seconds from its first span."""

    @property
    def waiting_share(self) -> float | None:
        """Share of the time not spent computing; None where CPU time was not read."""
        return None if self.cpu_share is None else min(max(1 - self.cpu_share, 0.0), 1.0)

    def quantile_s(self, share: float) -> float:
        """Return a quantile (`share` from 0 to 1) over the samples (or batches)."""
        return float(np.quantile(self.times_s, share))


@dataclass(frozen=True)
class Profile:
    """Breakdown of a sample's time by stage."""

    unit: str
    """Denominator: "sample", or "batch" where samples cannot be distinguished."""
    units: int
    """Number of samples or batches."""
    workers: int
    """Worker processes; 0: the main process."""
    stages: tuple[StageTimes, ...]
    """Stages, the longest first."""

    @property
    def mean_s(self) -> float:
        """Mean seconds per sample, all stages together."""
        return sum(stage.mean_s for stage in self.stages)


def profile(times: pl.DataFrame) -> Profile:
    """Return the breakdown of a sample's time by stage, from columns of `unit_times`."""
    times = times.filter(pl.col("kind").is_in(kinds.WORK_KINDS))
    sampled = times.drop_nulls("sample")
    unit, counted = ("batch", times) if sampled.is_empty() else ("sample", sampled)
    units = counted.select(UNIT_KEYS).n_unique() if counted.height else 0
    total_s = float(times["wall_s"].sum())
    per_batch = times.with_columns(per_batch=pl.col("sample").is_null())
    groups = per_batch.partition_by("stage", "kind", "per_batch", maintain_order=True)
    stages = [_stage(group, units, total_s) for group in groups]
    stages.sort(key=lambda stage: -stage.mean_s)
    workers = times["worker"].drop_nulls().n_unique()
    return Profile(unit, units, workers, tuple(stages))


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


def stage_name(stage: StageTimes, unit: str, longest: int = LONGEST) -> str:
    """Return the name of a stage in a list, with its unit where that differs from the profile's."""
    if stage.per == unit:
        return printable(stage.stage, longest)
    per = "the rest" if stage.stage == kinds.BATCH.name else "per batch"
    return f"{printable(stage.stage, longest)}, {per}"


def sentence(profile: Profile) -> str:
    """Return a sentence with the shares of the longest stage and of reading."""
    if not profile.stages:
        return NOTHING
    first, *rest = profile.stages
    text = f"{_word(first)} takes {share(first.share)} of a {profile.unit}'s time"
    text += _nature(first, profile)
    if first.kind == kinds.FETCH.kind:
        text += f"; {_word(rest[0])} takes {share(rest[0].share)}" if rest else ""
    elif not (_is_getitem(first) and (first.waiting_share or 0) >= MOSTLY):  # probably reading
        taken = [stage.share for stage in rest if stage.kind == kinds.FETCH.kind]
        text += f"; reading takes {share(sum(taken))}" if taken else "; no reading was seen"
    return capital(text) if first.stage in kinds.READING_WORDS else text


def remarks(profile: Profile) -> tuple[str, ...]:
    """Return the caveats beside the sentence."""
    return tuple(
        f"getitem takes {share(stage.share)}{_nature(stage, profile)}"
        for stage in profile.stages[1:]
        if _is_getitem(stage) and stage.share >= NOTED
    )


def _is_crowded(profile: Profile) -> bool:
    """Return whether all computing stages wait for a core: they do not wait by themselves."""
    noticed = [stage for stage in profile.stages if stage.share >= SMALL]
    computing = [stage.waiting_share for stage in noticed if stage.kind in kinds.COMPUTING_KINDS]
    return min((part for part in computing if part is not None), default=0.0) >= CROWDED


def _word(stage: StageTimes) -> str:
    words = {**kinds.READING_WORDS, kinds.BATCH.name: "work between samples"}
    return words.get(stage.stage) or printable(stage.stage)


def _is_getitem(stage: StageTimes) -> bool:
    return stage.stage == kinds.GETITEM.name and stage.kind == kinds.GETITEM.kind


def _nature(stage: StageTimes, profile: Profile) -> str:
    """Return words on whether the stage computes or waits by itself, where that matters."""
    waiting = stage.waiting_share
    mostly_waiting = waiting is not None and waiting >= MOSTLY
    if mostly_waiting and _is_crowded(profile):
        return ""
    text = ", mostly waiting" if mostly_waiting else "" if waiting is None else ", mostly computing"
    if _is_getitem(stage):
        if mostly_waiting:
            return f"{text}: probably reading through an open file object"
        return f"{text}: the dataset's own code; ss.lines names its lines"
    return text if mostly_waiting or stage.stage == kinds.FETCH.name else ""
