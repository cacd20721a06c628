"""Small runs from plain rows, so that a test states only its own numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from stallscope.run.decode import BATCHES, RESOURCES, SAMPLES, SPANS
from stallscope.run.result import DELIVERIES, STARTUP, STEPS, WAITS, Run, Settings
from stallscope.stages import CORE

KINDS = {
    **{kind: kind for kind in ("fetch", "decode", "collate", "send", "pin", "h2d", "step")},
    **dict.fromkeys(("forward", "forward (until backward)", "backward", "optimizer"), "step"),
    **dict.fromkeys(("getitem", "batch", "other", "garbage collection", "another loader"), "other"),
}

Sample = Mapping[str, float] | Sequence[tuple[str, float]]
"""Milliseconds of each stage, in order; pairs where a stage comes more than once."""


def kind_of(stage: str) -> str:
    return KINDS.get(stage, "transform")


@dataclass
class Made:
    """Circumstances of a run's samples."""

    workers: int = 1
    """Number of workers; 0: the main process."""
    batch_size: int = 4
    collate_ms: float | None = None
    warmup: int = 0
    """Batches at the start that are not steady."""
    cpu_share: Mapping[str, float] = field(default_factory=dict)
    """CPU share by stage; of other stages it was not read."""
    paths: Sequence[str | None] = ()
    pixels: Sequence[tuple[int, int]] = ()
    rest_ms: float = 0.0
    """Milliseconds between two batches of a worker."""
    per_batch: bool = False
    """True: samples cannot be told apart."""
    notes: tuple[str, ...] = ()


def a_run(
    samples: Sequence[Sample], *, steps=None, waits=None, deliveries=None, side_spans=None, **fields
) -> Run:
    """Make a run of these samples, in batches that the workers make in turn.

    Args:
        samples: what each sample's stages took.
        steps: what `steps_of` gives; without, one step a batch whose waits were not recorded.
        waits: columns of `WAITS`; without, each step waits once, for its own batch.
        deliveries: what `deliveries_of` gives; without, none were seen.
        side_spans: what `spans_of` gives; without, none were seen.
        fields: of `Made`.
    """
    how = Made(**fields)
    spans, batches, about = [], [], []
    clock_ns = dict.fromkeys(range(max(how.workers, 1)), 0)
    for first in range(0, len(samples), how.batch_size):
        number = first // how.batch_size
        lane = number % max(how.workers, 1)
        worker = lane if how.workers else None
        who = (0, 100 + lane, worker, 0, number)
        batches.append((*who, True, number >= how.warmup))
        for place, sample in enumerate(samples[first : first + how.batch_size]):
            at = {"epoch": 0, "batch": number, "sample": place, "worker": worker, "rank": 0}
            about.append(at | _about(how, first + place))
            pairs = sample.items() if isinstance(sample, Mapping) else sample
            inside = None if how.per_batch else place
            spans += [_span((*who, inside), pair, clock_ns, how) for pair in pairs]
        if how.collate_ms is not None:
            spans.append(_span((*who, None), ("collate", how.collate_ms), clock_ns, how))
        clock_ns[lane] += int(how.rest_ms * 1e6)
    keys = {**BATCHES, "steady": pl.Boolean}
    steps = _unmeasured(batches) if steps is None else steps
    return Run(
        all_spans=pl.DataFrame(spans, SPANS, orient="row"),
        all_samples=_frame([] if how.per_batch else about, SAMPLES, {}),
        batches=pl.DataFrame(batches, keys, orient="row"),
        all_steps=steps,
        waits=waits_of(steps) if waits is None else waits,
        deliveries=deliveries_of() if deliveries is None else deliveries,
        side_spans=spans_of() if side_spans is None else side_spans,
        startup=_startup(how, clock_ns),
        settings=Settings("test", how.workers, how.batch_size, how.warmup),
        first_batch_s=0.3 if batches else None,
        notes=how.notes,
    )


def steps_of(wait_s: Sequence[float], *, start_s: float = 0.0, **columns) -> pl.DataFrame:
    """Return steps of the training loop, one after the other, on one clock.

    Args:
        wait_s: of each step.
        start_s: when the first one begins to wait.
        columns: any other of `STEPS`, one value for all or a list; without, every step is steady,
            has its own number as its batch, is of worker 0 and takes 0.1 s.
    """
    count = len(wait_s)
    usual = {"epoch": 0, "worker": 0, "step_s": 0.1, "rank": 0, "steady": True}
    numbers = {"step": range(count), "batch": range(count), "wait_s": wait_s}
    data = {**usual, **numbers, **columns}
    each = {
        name: list(value) if isinstance(value, (Sequence, range)) else [value] * count
        for name, value in data.items()
    }
    nothing = [None] * count
    begins, ends, now_s = [], [], start_s
    for place in range(count):
        now_s += each.get("restart_s", nothing)[place] or 0.0
        begins.append(round(now_s * 1e9))
        ends.append(round((now_s + wait_s[place]) * 1e9))
        parts = ("wait_s", "h2d_s", "step_s", "other_s")
        now_s += sum(each.get(part, nothing)[place] or 0.0 for part in parts)
    rows = dict.fromkeys(STEPS, nothing) | {"start_ns": begins, "end_ns": ends} | each
    return pl.DataFrame(rows, STEPS)


def waits_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of a loop that iterates the DataLoader itself: one a step."""
    return steps.drop_nulls("start_ns").select(*WAITS)


def resources_of(use: Mapping[tuple[str, str], object], length_s: int, *, rank: int = 0):
    """Return ten samples a second of resources, from the start of the run on.

    Args:
        use: of each resource and device a value, or a list of one for each second; with its limit
            as a pair.
        length_s: how long it was sampled.
        rank: of the process that sampled.
    """
    rows = []
    for (resource, device), used in use.items():
        values, limit = used if isinstance(used, tuple) else (used, None)
        if resource == CORE:
            limit = 1.0
        for tenth in range(10 * length_s):
            value = values[tenth // 10] if isinstance(values, list) else values
            at_ns = tenth * 100_000_000
            rows.append((rank, at_ns, at_ns + 100_000_000, resource, device, value, limit))
    return pl.DataFrame(rows, RESOURCES, orient="row")


def deliveries_of(*rows: Mapping[str, float | None]) -> pl.DataFrame:
    """Return batches on their way, with the known columns of `DELIVERIES`."""
    return _frame(rows, DELIVERIES, {"rank": 0, "pid": 100, "worker": 0, "epoch": 0})


def spans_of(*rows: Mapping[str, object]) -> pl.DataFrame:
    """Return spans, with the known columns of `SPANS`; the kind follows from the stage."""
    kinds = [{"kind": kind_of(str(row["stage"])), **row} for row in rows]
    return _frame(kinds, SPANS, {"rank": 0, "pid": 100, "worker": 0, "epoch": 0, "batch": 0})


def _frame(rows, schema, usual) -> pl.DataFrame:
    full = [{**dict.fromkeys(schema), **usual, **row} for row in rows]
    return pl.DataFrame(full, schema, orient="row")


def _unmeasured(batches) -> pl.DataFrame:
    """Return a step for each batch, without times."""
    steps = [
        {"step": number, "epoch": 0, "batch": row[4], "worker": row[2], "rank": 0, "steady": row[6]}
        for number, row in enumerate(batches)
    ]
    return _frame(steps, STEPS, {})


def _about(how: Made, number: int):
    path = how.paths[number % len(how.paths)] if how.paths else None
    width, height = how.pixels[number % len(how.pixels)] if how.pixels else (None, None)
    there = path is not None and Path(path).is_file()
    bytes_ = Path(path).stat().st_size if there else None
    fields = {"index": number, "path": path, "width": width, "height": height}
    return fields | {"bytes": bytes_}


def _span(place, what, clock_ns, how):
    stage, ms = what
    lane = place[1] - 100
    start_ns = clock_ns[lane]
    clock_ns[lane] += int(ms * 1e6)
    cpu = how.cpu_share.get(stage)
    cpu_ns = None if cpu is None else int(ms * 1e6 * cpu)
    return (*place, stage, kind_of(stage), start_ns, clock_ns[lane], cpu_ns)


def _startup(how: Made, clock_ns) -> pl.DataFrame:
    rows = [
        {
            "worker": lane if how.workers else None,
            "pid": 100 + lane,
            "epoch": 0,
            "ready_s": 0.05 * (lane + 1),
            "first_sample_s": 0.02,
            "typical_sample_s": 0.004,
            "rank": 0,
        }
        for lane, ns in clock_ns.items()
        if ns
    ]
    return _frame([{name: row.get(name) for name in STARTUP} for row in rows], STARTUP, {})
