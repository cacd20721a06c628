"""A window of the steady state: the work of each worker and of the training loop over time.

The picture should show typical behaviour, so the window contains a stall of about the median
length, not the worst one. The reader can choose a step instead. A batch has hundreds of spans, far
more than a picture can show, so the spans of one kind are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.model.attribution import begin_ns
from stallscope.model.loop_time import leading
from stallscope.run.summary import used_until_ns
from stallscope.stages import WORK_KINDS

if TYPE_CHECKING:
    from stallscope.run.result import Run


FEWEST_STEPS: Final = 12
MOST_STEPS: Final = 36
"""Steps that a picture can show beside each other."""
ROUNDS: Final = 4
"""Batches of each worker in a window, unless that exceeds `MOST_STEPS`."""
BEFORE: Final = 0.55
"""Share of the window's steps before the chosen one."""
SMALL: Final = 0.2
"""Share of the stall time of the shortest stalls, which are not typical."""

_LOOP_KINDS: Final = ("h2d", "step", "other")
_BATCH: Final = ("epoch", "batch")
_ONE_BATCH: Final = ("rank", "pid", "worker", "epoch", "batch")


@dataclass(frozen=True)
class Window:
    """Part of a run, from the begin of a step to the end of a step."""

    begin_ns: int
    """Begin, from the start of the run."""
    end_ns: int
    steps: pl.DataFrame
    """Steps of the window, columns of `run.result.STEPS`."""

    def holds(self) -> pl.Expr:
        """Return whether a row's time from `start_ns` to `end_ns` overlaps the window."""
        return (pl.col("end_ns") > self.begin_ns) & (pl.col("start_ns") < self.end_ns)

    def since(self, *columns: str) -> list[pl.Expr]:
        """Return columns of times as seconds from the window's begin, named `_s`."""
        return [
            ((pl.col(name) - self.begin_ns) / 1e9).alias(name.replace("_ns", "_s"))
            for name in columns
        ]


@dataclass(frozen=True)
class Timeline:
    """Events of a window, uncut at its ends; times in seconds from its begin."""

    window: Window
    workers: tuple[int | None, ...]
    """Processes that make batches, in order; None is the main process."""
    blocks: pl.DataFrame
    """One row per batch: `worker, epoch, batch, start_s, end_s, recorded` and a column of seconds
    for each of `WORK_KINDS`, zero in a batch that was not recorded."""
    sends: pl.DataFrame
    """`worker, kind, start_s, end_s`: sending (with its worker) and pinning (without)."""
    uses: pl.DataFrame
    """Use of the batches by the loop: `epoch, batch, stage, kind, start_s, end_s`."""
    stalls: pl.DataFrame
    """`step, worker, epoch, batch, start_s, end_s, stall_s, left_s`, of the awaited batch: `left_s`
    is the time when it left its worker; null where not seen."""
    device: pl.DataFrame
    """Work of an asynchronous device: `kind, start_s, end_s`; empty if the host is the device."""

    @property
    def begins_s(self) -> list[float]:
        """Begin of the use of each batch."""
        ends_s = self.window.steps.select(*self.window.since("end_ns"))
        return ends_s.to_series().to_list()

    @property
    def length_s(self) -> float:
        """Length of the window."""
        return (self.window.end_ns - self.window.begin_ns) / 1e9


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
    typical = among.filter(pl.col("length_s").cum_sum() / pl.col("length_s").sum() > SMALL)
    begin = typical["first"][typical.height // 2]
    return _timeline_of(run, rank, steps[begin : begin + step_count])


def from_step(run: Run, rank: int, step: int, step_count: int) -> Timeline:
    """Return the timeline of `step_count` steps of one rank from a step on, or of the last ones."""
    steps = timed_steps(run, rank)
    begin = int(min((steps["step"] < step).sum(), max(steps.height - step_count, 0)))
    return _timeline_of(run, rank, steps[begin : begin + step_count])


def timed_steps(run: Run, rank: int) -> pl.DataFrame:
    """Return the steady steps of a rank whose times are known."""
    return run.steps().drop_nulls(["start_ns", "end_ns"]).filter(rank=rank)


def _timeline_of(run: Run, rank: int, steps: pl.DataFrame) -> Timeline:
    begin, end = steps[:1].select(begin_ns()), steps[-1:].select(used_until_ns())
    shown = Window(begin.item(), end.item(), steps)
    first, times = pl.col("rank") == rank, shown.since("start_ns", "end_ns")
    side_spans = run.side_spans.filter(first, shown.holds())
    sends = side_spans.filter(pl.col("kind").is_in(["send", "pin"]))
    device = run.device_work.filter(first, shown.holds())
    return Timeline(
        window=shown,
        workers=_makers(run, rank),
        blocks=_blocks(run, first, shown),
        sends=sends.select("worker", "kind", *times),
        uses=_uses(side_spans, shown),
        stalls=_stalls(run.stalls().filter(first), run, shown),
        device=device.select(pl.col("kind").cast(pl.String), *times),
    )


def _makers(run: Run, rank: int) -> tuple[int | None, ...]:
    ids = [table.filter(rank=rank)["worker"] for table in (run.deliveries, run.batches)]
    return tuple(pl.concat(ids).unique().sort(nulls_last=True))


def _blocks(run: Run, first: pl.Expr, shown: Window) -> pl.DataFrame:
    """Return the batches in progress, with the seconds of each kind of work."""
    shown_batches = run.all_spans.filter(first, shown.holds()).select(_ONE_BATCH).unique()
    wall_s = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
    works = {kind: wall_s.filter(pl.col("kind") == kind).sum() for kind in WORK_KINDS}
    spans = run.all_spans.join(shown_batches, on=_ONE_BATCH, how="semi", nulls_equal=True)
    recorded = spans.group_by(_ONE_BATCH).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), **works
    )
    timed = run.deliveries.filter(first).drop_nulls(["taken_ns", "made_ns"])
    unrecorded = timed.join(
        run.batches.filter(first), on=_ONE_BATCH, how="anti", nulls_equal=True
    ).with_columns(start_ns="taken_ns", end_ns="made_ns", **dict.fromkeys(WORK_KINDS, pl.lit(0.0)))
    both = pl.concat(
        table.select("worker", *_BATCH, "start_ns", "end_ns", *WORK_KINDS, recorded=is_recorded)
        for table, is_recorded in ((recorded, True), (unrecorded.filter(shown.holds()), False))
    )
    return both.with_columns(shown.since("start_ns", "end_ns")).sort("worker", "start_ns")


def _uses(side_spans: pl.DataFrame, shown: Window) -> pl.DataFrame:
    of_loop = pl.col("worker").is_null() & pl.col("kind").is_in(_LOOP_KINDS)
    columns = (*_BATCH, "stage", "kind", "start_ns", "end_ns")
    spans = side_spans.filter(of_loop).sort("start_ns").select(columns)
    uses = spans.with_columns(pl.col("stage", "kind").cast(pl.String))
    # Merge neighbours of one part: garbage collection, say, cuts a part in two
    same = pl.struct(*_BATCH, "kind", "stage").rle_id()
    merged = uses.group_by(same.alias("run"), maintain_order=True).agg(
        pl.col(*_BATCH, "kind", "stage", "start_ns").first(), pl.col("end_ns").last()
    )
    return merged.drop("run").with_columns(shown.since("start_ns", "end_ns"))


def _stalls(stalls: pl.DataFrame, run: Run, shown: Window) -> pl.DataFrame:
    """Return the stalls with the awaited batch: usually the step's own."""
    who, batch = ("rank", "step"), ("rank", *_BATCH)
    last = pl.col(*_BATCH).last().name.suffix("_awaited")
    awaited = run.waits.sort("end_ns").group_by(who).agg(last)
    left_ns = pl.coalesce("sent_ns", "made_ns")
    batches = run.deliveries.select(*batch, maker="worker", left_ns=left_ns).unique(batch)
    names = [pl.coalesce(f"{name}_awaited", name).alias(name) for name in _BATCH]
    joined = stalls.filter(shown.holds()).join(awaited, on=who, how="left").with_columns(names)
    rows = joined.join(batches, on=batch, how="left", maintain_order="left")
    worker, times = pl.coalesce("maker", "worker"), shown.since("start_ns", "end_ns", "left_ns")
    return rows.select("step", worker.alias("worker"), *_BATCH, "stall_s", *times)
