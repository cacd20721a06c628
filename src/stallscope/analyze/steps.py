"""The steps of the loop over a loader: each wait for a batch, and what was done with it then.

The use of a batch ends where the loop asks for the next one, or for the next epoch; a loop over
another loader in between (validation) is no part of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stallscope.marks import AROUND, OUTER, loader_and_epoch
from stallscope.stages import (
    ANOTHER_LOADER,
    BACKWARD,
    END_OF_EPOCH,
    GARBAGE,
    OPTIMIZER,
    OTHER,
    STEP,
    Stage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stallscope.analyze.events import Batch, Events, Part, Wait

_TRAINS = (BACKWARD, OPTIMIZER)


class Interval(NamedTuple):
    """A stage of the loop, from when to when; `perf_counter_ns()`."""

    start_ns: int
    end_ns: int
    stage: Stage


@dataclass
class Step:
    """A step that is being put together."""

    number: int
    wait: Wait
    batch: Batch
    spans: list[Interval]
    """What the loop did with the batch, until the next wait."""
    restart_ns: int | None = None


def loaders(found: Events) -> list[int]:
    """The numbers of the loaders that the loop iterates: those that train first, then by time."""
    owners = Owners(found)
    spent: Counter[int] = Counter()
    trained: Counter[int] = Counter()
    for track in owners.tracks.values():
        starts = [wait.start_ns for wait in track]
        for wait, until in zip(track, [*starts[1:], None], strict=True):
            spent[owners.of(wait.key)] += (until or wait.end_ns) - wait.start_ns
        for part in found.parts:
            at = bisect_left(starts, part.start_ns) - 1
            if part.stage in _TRAINS and at >= 0 and track[at].thread == part.thread:
                trained[owners.of(track[at].key)] += 1
    most = max(trained.values(), default=0)
    return sorted(spent, key=lambda one: (trained[one] * 2 > most, spent[one]), reverse=True)


class Owners:
    """Which loader the loop's waits are about, also where it waits for something around one."""

    def __init__(self, found: Events) -> None:
        self._inner: dict[int, Counter[int]] = defaultdict(Counter)
        for wait in found.waits:
            if loader_of(wait) <= OUTER:
                self._inner[_outer(wait.key)].update(map(loader_of, wait.inside))
        self.tracks: dict[int, list[Wait]] = defaultdict(list)
        """The loop's own waits by thread; without those for what has no loader inside."""
        for wait in found.waits:
            if wait.end_ns and self.of(wait.key) != AROUND:
                self.tracks[wait.thread].append(wait)

    def of(self, key: int) -> int:
        """The loader that an epoch is of; of something around a loader, the one inside of it."""
        number = loader_and_epoch(key)[0]
        inner = self._inner.get(_outer(key)) if number <= OUTER else None
        return inner.most_common(1)[0][0] if inner else number


def _outer(key: int) -> int:
    """The same for all epochs of a recording's own loop; each other iteration for itself."""
    return OUTER if loader_and_epoch(key)[0] == OUTER else key


def loader_of(wait: Wait) -> int:
    """Number of the loader that was waited for."""
    return loader_and_epoch(wait.key)[0]


class Steps:
    """Puts the steps of the loop over one loader together."""

    def __init__(self, found: Events, loader: int) -> None:
        self._found = found
        self._loader = loader
        self._owners = Owners(found)
        self._recorded = any(loader_of(wait) == OUTER for wait in found.waits)
        self._parts = sorted(found.parts, key=lambda part: part.start_ns)
        self._part_starts = [part.start_ns for part in self._parts]
        self._collections = sorted(found.collections)
        self._iterators = sorted(
            (part.start_ns, part.end_ns, key, part.thread)
            for part, key in zip(found.iterators, found.iterator_keys, strict=True)
            if self._owners.of(key) != AROUND and not self._is_waiting(part)
        )

    def steps(self) -> Iterator[Step]:
        """All steps, in their order."""
        number, last = 0, None
        for thread, track in self._owners.tracks.items():
            mine = [wait for wait in track if self._is_mine(wait.key)]
            got = [wait for wait in mine if wait.number is not None]
            begun = [one for one in self._iterators if one[3] == thread and self._is_mine(one[2])]
            bounds = sorted([*(w.start_ns for w in got), *(start for start, *_ in begun)])
            starts = [wait.start_ns for wait in track]
            for wait in got:
                batch = self._batch(wait) or last
                at = bisect_left(bounds, wait.end_ns)
                until = bounds[at] if at < len(bounds) else self._end(thread, wait)
                if batch is None or self._failed(wait, until):
                    continue
                near = track[bisect_left(starts, wait.end_ns) : bisect_left(starts, until)]
                spans = self._use(wait, until, near)
                yield Step(number, wait, batch, spans, _restart(wait, begun, last, batch))
                number, last = number + 1, batch

    def _failed(self, wait: Wait, until: int) -> bool:
        """Whether the recording's own step raised, so that its time says nothing."""
        return self._recorded and any(
            part.stage == STEP and wait.end_ns <= part.start_ns <= until
            for part in self._found.unfinished
        )

    def _is_mine(self, key: int) -> bool:
        return self._owners.of(key) == self._loader

    def _is_waiting(self, part: Part) -> bool:
        """Whether this begins inside of a wait, and so is a piece of it."""
        track = self._owners.tracks.get(part.thread, [])
        at = bisect_left(track, part.start_ns, key=lambda wait: wait.start_ns) - 1
        return at >= 0 and part.start_ns < track[at].end_ns

    def _batch(self, wait: Wait) -> Batch | None:
        """The batch that came: of the loader inside, where there is one."""
        if loader_of(wait) > OUTER or self._loader == OUTER:
            return wait.batch
        inside = [w.batch for w in wait.inside if w.batch and w.batch.loader == self._loader]
        return inside[-1] if inside else None

    def _end(self, thread: int, wait: Wait) -> int:
        """Where the last step of all ends, as far as one can tell."""
        return max(self._found.last_ns.get(thread, 0), wait.end_ns)

    def _use(self, wait: Wait, until: int, near: Sequence[Wait]) -> list[Interval]:
        """What the loop did from the end of a wait on."""
        begin = wait.end_ns
        here = self._parts[
            bisect_left(self._part_starts, begin) : bisect_left(self._part_starts, until)
        ]
        parts = [
            Interval(part.start_ns, min(part.end_ns, until), part.stage)
            for part in here
            if part.thread == wait.thread
        ]
        away = [*self._away(wait, until, near)]
        collected = [
            Interval(max(start, begin), min(end, until), GARBAGE)
            for start, end in self._collections[
                max(bisect_left(self._collections, (begin, 0)) - 1, 0) : bisect_left(
                    self._collections, (until, 0)
                )
            ]
            if end > begin
        ]
        base = self._base(begin, until, parts, away)
        return list(_exclusive([*base, *parts, *away, *collected]))

    def _base(
        self, begin: int, until: int, parts: list[Interval], away: list[Interval]
    ) -> list[Interval]:
        """The step, and what comes after it: where nothing tells them apart, all is the step."""
        if self._recorded:
            return [Interval(begin, until, OTHER)]
        trained = [part.end_ns for part in parts if part.stage in _TRAINS]
        left = [part.start_ns for part in away]
        end = max(trained) if trained else min(left, default=until)
        return [Interval(begin, end, STEP), Interval(end, until, OTHER)]

    def _away(self, wait: Wait, until: int, near: Sequence[Wait]) -> Iterator[Interval]:
        """Loops over other loaders in between, and the end of the epoch."""
        first = bisect_left(self._iterators, (wait.end_ns,))
        last = bisect_left(self._iterators, (until,))
        begun = {
            key: start
            for start, _, key, thread in self._iterators[first:last]
            if thread == wait.thread
        }
        ended = {other.key: other.end_ns for other in near if other.number is None}
        for key, start in begun.items():
            if not self._is_mine(key):
                yield Interval(start, min(ended.get(key, until), until), ANOTHER_LOADER)
        for other in near:
            if self._is_mine(other.key):
                yield Interval(other.start_ns, min(other.end_ns, until), END_OF_EPOCH)
            elif other.key not in begun:
                yield Interval(other.start_ns, min(other.end_ns, until), ANOTHER_LOADER)


def _restart(
    wait: Wait, begun: list[tuple[int, int, int, int]], last: Batch | None, batch: Batch
) -> int | None:
    """What making the iterator took, for the first batch that comes out of it."""
    if last is not None and last.key == batch.key:
        return None
    at = bisect_left(begun, (wait.start_ns,)) - 1
    return begun[at][1] - begun[at][0] if at >= 0 else None


def _exclusive(intervals: list[Interval]) -> Iterator[Interval]:
    """What is innermost at each moment; of two that begin at once, the shorter one."""
    open_here: list[Interval] = []
    at = 0

    def until(end_ns: int) -> Iterator[Interval]:
        nonlocal at
        if open_here and end_ns > at:
            yield Interval(at, end_ns, open_here[-1].stage)
        at = max(at, end_ns)

    for interval in sorted(intervals, key=lambda one: (one.start_ns, -one.end_ns)):
        while open_here and open_here[-1].end_ns <= interval.start_ns:
            yield from until(open_here[-1].end_ns)
            open_here.pop()
        yield from until(interval.start_ns)
        open_here.append(interval)
    while open_here:
        yield from until(open_here[-1].end_ns)
        open_here.pop()
