"""`ss.compare`: what changed from one recorded run to the next, by how much, and how sure that is.

Runs are compared by what a sample costs the loop, so that a larger batch is no slower step. Each
run is cut into blocks of steps, and the interval of a difference is Welch's, from the means of the
blocks. The runs were not made next to each other: a machine may have been a little faster in the
one, so that nothing within a few percent is told apart, whatever the intervals say.
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
from stallscope.columns import Column, Schema
from stallscope.diagnose.recorded import diagnose_run, recorded_run
from stallscope.diagnose.result import Diagnosis
from stallscope.errors import ArgumentError
from stallscope.model.loop_time import loop_breakdown
from stallscope.model.thresholds import OTHERS
from stallscope.result import Result
from stallscope.run.saturation import find_saturated
from stallscope.stages import KINDS
from stallscope.stats import t_quantile
from stallscope.units import count, printable, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.diagnose.result import Finding
    from stallscope.run.result import Run

CHANGES: Final = Schema(
    "One row a measure and later run. What was not in one of the runs took 0 s there.",
    Column("run", pl.Int32, "1, 2 and so on"),
    Column("measure", pl.String, "ends in its unit; `..._s`: per sample, `workers/`: of a worker"),
    Column("kind", pl.Enum([*KINDS, "loop", "stall", "wait"]), "kind of its stage", "kind"),
    Column("before", pl.Float64, "value in the first run"),
    Column("after", pl.Float64, "value in this run"),
    Column("change", pl.Float64, "after minus before"),
    Column("change_low", pl.Float64, "its 95% CI; null: too few blocks"),
    Column("change_high", pl.Float64),
    Column("distinguishable", pl.Boolean, "neither chance nor the machine"),
)

SPEED, STALLS, LOOP = "samples_per_s", "stall_share", "loop_s"
_BLOCKS: Final = 12
_FEWEST: Final = 4
"""Blocks; with fewer nothing is told apart."""
_DRIFT: Final = 0.05
"""Share of a sample's time: a smaller difference may be the machine's, not the program's."""
_STAGE_DRIFT: Final = 0.1
"""The same of a worker's stage, of its own time ..."""
_LEAST_DRIFT: Final = 0.02
"""... but no less than this, and no more than `_DRIFT`, of a worker's time for a sample."""
_BURSTS: Final = 0.25
"""Share of what other processes had of the cores by which they may have moved a measure, though
they had as much in both runs. In 14 pairs of runs beside others that had 2 to 53%, nothing was
claimed of an unchanged program with any share from 0 to 0.4 (`tests/benchmarks/comparison.py`)."""
_SMALLEST: Final = 0.01
"""Share of the loop's time: a part that is smaller in all runs has no row."""
_LIMIT: Final = re.compile(r"\s*([\w/ .:-]+?)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """What changed between runs of one training."""

    _view: ClassVar[str] = "comparison.VIEW"

    names: tuple[str, ...]
    """Of the runs, the first one first."""
    changes: pl.DataFrame
    """Columns of `CHANGES`."""
    verdicts: tuple[Finding, ...]
    """Of each run."""
    differs: tuple[str, ...] = ()
    """Settings, versions, machine and data that are not the same, in sentences: they may be why."""
    notes: tuple[str, ...] = ()
    """What else there is to know."""
    loops: tuple[dict[tuple[str, str], float], ...] = field(default=(), repr=False)
    """Of each run: its loop's seconds a sample by part and kind."""

    def table(self) -> pl.DataFrame:
        """One row a measure; columns of `CHANGES`."""
        return self.changes

    def of(self, measure: str, run: int = 1) -> dict[str, Any]:
        """Return the row of a measure.

        Args:
            measure: its name.
            run: which of the later runs.

        Raises:
            ArgumentError: there is no such measure.
        """
        rows = self.changes.filter(pl.col("run") == run, pl.col("measure") == measure)
        if rows.is_empty():
            known = ", ".join(dict.fromkeys(self.changes["measure"]))
            raise ArgumentError(f"there is no measure {measure!r}: there are {known}")
        row: dict[str, Any] = rows.row(0, named=True)
        return row

    def exceeds(self, limit: str) -> bool:
        """Return whether a change is beyond a limit, and not only noise.

        Args:
            limit: as in "stall_share > +0.05", "samples_per_s < -10%" (of its value before), or
                "stall_share > 0.3" (its value after). Of the last run.

        Raises:
            ArgumentError: it cannot be read, or there is no such measure.
        """
        read = _LIMIT.fullmatch(limit)
        if read is None:
            raise ArgumentError(
                f"the limit {limit!r} cannot be read: give one as 'stall_share > +0.05', "
                "'samples_per_s < -10%' or 'stall_share > 0.3'"
            )
        name, beyond, sign, number, percent = read.groups()
        row = self.of(name, len(self.names) - 1)
        bound = float(f"{sign}{number}") * (row["before"] / 100 if percent else 1.0)
        is_change = bool(sign or percent)
        value = row["change"] if is_change else row["after"]
        is_beyond = value > bound if beyond == ">" else value < bound
        return bool(is_beyond and (row["distinguishable"] or not is_change))


def compare(before: Any, after: Any, *more: Any) -> Comparison:
    """Say what changed between recorded runs of one training.

    Args:
        before: a `Run`, a `Diagnosis` with one, or the folder of a saved run.
        after: another one, of the same training with a change.
        more: later ones; each is compared with the first.

    Raises:
        ArgumentError: one is nothing of these, or holds no step of a loop.
        RunFormatError: a folder is damaged.
    """
    given = (before, after, *more)
    runs = [_run(one) for one in given]
    names = _names(given, runs)
    return apart(lambda: _compared(names, runs))


def _run(given: Any) -> Run:
    run = given.run if isinstance(given, Diagnosis) else recorded_run(given)
    if run is None:
        what = f"{given!r}" if isinstance(given, str | Path) else f"a {type(given).__name__}"
        raise ArgumentError(f"{what} is no recorded run: give a Run, or the folder of a saved one")
    if run.steps().drop_nulls("wait_s").is_empty():
        name = printable(run.settings.name or "a run")
        raise ArgumentError(f"{name} has no step of a loop: nothing of it can be compared")
    return run


def _names(given: tuple[Any, ...], runs: list[Run]) -> tuple[str, ...]:
    """Name each run by its folder, or what it recorded; those that are alike by their number."""
    names = []
    for place, (one, run) in enumerate(zip(given, runs, strict=True), 1):
        name = Path(one).name if isinstance(one, str | Path) else run.settings.name
        names.append(printable(name or f"run {place}"))
    if len(set(names)) < len(names):
        pair = len(names) == 2  # noqa: PLR2004 - a pair
        numbered = [f"{name} ({place})" for place, name in enumerate(names, 1)]
        names = ["before", "after"] if pair else numbered
    return tuple(names)


def _compared(names: tuple[str, ...], runs: list[Run]) -> Comparison:
    first, *later = blocks = [_blocks(run) for run in runs]
    rows = [(number, *row) for number, one in enumerate(later, 1) for row in _changes(first, one)]
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
        loops=tuple({part: float(one.of(part).mean()) for part in one.loop} for one in blocks),
    )


class _Blocks(NamedTuple):
    """A run in blocks of consecutive steps."""

    samples: np.ndarray
    """Of each block, shape (blocks,)."""
    loop: dict[tuple[str, str], np.ndarray]
    """Seconds of each part of the loop, by name and kind, of each block."""
    workers: dict[tuple[str, str], np.ndarray]
    """Seconds a sample of the workers' stages, in as many parts of the recorded batches."""
    counted: bool
    """Whether the samples of a batch are known; else a batch counts as one."""
    others_share: float
    """Share (0 to 1) of the cores that other processes had."""

    def of(self, part: tuple[str, str]) -> np.ndarray:
        """Return the seconds a sample of a part of the loop; 0 where there is no such part."""
        took_s: np.ndarray = self.loop.get(part, np.zeros(len(self.samples))) / self.samples
        return took_s

    @property
    def loop_s(self) -> np.ndarray:
        """Seconds a sample."""
        whole: np.ndarray = np.sum([*self.loop.values()], axis=0) / self.samples
        return whole

    @property
    def speed(self) -> np.ndarray:
        """Samples a second: one over the mean, and around it how much each block adds to it."""
        mean_s = self.loop_s.mean()
        around: np.ndarray = 1 / mean_s - (self.loop_s - mean_s) / mean_s**2
        return around

    @property
    def stalled(self) -> np.ndarray:
        """Share of the loop's time in stalls: that of all, and around it as for `speed`."""
        stall_s, mean_s = self.of(("stall", "stall")), self.loop_s.mean()
        whole = stall_s.mean() / mean_s
        around: np.ndarray = whole + (stall_s - whole * self.loop_s) / mean_s
        return around


def _blocks(run: Run) -> _Blocks:
    steps = run.steps().drop_nulls(["wait_s", "start_ns"])
    stalls = run.stalls()
    workers = max(run.settings.num_workers, 1) * max(steps["rank"].n_unique(), 1)
    many = max(min(_BLOCKS, steps.height // workers), 1)
    batches = run.samples().group_by(_BATCH).len("samples").sort(_BATCH)
    median: Any = batches["samples"].median()
    size = run.settings.batch_size or (int(median) if median else None)
    cut = steps.sort("start_ns").with_columns(block=_block_of(many))
    loop: dict[tuple[str, str], np.ndarray] = {}
    for block, mine in cut.partition_by("block", as_dict=True, maintain_order=True).items():
        here = stalls.join(mine.select("rank", "step"), on=["rank", "step"], how="semi")
        time = loop_breakdown(mine, here, run.side_spans)
        for name, kind, part_s in time.pieces() if time else ():
            loop.setdefault((name, kind), np.zeros(many))[int(block[0])] = part_s
    samples = np.bincount(cut["block"].to_numpy(), minlength=many) * (size or 1)
    others = find_saturated(run).others_share or 0.0
    stages = _stages(run, batches.with_columns(block=_block_of(many)), many)
    return _Blocks(samples.astype(float), loop, stages, bool(size), others)


_BATCH: Final = ["rank", "epoch", "batch"]


def _block_of(many: int) -> pl.Expr:
    """Return the block of each row, of so many of the same size."""
    return pl.int_range(pl.len()) * many // pl.len()


def _stages(run: Run, batches: pl.DataFrame, many: int) -> dict[tuple[str, str], np.ndarray]:
    """Return the seconds a sample of each stage, in each block; the longest stage first."""
    took_s = ((pl.col("end_ns") - pl.col("start_ns")) / 1e9).alias("took_s")
    each = (
        run.work.select(*_BATCH, pl.col("stage", "kind").cast(pl.String), took_s)
        .join(batches.select(*_BATCH, "block"), on=_BATCH)
        .group_by("stage", "kind", "block")
        .agg(pl.col("took_s").sum())
        .join(batches.group_by("block").agg(pl.col("samples").sum()), on="block")
    )
    found: dict[tuple[str, str], np.ndarray] = {}
    for stage, kind, block, part_s, of in each.iter_rows():
        found.setdefault((stage, kind), np.zeros(many))[block] = part_s / of
    return dict(sorted(found.items(), key=lambda one: (-one[1].sum(), one[0])))


def _changes(first: _Blocks, later: _Blocks) -> Iterator[tuple[Any, ...]]:
    """Rows of `CHANGES` without the run."""
    whole_s = float(first.loop_s.mean())
    noise = _moved_by_others(first.others_share, later.others_share)
    speed = _change(SPEED, "loop", first.speed, later.speed, _DRIFT / whole_s, noise)
    yield speed
    yield _change(STALLS, "stall", first.stalled, later.stalled, _DRIFT, noise)
    *loop, _ = _change(LOOP, "loop", first.loop_s, later.loop_s, _DRIFT * whole_s, noise)
    yield *loop, speed[-1]  # the same quantity, upside down: one answer for both
    for part in dict.fromkeys([*first.loop, *later.loop]):
        a_s, b_s = first.of(part), later.of(part)
        if max(a_s.mean(), b_s.mean()) >= _SMALLEST * whole_s:
            yield _change(f"{part[0]}_s", part[1], a_s, b_s, _DRIFT * whole_s, noise)
    none = np.zeros(1)
    made_s = sum(float(one.mean()) for one in first.workers.values())
    for part in dict.fromkeys([*first.workers, *later.workers]):
        a_s, b_s = first.workers.get(part, none), later.workers.get(part, none)
        if max(a_s.mean(), b_s.mean()) >= _SMALLEST * made_s:
            own_s = _STAGE_DRIFT * float(max(a_s.mean(), b_s.mean()))
            drift_s = min(max(own_s, _LEAST_DRIFT * made_s), _DRIFT * made_s)
            yield _change(f"workers/{part[0]}_s", part[1], a_s, b_s, drift_s, noise)


def _moved_by_others(first: float, later: float) -> float:
    """Return by what share (0 to 1) of itself other processes may have moved a measure.

    They moved both runs, by as much as they left of the cores, so what counts is how far that
    differs: beside the other ranks of its node a rank has always most of the cores against it.

    Args:
        first: share (0 to 1) of the cores that they had in the first run.
        later: the same of the later one.
    """
    low, high = min(first, later), max(first, later)
    return max((high - low) / (1 - low) if low < 1 else 0.0, _BURSTS * high)


def _change(  # noqa: PLR0913, PLR0917 - one row
    measure: str, kind: str, before: np.ndarray, after: np.ndarray, drift: float, noise: float
) -> tuple[Any, ...]:
    """Compare one measure.

    Args:
        measure: its name.
        kind: of its stage.
        before: its value in each block of the first run.
        after: the same of the later one.
        drift: what a machine may move it by, in its own unit.
        noise: by what share (0 to 1) of itself other processes may have moved it.
    """
    first, later = float(before.mean()), float(after.mean())
    change = later - first
    drift = max(drift, noise * max(first, later))
    if min((len(one) for one in (before, after) if one.any()), default=0) < _FEWEST:
        return measure, kind, first, later, change, None, None, False
    known = [one for one in (before, after) if len(one) > 1]
    errors = [float(one.var(ddof=1)) / len(one) for one in known]
    # Welch and Satterthwaite's degrees of freedom
    parts = sum(error**2 / (len(one) - 1) for error, one in zip(errors, known, strict=True))
    free = max(int(sum(errors) ** 2 / parts), 1) if parts else min(map(len, known)) - 1
    reach = t_quantile(free) * math.sqrt(sum(errors))
    low, high = change - reach, change + reach
    return measure, kind, first, later, change, low, high, low > drift or high < -drift


_SETTINGS: Final = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers")


def _differing(first: Run, other: Run) -> Iterator[str]:
    """Say which settings, machine, versions and data are not the same."""
    before, after = (
        {
            **{name: getattr(run.settings, name) for name in _SETTINGS},
            "simulated step": run.settings.simulated_step_s,
            "device": run.device or "CPU",
        }
        for run in (first, other)
    )
    pairs = [(name, before[name], after[name]) for name in before]
    names = dict.fromkeys([*first.machine, *other.machine])
    pairs += [(name, first.machine.get(name), other.machine.get(name)) for name in names]
    for name, old, new in pairs:
        if old != new:
            yield f"{name.replace('_', ' ')}: {printable(str(old))} → {printable(str(new))}"
    a, b = _data(first), _data(other)
    for name in a:
        if a[name] and b[name] and abs(a[name] - b[name]) > _DRIFT * max(a[name], b[name]):
            yield f"{name}: {a[name]:,.3g} → {b[name]:,.3g}"


def _data(run: Run) -> dict[str, float]:
    samples = run.samples()
    pixels = (pl.col("width").cast(pl.Float64) * pl.col("height") / 1e6).median()
    size, megapixels = samples.select(pl.col("bytes").median(), pixels.alias("pixels")).row(0)
    return {"bytes a sample": size or 0.0, "megapixels a sample": megapixels or 0.0}


def _notes(names: tuple[str, ...], blocks: list[_Blocks]) -> Iterator[str]:
    few = [name for name, one in zip(names, blocks, strict=True) if len(one.samples) < _FEWEST]
    if few:
        yield f"too few steps in {', '.join(few)} to tell a difference from noise: record more"
    if not all(one.counted for one in blocks):
        yield "how many samples a batch has is not known: a batch counts as one sample"
    busy = [
        f"{share(one.others_share)} in {name}"
        for name, one in zip(names, blocks, strict=True)
        if one.others_share >= OTHERS
    ]
    if busy:
        yield f"other processes had cores ({', '.join(busy)}): small changes may be theirs"
    of = count(len(blocks[0].samples), "block")
    yield (
        f"the runs were not made next to each other: changes below {share(_DRIFT)} of what a "
        f"sample takes are not told apart, nor those of a worker's stage below "
        f"{share(_STAGE_DRIFT)} of it or {share(_LEAST_DRIFT)} of the worker's time; "
        f"intervals from {of} of steps"
    )
