"""A run as a trace that Perfetto opens; one module, as only a trace needs any part of it.

See "Trace Event Format" (Google, 2016), https://bit.ly/trace-event-format. The loop's process holds
the steps, each worker its batches, in them the samples, in those the stages; arrows lead from each
batch to the step that used it. Tables stay tables until the rows of their process are written, so
that a long run needs little more memory than it did before.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from stallscope.errors import TraceFileError
from stallscope.files import system_errors_as, whole_file
from stallscope.model.attribution import begin_ns
from stallscope.run.summary import used_until_ns
from stallscope.stages import NAMES, PIN, SAMPLER, SEND, STEP
from stallscope.units import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stallscope.run.result import Run

Event = dict[str, Any]
Process = tuple[int, int | None, int | None]
"""Rank, worker and process id; the loop's process has neither worker nor id."""

PLAIN, PACKED = ".json", ".json.gz"
_LEVEL: Final = 4
"""Level of the compression: higher levels cost more time than they save."""
_BUFFER: Final = 1 << 14
"""Rows that are turned into Python's values at once."""

LOOP, BATCH, SAMPLE = "loop", "batch", "sample"
"""Categories of slices that only hold others: a step of the loop, a batch, a sample."""
WAIT, STALL = "wait", "stall"
"""Categories of the loop's waits, and of those that matter."""
MAIN, SENDING, PINNING, DEVICE = "main", "sending", "pinning", "device"
"""Threads: the main thread of a process, and the threads beside it."""
_BESIDE: Final = {PINNING: 2, SENDING: 3, DEVICE: 4}
"""Places below what the process does itself."""
READY: Final = "batches ready"
_MOST_PARTS: Final = 4
"""Named parts of a stall, the longest first."""

_KEY: Final = ("rank", "epoch", "batch")
_STEP: Final = ("rank", "step")
_WHO: Final = ("rank", "worker", "pid")
_BATCH: Final = (*_WHO, "epoch", "batch")
_SIDE: Final = (PIN.kind, SEND.kind)
_ABOUT: Final = ("index", "path", "bytes", "width", "height")
_PLACES: Final = ("epoch", "batch", "step", "sample", "steady", "recorded", "consists_of")
_ARGS: Final = (*_PLACES, *_ABOUT, "cpu_us")
"""Columns of a slice that the trace holds if known, beside name and times."""


def write(run: Run, path: Path) -> Path:
    """Write the trace of a run, all or nothing; see `Run.trace`."""
    if not path.name.endswith((PLAIN, PACKED)):
        raise TraceFileError(
            f"a trace is {PLAIN} or {PACKED}: {str(path)!r} cannot be its name, give one such as "
            f"{str(path.with_suffix(PACKED))!r}"
        )
    packed, what = path.name.endswith(PACKED), f"the trace cannot be written to {path}"
    with system_errors_as(TraceFileError, what, "give another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            # Without its name and time in it: the same run gives the same file
            packing: Any = gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) if packed else None
            with packing or nullcontext(file) as inner:
                inner.writelines(_lines(events(run), about(run)))
    return path


def _lines(events: Iterable[Event], about: dict[str, Any]) -> Iterator[bytes]:
    """Yield one event per line, so that the trace is never whole in memory."""
    text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    head = {"displayTimeUnit": "ms", "otherData": {"by": "stallscope", **about}}
    yield f'{text(head)[:-1]},"traceEvents":[\n'.encode()
    between = ""
    for event in events:
        yield f"{between}{text(event)}".encode()
        between = ",\n"
    yield b"\n]}\n"


def events(run: Run) -> Iterator[Event]:
    """Yield all events of the trace of a run and of its other loaders.

    Counters come first, then the slices and arrows of each process, then the names.
    """
    runs = (run, *run.others)
    labels = _labels(runs)
    # numbers of no operating system: those collide between ranks
    numbers = {process: number for number, process in enumerate(labels, 1)}
    tables: list[pl.DataFrame] = []
    first = 1
    for loader, its in enumerate(runs):
        name = f"loader {loader + 1}: {its.settings.name or 'another loader'}"
        thread = name if loader else MAIN
        arrows = arrows_of(its, first)
        first += arrows.height
        tables += [*_loop_slices(its, arrows, thread), *_batch_slices(its, arrows, thread)]
        yield from _ready(arrows, numbers, f"{READY}, {name}" if loader else READY)
    works = pl.col("kind").cast(pl.String).fill_null("not known")
    kind = pl.coalesce("kind", pl.lit("other"))
    tables.append(_table(run.device_work, works, kind, 0, pl.lit(DEVICE)))
    yield from _resources(run.resources(steady=False), numbers)
    threads: dict[tuple[int, str], int] = {}
    for process, number in numbers.items():
        own = [pl.col(name).eq_missing(pl.lit(v)) for name, v in zip(_WHO, process, strict=True)]
        yield from _slices(number, [rows.filter(own) for rows in tables], threads)
    names = [("process", number, 0, labels[which], number) for which, number in numbers.items()]
    names += [
        ("thread", number, tid, name, _BESIDE.get(name.split(" ")[0], 1))
        for (number, name), tid in threads.items()
    ]
    for what, pid, tid, name, place in names:
        for key, value in {"name": name, "sort_index": place}.items():
            event = {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{key}"}
            yield {**event, "args": {key: value}}


def about(run: Run) -> dict[str, Any]:
    """Return settings, machine and caveats for a reader of the trace."""
    notes = list(run.notes)
    if run.settings.simulated_step_s is not None:
        notes.append(f"the step is simulated: a timer of {run.settings.simulated_step_s} s")
    if run.all_steps["rank"].n_unique() > 1:
        notes.append("the times of each rank count from its own start")
    values = {"settings": vars(run.settings), "machine": run.machine, "notes": notes}
    # What others wrote may hold what JSON has no word for
    plain: dict[str, Any] = json.loads(json.dumps(values), parse_constant=str)
    return plain


def _slices(
    pid: int, tables: Sequence[pl.DataFrame], threads: dict[tuple[int, str], int]
) -> Iterator[Event]:
    """Yield the slices of a process, each before those inside of it, and the points of its arrows.

    `threads` gets the numbers of its threads.
    """
    rows = pl.concat(tables, how="diagonal_relaxed")
    rows = rows.sort("start_ns", -pl.col("end_ns"), "depth", maintain_order=True)
    lanes: dict[str, list[list[int]]] = defaultdict(list)
    for row in rows.iter_rows(named=True, buffer_size=_BUFFER):
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        cat, thread = row["cat"], row["thread"]
        lane = _lane(lanes[thread], start_ns, end_ns)
        key = (pid, f"{thread} {lane + 1}" if lane else thread)
        tid = threads.setdefault(key, len(threads) + 1)
        yield {
            "ph": "X",  # a "complete event"
            "pid": pid,
            "tid": tid,
            "name": row["name"],
            "cat": cat,
            "ts": us(start_ns),
            "dur": us(end_ns - start_ns),
            "args": {name: row[name] for name in _ARGS if row[name] is not None},
        }
        # An arrow begins ("s"), leads through ("t") or ends ("f") here. Its point belongs to the
        # innermost slice that is there at that moment ("bp"), so it must not lie at the slice's end
        phase = {BATCH: "s", SEND.kind: "t"}.get(cat, "f")
        ns = max(start_ns, end_ns - 1) if cat in (BATCH, WAIT) else start_ns
        for number in row["arrows"] or ():
            event = {"ph": phase, "pid": pid, "tid": tid, "name": "batch", "cat": "flow"}
            yield {**event, "id": number, "ts": us(ns), "bp": "e"}


def _lane(lanes: list[list[int]], start_ns: int, end_ns: int) -> int:
    """Return the lane of a thread in which a slice lies inside of others, or after them.

    Slices come by start, the longer first. `lanes` has the ends of the open slices in each lane.
    """
    for lane, ends in enumerate(lanes):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if not ends or end_ns <= ends[-1]:
            ends.append(end_ns)
            return lane
    lanes.append([end_ns])
    return len(lanes) - 1


def us(ns: int) -> float:
    """Return nanoseconds from the start of the run as µs of the format.

    Some readers round to whole nanoseconds and others cut, so a quotient that lies a little under
    the nanosecond is moved over it: both get `ns` back, and what is nested stays nested.
    """
    value = ns / 1000
    return value if int(value * 1000) >= ns else math.nextafter(value, math.inf)


def _resources(resources: pl.DataFrame, numbers: dict[Process, int]) -> Iterator[Event]:
    for row in resources.drop_nulls("value").iter_rows(named=True):
        if row["resource"] != SAMPLER:  # which is about the measurement, not about the machine
            name = " ".join(filter(None, (NAMES[row["resource"]], row["device"])))
            unit = row["resource"].partition("_")[2]
            pid = numbers[row["rank"], None, None]
            yield _counter(pid, name, row["start_ns"], {unit: row["value"]})


def _ready(arrows: pl.DataFrame, numbers: dict[Process, int], name: str) -> Iterator[Event]:
    """Count the batches that left their workers and wait for the loop: at 0, the loop waits."""
    come = arrows.select("rank", ns="left_ns", change=pl.lit(1))
    gone = arrows.select("rank", ns="got_ns", change=pl.lit(-1))
    both = pl.concat([come, gone]).sort("rank", "ns", pl.col("change") < 0)
    each = both.with_columns(batches=pl.col("change").cum_sum().over("rank"))
    for rank, ns, _, batches in each.iter_rows():
        yield _counter(numbers[rank, None, None], name, ns, {"batches": batches})


def _counter(pid: int, name: str, ns: int, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "name": name, "ts": us(ns), "args": values}


def _labels(runs: Sequence[Run]) -> dict[Process, str]:
    """Return every process by its name, in the order in which they are shown."""
    several = pl.concat([run.all_steps["rank"] for run in runs]).n_unique() > 1
    labels: dict[Process, str] = {}
    for loader, run in enumerate(runs):
        of = f" of {run.settings.name or 'another loader'}" if loader else ""
        tables = (run.side_spans, run.all_spans, run.batches, run.deliveries.drop_nulls("pid"))
        # A loop that never came to a step was watched all the same
        loops = [table.select("rank").unique() for table in (run.all_steps, run.all_resources)]
        named = [table.select(_WHO).unique() for table in tables]
        processes = pl.concat([*named, *loops], how="diagonal").unique()
        for rank, worker, pid in processes.sort(_WHO, nulls_last=True).iter_rows():
            name = "training loop" if worker is None else f"worker {worker}{of}"
            label = f"rank {rank}: {name}" if several else name
            label += "" if pid is None else f" (pid {pid})"
            labels.setdefault((rank, worker, None if worker is None else pid), label)
    order = sorted(labels, key=lambda process: (process[0], process[1] is not None))
    return {process: labels[process] for process in order}


def arrows_of(run: Run, first: int) -> pl.DataFrame:
    """Return a row for each batch that left a worker before a wait of the loop got it.

    Beside its process and batch: the step that used it, the number of the arrow (from `first` on),
    when the batch had left its worker, and when the wait for it ended.
    """
    batches = run.deliveries.drop_nulls(["worker", "pid", "taken_ns", "made_ns"])
    batches = batches.with_columns(left_ns=pl.coalesce("sent_ns", "made_ns"))
    steps = run.all_steps.drop_nulls(["start_ns", "end_ns"]).select(_STEP).unique()
    waits = run.waits.join(steps, on=_STEP, how="semi")
    got = waits.select(*_KEY, "step", got_ns="end_ns").unique(_KEY, keep="first")
    pairs = batches.unique(_KEY, keep="first").join(got, on=_KEY)
    pairs = pairs.filter(pl.col("left_ns") <= pl.col("got_ns")).sort(_KEY)
    return pairs.with_row_index("arrow", first).select(
        *_BATCH, "step", "arrow", "left_ns", "got_ns"
    )


def _table(
    rows: pl.DataFrame, name: pl.Expr, cat: pl.Expr, depth: int, thread: pl.Expr
) -> pl.DataFrame:
    """Bring slices into one form; `depth` orders those that are alike in time.

    Rows without `worker` and `pid` are the loop's. `arrows` begin, pass or end there.
    """
    if "worker" not in rows.columns:
        rows = rows.with_columns(worker=pl.lit(None, pl.Int16), pid=pl.lit(None, pl.Int32))
    rows = rows.with_columns(pid=pl.when(pl.col("worker").is_not_null()).then("pid"))
    columns = {*_WHO, "start_ns", "end_ns", "arrows", *_ARGS} & set(rows.columns)
    forms = {"name": name, "cat": cat.cast(pl.String), "depth": pl.lit(depth), "thread": thread}
    return rows.select(sorted(columns), **forms)


def _batch_slices(run: Run, arrows: pl.DataFrame, loop: str) -> Iterator[pl.DataFrame]:
    """Yield every batch from taking it up to its end, its samples, and their stages.

    An arrow begins at the end of its batch. What the loop makes itself is drawn in its thread.
    """
    thread = pl.when(pl.col("worker").is_null()).then(pl.lit(loop)).otherwise(pl.lit(MAIN))
    spans = run.all_spans
    times = pl.col("start_ns").min(), pl.col("end_ns").max()
    recorded = spans.group_by(_BATCH, maintain_order=True).agg(*times, recorded=pl.lit(value=True))
    delivered = run.deliveries.drop_nulls(["pid", "taken_ns", "made_ns"])
    completed = delivered.select(*_BATCH, "taken_ns", "made_ns")
    steady = run.batches.select(*_BATCH, "steady").unique(_BATCH)
    arrow = arrows.select(*_BATCH, arrows=pl.concat_list("arrow"))  # steps may have more than one
    batches = (
        recorded.join(completed, on=_BATCH, how="full", nulls_equal=True, coalesce=True)
        .join(steady, on=_BATCH, how="left", nulls_equal=True)
        .join(arrow, on=_BATCH, how="left")
        .with_columns(
            pl.col("recorded").fill_null(value=False),
            start_ns=pl.min_horizontal("start_ns", "taken_ns"),
            end_ns=pl.max_horizontal("end_ns", "made_ns"),
        )
    )
    yield _table(batches, pl.format("batch {}", "batch"), pl.lit(BATCH), 4, thread)
    keys = (*_KEY, "sample")
    about = run.all_samples.select(*keys, *_ABOUT).unique(keys, keep="first")
    each = spans.drop_nulls("sample").group_by(*_BATCH, "sample", maintain_order=True).agg(*times)
    samples = each.join(about, on=keys, how="left", maintain_order="left")
    yield _table(samples, pl.format("sample {}", "sample"), pl.lit(SAMPLE), 5, thread)
    stages = spans.with_columns(cpu_us=pl.col("cpu_ns") / 1000)
    yield _table(stages, pl.col("stage").cast(pl.String), pl.col("kind"), 6, thread)


def _loop_slices(run: Run, arrows: pl.DataFrame, loop: str) -> Iterator[pl.DataFrame]:
    """Yield what the loop's process and the sending threads did; arrows end in the first use."""
    timed = run.all_steps.drop_nulls(["start_ns", "end_ns"]).drop("worker")
    # A step begins with `iter(loader)` before it
    steps = timed.with_columns(begin_ns=begin_ns(), used_ns=used_until_ns())
    steps = steps.sort("rank", "end_ns")
    uses = _uses(run, steps)
    # Only where no use was seen, an arrow ends in the wait: Perfetto lets it lead from the slice
    # that starts earlier, and a wait starts early
    ending = arrows.group_by(_STEP).agg(arrows="arrow")
    first = pl.struct(_STEP).is_first_distinct() & pl.col("step").is_not_null()
    uses = uses.join(ending, on=_STEP, how="left", maintain_order="left").with_columns(
        arrows=pl.when(first).then("arrows")
    )
    waits = steps.join(ending.join(uses, on=_STEP, how="anti"), on=_STEP, how="left")
    ends = uses.group_by(_STEP).agg(last_ns=pl.col("end_ns").max())
    whole = steps.join(ends, on=_STEP, how="left")
    whole = whole.with_columns(start_ns="begin_ns", end_ns=pl.max_horizontal("used_ns", "last_ns"))
    again = steps.filter(pl.col("begin_ns") < pl.col("start_ns"))
    restarts = again.with_columns(start_ns="begin_ns", end_ns="start_ns")
    # The loader's own waits, where they are not the same as the step's
    own = run.waits.join(steps, on=(*_STEP, "start_ns", "end_ns"), how="anti")
    here = pl.lit(loop)
    yield _table(whole, pl.format("step {}", "step"), pl.lit(LOOP), 0, here)
    yield _table(_stalls(run), pl.lit("stall"), pl.lit(STALL), 1, here)
    yield _table(restarts, pl.lit("iter(loader)"), pl.lit(WAIT), 2, here)
    yield _table(waits, pl.lit("wait"), pl.lit(WAIT), 2, here)
    yield _table(own, pl.lit("next(loader)"), pl.lit(WAIT), 3, here)
    stage = pl.col("stage").cast(pl.String)
    is_simulated = pl.lit(run.settings.simulated_step_s is not None) & (pl.col("kind") == STEP.kind)
    name = pl.when(is_simulated).then(pl.format("{} (simulated)", stage)).otherwise(stage)
    yield _table(uses, name, pl.col("kind"), 4, here)
    # Sending from the workers, through which the arrows lead, and pinning
    side = run.side_spans.filter(pl.col("kind").is_in(_SIDE))
    pins = pl.col("kind") == PIN.kind
    arrow = arrows.select(*_BATCH, sent=pl.concat_list("arrow"))
    side = side.join(arrow, on=_BATCH, how="left").with_columns(arrows=pl.when(~pins).then("sent"))
    thread = pl.when(pins).then(pl.lit(PINNING)).otherwise(pl.lit(SENDING))
    yield _table(side, stage, pl.col("kind"), 0, thread)


def _stalls(run: Run) -> pl.DataFrame:
    parts = run.parts().sort("exposed_s", descending=True, maintain_order=True)
    words = pl.format("{} {}", "part", pl.col("exposed_s").map_elements(seconds, pl.String))
    longest = parts.group_by(_STEP, maintain_order=True).agg(
        consists_of=words.head(_MOST_PARTS).str.join(", ")
    )
    return run.stalls().drop("worker").join(longest, on=_STEP, how="left")


def _uses(run: Run, steps: pl.DataFrame) -> pl.DataFrame:
    of_loop = pl.col("worker").is_null() & ~pl.col("kind").is_in(_SIDE)
    spans = run.side_spans.filter(of_loop).sort("rank", "start_ns")
    its = {f"its_{name}": pl.col(name) for name in ("epoch", "batch")}
    begun = steps.select(*_STEP, "steady", **its, start_ns="end_ns")
    uses = spans.join_asof(
        begun, on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    same = (pl.col("epoch") == pl.col("its_epoch")) & (pl.col("batch") == pl.col("its_batch"))
    return uses.with_columns(pl.when(same).then(name).alias(name) for name in ("step", "steady"))
