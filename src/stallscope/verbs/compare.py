"""`ss.compare`: differences between recorded runs, with their confidence intervals.

Runs are compared by their time per sample, so that a larger batch does not count as a slower step.
Each run is cut into blocks of steps, and the interval of a difference is Welch's, from the means of
the blocks. The runs did not take turns: the machine may have been a little faster in one of them.
So differences of a few percent are not significant, whatever their intervals are.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.apart import apart
from stallscope.bench.comparison import LITTLE
from stallscope.columns import Column, Schema, interval
from stallscope.errors import ArgumentError
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import OTHERS, SMALL
from stallscope.result import Result
from stallscope.run.resources import find_saturated
from stallscope.stages import KINDS
from stallscope.stats import FEWEST, t_quantile
from stallscope.units import count, printable, share
from stallscope.verbs.diagnose.recorded import diagnose_run, recorded_run
from stallscope.verbs.diagnose.result import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.result import Run
    from stallscope.verbs.diagnose.result import Finding

CHANGES: Final = Schema(
    "One row per measure and later run. A stage that a run lacks took 0 s there.",
    Column("run", pl.Int32, "1, 2 and so on"),
    Column("measure", pl.String, "ends in its unit; `..._s`: per sample, `workers/`: of a worker"),
    Column("kind", pl.Enum([*KINDS, "loop", "stall", "wait"]), "kind of its stage", "kind"),
    Column("before", pl.Float64, "value in the first run"),
    Column("after", pl.Float64, "value in this run"),
    Column("change", pl.Float64, "after minus before"),
    *interval("change_low", doc="its 95% CI; null: too few blocks"),
    Column("distinguishable", pl.Boolean, "neither chance nor the machine"),
)

_Parts = dict[tuple[str, str], np.ndarray]

SPEED, STALLS, LOOP = "samples_per_s", "stall_share", "loop_s"
_STALLED: Final = ("stall", "stall")
_BLOCKS: Final = 12
_DRIFT: Final = 0.05
"""Share of a sample's time; a smaller difference may come from the machine, not the program."""
_STAGE_DRIFT: Final = 0.1
"""The same for a worker's stage, as a share of the stage's time ..."""
_LEAST_DRIFT: Final = 0.02
"""... but between this and `_DRIFT`, as shares of a worker's time for a sample."""
_BURSTS: Final = 0.25
"""Relative change of a measure by other processes with equal load in both runs, as a share of that
load. With any value from 0 to 0.4, no difference was significant in 14 pairs of runs of an
unchanged program, beside others with a load of 2 to 53%."""
_LIMIT: Final = re.compile(r"\s*([\w/ .:-]+?)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Differences between runs of one training."""

    _view: ClassVar[str] = "results.COMPARISON"

    names: tuple[str, ...]
    """Names of the runs, in order."""
    changes: pl.DataFrame
    """Columns of `CHANGES`."""
    verdicts: tuple[Finding, ...]
    """Verdict on each run."""
    differs: tuple[str, ...] = ()
    """Differences in settings, versions, machine and data, in sentences: possible reasons."""
    notes: tuple[str, ...] = ()
    """Caveats, in sentences."""
    loops: tuple[dict[tuple[str, str], float], ...] = field(default=(), repr=False)
    """Seconds per sample of each run's loop, by part and kind."""

    def table(self) -> pl.DataFrame:
        """Return a row for each measure; columns of `CHANGES`."""
        return self.changes

    def of(self, measure: str, run: int = 1) -> dict[str, Any]:
        """Return the row of a measure.

        Args:
            measure: its name.
            run: number of the later run, from 1.

        Raises:
            ArgumentError: there is no such measure.
        """
        rows = self.changes.filter(pl.col("run") == run, pl.col("measure") == measure)
        if rows.is_empty():
            measures = ", ".join(dict.fromkeys(self.changes["measure"]))
            raise ArgumentError(f"there is no measure {measure!r}: there are {measures}")
        row: dict[str, Any] = rows.row(0, named=True)
        return row

    def exceeds(self, limit: str) -> bool:
        """Return whether a change exceeds a limit and is significant.

        Args:
            limit: for the last run: "stall_share > +0.05", "samples_per_s < -10%" (of the value in
                the first run), or "stall_share > 0.3" (value in the last run).

        Raises:
            ArgumentError: the limit cannot be parsed, or there is no such measure.
        """
        read = _LIMIT.fullmatch(limit)
        if read is None:
            raise ArgumentError(
                f"the limit {limit!r} cannot be parsed: write it as 'stall_share > +0.05', "
                "'samples_per_s < -10%' or 'stall_share > 0.3'"
            )
        name, beyond, sign, number, percent = read.groups()
        row = self.of(name, len(self.names) - 1)
        bound = float(f"{sign}{number}") * (row["before"] / 100 if percent else 1.0)
        is_change = bool(sign or percent)
        value = row["change"] if is_change else row["after"]
        is_beyond = value > bound if beyond == ">" else value < bound
        return bool(is_beyond and (row["distinguishable"] or not is_change))


def compare(before: Any, after: Any, *later: Any) -> Comparison:
    """Compare recorded runs of one training.

    Args:
        before: a `Run`, a `Diagnosis` with one, or the folder of a saved run.
        after: another run of the same training, with a change.
        later: further runs; each is compared with the first.

    Raises:
        ArgumentError: an argument is not a recorded run, or a run has no step of a loop.
        RunFormatError: a folder is damaged.
    """
    sources = (before, after, *later)
    runs = [_run(source) for source in sources]
    names = _names(sources, runs)
    return apart(lambda: _compared(names, runs))


def _run(source: Any) -> Run:
    run = source.run if isinstance(source, Diagnosis) else recorded_run(source)
    if run is None:
        what = f"{source!r}" if isinstance(source, str | Path) else f"a {type(source).__name__}"
        raise ArgumentError(f"{what} is no recorded run: give a Run, or the folder of a saved run")
    if run.steps().drop_nulls("wait_s").is_empty():
        name = printable(run.settings.name or "a run")
        raise ArgumentError(f"{name} has no step of a loop, so it cannot be compared")
    return run


def _names(sources: tuple[Any, ...], runs: list[Run]) -> tuple[str, ...]:
    """Return names of runs: of the folder, or as recorded; with numbers where equal."""
    names = []
    for place, (source, run) in enumerate(zip(sources, runs, strict=True), 1):
        name = Path(source).name if isinstance(source, str | Path) else run.settings.name
        names.append(printable(name or f"run {place}"))
    if len(set(names)) < len(names):
        pair = len(names) == 2  # noqa: PLR2004 - a pair
        numbered = [f"{name} ({place})" for place, name in enumerate(names, 1)]
        names = ["before", "after"] if pair else numbered
    return tuple(names)


def _compared(names: tuple[str, ...], runs: list[Run]) -> Comparison:
    first, *later = blocks = [_blocks(run) for run in runs]
    rows = [
        (number, *row) for number, after in enumerate(later, 1) for row in _changes(first, after)
    ]
    differs = [
        f"{text} in {name}" if len(later) > 1 else text
        for name, run in zip(names[1:], runs[1:], strict=True)
        for text in _differing(runs[0], run)
    ]
    return Comparison(
        names=names,
        changes=pl.DataFrame(rows, CHANGES, orient="row"),
        verdicts=tuple(diagnose_run(run).verdict for run in runs),
        differs=tuple(differs),
        notes=tuple(_notes(names, blocks)),
        loops=tuple(
            {part: float(took_s.mean()) for part, took_s in run.loop.items()} for run in blocks
        ),
    )


class _Blocks(NamedTuple):
    """A run in blocks of consecutive steps."""

    samples: np.ndarray
    """Samples of each block, shape (blocks,)."""
    loop: _Parts
    """Seconds per sample of each part of the loop, by name and kind, in each block."""
    workers: _Parts
    """Seconds per sample of each stage of the workers, in as many blocks of recorded batches."""
    counted: bool
    """False: batches have an unknown size, and each counts as one sample."""
    others_share: float
    """Share (0 to 1) of the cores that other processes used."""

    @property
    def loop_s(self) -> np.ndarray:
        """Seconds per sample, in each block."""
        whole: np.ndarray = np.sum([*self.loop.values()], axis=0)
        return whole

    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return samples per second, and the share of the loop's time in stalls.

        Each is the value of all, and around it the deviation by each block.
        """
        loop_s, stall_s = self.loop_s, self.loop.get(_STALLED, np.zeros(len(self.samples)))
        mean_s = loop_s.mean()
        stalled = stall_s.mean() / mean_s
        speed = 1 / mean_s - (loop_s - mean_s) / mean_s**2
        return speed, stalled + (stall_s - stalled * loop_s) / mean_s


def _blocks(run: Run) -> _Blocks:
    steps = run.steps().drop_nulls(["wait_s", "start_ns"])
    stalls = run.stalls()
    workers = max(run.settings.num_workers, 1) * max(steps["rank"].n_unique(), 1)
    block_count = max(min(_BLOCKS, steps.height // workers), 1)
    batches = run.samples().group_by(_BATCH).len("samples").sort(_BATCH)
    median: Any = batches["samples"].median()
    size = run.settings.batch_size or (int(median) if median else None)
    cut = steps.sort("start_ns").with_columns(block=_block_of(block_count))
    loop: _Parts = {}
    for block, mine in cut.partition_by("block", as_dict=True, maintain_order=True).items():
        here = stalls.join(mine.select("rank", "step"), on=["rank", "step"], how="semi")
        time = loop_breakdown(mine, here, run.side_spans)
        for name, kind, part_s in time.pieces() if time else ():
            loop.setdefault((name, kind), np.zeros(block_count))[int(block[0])] = part_s
    samples = np.bincount(cut["block"].to_numpy(), minlength=block_count) * float(size or 1)
    others = find_saturated(run).others_share or 0.0
    stages = _stages(run, batches.with_columns(block=_block_of(block_count)), block_count)
    per_sample = {part: took_s / samples for part, took_s in loop.items()}
    return _Blocks(samples, per_sample, stages, bool(size), others)


_BATCH: Final = ["rank", "epoch", "batch"]


def _block_of(block_count: int) -> pl.Expr:
    return pl.int_range(pl.len()) * block_count // pl.len()


def _stages(run: Run, batches: pl.DataFrame, block_count: int) -> _Parts:
    """Return the seconds per sample of each stage, in each block; the longest stage first."""
    took_s = ((pl.col("end_ns") - pl.col("start_ns")) / 1e9).alias("took_s")
    work = run.work.select(*_BATCH, pl.col("stage", "kind").cast(pl.String), took_s)
    cut = work.join(batches.select(*_BATCH, "block"), on=_BATCH)
    sums = cut.group_by("stage", "kind", "block").agg(pl.col("took_s").sum())
    each = sums.join(batches.group_by("block").agg(pl.col("samples").sum()), on="block")
    stages: _Parts = {}
    for stage, kind, block, part_s, of in each.iter_rows():
        stages.setdefault((stage, kind), np.zeros(block_count))[block] = part_s / of
    return dict(sorted(stages.items(), key=lambda item: (-item[1].sum(), item[0])))


def _changes(first: _Blocks, later: _Blocks) -> Iterator[tuple[Any, ...]]:
    """Yield rows of `CHANGES` without the run."""
    whole_s = float(first.loop_s.mean())
    # Other processes slow both runs down, by the cores that they leave to each. So only the
    # difference counts: a rank always has the other ranks of its node beside it.
    low, high = sorted((first.others_share, later.others_share))
    noise = max((high - low) / (1 - low) if low < 1 else 0.0, _BURSTS * high)
    (speeds, stalls), (later_speeds, later_stalls) = first.shares(), later.shares()
    speed = _change(SPEED, "loop", speeds, later_speeds, _DRIFT / whole_s, noise)
    yield speed
    yield _change(STALLS, "stall", stalls, later_stalls, _DRIFT, noise)
    *loop, _ = _change(LOOP, "loop", first.loop_s, later.loop_s, _DRIFT * whole_s, noise)
    yield *loop, speed[-1]  # the inverse of the speed, so it gets the same answer
    for part, a_s, b_s in _pairs(first.loop, later.loop):
        if max(a_s.mean(), b_s.mean()) >= SMALL * whole_s:
            yield _change(f"{part[0]}_s", part[1], a_s, b_s, _DRIFT * whole_s, noise)
    worker_s = sum(float(stage_s.mean()) for stage_s in first.workers.values())
    for part, a_s, b_s in _pairs(first.workers, later.workers):
        if max(a_s.mean(), b_s.mean()) >= SMALL * worker_s:
            own_s = _STAGE_DRIFT * float(max(a_s.mean(), b_s.mean()))
            drift_s = min(max(own_s, _LEAST_DRIFT * worker_s), _DRIFT * worker_s)
            yield _change(f"workers/{part[0]}_s", part[1], a_s, b_s, drift_s, noise)


def _pairs(
    first: _Parts, later: _Parts
) -> Iterator[tuple[tuple[str, str], np.ndarray, np.ndarray]]:
    """Yield each part with its times in both runs; a missing part took 0 s."""
    none = np.zeros(1)
    for part in {**first, **later}:
        yield part, first.get(part, none), later.get(part, none)


def _change(  # noqa: PLR0913, PLR0917 - one row
    measure: str, kind: str, before: np.ndarray, after: np.ndarray, drift: float, noise: float
) -> tuple[Any, ...]:
    """Compare one measure, by its value in each block of both runs.

    The machine may have caused a change by `drift`, in the measure's unit, and other processes a
    relative change by `noise` (0 to 1).
    """
    first, later = float(before.mean()), float(after.mean())
    change = later - first
    drift = max(drift, noise * max(first, later))
    if min((len(values) for values in (before, after) if values.any()), default=0) < FEWEST:
        return measure, kind, first, later, change, None, None, False
    samples = [values for values in (before, after) if len(values) > 1]
    errors = [float(values.var(ddof=1)) / len(values) for values in samples]
    # Welch and Satterthwaite's degrees of freedom
    parts = sum(error**2 / (len(values) - 1) for error, values in zip(errors, samples, strict=True))
    free = max(int(sum(errors) ** 2 / parts), 1) if parts else min(map(len, samples)) - 1
    reach = t_quantile(free) * math.sqrt(sum(errors))
    low, high = change - reach, change + reach
    return measure, kind, first, later, change, low, high, low > drift or high < -drift


_SETTINGS: Final = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers")


def _differing(first: Run, later: Run) -> Iterator[str]:
    before, after = _facts(first), _facts(later)
    for name in {**before, **after}:
        if (old := before.get(name)) != (new := after.get(name)):
            yield f"{name.replace('_', ' ')}: {printable(str(old))} → {printable(str(new))}"
    a, b = _data(first), _data(later)
    for name in a:
        if a[name] and b[name] and abs(a[name] - b[name]) > _DRIFT * max(a[name], b[name]):
            yield f"{name}: {a[name]:,.3g} → {b[name]:,.3g}"


def _facts(run: Run) -> dict[str, Any]:
    settings = {name: getattr(run.settings, name) for name in _SETTINGS}
    settings["simulated step"] = run.settings.simulated_step_s
    # The device of the loop, where the machine has the one that it could use
    return settings | run.machine | {"device": run.device or "CPU"}


def _data(run: Run) -> dict[str, float]:
    samples = run.samples()
    pixels = (pl.col("width").cast(pl.Float64) * pl.col("height") / 1e6).median()
    size, megapixels = samples.select(pl.col("bytes").median(), pixels.alias("pixels")).row(0)
    return {"bytes a sample": size or 0.0, "megapixels a sample": megapixels or 0.0}


def sentence(comparison: Comparison, run: int = -1) -> str:
    """Return the speedup of a run over the first one, and how long each stalls."""
    run = run % len(comparison.names)
    speed, stalls = comparison.of(SPEED, run), comparison.of(STALLS, run)
    first, later = printable(comparison.names[0]), printable(comparison.names[run])
    stalled = f"stalls: {share(stalls['before'])} → {share(stalls['after'])} of the time"
    if speed["change_low"] is None:
        return f"Too few steps to tell whether {later} is faster than {first}; {stalled}"
    before = speed["before"]
    ratios = [
        max(value, 0.0) / before
        for value in (speed["after"], before + speed["change_low"], before + speed["change_high"])
    ]
    factor, low, high = (f"{ratio:.2f}×" for ratio in ratios)
    fast = f"{factor} as fast as {first} ({low} to {high})"
    if speed["distinguishable"]:
        return f"{later} is {fast}; {stalled}"
    is_chance = ratios[1] <= 1 <= ratios[2]
    if is_chance and ratios[2] < LITTLE:
        return f"{later} is about as fast as {first}: {factor} ({low} to {high}); {stalled}"
    why = "other processes or the machine may explain: record both again"
    return f"{later} ran {fast}, which {'may be chance' if is_chance else why}; {stalled}"


def _notes(names: tuple[str, ...], blocks: list[_Blocks]) -> Iterator[str]:
    short = [name for name, run in zip(names, blocks, strict=True) if len(run.samples) < FEWEST]
    if short:
        yield f"too few steps in {', '.join(short)} for significant differences: record more"
    if not all(run.counted for run in blocks):
        yield "the batch size is unknown: a batch counts as one sample"
    busy = [
        f"{share(run.others_share)} in {name}"
        for name, run in zip(names, blocks, strict=True)
        if run.others_share >= OTHERS
    ]
    if busy:
        yield f"other processes used cores ({', '.join(busy)}): small changes may come from them"
    block_count = count(len(blocks[0].samples), "block")
    yield (
        f"the runs did not alternate, so small changes do not count: below {share(_DRIFT)} of a "
        f"sample's time; in a worker's stage, below {share(_STAGE_DRIFT)} of the stage or "
        f"{share(_LEAST_DRIFT)} of the worker's time; intervals from {block_count} of steps"
    )
