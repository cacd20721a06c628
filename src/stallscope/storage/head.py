"""`layouts.write(folder, "head")`: what each sample is before the first op that draws, on disk.

The head of a pipeline is what gives the same for a sample every time: reading, decoding, and the
ops before the first one that draws random numbers. `ss.orders` finds where it ends.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from stallscope.errors import StallscopeError, UnsupportedError
from stallscope.isolation import isolated
from stallscope.loops.cached_loaders import InPlaceOf, check_plain, is_stream
from stallscope.loops.timed_loop import TimedLoop, started
from stallscope.loops.training_loop import ProgressBar
from stallscope.loops.watchdog import within
from stallscope.machine import require_single_rank
from stallscope.orders.orders import loader_with_cached_head
from stallscope.storage.serving import loader_over
from stallscope.targets import target as targets
from stallscope.units import count, size

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from stallscope.orders.loader_parts import CachedPrefix


KIND: Final = "head"
_BATCH: Final = 16
PATIENCE_S: Final = 60.0
_LOOKED_AT: Final = 8
"""Samples of which the room for all is told."""


class _Kept(InPlaceOf):
    """Has each sample kept, and tells whether it is; nothing of it is sent."""

    def __getitem__(self, index: Any) -> bool:
        self._dataset.head(index)
        return index in self._dataset.kept


def write_head(target: Any, folder: str | os.PathLike[str]) -> CachedPrefix:
    """Write the head of each sample of a loader, in its own workers; called again, it goes on.

    Args:
        target: as for `ss.orders`.
        folder: a new or empty one, or one that the same call has begun to write.

    Returns:
        A dataset in the old one's place, with the same samples.

    Raises:
        NoPipelineError: the dataset calls no transforms, so that nothing can be cut before them.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: what `ss.orders` refuses.
        StallscopeError: the folder holds something else, there is no room, it cannot be written, or
            what a sample holds cannot be stored.
        NoBatchError: a sample did not come.
    """
    found = with_an_index(target, "its samples cannot be kept")
    with within(PATIENCE_S, remedy="the same call goes on where it was"):
        made = loader_with_cached_head(found, folder)
        _fill(replace(found, loader=made, step=None))
    dataset: CachedPrefix = made.dataset
    return dataset


def with_an_index(target: Any, why: str) -> targets.Target:
    """A target whose one loader's dataset can be asked for any sample, in the only rank.

    Args:
        target: as for `ss.target`.
        why: what cannot be done with another kind of loader.

    Raises:
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it has no such loader, or this process is one of several ranks.
    """
    require_single_rank()
    found = targets.target(target)
    check_plain(found, why)
    loader = found.loaders[0]
    if is_stream(loader):
        raise UnsupportedError(
            f"a {type(loader.dataset).__name__} is a stream, which cannot be asked for a sample: "
            "a dataset with an index can be written"
        )
    return replace(found, loader=loader)


def _fill(target: targets.Target) -> None:
    """Have every sample made that is not there yet."""
    cached: Any = target.loader.dataset  # type: ignore[attr-defined]  # a plain DataLoader
    everything = len(cached)
    missing = [number for number in range(everything) if number not in cached.kept]
    if not missing:
        return
    bar = ProgressBar(
        desc="writing heads",
        total=everything,
        initial=everything - len(missing),
        unit="sample",
    )
    with closing(bar):
        first, rest = missing[:_LOOKED_AT], missing[_LOOKED_AT:]
        for number in first:
            cached.head(number)
        bar.update(len(first))
        _check_room(cached.kept.folder, first, len(rest), cached)
        if not rest:
            return
        with isolated(target) as kept:
            batches = [rest[at : at + _BATCH] for at in range(0, len(rest), _BATCH)]
            made = loader_over(kept.loader, _Kept(cached), batch_sampler=batches, collate_fn=list)
            with started(TimedLoop.of(replace(kept, loader=made))) as batches_of:
                for told in batches_of:
                    if not all(told):
                        raise StallscopeError(
                            f"{cached.kept.folder} cannot be written: make room, or give another "
                            f"folder; {count(len(cached.kept), 'sample')} are there, and the same "
                            "call goes on"
                        )
                    bar.update(len(told))


def _check_room(folder: Path, first: list[int], left: int, cached: Any) -> None:
    """Make sure that there is room for what is left, as large as the first ones.

    Raises:
        StallscopeError: there is not, or the first ones could not be written.
    """
    lost = [number for number in first if number not in cached.kept]
    if lost:
        raise StallscopeError(
            f"sample {lost[0]} was not kept in {folder}: it holds something that cannot be stored "
            "without code (tensors, arrays, images, numbers and text can), or the disk is full"
        )
    each = [cached.kept.path_of(number).stat().st_size for number in first]
    needs = int(left * sum(each) / max(len(each), 1))
    free = shutil.disk_usage(folder).free
    if needs > free:
        raise StallscopeError(
            f"{count(left, 'sample')} need about {size(needs)} in {folder}, where {size(free)} is "
            "free: make room, or give a folder on another disk"
        )
