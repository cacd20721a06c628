"""Decode the words of a log into tables and marks: which stage ran in which sample, and when.

Spans never overlap within a thread. A stage that another one interrupts (a transform that triggers
a decode) becomes two spans. So durations add up to the time of the sample and of the worker. The
code works on whole arrays, in time linear in the number of words (and one stable sort by depth),
because a log may hold tens of millions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.columns import Column, Schema
from stallscope.hooks.event_log import (
    CODE_SHIFT,
    DRIFT_OFFSET,
    EXTRA_SHIFT,
    INDEX_OFFSET,
    MOST_CODES,
    NUMBER,
    PAYLOAD,
    TAGS,
    TIME,
    Mark,
    Tag,
)
from stallscope.hooks.recording_folder import EPOCHS
from stallscope.stages import GAUGES, KINDS, NAMES, SHARES, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.hooks.event_log import LogPages


UNKNOWN = Stage("unnamed", "other")
"""Stage of a code whose name was lost with its process."""


OF_BATCH: Final = (
    Column("rank", pl.Int16),
    Column("pid", pl.Int32),
    Column("worker", pl.Int16, "null: the main process"),
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
)
"""Columns of what a process made for a batch."""
SPANS: Final = Schema(
    "One row per span; times count from the start of the run.",
    *OF_BATCH,
    Column("sample", pl.Int32, "place in the batch, from 0; null: work on the whole batch"),
    Column("stage", pl.Categorical),
    Column("kind", pl.Enum(KINDS)),
    Column("start_ns", pl.Int64),
    Column("end_ns", pl.Int64),
    Column("cpu_ns", pl.Int64, "null: not read"),
    nullable="worker sample cpu_ns",
)
BATCHES: Final = Schema(
    "One row per recorded batch.",
    *OF_BATCH,
    Column("complete", pl.Boolean, "true if its end was recorded"),
    nullable="worker",
)
SAMPLES: Final = Schema(
    "One row per sample: its origin; null means unknown.",
    Column("epoch", pl.Int32),
    Column("batch", pl.Int32),
    Column("sample", pl.Int32),
    Column("worker", pl.Int16),
    Column("index", pl.Int64, "place in the dataset", any_number=True),
    Column("path", pl.String, "its file"),
    Column("width", pl.Int32, "of the image, in pixels"),
    Column("height", pl.Int32),
    Column("bytes", pl.Int64, "size of the file"),
    Column("rank", pl.Int16),
    nullable="sample worker index path width height bytes",
)
RESOURCES: Final = Schema(
    "One row per sample of a resource on a device; null device and value: unreadable.",
    Column("rank", pl.Int16),
    Column("start_ns", pl.Int64, "from the start of the run; a share or rate begins here"),
    Column("end_ns", pl.Int64, "its end; time of a size"),
    Column("resource", pl.Categorical, "see `stallscope.stages`", words=NAMES),
    Column("device", pl.Categorical, "core, process id, disk"),
    Column("value", pl.Float64, "usage in the unit of the resource's name"),
    Column("limit", pl.Float64, "capacity; null: unknown"),
    nullable="device value limit",
)

_ENDS: Final = ("StopIteration", "GeneratorExit")
"""Exceptions that end an iterator, and are no failure."""
SHORTEST_NS: Final = 20_000_000
"""Shortest time of a rate. Below, it is noise: the kernel counts CPU time in steps of 10 ms."""


class DecodedWords:
    """Decoded words of a log: arrays over all words, and over the events among them."""

    def __init__(self, log: LogPages) -> None:
        self.log = log
        self.tags = log.words & TAGS
        self.payload = log.words & PAYLOAD
        batches = (self.tags == Tag.BATCH) | (self.tags == Tag.SKIPPED)
        self.batch_at = np.flatnonzero(batches)
        self.batch_of_word = np.cumsum(batches) - 1
        epochs = _latest(self.tags == Tag.EPOCH, self.payload - INDEX_OFFSET)
        self.complete = np.zeros(self.batch_at.size + 1, dtype=bool)  # the last place: no batch
        self.complete[self.batch_of_word[self.tags == Tag.BATCH_END]] = True
        self.epochs = epochs[self.batch_at]
        """Epoch of each batch; a loader inside of a dataset may be in another epoch meanwhile."""
        begins = (self.tags == Tag.SAMPLE) | (self.tags == Tag.UNINDEXED)
        begins &= self.batch_of_word >= 0  # the word of its batch may be missing
        self.sample_at = np.flatnonzero(begins)
        edge = begins | batches | np.isin(self.tags, (Tag.SAMPLE_END, Tag.BATCH_END))
        last_edge = last_at(edge)
        in_sample = (last_edge >= 0) & begins[np.maximum(last_edge, 0)]
        self.sample_of_word = np.where(in_sample, np.cumsum(begins) - 1, -1)
        self.void = np.zeros(self.sample_at.size + 1, dtype=bool)  # the last place: no sample
        self.void[self.sample_of_word[self.tags == Tag.EXHAUSTED]] = True
        self.void[-1] = False
        is_event = ((self.tags == Tag.ENTER) | (self.tags == 0)) & (self.batch_of_word >= 0)
        self.event_at = np.flatnonzero(is_event)
        self.enters = self.tags[self.event_at] == Tag.ENTER
        times = np.where(
            self.enters,
            (log.words[self.event_at] & TIME) + log.started_ns,
            log.words[self.event_at],
        )
        # Python may collect garbage, and record it, just after an event has read the clock
        self.time_ns = np.maximum.accumulate(times)
        self.batch = self.batch_of_word[self.event_at]
        self.depth = self._depths()
        self.top = self._tops()
        self.stages = [log.names.stages.get(code, UNKNOWN) for code in range(MOST_CODES)]
        """Stage of each code."""
        self.code = ((log.words[self.event_at] & PAYLOAD) >> CODE_SHIFT)[self.top]
        """For each event, the code of the stage that is at work after it."""

    def _depths(self) -> np.ndarray:
        """Count the open stages after each event; every batch begins without any."""
        steps = np.where(self.enters, 1, -1)
        height = np.cumsum(steps)
        first = np.flatnonzero(np.diff(self.batch, prepend=-1))
        floor = height[first] - steps[first]
        lengths = np.diff(np.append(first, self.batch.size))
        depths: np.ndarray = height - np.repeat(floor, lengths)
        return depths

    def _tops(self) -> np.ndarray:
        """Return for each event the enter event of the innermost stage after it.

        It is the last enter at the same depth, so one stable sort by depth finds them all.
        """
        order = np.argsort(self.depth.astype(np.int32), kind="stable")
        last = last_at(self.enters[order])
        tops = np.empty(order.size, dtype=np.int64)
        tops[order] = order[np.maximum(last, 0)] if order.size else order
        return tops

    def sample_place(self, sample: np.ndarray) -> np.ndarray:
        """Return the place in its batch of each sample, by its number in the log."""
        batch = self.batch_of_word[self.sample_at]
        first = np.searchsorted(batch, batch, side="left")
        places: np.ndarray = (np.arange(batch.size) - first)[sample]
        return places

    @property
    def worker(self) -> int | None:
        """Worker id; None for the main process."""
        return self.log.worker if self.log.worker >= 0 else None


def last_at(here: np.ndarray) -> np.ndarray:
    """Return for each position the last one up to it where `here` is true; -1 before."""
    last: np.ndarray = np.maximum.accumulate(np.where(here, np.arange(here.size), -1))
    return last


def _latest(here: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each position the value at the last one up to it where `here` is true."""
    last = last_at(here)
    return np.where(last >= 0, values[np.maximum(last, 0)], 0) if last.size else values


class MarkRow(NamedTuple):
    """Mark of a log."""

    what: int
    """`event_log.Mark`."""
    thread: int
    key: int
    """Loader and epoch, see `recording_folder.epoch_key`; 0 where it does not matter."""
    number: int
    extra: int
    """Code of a part, or see `Mark`."""
    time_ns: int
    """`perf_counter_ns()`."""


def marks(log: LogPages) -> np.ndarray:
    """Return the marks of a log: int64, one row per mark, columns of `MarkRow`.

    A damaged file may hold any number; marks with impossible numbers are left out.
    """
    tags, payload = log.words & TAGS, log.words & PAYLOAD
    key = _latest(tags == Tag.EPOCH, payload - INDEX_OFFSET)
    number = _latest(tags == Tag.NUMBER, payload)
    at = np.flatnonzero((tags >= min(Mark)) & (tags <= max(Mark)))
    what, payload, key, number = tags[at], payload[at], key[at], number[at]
    is_part, is_edge = what >= Mark.BEGIN, what == Mark.DEVICE
    # The time of parts wraps after some days: take the turn nearest to the file's creation
    since = (payload & TIME) + log.started_ns - log.born_ns + (TIME + 1) // 2
    time_ns = np.where(is_part, log.born_ns + (since & TIME) - (TIME + 1) // 2, payload)
    extra = np.where(is_part, payload >> CODE_SHIFT, number >> EXTRA_SHIFT)
    number = (number & NUMBER) - np.where(is_edge, DRIFT_OFFSET, 0)
    rows = np.stack([what, np.full(at.size, log.thread), key, number, extra, time_ns], axis=1)
    sound = (np.abs(key) < EPOCHS << 20) & ((number < EPOCHS << 10) | (what == Mark.PINS))
    whole: np.ndarray = rows[(sound | is_part | is_edge) & (time_ns > 0)]
    return whole


def inside_of(words: DecodedWords) -> str:
    """Name the stage that was open when the log ended; empty between two batches."""
    if not words.depth.size or words.depth[-1] < 1:
        return ""
    later = words.tags[words.event_at[-1] :]
    if np.isin(later, (Tag.BATCH_END, Mark.MADE)).any():
        return ""
    return _where(words, int(words.event_at[-1]), int(words.code[-1]))


def raised_in(words: DecodedWords) -> str:
    """Name the innermost stage that the last exception left; empty without an exception."""
    at = np.flatnonzero(words.tags == Tag.RAISED)
    if not at.size:
        return ""
    same = (words.batch_of_word[at] == words.batch_of_word[at[-1]]) & (
        words.sample_of_word[at] == words.sample_of_word[at[-1]]
    )
    first = int(at[same][0])  # each stage that an exception leaves writes a word, innermost first
    return _where(words, first, int(words.payload[first]))


def _where(words: DecodedWords, at: int, code: int) -> str:
    process = "the main process" if words.worker is None else f"worker {words.worker}"
    batch = int(words.payload[words.batch_at[words.batch_of_word[at]]])
    text = f"{process} (pid {words.log.pid}) was in '{words.stages[code].name}' of batch {batch}"
    if (number := int(words.sample_of_word[at])) >= 0:
        word = int(words.sample_at[number])
        text += f", sample {words.sample_place(np.array([number]))[0]} of the batch"
        if words.tags[word] == Tag.SAMPLE:
            text += f" (index {int(words.payload[word]) - INDEX_OFFSET} of the dataset)"
    return text


class Decoded(NamedTuple):
    """Content of one file of a log."""

    log: LogPages
    loaders: frozenset[int]
    """Loaders that its thread worked for."""
    ready_ns: int | None
    """Time when the process asked for its first batch; None where another file has it."""
    spans: pl.DataFrame
    """Columns of `SPANS`."""
    batches: pl.DataFrame
    """Columns of `BATCHES`."""
    samples: pl.DataFrame
    """Columns of `SAMPLES`."""
    inside: str
    """Stage of the process when its log ended; empty between two batches."""
    raised: str
    """Innermost stage that the last failing sample's exception came from."""
    lost: LostSamples


class LostSamples(NamedTuple):
    """Samples of complete batches that did not reach the loop as the dataset meant them."""

    all: int
    """Samples of complete batches, lost or not."""
    none: int
    """Those that are None."""
    caught: Counter[str]
    """Those in which the dataset caught an exception, by its type and the stage that it left."""


def lost_in(words: DecodedWords) -> LostSamples:
    """Count the lost samples of complete batches."""
    whole = words.complete[words.batch_of_word] & (words.sample_of_word >= 0)
    caught: Counter[str] = Counter()
    at = np.flatnonzero(whole & (words.tags == Tag.RAISED))
    _, first = np.unique(words.sample_of_word[at], return_index=True)  # the innermost stage
    for code in words.payload[at[first]].tolist():
        kind = words.log.names.errors.get(code, "an exception")
        if kind not in _ENDS:
            caught[f"{kind} in {words.stages[code].name}"] += 1
    is_none = whole & (words.tags == Tag.NONE)
    return LostSamples(int(whole[words.sample_at].sum()), int(is_none.sum()), caught)


def decode(log: LogPages, *, origin_ns: int, rank: int = 0) -> Decoded:
    """Turn a file of a log into spans; their times count from `origin_ns`."""
    words = DecodedWords(log)
    ready = words.payload[words.tags == Mark.READY] - origin_ns
    keys = words.payload[words.tags == Tag.EPOCH] - INDEX_OFFSET
    return Decoded(
        log,
        frozenset((keys // EPOCHS).tolist()),
        next(iter(ready.tolist()), None),
        spans=_spans(words, origin_ns, rank),
        batches=_batches(words, rank),
        samples=_samples(words, rank),
        inside=inside_of(words),
        raised=raised_in(words),
        lost=lost_in(words),
    )


def _spans(words: DecodedWords, origin_ns: int, rank: int) -> pl.DataFrame:
    begins, ends = _stretches(words)
    place = words.event_at[begins]
    sample = words.sample_of_word[place]
    is_in_sample = sample >= 0
    in_batch = np.where(is_in_sample, words.sample_place(sample) if words.sample_at.size else 0, 0)
    code = words.code[begins]
    # The word before an event has the CPU time, where it was read
    before = np.maximum(words.event_at - 1, 0)
    read, cpu = words.tags[before] == Tag.CPU, words.payload[before]
    both = read[begins] & read[ends]
    frame = pl.DataFrame(
        {
            "epoch": words.epochs[words.batch[begins]],
            "batch": words.payload[words.batch_at[words.batch[begins]]],
            "sample": in_batch,
            "code": code,
            "start_ns": words.time_ns[begins] - origin_ns,
            "end_ns": words.time_ns[ends] - origin_ns,
            "cpu_ns": np.where(both, cpu[ends] - cpu[begins], -1),
        }
    )
    names = pl.Series([stage.name for stage in words.stages], dtype=pl.Categorical)
    kinds = pl.Series([stage.kind for stage in words.stages], dtype=SPANS["kind"])
    spans = frame.with_columns(
        sample=pl.when(pl.Series(is_in_sample)).then("sample"),
        stage=names.gather(frame["code"]),
        kind=kinds.gather(frame["code"]),
        cpu_ns=pl.when(pl.col("cpu_ns") >= 0).then("cpu_ns"),
    )
    return _typed(spans, words, rank, SPANS)


def _stretches(words: DecodedWords) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last event of each span: consecutive events of one sample and stage."""
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


def _typed(frame: pl.DataFrame, words: DecodedWords, rank: int, schema: Schema) -> pl.DataFrame:
    """Return the columns of a schema, with those that name the process."""
    worker = pl.lit(words.worker, dtype=pl.Int16)
    named = frame.with_columns(rank=pl.lit(rank), pid=pl.lit(words.log.pid), worker=worker)
    return named.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _batches(words: DecodedWords, rank: int) -> pl.DataFrame:
    recorded = words.tags[words.batch_at] == Tag.BATCH
    batch = words.payload[words.batch_at]
    columns = {"epoch": words.epochs, "batch": batch, "complete": words.complete[:-1]}
    return _typed(pl.DataFrame(columns).filter(recorded), words, rank, BATCHES)


def _samples(words: DecodedWords, rank: int) -> pl.DataFrame:
    at = words.sample_at
    numbers = np.arange(at.size)
    pixels = _first_in_sample(words, words.tags == Tag.PIXELS)
    file = _file_of_sample(words, pixels)
    # Bytes of a path that are no text become escapes
    texts = (path if isinstance(path, str) else None for path in words.log.paths)
    paths = [None, *(text and text.encode("utf-8", "backslashreplace").decode() for text in texts)]
    size = np.where(pixels >= 0, words.payload[np.maximum(pixels, 0)], 0) if at.size else numbers
    batch = words.batch_of_word[at]
    frame = pl.DataFrame(
        {
            "epoch": words.epochs[batch],
            "batch": words.payload[words.batch_at[batch]],
            "sample": words.sample_place(numbers),
            "index": words.payload[at] - INDEX_OFFSET,
            # a killed process may not have named the files of its last batch
            "file": np.where(file < len(paths), file, 0),
            "width": size >> 24,
            "height": size & ((1 << 24) - 1),
            "indexed": words.tags[at] == Tag.SAMPLE,
        }
    )
    counted = frame.filter(~words.void[:-1])
    samples = counted.with_columns(
        index=pl.when("indexed").then("index"),
        path=pl.Series(paths, dtype=pl.String).gather(counted["file"]),
        width=pl.when(pl.col("width") > 0).then("width"),
        height=pl.when(pl.col("height") > 0).then("height"),
        bytes=pl.lit(None),  # read later, so that no process waits for it while it loads
    )
    return _typed(samples, words, rank, SAMPLES)


def _first_in_sample(words: DecodedWords, here: np.ndarray) -> np.ndarray:
    """Return for each sample the first word in it where `here` is true, else -1."""
    first_at = np.full(words.sample_at.size, -1)
    at = np.flatnonzero(here & (words.sample_of_word >= 0))[::-1]
    first_at[words.sample_of_word[at]] = at  # in reverse: the first word wins
    return first_at


def _file_of_sample(words: DecodedWords, pixels: np.ndarray) -> np.ndarray:
    """Return the number of each sample's file: the image's, else the first one opened, else 0."""
    is_file = words.tags == Tag.FILE
    at = _first_in_sample(words, is_file)
    before_image = last_at(is_file)[np.maximum(pixels, 0)] if pixels.size else pixels
    at = np.where((pixels >= 0) & (at >= 0) & (before_image >= at), before_image, at)
    return np.where(at >= 0, words.payload[np.maximum(at, 0)], 0) if at.size else at


def table(entries: list[dict[str, Any]], *, origin_ns: int, rank: int) -> pl.DataFrame:
    """Return the samples of resources, columns of `RESOURCES`, from the sampler's lines."""
    limits: dict[str, dict[str, float]] = {}
    rows: list[tuple[Any, ...]] = []
    for entry in entries:
        limits |= entry.get("limits", {})
        rows += [(0, 0, resource, None, None) for resource in entry.get("missing", ())]
    rows += _rates(entries, origin_ns)
    full = [
        (rank, start_ns, end_ns, resource, device, value, limits.get(resource, {}).get(device))
        for start_ns, end_ns, resource, device, value in rows
    ]
    return pl.DataFrame(full, RESOURCES, orient="row", strict=False)


def _rates(entries: list[dict[str, Any]], origin_ns: int) -> Iterator[tuple[Any, ...]]:
    """Yield the readings: counters become rates, gauges stay as they are."""
    before: dict[tuple[str, str], tuple[int, float]] = {}
    for entry in entries:
        now_ns = entry.get("time_ns", 0) - origin_ns
        for resource, devices in entry.get("read", {}).items():
            for device, value in devices.items():
                then_ns, counted = before.get((resource, device), (None, 0.0))
                if then_ns is not None and now_ns - then_ns < SHORTEST_NS:
                    continue
                before[resource, device] = now_ns, value
                if then_ns is None:
                    continue
                rate = max(value - counted, 0.0) * 1e9 / (now_ns - then_ns)  # 0: it wrapped
                rate = min(rate, 1.0) if resource in SHARES else rate
                yield then_ns, now_ns, resource, device, value if resource in GAUGES else rate
