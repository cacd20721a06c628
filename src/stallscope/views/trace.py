"""A trace as a file: JSON, compressed if its name says so; whole, or not there at all.

The way of each batch that a worker made and the loop used, as pairs: an arrow in the trace.

The events of the Trace Event Format that a trace of ours consists of, each as a dictionary.

See "Trace Event Format" (Google, 2016), https://bit.ly/trace-event-format. Times are in µs there;
here they are whole nanoseconds, counted from the start of the run.

The processes and threads of a trace: numbers that are unique over all ranks, and names.

Processes are numbered in the order in which they are shown: rank by rank, the loop before its
workers. A thread is numbered when something is first drawn in it.

The making of batches as tables: each batch a slice, in it its samples, in those their stages.

The spans of a process come in the order in which they were recorded, so whatever belongs together
stands together: a batch, and in it a sample, is a stretch of rows.

The training loop's slices as a table: each step, in it the wait and what was done then.

The counter tracks of a trace: a line below the processes, one value at a time.

The trace of a run: all of its events, one after the other, and what there is to know of it.

Tables stay tables until their rows are written, so that a long run needs little more memory than
it did before. A slice comes before those inside of it, else in no order: readers sort.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from stallscope.atomic import whole_file
from stallscope.errors import TraceFileError
from stallscope.stages import CHROME_COLOURS as STAGE_COLOURS
from stallscope.stages import NAMES, PIN, SAMPLER, SEND, STEP
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stallscope.run.result import Run


_PLAIN, _PACKED = ".json", ".json.gz"
_OURS: Final = b'{"displayTimeUnit":"ms","otherData":{"by":"stallscope"'
"""How each of our traces begins; only such a file is written over."""
_LEVEL: Final = 4
"""Of the compression: more takes longer than it saves."""


def write(path: Path, events: Iterable[dict[str, Any]], about: dict[str, Any]) -> Path:
    """Write a trace; while it is being written it has another name.

    Args:
        path: ends in `.json`, or in `.json.gz` for a compressed file.
        events: of the Trace Event Format, see `analyze.trace`.
        about: what else there is to know; JSON's values.

    Returns:
        The path.

    Raises:
        TraceFileError: it ends otherwise, is no trace of ours but there, or cannot be written.
    """
    if not path.name.endswith((_PLAIN, _PACKED)):
        raise TraceFileError(
            f"a trace is {_PLAIN} or {_PACKED}: {str(path)!r} cannot be its name, give one such as "
            f"{str(path.with_suffix(_PACKED))!r}"
        )
    try:
        _check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file, _packed(file, path) as inner:
            inner.writelines(_lines(events, about))
    except OSError as error:
        raise TraceFileError(
            f"the trace cannot be written to {path} ({error.strerror or error}): give another place"
        ) from error
    return path


def _check_free(path: Path) -> None:
    """Leave alone what is there, unless it is an older trace of ours."""
    if path.is_dir():
        raise TraceFileError(f"{path} is a folder: give the name of a file in it")
    if not path.exists():
        return
    try:
        with (gzip.open if path.name.endswith(_PACKED) else open)(path, "rb") as file:
            begins = file.read(len(_OURS))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        begins = b"something else"
    if begins not in (b"", _OURS):
        raise TraceFileError(
            f"{path} is there already and is no trace of stallscope's: give another name"
        )


@contextmanager
def _packed(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """What to write into: it compresses, where the path says so."""
    if not path.name.endswith(_PACKED):
        yield file
        return
    # Without its name and time in it: the same run gives the same file
    with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as inner:
        yield inner  # type: ignore[misc]  # a file of bytes, too


def _lines(events: Iterable[dict[str, Any]], about: dict[str, Any]) -> Iterator[bytes]:
    """One event a line: what is written can be looked at, and is never whole in memory."""
    text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    yield _OURS + b"," + text(about)[1:].encode() + b',"traceEvents":[\n'
    between = b""
    for event in events:
        yield between + text(event).encode()
        between = b",\n"
    yield b"\n]}\n"


KEY: Final = ("rank", "epoch", "batch")


def flows(run: Run, first: int) -> pl.DataFrame:
    """One row a batch that left a worker before a wait of the loop got it.

    Args:
        run: what was measured.
        first: number of the first arrow.

    Returns:
        `rank, epoch, batch, step, flow, left_ns, got_ns`: the step that used it, the number of the
        arrow, when the batch had left its worker and when the wait for it ended.
    """
    made = run.deliveries.drop_nulls(["worker", "pid", "taken_ns", "made_ns"])
    left = made.select(*KEY, left_ns=pl.coalesce("sent_ns", "made_ns")).unique(KEY, keep="first")
    steps = run.all_steps.drop_nulls(["start_ns", "end_ns"]).select("rank", "step").unique()
    waits = run.waits.join(steps, on=["rank", "step"], how="semi")
    got = waits.select(*KEY, "step", got_ns="end_ns").unique(KEY, keep="first")
    pairs = left.join(got, on=KEY).filter(pl.col("left_ns") <= pl.col("got_ns")).sort(KEY)
    return pairs.with_row_index("flow", first).select(*KEY, "step", "flow", "left_ns", "got_ns")


def of_batches(flows: pl.DataFrame) -> pl.DataFrame:
    """The arrow of each batch, as `rank, epoch, batch, arrows`: a list, as steps may have more."""
    return flows.select(*KEY, arrows=pl.concat_list("flow"))


Event = dict[str, Any]

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


class Track(NamedTuple):
    """Where something is drawn."""

    pid: int
    """Number of the process in the trace; no operating system's, those collide between ranks."""
    tid: int
    """Number of the thread in the trace."""


def us(ns: int) -> float:
    """Nanoseconds as the µs of the format.

    Some readers round to whole nanoseconds and others cut, so a quotient that lies a little under
    the nanosecond is moved over it: both get `ns` back, and what is nested stays nested.
    """
    value = ns / 1000
    return value if int(value * 1000) >= ns else math.nextafter(value, math.inf)


def whole(track: Track, name: str, cat: str, ns: tuple[int, int], args: Event) -> Event:
    """A slice ("complete event"), from and to the given moments."""
    return {
        "ph": "X",
        "pid": track.pid,
        "tid": track.tid,
        "name": name,
        "cat": cat,
        "cname": CHROME_COLOURS[cat],
        "ts": us(ns[0]),
        "dur": us(ns[1] - ns[0]),
        "args": args,
    }


def flow(phase: str, track: Track, number: int, ns: int) -> Event:
    """A point of an arrow: its start ("s"), a point between ("t") or its end ("f").

    It belongs to the innermost slice of its track that is there at that moment ("bp").
    """
    event = {"ph": phase, "pid": track.pid, "tid": track.tid, "name": "batch", "cat": "flow"}
    return {**event, "id": number, "ts": us(ns), "bp": "e"}


def counter(pid: int, name: str, ns: int, values: dict[str, float]) -> Event:
    """The values that a counter of a process has from a moment on."""
    return {"ph": "C", "pid": pid, "name": name, "ts": us(ns), "args": values}


def named(what: str, track: Track, value: str | int) -> Event:
    """Metadata: "process_name", "thread_sort_index" and so on."""
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "pid": track.pid, "tid": track.tid, "name": what, "args": {key: value}}


MAIN: Final = "main"
SENDING: Final = "sending"
PINNING: Final = "pinning"
_TRACKS_WHO: Final = ("rank", "worker", "pid")


class Process(NamedTuple):
    """A process of the run; the one that trains has no `worker`."""

    rank: int
    worker: int | None
    pid: int | None


class Tracks:
    """Numbers the processes of a run and of its other loaders, and their threads.

    Args:
        runs: the run, then its other loaders.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._labels = _labels(runs)
        self._pids = {process: number for number, process in enumerate(self._labels, 1)}
        self._rows: dict[tuple[int, str], _Rows] = {}
        self._threads: dict[tuple[int, str], Track] = {}

    def pid(self, rank: int, worker: int | None, pid: int | None) -> int:
        """Number of a process; everything without a worker is in the loop's."""
        return self._pids[Process(rank, worker, None if worker is None else pid)]

    def place(self, pid: int, thread: str, start_ns: int, end_ns: int) -> Track:
        """Where to draw something, so that it lies inside of what is there, or beside it.

        Calls for a thread come in the order of their starts, the longer of two first. What overlaps
        something without lying inside of it goes to a track of its own.
        """
        row = self._rows.setdefault((pid, thread), _Rows()).place(start_ns, end_ns)
        key = (pid, f"{thread} {row + 1}" if row else thread)
        return self._threads.setdefault(key, Track(pid, len(self._threads) + 1))

    def names(self) -> Iterator[Event]:
        """The metadata of all processes and of the threads that were drawn in."""
        for process, number in self._pids.items():
            track = Track(number, 0)
            yield named("process_name", track, self._labels[process])
            yield named("process_sort_index", track, number)
        for (_, name), track in self._threads.items():
            yield named("thread_name", track, name)
            yield named("thread_sort_index", track, _place_of(name))


class _Rows:
    """The rows of a thread, each with the ends of the slices that are open in it."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        for row, ends in enumerate(self._open):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return row
        self._open.append([end_ns])
        return len(self._open) - 1


def _place_of(thread: str) -> int:
    """Below each other: what the process does itself, then what runs beside it."""
    beside = (PINNING, SENDING)
    return 1 + next((i for i, name in enumerate(beside, 1) if thread.startswith(name)), 0)


def _labels(runs: Sequence[Run]) -> dict[Process, str]:
    """Every process by its name, in the order in which they are shown."""
    several = pl.concat([run.all_steps["rank"] for run in runs]).n_unique() > 1
    found: dict[Process, tuple[str, int]] = {}
    for loader, run in enumerate(runs):
        of = f" of {run.settings.name or 'another loader'}" if loader else ""
        for rank, worker, pid in _who(run):
            name = "training loop" if worker is None else f"worker {worker}{of}"
            label = (f"rank {rank}: " if several else "") + name
            label += "" if pid is None else f" (pid {pid})"
            process = Process(rank, worker, None if worker is None else pid)
            found.setdefault(process, (label, loader))
    shown = sorted(found, key=lambda one: (one.rank, one.worker is not None, found[one][1]))
    return {process: found[process][0] for process in shown}


def _who(run: Run) -> list[tuple[int, int | None, int | None]]:
    """Rank, worker and pid of every process that a table names; of each loop's with its pid."""
    tables = (run.side_spans, run.all_spans, run.batches, run.deliveries.drop_nulls("pid"))
    nobody = [
        pl.lit(None, kind).alias(name) for name, kind in (("worker", pl.Int16), ("pid", pl.Int32))
    ]
    frames = [table.select(_TRACKS_WHO).unique() for table in tables]
    # A loop that never came to a step was watched all the same
    loops = [table.select("rank", *nobody).unique() for table in (run.all_steps, run.all_resources)]
    return pl.concat([*frames, *loops]).unique().sort(_TRACKS_WHO, nulls_last=True).rows()


_WHO: Final = ("rank", "worker", "pid", "epoch", "batch")
_ABOUT: Final = ("index", "path", "bytes", "width", "height")


@dataclass(frozen=True)
class BatchSlices:
    """How batches were made; times in ns from the start of the run."""

    batches: pl.DataFrame
    """Columns as of `loop.slices`, with `recorded`, and `stretch`: the batch's number among those
    that were recorded."""
    samples: pl.DataFrame
    """`stretch, epoch, batch, sample, start_ns, end_ns, index, path, bytes, width, height`."""
    spans: pl.DataFrame
    """`stretch, epoch, batch, sample, stage, kind, start_ns, end_ns, cpu_ns`."""


def making(run: Run, flows: pl.DataFrame, thread: str = MAIN) -> BatchSlices:
    """How the batches of a run were made.

    Args:
        run: what was measured.
        flows: what `flows.flows` gives of it; an arrow begins at the end of its batch.
        thread: of the loop's process, for what that makes itself.
    """
    spans = run.all_spans.with_columns(stretch=_changes("rank", "pid", "epoch", "batch") - 1)
    return BatchSlices(
        batches=_batches(run, spans, flows).with_columns(
            thread=pl.when(pl.col("worker").is_null()).then(pl.lit(thread)).otherwise(pl.lit(MAIN))
        ),
        samples=_samples(run, spans),
        spans=spans.select("stretch", pl.exclude("stretch", "rank", "pid", "worker")),
    )


def _changes(*columns: str) -> pl.Expr:
    """The number, from 1, of the stretch of rows that are alike in these columns."""
    return pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(name).shift()) | (pl.int_range(pl.len()) == 0)
        for name in columns
    ).cum_sum()


def _batches(run: Run, spans: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Every batch, from when its worker took the task up until it was made."""
    times = run.deliveries.select(*_WHO, "taken_ns", "made_ns").drop_nulls(["taken_ns", "made_ns"])
    recorded = (
        spans.group_by("stretch", maintain_order=True)
        .agg(pl.col(_WHO).first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(times, on=_WHO, how="full", nulls_equal=True, coalesce=True)
    )
    steady = run.batches.select(*_WHO, "steady").unique(_WHO)
    return (
        recorded.join(steady, on=_WHO, how="left", nulls_equal=True)
        .join(of_batches(flows), on=KEY, how="left")
        .select(
            *_WHO,
            pl.min_horizontal("start_ns", "taken_ns").alias("start_ns"),
            pl.max_horizontal("end_ns", "made_ns").alias("end_ns"),
            pl.when(pl.col("worker").is_not_null() & pl.struct(KEY).is_first_distinct()).then(
                "arrows"
            ),
            "steady",
            "stretch",
            name=pl.format("batch {}", "batch"),
            cat=pl.lit(BATCH),
            depth=pl.lit(4),
            recorded=pl.col("stretch").is_not_null(),
        )
    )


def _samples(run: Run, spans: pl.DataFrame) -> pl.DataFrame:
    """Every sample that can be told apart, with what it was."""
    keys = (*KEY, "sample")
    about = run.all_samples.select(*keys, *_ABOUT).unique(keys, keep="first")
    return (
        spans.lazy()
        .select(
            *KEY, "sample", "stretch", "start_ns", "end_ns", piece=_changes("stretch", "sample")
        )
        .drop_nulls("sample")
        .group_by("piece", maintain_order=True)
        .agg(
            pl.col(*keys, "stretch").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
        )
        .join(about.lazy(), on=keys, how="left", maintain_order="left")
        .select("stretch", "epoch", "batch", "sample", "start_ns", "end_ns", *_ABOUT)
        .collect()
    )


_STEP: Final = ("rank", "step")
_SIDE: Final = (PIN.kind, SEND.kind)
_KNOWN: Final = (
    *("thread", "rank", "worker", "pid", "epoch", "batch"),
    *("step", "steady", "arrows", "consists_of"),
)
_MOST_PARTS: Final = 4
"""Of what a stall consists, so many are named, the longest first."""


def slices(run: Run, flows: pl.DataFrame, thread: str = MAIN) -> pl.DataFrame:
    """Everything that the loop's process and the workers' sending threads did beside loading.

    Args:
        run: what was measured.
        flows: what `flows.flows` gives of it; an arrow ends in the first use of its batch.
        thread: of the loop.

    Returns:
        `thread, name, cat, start_ns, end_ns, depth, rank, worker, pid, epoch, batch, step, steady,
        arrows, consists_of`; `depth` orders those that are alike in time, null is what does not
        apply.
    """
    steps = _steps(run)
    uses, steps = _with_arrows(_uses(run, steps), steps, flows)
    ends = uses.group_by(_STEP).agg(last_ns=pl.col("end_ns").max())
    whole = steps.join(ends, on=_STEP, how="left").with_columns(
        end_ns=pl.max_horizontal("used_ns", "last_ns")
    )
    named = pl.format("step {}", "step")
    of_loop = [
        _slices(whole.with_columns(start_ns="begin_ns").drop("arrows"), named, LOOP, 0),
        _slices(_stalls(run), pl.lit("stall"), STALL, 1),
        _slices(
            steps.drop("arrows")
            .filter(pl.col("begin_ns") < pl.col("start_ns"))
            .with_columns(start_ns="begin_ns", end_ns="start_ns"),
            pl.lit("iter(loader)"),
            WAIT,
            2,
        ),
        *_waits(run, steps),
        _slices(uses, _stage(run), pl.col("kind"), 4),
    ]
    here = pl.concat(of_loop, how="diagonal_relaxed").with_columns(thread=pl.lit(thread))
    return pl.concat([here, _beside(run, flows)], how="diagonal_relaxed")


def _slices(rows: pl.DataFrame, name: pl.Expr, cat: str | pl.Expr, depth: int) -> pl.DataFrame:
    return rows.select(
        name.alias("name"),
        (pl.lit(cat) if isinstance(cat, str) else cat.cast(pl.String)).alias("cat"),
        "start_ns",
        "end_ns",
        pl.lit(depth).alias("depth"),
        *(column for column in _KNOWN if column in rows.columns),
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
    told = parts.group_by(_STEP, maintain_order=True).agg(
        consists_of=words.head(_MOST_PARTS).str.join(", ")
    )
    return run.stalls().drop("worker").join(told, on=_STEP, how="left")


def _waits(run: Run, steps: pl.DataFrame) -> list[pl.DataFrame]:
    """The steps' waits, and in each the loader's own, where it is not the same."""
    exactly = (*_STEP, "start_ns", "end_ns")
    own = run.waits.join(steps, on=exactly, how="anti")
    return [
        _slices(steps, pl.lit("wait"), WAIT, 2),
        _slices(own, pl.lit("next(loader)"), WAIT, 3),
    ]


def _uses(run: Run, steps: pl.DataFrame) -> pl.DataFrame:
    """What the loop did, with the number of the step in which it did so."""
    of_loop = pl.col("worker").is_null() & ~pl.col("kind").is_in(_SIDE)
    spans = run.side_spans.filter(of_loop).sort("rank", "start_ns")
    begun = steps.select(
        "rank", "step", "steady", *(pl.col(n).alias(f"its_{n}") for n in KEY[1:]), start_ns="end_ns"
    )
    found = spans.join_asof(
        begun, on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    its = pl.all_horizontal((pl.col(name) == pl.col(f"its_{name}")) for name in KEY[1:])
    return found.with_columns(pl.when(its).then(name).alias(name) for name in ("step", "steady"))


def _with_arrows(
    uses: pl.DataFrame, steps: pl.DataFrame, flows: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Arrows end in the first use in their step; only where none was seen, in its wait.

    Perfetto lets an arrow lead from the slice that starts earlier, and a wait starts early.
    """
    ending = flows.group_by(_STEP).agg(arrows="flow")
    first = pl.struct(_STEP).is_first_distinct() & pl.col("step").is_not_null()
    used = uses.join(ending, on=_STEP, how="left", maintain_order="left").with_columns(
        arrows=pl.when(first).then("arrows")
    )
    unused = ending.join(uses, on=_STEP, how="anti")
    return used, steps.join(unused, on=_STEP, how="left")


def _beside(run: Run, flows: pl.DataFrame) -> pl.DataFrame:
    """Pinning, and sending from the workers, through which the arrows lead."""
    spans = run.side_spans.filter(pl.col("kind").is_in(_SIDE)).join(
        of_batches(flows), on=KEY, how="left"
    )
    pins = pl.col("kind") == PIN.kind
    thread = pl.when(pins).then(pl.lit(PINNING)).otherwise(pl.lit(SENDING))
    told = spans.with_columns(thread=thread, arrows=pl.when(~pins).then("arrows"))
    return _slices(told, pl.col("stage").cast(pl.String), pl.col("kind"), 0)


def _stage(run: Run) -> pl.Expr:
    """The name of what the loop did; a step that only a timer made is called so."""
    name = pl.col("stage").cast(pl.String)
    if run.settings.simulated_step_s is None:
        return name
    simulated = pl.format("{} (simulated)", name)
    return pl.when(pl.col("kind") == STEP.kind).then(simulated).otherwise(name)


READY: Final = "batches ready"


def used(resources: pl.DataFrame, tracks: Tracks) -> Iterator[Event]:
    """What the machine did meanwhile: a counter for each resource and device.

    Args:
        resources: what `Run.resources` gives, of the whole run.
        tracks: where to draw it.
    """
    for row in resources.drop_nulls("value").iter_rows(named=True):
        if row["resource"] == SAMPLER:  # which is about the measurement, not about the machine
            continue
        name = " ".join(filter(None, (NAMES[row["resource"]], row["device"])))
        unit = row["resource"].partition("_")[2]
        pid = tracks.pid(row["rank"], None, None)
        yield counter(pid, name, row["start_ns"], {unit: row["value"]})


def ready(flows: pl.DataFrame, tracks: Tracks, name: str = READY) -> Iterator[Event]:
    """How many batches have left their workers and wait for the loop: at 0, the loop waits.

    Args:
        flows: what `flows.flows` gives.
        tracks: where to draw it.
        name: of the counter.
    """
    come = flows.select("rank", ns="left_ns", change=pl.lit(1))
    gone = flows.select("rank", ns="got_ns", change=pl.lit(-1))
    both = pl.concat([come, gone]).sort("rank", "ns", pl.col("change") < 0)
    each = both.with_columns(batches=pl.col("change").cum_sum().over("rank"))
    for rank, ns, _, batches in each.iter_rows():
        yield counter(tracks.pid(rank, None, None), name, ns, {"batches": batches})


_ARGS: Final = ("epoch", "batch", "step", "steady", "recorded", "consists_of")
_BUFFER: Final = 1 << 14
"""Rows that are turned into Python's values at once."""


def events(run: Run) -> Iterator[Event]:
    """All events of the trace of a run and of its other loaders.

    The process that trains holds the steps: each with its wait, around that the stall if it is
    one, and what the loop did with the batch. Each worker holds its batches, in them the samples,
    in those the stages; sending and pinning are threads. An arrow leads from each batch that a
    worker made, by its sending, to its first use in a step. Counters say how many lay ready, and
    what the machine did meanwhile.

    Args:
        run: what was measured.

    Yields:
        Events of the Trace Event Format (see `phases`), names of processes and threads last.
    """
    runs = (run, *run.others)
    tracks, made, outer = Tracks(runs), [], []
    arrows_so_far = 0
    for loader, one in enumerate(runs):
        name = one.settings.name or "another loader"
        thread = f"loader {loader + 1}: {name}" if loader else MAIN
        arrows = flows(one, first=arrows_so_far + 1)
        arrows_so_far += arrows.height
        made.append(making(one, arrows, thread))
        both = [slices(one, arrows, thread), made[-1].batches]
        outer.append(pl.concat(both, how="diagonal_relaxed").with_columns(loader=pl.lit(loader)))
        yield from ready(arrows, tracks, f"{READY}, {thread}" if loader else READY)
    yield from used(run.resources(steady=False), tracks)
    held: dict[tuple[int, int], Track] = {}
    yield from _outer(pl.concat(outer, how="diagonal_relaxed"), tracks, held)
    for loader, inside in enumerate(made):
        yield from _resource_samples(inside, loader, held)
        yield from _stages(inside, loader, held)
    yield from tracks.names()


def about(run: Run) -> dict[str, Any]:
    """What a reader of the trace has to know: where and how it was measured, and what it lacks."""
    said = list(run.notes)
    if run.settings.simulated_step_s is not None:
        said.append(f"the step is simulated: a timer of {run.settings.simulated_step_s} s")
    if run.all_steps["rank"].n_unique() > 1:
        said.append("the times of each rank count from its own start")
    told = {"settings": vars(run.settings), "machine": run.machine, "notes": said}
    # What others wrote may hold what JSON has no word for
    plain: dict[str, Any] = json.loads(json.dumps(told), parse_constant=str)
    return plain


def _outer(
    rows: pl.DataFrame, tracks: Tracks, held: dict[tuple[int, int], Track]
) -> Iterator[Event]:
    """Everything but samples and their stages; `held` gets the track of each recorded batch."""
    longer = -pl.col("end_ns")
    ordered = rows.sort("start_ns", longer, "depth", "rank", "worker", "batch", maintain_order=True)
    for row in ordered.iter_rows(named=True, buffer_size=_BUFFER):
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        pid = tracks.pid(row["rank"], row["worker"], row["pid"])
        track = tracks.place(pid, row["thread"], start_ns, end_ns)
        if row["stretch"] is not None:
            held[row["loader"], row["stretch"]] = track
        args = {name: row[name] for name in _ARGS if row[name] is not None}
        yield whole(track, row["name"], row["cat"], (start_ns, end_ns), args)
        for number in row["arrows"] or ():
            yield _point(track, row["cat"], number, start_ns, end_ns)


def _point(track: Track, cat: str, number: int, start_ns: int, end_ns: int) -> Event:
    """Where an arrow begins, leads through or ends: a slice must be there, so not at its end."""
    if cat == SEND.kind:
        return flow("t", track, number, start_ns)
    if cat in (BATCH, WAIT):
        return flow("s" if cat == BATCH else "f", track, number, max(start_ns, end_ns - 1))
    return flow("f", track, number, start_ns)


def _resource_samples(
    made: BatchSlices, loader: int, held: dict[tuple[int, int], Track]
) -> Iterator[Event]:
    for stretch, epoch, batch, sample, start_ns, end_ns, *known in made.samples.iter_rows(
        buffer_size=_BUFFER
    ):
        args = {"epoch": epoch, "batch": batch, "sample": sample}
        args |= {
            name: value for name, value in zip(_ABOUT, known, strict=True) if value is not None
        }
        yield whole(held[loader, stretch], f"sample {sample}", SAMPLE, (start_ns, end_ns), args)


def _stages(made: BatchSlices, loader: int, held: dict[tuple[int, int], Track]) -> Iterator[Event]:
    for (
        stretch,
        epoch,
        batch,
        sample,
        stage,
        kind,
        start_ns,
        end_ns,
        cpu_ns,
    ) in made.spans.iter_rows(buffer_size=_BUFFER):
        args = {"epoch": epoch, "batch": batch}
        if sample is not None:
            args["sample"] = sample
        if cpu_ns is not None:
            args["cpu_us"] = us(cpu_ns)
        yield whole(held[loader, stretch], stage, kind, (start_ns, end_ns), args)
