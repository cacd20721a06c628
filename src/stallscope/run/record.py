"""`ss.record`: run a loader for a while, and keep what the loop and its workers did.

`ss.instrumented`: watch the user's own loop over its loaders, and change nothing.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stallscope.errors import NoBatchError, StallscopeError, UnsupportedError
from stallscope.files import log_capacity, workspace
from stallscope.hooks.event_log import RecordingInfo
from stallscope.hooks.loader_access import value_of
from stallscope.hooks.log_place import COST_SHARE_DRIVEN, LogPlace
from stallscope.hooks.probe import Probe
from stallscope.isolation import isolated, modules_of
from stallscope.loops.batch_timeout import time_limit
from stallscope.loops.devices import device_of
from stallscope.loops.training_loop import Limits, Progress, Replay, check_step_s, replay
from stallscope.machine import require_single_rank
from stallscope.run.read_logs import collect, explain, is_of_workers, readable, salvaged
from stallscope.run.resource_sampler import Sampler
from stallscope.targets import target as targets
from stallscope.targets.loaders import find_loaders, kept_iterators
from stallscope.units import BUDGET_S, count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stallscope.run.result import Run


_PROCESSES = 8
"""So many logs must have room where it is not known how many workers there will be."""


def record(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    batches: int = 50,
    warmup: int = 4,
    budget_s: float = BUDGET_S,
) -> Run:
    """Record what a loop over a loader waits for, and what the workers do with every sample.

    Iterates a shallow copy of the loader. Afterwards all random generators, the samplers and what
    `step` trains are as they were, and the workers are gone. An exception of the dataset's or of
    the step's passes unchanged, with a note on where it came from; its attribute `run` holds what
    was recorded before.

    Args:
        target: a DataLoader, a `Target`, or a string as for `ss.target`.
        step: uses one batch; the target's by default.
        device: where batches are moved before `step`; the target's by default.
        batches: how many batches to record in the steady state.
        warmup: batches before that, which are kept apart. Each worker's first batch always is.
        budget_s: the loop stops after the first batch that comes after this time, seconds.

    Raises:
        ArgumentError: `batches`, `warmup` or `budget_s` is no number that can be used.
        TargetError: the target is nothing that can be iterated.
        UnsupportedError: it keeps a generator in the middle of an epoch; more than one rank.
        WorkspaceError: no room for the logs.
        NoBatchError: a batch did not come within the budget and a grace; its attribute `run` holds
            what was recorded before.
    """
    require_single_rank()
    target = targets.target(target, step=step, device=device)
    processes = target.num_workers
    check_step_s(target.simulated_step_s, budget_s)
    limits = Limits.of(batches, warmup=warmup, processes=processes, budget_s=budget_s)
    return record_target(target, limits, warmup)


def record_target(
    target: targets.Target,
    limits: Limits,
    warmup: int,
    look: Callable[[Any], object] | None = None,
) -> Run:
    """Record a target that is found already, as `record` does.

    Args:
        target: what to run.
        limits: when to stop.
        warmup: batches at the start that are kept apart.
        look: called with the first batch, before it is used.
    """
    seen = Replay(look=look)
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
        notes = (*_about_threads(target), *_about_step(target))
        wanted = None if limits.enough else limits.batches

        def info() -> RecordingInfo:
            return replace(about, notes=(*target.told(), *notes, *_about_loop(seen, limits)))

        bar = Progress(place, seen, batches=wanted, title=f"recording {target.name}")
        probe = Probe(place, target.loaders, scoped=True, modules=modules_of(target.step))
        probe.works_behind = device_of(target).behind
        sampler = Sampler(place)
        try:
            with closing(bar), probe, sampler:
                replay(probe, target, limits, bar)
        except BaseException as error:
            if isinstance(error, StallscopeError) and not isinstance(error, NoBatchError):
                raise
            sampler.__exit__()  # an interrupt may have come just before the first time
            probe.__exit__()
            if not probe.forked and (recording := salvaged(error, place, info())):
                explain(error, recording)
            raise
        return collect(place, info()).run


def _about_threads(target: targets.Target) -> tuple[str, ...]:
    threads = torch.get_num_threads()
    if threads == 1 or not target.loads_here:
        return ()
    return (f"num_workers=0: made with 1 torch thread, as in a worker; your loop has {threads}",)


def _about_step(target: targets.Target) -> tuple[str, ...]:
    if target.simulated_step_s is not None:
        timer = seconds(target.simulated_step_s)
        where = " that runs behind the host" if device_of(target).behind else ""
        return (f"the step is simulated: a timer of {timer}{where}, and no device",)
    if target.step is None:
        return ("no step was given: the loop takes batches as fast as they come",)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ("times of the step and of copies are the host's, which does not wait for the GPU",)
    return ()


def _about_loop(seen: Replay, limits: Limits) -> tuple[str, ...]:
    notes = []
    if seen.out_of_time:
        notes.append(f"the budget ended the recording after {count(seen.steps, 'batch')}")
        start_s = ((seen.first_ns or seen.began_ns) - seen.began_ns) / 1e9
        if start_s > limits.budget_s / 2:
            budget = seconds(limits.budget_s)
            notes.append(f"the first batch took {seconds(start_s)}, of a budget of {budget}")
    if seen.exhausted:
        notes.append(f"the loader gave no more than {count(seen.steps, 'batch')}")
    elif seen.epochs > 1:
        notes.append(f"the loader is short: the recording went through {seen.epochs} epochs")
    return tuple(notes)


class Watch:
    """What `ss.instrumented` gives: its `run` exists after the block, also after an error."""

    run: Run
    """What the loop and its loader's workers did while the block ran. Of several loaders, the one
    that trains, or that took longest; the rest is `run.others`."""


@contextmanager
def instrumented(loader: Any = None, *, warmup: int = 4) -> Iterator[Watch]:
    """Record what a loop waits for and what the workers do, while you iterate it yourself.

    The loaders give the batches that they would have given, bit for bit, and all generators move as
    they would have moved.

    Args:
        loader: what is iterated inside the block: a DataLoader, or something around one; None, or
            something that shows none yet: every DataLoader of this process, also those that are
            made inside the block.
        warmup: steps at the start that are kept apart.

    Yields:
        An object whose `run` exists after the block.

    Raises:
        UnsupportedError: there is no DataLoader in it.
        WorkspaceError: no room for the logs.
    """
    loaders = None if loader is None else _measured(loader)
    watch = Watch()
    with workspace() as folder:
        place = _place(folder, loaders)
        ends, probe, pid = ExitStack(), None, os.getpid()
        try:
            with ends:
                probe = _begun(partial(_probe, place, loader, loaders), place, ends, warmup)
                yield watch
        except BaseException as error:
            ends.close()  # an interrupt may have come just before the first time
            if os.getpid() == pid and (recording := salvaged(error, place)):
                watch.run = recording.run
                with place.failures.within("where an exception came from"):
                    if (probe is not None and probe.raised(error)) or is_of_workers(error):
                        explain(error, recording)
            raise
        if os.getpid() == pid:  # and not in a forked child, which polars would hang in
            watch.run = readable(place)


def begin_window(folder: Path, ends: ExitStack, warmup: int) -> LogPlace:
    """Record every DataLoader of this process until `ends`; `read_logs.readable` has the run then.

    Args:
        folder: for the logs.
        ends: what ends it.
        warmup: steps at the start that are kept apart.

    Raises:
        WorkspaceError: no room for the logs.
    """
    place = _place(folder, None)
    _begun(partial(_probe, place, None, None), place, ends, warmup)
    return place


def _place(folder: Path, loaders: list[Any] | None) -> LogPlace:
    processes = sum(max(loader.num_workers, 1) for loader in loaders or ()) or _PROCESSES
    return LogPlace(folder, log_capacity(folder, processes))


def _probe(place: LogPlace, loader: Any, loaders: list[Any] | None) -> Probe:
    return Probe(place, loaders, living=[] if loaders is None else kept_iterators(loader))


def _begun(
    make: Callable[[], Probe], place: LogPlace, ends: ExitStack, warmup: int
) -> Probe | None:
    """Begin to record, until `ends`; None where something of ours fails, which the run says.

    Raises:
        StallscopeError: what the user can mend.
    """
    recording = None
    try:
        probe = make()
        ends.callback(place.failures.insist, "taking the hooks off", probe.__exit__)
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
            RecordingInfo(warmup=warmup).write_to(recording.marks)
    return recording


def _measured(loader: Any) -> list[Any] | None:
    """Return the DataLoaders of what was given; None, which is all, where it may make them late.

    Raises:
        UnsupportedError: there is none.
    """
    loaders = find_loaders(loader)
    inner = value_of(loader, "base_dataloader")  # accelerate's, which this one iterates
    loaders += find_loaders(inner) if loaders else []
    kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if not loaders and type(loader).__module__ != "builtins":
        return None
    if not loaders:
        raise UnsupportedError(
            f"there is no torch.utils.data.DataLoader in this {kind}, so its waits cannot be told "
            "from the outside; use ss.record, which iterates it itself"
        )
    return loaders
