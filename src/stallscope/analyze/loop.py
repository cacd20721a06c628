"""The loop's side as tables: steps, waits, deliveries, and what the loop did between two waits.

Times count from the start of the run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stallscope.analyze.spans import SPANS
from stallscope.analyze.steps import Interval, Step, Steps, loader_of
from stallscope.marks import OUTER
from stallscope.run import DELIVERIES, STEPS, WAITS
from stallscope.stages import PIN, SEND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.analyze.events import Batch, Delivery, Events


@dataclass(frozen=True)
class Who:
    """Whose tables these are."""

    rank: int
    pid: int
    """Of the process that trains."""
    origin_ns: int
    """Times count from here."""


@dataclass(frozen=True)
class Loop:
    """What the loop over one loader did."""

    steps: pl.DataFrame
    """Columns of `run.STEPS`; `steady` is false throughout."""
    waits: pl.DataFrame
    """Columns of `run.WAITS`."""
    deliveries: pl.DataFrame
    """Columns of `run.DELIVERIES`."""
    side_spans: pl.DataFrame
    """Columns of `analyze.spans.SPANS`."""


def loop(found: Events, loader: int, who: Who) -> Loop:
    """The tables of the loop over one loader.

    Args:
        found: what happened in the recording.
        loader: the loader's number.
        who: whose tables these are.
    """
    steps = list(Steps(found, loader).steps())
    worker = {batch: delivery.worker for batch, delivery in found.deliveries.items()}
    pins = {b: pin for b, pin in found.pins.items() if b.loader == loader}
    rows = [_step_row(step, who, worker.get(step.batch), pins.get(step.batch)) for step in steps]
    frame = pl.DataFrame(rows, STEPS, orient="row")
    # Where nothing was ever copied, or nothing was done with a batch, nothing was measured
    never = [name for name in ("h2d_s", "step_s") if not frame[name].sum()]
    return Loop(
        steps=frame.with_columns(pl.lit(None, STEPS[name]).alias(name) for name in never),
        waits=pl.DataFrame(list(_wait_rows(steps, loader, who)), WAITS, orient="row"),
        deliveries=_deliveries(found, loader, who),
        side_spans=pl.DataFrame(
            [*_loop_spans(steps, who), *_pin_spans(pins, who), *_sent(found, loader, who)],
            SPANS,
            orient="row",
        ),
    )


def _step_row(
    step: Step, who: Who, worker: int | None, pin: tuple[int, int] | None
) -> tuple[Any, ...]:
    spent: Counter[str] = Counter()
    for span in step.spans:
        spent[span.stage.kind] += span.end_ns - span.start_ns
    wait, batch = step.wait, step.batch
    return (
        step.number,
        batch.epoch,
        batch.number,
        worker,
        (wait.end_ns - wait.start_ns) / 1e9,
        (pin[1] - pin[0]) / 1e9 if pin else None,
        spent.pop("h2d", 0) / 1e9,
        spent.pop("step", 0) / 1e9,
        sum(spent.values()) / 1e9,
        who.rank,
        wait.start_ns - who.origin_ns,
        wait.end_ns - who.origin_ns,
        None if step.restart_ns is None else step.restart_ns / 1e9,
        False,
    )


def _wait_rows(steps: list[Step], loader: int, who: Who) -> Iterator[tuple[Any, ...]]:
    for step in steps:
        outer = loader_of(step.wait) <= OUTER < loader
        for wait in step.wait.inside if outer else [step.wait]:
            batch = wait.batch
            if batch is not None and (batch.loader == loader or not outer):
                yield (
                    who.rank,
                    step.number,
                    batch.epoch,
                    batch.number,
                    wait.start_ns - who.origin_ns,
                    wait.end_ns - who.origin_ns,
                )


def _loop_spans(steps: list[Step], who: Who) -> Iterator[tuple[Any, ...]]:
    for step in steps:
        for span in step.spans:
            yield _span(who, who.pid, None, step.batch, span)


def _pin_spans(pins: dict[Batch, tuple[int, int]], who: Who) -> Iterator[tuple[Any, ...]]:
    for batch, (begin, end) in pins.items():
        yield _span(who, who.pid, None, batch, Interval(begin, end, PIN))


def _sent(found: Events, loader: int, who: Who) -> Iterator[tuple[Any, ...]]:
    for batch, way in found.deliveries.items():
        if batch.loader == loader and way.pid and way.pickle_ns and way.sent_ns:
            span = Interval(way.pickle_ns, max(way.sent_ns, way.pickle_ns), SEND)
            yield _span(who, way.pid, way.worker, batch, span)


def _span(who: Who, pid: int, worker: int | None, batch: Batch, span: Interval) -> tuple[Any, ...]:
    begin, end = span.start_ns - who.origin_ns, span.end_ns - who.origin_ns
    place = (who.rank, pid, worker, batch.epoch, batch.number, None)
    return (*place, span.stage.name, span.stage.kind, begin, end, None)


def _deliveries(found: Events, loader: int, who: Who) -> pl.DataFrame:
    rows = [
        (who.rank, way.pid, way.worker, batch.epoch, batch.number, *_times(way, who))
        for batch, way in found.deliveries.items()
        if batch.loader == loader
    ]
    return pl.DataFrame(rows, DELIVERIES, orient="row").sort("epoch", "batch")


def _times(way: Delivery, who: Who) -> Iterator[int | None]:
    times = (way.asked_ns, way.taken_ns, way.made_ns, way.pickle_ns, way.sent_ns, way.arrived_ns)
    return (None if time is None else time - who.origin_ns for time in times)
