"""`ss.instrumented`: watch the user's own loop over a loader, and change nothing."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stallscope.errors import UnsupportedError
from stallscope.experiments.collect import About, collect
from stallscope.measure.replay import Replay
from stallscope.measure.workspace import log_capacity, workspace
from stallscope.probe.install import LogPlace, Probe, supported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from stallscope.run import Run


class Watch:
    """What `ss.instrumented` gives: its `run` exists after the block, also after an error."""

    run: Run
    """What the workers did while the block ran."""


@contextmanager
def instrumented(loader: DataLoader[Any], *, warmup: int = 4) -> Iterator[Watch]:
    """Record what the workers of a loader do while you iterate it yourself.

    The loader gives the batches that it would have given, bit for bit, and all generators move as
    they would have moved.

    Args:
        loader: the DataLoader that is iterated inside the block.
        warmup: batches at the start that are kept apart.

    Yields:
        An object whose `run` exists after the block.

    Raises:
        UnsupportedError: a kind of loader that is not measured yet, or one whose persistent
            workers live already: they cannot be hooked any more.
        WorkspaceError: no room for the logs.
    """
    supported(loader)
    if getattr(loader, "_iterator", None) is not None:
        raise UnsupportedError(
            "the loader's persistent workers live already and cannot be hooked any more; "
            "instrument it before it is first iterated, or use ss.record, which starts its own"
        )
    watch, seen = Watch(), Replay()
    with workspace() as folder:
        place = LogPlace(folder, log_capacity(folder, max(loader.num_workers, 1)))
        seen.began_ns = perf_counter_ns()
        try:
            with Probe(place, loader, seen.epoch_began_ns):
                yield watch
        finally:
            seen.ended_ns = perf_counter_ns()
            watch.run = collect(place, seen, loader, About(warmup=warmup)).run
