"""`ss.record`: run a loader for a while, and keep what its workers did with every sample."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from stallscope.errors import StallscopeError
from stallscope.experiments.collect import About, collect
from stallscope.experiments.failure import explain
from stallscope.measure import target as targets
from stallscope.measure.device import to_device
from stallscope.measure.distributed import alone
from stallscope.measure.replay import Limits, Progress, Replay, private_copy, replay
from stallscope.measure.snapshot import as_before
from stallscope.measure.workspace import log_capacity, workspace
from stallscope.probe.install import LogPlace, Probe, supported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from stallscope.measure.target import Target
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
    """Record what the workers of a loader do with every sample.

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
        UnsupportedError: a kind of loader that is not measured yet, or more than one rank.
        WorkspaceError: no room for the logs.
    """
    alone()
    aim = targets.target(target, step=step, device=device)
    loader = private_copy(supported(aim.loader))
    seen = Replay()
    limits = Limits.of(batches, warmup=warmup, processes=loader.num_workers, budget_s=budget_s)
    with workspace() as folder, as_before(loader, aim.step) as said:
        place = LogPlace(folder, log_capacity(folder, max(loader.num_workers, 1)))
        about = About(aim.name, warmup, (*aim.notes, *said, *_about_threads(loader)))
        try:
            bar = Progress(place, seen, batches=limits.batches, title=f"recording {aim.name}")
            with Probe(place, loader, seen.epoch_began_ns), closing(bar):
                replay(loader, _moved(aim), seen, limits, bar.moving)
        except StallscopeError:
            raise
        except BaseException as error:
            explain(error, collect(place, seen, loader, about))
            raise
        return collect(place, seen, loader, about).run


def _about_threads(loader: DataLoader[Any]) -> tuple[str, ...]:
    threads = torch.get_num_threads()
    if loader.num_workers or threads == 1:
        return ()
    return (f"num_workers=0: made with 1 torch thread, as in a worker; your loop has {threads}",)


def _moved(aim: Target) -> Callable[[Any], object] | None:
    """The step, with each batch moved to the device first where one is given."""
    if aim.device is None or aim.step is None:
        return aim.step
    step, device = aim.step, aim.device
    return lambda batch: step(to_device(batch, device))
