"""A run as a trace that Perfetto opens; one module, as only a trace needs any part of it.

See "Trace Event Format" (Google, 2016), https://bit.ly/trace-event-format. The loop's process holds
the steps, each worker its batches, in them the samples, in those the stages; arrows lead from each
batch to the step that used it. Tables stay tables until their rows are written, so that a long run
needs little more memory than it did before. A slice comes before those inside of it, else in no
order: readers sort.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.errors import TraceFileError
from stallscope.files import whole_file
from stallscope.stages import CHROME_COLOURS as STAGE_COLOURS
from stallscope.stages import NAMES, PIN, SAMPLER, SEND, STEP
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stallscope.run.result import Run

Event = dict[str, Any]

PLAIN, PACKED = ".json", ".json.gz"
OURS: Final = b'{"displayTimeUnit":"ms","otherData":{"by":"stallscope"'
"""How each of our traces begins; only such a file is written over."""
LEVEL: Final = 4
"""Of the compression: more takes longer than it saves."""
BUFFER: Final = 1 << 14
"""Rows that are turned into Python's values at once."""

LOOP, BATCH, SAMPLE = "loop", "batch", "sample"
"""Categories of what only holds other slices: a step of the loop, a batch, a sample."""
WAIT, STALL = "wait", "stall"
"""Categories of the loop's waits, and of those that matter."""
CHROME_COLOURS: Final = {
    **STAGE_COLOURS,
    WAIT: "thread_state_sleeping",
    STALL: "terrible",
    **dict.fromkeys((LOOP, BATCH, SAMPLE), "grey"),
}
"""A colour per category. Perfetto colours by name and ignores these."""

MAIN, SENDING, PINNING = "main", "sending", "pinning"
"""Threads: what a process does itself, and what runs beside it."""
READY: Final = "batches ready"
MOST_PARTS: Final = 4
"""Of what a stall consists, so many are named, the longest first."""

_KEY: Final = ("rank", "epoch", "batch")
_STEP: Final = ("rank", "step")
_WHO: Final = ("rank", "worker", "pid")
_BATCH: Final = (*_WHO, "epoch", "batch")
_SIDE: Final = (PIN.kind, SEND.kind)
_ABOUT: Final = ("index", "path", "bytes", "width", "height")
_SLICE: Final = ("thread", *_BATCH, "step", "steady", "arrows", "consists_of")
"""What is known of some slices, beside their name, category, times and depth."""
_ARGS: Final = ("epoch", "batch", "step", "steady", "recorded", "consists_of")
"""What of that stands in the trace."""


# The file


def write(path: Path, events: Iterable[Event], about: dict[str, Any]) -> Path:
    """Write a trace: whole, or not at all.

    Args:
        path: ends in `.json`, or in `.json.gz` for a compressed file.
        events: of the Trace Event Format.
        about: what else there is to know; JSON's values.

    Returns:
        The path.

    Raises:
        TraceFileError: it ends otherwise, is no trace of ours but there, or cannot be written.
    """
    if not path.name.endswith((PLAIN, PACKED)):
        raise TraceFileError(
            f"a trace is {PLAIN} or {PACKED}: {str(path)!r} cannot be its name, give one such as "
            f"{str(path.with_suffix(PACKED))!r}"
        )
    packed = path.name.endswith(PACKED)
    try:
        _check_free(path, packed=packed)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file, _packing(file, packed=packed) as inner:
            inner.writelines(_lines(events, about))
    except OSError as error:
        raise TraceFileError(
            f"the trace cannot be written to {path} ({error.strerror or error}): give another place"
        ) from error
    return path


def _check_free(path: Path, *, packed: bool) -> None:
    """Leave alone what is there, unless it is an older trace of ours."""
    if path.is_dir():
        raise TraceFileError(f"{path} is a folder: give the name of a file in it")
    if not path.exists():
        return
    try:
        with (gzip.open if packed else open)(path, "rb") as file:
            begins = file.read(len(OURS))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        begins = b"something else"
    if begins not in (b"", OURS):
        raise TraceFileError(
            f"{path} is there already and is no trace of stallscope's: give another name"
        )


@contextmanager
def _packing(file: IO[bytes], *, packed: bool) -> Iterator[IO[bytes]]:
    if not packed:
        yield file
        return
    # Without its name and time in it: the same run gives the same file
    with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as inner:
        yield inner  # type: ignore[misc]  # a file of bytes, too


def _lines(events: Iterable[Event], about: dict[str, Any]) -> Iterator[bytes]:
    """One event a line: what is written can be looked at, and is never whole in memory."""
    text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    yield OURS + b"," + text(about)[1:].encode() + b',"traceEvents":[\n'
    between = b""
    for event in events:
        yield between + text(event).encode()
        between = b",\n"
    yield b"\n]}\n"


# The events


def events(run: Run) -> Iterator[Event]:
    """Give all events of the trace of a run and of its other loaders.

    The process that trains holds the steps: each with its wait, around that the stall if it is
    one, and what the loop did with the batch. Each worker holds its batches, in them the samples,
    in those the stages; sending and pinning are threads. An arrow leads from each batch that a
    worker made, by its sending, to its first use in a step. Counters say how many lay ready, and
    what the machine did meanwhile. Names of processes and threads come last.
    """
    runs = (run, *run.others)
    tracks = Tracks(runs)
    arrow, stretch, outer, inner = 1, 0, [], []
    for loader, its in enumerate(runs):
        name = f"loader {loader + 1}: {its.settings.name or 'another loader'}"
        thread = name if loader else MAIN
        arrows = arrows_of(its, first=arrow)
        arrow += arrows.height
        spans = its.all_spans.with_columns(
            stretch=_changes("rank", "pid", "epoch", "batch") - 1 + stretch
        )
        stretch += spans["stretch"].n_unique()
        outer += [loop_slices(its, arrows, thread), batch_slices(its, spans, arrows, thread)]
        inner += [sample_slices(its, spans), stage_slices(spans)]
        yield from ready(arrows, tracks, f"{READY}, {thread}" if loader else READY)
    yield from machine(run.resources(steady=False), tracks)
    held: dict[int, Track] = {}
    yield from _outer(pl.concat(outer, how="diagonal_relaxed"), tracks, held)
    for rows in inner:
        yield from _inner(rows, held)
    yield from tracks.names()


def about(run: Run) -> dict[str, Any]:
    """Say what a reader of the trace has to know: how it was measured, and what it lacks."""
    notes = list(run.notes)
    if run.settings.simulated_step_s is not None:
        notes.append(f"the step is simulated: a timer of {run.settings.simulated_step_s} s")
    if run.all_steps["rank"].n_unique() > 1:
        notes.append("the times of each rank count from its own start")
    values = {"settings": vars(run.settings), "machine": run.machine, "notes": notes}
    # What others wrote may hold what JSON has no word for
    plain: dict[str, Any] = json.loads(json.dumps(values), parse_constant=str)
    return plain


def _outer(rows: pl.DataFrame, tracks: Tracks, held: dict[int, Track]) -> Iterator[Event]:
    """Everything but samples and their stages; `held` gets the track of each recorded batch."""
    longer = -pl.col("end_ns")
    ordered = rows.sort("start_ns", longer, "depth", "rank", "worker", "batch", maintain_order=True)
    for row in ordered.iter_rows(named=True, buffer_size=BUFFER):
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        pid = tracks.pid(row["rank"], row["worker"], row["pid"])
        track = tracks.place(pid, row["thread"], start_ns, end_ns)
        if row["stretch"] is not None:
            held[row["stretch"]] = track
        args = {name: row[name] for name in _ARGS if row[name] is not None}
        yield _slice(track, row, args)
        for number in row["arrows"] or ():
            yield _point(track, row["cat"], number, start_ns, end_ns)


def _inner(rows: pl.DataFrame, held: dict[int, Track]) -> Iterator[Event]:
    """Samples and stages, each in the track of its batch."""
    known = [name for name in ("epoch", "batch", "sample", *_ABOUT) if name in rows.columns]
    for row in rows.iter_rows(named=True, buffer_size=BUFFER):
        args: Event = {name: row[name] for name in known if row[name] is not None}
        if row.get("cpu_ns") is not None:
            args["cpu_us"] = us(row["cpu_ns"])
        yield _slice(held[row["stretch"]], row, args)


def _slice(track: Track, row: dict[str, Any], args: Event) -> Event:
    """A "complete event"."""
    return {
        "ph": "X",
        "pid": track.pid,
        "tid": track.tid,
        "name": row["name"],
        "cat": row["cat"],
        "cname": CHROME_COLOURS[row["cat"]],
        "ts": us(row["start_ns"]),
        "dur": us(row["end_ns"] - row["start_ns"]),
        "args": args,
    }


def _point(track: Track, cat: str, number: int, start_ns: int, end_ns: int) -> Event:
    """Where an arrow begins ("s"), leads through ("t") or ends ("f").

    It belongs to the innermost slice of its track that is there at that moment ("bp"), so it must
    not lie at the slice's end.
    """
    phase = {BATCH: "s", SEND.kind: "t"}.get(cat, "f")
    ns = max(start_ns, end_ns - 1) if cat in (BATCH, WAIT) else start_ns
    event = {"ph": phase, "pid": track.pid, "tid": track.tid, "name": "batch", "cat": "flow"}
    return {**event, "id": number, "ts": us(ns), "bp": "e"}


def us(ns: int) -> float:
    """Nanoseconds from the start of the run as the µs of the format.

    Some readers round to whole nanoseconds and others cut, so a quotient that lies a little under
    the nanosecond is moved over it: both get `ns` back, and what is nested stays nested.
    """
    value = ns / 1000
    return value if int(value * 1000) >= ns else math.nextafter(value, math.inf)


def machine(resources: pl.DataFrame, tracks: Tracks) -> Iterator[Event]:
    """Give a counter for each resource and device: what the machine did meanwhile."""
    for row in resources.drop_nulls("value").iter_rows(named=True):
        if row["resource"] == SAMPLER:  # which is about the measurement, not about the machine
            continue
        name = " ".join(filter(None, (NAMES[row["resource"]], row["device"])))
        unit = row["resource"].partition("_")[2]
        pid = tracks.pid(row["rank"], None, None)
        yield _counter(pid, name, row["start_ns"], {unit: row["value"]})


def ready(arrows: pl.DataFrame, tracks: Tracks, name: str) -> Iterator[Event]:
    """Count the batches that left their workers and wait for the loop: at 0, the loop waits."""
    come = arrows.select("rank", ns="left_ns", change=pl.lit(1))
    gone = arrows.select("rank", ns="got_ns", change=pl.lit(-1))
    both = pl.concat([come, gone]).sort("rank", "ns", pl.col("change") < 0)
    each = both.with_columns(batches=pl.col("change").cum_sum().over("rank"))
    for rank, ns, _, batches in each.iter_rows():
        yield _counter(tracks.pid(rank, None, None), name, ns, {"batches": batches})


def _counter(pid: int, name: str, ns: int, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "name": name, "ts": us(ns), "args": values}


# Processes and threads


class Process(NamedTuple):
    """A process of the run; the one that trains has no `worker`."""

    rank: int
    worker: int | None
    pid: int | None


class Track(NamedTuple):
    """Where something is drawn."""

    pid: int
    """Number of the process in the trace; no operating system's, those collide between ranks."""
    tid: int
    """Number of the thread in the trace."""


class Tracks:
    """Numbers the processes of a run and of its other loaders, and their threads.

    Processes are numbered in the order in which they are shown: rank by rank, the loop before its
    workers. A thread is numbered when something is first drawn in it.

    Args:
        runs: the run, then its other loaders.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._labels = _labels(runs)
        self._pids = {process: number for number, process in enumerate(self._labels, 1)}
        self._open: dict[tuple[int, str], list[list[int]]] = {}
        """The rows of a thread, each with the ends of the slices that are open in it."""
        self._threads: dict[tuple[int, str], Track] = {}

    def pid(self, rank: int, worker: int | None, pid: int | None) -> int:
        """Number of a process; everything without a worker is in the loop's."""
        return self._pids[Process(rank, worker, None if worker is None else pid)]

    def place(self, pid: int, thread: str, start_ns: int, end_ns: int) -> Track:
        """Find where to draw something, so that it lies inside of what is there, or beside it.

        Calls for a thread come in the order of their starts, the longer of two first. What overlaps
        something without lying inside of it goes to a track of its own.
        """
        row = self._row(self._open.setdefault((pid, thread), []), start_ns, end_ns)
        key = (pid, f"{thread} {row + 1}" if row else thread)
        return self._threads.setdefault(key, Track(pid, len(self._threads) + 1))

    @staticmethod
    def _row(rows: list[list[int]], start_ns: int, end_ns: int) -> int:
        for row, ends in enumerate(rows):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return row
        rows.append([end_ns])
        return len(rows) - 1

    def names(self) -> Iterator[Event]:
        """The metadata of all processes and of the threads that were drawn in."""
        for process, number in self._pids.items():
            yield from _named("process", Track(number, 0), self._labels[process], number)
        beside = {PINNING: 2, SENDING: 3}  # below what the process does itself
        for (_, name), track in self._threads.items():
            yield from _named("thread", track, name, beside.get(name.split(" ")[0], 1))


def _named(what: str, track: Track, name: str, place: int) -> Iterator[Event]:
    for key, value in {"name": name, "sort_index": place}.items():
        event = {"ph": "M", "pid": track.pid, "tid": track.tid, "name": f"{what}_{key}"}
        yield {**event, "args": {key: value}}


def _labels(runs: Sequence[Run]) -> dict[Process, str]:
    """Every process by its name, in the order in which they are shown."""
    several = pl.concat([run.all_steps["rank"] for run in runs]).n_unique() > 1
    found: dict[Process, tuple[str, int]] = {}
    for loader, run in enumerate(runs):
        of = f" of {run.settings.name or 'another loader'}" if loader else ""
        for rank, worker, pid in _processes(run):
            name = "training loop" if worker is None else f"worker {worker}{of}"
            label = (f"rank {rank}: " if several else "") + name
            label += "" if pid is None else f" (pid {pid})"
            process = Process(rank, worker, None if worker is None else pid)
            found.setdefault(process, (label, loader))
    shown = sorted(found, key=lambda one: (one.rank, one.worker is not None, found[one][1]))
    return {process: found[process][0] for process in shown}


def _processes(run: Run) -> list[tuple[int, int | None, int | None]]:
    """Rank, worker and pid of every process that a table names; of each loop's with its pid."""
    tables = (run.side_spans, run.all_spans, run.batches, run.deliveries.drop_nulls("pid"))
    nobody = (pl.lit(None, pl.Int16).alias("worker"), pl.lit(None, pl.Int32).alias("pid"))
    frames = [table.select(_WHO).unique() for table in tables]
    # A loop that never came to a step was watched all the same
    loops = [table.select("rank", *nobody).unique() for table in (run.all_steps, run.all_resources)]
    return pl.concat([*frames, *loops]).unique().sort(_WHO, nulls_last=True).rows()


# Slices and arrows as tables


def arrows_of(run: Run, first: int) -> pl.DataFrame:
    """Give one row a batch that left a worker before a wait of the loop got it.

    Args:
        run: what was measured.
        first: number of the first arrow.

    Returns:
        `rank, epoch, batch, step, arrow, left_ns, got_ns`: the step that used it, the number of the
        arrow, when the batch had left its worker and when the wait for it ended.
    """
    made = run.deliveries.drop_nulls(["worker", "pid", "taken_ns", "made_ns"])
    left = made.select(*_KEY, left_ns=pl.coalesce("sent_ns", "made_ns")).unique(_KEY, keep="first")
    steps = run.all_steps.drop_nulls(["start_ns", "end_ns"]).select(_STEP).unique()
    waits = run.waits.join(steps, on=_STEP, how="semi")
    got = waits.select(*_KEY, "step", got_ns="end_ns").unique(_KEY, keep="first")
    pairs = left.join(got, on=_KEY).filter(pl.col("left_ns") <= pl.col("got_ns")).sort(_KEY)
    return pairs.with_row_index("arrow", first).select(*_KEY, "step", "arrow", "left_ns", "got_ns")


def _of_batches(arrows: pl.DataFrame) -> pl.DataFrame:
    """The arrow of each batch as a list, as steps may have more."""
    return arrows.select(*_KEY, arrows=pl.concat_list("arrow"))


def _changes(*columns: str) -> pl.Expr:
    """The number, from 1, of the stretch of rows that are alike in these columns.

    The spans of a process come in the order in which they were recorded, so whatever belongs
    together stands together: a batch, and in it a sample, is a stretch of rows.
    """
    return pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(name).shift()) | (pl.int_range(pl.len()) == 0)
        for name in columns
    ).cum_sum()


def batch_slices(
    run: Run, spans: pl.DataFrame, arrows: pl.DataFrame, thread: str = MAIN
) -> pl.DataFrame:
    """Every batch, from when its worker took the task up until it was made.

    Args:
        run: what was measured.
        spans: all of its spans, with the `stretch` of each batch.
        arrows: what `arrows_of` gives of it; an arrow begins at the end of its batch.
        thread: of the loop's process, for what that makes itself.
    """
    times = run.deliveries.select(*_BATCH, "taken_ns", "made_ns")
    recorded = (
        spans.group_by("stretch", maintain_order=True)
        .agg(pl.col(_BATCH).first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(
            times.drop_nulls(["taken_ns", "made_ns"]),
            on=_BATCH,
            how="full",
            nulls_equal=True,
            coalesce=True,
        )
    )
    steady = run.batches.select(*_BATCH, "steady").unique(_BATCH)
    first = pl.col("worker").is_not_null() & pl.struct(_KEY).is_first_distinct()
    return (
        recorded.join(steady, on=_BATCH, how="left", nulls_equal=True)
        .join(_of_batches(arrows), on=_KEY, how="left")
        .select(
            *_BATCH,
            "steady",
            "stretch",
            pl.when(first).then("arrows"),
            start_ns=pl.min_horizontal("start_ns", "taken_ns"),
            end_ns=pl.max_horizontal("end_ns", "made_ns"),
            name=pl.format("batch {}", "batch"),
            cat=pl.lit(BATCH),
            depth=pl.lit(4),
            recorded=pl.col("stretch").is_not_null(),
            thread=pl.when(pl.col("worker").is_null()).then(pl.lit(thread)).otherwise(pl.lit(MAIN)),
        )
    )


def sample_slices(run: Run, spans: pl.DataFrame) -> pl.DataFrame:
    """Every sample that can be told apart, with what it was."""
    keys = (*_KEY, "sample")
    known = run.all_samples.select(*keys, *_ABOUT).unique(keys, keep="first")
    return (
        spans.lazy()
        .select(*keys, "stretch", "start_ns", "end_ns", piece=_changes("stretch", "sample"))
        .drop_nulls("sample")
        .group_by("piece", maintain_order=True)
        .agg(pl.col(*keys, "stretch").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(known.lazy(), on=keys, how="left", maintain_order="left")
        .with_columns(name=pl.format("sample {}", "sample"), cat=pl.lit(SAMPLE))
        .collect()
    )


def stage_slices(spans: pl.DataFrame) -> pl.DataFrame:
    """Every stage of the making of batches."""
    return spans.rename({"stage": "name", "kind": "cat"})


def loop_slices(run: Run, arrows: pl.DataFrame, thread: str = MAIN) -> pl.DataFrame:
    """Everything that the loop's process and the workers' sending threads did beside loading.

    Args:
        run: what was measured.
        arrows: what `arrows_of` gives of it; an arrow ends in the first use of its batch.
        thread: of the loop.

    Returns:
        Name, category, times and what of `_SLICE` is known; `depth` orders those that are alike in
        time.
    """
    steps = _steps(run)
    uses, steps = _with_arrows(_uses(run, steps), steps, arrows)
    ends = uses.group_by(_STEP).agg(last_ns=pl.col("end_ns").max())
    whole = steps.drop("arrows").join(ends, on=_STEP, how="left")
    whole = whole.with_columns(start_ns="begin_ns", end_ns=pl.max_horizontal("used_ns", "last_ns"))
    restarts = steps.drop("arrows").filter(pl.col("begin_ns") < pl.col("start_ns"))
    restarts = restarts.with_columns(start_ns="begin_ns", end_ns="start_ns")
    # The loader's own waits, where they are not the same as the step's
    own = run.waits.join(steps, on=(*_STEP, "start_ns", "end_ns"), how="anti")
    of_loop = [
        _slices(whole, pl.format("step {}", "step"), pl.lit(LOOP), 0),
        _slices(_stalls(run), pl.lit("stall"), pl.lit(STALL), 1),
        _slices(restarts, pl.lit("iter(loader)"), pl.lit(WAIT), 2),
        _slices(steps, pl.lit("wait"), pl.lit(WAIT), 2),
        _slices(own, pl.lit("next(loader)"), pl.lit(WAIT), 3),
        _slices(uses, _stage(run), pl.col("kind"), 4),
    ]
    here = pl.concat(of_loop, how="diagonal_relaxed").with_columns(thread=pl.lit(thread))
    return pl.concat([here, _beside(run, arrows)], how="diagonal_relaxed")


def _slices(rows: pl.DataFrame, name: pl.Expr, cat: pl.Expr, depth: int) -> pl.DataFrame:
    return rows.select(
        "start_ns",
        "end_ns",
        *(column for column in _SLICE if column in rows.columns),
        name=name,
        cat=cat.cast(pl.String),
        depth=pl.lit(depth),
    )


def _steps(run: Run) -> pl.DataFrame:
    """The steps with their `begin_ns`, that of `iter(loader)` before it, and their `used_ns`."""
    restart_ns = (pl.col("restart_s").fill_null(0.0) * 1e9).round().cast(pl.Int64)
    used_ns = (pl.sum_horizontal("h2d_s", "step_s", "other_s") * 1e9).round().cast(pl.Int64)
    known = run.all_steps.drop_nulls(["start_ns", "end_ns"]).drop("worker")
    return known.with_columns(
        begin_ns=pl.col("start_ns") - restart_ns, used_ns=pl.col("end_ns") + used_ns
    ).sort("rank", "end_ns")


def _stalls(run: Run) -> pl.DataFrame:
    """The waits that matter, each with its longest parts in words."""
    parts = run.parts().sort("exposed_s", descending=True, maintain_order=True)
    words = pl.format("{} {}", "part", pl.col("exposed_s").map_elements(seconds, pl.String))
    longest = parts.group_by(_STEP, maintain_order=True).agg(
        consists_of=words.head(MOST_PARTS).str.join(", ")
    )
    return run.stalls().drop("worker").join(longest, on=_STEP, how="left")


def _uses(run: Run, steps: pl.DataFrame) -> pl.DataFrame:
    """What the loop did, with the number of the step in which it did so."""
    of_loop = pl.col("worker").is_null() & ~pl.col("kind").is_in(_SIDE)
    spans = run.side_spans.filter(of_loop).sort("rank", "start_ns")
    its = {f"its_{name}": pl.col(name) for name in ("epoch", "batch")}
    begun = steps.select(*_STEP, "steady", **its, start_ns="end_ns")
    found = spans.join_asof(
        begun, on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    same = (pl.col("epoch") == pl.col("its_epoch")) & (pl.col("batch") == pl.col("its_batch"))
    return found.with_columns(pl.when(same).then(name).alias(name) for name in ("step", "steady"))


def _with_arrows(
    uses: pl.DataFrame, steps: pl.DataFrame, arrows: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Arrows end in the first use in their step; only where none was seen, in its wait.

    Perfetto lets an arrow lead from the slice that starts earlier, and a wait starts early.
    """
    ending = arrows.group_by(_STEP).agg(arrows="arrow")
    first = pl.struct(_STEP).is_first_distinct() & pl.col("step").is_not_null()
    used = uses.join(ending, on=_STEP, how="left", maintain_order="left").with_columns(
        arrows=pl.when(first).then("arrows")
    )
    unused = ending.join(uses, on=_STEP, how="anti")
    return used, steps.join(unused, on=_STEP, how="left")


def _beside(run: Run, arrows: pl.DataFrame) -> pl.DataFrame:
    """Pinning, and sending from the workers, through which the arrows lead."""
    pins = pl.col("kind") == PIN.kind
    spans = run.side_spans.filter(pl.col("kind").is_in(_SIDE))
    spans = spans.join(_of_batches(arrows), on=_KEY, how="left").with_columns(
        thread=pl.when(pins).then(pl.lit(PINNING)).otherwise(pl.lit(SENDING)),
        arrows=pl.when(~pins).then("arrows"),
    )
    return _slices(spans, pl.col("stage").cast(pl.String), pl.col("kind"), 0)


def _stage(run: Run) -> pl.Expr:
    """The name of what the loop did; a step that only a timer made is called so."""
    name = pl.col("stage").cast(pl.String)
    if run.settings.simulated_step_s is None:
        return name
    simulated = pl.format("{} (simulated)", name)
    return pl.when(pl.col("kind") == STEP.kind).then(simulated).otherwise(name)
