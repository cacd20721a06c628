"""From the words of a log to spans: which stage was at work in which sample, from when to when.

Spans are exclusive: they never overlap within a thread. A stage that is interrupted by one inside
of it (a transform that triggers a decode) is two spans. So durations add up, to the sample's time
and to a worker's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stallscope.analyze.interrupted import Interrupted, inside_of, raised_in
from stallscope.analyze.words import Words, last_at
from stallscope.eventlog import INDEX_OFFSET, Tag
from stallscope.stages import KINDS

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    from stallscope.eventlog import LogPages

    Schema = dict[str, PolarsDataType]


SPANS: Schema = {
    "rank": pl.Int16,
    "pid": pl.Int32,
    "worker": pl.Int16,
    "epoch": pl.Int32,
    "batch": pl.Int32,
    "sample": pl.Int32,
    "stage": pl.Categorical,
    "kind": pl.Enum(KINDS),
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cpu_ns": pl.Int64,
}
"""One row a span. `worker` is null in the main process, `sample` (its place in the batch, from 0)
is null for what belongs to the batch, `cpu_ns` is null where it was not read. Times count from the
start of the run."""

BATCHES: Schema = {
    "rank": pl.Int16,
    "pid": pl.Int32,
    "worker": pl.Int16,
    "epoch": pl.Int32,
    "batch": pl.Int32,
    "complete": pl.Boolean,
}
"""One row a recorded batch; `complete` when its end was recorded."""

SAMPLES: Schema = {
    "epoch": pl.Int32,
    "batch": pl.Int32,
    "sample": pl.Int32,
    "worker": pl.Int16,
    "index": pl.Int64,
    "path": pl.String,
    "width": pl.Int32,
    "height": pl.Int32,
    "bytes": pl.Int64,
    "rank": pl.Int16,
}
"""One row a sample: what it was. From `index` on, null is what is unknown: the index in the
dataset, the file, the image's width and height in pixels, the file's size."""


@dataclass(frozen=True)
class Decoded:
    """What one log says."""

    spans: pl.DataFrame
    """Columns of `SPANS`."""
    batches: pl.DataFrame
    """Columns of `BATCHES`."""
    samples: pl.DataFrame
    """Columns of `SAMPLES`."""
    skipped: int = 0
    """Batches that were not recorded, because recording would have cost too much."""
    inside: Interrupted | None = None
    """Where the process was when its log ended; None between two batches."""
    raised: Interrupted | None = None
    """The innermost stage that the last failing sample's exception came from."""
    notes: tuple[str, ...] = field(default=())


def decode(log: LogPages, *, origin_ns: int, rank: int = 0) -> Decoded:
    """Turn a log into spans.

    Args:
        log: the words and the names of one process.
        origin_ns: `perf_counter_ns()` at the start of the run; times count from here.
        rank: rank of the process in a distributed run.
    """
    words = Words(log)
    return Decoded(
        spans=_spans(words, origin_ns, rank),
        batches=_batches(words, rank),
        samples=_samples(words, rank),
        skipped=int(np.count_nonzero(words.tags == Tag.SKIPPED)),
        inside=inside_of(words),
        raised=raised_in(words),
        notes=log.notes,
    )


def _spans(words: Words, origin_ns: int, rank: int) -> pl.DataFrame:
    begins, ends = _stretches(words)
    place = words.event_at[begins]
    sample = words.sample_of_word[place]
    known = sample >= 0
    in_batch = np.where(known, words.sample_place(sample) if words.sample_at.size else 0, 0)
    code = words.code[begins]
    frame = pl.DataFrame(
        {
            "epoch": words.epoch(place),
            "batch": words.payload[words.batch_at[words.batch[begins]]],
            "sample": in_batch,
            "code": code,
            "start_ns": words.time_ns[begins] - origin_ns,
            "end_ns": words.time_ns[ends] - origin_ns,
            "cpu_ns": _cpu(words, begins, ends),
        }
    )
    names = pl.Series([stage.name for stage in words.stages], dtype=pl.Categorical)
    kinds = pl.Series([stage.kind for stage in words.stages], dtype=SPANS["kind"])
    return frame.with_columns(
        *_who(words, rank),
        sample=pl.when(pl.Series(known)).then("sample"),
        stage=names.gather(frame["code"]),
        kind=kinds.gather(frame["code"]),
        cpu_ns=pl.when(pl.col("cpu_ns") >= 0).then("cpu_ns"),
    ).select(pl.col(name).cast(kind) for name, kind in SPANS.items())


def _stretches(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """First and last event of each span: from one event to the next, as long as nothing changes."""
    open_here = (words.batch[1:] == words.batch[:-1]) & (words.depth[:-1] > 0)
    of_none = words.void[words.sample_of_word[words.event_at[:-1]]]
    begins = np.flatnonzero(open_here & ~of_none)
    sample = words.sample_of_word[words.event_at[begins]]
    code = words.code[begins]
    goes_on = np.zeros(begins.size, dtype=bool)
    goes_on[1:] = (
        (begins[1:] == begins[:-1] + 1) & (sample[1:] == sample[:-1]) & (code[1:] == code[:-1])
    )
    last = np.append(np.flatnonzero(~goes_on)[1:] - 1, begins.size - 1) if begins.size else begins
    return begins[~goes_on], begins[last] + 1


def _cpu(words: Words, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """CPU time of each span in ns, -1 where it was not read at both ends."""
    before = np.maximum(words.event_at - 1, 0)
    read = words.tags[before] == Tag.CPU
    cpu = words.payload[before]
    both = read[begins] & read[ends]
    return np.where(both, cpu[ends] - cpu[begins], -1)


def _who(words: Words, rank: int) -> list[pl.Expr]:
    return [
        pl.lit(rank).alias("rank"),
        pl.lit(words.log.pid).alias("pid"),
        pl.lit(words.worker, dtype=pl.Int16).alias("worker"),
    ]


def _batches(words: Words, rank: int) -> pl.DataFrame:
    recorded = words.tags[words.batch_at] == Tag.BATCH
    ended = np.zeros(words.batch_at.size, dtype=bool)
    ends = np.flatnonzero(words.tags == Tag.BATCH_END)
    ended[words.batch_of_word[ends]] = True
    frame = pl.DataFrame(
        {
            "epoch": words.epoch(words.batch_at),
            "batch": words.payload[words.batch_at],
            "complete": ended,
        }
    )
    return (
        frame.filter(recorded)
        .with_columns(*_who(words, rank))
        .select(pl.col(name).cast(kind) for name, kind in BATCHES.items())
    )


def _samples(words: Words, rank: int) -> pl.DataFrame:
    at = words.sample_at
    numbers = np.arange(at.size)
    pixels = _first_in_sample(words, words.tags == Tag.PIXELS)
    file = _file_of_sample(words, pixels)
    paths = [None, *(_readable(words.log, i + 1) for i in range(max(words.log.files, default=0)))]
    size = np.where(pixels >= 0, words.payload[np.maximum(pixels, 0)], 0) if at.size else numbers
    batch = words.batch_at[words.batch_of_word[at]]
    frame = pl.DataFrame(
        {
            "epoch": words.epoch(at),
            "batch": words.payload[batch],
            "sample": words.sample_place(numbers),
            "index": words.payload[at] - INDEX_OFFSET,
            # A killed process may not have named the files of its last batch.
            "file": np.where(file < len(paths), file, 0),
            "width": size >> 24,
            "height": size & ((1 << 24) - 1),
            "indexed": words.tags[at] == Tag.SAMPLE,
        }
    )
    known = frame.filter(~words.void[:-1])
    return known.with_columns(
        rank=pl.lit(rank),
        worker=pl.lit(words.worker, dtype=pl.Int16),
        index=pl.when("indexed").then("index"),
        path=pl.Series(paths, dtype=pl.String).gather(known["file"]),
        width=pl.when(pl.col("width") > 0).then("width"),
        height=pl.when(pl.col("height") > 0).then("height"),
        bytes=pl.lit(None),  # asked later: no process waits for it while it loads
    ).select(pl.col(name).cast(kind) for name, kind in SAMPLES.items())


def _readable(log: LogPages, number: int) -> str | None:
    """A file's path, with the bytes of its name that are no text written out."""
    path = log.files.get(number)
    return path and path.encode("utf-8", "backslashreplace").decode()


def _first_in_sample(words: Words, here: np.ndarray) -> np.ndarray:
    """For each sample, the first word in it where `here` is true; -1 where there is none."""
    found = np.full(words.sample_at.size, -1)
    at = np.flatnonzero(here & (words.sample_of_word >= 0))[::-1]
    found[words.sample_of_word[at]] = at  # the first one is written last
    return found


def _file_of_sample(words: Words, pixels: np.ndarray) -> np.ndarray:
    """Number of each sample's file, 0 where unknown: the image's, else the first one opened."""
    is_file = words.tags == Tag.FILE
    at = _first_in_sample(words, is_file)
    before_image = last_at(is_file)[np.maximum(pixels, 0)] if pixels.size else pixels
    at = np.where((pixels >= 0) & (at >= 0) & (before_image >= at), before_image, at)
    return np.where(at >= 0, words.payload[np.maximum(at, 0)], 0) if at.size else at
