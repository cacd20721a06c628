"""From marks to what happened: waits, iterators, parts, deliveries. One pass over the marks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stallscope.hooks.device_time import Edge
from stallscope.hooks.event_log import NUMBER, Mark
from stallscope.hooks.log_place import AROUND, OUTER, epoch_key, loader_and_epoch
from stallscope.run.decode import UNKNOWN, MarkRow, marks
from stallscope.stages import GARBAGE, H2D, PIN, STEP, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.hooks.log_reader import LogPages


_TIME: Final = MarkRow._fields.index("time_ns")
_GAP: Final = 0
"""Row for files of a thread's log that were deleted: nothing goes on from there."""

_WORKS: dict[int, str | None] = {
    Edge.COPY: H2D.kind,
    Edge.STEP: STEP.kind,
    Edge.UNKNOWN: None,
}
_TIMES: dict[int, str] = {
    Mark.ASKED: "asked_ns",
    Mark.TAKEN: "taken_ns",
    Mark.MADE: "made_ns",
    Mark.PICKLE: "pickle_ns",
    Mark.SENT: "sent_ns",
    Mark.ARRIVED: "arrived_ns",
}


class Batch(NamedTuple):
    """Batch of a loader."""

    key: int
    """Loader and epoch, see `log_place.epoch_key`."""
    number: int
    """In the epoch, from 0."""

    @property
    def loader(self) -> int:
        """Return the number of its loader."""
        return loader_and_epoch(self.key)[0]

    @property
    def epoch(self) -> int:
        """Return its epoch."""
        return loader_and_epoch(self.key)[1]


@dataclass
class Wait:
    """One `next` of an iterator."""

    thread: int
    key: int
    start_ns: int
    end_ns: int = 0
    number: int | None = None
    """Of the batch in its epoch; None where there was none."""
    inside: list[Wait] = field(default_factory=list)
    """Waits directly inside this one."""

    @property
    def loader(self) -> int:
        """Return the number of the loader that was waited for."""
        return loader_and_epoch(self.key)[0]

    @property
    def batch(self) -> Batch | None:
        """Return the batch that came; None where there was none."""
        return None if self.number is None else Batch(self.key, self.number)


class NamedPart(NamedTuple):
    """Something that has a name, in a thread."""

    thread: int
    stage: Stage
    start_ns: int
    end_ns: int


@dataclass
class Delivery:
    """Times of one batch on its way to the loop; None is unknown."""

    worker: int | None = None
    pid: int | None = None
    asked_ns: int | None = None
    taken_ns: int | None = None
    made_ns: int | None = None
    pickle_ns: int | None = None
    sent_ns: int | None = None
    arrived_ns: int | None = None

    def times(self) -> list[int | None]:
        """Return all of its times, in their order."""
        return [getattr(self, name) for name in _TIMES.values()]


@dataclass
class Events:
    """Events of a recording, of all loaders. Times are `perf_counter_ns()`."""

    waits: list[Wait] = field(default_factory=list)
    """Waits of the loop, in the order in which they began; others are inside of them."""
    iterators: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Creation of each iterator: begin, end, its epoch's key, thread."""
    parts: list[NamedPart] = field(default_factory=list)
    """Named parts of the loop; those of one thread are nested, and inner ones end first."""
    unfinished: list[NamedPart] = field(default_factory=list)
    """Parts that an exception or the end of the process cut off."""
    collections: list[tuple[int, int]] = field(default_factory=list)
    """Garbage collections: begin and end."""
    deliveries: dict[Batch, Delivery] = field(default_factory=lambda: defaultdict(Delivery))
    pins: dict[Batch, tuple[int, int]] = field(default_factory=dict)
    """Copying of a batch into pinned memory: begin and end."""
    last_ns: dict[int, int] = field(default_factory=dict)
    """Time of the last mark of each thread of the loop."""
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    """Events of the device: `hooks.device_time.Edge`, time of its own clock, drift of that clock
    (known at the end)."""
    devices: list[str | None] = field(default_factory=list)
    """As `ProcessNames.devices`."""
    pieces: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Begin and end of each piece that was kept of a thread's log; of a short recording just one.
    """
    joined: frozenset[int] = frozenset()
    """Loaders whose epochs were taken for another one's, see `LoaderChain`."""

    def seen_until(self, thread: int, start_ns: int, end_ns: int) -> int:
        """Return until when a thread was seen without a gap from the start on; at most the end."""
        pieces = self.pieces.get(thread, [])
        at = bisect_left(pieces, start_ns, key=lambda piece: piece[1])
        return min(pieces[at][1], end_ns) if at < len(pieces) else end_ns

    def device_work(self) -> Iterator[tuple[str | None, int, int]]:
        """Yield when the device had work: kind, begin, end; None for the kind where none saw it."""
        heard_ns = max(self.last_ns.values(), default=0)
        if not self.devices or not self.pieces:
            return
        if not self.edges or None in self.devices:
            yield None, min(pieces[0][0] for pieces in self.pieces.values()), heard_ns
            return
        (_, begin_ns, _), (last, end_ns, astray_ns) = self.edges[0], self.edges[-1]
        rate = astray_ns / max(end_ns - begin_ns, 1)
        told = [(edge, at + round(rate * (at - begin_ns))) for edge, at, _ in self.edges]
        if last != Edge.END:  # the process was killed, or the device was lost
            told += [(Edge.UNKNOWN, told[-1][1]), (Edge.END, heard_ns)]
        for (edge, start_ns), (_, until_ns) in pairwise(told):
            if edge in _WORKS and until_ns > start_ns:
                yield _WORKS[edge], start_ns, until_ns


def events(pages: Iterable[LogPages]) -> Events:
    """Return what the marks of all threads and processes of a recording say."""
    found, loops = Events(), defaultdict(list)
    for page in pages:
        if page.worker >= 0:
            _read_worker(page, found)
        else:
            loops[page.pid, page.started_ns].append(page)
    for loop in loops.values():
        _Loop(loop, found).read()
        known = loop[0].names.loaders
        _see_through(found, {number for number in known if known[number].get("num_workers")})
    return found


def _see_through(found: Events, served: set[int]) -> None:
    """Take a loader whose dataset waits for another's workers for something around that one.

    Args:
        found: its waits are changed.
        served: the loaders that have workers.
    """
    known = [*found.waits, *(wait for outer in found.waits for wait in outer.inside)]
    around = {
        wait.loader
        for wait in known
        if wait.loader > OUTER
        and wait.loader not in served
        and any(inner.loader in served for inner in wait.inside)
    }

    def key_of(key: int) -> int:
        loader, _ = loader_and_epoch(key)
        # Numbers from the end: nothing else has so many epochs
        return epoch_key(AROUND + 1, -loader) if loader in around else key

    for wait in found.waits if around else ():
        wait.key = key_of(wait.key)
        wait.inside = [
            one
            for inner in wait.inside
            for one in (inner.inside if inner.loader in around else [inner])
        ]
    found.iterators = [
        (begin, end, key_of(key), thread) for begin, end, key, thread in found.iterators
    ]


@dataclass(frozen=True)
class LoaderChain:
    """Loaders that the recording's own loop iterates one after the other, inside of one iterable.

    As those for training and validation. Their epochs are taken for epochs of one loader.
    """

    main: int
    """Loader that gave most batches."""
    loaders: frozenset[int]
    """All loaders of the chain."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Of each key, the epoch that it has become."""

    def key(self, key: int) -> int:
        """Return the new key of an epoch."""
        if loader_and_epoch(key)[0] not in self.loaders:
            return key
        return epoch_key(self.main, self.epochs.setdefault(key, len(self.epochs)))


def join_chained(found: Events) -> LoaderChain | None:
    """Take such loaders for one.

    Args:
        found: its waits, iterators and batches are changed.

    Returns:
        None where there are not several, or where two are iterated at once.
    """
    outer = [wait for wait in found.waits if wait.loader == OUTER]
    inside = [inner for wait in outer for inner in wait.inside if inner.loader > OUTER]
    turns = [key for key, _ in groupby(inner.key for inner in inside)]
    many = Counter(inner.loader for inner in inside)
    at_once = any(sum(one.number is not None for one in wait.inside) > 1 for wait in outer)
    if len(many) < 2 or len(turns) > len({*turns}) or at_once:  # noqa: PLR2004 - several
        return None
    chain = LoaderChain(many.most_common(1)[0][0], frozenset(many))
    for inner in inside:
        inner.key = chain.key(inner.key)
    found.iterators = [(start, end, chain.key(key), on) for start, end, key, on in found.iterators]
    ways = {Batch(chain.key(b.key), b.number): way for b, way in found.deliveries.items()}
    found.deliveries = defaultdict(Delivery, ways)
    found.pins = {Batch(chain.key(b.key), b.number): pin for b, pin in found.pins.items()}
    found.joined = chain.loaders - {chain.main}
    return chain


def _read_worker(page: LogPages, found: Events) -> None:
    for what, _, key, number, _, time_ns in marks(page).tolist():
        if what in _TIMES:
            delivery = found.deliveries[Batch(key, number)]
            delivery.worker, delivery.pid = page.worker, page.pid
            setattr(delivery, _TIMES[what], time_ns)


class _Loop:
    """Reads the marks of all threads of a process that trains, in the order of time."""

    def __init__(self, pages: list[LogPages], found: Events) -> None:
        self._pages = sorted(pages, key=lambda page: page.turn)
        self._found = found
        self._names = pages[0].names.stages
        self._after_gap: set[int] = set()
        self._waits: dict[int, list[Wait]] = defaultdict(list)
        self._parts: dict[int, list[tuple[Stage, int]]] = defaultdict(list)
        self._iter_ns: dict[int, int] = {}
        self._pinned: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._pinning_for: dict[int, list[int]] = defaultdict(list)
        self._asked_ns: dict[int, int] = {}

    def read(self) -> None:
        """Fill what was found."""
        self._found.devices += self._pages[0].names.devices
        rows = np.concatenate([*self._rows()])
        in_time = np.argsort(rows[:, _TIME], kind="stable")
        for row in rows[in_time].tolist():
            self._read(MarkRow(*row))
        self._match_pins()
        for thread, begun in self._parts.items():
            self._found.unfinished += [
                NamedPart(thread, stage, start, start)
                for stage, start in begun
                if stage not in (GARBAGE, PIN)
            ]

    def _rows(self) -> Iterator[np.ndarray]:
        """Yield the rows of each file, with a row for each gap before one."""
        turns: dict[int, int] = {}
        for page in self._pages:
            rows, pieces = marks(page), self._found.pieces[page.thread]
            of_host = rows[rows[:, 0] != Mark.DEVICE]  # the device may come there late
            end_ns = max([page.born_ns, *of_host[-1:, _TIME].tolist()])
            if page.thread not in turns:
                pieces.append((page.born_ns, end_ns))
            elif turns[page.thread] < page.turn - 1:
                pieces.append((page.born_ns, end_ns))
                yield np.array([[_GAP, page.thread, 0, 0, 0, page.born_ns]])
            else:
                pieces[-1] = pieces[-1][0], end_ns
            turns[page.thread] = page.turn
            yield rows

    def _leave_gap(self, thread: int) -> None:
        """Forget what the thread had begun.

        Which batch was pinned when is known only of epochs that began after the gap.
        """
        if self._found.edges:
            self._found.edges.append((Edge.UNKNOWN, self._found.edges[-1][1], 0))
        self._match_pins()
        self._waits.pop(thread, None)
        self._parts.pop(thread, None)
        for begun in (self._iter_ns, self._pinned, self._pinning_for, self._asked_ns):
            begun.clear()
        self._after_gap.add(thread)

    def _deliver(self, what: int, batch: Batch, extra: int, time_ns: int) -> None:
        delivery = self._found.deliveries[batch]
        setattr(delivery, _TIMES[what], time_ns)
        if what == Mark.ASKED:
            delivery.worker = extra
            self._asked_ns.setdefault(batch.key, time_ns)
        elif what == Mark.TAKEN:
            delivery.pid = self._pages[0].pid

    def _read(self, row: MarkRow) -> None:  # noqa: C901 - one case for each kind of mark
        what, thread, key, number, extra, time_ns = row
        if what not in (_GAP, Mark.DEVICE, *_TIMES):
            self._found.last_ns[thread] = time_ns
        match what:
            case _ if what in _TIMES:
                self._deliver(what, Batch(key, number), extra, time_ns)
            case Mark.ITER:
                self._iter_ns[key] = time_ns
            case Mark.ITERATED if key in self._iter_ns:
                self._found.iterators.append((self._iter_ns.pop(key), time_ns, key, thread))
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
                self._found.edges.append((extra, time_ns, number))
            case 0:  # _GAP
                self._leave_gap(thread)

    def _wait(self, wait: Wait) -> None:
        open_here = self._waits[wait.thread]
        if open_here:
            open_here[-1].inside.append(wait)
        elif wait.thread in self._after_gap:  # what its batch went through before is not known
            self._after_gap.remove(wait.thread)
        else:
            self._found.waits.append(wait)
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
        while open_here:  # one that raised has no end of its own
            begun, start_ns = open_here.pop()
            if begun == GARBAGE:  # all threads wait meanwhile
                self._found.collections.append((start_ns, time_ns))
            elif begun == PIN:
                self._pinned[thread].append((start_ns, time_ns))
            else:
                self._found.parts.append(NamedPart(thread, begun, start_ns, time_ns))
            if begun == stage:
                return

    def _match_pins(self) -> None:
        """Give each batch its pin: those of a thread arrive in the order in which they were pinned.

        A thread pins for one epoch after the other: it may live on, or a later one has its number.
        What is left of an epoch that was not used up comes before the next asks for a batch.
        """
        arrived: dict[int, list[tuple[int, Batch]]] = defaultdict(list)
        for batch, delivery in self._found.deliveries.items():
            begin_ns = self._asked_ns.get(batch.key, 0)
            if delivery.arrived_ns is not None and delivery.arrived_ns >= begin_ns:
                arrived[batch.key].append((delivery.arrived_ns, batch))
        for thread, keys in self._pinning_for.items():
            pinned = self._pinned[thread]
            begins = [bisect_left(pinned, (self._asked_ns.get(key, 0), 0)) for key in keys]
            for key, *places in zip(keys, begins, [*begins[1:], None], strict=True):
                in_order = (batch for _, batch in sorted(arrived[key]))
                self._pin_in_order(in_order, pinned[slice(*places)])

    def _pin_in_order(self, batches: Iterable[Batch], pinned: list[tuple[int, int]]) -> None:
        for batch, (begin_ns, end_ns) in zip(batches, pinned, strict=False):
            self._found.pins[batch] = begin_ns, end_ns
            # The loop gets it later; the thread had unpickled it before it pinned.
            self._found.deliveries[batch].arrived_ns = begin_ns
