"""Turn marks into events in one pass: waits, iterators, parts, and each batch on its way.

Each thread is read by itself. Nothing continues across a gap in its logs, whose files are deleted
when a recording is long: a gap ends one track, and begins another.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

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

    _File: TypeAlias = tuple[LogPages, np.ndarray]
    """File of a log, and its marks: columns of `MarkRow`, times from the start of the run."""

_TIME: Final = MarkRow._fields.index("time_ns")

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


@dataclass
class Track:
    """Events of one thread of the loop, without a gap. Times count from the start of the run."""

    thread: int
    begin_ns: int
    last_ns: int
    """Time of the last mark of the loop."""
    is_first: bool
    """True if the thread begins here."""
    is_cut: bool = False
    """True if the thread goes on after a gap."""
    waits: list[Wait] = field(default_factory=list)
    """Outermost waits of the loop, in the order in which they began."""
    iterators: list[tuple[int, int, int]] = field(default_factory=list)
    """Creation of each iterator: begin, end, its epoch's key."""
    parts: list[Interval] = field(default_factory=list)
    """Named parts, copies into pinned memory and garbage collections; inner ones end first."""
    unfinished: list[Interval] = field(default_factory=list)
    """Parts that an exception or the end of the process cut off."""
    pins: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, thread that pins the batches of an epoch, the epoch's key."""
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    """Events of the device: `hooks.device_time.Edge`, time on its own clock, drift of that clock
    (measured at the end)."""


@dataclass
class Events:
    """Events of a recording, of all loaders. Times count from the start of the run."""

    rank: int
    pid: int
    """Process id of the training process."""
    deliveries: pl.DataFrame
    """One row per batch (`key, number`, see `Wait`): its `worker`, its `pid`, the times of `TIMES`
    and of its copying into pinned memory, `pinning_ns` and `pinned_ns`; null where not seen."""
    tracks: list[Track]
    """Threads of the loop, in the order in which they began to wait."""
    devices: list[str | None]
    """Names of the devices, see `ProcessNames.devices`."""

    @cached_property
    def waits(self) -> list[Wait]:
        """Outermost waits of all threads."""
        return [wait for track in self.tracks for wait in track.waits]

    @property
    def iterators(self) -> list[tuple[int, int, int]]:
        """Creations of iterators, see `Track`, of all threads."""
        return [iterator for track in self.tracks for iterator in track.iterators]

    @cached_property
    def _inside(self) -> dict[int, Counter[int]]:
        """Loaders inside of each wrapper's epoch, and inside of all of a recording's own loop."""
        loaders: dict[int, Counter[int]] = defaultdict(Counter)
        for wait in self.waits:
            if wait.loader <= OUTER:  # keys of wrappers are below those of the own loop's epochs
                loaders[min(wait.key, OUTER)].update(inner.loader for inner in wait.inside)
        return loaders

    def owner(self, key: int) -> int:
        """Return the loader of an epoch; for a wrapper around a loader, the loader inside."""
        number = loader_and_epoch(key)[0]
        inner = self._inside.get(min(key, OUTER)) if number <= OUTER else None
        return inner.most_common(1)[0][0] if inner else number

    def waits_for_loaders(self, track: Track) -> list[Wait]:
        """Return the waits of a thread, without those for a wrapper that has no loader inside."""
        return [wait for wait in track.waits if wait.end_ns and self.owner(wait.key) != AROUND]

    @cached_property
    def is_own(self) -> bool:
        """True for a loop of stallscope's, which marks its steps by itself."""
        return any(wait.loader == OUTER for wait in self.waits)

    @cached_property
    def collections(self) -> list[Interval]:
        """Garbage collections: each stops all threads."""
        parts = (part for track in self.tracks for part in track.parts)
        return sorted(part for part in parts if part.stage == GARBAGE)

    @cached_property
    def device_work(self) -> list[tuple[str | None, int, int]]:
        """Intervals of the device's work: kind (None where unknown), begin, end."""
        return list(self._device_work())

    def _device_work(self) -> Iterator[tuple[str | None, int, int]]:
        if not self.devices or not self.tracks:
            return
        heard_ns = max(track.last_ns for track in self.tracks)
        # What the device did in a gap is unknown
        edges = [
            edge
            for track in self.tracks
            for edge in [*track.edges, *((Edge.UNKNOWN, at, 0) for _, at, _ in track.edges[-1:])]
        ][:-1]
        if not edges or None in self.devices:
            yield None, min(track.begin_ns for track in self.tracks), heard_ns
            return
        (_, begin_ns, _), (last, end_ns, astray_ns) = edges[0], edges[-1]
        rate = astray_ns / max(end_ns - begin_ns, 1)
        timed = [(edge, at + round(rate * (at - begin_ns))) for edge, at, _ in edges]
        if last != Edge.END:  # the process was killed, or the device was lost
            timed += [(Edge.UNKNOWN, timed[-1][1]), (Edge.END, heard_ns)]
        for (edge, start_ns), (_, until_ns) in pairwise(timed):
            if edge in _WORKS and until_ns > start_ns:
                yield _WORKS[edge], start_ns, until_ns


def events(pages: Iterable[LogPages], *, rank: int = 0, origin_ns: int = 0) -> Events:
    """Return the events of all threads and processes of a recording that began at `origin_ns`."""
    files = [(page, marks(page)) for page in pages]
    for _, rows in files:
        rows[:, _TIME] -= origin_ns
    of_loop = [(page, rows) for page, rows in files if page.worker < 0]
    tracks = list(_tracks(of_loop, origin_ns))
    tracks.sort(key=lambda track: (not track.waits, [wait.start_ns for wait in track.waits[:1]]))
    names = {(page.pid, page.started_ns): page.names for page, _ in of_loop}.values()
    facts = (fact for each in names for fact in each.loaders.items())
    _see_through(tracks, {number for number, fact in facts if fact.get("num_workers")})
    deliveries = _deliveries(files)
    columns = dict.fromkeys(("key", "number", "pinning_ns", "pinned_ns"), pl.Int64)
    pins = pl.DataFrame(list(_pins(tracks, deliveries)), columns, orient="row")
    pinned = pins.unique(["key", "number"], keep="last")
    # The loop gets a batch after its pin; the thread had unpickled it before
    arrived_ns = pl.coalesce("pinning_ns", "arrived_ns")
    deliveries = deliveries.join(pinned, on=["key", "number"], how="left")
    deliveries = deliveries.with_columns(arrived_ns=arrived_ns).sort("key", "number")
    pid = next((page.pid for page, _ in of_loop), 0)
    devices = [device for each in names for device in each.devices]
    return Events(rank, pid, deliveries, tracks, devices)


def _deliveries(files: list[_File]) -> pl.DataFrame:
    what, time_ns = pl.col("what"), pl.col("time_ns")
    schema = dict.fromkeys(MarkRow._fields, pl.Int64)
    marked = [
        pl.DataFrame(rows[np.isin(rows[:, 0], list(TIMES))], schema, orient="row").with_columns(
            pid=pl.lit(page.pid, pl.Int64),
            worker=pl.lit(page.worker if page.worker >= 0 else None, pl.Int64),
        )
        for page, rows in files
    ]
    none = pl.DataFrame(schema={**schema, "pid": pl.Int64, "worker": pl.Int64})
    asked, is_maker = what == Mark.ASKED, pl.col("worker").is_not_null() | (what == Mark.TAKEN)
    batches = pl.concat([none, *marked]).sort("time_ns").group_by("key", "number")
    return batches.agg(
        worker=pl.coalesce(pl.col("extra").filter(asked).last(), pl.col("worker").last()),
        pid=pl.col("pid").filter(is_maker).last(),
        **{name: time_ns.filter(what == mark).last() for mark, name in TIMES.items()},
    )


def _see_through(tracks: list[Track], served: set[int]) -> None:
    """Treat a loader whose dataset waits for another loader's workers as a wrapper around it.

    The waits and iterators get new keys; `served` are the loaders that have workers.
    """
    outermost = [wait for track in tracks for wait in track.waits]
    around = {
        wait.loader
        for outer in outermost
        for wait in (outer, *outer.inside)
        if wait.loader > OUTER
        and wait.loader not in served
        and any(inner.loader in served for inner in wait.inside)
    }

    def key_of(key: int) -> int:
        loader, _ = loader_and_epoch(key)
        # Numbers from the end, which no epoch reaches
        return epoch_key(AROUND + 1, -loader) if loader in around else key

    for wait in outermost if around else ():
        wait.key = key_of(wait.key)
        wait.inside = [
            near
            for inner in wait.inside
            for near in (inner.inside if inner.loader in around else [inner])
        ]
    for track in tracks if around else ():
        track.iterators = [(begin, end, key_of(key)) for begin, end, key in track.iterators]


def _tracks(files: list[_File], origin_ns: int) -> Iterator[Track]:
    """Yield the threads of the loop's processes."""

    def thread_of(file: _File) -> tuple[int, ...]:
        return file[0].pid, file[0].started_ns, file[0].thread

    in_order = sorted(files, key=lambda file: (*thread_of(file), file[0].turn))
    for _, its in groupby(in_order, thread_of):
        pieces: list[list[_File]] = []
        for file in its:
            if pieces and pieces[-1][-1][0].turn == file[0].turn - 1:
                pieces[-1].append(file)
            else:
                pieces.append([file])
        for piece in pieces:
            track = _track(piece, origin_ns)
            track.is_cut = piece is not pieces[-1]
            yield track


def _track(  # noqa: C901, PLR0912 - one case for each kind of mark
    files: list[_File], origin_ns: int
) -> Track:
    """Read the marks of a thread, in the order in which it wrote them."""
    page, born_ns = files[0][0], files[0][0].born_ns - origin_ns
    track = Track(page.thread, born_ns, born_ns, is_first=page.turn == 0)
    names = page.names.stages
    is_known = track.is_first  # behind a gap, the first wait may lie inside of one that is lost
    waits: list[Wait] = []
    parts: list[tuple[Stage, int]] = []
    iter_ns: dict[int, int] = {}
    rows = np.concatenate([rows for _, rows in files])
    for row in rows[~np.isin(rows[:, 0], list(TIMES))].tolist():
        what, _, key, number, extra, time_ns = MarkRow(*row)
        if what == Mark.DEVICE:
            track.edges.append((extra, time_ns, number))
            continue
        track.last_ns = time_ns
        match what:
            case Mark.ITER:
                iter_ns[key] = time_ns
            case Mark.ITERATED if key in iter_ns:
                track.iterators.append((iter_ns.pop(key), time_ns, key))
            case Mark.WAIT:
                inside = waits[-1].inside if waits else track.waits if is_known else []
                waits.append(Wait(key, time_ns))
                inside.append(waits[-1])
                is_known = True
            case Mark.GOT | Mark.ENDED:
                while waits:
                    wait = waits.pop()
                    wait.end_ns = time_ns
                    if wait.key == key:
                        wait.number = number if what == Mark.GOT else None
                        break
            case Mark.BEGIN:
                parts.append((names.get(extra, UNKNOWN), time_ns))
            case Mark.END:
                stage = names.get(extra, UNKNOWN)
                while any(stage == begun for begun, _ in parts):
                    begun, start_ns = parts.pop()  # a part that raised has no end of its own
                    track.parts.append(Interval(start_ns, time_ns, begun))
                    if begun == stage:
                        break
            case Mark.PINS:
                track.pins.append((time_ns, number & NUMBER, key))
    track.unfinished = [
        Interval(start, start, stage) for stage, start in parts if stage not in (GARBAGE, PIN)
    ]
    return track


def _pins(tracks: list[Track], deliveries: pl.DataFrame) -> Iterator[tuple[int, ...]]:
    """Yield the pin of each batch: the batches of a thread arrive in the order of their pins.

    A thread pins for one epoch after the other: it may live on, or a later thread has its id. The
    rest of an abandoned epoch is pinned before the next epoch asks for a batch. Behind a gap,
    batches can be matched with their pins only in epochs that began after the gap.
    """
    times = deliveries.sort("arrived_ns")
    asked = times.drop_nulls("asked_ns").group_by("key").agg(pl.col("asked_ns").min())
    asked_ns: dict[int, int] = dict(asked.iter_rows())
    arrived = times.drop_nulls("arrived_ns").rows_by_key("key", named=True)
    keys_of: dict[int, list[int]] = defaultdict(list)
    for _, thread, key in sorted(pin for track in tracks for pin in track.pins):
        keys_of[thread].append(key)
    for thread, keys in keys_of.items():
        parts = (part for track in tracks if track.thread == thread for part in track.parts)
        pinned = sorted(part[:2] for part in parts if part.stage == PIN)
        begins = [asked_ns.get(key, 0) for key in keys]
        for key, begin, end in zip(keys, begins, [*begins[1:], math.inf], strict=True):
            gaps = [track.begin_ns for track in tracks if not track.is_first]
            until = min([end, *(gap for gap in gaps if gap > begin)])
            its = pinned[bisect_left(pinned, (begin,)) : bisect_left(pinned, (until,))]
            came = [batch for batch in arrived[key] if begin <= batch["arrived_ns"] < until]
            for batch, pin in zip(came, its, strict=False):
                yield key, batch["number"], *pin
