"""What happened at some steps, tested for being the reason why the loop stalled there.

A slow sample or worker, a new file or epoch, garbage, a part of the step that has a name. That one
thing comes with another says little where both are frequent, so it is asked how probable so many
coincidences are when neither has to do with the other; and it must have taken long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from stallscope.model.lifecycle import covered_s
from stallscope.model.step_series import rhythm
from stallscope.model.thresholds import (
    CAUSE_SHARE,
    CHANCE,
    LONG,
    LONGER_S,
    SLOW_SAMPLE,
    SLOW_WORKER,
    USUAL_SAMPLE,
)
from stallscope.stages import (
    ANOTHER_LOADER,
    BACKWARD,
    END_OF_EPOCH,
    FORWARD,
    GARBAGE,
    OPTIMIZER,
    OTHER,
    STEP,
    UNTIL_BACKWARD,
)
from stallscope.stats import hypergeometric_tail, rank_sum_tail
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.model.step_series import Evidence, Residual, StepSeries


LIFT: Final = 2.0
"""Where a cause is at work, stalls are so many times as frequent as elsewhere; so most of
it is no coincidence."""
MOSTLY: Final = 0.8
"""This share of the steps has a rhythm when all are said to."""
THROUGHOUT: Final = 0.5
"""A rhythm that fills less of the run is there only at times."""

SHARD: Final = 4.0
"""A file is a shard when it gives so many samples in a row, on average."""
CLEARLY: Final = 2.0
"""From this ratio on, what a file's first sample takes is said beside what the others take."""
NAMED: Final = 3
"""So many samples are named in a sentence."""
_BATCH: Final = ("epoch", "batch")
A_THIRD: Final = 1 / 3
"""What a slow worker takes longer than the others is at least so much of a stall: where no worker
is quick enough, the loop waits for the slow one all the same."""
NOTICED: Final = 0.1
"""From this share of a wait on, it is said what the loader's restart took of it."""
REST: Final = (OTHER.name, STEP.name)
"""What lies outside of all parts that have a name."""
MODEL: Final = (FORWARD.name, UNTIL_BACKWARD.name, BACKWARD.name, OPTIMIZER.name)
"""Parts of the step itself: they are told beside a rhythm, and are no reason by themselves."""
CALLED: Final = {
    ANOTHER_LOADER.name: "a loop over another loader (validation?)",
    END_OF_EPOCH.name: "the end of the epoch (its workers end, unless they are persistent)",
}
"""What parts are called that are not the user's own."""


@dataclass(frozen=True, eq=False)
class ExplainedStalls:
    """Steps at which the loop stalled, and why."""

    code: str
    """Kind of pattern."""
    subject: str
    """What tells it from others of its kind: a worker, the name of a part, a period."""
    title: str
    """One sentence with numbers."""
    explained: np.ndarray
    """Of each step, whether this is why the loop stalled there."""
    named: np.ndarray
    """Of each step, whether it is one of those that the title speaks of; the others that are
    explained follow these."""
    chance: float | None
    """Probability that this is an accident; None where nothing is claimed."""
    period: int | None = None
    """Steps from one time to the next; None where there is no rhythm."""


@dataclass(frozen=True, eq=False)
class Stops:
    """The steps that a title speaks of."""

    named: np.ndarray
    """Of each step, whether the title speaks of it."""
    seconds: np.ndarray
    """For how long the loop stalled at each step."""
    period: int | None
    """Steps from one time to the next."""

    @property
    def count(self) -> int:
        """How many steps."""
        return int(np.count_nonzero(self.named))

    @property
    def typical(self) -> str:
        """For how long the loop stalled there (median), in words."""
        return self.median(self.seconds)

    def median(self, values: np.ndarray) -> str:
        """Median over these steps, in words."""
        return seconds(float(np.median(values[self.named])))

    def subject(self, one: str, several: str) -> str:
        """As in "Every 4th step waits" or "3 steps wait".

        Args:
            one: the verb for one step.
            several: the verb for several.
        """
        if self.period is None:
            return f"{count(self.count, 'step')} {one if self.count == 1 else several}"
        at_times = self.count * self.period < THROUGHOUT * self.named.size
        every = f"very {ordinal(self.period)} step {one}"
        return f"At times e{every}" if at_times else f"E{every}"


@dataclass(frozen=True, eq=False)
class PatternCause:
    """Something that happened at some steps; arrays with one value a step."""

    code: str
    """Kind of pattern."""
    marked: np.ndarray
    """The steps at which it happened."""
    title: Callable[[Stops], str]
    """One sentence about the steps that it explains."""
    known: np.ndarray | None = None
    """The steps of which it is known whether it happened; None: all."""
    enough_s: np.ndarray | None = None
    """For how long it can have held up the loop at each step; None: not known."""
    enough: float = CAUSE_SHARE
    """The share of a stop that it must be able to account for."""
    subject: str = ""
    """What tells it from others of its kind."""
    fewest: int = 3
    """It explains at least so many steps, or nothing."""
    reach: int = 1
    """A stall within so many steps from there belongs to it, when it is not longer."""
    tried: int = 1
    """Of how many of its kind it is the best; they share the doubt."""
    doubt: float = 0.0
    """Chance of being wrong that is there before any step is looked at."""
    measured: bool = False
    """It was measured only where the loop stalled, so that only `doubt` speaks."""

    def chance_at(self, stalled: np.ndarray, free: np.ndarray) -> float:
        """The chance that it has nothing to do with the stalls.

        Args:
            stalled: the steps at which the loop stalled.
            free: the steps that nothing else explains.
        """
        if self.measured:
            return 0.0
        known = free if self.known is None else free & self.known
        total, marked, drawn, both = (
            int(np.count_nonzero(mask & known))
            for mask in (known, self.marked, stalled, self.marked & stalled)
        )
        if both * (total - marked) < LIFT * (drawn - both) * marked:
            return 1.0
        return hypergeometric_tail(total=total, marked=marked, drawn=drawn, both=both)

    def explained_of(self, stalled: np.ndarray, left: Residual) -> np.ndarray:
        """The steps that it explains, of those at which the loop stalled."""
        here = stalled & self.marked
        if self.enough_s is not None:
            here = here & (self.enough_s >= self.enough * left.seconds)
        return left.with_rounds(here, self.reach)


def explain(cause: PatternCause, left: Residual, tests: int) -> ExplainedStalls | None:
    """What one of so many causes tried explains of the rest; None: nothing for sure."""
    levels = left.levels()
    candidates = []
    for stalled in levels:
        alone = cause.chance_at(stalled, left.free) * len(levels) * cause.tried + cause.doubt
        explained = cause.explained_of(stalled, left)
        enough = np.count_nonzero(stalled & cause.marked & explained) >= cause.fewest
        if enough and alone * tests < CHANCE:
            candidates.append((float(left.seconds[explained].sum()), alone * tests, explained))
    if not candidates:
        return None
    _, chance, explained = max(candidates, key=lambda found: found[0])
    period = period_of(explained, left, chance)
    named = explained & cause.marked
    title = cause.title(Stops(named, left.seconds, period))
    return ExplainedStalls(cause.code, cause.subject, title, explained, named, chance, period)


def period_of(explained: np.ndarray, left: Residual, chance: float) -> int | None:
    """The rhythm of these steps, if they have one for sure."""
    found = rhythm(explained, left.free)
    if found is None or found.chance + chance >= CHANCE:
        return None
    return found.period if found.starts.size >= MOSTLY * np.count_nonzero(explained) else None


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number // 10 % 10 == 1
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"


def slow_sample_limit(took_s: np.ndarray) -> tuple[float, float]:
    """The median of these samples' times, and the time from which on a sample is slow."""
    median_s, usual_s = (float(np.quantile(took_s, share)) for share in (0.5, USUAL_SAMPLE))
    far_s = median_s + SLOW_SAMPLE * (usual_s - median_s)
    return median_s, max(SLOW_SAMPLE * median_s, far_s)


def slow_samples(loop: StepSeries, samples: pl.DataFrame) -> list[PatternCause]:
    """Batches with a sample that takes far longer than samples do."""
    if samples.is_empty():
        return []
    took_s = samples["total_s"].to_numpy()
    median_s, limit_s = slow_sample_limit(took_s)
    slow = samples.filter(pl.col("total_s") > limit_s)
    excess = pl.col("total_s").filter(pl.col("total_s") > limit_s) - median_s
    per_batch = samples.group_by(_BATCH).agg(excess_s=excess.sum())
    [excess_s] = loop.of_batches(per_batch, "excess_s")

    def title(stops: Stops) -> str:
        batches = loop.keys.filter(pl.Series(stops.named))
        these = slow.join(batches, on=_BATCH, how="semi").sort("total_s", descending=True)
        waits = f"{stops.subject('waits', 'wait')} {stops.typical} for a single slow sample"
        longer = seconds(float(np.median(these["total_s"].to_numpy())))
        return f"{waits} ({longer}; usual is {seconds(median_s)}): {_names(these)}"

    return [
        PatternCause(
            code="slow_samples",
            marked=excess_s > 0,
            title=title,
            known=np.isfinite(excess_s),
            enough_s=excess_s,
            fewest=2,
        )
    ]


def _names(samples: pl.DataFrame) -> str:
    about = samples.select("index", "path", *_BATCH, "sample").unique(
        ["index", "path"] if samples["index"].null_count() == 0 else [*_BATCH, "sample"],
        keep="first",
        maintain_order=True,
    )
    named = [_name(row) for row in about.head(NAMED).iter_rows(named=True)]
    more = about.height - len(named)
    if more:
        return f"{', '.join(named)} and {more} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _name(row: dict[str, object]) -> str:
    index, path = row["index"], row["path"]
    place = f"sample {row['sample']} of batch {row['batch']}"
    name = place if index is None else f"index {index}"
    return name if path is None else f"{name} ({PurePath(str(path)).name})"


def new_files(loop: StepSeries, samples: pl.DataFrame) -> list[PatternCause]:
    """Batches in which a worker comes to a new file that holds many samples (a shard)."""
    # Where a file is opened once for many samples, the first of them alone carries its name.
    inherited = pl.col("path").forward_fill().over("epoch", "worker")
    ordered = samples.sort("epoch", "worker", "start_ns", maintain_order=True)
    known = ordered.with_columns(path=inherited).drop_nulls("path")
    changes = pl.col("path") != pl.col("path").shift(1)
    told = known.with_columns(new=changes.over("epoch", "worker", mapping_strategy="group_to_rows"))
    opened = int(told["new"].sum())
    if not opened or told.height < SHARD * opened:
        return []
    per_batch = told.group_by(_BATCH).agg(pl.col("new").any(), pl.col("new").count().alias("seen"))
    marked, seen = loop.of_batches(per_batch, "new", "seen")

    def title(stops: Stops) -> str:
        waits = f"{stops.subject('waits', 'wait')} {stops.typical} where a worker opens a new file"
        return f"{waits} of about {told.height / (opened + 1):.0f} samples{_first_takes(told)}"

    return [PatternCause("shard_boundary", marked > 0, title, known=seen > 0)]


def _first_takes(told: pl.DataFrame) -> str:
    first_s, other_s = (
        float(told.filter(which)["total_s"].median() or 0.0)  # type: ignore[arg-type]  # floats
        for which in (pl.col("new"), ~pl.col("new"))
    )
    if first_s < CLEARLY * other_s:
        return ""
    return f": its first one takes {seconds(first_s)}, the others {seconds(other_s)}"


def wait_causes(loop: StepSeries, evidence: Evidence) -> list[PatternCause]:
    """All that may explain stalls, the most specific first."""
    samples = evidence.samples
    return [
        *_garbage(loop, evidence),
        *_epochs(loop),
        *new_files(loop, samples),
        *slow_samples(loop, samples),
        *_slow_workers(loop),
    ]


def _garbage(loop: StepSeries, evidence: Evidence) -> list[PatternCause]:
    """Garbage collections of the main process, and those of the workers."""
    here_s = _spent_s(evidence.side_spans, GARBAGE.name, loop.waits_from_ns, loop.has_batch_ns)
    exposed = evidence.parts.filter(pl.col("part") == GARBAGE.name)
    totals = exposed.group_by("step").agg(pl.col("exposed_s").sum())
    rows = loop.keys.join(totals, on="step", how="left", maintain_order="left")
    there_s = rows["exposed_s"].fill_null(0.0).to_numpy()
    there = (loop.stall_s > 0) & (there_s >= CAUSE_SHARE * loop.stall_s)
    known = np.isfinite(loop.made_s)
    return [
        PatternCause(
            code="garbage_collection",
            subject="main process",
            marked=here_s > LONGER_S / 2,
            title=lambda stops: _collects(stops, here_s, "in the main process"),
            enough_s=here_s,
        ),
        PatternCause(
            code="garbage_collection",
            subject="workers",
            marked=there,
            title=lambda stops: _collects(stops, there_s, "where the batch is made"),
            enough_s=there_s,
            measured=True,  # so it is asked whether these batches took longer to make
            doubt=rank_sum_tail(loop.made_s[known & there], loop.made_s[known & ~there]),
        ),
    ]


def _spent_s(
    spans: pl.DataFrame, stage: str, starts_ns: np.ndarray, ends_ns: np.ndarray
) -> np.ndarray:
    """How much of each window of time the training loop spent in a stage, seconds."""
    these = spans.filter(pl.col("stage").cast(pl.String) == stage, pl.col("worker").is_null())
    return covered_s(these, starts_ns, ends_ns)


def _collects(stops: Stops, took_s: np.ndarray, where: str) -> str:
    waits = f"{stops.subject('waits', 'wait')} {stops.typical}"
    return f"{waits}: garbage collection {where} takes {stops.median(took_s)} of it"


def _epochs(loop: StepSeries) -> list[PatternCause]:
    """The first steps of epochs, and those that wait right after them."""
    first = np.append(loop.batch[:1] == 0, loop.epoch[1:] != loop.epoch[:-1])

    def title(stops: Stops) -> str:
        waits_s = stops.seconds[stops.named]
        begins = f"{count(waits_s.size, 'epoch')} begin with a wait of"
        restart_s = float(np.median(loop.restart_s[stops.named]))
        noticed = restart_s >= NOTICED * float(np.median(waits_s))
        restart = f" (iter(loader) takes {seconds(restart_s)} of it)" if noticed else ""
        return f"{begins} {seconds(float(np.median(waits_s)))}: no batch is ready{restart}"

    round_ = max(loop.num_workers, 1)
    return [PatternCause("epoch_boundary", first, title, fewest=2, reach=round_)]


def _slow_workers(loop: StepSeries) -> list[PatternCause]:
    worker, known = loop.worker, loop.is_whole
    workers = np.unique(worker[known & (worker >= 0)]).tolist()
    usual_s = {one: float(np.median(loop.made_s[known & (worker == one)])) for one in workers}
    causes = []
    for one in workers:
        rest_s = [took_s for other, took_s in usual_s.items() if other != one]
        if rest_s and usual_s[one] >= SLOW_WORKER * float(np.median(rest_s)):
            causes.append(_slow_worker(loop, one, len(workers)))
    return causes


def _slow_worker(loop: StepSeries, slow: int, workers: int) -> PatternCause:
    worker, known = loop.worker, np.isfinite(loop.made_s)
    own = known & (worker == slow)
    rest = known & (worker >= 0) & (worker != slow)
    whole_s = loop.made_s[own & loop.is_whole], loop.made_s[rest & loop.is_whole]
    rest_s = float(np.median(whole_s[1]))

    def title(stops: Stops) -> str:
        stalls = int(np.count_nonzero(stops.seconds > 0))
        takes = f"its batches take {seconds(float(np.median(whole_s[0])))}"
        return (
            f"Worker {slow} is slow: {takes}, those of the others {seconds(rest_s)}; "
            f"{stops.count} of {count(stalls, 'stall')} wait for it"
        )

    return PatternCause(
        code="slow_worker",
        subject=str(slow),
        marked=own,
        title=title,
        known=own | rest,
        enough_s=loop.made_s - rest_s,
        enough=A_THIRD,
        tried=workers,
        doubt=workers * rank_sum_tail(*whole_s),
    )


def parts_s(loop: StepSeries, side_spans: pl.DataFrame) -> dict[str, np.ndarray]:
    """What each part of a step that has a name took, at each step; 0 where it did not happen."""
    spans = side_spans.filter(pl.col("kind").is_in(["step", "other"]))
    names = spans["stage"].cast(pl.String).unique().sort().to_list()
    return {
        name: _spent_s(spans, name, loop.has_batch_ns, loop.uses_until_ns)
        for name in names
        if name not in REST
    }


def step_causes(loop: StepSeries, parts: dict[str, np.ndarray]) -> list[PatternCause]:
    """All that may explain long steps, the most specific first."""
    garbage = [GARBAGE.name] if GARBAGE.name in parts else []
    named = [name for name in parts if name not in (*MODEL, *garbage)]
    causes = [_part(loop, "garbage_collection", name, parts[name], 1) for name in garbage]
    causes += [_part(loop, "named_part", name, parts[name], len(named)) for name in named]
    return [*causes, _ends(loop)]


def _part(loop: StepSeries, code: str, name: str, took_s: np.ndarray, tried: int) -> PatternCause:
    usual_s = float(np.median(took_s))
    called = CALLED.get(name, name)

    def title(stops: Stops) -> str:
        times = f"{times_longer(loop, stops.named)} times as long as usual"
        return f"{stops.subject('is', 'are')} {times}: {called} takes {stops.median(took_s)}"

    return PatternCause(
        code=code,
        subject=name,
        marked=(took_s > LONG * usual_s) & (took_s - usual_s > LONGER_S / 2),
        title=title,
        enough_s=took_s - usual_s,
        fewest=2 if name == END_OF_EPOCH.name else 3,
        tried=tried,
    )


def _ends(loop: StepSeries) -> PatternCause:
    """The last steps of epochs: what is done between two epochs counts for them."""
    complete = loop.batch[-1:] == loop.batch.max(initial=-1)  # as long as the longest epoch
    last = np.append(loop.epoch[1:] != loop.epoch[:-1], complete)

    def title(stops: Stops) -> str:
        times = times_longer(loop, stops.named)
        ends = f"{count(stops.count, 'epoch')} end with a step {times} times as long as usual"
        return f"{ends}, in your own code (validation or a checkpoint?)"

    return PatternCause("epoch_end", last, title, fewest=2)


def times_longer(loop: StepSeries, which: np.ndarray) -> str:
    """How many times as long as the median step these steps are, in words."""
    ratio = float(np.median(loop.busy_s[which])) / loop.typical_s if loop.typical_s else np.inf
    return f"{ratio:.0f}" if ratio < 1000 else "more than a thousand"  # noqa: PLR2004 - words
