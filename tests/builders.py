"""Small runs out of plain rows, so that a test says what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from stallscope.analyze.spans import BATCHES, SAMPLES, SPANS
from stallscope.run import STARTUP, STEPS, Run, Settings

KINDS = {"fetch": "fetch", "decode": "decode", "collate": "collate"}
OTHERS = ("getitem", "batch")

Sample = Mapping[str, float] | Sequence[tuple[str, float]]
"""Milliseconds of each stage, in order; pairs where a stage comes more than once."""


def kind_of(stage: str) -> str:
    return KINDS.get(stage, "other" if stage in OTHERS else "transform")


@dataclass
class Made:
    """How the samples of a run were made."""

    workers: int = 1
    """0: in the main process."""
    batch_size: int = 4
    collate_ms: float | None = None
    warmup: int = 0
    """Batches at the start that are not steady."""
    cpu_share: Mapping[str, float] = field(default_factory=dict)
    """Of each stage; those that are not named were not read."""
    paths: Sequence[str | None] = ()
    pixels: Sequence[tuple[int, int]] = ()
    rest_ms: float = 0.0
    """Between two batches of a worker."""
    per_batch: bool = False
    """Samples cannot be told apart."""
    notes: tuple[str, ...] = ()


def a_run(samples: Sequence[Sample], **made) -> Run:
    """A run of these samples, in batches that the workers make in turn."""
    how = Made(**made)
    spans, batches, about = [], [], []
    clock_ns = dict.fromkeys(range(max(how.workers, 1)), 0)
    for first in range(0, len(samples), how.batch_size):
        number = first // how.batch_size
        lane = number % max(how.workers, 1)
        worker = lane if how.workers else None
        who = (0, 100 + lane, worker, 0, number)
        batches.append((*who, True, number >= how.warmup))
        for place, sample in enumerate(samples[first : first + how.batch_size]):
            about.append((0, number, place, worker, *_about(how, first + place)))
            pairs = sample.items() if isinstance(sample, Mapping) else sample
            inside = None if how.per_batch else place
            spans += [_span((*who, inside), pair, clock_ns, how) for pair in pairs]
        if how.collate_ms is not None:
            spans.append(_span((*who, None), ("collate", how.collate_ms), clock_ns, how))
        clock_ns[lane] += int(how.rest_ms * 1e6)
    keys = {**BATCHES, "steady": pl.Boolean}
    return Run(
        all_spans=pl.DataFrame(spans, SPANS, orient="row"),
        all_samples=pl.DataFrame([] if how.per_batch else about, SAMPLES, orient="row"),
        batches=pl.DataFrame(batches, keys, orient="row"),
        all_steps=pl.DataFrame(
            [(n, 0, row[4], row[2], *[None] * 5) for n, row in enumerate(batches)],
            STEPS,
            orient="row",
        ),
        startup=_startup(how, clock_ns),
        settings=Settings("test", how.workers, how.batch_size, how.warmup),
        first_batch_s=0.3 if batches else None,
        notes=how.notes,
    )


def _about(how: Made, number: int):
    path = how.paths[number % len(how.paths)] if how.paths else None
    width, height = how.pixels[number % len(how.pixels)] if how.pixels else (None, None)
    there = path is not None and Path(path).is_file()
    return number, path, width, height, Path(path).stat().st_size if there else None


def _span(place, what, clock_ns, how):
    stage, ms = what
    lane = place[1] - 100
    start_ns = clock_ns[lane]
    clock_ns[lane] += int(ms * 1e6)
    cpu = how.cpu_share.get(stage)
    cpu_ns = None if cpu is None else int(ms * 1e6 * cpu)
    return (*place, stage, kind_of(stage), start_ns, clock_ns[lane], cpu_ns)


def _startup(how: Made, clock_ns) -> pl.DataFrame:
    lanes = [lane for lane, ns in clock_ns.items() if ns]
    rows = [
        (lane if how.workers else None, 100 + lane, 0, 0.05 * (lane + 1), 0.02, 0.004)
        for lane in lanes
    ]
    return pl.DataFrame(rows, STARTUP, orient="row")
