"""What a sample costs outside of its ops: reading, decoding, collating, going to shared memory."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from stallscope.measure.cache.values import mapped
from stallscope.orderings import Rest

if TYPE_CHECKING:
    from stallscope.measure.pipelines.inputs import Drawn

_ROUNDS: Final = 4


def rest_of(loader: Any, drawn: tuple[Drawn, ...]) -> Rest:
    """The costs around the ops, from the samples that were drawn.

    The first sample pays for what is imported or opened once, so medians are taken.

    Args:
        loader: whose collate function it is.
        drawn: the samples, finished.
    """
    return Rest(
        fetch_s=statistics.median(one.fetch_s for one in drawn),
        decode_s=statistics.median(one.decode_s for one in drawn),
        batch_s=_batch_s(loader, [one.finished for one in drawn]),
    )


def _batch_s(loader: Any, samples: list[Any]) -> float:
    """Its share of collating and of copying to shared memory, as workers do to send."""
    if loader.batch_sampler is None:
        samples = samples[:1]
    best_s = float("inf")
    for _ in range(_ROUNDS):
        began_ns = time.perf_counter_ns()
        batch = loader.collate_fn(samples if loader.batch_sampler is not None else samples[0])
        if loader.num_workers:
            batch = mapped(batch, _shared)
        best_s = min(best_s, (time.perf_counter_ns() - began_ns) / 1e9)
        del batch
    return best_s / len(samples)


def _shared(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and leaf.layout is torch.strided:
        return leaf.clone().share_memory_()  # type: ignore[no-untyped-call]
    return leaf
