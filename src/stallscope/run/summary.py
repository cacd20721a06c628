"""What a run's spans say by stage and by sample, and the one sentence on top of all its views.

A sample's time is all that a worker does for it: its own stages, and its part of what the worker
does for the whole batch (collate). Everything is linear in the number of spans: they come in the
order in which each process wrote them, so a sample's spans stand together and sums are taken by
position, without a hash table, in blocks of whole batches. So a run that fills half of the memory
can still be summarised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.stages import (
    BATCH,
    COMPUTING_KINDS,
    FETCH,
    GETITEM,
    KINDS,
    READING_WORDS,
    SAMPLE_KINDS,
    WORK_KINDS,
)
from stallscope.units import LONGEST, printable, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from polars._typing import PolarsDataType

    Schema = dict[str, PolarsDataType]

STAGES: Schema = {
    "stage": pl.String,
    "kind": pl.Enum(KINDS),
    "count": pl.Int64,
    "busy_s": pl.Float64,
    "busy_share": pl.Float64,
    "exposed_s": pl.Float64,
    "p50_s": pl.Float64,
    "p95_s": pl.Float64,
    "p99_s": pl.Float64,
    "cpu_share": pl.Float64,
}
"""One row a stage, the longest first. Counts and percentiles are per sample for the stages of a
sample, per batch for the others; `cpu_share` is null where CPU time was not read."""

_ONE_BATCH: Final = ("rank", "pid", "epoch", "batch")
_BLOCK: Final = 1 << 18
"""Spans in a block, about."""
_MOST_EDGES: Final = 1000
"""With more ends of stretches than this, one copy is better than a table in many pieces."""


_PARTS: Final = {f"{kind}_s": KINDS.index(kind) for kind in SAMPLE_KINDS}
UNIT_KEYS: Final = ("rank", "pid", "epoch", "batch", "sample")
NOTHING: Final = "No batch was recorded from beginning to end: there is nothing to show"

ALIKE: Final = 0.85
"""A second stage that takes this share of the first is named beside it."""
OUTSTANDING: Final = 0.2
"""Below this share of a sample's time, no stage stands out."""
WORTH_A_REMARK: Final = 0.1
"""Share of a sample's time from which on `getitem` needs an explanation."""
MOSTLY: Final = 0.5

NOTICED: Final = 0.03
"""Share of a sample's time from which on a stage's waiting is looked at."""
CROWDED: Final = 0.25
"""When every computing stage waits so much, the machine was busy with something else."""
FEWEST_WAITING: Final = 3


def of_batches(spans: pl.DataFrame, wanted: pl.DataFrame) -> pl.DataFrame:
    """The spans of these batches, in their order; whole stretches of them are not copied.

    Args:
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.
        wanted: `rank, pid, epoch, batch` of the batches.
    """
    starts = np.flatnonzero(_begins_batch(spans))
    batches = spans.select(_ONE_BATCH)[starts].with_row_index("place")
    chosen = np.zeros(starts.size, dtype=bool)
    chosen[batches.join(wanted, on=_ONE_BATCH, how="semi")["place"].to_numpy()] = True
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    if edges.size > _MOST_EDGES:
        lengths = np.diff(starts, append=spans.height)
        return spans.filter(pl.Series(np.repeat(chosen, lengths), dtype=pl.Boolean))
    bounds = np.append(starts, spans.height)[edges].reshape(-1, 2).tolist()
    stretches = [spans[begin:end] for begin, end in bounds]
    return pl.concat([spans.clear(), *stretches], rechunk=False)


def stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Where the workers' time goes, by stage.

    Args:
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.

    Returns:
        Columns of `STAGES`; `exposed_s` is null, see `of_loop`.
    """
    found: dict[int, _Stage] = {}
    for block in _blocks(spans):
        # A stage that occurs inside and outside of samples is two rows
        codes, place = _unique_small(block.stage * 2 + ~block.in_sample)
        unit = np.where(block.in_sample, block.sample, block.batch)
        totals, occurs = _totals(unit, place, block.wall_ns)
        cpu_ns, read = block.cpu()
        cpu = np.bincount(place, cpu_ns)
        wall_read = np.bincount(place, np.where(read, block.wall_ns, 0))
        for i, code in enumerate(codes):
            stage = found.setdefault(code, _Stage(*block.name(code // 2)))
            stage.per_unit_ns.append(totals[occurs[:, i], i])
            stage.cpu_ns += int(cpu[i])
            stage.read_ns += int(wall_read[i])
    return _stage_table([found[code] for code in sorted(found)])


def of_loop(work: pl.DataFrame, side: pl.DataFrame, exposed: pl.DataFrame | None) -> pl.DataFrame:
    """The stages of the workers, then those beside them, with the time that the loop stalled.

    Args:
        work: columns of `STAGES`, of the workers' own spans.
        side: the same columns, of the spans beside them; they are no share of the workers' time.
        exposed: columns of `model.attribution.EXPOSED`; None where no waits were recorded.
    """
    both = pl.concat([work, side.with_columns(busy_share=pl.lit(None, STAGES["busy_share"]))])
    if exposed is None:
        return both
    stalled = exposed.select(stage="part", kind="kind", stalled_s="exposed_s")
    joined = both.join(stalled, on=["stage", "kind"], how="left", maintain_order="left")
    first = pl.int_range(pl.len()).over("stage", "kind") == 0  # a stall counts once for both rows
    stalled_s = pl.when(first).then(pl.col("stalled_s").fill_null(0.0)).otherwise(0.0)
    return joined.with_columns(exposed_s=stalled_s).drop("stalled_s")


@dataclass
class _Stage:
    """A stage, summed up over the blocks so far."""

    name: str
    kind: str
    per_unit_ns: list[np.ndarray] = field(default_factory=list)
    """Its time in each sample (or batch) that it occurs in, an array a block."""
    cpu_ns: int = 0
    read_ns: int = 0
    """Time of the spans whose CPU time was read."""


def _stage_table(found: list[_Stage]) -> pl.DataFrame:
    per_unit_s = [np.concatenate(stage.per_unit_ns) / 1e9 for stage in found]
    total = sum(float(values.sum()) for values in per_unit_s)
    table = [
        (
            stage.name,
            stage.kind,
            values.size,
            float(values.sum()),
            _ratio(values.sum(), total),
            None,
            *np.percentile(values, (50, 95, 99)).tolist(),
            _ratio(stage.cpu_ns, stage.read_ns),
        )
        for stage, values in zip(found, per_unit_s, strict=True)
    ]
    # Equal ones by a sample's way and by name: categories are numbered as this process met them
    return pl.DataFrame(table, schema=STAGES, orient="row").sort(
        "busy_s", "kind", "stage", descending=[True, False, False]
    )


def samples(spans: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """What each sample cost, and in which part.

    Args:
        spans: columns of `run.decode.SPANS`, in the order in which they were recorded.
        known: columns of `run.decode.SAMPLES`.

    Returns:
        One row a sample: `epoch, batch, worker, index, start_ns, fetch_s, decode_s, transform_s,
        other_s, total_s`, then `sample` (its place in the batch), `slowest` (its longest stage),
        `path`, `width`, `height`, `bytes` and `rank`. The four parts add up to `total_s`.
    """
    none = [_costs(_Block(spans.clear(), np.zeros(0, dtype=bool)))]
    frame = pl.concat([_costs(block) for block in _blocks(spans)] or none)
    # `known` has one row for each sample, so this neither adds nor loses any
    keys = ["rank", "epoch", "batch", "sample"]
    joined = frame.join(known, on=keys, how="left", maintain_order="left")
    order = ["epoch", "batch", "worker", "index", "start_ns", *_PARTS, "total_s"]
    return joined.select(*order, "sample", "slowest", "path", "width", "height", "bytes", "rank")


def _costs(block: _Block) -> pl.DataFrame:
    first = np.flatnonzero(np.diff(block.sample, prepend=-1))
    chosen = block.in_sample[first]  # a stretch outside of samples has a number too
    by_kind, _ = _totals(block.sample, block.stage % len(KINDS), block.wall_ns, len(KINDS))
    parts = {name: by_kind[chosen, kind] / 1e9 for name, kind in _PARTS.items()}
    return block.spans.select("rank", "epoch", "batch", "sample", "start_ns")[
        first[chosen]
    ].with_columns(
        *(pl.Series(name, values) for name, values in parts.items()),
        pl.Series("total_s", sum(parts.values(), np.zeros(int(chosen.sum())))),
        block.slowest().filter(pl.Series(chosen)).alias("slowest"),
    )


class _Block:
    """Some of the spans, as arrays: whole batches of them.

    Args:
        spans: columns of `run.decode.SPANS`.
        new_batch: whether a span is the first of its batch.
    """

    def __init__(self, spans: pl.DataFrame, new_batch: np.ndarray) -> None:
        self.spans = spans
        sample = spans["sample"].fill_null(-1).to_numpy()
        self.in_sample = sample >= 0
        self.batch = np.cumsum(new_batch) - 1
        """Running number of each span's batch, from 0."""
        self.sample = np.cumsum(new_batch | _differs(sample)) - 1
        """Running number of each span's sample; stretches outside of samples are counted too."""
        self.wall_ns = (spans["end_ns"] - spans["start_ns"]).to_numpy()
        stage = spans["stage"].to_physical().to_numpy().astype(np.int64)
        self.stage = stage * len(KINDS) + spans["kind"].to_physical().to_numpy()
        """A number for each stage and kind."""

    def name(self, stage: int) -> tuple[str, str]:
        """Name and kind of a stage that occurs here, by its number."""
        return str(self.spans["stage"][int((self.stage == stage).argmax())]), KINDS[
            stage % len(KINDS)
        ]

    def cpu(self) -> tuple[np.ndarray, np.ndarray]:
        """CPU time of each span, and whether it was read."""
        cpu_ns = self.spans["cpu_ns"]
        return cpu_ns.fill_null(0).to_numpy(), cpu_ns.is_not_null().to_numpy()

    def slowest(self) -> pl.Series:
        """Name of the stage that took longest in each sample, by `sample`."""
        stages, place = _unique_small(self.stage)
        totals, occurs = _totals(self.sample, place, self.wall_ns, len(stages))
        names = pl.Series([self.name(stage)[0] for stage in stages], dtype=pl.String)
        return names.gather(np.where(occurs, totals, -1).argmax(axis=1)) if stages else names


def _blocks(spans: pl.DataFrame) -> Iterator[_Block]:
    new_batch = _begins_batch(spans)
    starts = np.flatnonzero(new_batch)
    wanted = np.searchsorted(starts, np.arange(0, spans.height, _BLOCK))
    cuts = np.unique(starts[np.minimum(wanted, starts.size - 1)])
    for begin, end in pairwise([*cuts.tolist(), spans.height]):
        yield _Block(spans[begin:end], new_batch[begin:end])


def _begins_batch(spans: pl.DataFrame) -> np.ndarray:
    begins = np.zeros(spans.height, dtype=bool)
    for name in _ONE_BATCH:
        begins |= _differs(spans[name].to_numpy())
    return begins


def _differs(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before; the first one does."""
    return np.append(np.ones(min(values.size, 1), dtype=bool), values[1:] != values[:-1])


def _totals(
    unit: np.ndarray, column: np.ndarray, wall_ns: np.ndarray, columns: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Time by unit and column, and whether there is any span; shapes (units, columns).

    The sums are whole numbers below 2^53, so they are exact.
    """
    columns = columns or int(column.max(initial=0)) + 1
    cells = unit * columns + column
    size = (int(unit.max(initial=-1)) + 1) * columns
    occurs = np.zeros(size, dtype=bool)
    occurs[cells] = True
    totals = np.bincount(cells, wall_ns, size)
    return totals.reshape(-1, columns), occurs.reshape(-1, columns)


def _unique_small(values: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Like `np.unique` with its inverse, for small numbers: linear, without sorting."""
    present = np.flatnonzero(np.bincount(values))
    places = np.zeros(int(present[-1]) + 1 if present.size else 1, dtype=np.int64)
    places[present] = np.arange(present.size)
    return present.tolist(), places[values]


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None


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
        spans: columns of `run.decode.SPANS`.

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
        spans: columns of `run.decode.SPANS`.
    """
    times = unit_times(spans)
    sampled = times.filter(pl.col("sample").is_not_null())
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
    """The name of a stage in a list of them, with what it is per where that is not the unit.

    Args:
        stage: one of a profile's.
        unit: the profile's.
        longest: characters of the name at most.
    """
    if stage.per == unit:
        return printable(stage.stage, longest)
    per = "the rest" if stage.stage == BATCH.name else "per batch"
    return f"{printable(stage.stage, longest)}, {per}"


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
    sentence += _nature(named[0], _crowd(profile)) if len(named) == 1 else ""
    sentence += _reading(profile, named, name)
    starts_with_a_word = named[0].stage in READING_WORDS or sentence.startswith("no stage")
    return sentence[0].upper() + sentence[1:] if starts_with_a_word else sentence


def remarks(profile: Profile) -> tuple[str, ...]:
    """Sentences that a reader of the numbers needs, beside the headline."""
    named = _leaders(profile.stages) if profile.stages else []
    explained = named[0].stage if len(named) == 1 else ""
    crowd = _crowd(profile)
    said = [
        f"getitem takes {share(stage.share)}{_nature(stage, crowd)}"
        for stage in profile.stages
        if _is_getitem(stage) and stage.share >= WORTH_A_REMARK and stage.stage != explained
    ]
    if crowd:
        said.append(
            f"every computing stage was off the CPU for {share(crowd)} of its time or more: the "
            "CPUs were probably shared with something else, which makes all times longer"
        )
    return tuple(said)


def _crowd(profile: Profile) -> float:
    """The share of their time that all stages wait for a core; 0 where nothing says so.

    Decoding and transforms do not wait by themselves: together they tell of a busy machine. Of
    fewer such stages that is told by all the others, too, waiting for most of their time.
    """
    noticed = [one for one in profile.stages if one.cpu_share is not None and one.share >= NOTICED]
    waiting = [one.waiting_share or 0.0 for one in noticed]
    computing = [one.waiting_share or 0.0 for one in noticed if one.kind in COMPUTING_KINDS]
    if not computing or min(computing) < CROWDED:
        return 0.0
    alike = len(waiting) >= FEWEST_WAITING and min(waiting) >= MOSTLY
    return min(computing) if alike or len(computing) >= FEWEST_WAITING else 0.0


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
    words = {**READING_WORDS, BATCH.name: "work between samples"}
    return words.get(stage.stage) or name(stage.stage)


def _is_getitem(stage: StageTimes) -> bool:
    return stage.stage == GETITEM.name and stage.kind == GETITEM.kind


def _nature(stage: StageTimes, crowd: float) -> str:
    """Whether the stage computes or waits by itself, where that matters for what it means."""
    waiting = stage.waiting_share
    if waiting is not None and crowd < 1:
        waiting = 1 - (1 - waiting) / (1 - crowd)  # of the time that it does not wait for a core
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
