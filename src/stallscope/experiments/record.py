"""`ss.record`: run a loader for a while, and keep what the loop and its workers did."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stallscope.errors import StallscopeError
from stallscope.experiments.about import About
from stallscope.experiments.collect import collect
from stallscope.experiments.failure import explain, salvaged
from stallscope.measure import target as targets
from stallscope.measure.distributed import alone
from stallscope.measure.inner import loaders_of, made_here, private
from stallscope.measure.replay import Limits, Progress, Replay, Using, replay
from stallscope.measure.resources.sampler import Sampler
from stallscope.measure.simulated import SimulatedStep
from stallscope.measure.snapshot import as_before, modules_of
from stallscope.measure.workspace import log_capacity, workspace
from stallscope.probe.install import Probe
from stallscope.probe.logplace import LogPlace
from stallscope.units import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.run import Run


def record(  # noqa: PLR0913 - the public signature
    target: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: Any = None,
    batches: int = 50,
    warmup: int = 4,
    budget_s: float = 60.0,
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
        UnsupportedError: a loader that keeps an iterator of its own, or more than one rank.
        WorkspaceError: no room for the logs.
    """
    alone()
    aim = targets.target(target, step=step, device=device)
    workers = sum(loader.num_workers for loader in loaders_of(aim.loader))
    limits = Limits.of(batches, warmup=warmup, processes=workers, budget_s=budget_s)
    return recorded(aim, limits, warmup)


def recorded(aim: targets.Target, limits: Limits, warmup: int) -> Run:
    """The same of a target that is found already.

    Args:
        aim: what to run.
        limits: when to stop.
        warmup: batches at the start that are kept apart.
    """
    inner = loaders_of(aim.loader)
    workers = sum(loader.num_workers for loader in inner)
    seen = Replay()
    with (
        private(aim.loader) as loader,
        workspace() as folder,
        as_before(loader, None if isinstance(aim.step, SimulatedStep) else aim.step) as said,
    ):
        place = LogPlace(folder, log_capacity(folder, max(workers, 1)))
        simulated = aim.step.seconds if isinstance(aim.step, SimulatedStep) else None
        about = About(aim.name, warmup, simulated)
        notes = (*aim.notes, *said, *_about_threads(aim.loader), *_about_step(aim.step))
        wanted = None if limits.enough else limits.batches
        bar = Progress(place, seen, batches=wanted, title=f"recording {aim.name}")
        loaders = inner and ([loader] if inner[0] is aim.loader else inner)
        probe = Probe(place, loaders, scoped=True, modules=modules_of(aim.step))
        sampler = Sampler(place)
        try:
            with closing(bar), probe, sampler:
                replay(probe, loader, Using(aim.step, aim.device), limits, bar)
        except StallscopeError:
            raise
        except BaseException as error:
            sampler.__exit__()  # an interrupt may have come just before the first time
            probe.__exit__()
            about = replace(about, notes=(*notes, *_about_loop(seen)))
            if not probe.forked and (recording := salvaged(error, place, about)):
                explain(error, recording)
            raise
        return collect(place, replace(about, notes=(*notes, *_about_loop(seen)))).run


def _about_threads(loader: Any) -> tuple[str, ...]:
    threads = torch.get_num_threads()
    if threads == 1 or not made_here(loader):
        return ()
    return (f"num_workers=0: made with 1 torch thread, as in a worker; your loop has {threads}",)


def _about_step(step: Any) -> tuple[str, ...]:
    if isinstance(step, SimulatedStep):
        return (f"the step is simulated: a timer of {seconds(step.seconds)}, and no device",)
    if step is None:
        return ("no step was given: the loop takes batches as fast as they come",)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ("times of the step and of copies are the host's, which does not wait for the GPU",)
    return ()


def _about_loop(seen: Replay) -> tuple[str, ...]:
    """How the recording's own loop ended."""
    said = []
    if seen.out_of_time:
        said.append(f"the budget ended the recording after {count(seen.steps, 'batch', 'es')}")
    if seen.exhausted:
        said.append(f"the loader gave no more than {count(seen.steps, 'batch', 'es')}")
    elif seen.epochs > 1:
        said.append(f"the loader is short: the recording went through {seen.epochs} epochs")
    return tuple(said)
