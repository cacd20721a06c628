"""The loops of a ladder: those that a loader allows, their caches, reasons for missing ones."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from itertools import islice
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
    from collections.abc import Iterator

    from stallscope.ladder.result import Rung
    from stallscope.loops.cached_loaders import Unfinished
    from stallscope.loops.devices import Device
    from stallscope.targets.target import Target


_NO_MORE: Final = "the loader gave no more batches"
_MOST_BATCHES: Final = 4
"""Batches kept in memory: enough that samples of all sizes are among them."""
_COPIES: Final = 2
"""Most copies of a batch: in pageable and in pinned memory."""
_SAMPLES: Final = (FETCHED, TRANSFORMED)
_BATCHES: Final = (BATCHES, PINNED, ON_DEVICE)


class Rungs:
    """The loops over one target: the lowest iterates its loader, the others iterate copies."""

    def __init__(self, target: Target, max_bytes: int) -> None:
        self.target, self.device = target, device_of(target)
        self.loops: dict[Rung, TimedLoop] = {}
        self.why_not: dict[Rung, str] = {}
        """Reason for each rung that has no loop."""
        self.notes: list[str] = []
        self._loader: Any = target.loader
        self._max_bytes = max_bytes
        self._bytes: dict[Rung, int] = {}
        self._add(AS_IT_IS, cached_loaders.going_on(self._loader))

    @property
    def cached(self) -> list[Rung]:
        """Rungs above the lowest that can be measured, from the bottom to the top."""
        return [rung for rung in RUNGS[1:] if rung in self.loops]

    def bytes_of(self, rung: Rung) -> int | None:
        """Return the size of a rung's cache; None for a rung without a loop."""
        return self._bytes.get(rung, 0) if rung in self.loops else None

    def replaced(
        self,
        number: int,
        error: Exception,
        in_loader: bool,  # noqa: FBT001 - a callback
    ) -> dict[int, TimedLoop | str]:
        """Return loops that replace a failed one, or reasons, by the numbers of their rungs.

        Replaced are only loaders that we created, and caches on the device. Exceptions of the
        user's own code pass.
        """
        rung, top = RUNGS[number], RUNGS.index(ON_DEVICE)
        if isinstance(error, OutOfMemoryError) and ON_DEVICE in self.loops:
            self._keep_fewer()
            again = {} if number == top else {number: self.loops[rung]}
            return {**again, top: self.loops.get(ON_DEVICE) or self.why_not[ON_DEVICE]}
        if rung in (AS_IT_IS, WARM) or not in_loader or isinstance(error, OutOfMemoryError):
            raise error
        return {number: f"with cached samples the loader raised {repr_of(error):.200}"}

    def leave_out(self, why: str, rungs: tuple[Rung, ...] = RUNGS[1:]) -> None:
        """Skip these rungs, and store the reason."""
        self.why_not.update(dict.fromkeys(rungs, why))

    # ---- caches in memory -------------------------------------------------------------------

    def capture(self, deadline_ns: int) -> None:
        """Cache samples and batches in memory, until the deadline, and create loops over them."""
        if cached_loaders.is_plain(self._loader):
            self._capture_samples(deadline_ns)
        else:
            what = type(self._loader).__name__
            why = f"a {what} iterates by itself, so its samples cannot be replaced"
            self.leave_out(why, (WARM, *_SAMPLES))
            self._capture_batches(deadline_ns)
        if any(self._bytes.values()):
            self.notes.append(
                "the cached rungs repeat the same random samples and leave the CPU to the step: "
                "the top rung is an upper bound"
            )

    def _capture_samples(self, deadline_ns: int) -> None:
        """Cache samples of the loader's own workers, before their transforms and after."""
        stream = cached_loaders.is_stream(self._loader)
        indices = [] if stream else cached_loaders.next_indices(self._loader, _MOST_BATCHES)
        finished: list[list[Any]] = []
        halves: list[list[Unfinished | None]] = []
        cached_bytes, why = 0, _NO_MORE
        try:
            for samples, unfinished in self._captured(indices, deadline_ns, stream=stream):
                added = bytes_of(samples) * (1 + _COPIES) + bytes_of(unfinished)
                if cached_bytes + added > self._max_bytes:
                    why = self._too_large
                    break
                cached_bytes += added
                finished.append(samples)
                halves.append(unfinished)
        except NoBatchError:
            raise
        except Exception as error:  # noqa: BLE001 - the lowest rung works without caches
            self.leave_out(f"its samples cannot be cached: {repr_of(error):.200}", _SAMPLES)
            self._capture_batches(deadline_ns)
        else:
            if finished:
                self._keep_halves(halves, stream=stream)
                self._keep_finished(finished)
            else:
                self.leave_out(why, (*_SAMPLES, *_BATCHES))
        if stream:
            self.why_not[WARM] = "a stream cannot repeat its samples"
        else:
            repeated = indices[: len(finished)] or indices
            self._add(WARM, cached_loaders.warm(self._loader, repeated))

    def _captured(
        self, indices: list[Any], deadline_ns: int, *, stream: bool
    ) -> Iterator[tuple[list[Any], list[Unfinished | None]]]:
        """Yield the samples of each batch, finished and before their transforms."""
        collates = cached_loaders.collates(self._loader)
        loop = self._loop(cached_loaders.capturing(self._loader, indices))
        with started(loop) as batches:
            for batch in islice(batches, _MOST_BATCHES):
                samples = pickle.loads(batch)  # noqa: S301 - from our own workers
                samples = samples if collates else [samples]
                pairs = [(sample, None) for sample in samples] if stream else samples
                yield [finished for finished, _ in pairs], [unfinished for _, unfinished in pairs]
                if time.perf_counter_ns() > deadline_ns:
                    return

    def _keep_halves(self, halves: list[list[Unfinished | None]], *, stream: bool) -> None:
        flat = [half for batch in halves for half in batch]
        unfinished = [half for half in flat if half is not None]
        if stream:
            self.why_not[FETCHED] = "samples of a stream cannot be cached before their transforms"
        elif len(unfinished) < len(flat):
            self.why_not[FETCHED] = (
                "the dataset has no transform, or processes the transform's result further"
            )
        else:
            counts = [len(batch) for batch in halves]
            self._add(FETCHED, cached_loaders.transforming(self._loader, unfinished, counts))
            self._bytes[FETCHED] = bytes_of([(half.calls, half.sample) for half in unfinished])

    def _keep_finished(self, finished: list[list[Any]]) -> None:
        flat = [sample for batch in finished for sample in batch]
        counts = [len(batch) for batch in finished]
        self._add(TRANSFORMED, cached_loaders.collating(self._loader, flat, counts))
        self._bytes[TRANSFORMED] = bytes_of(flat)
        collate, collates = self._loader.collate_fn, cached_loaders.collates(self._loader)
        try:
            batches = [collate(batch if collates else batch[0]) for batch in finished]
        except Exception as error:  # noqa: BLE001 - a collate function may need its worker
            self.leave_out(f"its batches cannot be made here: {repr_of(error):.200}", _BATCHES)
        else:
            self._keep_batches(batches)

    def _capture_batches(self, deadline_ns: int) -> None:
        """Cache whole batches of the loader."""
        cached: list[Any] = []
        why = _NO_MORE
        with started(self.loops[AS_IT_IS]) as batches:
            for batch in islice(batches, _MOST_BATCHES):
                if (len(cached) + 1) * _COPIES * bytes_of(batch) > self._max_bytes:
                    why = self._too_large
                    break
                cached.append(batch)
                if time.perf_counter_ns() > deadline_ns:
                    break
        if cached:
            self._keep_batches(cached)
        else:
            self.leave_out(why, _BATCHES)

    @property
    def _too_large(self) -> str:
        return f"one batch needs more than the {size(self._max_bytes)} allowed"

    def _keep_batches(self, batches: list[Any]) -> None:
        if self.target.step is None:
            why = "no step was given, and reading a cached batch takes no time"
            self.leave_out(why, _BATCHES)
            return
        self._keep(BATCHES, CachedBatches(batches), self.device.reading(BatchMemory.PAGEABLE))
        if not self.device.has_memory:
            self.leave_out(self.device.why_no_memory, (PINNED, ON_DEVICE))
            return
        self._keep_in(BatchMemory.PINNED, PINNED, batches)
        self._keep_in(BatchMemory.DEVICE, ON_DEVICE, batches)

    def _keep_in(self, memory: BatchMemory, rung: Rung, batches: list[Any]) -> None:
        """Cache as many batches as fit into this memory."""
        cached: list[Any] = []
        try:
            cached.extend(self.device.kept(batch, memory) for batch in batches)
        except RuntimeError as error:  # base of torch's OutOfMemoryError
            if not cached:
                self.why_not[rung] = f"{memory.value} takes no batch: {repr_of(error):.200}"
                return
        self._keep(rung, CachedBatches(cached), self.device.reading(memory))
        self._note_fewer(rung, len(cached), len(batches))

    def _keep(self, rung: Rung, batches: CachedBatches, device: Device) -> None:
        self.loops[rung] = TimedLoop(batches, device, self.target.step, self.target.batch_size)
        self._bytes[rung] = batches.bytes

    def _keep_fewer(self) -> None:
        """Drop half of the batches on the device, or all, as the step needs the memory."""
        loop = self.loops.pop(ON_DEVICE)
        cached = loop.batches
        if not isinstance(cached, CachedBatches) or len(cached) < 2:  # noqa: PLR2004 - halves
            self.why_not[ON_DEVICE] = "the device has no memory for the step and a batch"
            return
        self._keep(ON_DEVICE, cached.first(len(cached) // 2), loop.device)
        self._note_fewer(ON_DEVICE, len(cached) // 2, len(cached))

    def _note_fewer(self, rung: Rung, fit: int, wanted: int) -> None:
        if fit < wanted:
            self.notes.append(
                f"'{rung.name}' repeats {count(fit, 'batch')} instead of {wanted}: there was no "
                "room for more"
            )

    def _add(self, rung: Rung, loader: Any) -> None:
        self.loops[rung] = self._loop(loader)

    def _loop(self, loader: Any) -> TimedLoop:
        return TimedLoop.of(replace(self.target, loader=loader))
