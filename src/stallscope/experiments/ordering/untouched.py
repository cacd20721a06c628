"""Leaving a loader as it was, after samples were made with its own dataset and ops."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stallscope.measure.attributes import bindings_kept
from stallscope.measure.callables import Parts
from stallscope.measure.onethread import one_thread
from stallscope.measure.pipelines.draws import named_kept, restored
from stallscope.measure.snapshot import as_before

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallscope.experiments.ordering.workbench import Workbench


@contextmanager
def untouched(loader: Any) -> Iterator[None]:
    """Put back every generator and sampler, and what the dataset and its ops hold.

    Args:
        loader: torch's own.
    """
    parts = Parts(loader)
    with (
        as_before(loader),
        named_kept(parts.functions.values()),
        bindings_kept(parts.holders()),
    ):
        yield


@contextmanager
def guarded(loader: Any, bench: Workbench) -> Iterator[None]:
    """The same for work on the bench, with one torch thread, as in a worker."""
    with untouched(loader), restored(bench.streams), one_thread():
        yield
