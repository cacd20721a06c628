"""Reasons for stalls: events at some steps, tested against chance.

A reason is a slow sample or worker, a new file or epoch, or garbage. `patterns` chooses among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.attribution import covered_s, find_stalls, hidden_known
from stallscope.model.batch_times import Quartiles, compare_workers, worker_quartiles
from stallscope.model.thresholds import CHANCE, MENTIONED, MOSTLY, STALL_S, STANDS_OUT, USUAL
from stallscope.stages import GARBAGE
from stallscope.stats import hypergeometric_tail, rank_sum_tail
from stallscope.units import MOST_NAMED, count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BATCH: Final = ("epoch", "batch")
_TABLES: Final = ("steps", "parts", "samples", "deliveries", "side_spans")
FENCE: Final = 3.0
"""Least distance from the median, in quartile distances, of a wait that stands out beside
`STANDS_OUT` (J. Tukey's far out) ..."""
ABOVE: Final = 1.5
"""... with at least this ratio to the median."""
SHARD: Final = 4.0
"""Least mean number of successive samples of a file that is a shard."""
CLEARLY: Final = 2.0
"""Least ratio of a frequency, or of a time, to that elsewhere to be no coincidence: of stalls at
marked steps, of pairs at a period, of a file's first sample."""
A_THIRD: Final = 1 / 3
"""Least share of a stall that a slow worker's extra time explains: where no worker is fast enough,
the loop waits for the slow worker, too."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tables about the steps of one rank or of several, named by their columns.

    The steps are those after the warm-up, in order; the spans are the training loops'.
    """

    steps: pl.DataFrame
    parts: pl.DataFrame
    samples: pl.DataFrame
    deliveries: pl.DataFrame
    side_spans: pl.DataFrame
    num_workers: int = 0
    """Worker processes of each rank's loader; 0: the main process loads."""

    def by_rank(self) -> Iterator[tuple[int, Evidence]]:
        """Yield each rank with its own rows."""
        for rank in self.steps["rank"].unique().sort():
            own = {name: getattr(self, name).filter(rank=rank) for name in _TABLES}
            yield rank, replace(self, **own)


class StepSeries:
    """Steps of one rank; arrays have a value per step, NaN where it was not observed.

    Attributes:
        keys: `step, epoch, batch` of each step.
        epoch: its epoch.
        batch: its batch.
        worker: worker that made the batch; -1 for the main process.
        waits_from_ns: begin of the wait, with the loader's restart before it; 0 where unknown.
        has_batch_ns: end of the wait; 0 where unknown.
        restart_s: restart of the loader before an epoch's first step; 0 for other steps.
        stall_s: length of the stall; 0 where the loop did not stall.
        busy_s: time until the next wait; plus, for a device that works behind the host, the part of
            the wait in which the device had work.
        made_s: time to make the batch in its worker.
        sent_s: time to send the batch, in a thread of the worker's.
        ready_ns: time when the batch was sent; when it was made, where sending was not recorded.
        num_workers: worker processes; 0: the main process loads.
    """

    def __init__(self, evidence: Evidence) -> None:
        waits = find_stalls(evidence.steps).select("step", "stall_s").unique("step", keep="first")
        steps = evidence.steps.join(waits, on="step", how="left", maintain_order="left")
        steps = hidden_known(steps).with_columns(
            pl.col("restart_s", "stall_s", "hidden_s").fill_null(0.0),
            pl.col("start_ns", "end_ns").fill_null(0),
            pl.col("worker").fill_null(-1),
            used_s=pl.sum_horizontal("step_s", "other_s"),
        )
        column = {name: steps[name].to_numpy() for name in steps.columns}
        self.keys = steps.select("step", *BATCH)
        self.epoch, self.batch, self.worker = (column[name] for name in (*BATCH, "worker"))
        self.restart_s, self.stall_s = column["restart_s"], column["stall_s"]
        restart_ns = np.rint(self.restart_s * 1e9).astype(np.int64)
        self.waits_from_ns = column["start_ns"] - restart_ns
        self.has_batch_ns = column["end_ns"]
        self.busy_s = column["used_s"] + column["hidden_s"]
        times = evidence.deliveries.select(
            *BATCH,
            made_s=(pl.col("made_ns") - pl.col("taken_ns")) / 1e9,
            sent_s=(pl.col("sent_ns") - pl.col("pickle_ns")) / 1e9,
            ready_ns=pl.coalesce("sent_ns", "made_ns"),
        )
        names = ("made_s", "sent_s", "ready_ns")
        self.made_s, self.sent_s, self.ready_ns = of_batches(self.keys, times, *names)
        self.num_workers = evidence.num_workers

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.keys.height

    @property
    def is_whole(self) -> np.ndarray:
        """Mask of batches that characterise their worker: recorded, and not an epoch's last.

        The last batch may have fewer samples, and is the same worker's in every epoch.
        """
        whole: np.ndarray = np.isfinite(self.made_s) & (self.batch < self.batch.max(initial=0))
        return whole

    @property
    def typical_s(self) -> float:
        """Median time to use a batch."""
        return float(np.median(self.busy_s)) if self.size else 0.0


def of_batches(keys: pl.DataFrame, table: pl.DataFrame, *columns: str) -> list[np.ndarray]:
    """Return columns of a table of batches, at each batch's step."""
    rows = table.unique(BATCH, keep="first", maintain_order=True)
    joined = keys.join(rows, on=BATCH, how="left", maintain_order="left")
    return [joined[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]


@dataclass(frozen=True, eq=False)
class Residual:
    """Stalls that are not yet explained."""

    seconds: np.ndarray
    """Stall length at each step, seconds; 0 without a stall, or where explained."""
    free: np.ndarray
    """True for each step that is not yet explained."""

    @property
    def flags(self) -> np.ndarray:
        """True for each unexplained stall."""
        return self.seconds > 0

    def without(self, explained: np.ndarray) -> Residual:
        """Return the residual without these steps."""
        return Residual(np.where(explained, 0.0, self.seconds), self.free & ~explained)

    def levels(self) -> list[np.ndarray]:
        """Return selections of steps to test: all stalls, and only those far above the median.

        Where nearly every step waits, or small waits lie between long ones, the reason of the long
        waits shows only among them.
        """
        lengths = self.seconds[self.flags]
        if not lengths.size:
            return []
        low, middle, high = (float(limit) for limit in np.quantile(lengths, (0.25, 0.5, 0.75)))
        fence = max(middle + FENCE * (high - low), ABOVE * middle)
        limits = (0.0, min(fence, STANDS_OUT * middle), float(np.quantile(lengths, USUAL)) / 2)
        chosen = {mask.tobytes(): mask for mask in (self.seconds > limit for limit in limits)}
        return [mask for mask in chosen.values() if mask.any()]

    def with_rounds(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Add the following stalls of each start, within `length` steps, that are not longer."""
        flags: np.ndarray = starts & self.flags
        limits = np.where(flags, self.seconds, 0.0)
        for _ in range(length - 1):
            limits = np.append(0.0, limits[:-1])
            flags = flags | (self.flags & (self.seconds <= limits))
        return flags


@dataclass(frozen=True, eq=False)
class Explained:
    """Explanation of the stalls at some steps."""

    code: str
    """Kind of pattern."""
    subject: str
    """Identity within its kind: a worker, the name of a part, a period."""
    title: str
    all: np.ndarray
    """Mask of the steps that this explains."""
    named: np.ndarray
    """Mask of the steps that the title speaks of; the other explained steps follow these."""
    chance: float | None
    """P-value; None where no reason is claimed."""


@dataclass(frozen=True, eq=False)
class Reason:
    """Event at some steps as a possible reason; arrays have a value per step."""

    code: str
    marked: np.ndarray
    title: Callable[[np.ndarray, np.ndarray], str]
    """Function that returns a sentence, from a mask of its steps and the stall at each step."""
    testable: np.ndarray | None = None
    """Mask of the steps where it could be observed; None: all."""
    enough_s: np.ndarray | None = None
    """Longest delay of the loop by it at each step, seconds; None: unknown."""
    enough: float = MOSTLY
    """Least share of a stall that the delay has to cover."""
    subject: str = ""
    """Identity within its kind."""
    fewest: int = 3
    reach: int = 1
    """Steps after the event whose stalls belong to it, if they are not longer."""
    tried: int = 1
    """Number of tests of this kind, for the correction of the p-value."""
    doubt: float = 0.0
    """P-value of the event itself, added to that of the coincidence."""
    measured: bool = False
    """True: measured only at stalls, so that only `doubt` counts."""

    def chance_at(self, stalled: np.ndarray, free: np.ndarray) -> float:
        """Return the probability of the coincidence by chance, among the free steps."""
        if self.measured:
            return 0.0
        testable = free if self.testable is None else free & self.testable
        total, marked, drawn, both = (
            int(np.count_nonzero(mask & testable))
            for mask in (testable, self.marked, stalled, self.marked & stalled)
        )
        if both * (total - marked) < CLEARLY * (drawn - both) * marked:
            return 1.0
        return hypergeometric_tail(total=total, marked=marked, drawn=drawn, both=both)


def explain(reason: Reason, left: Residual, tests: int) -> Explained | None:
    """Return the steps that a reason explains, of `tests` tested reasons; None: not significant."""
    levels, best_s, best = left.levels(), -1.0, None
    for stalled in levels:
        chance = reason.chance_at(stalled, left.free) * len(levels) * reason.tried + reason.doubt
        marked = stalled & reason.marked
        if reason.enough_s is not None:
            marked = marked & (reason.enough_s >= reason.enough * left.seconds)
        explained = left.with_rounds(marked, reason.reach)
        enough = np.count_nonzero(stalled & reason.marked & explained) >= reason.fewest
        explained_s = float(left.seconds[explained].sum())
        if enough and chance * tests < CHANCE and explained_s > best_s:
            best_s, best = explained_s, (explained, chance * tests)
    if best is None:
        return None
    explained, chance = best
    named = explained & reason.marked
    title = reason.title(named, left.seconds)
    return Explained(reason.code, reason.subject, title, explained, named, chance)


def _wait(named: np.ndarray, stall_s: np.ndarray) -> str:
    """Return the begin of a sentence: "3 steps wait 20 ms" (the median)."""
    number = int(np.count_nonzero(named))
    return f"{count(number, 'step')} wait{'s' * (number == 1)} {_median(stall_s[named])}"


def _median(values: np.ndarray) -> str:
    return seconds(float(np.median(values)))


def ordinal(number: int) -> str:
    """Return a number as 1st, 2nd, 3rd, 4th, 11th, 21st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number // 10 % 10 == 1
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"


def wait_reasons(loop: StepSeries, evidence: Evidence) -> list[Reason]:
    """Return the possible reasons of stalls, the most specific first."""
    return [
        *_garbage(loop, evidence),
        *_epochs(loop),
        *_new_files(loop, evidence.samples),
        *_slow_samples(loop, evidence.samples),
        *_slow_workers(loop),
    ]


def _garbage(loop: StepSeries, evidence: Evidence) -> list[Reason]:
    """Return garbage collections of the main process and of the workers."""
    stage, is_loop = pl.col("stage").cast(pl.String), pl.col("worker").is_null()
    collected = evidence.side_spans.filter(stage == GARBAGE.name, is_loop)
    here_s = covered_s(collected, loop.waits_from_ns, loop.has_batch_ns)
    exposed = evidence.parts.filter(pl.col("part") == GARBAGE.name)
    totals = exposed.group_by("step").agg(pl.col("exposed_s").sum())
    rows = loop.keys.join(totals, on="step", how="left", maintain_order="left")
    there_s = rows["exposed_s"].fill_null(0.0).to_numpy()
    there = (loop.stall_s > 0) & (there_s >= MOSTLY * loop.stall_s)
    testable = np.isfinite(loop.made_s)

    def title(took_s: np.ndarray, where: str) -> Callable[[np.ndarray, np.ndarray], str]:
        takes = f"garbage collection {where} takes"
        return lambda named, stall_s: (
            f"{_wait(named, stall_s)}: {takes} {_median(took_s[named])} of it"
        )

    here = title(here_s, "in the main process")
    code = "garbage_collection"
    return [
        Reason(code, here_s > MOSTLY * STALL_S, here, subject="main process", enough_s=here_s),
        Reason(
            code,
            there,
            title(there_s, "where the batch is made"),
            subject="workers",
            enough_s=there_s,
            measured=True,  # the p-value compares times of batches instead
            doubt=rank_sum_tail(loop.made_s[testable & there], loop.made_s[testable & ~there]),
        ),
    ]


def _epochs(loop: StepSeries) -> list[Reason]:
    """Return the first steps of epochs, with the waits right after them."""
    first = np.append(loop.batch[:1] == 0, loop.epoch[1:] != loop.epoch[:-1])

    def title(named: np.ndarray, stall_s: np.ndarray) -> str:
        waits_s, restart_s = stall_s[named], float(np.median(loop.restart_s[named]))
        begins = f"{count(waits_s.size, 'epoch')} begin with a wait of {_median(waits_s)}"
        noticed = restart_s >= MENTIONED * float(np.median(waits_s))
        restart = f" (iter(loader) takes {seconds(restart_s)} of it)" if noticed else ""
        return f"{begins}: no batch is ready{restart}"

    round_ = max(loop.num_workers, 1)
    return [Reason("epoch_boundary", first, title, fewest=2, reach=round_)]


def _new_files(loop: StepSeries, samples: pl.DataFrame) -> list[Reason]:
    """Return batches in which a worker opens a new file of many samples (a shard)."""
    # A file that is opened once for many samples gives its path only to the first
    inherited = pl.col("path").forward_fill().over("epoch", "worker")
    ordered = samples.sort("epoch", "worker", "start_ns", maintain_order=True)
    named = ordered.with_columns(path=inherited).drop_nulls("path")
    changes = pl.col("path") != pl.col("path").shift(1)
    seen = named.with_columns(new=changes.over("epoch", "worker", mapping_strategy="group_to_rows"))
    opened = int(seen["new"].sum())
    if not opened or seen.height < SHARD * opened:
        return []
    per_batch = seen.group_by(BATCH).agg(pl.col("new").any(), pl.col("new").count().alias("seen"))
    marked, of_batch = of_batches(loop.keys, per_batch, "new", "seen")
    first_s, rest_s = (
        float(seen.filter(which)["total_s"].median() or 0.0)  # type: ignore[arg-type]  # floats
        for which in (pl.col("new"), ~pl.col("new"))
    )
    takes = f": its first one takes {seconds(first_s)}, the others {seconds(rest_s)}"

    def title(named: np.ndarray, stall_s: np.ndarray) -> str:
        each = f"{seen.height / (opened + 1):.0f} samples"
        about = f"{_wait(named, stall_s)} where a worker opens a new file of about {each}"
        return about + takes if first_s >= CLEARLY * rest_s else about

    return [Reason("shard_boundary", marked > 0, title, testable=of_batch > 0)]


def slow_sample_limit(took_s: np.ndarray) -> tuple[float, float]:
    """Return the median time of samples, and the least time of a slow sample."""
    median_s, usual_s = (float(np.quantile(took_s, share)) for share in (0.5, USUAL))
    far_s = median_s + STANDS_OUT * (usual_s - median_s)
    return median_s, max(STANDS_OUT * median_s, far_s)


def _slow_samples(loop: StepSeries, samples: pl.DataFrame) -> list[Reason]:
    """Return batches with a sample that takes far longer than usual."""
    if samples.is_empty():
        return []
    median_s, limit_s = slow_sample_limit(samples["total_s"].to_numpy())
    is_slow = pl.col("total_s") > limit_s
    slow = samples.filter(is_slow)
    per_batch = samples.group_by(BATCH).agg(
        excess_s=(pl.col("total_s").filter(is_slow) - median_s).sum()
    )
    [excess_s] = of_batches(loop.keys, per_batch, "excess_s")

    def title(named: np.ndarray, stall_s: np.ndarray) -> str:
        batches = loop.keys.filter(pl.Series(named))
        these = slow.join(batches, on=BATCH, how="semi").sort("total_s", descending=True)
        longer = f"{_median(these['total_s'].to_numpy())}; usual is {seconds(median_s)}"
        return f"{_wait(named, stall_s)} for a single slow sample ({longer}): {_names(these)}"

    testable = np.isfinite(excess_s)
    return [
        Reason("slow_samples", excess_s > 0, title, testable=testable, enough_s=excess_s, fewest=2)
    ]


def _names(samples: pl.DataFrame) -> str:
    about = samples.select("index", "path", *BATCH, "sample").unique(
        ["index", "path"] if samples["index"].null_count() == 0 else [*BATCH, "sample"],
        keep="first",
        maintain_order=True,
    )
    named = []
    for row in about.head(MOST_NAMED).iter_rows(named=True):
        place = f"sample {row['sample']} of batch {row['batch']}"
        name = place if row["index"] is None else f"index {row['index']}"
        named.append(name if row["path"] is None else f"{name} ({PurePath(row['path']).name})")
    rest = about.height - len(named)
    if rest:
        return f"{', '.join(named)} and {rest} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _slow_workers(loop: StepSeries) -> list[Reason]:
    """Return the workers that are slower than the others, by the rule of the verdict."""
    testable = np.isfinite(loop.made_s)
    batches = pl.DataFrame({"worker": loop.worker, "batch": loop.batch, "made_s": loop.made_s})
    batches = batches.filter(pl.Series(testable & (loop.worker >= 0)))
    by_worker = {worker: Quartiles(*own) for worker, *own in worker_quartiles(batches).iter_rows()}
    reasons = []
    for speed in compare_workers(by_worker):
        worker = speed.worker
        if speed.slowness() < 1:
            continue
        own = testable & (loop.worker == worker)
        rest = testable & (loop.worker >= 0) & (loop.worker != worker)
        own_s, rest_s = loop.made_s[own & loop.is_whole], loop.made_s[rest & loop.is_whole]
        takes = (
            f"Worker {worker} is slow: its batches take {seconds(speed.batch_s)}, "
            f"those of the others {seconds(speed.others_s)}"
        )

        def title(named: np.ndarray, stall_s: np.ndarray, takes: str = takes) -> str:
            stalls = count(int(np.count_nonzero(stall_s)), "stall")
            return f"{takes}; {np.count_nonzero(named)} of {stalls} wait for it"

        reasons.append(
            Reason(
                "slow_worker",
                own,
                title,
                subject=str(worker),
                testable=own | rest,
                enough_s=loop.made_s - speed.others_s,
                enough=A_THIRD,
                tried=len(by_worker),
                doubt=len(by_worker) * rank_sum_tail(own_s, rest_s),
            )
        )
    return reasons
