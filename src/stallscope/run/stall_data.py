"""Stalls of a run as pictures and tables show them: sentences, rows, a window of time around one.

The window should show typical behaviour, so it contains a stall of about the median length, not the
worst one. The reader can choose a step instead. A batch has hundreds of spans, far more than a
picture can show, so the spans of one kind are merged.

Nothing here draws: a run in a terminal loads no matplotlib.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.model.attribution import begin_ns, table
from stallscope.model.loop_time import LoopBreakdown, leading, loop_breakdown
from stallscope.model.loop_time import sentence as loop_sentence
from stallscope.model.thresholds import SMALL
from stallscope.run.summary import NOTHING, used_until_ns
from stallscope.stages import WORK_KINDS
from stallscope.units import LONGEST_TITLE, count, printable, seconds, share

if TYPE_CHECKING:
    from stallscope.run.result import Run
    from stallscope.run.summary import Profile


SURE: Final = 0.001
"""Smallest p-value that is written out."""
_NO_WORKERS: Final = "loaded in the main process (no workers)"


class StallRow(NamedTuple):
    """One part of the stalls."""

    name: str
    kind: str | None
    """None if unattributed."""
    exposed_s: float
    """Seconds per step."""
    share: float
    """Share of all stall time."""
    busy: float | None
    """Share of the workers' own time; None for parts outside of the workers."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Numbers of the row as text: `share`, `exposed_s`, `busy`."""
        return share(self.share), seconds(self.exposed_s), share(self.busy)


def sentence(run: Run) -> str:
    """Return the sentence on the loop's stalls: their share of the time and main cause."""
    time = loop_breakdown(run.steps(), run.stalls())
    return loop_sentence(time, run.exposed(), run.settings.num_workers, printable)


def sentence_of_steps(run: Run, rank: int, steps: pl.DataFrame) -> str:
    """Return the same sentence for consecutive steps of a rank."""
    its = (pl.col("rank") == rank) & pl.col("step").is_in(steps["step"].implode())
    time = loop_breakdown(steps, run.stalls().filter(its))
    exposed = table(run.parts().filter(its))
    text = loop_sentence(time, exposed, run.settings.num_workers, printable)
    first, last = steps["step"][0], steps["step"][-1]
    which = f"Step {first}" if first == last else f"Steps {first} to {last}"
    return f"{which}: {text[0].lower()}{text[1:]}"


def small_print(run: Run) -> list[str]:
    """Return the caveats for a reader of the loop's times."""
    step_s = run.settings.simulated_step_s
    if step_s is None or run.device is not None:  # of a simulated device, a note says more
        return []
    return [f"the step is simulated: a timer of {seconds(step_s)}, and no device"]


def answer(run: Run) -> dict[str, Any] | None:
    """Return the pattern that is the answer, a row of `Run.patterns`; None where `sentence` is.

    If the loop hardly waits, a pattern of its waits is no answer.
    """
    pattern = leading(run.patterns())
    time = loop_breakdown(run.steps(), run.stalls())
    hardly = time is not None and time.hardly_waits
    return None if hardly else pattern


def pattern_or_sentence(run: Run) -> str:
    """Return the sentence of the leading pattern, else `sentence`."""
    pattern = answer(run)
    return pattern_sentence(pattern) if pattern else sentence(run)


def pattern_sentence(pattern: dict[str, Any]) -> str:
    """Return the sentence of a pattern, a row of `Run.patterns`."""
    return printable(pattern["title"], LONGEST_TITLE)


def explained(pattern: dict[str, Any]) -> str:
    """Return the share that a pattern (a row of `Run.patterns`) explains, and its p-value."""
    text = f"{share(pattern['share'])} of all stalled time"
    if pattern["chance"] is None:
        return text
    chance = f"below {SURE}" if pattern["chance"] < SURE else f"{pattern['chance']:.3f}"
    return f"{text} · p-value {chance}"


def rows_of(run: Run, time: LoopBreakdown, most: int) -> list[StallRow]:
    """Return the parts of the stalls, the longest first; none where the loop hardly stalls.

    The last of `most` rows merges the remaining parts.
    """
    if time.stall_share < SMALL:
        return []
    work = run.stages().drop_nulls("busy_share")
    own = work.group_by("stage", "kind").agg(pl.col("busy_share").sum())  # up to two rows each
    busy = {(stage, kind): part for stage, kind, part in own.iter_rows()}
    rows = [
        StallRow(
            printable(part["part"]),
            part["kind"],
            part["exposed_s"] / time.steps,
            part["share"],
            busy.get((part["part"], part["kind"])),
        )
        for part in run.exposed().iter_rows(named=True)
    ]
    large = [row for row in rows[: most - 1] if row.share >= SMALL]
    rest = [row for row in rows if row not in large]
    small = [row for row in rest if row.kind]
    if len(small) <= 1:
        return rows
    together = (sum(row.exposed_s for row in small), sum(row.share for row in small))
    merged = StallRow(f"{len(small)} more", "other", *together, None)
    return [*large, merged, *(row for row in rest if not row.kind)]


def split(time: LoopBreakdown) -> str:
    """Return the breakdown of a step of the loop, in one line."""
    parts = [
        f"{printable(name)} {share(time.share(sum_s))}" for name, _, sum_s in time.pieces(SMALL)
    ]
    return f"{seconds(time.total_s / time.steps)} per step: {' · '.join(parts)}"


def population(run: Run, profile: Profile) -> str:
    """Return the numbers of samples and workers, and the batches outside of the steady state."""
    workers = count(profile.workers, "worker") if profile.workers else _NO_WORKERS
    hidden = run.batches.height - int(run.batches["steady"].sum() or 0)
    left_out = f"left out: {count(hidden, 'batch')} (start-up, warm-up, incomplete end)"
    population = f"{count(profile.units, profile.unit)} · {workers}"
    return f"{population} · {left_out if hidden else 'start-up is included'}"


def nothing(run: Run) -> tuple[str, ...]:
    """Return the reasons why there is nothing to draw."""
    notes = tuple(note for note in run.notes if note.lower() != NOTHING.lower())
    return (*notes, f"recorded: {count(run.batches.height, 'batch')}")


# ---- a window of the steady state: the work of each worker and of the loop ----------------------

FEWEST_STEPS: Final = 12
MOST_STEPS: Final = 36
"""Steps that a picture can show beside each other."""
ROUNDS: Final = 4
"""Batches of each worker in a window, unless that exceeds `MOST_STEPS`."""
BEFORE: Final = 0.55
"""Share of the window's steps before the chosen one."""
SHORT: Final = 0.2
"""Share of the stall time of the shortest stalls, which are not typical."""

_LOOP_KINDS: Final = ("h2d", "step", "other")
_BATCH: Final = ("epoch", "batch")
_ONE_BATCH: Final = ("rank", "pid", "worker", "epoch", "batch")


class Timeline:
    """Events of consecutive steps of a rank, uncut at their ends; seconds from the first begin."""

    def __init__(self, run: Run, rank: int, steps: pl.DataFrame) -> None:
        begin, end = steps[:1].select(begin_ns()), steps[-1:].select(used_until_ns())
        self.steps = steps
        """Columns of `run.result.STEPS`."""
        self._begin_ns, end_ns = begin.item(), end.item()
        self.length_s: float = (end_ns - self._begin_ns) / 1e9
        """From the begin of the first step to the end of the last one."""
        self._run, self._of_rank = run, pl.col("rank") == rank
        inside = (pl.col("end_ns") > self._begin_ns) & (pl.col("start_ns") < end_ns)
        self._shown = self._of_rank & inside
        """True for a row of the rank whose time overlaps that of the steps."""
        self.workers = _makers(run, rank)
        """Processes that make batches, in order; None is the main process."""

    def _since(self, *columns: str) -> list[pl.Expr]:
        """Return columns of times as seconds from the begin, named `_s`."""
        return [
            ((pl.col(name) - self._begin_ns) / 1e9).alias(name.replace("_ns", "_s"))
            for name in columns
        ]

    @property
    def begins_s(self) -> list[float]:
        """Begin of the use of each batch."""
        return self.steps.select(*self._since("end_ns")).to_series().to_list()

    @cached_property
    def blocks(self) -> pl.DataFrame:
        """Batches in progress: `worker, epoch, batch, start_s, end_s, recorded`.

        A column of seconds for each of `WORK_KINDS`, zero in a batch that was not recorded.
        """
        run = self._run
        shown_batches = run.all_spans.filter(self._shown).select(_ONE_BATCH).unique()
        wall_s = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
        works = {kind: wall_s.filter(pl.col("kind") == kind).sum() for kind in WORK_KINDS}
        spans = run.all_spans.join(shown_batches, on=_ONE_BATCH, how="semi", nulls_equal=True)
        recorded = spans.group_by(_ONE_BATCH).agg(
            pl.col("start_ns").min(), pl.col("end_ns").max(), **works
        )
        others = run.deliveries.filter(self._of_rank).drop_nulls(["taken_ns", "made_ns"])
        unrecorded = (
            others.join(run.batches, on=_ONE_BATCH, how="anti", nulls_equal=True)
            .with_columns(
                start_ns="taken_ns", end_ns="made_ns", **dict.fromkeys(WORK_KINDS, pl.lit(0.0))
            )
            .filter(self._shown)
        )
        both = pl.concat(
            table.select("worker", *_BATCH, "start_ns", "end_ns", *WORK_KINDS, recorded=is_recorded)
            for table, is_recorded in ((recorded, True), (unrecorded, False))
        )
        return both.with_columns(self._since("start_ns", "end_ns")).sort("worker", "start_ns")

    @cached_property
    def sends(self) -> pl.DataFrame:
        """Sending (with its worker) and pinning (without): `worker, kind, start_s, end_s`."""
        sends = self._run.side_spans.filter(self._shown, pl.col("kind").is_in(["send", "pin"]))
        return sends.select("worker", "kind", *self._since("start_ns", "end_ns"))

    @cached_property
    def uses(self) -> pl.DataFrame:
        """Use of the batches by the loop: `epoch, batch, stage, kind, start_s, end_s`."""
        of_loop = pl.col("worker").is_null() & pl.col("kind").is_in(_LOOP_KINDS)
        columns = (*_BATCH, "stage", "kind", "start_ns", "end_ns")
        spans = self._run.side_spans.filter(self._shown, of_loop).sort("start_ns").select(columns)
        uses = spans.with_columns(pl.col("stage", "kind").cast(pl.String))
        # Merge neighbours of one part: garbage collection, say, cuts a part in two
        same = pl.struct(*_BATCH, "kind", "stage").rle_id()
        merged = uses.group_by(same.alias("run"), maintain_order=True).agg(
            pl.col(*_BATCH, "kind", "stage", "start_ns").first(), pl.col("end_ns").last()
        )
        return merged.drop("run").with_columns(self._since("start_ns", "end_ns"))

    @cached_property
    def stalls(self) -> pl.DataFrame:
        """Stalls with the awaited batch, usually the step's own.

        `step, worker, epoch, batch, start_s, end_s, stall_s, left_s`: `left_s` is the time when the
        batch left its worker; null where not seen.
        """
        run, who, batch = self._run, ("rank", "step"), ("rank", *_BATCH)
        last = pl.col(*_BATCH).last().name.suffix("_awaited")
        awaited = run.waits.sort("end_ns").group_by(who).agg(last)
        left_ns = pl.coalesce("sent_ns", "made_ns")
        batches = run.deliveries.select(*batch, maker="worker", left_ns=left_ns).unique(batch)
        names = [pl.coalesce(f"{name}_awaited", name).alias(name) for name in _BATCH]
        stalls = run.stalls().filter(self._shown)
        joined = stalls.join(awaited, on=who, how="left").with_columns(names)
        rows = joined.join(batches, on=batch, how="left", maintain_order="left")
        worker, times = pl.coalesce("maker", "worker"), self._since("start_ns", "end_ns", "left_ns")
        return rows.select("step", worker.alias("worker"), *_BATCH, "stall_s", *times)

    @cached_property
    def device(self) -> pl.DataFrame:
        """Work of an asynchronous device, else empty: `kind, start_s, end_s`."""
        times = self._since("start_ns", "end_ns")
        return self._run.device_work.filter(self._shown).select(
            pl.col("kind").cast(pl.String), *times
        )


def timeline(run: Run) -> Timeline | None:
    """Return a typical window of a run; None without a recorded loop."""
    steps = run.steps().drop_nulls(["start_ns", "end_ns"])
    if steps.is_empty():
        return None
    ranks = steps["rank"].unique().sort().to_list()
    pattern = leading(run.patterns().filter(pl.col("rank").is_in(ranks)))
    # The leading pattern's steps; without one, any stall of the first rank
    return around(run, pattern["rank"], *pattern["steps"]) if pattern else around(run, ranks[0])


def around(run: Run, rank: int, *favoured: int) -> Timeline:
    """Return the timeline of some steps of a rank around a stall of typical length.

    That is the median without the shortest stalls. If the favoured steps do not stall (a
    checkpoint), their own length counts. If no step stalls, the window is in the middle.
    """
    steps, stalls = timed_steps(run, rank), run.stalls().filter(rank=rank)
    step_count = min(max(ROUNDS * len(_makers(run, rank)), FEWEST_STEPS), MOST_STEPS, steps.height)
    first = (pl.int_range(pl.len()) - round(BEFORE * step_count)).clip(0, steps.height - step_count)
    last = pl.col("first") + step_count - 1
    own_s = (used_until_ns() - begin_ns()) / 1e9
    tries = (
        steps.join(stalls.select("step", "stall_s"), on="step", how="left", maintain_order="left")
        .with_columns(first=first)
        .with_columns(
            gap=pl.col("step").gather(last) - pl.col("step").gather("first") >= step_count,
            length_s=pl.coalesce("stall_s", own_s).clip(1e-9),
        )
    )
    asked = [
        tries.filter(pl.col("step").is_in(list(favoured))),
        tries.filter(pl.col("stall_s").is_not_null()),
        tries[tries.height // 2 : tries.height // 2 + 1],
    ]
    among = next(candidates for candidates in asked if candidates.height)
    whole = among.filter(~pl.col("gap"))
    among = (whole if whole.height else among).sort("length_s", maintain_order=True)
    typical = among.filter(pl.col("length_s").cum_sum() / pl.col("length_s").sum() > SHORT)
    begin = typical["first"][typical.height // 2]
    return Timeline(run, rank, steps[begin : begin + step_count])


def from_step(run: Run, rank: int, step: int, step_count: int) -> Timeline:
    """Return the timeline of `step_count` steps of one rank from a step on, or of the last ones."""
    steps = timed_steps(run, rank)
    begin = int(min((steps["step"] < step).sum(), max(steps.height - step_count, 0)))
    return Timeline(run, rank, steps[begin : begin + step_count])


def timed_steps(run: Run, rank: int) -> pl.DataFrame:
    """Return the steady steps of a rank whose times are known."""
    return run.steps().drop_nulls(["start_ns", "end_ns"]).filter(rank=rank)


def _makers(run: Run, rank: int) -> tuple[int | None, ...]:
    ids = [table.filter(rank=rank)["worker"] for table in (run.deliveries, run.batches)]
    return tuple(pl.concat(ids).unique().sort(nulls_last=True))
