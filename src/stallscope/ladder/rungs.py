"""The loops of a ladder: which there are for a loader, what they keep, why one is missing."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import NoBatchError
from stallscope.hooks.device_time import OutOfMemoryError
from stallscope.ladder.result import (
    AS_IT_IS,
    BATCHES,
    FETCHED,
    ON_DEVICE,
    PINNED,
    RUNGS,
    TRANSFORMED,
    WARM,
)
from stallscope.loops import cached_loaders
from stallscope.loops.cached_loaders import CachedBatches
from stallscope.loops.cached_values import bytes_of
from stallscope.loops.devices import BatchMemory, device_of
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.units import count, repr_of, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stallscope.ladder.result import Rung
    from stallscope.loops.cached_loaders import Unfinished
    from stallscope.loops.devices import Device
    from stallscope.targets.target import Target


_NO_MORE: Final = "the loader gave no more batches"
_MOST_BATCHES: Final = 4
"""Kept in memory: enough that samples of all sizes are among them."""
_COPIES: Final = 2
"""A batch is kept once for each kind of memory at most: pageable, pinned."""


class Rungs:
    """The loops over one target.

    Args:
        target: its loader is iterated as it is by the lowest rung, and copied by the others;
            without a step the loader alone is measured.
        max_bytes: what samples and batches may need in memory.
    """

    def __init__(self, target: Target, max_bytes: int) -> None:
        self.target = target
        self.loader: Any = target.loader
        self.device = device_of(target)
        self.why_not: dict[Rung, str] = {}
        self.notes: list[str] = []
        self._max_bytes = max_bytes
        self._plain = cached_loaders.is_plain(target.loader)
        self._bytes: dict[Rung, int] = {}
        self._loops: dict[Rung, TimedLoop] = {}
        self._loops[AS_IT_IS] = self._loop(cached_loaders.going_on(self.loader))

    @property
    def cached(self) -> list[Rung]:
        """Those above the lowest that can be measured, from the bottom to the top."""
        return [rung for rung in RUNGS if rung in self._loops and rung is not AS_IT_IS]

    def loader_of(self, rung: Rung) -> Any:
        """What a rung iterates."""
        return self._loops[rung].batches

    def bytes_of(self, rung: Rung) -> int | None:
        """What a rung keeps in memory; None for one that is not measured."""
        return self._bytes.get(rung, 0) if rung in self._loops else None

    def loop(self, rung: Rung) -> TimedLoop:
        """The loop of a rung that is there."""
        return self._loops[rung]

    def replaced(
        self,
        number: int,
        error: Exception,
        in_loader: bool,  # noqa: FBT001 - a callback
    ) -> dict[int, TimedLoop | str]:
        """Loops in the place of one that failed, by their rungs' numbers, or why there is none.

        Only a loader that we made can fail here, and what we keep on the device: an exception of
        the user's own passes.
        """
        rung, top = RUNGS[number], RUNGS.index(ON_DEVICE)
        if isinstance(error, OutOfMemoryError) and ON_DEVICE in self._loops:
            self._keep_fewer()
            kept = self._loops.get(ON_DEVICE)
            again = {} if number == top else {number: self._loops[rung]}
            return {**again, top: self.why_not[ON_DEVICE] if kept is None else kept}
        if rung in (AS_IT_IS, WARM) or not in_loader or isinstance(error, OutOfMemoryError):
            raise error
        return {number: f"with cached samples the loader raised {repr_of(error):.200}"}

    # ---- what is kept in memory -------------------------------------------------------------

    def leave_out(self, why: str) -> None:
        """Keep nothing in memory."""
        self.why_not[WARM] = why
        self._no_samples(why)
        self._no_batches(why)

    def capture(self, deadline_ns: int) -> None:
        """Keep samples and batches in memory, and make the loops that use them.

        The last batch that is kept is the first that comes after the deadline.
        """
        if self._plain:
            self._capture_samples(deadline_ns)
        else:
            what = type(self.loader).__name__
            why = f"a {what} is not torch's own way of iterating: its samples cannot be replaced"
            self.why_not.update(dict.fromkeys((WARM, FETCHED, TRANSFORMED), why))
            self._capture_batches(deadline_ns)
        if any(self._bytes.values()):
            self.notes.append(
                "the cached rungs repeat the same samples, with what is random in them drawn once, "
                "and leave the CPU to the step: the top is an upper bound"
            )

    def _capture_samples(self, deadline_ns: int) -> None:
        """Samples, before their transforms and after, made by the loader's own workers."""
        stream = cached_loaders.is_stream(self.loader)
        indices = [] if stream else cached_loaders.next_indices(self.loader, _MOST_BATCHES)
        if stream:
            self.why_not[WARM] = "a stream cannot be asked for the same samples again"
        else:
            self._loops[WARM] = self._loop(cached_loaders.warm(self.loader, indices))
        finished: list[list[Any]] = []
        halves: list[list[Unfinished | None]] = []
        held, why = 0, _NO_MORE
        try:
            for whole, before in self._captured(indices, deadline_ns):
                why = self._too_large
                more = bytes_of(whole) * (1 + _COPIES) + bytes_of(before)
                if held + more > self._max_bytes:
                    break
                held += more
                finished.append(whole)
                halves.append(before)
        except NoBatchError:
            raise
        except Exception as error:  # noqa: BLE001 - the lowest rung has shown that it works as it is
            self._no_samples(f"its samples cannot be kept: {repr_of(error):.200}")
            return self._capture_batches(deadline_ns)
        if not finished:
            self._no_samples(why)
            self._no_batches(self.why_not[TRANSFORMED])
            return None
        if not stream:
            self._loops[WARM] = self._loop(
                cached_loaders.warm(self.loader, indices[: len(finished)])
            )
        self._keep_halves(halves, stream=stream)
        self._keep_finished(finished)
        return None

    def _captured(
        self, indices: list[Any], deadline_ns: int
    ) -> Iterable[tuple[list[Any], list[Unfinished | None]]]:
        stream = cached_loaders.is_stream(self.loader)
        collates = cached_loaders.collates(self.loader)
        loop = self._loop(cached_loaders.capturing(self.loader, indices))
        with started(loop) as batches:
            for number, batch in enumerate(batches, 1):
                samples = pickle.loads(batch)  # noqa: S301 - our own workers made it a moment ago
                samples = samples if collates else [samples]
                pairs = [(sample, None) for sample in samples] if stream else samples
                yield [whole for whole, _ in pairs], [half for _, half in pairs]
                if number >= _MOST_BATCHES or time.perf_counter_ns() > deadline_ns:
                    return

    def _keep_halves(self, halves: list[list[Unfinished | None]], *, stream: bool) -> None:
        flat = [half for batch in halves for half in batch]
        kept = [half for half in flat if half is not None]
        if stream:
            self.why_not[FETCHED] = "a stream offers no place before its transforms"
        elif len(kept) < len(flat):
            self.why_not[FETCHED] = (
                "the dataset holds no transform, or does more with what comes out of it"
            )
        else:
            counts = [len(batch) for batch in halves]
            self._loops[FETCHED] = self._loop(
                cached_loaders.transforming(self.loader, kept, counts)
            )
            self._bytes[FETCHED] = bytes_of([(half.calls, half.sample) for half in kept])

    def _keep_finished(self, finished: list[list[Any]]) -> None:
        flat = [sample for batch in finished for sample in batch]
        counts = [len(batch) for batch in finished]
        self._loops[TRANSFORMED] = self._loop(cached_loaders.collating(self.loader, flat, counts))
        self._bytes[TRANSFORMED] = bytes_of(flat)
        collate, collates = self.loader.collate_fn, cached_loaders.collates(self.loader)
        try:
            made = [collate(batch if collates else batch[0]) for batch in finished]
        except Exception as error:  # noqa: BLE001 - it may rely on a worker around it
            self._no_batches(f"its batches cannot be made here: {repr_of(error):.200}")
            return
        self._keep_batches(made)

    def _capture_batches(self, deadline_ns: int) -> None:
        """Whole batches, as they come."""
        kept: list[Any] = []
        why = _NO_MORE
        with started(self._loops[AS_IT_IS]) as batches:
            for batch in batches:
                why = self._too_large
                if (len(kept) + 1) * _COPIES * bytes_of(batch) > self._max_bytes:
                    break
                kept.append(batch)
                if len(kept) >= _MOST_BATCHES or time.perf_counter_ns() > deadline_ns:
                    break
        if kept:
            self._keep_batches(kept)
        else:
            self._no_batches(why)

    @property
    def _too_large(self) -> str:
        return f"one batch needs more than the {size(self._max_bytes)} allowed"

    def _keep_batches(self, made: list[Any]) -> None:
        if self.target.step is None:
            self._no_batches("no step was given: taking a batch from memory takes no time")
            return
        pageable = self.device.reading(BatchMemory.PAGEABLE)
        self._keep(BATCHES, CachedBatches(made), pageable)
        if self.device.has_memory:
            self._keep_in(BatchMemory.PINNED, PINNED, made)
            self._keep_in(BatchMemory.DEVICE, ON_DEVICE, made)
        else:
            why = self.device.why_no_memory
            self.why_not.update(dict.fromkeys((PINNED, ON_DEVICE), why))

    def _keep_in(self, memory: BatchMemory, rung: Rung, made: list[Any]) -> None:
        """As many batches as there is room for."""
        kept: list[Any] = []
        try:
            kept.extend(self.device.kept(batch, memory) for batch in made)
        except RuntimeError as error:  # so is torch's own for memory
            if not kept:
                self.why_not[rung] = f"{memory.value} takes no batch: {repr_of(error):.200}"
                return
        self._keep(rung, CachedBatches(kept), self.device.reading(memory))
        self._say_fewer(rung, len(kept), len(made))

    def _keep(self, rung: Rung, batches: CachedBatches, device: Device) -> None:
        self._loops[rung] = TimedLoop(batches, device, self.target.step, self.target.batch_size)
        self._bytes[rung] = batches.bytes

    def _keep_fewer(self) -> None:
        """Keep half as many batches on the device, or none: the step needs the memory."""
        loop = self._loops.pop(ON_DEVICE)
        kept = loop.batches
        if not isinstance(kept, CachedBatches) or len(kept) < 2:  # noqa: PLR2004 - halves
            why = "the device's memory has no room for the step beside a batch"
            self.why_not[ON_DEVICE] = why
            return
        self._keep(ON_DEVICE, kept.first(len(kept) // 2), loop.device)
        self._say_fewer(ON_DEVICE, len(kept) // 2, len(kept))

    def _say_fewer(self, rung: Rung, fit: int, wanted: int) -> None:
        if fit < wanted:
            self.notes.append(
                f"'{rung.name}' repeats {count(fit, 'batch')} instead of {wanted}: there was no "
                "room for more"
            )

    def _no_samples(self, why: str) -> None:
        self.why_not.update(dict.fromkeys((FETCHED, TRANSFORMED), why))

    def _no_batches(self, why: str) -> None:
        self.why_not.update(dict.fromkeys((BATCHES, PINNED, ON_DEVICE), why))

    def _loop(self, loader: Any) -> TimedLoop:
        return TimedLoop.of(replace(self.target, loader=loader))
