"""The steps of the loop over a loader: each wait for a batch, and the use of that batch.

The use of a batch ends where the loop asks for the next batch or the next epoch; a loop over
another loader in between (validation) is no part of it. Times in the tables count from the start of
the run. The steady state begins after the warm-up, and leaves out each process's first batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from stallscope import stages
from stallscope.hooks.recording_folder import AROUND, OUTER, epoch_key
from stallscope.run.decode import SPANS
from stallscope.run.loop_events import Interval
from stallscope.run.result import DELIVERIES, STEPS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.run.loop_events import Events, Track, Wait
    from stallscope.stages import Stage


_TRAINS = (stages.BACKWARD, stages.OPTIMIZER)
_BESIDE: Final = (stages.GARBAGE, stages.PIN)
"""Parts that are no stage of a step: they stop all threads, or run in one of their own."""
_BATCH: Final = ["rank", "epoch", "batch"]
_ELSEWHERE: Final = ("worker", "pin_s", "rank", "steady")
"""Columns of steps that do not come from the marks of the loop."""
_OF_LOOP: Final = {name: kind for name, kind in STEPS.items() if name not in _ELSEWHERE}
_Row = TypeVar("_Row", bound=tuple[Any, ...])


class PendingStep(NamedTuple):
    """Unfinished step."""

    wait: Wait
    giver: Wait
    """Wait that got the batch: inside of a wrapper's wait, that of the loader."""
    spans: list[Interval]
    """Stages of the loop until the next wait."""
    restart_ns: int | None


def loaders(events: Events) -> list[int]:
    """Return the numbers of the loop's loaders: those for training first, then by time."""
    spent: Counter[int] = Counter()
    trained: Counter[int] = Counter()
    for track in events.tracks:
        waits = events.waits_for_loaders(track)
        starts = [wait.start_ns for wait in waits]
        for wait, until in zip(waits, [*starts[1:], None], strict=False):
            spent[events.owner(wait.key)] += (until or wait.end_ns) - wait.start_ns
        for part in track.parts:
            at = bisect_left(starts, part.start_ns) - 1
            if part.stage in _TRAINS and at >= 0:
                trained[events.owner(waits[at].key)] += 1
    most = max(trained.values(), default=0)
    return sorted(spent, key=lambda key: (trained[key] * 2 > most, spent[key]), reverse=True)


class Steps:
    """Builds the steps of a thread's loop over one loader."""

    def __init__(self, events: Events, track: Track, loader: int) -> None:
        self._events, self._track, self._loader = events, track, loader
        self._recorded = events.is_own
        self._parts = sorted(part for part in track.parts if part.stage not in _BESIDE)
        # Begins of steps of the recording's own that raised: their time is meaningless
        failed = [part.start_ns for part in track.unfinished if part.stage == stages.STEP]
        self._failed_ns = failed if self._recorded else []
        self._collections = events.collections
        work = ((start, end) for kind, start, end in events.device_work if kind == "step")
        self._device_busy = sorted(work)
        self._waits = events.waits_for_loaders(track)
        self._starts = [wait.start_ns for wait in self._waits]
        self._iterators = sorted(
            iterator
            for iterator in track.iterators
            if events.owner(iterator[2]) != AROUND and not self._is_waiting(iterator[0])
        )

    def steps(self) -> Iterator[PendingStep]:
        """Yield all steps, in their order."""
        last = None  # the last one's giver
        got = [w for w in self._waits if self._is_mine(w.key) and w.number is not None]
        begun = [row for row in self._iterators if self._is_mine(row[2])]
        bounds = sorted([*(wait.start_ns for wait in got), *(start for start, *_ in begun)])
        for wait in got:
            giver = self._giver(wait) or last
            at = bisect_left(bounds, wait.end_ns)
            is_last = at == len(bounds)
            until = self._last_end(wait) if is_last else bounds[at]
            failed = any(wait.end_ns <= begin_ns <= until for begin_ns in self._failed_ns)
            # A loader for validation, say, may give the batch, in the same iterable
            inside = {inner.loader for inner in wait.inside if inner.number is not None}
            is_others = bool(inside - {AROUND}) and self._loader not in inside
            if giver is None or (is_last and self._track.is_cut) or failed or is_others:
                continue
            is_first = last is None or last.key != giver.key  # of its epoch
            restart_ns = self._restart(wait, begun) if is_first else None
            yield PendingStep(wait, giver, self._use(wait, until), restart_ns)
            last = giver

    def _last_end(self, wait: Wait) -> int:
        """Return the end of the last step: the last mark of its thread.

        A recording breaks its own loop off and ends workers in the middle of a batch: there, the
        last step ends with the last event that surely belongs to it.
        """
        if not self._recorded:
            return max(self._track.last_ns, wait.end_ns)
        parts = self._parts[bisect_left(self._parts, (wait.end_ns,)) :]
        begun = [part.start_ns for part in self._track.unfinished if part.start_ns > wait.end_ns]
        ends = [*(part.end_ns for part in parts), *(late.end_ns for late in self._waits)]
        return max([wait.end_ns, *ends, *begun])

    @staticmethod
    def _restart(wait: Wait, begun: list[tuple[int, int, int]]) -> int | None:
        """Return the ns that the iterator's creation took; None if unknown."""
        at = bisect_left(begun, (wait.start_ns,)) - 1
        return begun[at][1] - begun[at][0] if at >= 0 else None

    def _is_mine(self, key: int) -> bool:
        return self._events.owner(key) == self._loader

    def _is_waiting(self, at_ns: int) -> bool:
        at = bisect_left(self._starts, at_ns) - 1
        return at >= 0 and at_ns < self._waits[at].end_ns

    def _giver(self, wait: Wait) -> Wait | None:
        if wait.loader > OUTER or self._loader == OUTER:
            return wait
        inside = [w for w in wait.inside if w.number is not None and w.loader == self._loader]
        return inside[-1] if inside else None

    def _use(self, wait: Wait, until: int) -> list[Interval]:
        begin = wait.end_ns
        parts = [
            part._replace(end_ns=min(part.end_ns, until))
            for part in _between(self._parts, begin, until)
        ]
        away = [*self._away(wait, until)]
        # A collection may have begun in the wait
        before = max(bisect_left(self._collections, (begin,)) - 1, 0)
        collected = [
            Interval(max(part.start_ns, begin), min(part.end_ns, until), stages.GARBAGE)
            for part in _between(self._collections[before:], 0, until)
            if part.end_ns > begin
        ]
        base = [*self._base(begin, until, parts, away), *self._forward(begin, parts)]
        spans = _exclusive([*base, *parts, *away, *collected])
        return [part for span in spans for part in self._without_waiting(span)]

    def _without_waiting(self, span: Interval) -> Iterator[Interval]:
        """Separate a copy's wait for the device's earlier work from the copy itself.

        From pageable memory, the host waits for both.
        """
        at = bisect_left(self._device_busy, (span.start_ns + 1,)) - 1
        until = min(self._device_busy[at][1], span.end_ns) if at >= 0 else 0
        if span.stage == stages.H2D and until > span.start_ns:
            yield Interval(span.start_ns, until, stages.DEVICE_AT_WORK)
            span = span._replace(start_ns=until)
        if span.end_ns > span.start_ns:
            yield span

    def _forward(self, begin: int, parts: list[Interval]) -> Iterator[Interval]:
        """Yield the forward pass before each backward pass, unless hooks on a module recorded it.

        It begins with the batch, after another part of the model, or in an optimizer's closure.
        """
        if self._recorded or any(part.stage == stages.FORWARD for part in parts):
            return
        trained = [part for part in parts if part.stage in _TRAINS]
        bounds = sorted([begin, *(at for part in trained for at in part[:2])])
        for part in trained:
            if part.stage == stages.BACKWARD:
                last = bounds[bisect_left(bounds, part.start_ns) - 1]
                if begin <= last < part.start_ns:
                    yield Interval(last, part.start_ns, stages.UNTIL_BACKWARD)

    def _base(
        self, begin: int, until: int, parts: list[Interval], away: list[Interval]
    ) -> list[Interval]:
        """Return the step and the time after it; without training, all time is the step."""
        if self._recorded:
            return [Interval(begin, until, stages.OTHER)]
        trained = [part.end_ns for part in parts if part.stage in _TRAINS]
        left = [part.start_ns for part in away]
        end = max(trained) if trained else min(left, default=until)
        return [Interval(begin, end, stages.STEP), Interval(end, until, stages.OTHER)]

    def _away(self, wait: Wait, until: int) -> Iterator[Interval]:
        """Yield the loops over other loaders in between, and the end of the epoch."""
        first, after = (bisect_left(self._starts, at) for at in (wait.end_ns, until))
        near = self._waits[first:after]
        begun = {key: start for start, _, key in _between(self._iterators, wait.end_ns, until)}
        ended = {later.key: later.end_ns for later in near if later.number is None}
        for key, start in begun.items():
            if not self._is_mine(key):
                yield Interval(start, min(ended.get(key, until), until), stages.ANOTHER_LOADER)
        for later in near:
            if self._is_mine(later.key):
                yield Interval(later.start_ns, min(later.end_ns, until), stages.END_OF_EPOCH)
            elif later.key not in begun:
                yield Interval(later.start_ns, min(later.end_ns, until), stages.ANOTHER_LOADER)


def _between(rows: list[_Row], begin: int, until: int) -> list[_Row]:
    """Return the rows that start between two times; they are sorted by their start."""
    return rows[bisect_left(rows, (begin,)) : bisect_left(rows, (until,))]


def _exclusive(intervals: list[Interval]) -> Iterator[Interval]:
    """Yield the innermost stage at each moment; if two begin at once, the shorter is inside."""
    open_here: list[Interval] = []
    at = 0
    in_order = sorted(intervals, key=lambda interval: (interval.start_ns, -interval.end_ns))
    for interval in [*in_order, None]:
        start_ns = math.inf if interval is None else interval.start_ns
        while open_here and at < start_ns:
            end_ns = int(min(open_here[-1].end_ns, start_ns))
            if end_ns > at:
                yield Interval(at, end_ns, open_here[-1].stage)
                at = end_ns
            if open_here[-1].end_ns > start_ns:
                break
            open_here.pop()
        if interval is not None:
            at = max(at, interval.start_ns)
            open_here.append(interval)


class LoopTables(NamedTuple):
    """Tables of the loop over one loader."""

    steps: pl.DataFrame
    """Columns of `run.result.STEPS`; `steady` is false throughout."""
    waits: pl.DataFrame
    """Columns of `run.result.WAITS`."""
    deliveries: pl.DataFrame
    """Columns of `run.result.DELIVERIES`."""
    side_spans: pl.DataFrame
    """Columns of `run.decode.SPANS`."""


def loop(events: Events, loader: int) -> LoopTables:
    """Return the tables of the loop over one loader, by its number."""
    tracks = (track for track in events.tracks if events.waits_for_loaders(track))
    steps = [step for track in tracks for step in Steps(events, track, loader).steps()]
    first, after = epoch_key(loader, 0), epoch_key(loader + 1, 0)
    mine = events.deliveries.filter(pl.col("key").is_between(first, after, closed="left"))
    deliveries = mine.with_columns(rank=events.rank, epoch=pl.col("key") - first, batch="number")
    pin_s = (pl.col("pinned_ns") - pl.col("pinning_ns")) / 1e9
    of_batch = deliveries.select("epoch", "batch", "worker", pin_s=pin_s)
    rows = pl.DataFrame([*starmap(_step_row, enumerate(steps))], _OF_LOOP, orient="row")
    # A column of zeros: no batch was ever copied, or used, so nothing was measured
    measured = (pl.when(pl.col(name).sum() > 0).then(name) for name in ("h2d_s", "step_s"))
    pinned = deliveries.with_columns(pid=events.pid, worker=None)
    side_spans = (
        pl.DataFrame(list(_loop_spans(steps, events)), SPANS, orient="row"),
        _spans_beside(pinned, stages.PIN, "pinning_ns", "pinned_ns"),
        _spans_beside(deliveries, stages.SEND, "pickle_ns", "sent_ns"),
    )
    return LoopTables(
        steps=rows.cast({"epoch": pl.Int64, "batch": pl.Int64})
        .join(of_batch, on=["epoch", "batch"], how="left", maintain_order="left")
        .with_columns(*measured, rank=events.rank, steady=False)
        .select(pl.col(name).cast(kind) for name, kind in STEPS.items()),
        waits=pl.DataFrame(list(_wait_rows(steps, loader, events)), WAITS, orient="row"),
        deliveries=deliveries.select(pl.col(n).cast(kind) for n, kind in DELIVERIES.items()),
        side_spans=pl.concat(side_spans),
    )


def _step_row(number: int, step: PendingStep) -> tuple[Any, ...]:
    spent: Counter[str] = Counter()
    for span in step.spans:
        spent[span.stage.kind] += span.end_ns - span.start_ns
    wait = step.wait
    return (
        *(number, *step.giver.batch, (wait.end_ns - wait.start_ns) / 1e9),
        *(spent.pop("h2d", 0) / 1e9, spent.pop("step", 0) / 1e9, sum(spent.values()) / 1e9),
        *(wait.start_ns, wait.end_ns),
        None if step.restart_ns is None else step.restart_ns / 1e9,
    )


def _wait_rows(steps: list[PendingStep], loader: int, events: Events) -> Iterator[tuple[Any, ...]]:
    begun_ns = {key: start_ns for start_ns, _, key in events.iterators}
    for number, step in enumerate(steps):
        outer = step.wait.loader <= OUTER < loader
        for wait in step.wait.inside if outer else [step.wait]:
            start_ns = wait.start_ns
            if wait.number is not None and (wait.loader == loader or not outer):
                if outer and not wait.number:  # the iterator's creation is part of the wait
                    start_ns = min(start_ns, begun_ns.get(wait.key, start_ns))
                times = max(start_ns, step.wait.start_ns), wait.end_ns
                yield (events.rank, number, *wait.batch, *times)


def _loop_spans(steps: list[PendingStep], events: Events) -> Iterator[tuple[Any, ...]]:
    for step in steps:
        place = (events.rank, events.pid, None, *step.giver.batch, None)
        for span in step.spans:
            yield (*place, span.stage.name, span.stage.kind, span.start_ns, span.end_ns, None)


def _spans_beside(deliveries: pl.DataFrame, stage: Stage, begin: str, end: str) -> pl.DataFrame:
    """Return the spans between two times of each delivery."""
    seen = deliveries.drop_nulls(["pid", begin, end])
    spans = seen.with_columns(
        sample=None,
        stage=pl.lit(stage.name),
        kind=pl.lit(stage.kind),
        start_ns=begin,
        end_ns=pl.max_horizontal(begin, end),
        cpu_ns=None,
    )
    return spans.select(pl.col(name).cast(kind) for name, kind in SPANS.items())


def mark_steady(
    batches: pl.DataFrame, tables: LoopTables, warmup: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the batches with `first` (of its process) and `steady`, and the steps with `steady`.

    A step may wait for several batches and use them all. Prefetched batches that no step used are
    left out, so that the same call gives the same count. The steps are chosen as strictly as a
    complete batch remains: a recording that is too short to leave out its start keeps everything.
    """
    seen = tables.deliveries.drop_nulls(["pid", "taken_ns"])
    makers = (seen if seen.height else batches).sort("epoch", "batch")
    first = makers.unique(["rank", "pid"], keep="first", maintain_order=True)
    order = pl.struct("epoch", "batch").rank("dense").cast(STEPS["step"]) - 1
    # Where the loop was not recorded, assume that it uses every batch
    steps = batches.with_columns(step=order) if tables.steps.is_empty() else tables.steps
    late = steps.join(first, on=_BATCH, how="anti", maintain_order="left")
    whole = batches.filter("complete")
    strictest_first = (late.filter(pl.col("step") >= warmup), late, steps)
    chosen = next(
        (rows for rows in strictest_first if rows.join(whole, on=_BATCH, how="semi").height),
        strictest_first[0 if whole.is_empty() else -1],
    )
    waited = tables.waits.join(chosen, on=["rank", "step"], how="semi")
    used = pl.concat([chosen.select(_BATCH), waited.select(_BATCH)])
    is_steady = pl.col("complete") & _is_among(used)
    marked = batches.with_columns(first=_is_among(first), steady=is_steady)
    return marked, tables.steps.with_columns(steady=pl.col("step").is_in(chosen["step"].implode()))


def _is_among(batches: pl.DataFrame) -> pl.Expr:
    batch = pl.struct(_BATCH)
    return batch.is_in(batches.select(batch).to_series().implode())
