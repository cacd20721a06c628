"""The steps of the loop over a loader: each wait for a batch, and the use of that batch.

The use of a batch ends where the loop asks for the next batch or the next epoch; a loop over
another loader in between (validation) is no part of it. Times in the tables count from the start of
the run. The steady state begins after the warm-up, and leaves out each process's first batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from stallscope import stages
from stallscope.hooks.recording_folder import AROUND, OUTER, loader_and_epoch
from stallscope.run.decode import SPANS
from stallscope.run.loop_events import Interval
from stallscope.run.result import DELIVERIES, STEPS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stallscope.run.loop_events import Batch, Events, Wait


_TRAINS = (stages.BACKWARD, stages.OPTIMIZER)
_BATCH: Final = ["rank", "epoch", "batch"]
_Row = TypeVar("_Row", bound=tuple[Any, ...])


@dataclass
class PendingStep:
    """Unfinished step."""

    number: int
    wait: Wait
    batch: Batch
    spans: list[Interval]
    """Stages of the loop until the next wait."""
    restart_ns: int | None = None


def loaders(events: Events) -> list[int]:
    """Return the numbers of the loop's loaders: those for training first, then by time."""
    owners = Owners(events)
    spent: Counter[int] = Counter()
    trained: Counter[int] = Counter()
    for track in owners.tracks.values():
        starts = [wait.start_ns for wait in track]
        for wait, until in zip(track, [*starts[1:], None], strict=True):
            end = events.seen_until(wait.thread, wait.end_ns, until or wait.end_ns)
            spent[owners.of(wait.key)] += end - wait.start_ns
        for part in events.parts:
            at = bisect_left(starts, part.start_ns) - 1
            if part.stage in _TRAINS and at >= 0 and track[at].thread == part.thread:
                trained[owners.of(track[at].key)] += 1
    most = max(trained.values(), default=0)
    return sorted(spent, key=lambda key: (trained[key] * 2 > most, spent[key]), reverse=True)


class Owners:
    """Loader of each wait of the loop, also where it waits for a wrapper around a loader."""

    def __init__(self, events: Events) -> None:
        self._inner: dict[int, Counter[int]] = defaultdict(Counter)
        for wait in events.waits:
            if wait.loader <= OUTER:
                self._inner[_outer(wait.key)].update(inner.loader for inner in wait.inside)
        self.tracks: dict[int, list[Wait]] = defaultdict(list)
        """Waits of the loop by thread, without those for a wrapper that has no loader inside."""
        for wait in events.waits:
            if wait.end_ns and self.of(wait.key) != AROUND:
                self.tracks[wait.thread].append(wait)

    def of(self, key: int) -> int:
        """Return the loader of an epoch; for a wrapper, the loader inside."""
        number = loader_and_epoch(key)[0]
        inner = self._inner.get(_outer(key)) if number <= OUTER else None
        return inner.most_common(1)[0][0] if inner else number


def _outer(key: int) -> int:
    """Return one key for all epochs of a recording's own loop, and other keys as they are."""
    return OUTER if loader_and_epoch(key)[0] == OUTER else key


class Steps:
    """Builds the steps of the loop over one loader."""

    def __init__(self, events: Events, loader: int) -> None:
        self._events = events
        self._loader = loader
        self._owners = Owners(events)
        self._recorded = any(wait.loader == OUTER for wait in events.waits)
        self._parts = sorted(events.parts)
        # Begins of steps of the recording's own that raised: their time is meaningless
        failed = [part.start_ns for part in events.unfinished if part.stage == stages.STEP]
        self._failed_ns = failed if self._recorded else []
        self._collections = sorted(events.collections)
        self._iterators = sorted(
            (start_ns, end_ns, key, thread)
            for start_ns, end_ns, key, thread in events.iterators
            if self._owners.of(key) != AROUND and not self._is_waiting(thread, start_ns)
        )

    def steps(self) -> Iterator[PendingStep]:
        """Yield all steps, in their order."""
        number, last = 0, None
        for thread, track in self._owners.tracks.items():
            mine = [wait for wait in track if self._is_mine(wait.key)]
            got = [wait for wait in mine if wait.number is not None]
            begun = [row for row in self._iterators if row[3] == thread and self._is_mine(row[2])]
            bounds = sorted([*(w.start_ns for w in got), *(start for start, *_ in begun)])
            starts = [wait.start_ns for wait in track]
            for wait in got:
                batch = self._batch(wait) or last
                at = bisect_left(bounds, wait.end_ns)
                until = bounds[at] if at < len(bounds) else self._last_end(wait, track)
                in_gap = self._events.seen_until(thread, wait.end_ns, until) < until
                failed = any(wait.end_ns <= begin_ns <= until for begin_ns in self._failed_ns)
                # A loader for validation, say, may give the batch, in the same iterable
                givers = {inner.loader for inner in wait.inside if inner.batch} - {AROUND}
                is_others = bool(givers) and self._loader not in givers
                if batch is None or in_gap or failed or is_others:
                    continue
                near = track[bisect_left(starts, wait.end_ns) : bisect_left(starts, until)]
                spans = self._use(wait, until, near)
                is_first = last is None or last.key != batch.key  # of its epoch
                restart_ns = self._restart(wait, begun) if is_first else None
                yield PendingStep(number, wait, batch, spans, restart_ns)
                number, last = number + 1, batch

    def _last_end(self, wait: Wait, track: Sequence[Wait]) -> int:
        """Return the end of the last step: the last mark of its thread.

        A recording breaks its own loop off and ends workers in the middle of a batch: there, the
        last step ends with the last event that surely belongs to it.
        """
        if not self._recorded:
            return max(self._events.last_ns.get(wait.thread, 0), wait.end_ns)
        parts = self._parts[bisect_left(self._parts, (wait.end_ns,)) :]
        ends = [part.end_ns for part in parts if part.thread == wait.thread]
        begun = [part.start_ns for part in self._events.unfinished if part.start_ns > wait.end_ns]
        return max([wait.end_ns, *ends, *begun, *(late.end_ns for late in track)])

    def _restart(self, wait: Wait, begun: list[tuple[int, int, int, int]]) -> int | None:
        """Return the ns that the iterator's creation took; None if unknown."""
        at = bisect_left(begun, (wait.start_ns,)) - 1
        if at < 0:
            return None
        start_ns, end_ns, *_ = begun[at]
        until = self._events.seen_until(wait.thread, end_ns, wait.start_ns)
        return None if until < wait.start_ns else end_ns - start_ns

    def _is_mine(self, key: int) -> bool:
        return self._owners.of(key) == self._loader

    def _is_waiting(self, thread: int, at_ns: int) -> bool:
        track = self._owners.tracks.get(thread, [])
        at = bisect_left(track, at_ns, key=lambda wait: wait.start_ns) - 1
        return at >= 0 and at_ns < track[at].end_ns

    def _batch(self, wait: Wait) -> Batch | None:
        """Return the batch that came; for a wrapper, that of the loader inside."""
        if wait.loader > OUTER or self._loader == OUTER:
            return wait.batch
        inside = [w.batch for w in wait.inside if w.batch and w.batch.loader == self._loader]
        return inside[-1] if inside else None

    def _use(self, wait: Wait, until: int, near: Sequence[Wait]) -> list[Interval]:
        begin = wait.end_ns
        parts = [
            part._replace(end_ns=min(part.end_ns, until))
            for part in _between(self._parts, begin, until)
            if part.thread == wait.thread
        ]
        away = [*self._away(wait, until, near)]
        # A collection may have begun in the wait
        before = max(bisect_left(self._collections, (begin,)) - 1, 0)
        collected = [
            Interval(max(part.start_ns, begin), min(part.end_ns, until), stages.GARBAGE)
            for part in _between(self._collections[before:], 0, until)
            if part.end_ns > begin
        ]
        base = [*self._base(begin, until, parts, away), *self._forward(begin, parts)]
        return list(_exclusive([*base, *parts, *away, *collected]))

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

    def _away(self, wait: Wait, until: int, near: Sequence[Wait]) -> Iterator[Interval]:
        """Yield the loops over other loaders in between, and the end of the epoch."""
        here = _between(self._iterators, wait.end_ns, until)
        begun = {key: start for start, _, key, thread in here if thread == wait.thread}
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


class Who(NamedTuple):
    """Rank and process of the tables."""

    rank: int
    pid: int
    """Process id of the training process."""
    origin_ns: int
    """Origin of the times."""


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


def loop(events: Events, loader: int, who: Who) -> LoopTables:
    """Return the tables of the loop over one loader, by its number."""
    steps = list(Steps(events, loader).steps())
    _split_copies(steps, events)
    deliveries = {b: times for b, times in events.deliveries.items() if b.loader == loader}
    pins = {batch: pin for batch, pin in events.pins.items() if batch.loader == loader}
    frame = _table([_step_row(step, who, events) for step in steps], STEPS, who)
    # A column of zeros: no batch was ever copied, or used, so nothing was measured
    never = [name for name in ("h2d_s", "step_s") if not frame[name].sum()]
    delivery_rows = [
        {"rank": who.rank, "epoch": batch.epoch, "batch": batch.number, **its}
        for batch, its in deliveries.items()
    ]
    return LoopTables(
        steps=frame.with_columns(pl.lit(None, STEPS[name]).alias(name) for name in never),
        waits=_table(list(_wait_rows(steps, loader, events, who)), WAITS, who),
        deliveries=_table(delivery_rows, DELIVERIES, who).sort("epoch", "batch"),
        side_spans=_table(list(_side_spans(steps, pins, deliveries, who)), SPANS, who),
    )


def _split_copies(steps: list[PendingStep], events: Events) -> None:
    """Separate a copy's wait for the device's earlier work from the copy itself.

    From pageable memory, the host waits for both.
    """
    busy = sorted(
        (start, end) for kind, start, end in events.device_work() if kind == stages.STEP.kind
    )
    for step in steps if busy else ():
        step.spans = [
            part
            for span in step.spans
            for part in (_waited(span, busy) if span.stage == stages.H2D else [span])
        ]


def _waited(copy: Interval, busy: list[tuple[int, int]]) -> Iterator[Interval]:
    """Split a copy into its wait for the device's earlier work, and the rest."""
    at = bisect_left(busy, (copy.start_ns + 1,)) - 1
    until = min(max(busy[at][1] if at >= 0 else 0, copy.start_ns), copy.end_ns)
    if until > copy.start_ns:
        yield Interval(copy.start_ns, until, stages.DEVICE_AT_WORK)
    if copy.end_ns > until:
        yield Interval(until, copy.end_ns, stages.H2D)


def _table(rows: list[Any], schema: dict[str, Any], who: Who) -> pl.DataFrame:
    """Return a table of the rows, with times from the start of the run."""
    moments = [name for name in schema if name.endswith("_ns") and name != "cpu_ns"]
    return pl.DataFrame(rows, schema, orient="row").with_columns(pl.col(moments) - who.origin_ns)


def _step_row(step: PendingStep, who: Who, events: Events) -> tuple[Any, ...]:
    spent: Counter[str] = Counter()
    for span in step.spans:
        spent[span.stage.kind] += span.end_ns - span.start_ns
    wait, batch = step.wait, step.batch
    pin = events.pins.get(batch)
    return (
        step.number,
        batch.epoch,
        batch.number,
        events.deliveries.get(batch, {}).get("worker"),
        (wait.end_ns - wait.start_ns) / 1e9,
        (pin[1] - pin[0]) / 1e9 if pin else None,
        spent.pop("h2d", 0) / 1e9,
        spent.pop("step", 0) / 1e9,
        sum(spent.values()) / 1e9,
        who.rank,
        wait.start_ns,
        wait.end_ns,
        None if step.restart_ns is None else step.restart_ns / 1e9,
        False,
    )


def _wait_rows(
    steps: list[PendingStep], loader: int, events: Events, who: Who
) -> Iterator[tuple[Any, ...]]:
    begun_ns = {key: start_ns for start_ns, _, key, _ in events.iterators}
    for step in steps:
        outer = step.wait.loader <= OUTER < loader
        for wait in step.wait.inside if outer else [step.wait]:
            batch, start_ns = wait.batch, wait.start_ns
            if batch is not None and (batch.loader == loader or not outer):
                place = (who.rank, step.number, batch.epoch, batch.number)
                if outer and not batch.number:  # the iterator's creation is part of the wait
                    start_ns = min(start_ns, begun_ns.get(wait.key, start_ns))
                yield (*place, max(start_ns, step.wait.start_ns), wait.end_ns)


def _side_spans(
    steps: list[PendingStep],
    pins: dict[Batch, tuple[int, int]],
    deliveries: dict[Batch, dict[str, int]],
    who: Who,
) -> Iterator[tuple[Any, ...]]:

    def row(pid: int, worker: int | None, batch: Batch, span: Interval) -> tuple[Any, ...]:
        place = (who.rank, pid, worker, batch.epoch, batch.number, None)
        return (*place, span.stage.name, span.stage.kind, span.start_ns, span.end_ns, None)

    for step in steps:
        for span in step.spans:
            yield row(who.pid, None, step.batch, span)
    for batch, pin in pins.items():
        yield row(who.pid, None, batch, Interval(*pin, stages.PIN))
    for batch, its in deliveries.items():
        if {"pid", "pickle_ns", "sent_ns"} <= its.keys():
            begin_ns = its["pickle_ns"]
            span = Interval(begin_ns, max(its["sent_ns"], begin_ns), stages.SEND)
            yield row(its["pid"], its.get("worker"), batch, span)


def mark_steady(
    batches: pl.DataFrame, tables: LoopTables, warmup: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the batches with `first` (of its process) and `steady`, and the steps with `steady`.

    A step may wait for several batches and use them all. Prefetched batches that no step used are
    left out, so that the same call gives the same count. A recording that is too short to leave out
    its start keeps everything.
    """
    steps = tables.steps
    first = _first(batches, tables.deliveries)
    batches = batches.join(first, on=_BATCH, how="left", maintain_order="left")
    batches = batches.with_columns(pl.col("first").fill_null(value=False))
    order = pl.struct("epoch", "batch").rank("dense").cast(STEPS["step"]) - 1
    # Where the loop was not recorded, assume that it uses every batch
    presumed = batches.select(*_BATCH, step=order) if steps.is_empty() else steps
    chosen = _steady(presumed, batches, first, warmup)
    steady = chosen.filter("steady").select("rank", "step")
    waited = tables.waits.join(steady, on=["rank", "step"], how="semi")
    used = pl.concat([chosen.filter("steady").select(_BATCH), waited.select(_BATCH)]).unique()
    marked = batches.join(
        used.with_columns(steady=True), on=_BATCH, how="left", maintain_order="left"
    )
    is_steady = pl.col("complete") & pl.col("steady").fill_null(value=False)
    marked = marked.with_columns(steady=is_steady)
    return marked, steps if steps.is_empty() else steps.with_columns(steady=chosen["steady"])


def _first(batches: pl.DataFrame, deliveries: pl.DataFrame) -> pl.DataFrame:
    """Return the first batch of each process that makes batches."""
    seen = deliveries.filter(pl.col("pid").is_not_null(), pl.col("taken_ns").is_not_null())
    makers = seen.select(*_BATCH, "pid") if seen.height else batches.select(*_BATCH, "pid")
    first = makers.sort("epoch", "batch").unique(["rank", "pid"], keep="first", maintain_order=True)
    return first.select(*_BATCH, first=pl.lit(value=True)).unique(_BATCH)


def _steady(
    steps: pl.DataFrame, batches: pl.DataFrame, first: pl.DataFrame, warmup: int
) -> pl.DataFrame:
    """Add `steady` to the steps, as strictly as a complete batch remains."""
    whole = batches.filter("complete").select(*_BATCH, whole=pl.lit(value=True)).unique(_BATCH)
    marked = steps.select(*_BATCH, "step")
    for marks in (first, whole):
        marked = marked.join(marks, on=_BATCH, how="left", maintain_order="left")
    marked = marked.with_columns(pl.col("first", "whole").fill_null(value=False))
    late, later = pl.col("step") >= warmup, ~pl.col("first")
    for steady in (late & later, later, pl.lit(value=True)):
        chosen = marked.with_columns(steady=steady)
        if whole.is_empty() or chosen.filter("steady", "whole").height:
            break
    return chosen
