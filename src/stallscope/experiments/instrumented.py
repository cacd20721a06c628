"""`ss.instrumented`: watch the user's own loop over its loaders, and change nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stallscope.errors import UnsupportedError
from stallscope.experiments.about import About
from stallscope.experiments.collect import collect
from stallscope.experiments.failure import explain, is_of_workers, salvaged
from stallscope.measure.inner import loaders_of
from stallscope.measure.resources.sampler import Sampler
from stallscope.measure.workspace import log_capacity, workspace
from stallscope.probe.install import Probe
from stallscope.probe.logplace import LogPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stallscope.run import Run

_PROCESSES = 8
"""So many logs must have room where it is not known how many workers there will be."""


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
        loader: what is iterated inside the block: a DataLoader, or something around one; None:
            every DataLoader of this process, also those that are made inside the block.
        warmup: steps at the start that are kept apart.

    Yields:
        An object whose `run` exists after the block.

    Raises:
        UnsupportedError: there is no DataLoader in it, or one whose persistent workers live
            already: they cannot be hooked any more.
        WorkspaceError: no room for the logs.
    """
    loaders = None if loader is None else _measured(loader)
    watch = Watch()
    with workspace() as folder:
        processes = sum(max(one.num_workers, 1) for one in loaders or ()) or _PROCESSES
        place = LogPlace(folder, log_capacity(folder, processes))
        probe, sampler = Probe(place, loaders), Sampler(place)
        try:
            with probe, sampler:
                About(warmup=warmup).leave_with(probe)
                yield watch
        except BaseException as error:
            sampler.__exit__()  # an interrupt may have come just before the first time
            probe.__exit__()
            if not probe.forked and (recording := salvaged(error, place)):
                watch.run = recording.run
                if probe.raised(error) or is_of_workers(error):
                    explain(error, recording)
            raise
        if not probe.forked:
            watch.run = collect(place).run


def _measured(loader: Any) -> list[Any]:
    """The DataLoaders of what was given.

    Raises:
        UnsupportedError: there is none, or one that cannot be hooked any more.
    """
    loaders = loaders_of(loader)
    inner = getattr(loader, "base_dataloader", None)  # accelerate's, which this one iterates
    loaders += loaders_of(inner) if loaders else []
    kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
    if not loaders:
        raise UnsupportedError(
            f"there is no torch.utils.data.DataLoader in this {kind}, so its waits cannot be told "
            "from the outside; use ss.record, which iterates it itself"
        )
    _check_new(loaders)
    return loaders


def _check_new(loaders: Iterable[Any]) -> None:
    if any(getattr(one, "_iterator", None) is not None for one in loaders):
        raise UnsupportedError(
            "the loader's persistent workers live already and cannot be hooked any more; "
            "instrument it before it is first iterated, or use ss.record, which starts its own"
        )
