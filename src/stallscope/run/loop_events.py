"""Turn marks into events in one pass: waits, iterators, parts, and each batch on its way."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from stallscope.hooks.device_time import Edge
from stallscope.hooks.event_log import NUMBER, Mark
from stallscope.hooks.recording_folder import AROUND, OUTER, epoch_key, loader_and_epoch
from stallscope.run.decode import UNKNOWN, MarkRow, marks
from stallscope.stages import GARBAGE, H2D, PIN, STEP, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.hooks.event_log import LogPages


_TIME: Final = MarkRow._fields.index("time_ns")
_GAP: Final = 0
"""Row for deleted files of a thread's log: nothing continues across the gap."""

_WORKS: dict[int, str | None] = {Edge.COPY: H2D.kind, Edge.STEP: STEP.kind, Edge.UNKNOWN: None}
TIMES: Final[dict[int, str]] = {
    Mark.ASKED: "asked_ns",
    Mark.TAKEN: "taken_ns",
    Mark.MADE: "made_ns",
    Mark.PICKLE: "pickle_ns",
    Mark.SENT: "sent_ns",
    Mark.ARRIVED: "arrived_ns",
}
"""Columns of deliveries, by the marks of a batch on its way."""


@dataclass
class Wait:
    """One `next` of an iterator."""

    thread: int
    key: int
    """Loader and epoch, see `recording_folder.epoch_key`."""
    start_ns: int
    end_ns: int = 0
    number: int | None = None
    """Number of the batch in its epoch, from 0; None where none came."""
    inside: list[Wait] = field(default_factory=list)
    """Waits directly inside this one."""

    @property
    def loader(self) -> int:
        """Number of the loader that the loop waited for."""
        return loader_and_epoch(self.key)[0]

    @property
    def batch(self) -> tuple[int, int | None]:
        """Its epoch and number."""
        return loader_and_epoch(self.key)[1], self.number


class Interval(NamedTuple):
    """Stage of the loop with its begin and end; sorted by its begin."""

    start_ns: int
    end_ns: int
    stage: Stage
    thread: int = 0


@dataclass
class Events:
    """Events of a recording, of all loaders. Times count from the start of the run."""

    rank: int
    pid: int
    """Process id of the training process."""
    deliveries: pl.DataFrame
    """One row per batch (`key, number`, see `Wait`): its `worker`, its `pid`, the times of `TIMES`
    and of its copying into pinned memory, `pinning_ns` and `pinned_ns`; null where not seen."""
    waits: list[Wait] = field(default_factory=list)
    """Outermost waits of the loop, in the order in which they began."""
    iterators: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Creation of each iterator: begin, end, its epoch's key, thread."""
    parts: list[Interval] = field(default_factory=list)
    """Named parts of the loop; those of one thread are nested, and inner ones end first."""
    unfinished: list[Interval] = field(default_factory=list)
    """Parts that an exception or the end of the process cut off."""
    collections: list[Interval] = field(default_factory=list)
    """Garbage collections."""
    last_ns: dict[int, int] = field(default_factory=dict)
    """Time of the last mark of each thread of the loop."""
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    """Events of the device: `hooks.device_time.Edge`, time on its own clock, drift of that clock
    (measured at the end)."""
    devices: list[str | None] = field(default_factory=list)
    """Names of the devices, see `ProcessNames.devices`."""
    pieces: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Begin and end of each kept piece of a thread's log; a short recording has one piece."""

    def seen_until(self, thread: int, start_ns: int, end_ns: int) -> int:
        """Return the end of the record without a gap from the start on; at most `end_ns`."""
        pieces = self.pieces.get(thread, [])
        at = bisect_left(pieces, start_ns, key=lambda piece: piece[1])
        return min(pieces[at][1], end_ns) if at < len(pieces) else end_ns

    def device_work(self) -> Iterator[tuple[str | None, int, int]]:
        """Yield the intervals of the device's work: kind (None where unknown), begin, end."""
        heard_ns = max(self.last_ns.values(), default=0)
        if not self.devices or not self.pieces:
            return
        if not self.edges or None in self.devices:
            yield None, min(pieces[0][0] for pieces in self.pieces.values()), heard_ns
            return
        (_, begin_ns, _), (last, end_ns, astray_ns) = self.edges[0], self.edges[-1]
        rate = astray_ns / max(end_ns - begin_ns, 1)
        edges = [(edge, at + round(rate * (at - begin_ns))) for edge, at, _ in self.edges]
        if last != Edge.END:  # the process was killed, or the device was lost
            edges += [(Edge.UNKNOWN, edges[-1][1]), (Edge.END, heard_ns)]
        for (edge, start_ns), (_, until_ns) in pairwise(edges):
            if edge in _WORKS and until_ns > start_ns:
                yield _WORKS[edge], start_ns, until_ns


class _Marked(NamedTuple):
    """File of a log with its marks, whose times count from the start of the run."""

    page: LogPages
    born_ns: int
    rows: np.ndarray
    """Columns of `MarkRow`."""


def events(pages: Iterable[LogPages], *, rank: int = 0, origin_ns: int = 0) -> Events:
    """Return the events of all threads and processes of a recording that began at `origin_ns`."""
    files, loops = [], defaultdict(list)
    for page in pages:
        files.append(_Marked(page, page.born_ns - origin_ns, rows := marks(page)))
        rows[:, _TIME] -= origin_ns
        if page.worker < 0:
            loops[page.pid, page.started_ns].append(files[-1])
    pid = next((page.pid for page, *_ in files if page.worker < 0), 0)
    recording = Events(rank, pid, _deliveries(files))
    pins: list[tuple[int, ...]] = []
    for loop in loops.values():
        reader = _Loop(loop, recording)
        reader.read()
        pins += reader.pins()
        facts = loop[0].page.names.loaders.items()
        _see_through(recording, {number for number, fact in facts if fact.get("num_workers")})
    columns = dict.fromkeys(("key", "number", "pinning_ns", "pinned_ns"), pl.Int64)
    pinned = pl.DataFrame(pins, columns, orient="row").unique(["key", "number"], keep="last")
    deliveries = recording.deliveries.join(pinned, on=["key", "number"], how="left")
    # The loop gets a batch after its pin; the thread had unpickled it before
    arrived_ns = pl.coalesce("pinning_ns", "arrived_ns")
    recording.deliveries = deliveries.with_columns(arrived_ns=arrived_ns).sort("key", "number")
    return recording


def _deliveries(files: list[_Marked]) -> pl.DataFrame:
    what, time_ns = pl.col("what"), pl.col("time_ns")
    schema = dict.fromkeys(MarkRow._fields, pl.Int64)
    marked = [
        pl.DataFrame(rows[np.isin(rows[:, 0], list(TIMES))], schema, orient="row").with_columns(
            pid=pl.lit(page.pid, pl.Int64),
            worker=pl.lit(page.worker if page.worker >= 0 else None, pl.Int64),
        )
        for page, _, rows in files
    ]
    none = pl.DataFrame(schema={**schema, "pid": pl.Int64, "worker": pl.Int64})
    asked, is_maker = what == Mark.ASKED, pl.col("worker").is_not_null() | (what == Mark.TAKEN)
    batches = pl.concat([none, *marked]).sort("time_ns").group_by("key", "number")
    return batches.agg(
        worker=pl.coalesce(pl.col("extra").filter(asked).last(), pl.col("worker").last()),
        pid=pl.col("pid").filter(is_maker).last(),
        **{name: time_ns.filter(what == mark).last() for mark, name in TIMES.items()},
    )


def _see_through(events: Events, served: set[int]) -> None:
    """Treat a loader whose dataset waits for another loader's workers as a wrapper around it.

    The waits and iterators get new keys; `served` are the loaders that have workers.
    """
    waits = [*events.waits, *(wait for outer in events.waits for wait in outer.inside)]
    around = {
        wait.loader
        for wait in waits
        if wait.loader > OUTER
        and wait.loader not in served
        and any(inner.loader in served for inner in wait.inside)
    }

    def key_of(key: int) -> int:
        loader, _ = loader_and_epoch(key)
        # Numbers from the end, which no epoch reaches
        return epoch_key(AROUND + 1, -loader) if loader in around else key

    for wait in events.waits if around else ():
        wait.key = key_of(wait.key)
        wait.inside = [
            near
            for inner in wait.inside
            for near in (inner.inside if inner.loader in around else [inner])
        ]
    events.iterators = [
        (begin, end, key_of(key), thread) for begin, end, key, thread in events.iterators
    ]


class _Loop:
    """Reads the marks of all threads of a training process, in the order of time."""

    def __init__(self, files: list[_Marked], events: Events) -> None:
        self._files = sorted(files, key=lambda file: file.page.turn)
        self._events = events
        self._names = files[0].page.names.stages
        self._gaps: list[int] = []
        """Ends of the gaps."""
        self._after_gap: set[int] = set()
        self._waits: dict[int, list[Wait]] = defaultdict(list)
        self._parts: dict[int, list[tuple[Stage, int]]] = defaultdict(list)
        self._iter_ns: dict[int, int] = {}
        self._pinned: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._pinning_for: dict[int, list[int]] = defaultdict(list)

    def read(self) -> None:
        """Add the events of this process."""
        self._events.devices += self._files[0].page.names.devices
        rows = np.concatenate([*self._rows()])
        rows = rows[~np.isin(rows[:, 0], list(TIMES))]
        in_time = np.argsort(rows[:, _TIME], kind="stable")
        for row in rows[in_time].tolist():
            self._read(MarkRow(*row))
        for thread, begun in self._parts.items():
            self._events.unfinished += [
                Interval(start, start, stage, thread)
                for stage, start in begun
                if stage not in (GARBAGE, PIN)
            ]

    def _rows(self) -> Iterator[np.ndarray]:
        """Yield the rows of each file, with a row for each gap before one."""
        turns: dict[int, int] = {}
        for page, born_ns, rows in self._files:
            pieces = self._events.pieces[page.thread]
            of_host = rows[rows[:, 0] != Mark.DEVICE]  # the device's events may be written late
            end_ns = max([born_ns, *of_host[-1:, _TIME].tolist()])
            if turns.get(page.thread) == page.turn - 1:
                pieces[-1] = pieces[-1][0], end_ns
            else:
                pieces.append((born_ns, end_ns))
                if page.thread in turns:
                    yield np.array([[_GAP, page.thread, 0, 0, 0, born_ns]])
            turns[page.thread] = page.turn
            yield rows

    def _leave_gap(self, thread: int, time_ns: int) -> None:
        """Forget the open waits and parts of the thread."""
        if self._events.edges:
            self._events.edges.append((Edge.UNKNOWN, self._events.edges[-1][1], 0))
        self._gaps.append(time_ns)
        self._waits.pop(thread, None)
        self._parts.pop(thread, None)
        self._iter_ns.clear()
        self._after_gap.add(thread)

    def _read(self, row: MarkRow) -> None:  # noqa: C901 - one case for each kind of mark
        what, thread, key, number, extra, time_ns = row
        if what not in (_GAP, Mark.DEVICE):
            self._events.last_ns[thread] = time_ns
        match what:
            case Mark.ITER:
                self._iter_ns[key] = time_ns
            case Mark.ITERATED if key in self._iter_ns:
                self._events.iterators.append((self._iter_ns.pop(key), time_ns, key, thread))
            case Mark.WAIT:
                self._wait(Wait(thread, key, time_ns))
            case Mark.GOT:
                self._close(thread, key, time_ns, number)
            case Mark.ENDED:
                self._close(thread, key, time_ns, None)
            case Mark.BEGIN:
                self._parts[thread].append((self._names.get(extra, UNKNOWN), time_ns))
            case Mark.END:
                self._end(thread, self._names.get(extra, UNKNOWN), time_ns)
            case Mark.PINS:
                self._pinning_for[number & NUMBER].append(key)
            case Mark.DEVICE:
                self._events.edges.append((extra, time_ns, number))
            case 0:  # _GAP
                self._leave_gap(thread, time_ns)

    def _wait(self, wait: Wait) -> None:
        open_here = self._waits[wait.thread]
        if open_here:
            open_here[-1].inside.append(wait)
        elif wait.thread in self._after_gap:  # the events before this wait are lost
            self._after_gap.remove(wait.thread)
        else:
            self._events.waits.append(wait)
        open_here.append(wait)

    def _close(self, thread: int, key: int, time_ns: int, number: int | None) -> None:
        open_here = self._waits[thread]
        while open_here:
            wait = open_here.pop()
            wait.end_ns = time_ns
            if wait.key == key:
                wait.number = number
                return

    def _end(self, thread: int, stage: Stage, time_ns: int) -> None:
        open_here = self._parts[thread]
        if not any(stage == begun for begun, _ in open_here):
            return
        while open_here:  # a part that raised has no end of its own
            begun, start_ns = open_here.pop()
            part = Interval(start_ns, time_ns, begun, thread)
            if begun == GARBAGE:  # it stops all threads
                self._events.collections.append(part)
            elif begun == PIN:
                self._pinned[thread].append((start_ns, time_ns))
            else:
                self._events.parts.append(part)
            if begun == stage:
                return

    def pins(self) -> Iterator[tuple[int, ...]]:
        """Yield the pin of each batch: the batches of a thread arrive in the order of their pins.

        A thread pins for one epoch after the other: it may live on, or a later thread has its id.
        The rest of an abandoned epoch is pinned before the next epoch asks for a batch. Behind a
        gap, batches can be matched with their pins only in epochs that began after the gap.
        """
        times = self._events.deliveries.sort("arrived_ns")
        asked = times.drop_nulls("asked_ns").group_by("key").agg(pl.col("asked_ns").min())
        asked_ns: dict[int, int] = dict(asked.iter_rows())
        arrived = times.drop_nulls("arrived_ns").rows_by_key("key", named=True)
        for thread, keys in self._pinning_for.items():
            pinned = self._pinned[thread]
            begins = [asked_ns.get(key, 0) for key in keys]
            for key, begin, end in zip(keys, begins, [*begins[1:], math.inf], strict=True):
                gaps = [gap for gap in self._gaps if gap > begin]
                until = min([end, *gaps])
                its = pinned[bisect_left(pinned, (begin,)) : bisect_left(pinned, (until,))]
                came = [batch for batch in arrived[key] if begin <= batch["arrived_ns"] < until]
                for batch, pin in zip(came, its, strict=False):
                    yield key, batch["number"], *pin
