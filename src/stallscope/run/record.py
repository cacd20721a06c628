"""`ss.record`: run a loader for a while, and record the loop and its workers.

`ss.instrumented`: record the user's own loop over its loaders, without changing it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stallscope.errors import NoBatchError, StallscopeError, UnsupportedError
from stallscope.files import log_capacity, workspace
from stallscope.hooks.loader_access import value_of
from stallscope.hooks.probe import Probe
from stallscope.hooks.recording_folder import COST_SHARE_DRIVEN, LogPlace, RecordingInfo
from stallscope.isolation import isolated, modules_of
from stallscope.loops.batch_timeout import time_limit
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import Limits, Replay, check_step_s, replay
from stallscope.machine import require_single_rank
from stallscope.run.load import collect, explain, is_of_workers, readable, salvaged
from stallscope.run.resource_sampler import Sampler
from stallscope.targets import target as targets
from stallscope.targets.loaders import find_loaders, kept_iterators
from stallscope.units import BUDGET_S, WARMUP, count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.run.result import Run


def record(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    batches: int = 50,
    warmup: int = WARMUP,
    budget_s: float = BUDGET_S,
) -> Run:
    """Record the waits of a loop over a loader, and the work of its workers on every sample.

    Iterates a shallow copy of the loader. Afterwards all random generators, the samplers and the
    model that `step` trains have their old state, and the workers have ended. An exception of the
    dataset or the step passes unchanged, with a note on its origin; its attribute `run` holds the
    recording.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default.
        device: where batches are moved before `step`; the target's by default.
        batches: batches to record in the steady state.
        warmup: batches before the steady state. The first batch of a worker is never part of it.
        budget_s: the loop stops after the first batch that comes after this time, seconds.

    Raises:
        ArgumentError: `batches`, `warmup` or `budget_s` is no usable number.
        TargetError: the target cannot be iterated.
        UnsupportedError: the target keeps a generator in the middle of an epoch; several ranks.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not arrive within the budget and a grace; its attribute `run`
            holds the recording.
    """
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    check_step_s(target.simulated_step_s, budget_s)
    limits = Limits.of(batches, warmup=warmup, processes=target.num_workers, budget_s=budget_s)
    return record_target(target, limits, warmup)


def record_target(
    target: targets.Target,
    limits: Limits,
    warmup: int = WARMUP,
    seen: Replay | None = None,
) -> Run:
    """Record a resolved target, as `record` does; `seen` tells more of the loop afterwards."""
    seen = seen or Replay()
    with (
        time_limit(limits.budget_s),
        isolated(target) as target,  # noqa: PLR1704 - its private form
        workspace() as folder,
    ):
        capacity = log_capacity(folder, max(target.num_workers, 1))
        place = LogPlace(folder, capacity, cost_share=COST_SHARE_DRIVEN)
        about = RecordingInfo(
            target.name, warmup, target.simulated_step_s, has_step=target.step is not None
        )
        notes = (*target.notes, *_about_step(target))

        def info() -> RecordingInfo:
            return replace(about, notes=(*notes, *_about_loop(seen)))

        probe = Probe(place, target.loaders, scoped=True, modules=modules_of(target.step))
        probe.works_behind = device_of(target).behind
        sampler = Sampler(place)
        try:
            with probe, sampler:
                replay(probe, target, limits, seen, f"recording {target.name}")
        except BaseException as error:
            if isinstance(error, StallscopeError) and not isinstance(error, NoBatchError):
                raise
            sampler.__exit__()  # an interrupt may have come just before it was left
            probe.__exit__()
            if not probe.forked and (recording := salvaged(error, place, info())):
                explain(error, recording)
            raise
        return collect(place, info()).run


def _about_step(target: targets.Target) -> Iterator[str]:
    if target.simulated_step_s is not None:
        timer = seconds(target.simulated_step_s)
        where = " that runs behind the host" if device_of(target).behind else ""
        yield f"the step is simulated: a timer of {timer}{where}, and no device"
    elif target.step is None:
        yield "no step was given: the loop takes batches as fast as the loader makes them"
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield "times of the step and of copies are the host's: the GPU runs asynchronously"


def _about_loop(seen: Replay) -> Iterator[str]:
    if seen.out_of_time:
        yield f"the budget ended the recording after {count(seen.steps, 'batch')}"
    if seen.exhausted:
        yield f"the loader ended after {count(seen.steps, 'batch')}"
    elif seen.epochs > 1:
        yield f"the loader is short: the recording covers {seen.epochs} epochs"


class Watch:
    """Result of `ss.instrumented`: its `run` exists after the block, also after an error."""

    run: Run
    """Recording of the block. Of several loaders, the one for training, or the one that took
    longest; the rest is `run.others`."""


@contextmanager
def instrumented(loader: Any = None, *, warmup: int = WARMUP) -> Iterator[Watch]:
    """Record the waits of your own loop and the work of its workers.

    The batches stay the same, bit for bit, and so do the states of all random generators.

    Args:
        loader: the DataLoader that you iterate inside the block, or a wrapper around one. None, or
            a wrapper that has no DataLoader yet: every DataLoader of this process, also those that
            are created inside the block.
        warmup: steps at the start that are not part of the steady state.

    Yields:
        An object whose `run` exists after the block.

    Raises:
        UnsupportedError: the loader contains no DataLoader.
        WorkspaceError: no room for the logs.
    """
    loaders = None if loader is None else _measured(loader)
    watch = Watch()
    with workspace() as folder:
        place = _place(folder, loaders)
        ends, probe, pid = ExitStack(), None, os.getpid()
        try:
            with ends:
                probe = _begin(place, ends, warmup, loader, loaders)
                yield watch
        except BaseException as error:
            ends.close()  # an interrupt may have come just before it was left
            if os.getpid() == pid and (recording := salvaged(error, place)):
                watch.run = recording.run
                with place.failures.within("where an exception came from"):
                    if (probe is not None and probe.raised(error)) or is_of_workers(error):
                        explain(error, recording)
            raise
        if os.getpid() == pid:  # not in a forked child, where polars would hang
            watch.run = readable(place)


def begin_window(folder: Path, ends: ExitStack, warmup: int) -> LogPlace:
    """Record every DataLoader of this process until `ends`; then `load.readable` has the run.

    Raises:
        WorkspaceError: no room for the logs in the folder.
    """
    place = _place(folder, None)
    _begin(place, ends, warmup)
    return place


def _place(folder: Path, loaders: list[Any] | None) -> LogPlace:
    processes = sum(max(loader.num_workers, 1) for loader in loaders or ())
    capacity = log_capacity(folder, processes) if processes else log_capacity(folder)
    return LogPlace(folder, capacity, samples_stacks=True)


def _begin(
    place: LogPlace,
    ends: ExitStack,
    warmup: int,
    loader: Any = None,
    loaders: list[Any] | None = None,
) -> Probe | None:
    """Record until `ends`; after an internal error return None, with a note in the run."""
    recording = None
    try:
        probe = Probe(place, loaders, living=[] if loaders is None else kept_iterators(loader))
        ends.callback(place.failures.insist, "removing the hooks", probe.__exit__)
        recording = probe.__enter__()
    except StallscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's loop goes on without us
        place.failures.note("the whole recording", error)
    with place.failures.within("the resources"):
        sampler = Sampler(place)
        ends.callback(place.failures.insist, "the resources", sampler.__exit__)
        sampler.__enter__()
    if recording is not None:
        with place.failures.within("what the run says of itself"):
            recording.marks.say(about=vars(RecordingInfo(warmup=warmup)))
    return recording


def _measured(loader: Any) -> list[Any] | None:
    """Return the DataLoaders of an object; None (all loaders) where it may create them later.

    Raises:
        UnsupportedError: it has none.
    """
    loaders = find_loaders(loader)
    inner = value_of(loader, "base_dataloader")  # accelerate's, which this one iterates
    loaders += find_loaders(inner) if loaders else []
    kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if not loaders and type(loader).__module__ != "builtins":
        return None
    if not loaders:
        raise UnsupportedError(
            f"there is no torch.utils.data.DataLoader in this {kind}, so its waits cannot be seen "
            "from outside; use ss.record, which iterates it itself"
        )
    return loaders
