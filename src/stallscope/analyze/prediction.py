"""How fast each rung of a ladder with workers should be, by plain arithmetic over a run's spans.

What is left of a batch's work is shared by the workers, and its part on a CPU also by the cores.
The loop takes one batch after the other. The slowest of the three decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from stallscope.ladders import AS_IT_IS, FETCHED, TRANSFORMED, WARM
from stallscope.stages import BATCH, SEND

if TYPE_CHECKING:
    from stallscope.run import Run

_REMOVED: Final = {
    AS_IT_IS.name: (),
    WARM.name: (),
    FETCHED.name: ("fetch", "decode", "other"),
    TRANSFORMED.name: ("fetch", "decode", "other", "transform"),
}
"""Kinds of stages that a rung with workers does without."""


_QUICK: Final = 0.1
"""Quantile of what a thread beside the workers' own takes: most of them had to wait for a core."""


def predicted_rates(run: Run, cores: float, samples_per_batch: float) -> dict[str, float]:
    """Samples a second of each rung with workers.

    Args:
        run: the loader as it is, recorded with the same step.
        cores: that its processes may use.
        samples_per_batch: on average.
    """
    workers = max(run.settings.num_workers, 1)
    batches = max(run.batches.filter("steady").height, 1)
    send_s, receive_s, use_s = _send_s(run), _receive_s(run), _use_s(run)
    rates = {}
    for rung, removed in _REMOVED.items():
        whole_s, cpu_s = (sum_s / batches for sum_s in _left_s(run, removed))
        slowest_s = max(
            (whole_s + send_s) / workers,  # a worker's threads share Python's lock
            (cpu_s + send_s + receive_s) / cores,
            receive_s + use_s,
        )
        rates[rung] = samples_per_batch / slowest_s
    return rates


def _left_s(run: Run, removed: tuple[str, ...]) -> tuple[float, float]:
    """What the workers do for all batches without the removed kinds, and that on a CPU."""
    works = run.stages().filter(pl.col("busy_share").is_not_null())
    is_kept = ~pl.col("kind").cast(pl.String).is_in(removed) | (pl.col("stage") == BATCH.name)
    on_cpu = (pl.col("busy_s") * pl.col("cpu_share").fill_null(1.0)).sum()
    left = works.filter(is_kept).select(pl.col("busy_s").sum(), cpu_s=on_cpu)
    whole_s, cpu_s = left.row(0)
    return float(whole_s), float(cpu_s)


def _send_s(run: Run) -> float:
    """What pickling and writing a batch takes."""
    sending = run.side_spans.filter(pl.col("stage") == SEND.name)
    return _quick((sending["end_ns"] - sending["start_ns"]) / 1e9)


def _receive_s(run: Run) -> float:
    """What receiving a batch takes that is there: the shortest waits, or a part of the others."""
    unpickling = run.parts().filter(pl.col("part") == "unpickle")["exposed_s"]
    return min(_quick(run.steps()["wait_s"]), _quick(unpickling) or float("inf"))


def _use_s(run: Run) -> float:
    """What the loop does with a batch."""
    return _quick(run.steps().select(pl.sum_horizontal("h2d_s", "step_s", "other_s")).to_series())


def _quick(taken_s: pl.Series) -> float:
    return float(taken_s.quantile(_QUICK) or 0.0)
